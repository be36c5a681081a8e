// How KIVI tiles are written (compression.md 2.1), per target: scales and zero points of groups, codes, their place in words.
#if defined(KVARTET_QUANTIZE_KIVI_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVARTET_QUANTIZE_KIVI_ENCODE_INL_H_
#undef KVARTET_QUANTIZE_KIVI_ENCODE_INL_H_
#else
#define KVARTET_QUANTIZE_KIVI_ENCODE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/float16.h"
#include "core/matrix.h"
#include "quantize/kivi_layout.h"
#include "simd/dispatch.h"
#include "simd/f16_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F8 = hn::CappedTag<float, 8>;

// The scale of a group from its extremes, as f16 lanes at `scale` and `zero`.
template <int kBits>
HWY_INLINE void store_group(F8 d, hn::Vec<F8> smallest, hn::Vec<F8> largest, std::uint16_t* scale, std::uint16_t* zero) {
  constexpr float kLevels = (1 << kBits) - 1;
  store_f16(smallest, d, zero);
  store_f16(hn::Div(hn::Sub(largest, smallest), hn::Set(d, kLevels)), d, scale);
}

// Codes from the rounded scale and zero point, half to even; a group without range has code 0 (R8).
template <int kBits>
HWY_INLINE auto quantize(F8 d, hn::Vec<F8> x, hn::Vec<F8> scale, hn::Vec<F8> zero) {
  constexpr float kLevels = (1 << kBits) - 1;
  const auto steps = hn::Div(hn::Sub(x, zero), scale);
  const auto clamped = hn::Min(hn::Max(steps, hn::Zero(d)), hn::Set(d, kLevels));
  return hn::NearestInt(hn::IfThenZeroElse(hn::Eq(scale, hn::Zero(d)), clamped));
}

// The eight bytes of x hold a code of kBits each; returns them side by side, the first byte's lowest.
template <int kBits>
HWY_INLINE std::uint64_t pack_bytes(std::uint64_t x) {
  if constexpr (kBits == 8) return x;
  if constexpr (kBits == 4) {
    x = (x | (x >> 4)) & 0x00ff00ff00ff00ffU;
    x = (x | (x >> 8)) & 0x0000ffff0000ffffU;
    return (x | (x >> 16)) & 0xffffffffU;
  }
  x = (x | (x >> 6)) & 0x000f000f000f000fU;
  x = (x | (x >> 12)) & 0x000000ff000000ffU;
  return (x | (x >> 24)) & 0xffffU;
}

// 32 / kBits bytes to one word.
template <int kBits>
HWY_INLINE std::uint32_t pack_word(const std::uint8_t* HWY_RESTRICT codes) {
  std::uint64_t x = 0;
  std::memcpy(&x, codes, kBits == 8 ? 4 : 8);
  std::uint64_t word = pack_bytes<kBits>(x);
  if constexpr (kBits == 2) {
    std::memcpy(&x, codes + 8, 8);
    word |= pack_bytes<kBits>(x) << 16;
  }
  return static_cast<std::uint32_t>(word);
}

// 32 codes of 3 bits, a byte each, to three words in the planes of planar_rows.h.
HWY_INLINE void pack_three_words(const std::uint8_t* HWY_RESTRICT codes, std::uint32_t* HWY_RESTRICT lane) {
  std::uint32_t quads[8];
  std::memcpy(quads, codes, sizeof(quads));
  std::uint32_t words[3] = {};
  for (int quad = 0; quad < 8; ++quad) {
    words[quad / 4] |= (quads[quad] & 0x03030303U) << (2 * (quad % 4));
    words[2] |= ((quads[quad] >> 2) & 0x01010101U) << quad;
  }
  for (std::size_t w = 0; w < 3; ++w) lane[w * kKiviLanes] = words[w];
}

// 32 tokens x 16 channels of codes (3 bits: 32 channels), packed along channels into the words of a token block.
template <int kBits>
HWY_INLINE void write_key_codes(MatView<const float> rows, std::size_t channel, const std::uint16_t* scales,
                                const std::uint16_t* zeros, std::uint32_t* HWY_RESTRICT words) {
  constexpr std::size_t kChannels = kBits == 3 ? 32 : 16;
  constexpr std::size_t kSteps = 32 / kBits;
  const F8 d;
  const hn::Rebind<std::uint8_t, F8> du8;
  std::uint8_t codes[kKiviLanes][kChannels];
  for (std::size_t c = 0; c < kChannels; c += hn::Lanes(d)) {
    const auto scale = load_f16(d, scales + channel + c);
    const auto zero = load_f16(d, zeros + channel + c);
    for (std::size_t t = 0; t < kKiviLanes; ++t) {
      const auto code = quantize<kBits>(d, hn::LoadU(d, rows.row(t) + channel + c), scale, zero);
      hn::StoreU(hn::DemoteTo(du8, code), du8, codes[t] + c);
    }
  }
  if constexpr (kBits == 3) {
    std::uint32_t* const lanes = words + channel / 32 * 3 * kKiviLanes;
    for (std::size_t t = 0; t < kKiviLanes; ++t) pack_three_words(codes[t], lanes + t);
    return;
  }
  for (std::size_t c = 0; c < kChannels; c += kSteps) {
    std::uint32_t* const lanes = words + (channel + c) / kSteps * kKiviLanes;
    for (std::size_t t = 0; t < kKiviLanes; ++t) lanes[t] = pack_word<kBits>(codes[t] + c);
  }
}

