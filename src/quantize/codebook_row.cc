#include "quantize/codebook_row.h"

#include <cmath>
#include <cstring>

#include "core/float16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/codebook_row.cc"
#include "simd/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kMaxDim = 1024;

// Channels c, c + 8, c + 16, ... make partial sum c, in one vector or two.
class EightSums {
 public:
  using D = hn::CappedTag<float, 8>;
  static constexpr std::size_t kLanes = hn::MaxLanes(D());

  HWY_INLINE EightSums() {
    for (std::size_t i = 0; i < 8 / kLanes; ++i) sums_[i] = hn::Zero(D());
  }
  // x and y begin at a channel that is a multiple of kLanes.
  HWY_INLINE void add(std::size_t channel, hn::Vec<D> x, hn::Vec<D> y) {
    auto& sum = sums_[channel / kLanes % (8 / kLanes)];
    sum = hn::Add(sum, hn::Mul(x, y));
  }
  HWY_INLINE float total() const {
    alignas(32) float p[8];
    for (std::size_t i = 0; i < 8 / kLanes; ++i) hn::Store(sums_[i], D(), p + i * kLanes);
    return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
  }

 private:
  hn::Vec<D> sums_[8 / kLanes];
};

// Nearest levels of y [channels], a multiple of 32.
HWY_INLINE void choose_codes(const CodeLevels& levels, const float* HWY_RESTRICT y, std::size_t channels,
                             std::uint8_t* HWY_RESTRICT codes) {
  const EightSums::D d;
  const hn::Rebind<std::uint8_t, EightSums::D> db;
  if (levels.bits <= 4) {
    const hn::RebindToSigned<EightSums::D> di;
    constexpr std::size_t kLanes = EightSums::kLanes;
    const std::size_t borders = (std::size_t{1} << levels.bits) - 1;
    for (std::size_t c = 0; c < channels; c += 4 * kLanes) {
      hn::Vec<decltype(di)> below[4];  // borders at or below y
      for (auto& count : below) count = hn::Zero(di);
      for (std::size_t b = 0; b < borders; ++b) {
        const auto border = hn::Set(d, levels.borders[b]);
        for (std::size_t v = 0; v < 4; ++v) {
          const auto above = hn::Ge(hn::LoadU(d, y + c + v * kLanes), border);
          below[v] = hn::Sub(below[v], hn::BitCast(di, hn::VecFromMask(d, above)));
        }
      }
      for (std::size_t v = 0; v < 4; ++v) hn::StoreU(hn::DemoteTo(db, below[v]), db, codes + c + v * kLanes);
    }
    return;
  }
  for (std::size_t c = 0; c < channels; ++c) {
    unsigned code = 0;
    for (unsigned step = 1U << (levels.bits - 1); step > 0; step /= 2) {
      code += y[c] >= levels.borders[code + step - 1] ? step : 0;
    }
    codes[c] = static_cast<std::uint8_t>(code);
  }
}

std::uint16_t code_row(const CodePart& part, const float* HWY_RESTRICT x, std::uint8_t* HWY_RESTRICT codes,
                       float* HWY_RESTRICT decoded) {
  const EightSums::D d;
  const hn::RebindToSigned<EightSums::D> di;
  const hn::Rebind<std::uint8_t, EightSums::D> db;
  const std::size_t channels = static_cast<std::size_t>(part.channels);
  EightSums squares;
  for (std::size_t c = 0; c < channels; c += EightSums::kLanes) {
    const auto v = hn::LoadU(d, x + c);
    squares.add(c, v, v);
  }
  const float length = std::sqrt(squares.total());
  if (length == 0.0F) {
    std::memset(codes, 0, channels);
    if (decoded != nullptr) std::memset(decoded, 0, channels * sizeof(float));
    return 0;
  }
  alignas(32) float y[kMaxDim];
  alignas(32) float levels[kMaxDim];
  const auto divisor = hn::Set(d, length);
  for (std::size_t c = 0; c < channels; c += EightSums::kLanes) hn::Store(hn::Div(hn::LoadU(d, x + c), divisor), d, y + c);
  choose_codes(part.levels, y, channels, codes);
  EightSums along;
  EightSums level_squares;
  for (std::size_t c = 0; c < channels; c += EightSums::kLanes) {
    const auto level = hn::GatherIndex(d, part.levels.values, hn::PromoteTo(di, hn::LoadU(db, codes + c)));
    hn::Store(level, d, levels + c);
    along.add(c, hn::Load(d, y + c), level);
    level_squares.add(c, level, level);
  }
  const float corrected = length * (along.total() / level_squares.total());
  const std::uint16_t norm = f16_from_float(corrected < kMaxF16 ? corrected : kMaxF16);
  if (decoded != nullptr) {
    for (std::size_t c = 0; c < channels; ++c) decoded[c] = float_from_f16(norm) * levels[c];
  }
  return norm;
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(code_row);

std::uint16_t code_codebook_row(const CodePart& part, const float* x, std::uint8_t* codes, float* decoded) {
  return SIMD_CHOOSE(code_row)(part, x, codes, decoded);
}

}  // namespace kvartet
#endif