// One group of `group` tokens at tile row `begin`.
template <int kBits>
HWY_INLINE void write_key_group(const KiviLayout& layout, MatView<const float> rows, std::size_t begin, std::byte* tile) {
  const F8 d;
  std::uint16_t* const scales = layout.scales(tile, begin / layout.group);
  std::uint16_t* const zeros = layout.zeros(tile, begin / layout.group);
  for (std::size_t c = 0; c < layout.head_dim; c += hn::Lanes(d)) {
    auto smallest = hn::LoadU(d, rows.row(0) + c);
    auto largest = smallest;
    for (std::size_t t = 1; t < layout.group; ++t) {
      const auto x = hn::LoadU(d, rows.row(t) + c);
      smallest = hn::Min(smallest, x);
      largest = hn::Max(largest, x);
    }
    store_group<kBits>(d, smallest, largest, scales + c, zeros + c);
  }
  for (std::size_t t = 0; t < layout.group; t += kKiviLanes) {
    std::uint32_t* const words = layout.words(tile, (begin + t) / kKiviLanes);
    for (std::size_t c = 0; c < layout.head_dim; c += kBits == 3 ? 32 : 16) {
      write_key_codes<kBits>(rows.row_range(t, t + kKiviLanes), c, scales, zeros, words);
    }
  }
}

template <int kBits>
HWY_INLINE void write_keys(const TileFormat& format, MatView<const float> rows, std::size_t begin, std::byte* tile) {
  const KiviLayout layout(format);
  for (std::size_t r = 0; r < rows.rows; r += layout.group) {
    write_key_group<kBits>(layout, rows.row_range(r, r + layout.group), begin + r, tile);
  }
}

// Replaces kWidth bits from kFirst on of eight lanes' codes in their words.
template <int kWidth, int kFirst>
HWY_INLINE void replace_bits(F8 d, hn::VFromD<hn::RebindToUnsigned<F8>> code, int shift, std::uint32_t* HWY_RESTRICT words) {
  const hn::RebindToUnsigned<F8> du;
  (void)d;
  const auto bits = hn::And(hn::ShiftRight<kFirst>(code), hn::Set(du, (1U << kWidth) - 1U));
  const auto others = hn::Set(du, ~(((1U << kWidth) - 1U) << shift));
  hn::StoreU(hn::Or(hn::And(hn::LoadU(du, words), others), hn::ShiftLeftSame(bits, shift)), du, words);
}

// Puts the codes of one row's 32 channels into their bits of the words that hold this row; `step` counts from the words'
// first row.
template <int kBits>
HWY_INLINE void write_value_codes(const float* HWY_RESTRICT x, float scale, float zero, std::size_t step,
                                  std::uint32_t* HWY_RESTRICT words) {
  const F8 d;
  const hn::RebindToUnsigned<F8> du;
  const int place = static_cast<int>(step);
  for (std::size_t c = 0; c < kKiviLanes; c += hn::Lanes(d)) {
    const auto code = hn::BitCast(du, quantize<kBits>(d, hn::LoadU(d, x + c), hn::Set(d, scale), hn::Set(d, zero)));
    if constexpr (kBits == 3) {
      const int quad = place / 4;
      replace_bits<2, 0>(d, code, 8 * (place % 4) + 2 * (quad % 4), words + static_cast<std::size_t>(quad / 4) * kKiviLanes + c);
      replace_bits<1, 2>(d, code, 8 * (place % 4) + quad, words + 2 * kKiviLanes + c);
    } else {
      replace_bits<kBits, 0>(d, code, place * kBits, words + c);
    }
  }
}

template <int kBits>
HWY_INLINE void write_values(const TileFormat& format, MatView<const float> rows, std::size_t begin, std::byte* tile) {
  constexpr std::size_t kSteps = kBits == 3 ? 32 : 32 / kBits;  // rows whose codes share words
  constexpr std::size_t kWords = kBits == 3 ? 3 : 1;
  constexpr float kLevels = (1 << kBits) - 1;
  const F8 d;
  const KiviLayout layout(format);
  for (std::size_t r = 0; r < rows.rows; ++r) {
    const std::size_t token = begin + r;
    for (std::size_t first = 0; first < layout.head_dim; first += layout.group) {
      const float* const x = rows.row(r) + first;
      auto smallest = hn::LoadU(d, x);
      auto largest = smallest;
      for (std::size_t c = hn::Lanes(d); c < layout.group; c += hn::Lanes(d)) {
        smallest = hn::Min(smallest, hn::LoadU(d, x + c));
        largest = hn::Max(largest, hn::LoadU(d, x + c));
      }
      const float low = hn::GetLane(hn::MinOfLanes(d, smallest));
      const float high = hn::GetLane(hn::MaxOfLanes(d, largest));
      const std::uint16_t zero = f16_from_float(low);
      const std::uint16_t scale = f16_from_float((high - low) / kLevels);
      layout.scales(tile, first / layout.group)[token] = scale;
      layout.zeros(tile, first / layout.group)[token] = zero;
      for (std::size_t c = 0; c < layout.group; c += kKiviLanes) {
        std::uint32_t* const words = layout.words(tile, (first + c) / kKiviLanes) + token / kSteps * kWords * kKiviLanes;
        write_value_codes<kBits>(x + c, float_from_f16(scale), float_from_f16(zero), token % kSteps, words);
      }
    }
  }
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
