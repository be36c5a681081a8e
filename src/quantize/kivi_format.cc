#include "quantize/kivi_format.h"

#include <cstring>

#include <fmt/format.h>

#include "core/float16.h"
#include "quantize/kivi_kernels.h"
#include "quantize/kivi_layout.h"
#include "quantize/planar_rows.h"
#include "quantize/row_check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/kivi_format.cc"
#include "simd/dispatch.h"

#include "quantize/kivi_encode-inl.h"
#include "quantize/lane_products-inl.h"
#include "quantize/planar_products-inl.h"
#include "simd/f16_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- score and accumulate (2.4)

// A code is used where it lies in its word: masked, not shifted, it is 2^(kBits * j) times too large for step j of the
// word, and the coefficient is made that much smaller. Both scalings are exact. Only the topmost code is shifted down,
// because masked it would look negative.
template <int kBits>
struct StepScales {
  alignas(64) float of[16];  // for steps 0 to 15 of any run that begins at a word
};
template <int kBits>
constexpr StepScales<kBits> step_scales() {
  StepScales<kBits> scales{};
  constexpr int kSteps = 32 / kBits;
  for (int i = 0; i < 16; ++i) {
    if (kBits == 3) {  // four bytes to a word: kByteSteps
      scales.of[i] = i % 4 == 3 ? 1.0F : 1.0F / static_cast<float>(1U << (8 * (i % 4)));
      continue;
    }
    const int step = i % kSteps;
    scales.of[i] = step == kSteps - 1 ? 1.0F : 1.0F / static_cast<float>(1U << (kBits * step));
  }
  return scales;
}
template <int kBits>
alignas(64) constexpr StepScales<kBits> kStepScales = step_scales<kBits>();

// y[query, lane] (kSet: becomes, kAdd: grows by) offset[query] + sum over steps of x[query, step] * code(step, lane) for the
// 32 lanes of a block. x carries kStepScales. The offset comes last, so that the products need not wait for its sum.
// Not inlined: in a function of its own the compiler keeps all sums in registers, inside a large one it does not.
enum class Output { kSet, kAdd };
template <int kBits, int kQueries, Output kResult>
struct CodeProducts {
  const std::uint32_t* words = nullptr;  // [word_count][32]
  std::size_t word_count = 0;
  std::uintptr_t ahead = 0;
  const float* x = nullptr;
  std::size_t x_stride = 0;
  const float* offset = nullptr;  // [kQueries]
  float* y = nullptr;
  std::size_t y_stride = 0;

  template <int kVectors, class D>
  HWY_NOINLINE void run(D d, std::size_t lane) const {
    LaneSums<kQueries, kVectors, D> sums;
    sums.clear(d);
    const std::uint32_t* HWY_RESTRICT word = words + lane;
    const float* HWY_RESTRICT coefficients = x;
    if constexpr (kBits == 3) {
      ByteProducts<PlainCode<3>>{}.add(d, word, word_count / 3, ahead, coefficients, x_stride, sums);
    } else {
      for (std::size_t w = 0; w < word_count; ++w, word += kKiviLanes, coefficients += 32 / kBits) {
        prefetch_ahead(word, ahead);
        if constexpr (kVectors * hn::MaxLanes(D()) > 16) prefetch_ahead(word + 16, ahead);
        add_word(d, word, coefficients, sums);
      }
    }
    for (int q = 0; q < kQueries; ++q) {
      for (int v = 0; v < kVectors; ++v) {
        float* const to = y + q * y_stride + lane + v * hn::MaxLanes(D());
        auto sum = hn::Add(sums.of[q][v], hn::Set(d, offset[q]));
        if constexpr (kResult == Output::kAdd) sum = hn::Add(hn::LoadU(d, to), sum);
        hn::StoreU(sum, d, to);
      }
    }
  }

  // The 32 / kBits steps of one word of each lane.
  template <int kVectors, class D>
  HWY_INLINE void add_word(D d, const std::uint32_t* HWY_RESTRICT word, const float* HWY_RESTRICT coefficients,
                           LaneSums<kQueries, kVectors, D>& sums) const {
    constexpr int kSteps = 32 / kBits;
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
#pragma GCC unroll 16
    for (int step = 0; step < kSteps; ++step) {
      hn::Vec<D> coefficient[kQueries];
      for (int q = 0; q < kQueries; ++q) coefficient[q] = hn::Set(d, coefficients[q * x_stride + step]);
      for (int v = 0; v < kVectors; ++v) {
        const auto lanes = hn::LoadU(du, word + v * hn::MaxLanes(D()));
        const auto code = step == kSteps - 1 ? hn::ShiftRight<32 - kBits>(lanes)
                                             : hn::And(lanes, hn::Set(du, ((1U << kBits) - 1U) << (kBits * step)));
        const auto value = hn::ConvertTo(d, hn::BitCast(di, code));
        for (int q = 0; q < kQueries; ++q) sums.of[q][v] = hn::MulAdd(coefficient[q], value, sums.of[q][v]);
      }
    }
  }
};

// x[query, i] = from[query, i] * scale[i], with kStepScales; returns sum over i of from[query, i] * zero[i] in `offset`.
// count is a multiple of 16, and i = 0 begins a word.
template <int kBits, int kQueries>
HWY_NOINLINE void fold_group(const float* HWY_RESTRICT from, std::size_t from_stride, const std::uint16_t* HWY_RESTRICT scales,
                             const std::uint16_t* HWY_RESTRICT zeros, std::size_t count, std::uintptr_t ahead,
                             float* HWY_RESTRICT x, std::size_t x_stride, float* HWY_RESTRICT offset) {
  const F8 d;
  hn::Vec<F8> sum[kQueries];
  for (int q = 0; q < kQueries; ++q) sum[q] = hn::Zero(d);
  for (std::size_t i = 0; i < count; i += 32) {
    prefetch_ahead(scales + i, ahead);
    prefetch_ahead(zeros + i, ahead);
  }
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto scale = hn::Mul(load_f16(d, scales + i), hn::LoadU(d, kStepScales<kBits>.of + i % 16));
    const auto zero = load_f16(d, zeros + i);
    for (int q = 0; q < kQueries; ++q) {
      const auto value = hn::LoadU(d, from + q * from_stride + i);
      hn::StoreU(hn::Mul(value, scale), d, x + q * x_stride + i);
      sum[q] = hn::MulAdd(value, zero, sum[q]);
    }
  }
  for (int q = 0; q < kQueries; ++q) offset[q] = hn::GetLane(hn::SumOfLanes(d, sum[q]));
}

template <int kBits>
struct ScoreKivi {
  // logit = sum over channels of (q * scale) * code  +  sum over channels of q * zero
  template <int kQueries>
  static HWY_INLINE void run(const TileFormat& format, const ScoreArgs& args, std::size_t query) {
    const KiviLayout layout(format);
    const std::size_t begin = static_cast<std::size_t>(args.begin);
    const std::size_t end = static_cast<std::size_t>(args.end);
    const std::size_t first_group = begin / layout.group;
    const std::uintptr_t ahead = bytes_ahead(args.tile, args.next);
    alignas(64) float x[kQueries * kKiviMaxHeadDim];
    float offset[kQueries];
    for (std::size_t g = first_group, first = g * layout.group; first < end; ++g, first += layout.group) {
      fold_group<kBits, kQueries>(args.q + query * layout.head_dim, layout.head_dim, layout.scales(args.tile, g),
                                  layout.zeros(args.tile, g), layout.head_dim, ahead, x, layout.head_dim, offset);
      for (std::size_t t = first; t < first + layout.group && t < end; t += kKiviLanes) {
        if (t + kKiviLanes > begin) score_block<kQueries>(layout, args, query, t, x, offset);
      }
    }
  }

  // Tokens [t, t + 32) of the tile, as far as they are asked for.
  template <int kQueries>
  static HWY_INLINE void score_block(const KiviLayout& layout, const ScoreArgs& args, std::size_t query, std::size_t t,
                                     const float* x, const float* offset) {
    const std::size_t begin = static_cast<std::size_t>(args.begin);
    const std::size_t end = static_cast<std::size_t>(args.end);
    float* const logits = args.logits + query * args.logit_stride;
    CodeProducts<kBits, kQueries, Output::kSet> products{layout.words(args.tile, t / kKiviLanes),
                                                         layout.words_per_lane,
                                                         bytes_ahead(args.tile, args.next),
                                                         x,
                                                         layout.head_dim,
                                                         offset,
                                                         logits + (t - begin),
                                                         args.logit_stride};
    if (t >= begin && t + kKiviLanes <= end) {
      for_lanes<kQueries>(kKiviLanes, products);
      return;
    }
    alignas(64) float block[kQueries][kKiviLanes];
    products.y = block[0];
    products.y_stride = kKiviLanes;
    for_lanes<kQueries>(kKiviLanes, products);
    const std::size_t from = t < begin ? begin : t;
    const std::size_t to = t + kKiviLanes < end ? t + kKiviLanes : end;
    for (std::size_t q = 0; q < kQueries; ++q) {
      std::memcpy(logits + q * args.logit_stride + (from - begin), block[q] + (from - t), (to - from) * sizeof(float));
    }
  }
};

template <int kBits>
struct AccumulateKivi {
  // out += sum over rows of (weight * scale) * code  +  sum over rows of weight * zero
  template <int kQueries>
  static HWY_INLINE void run(const TileFormat& format, const AccumulateArgs& args, std::size_t query) {
    constexpr std::size_t kRun = kBits == 3 ? 32 : 16;  // rows taken at a time: whole words
    const KiviLayout layout(format);
    const std::size_t first = static_cast<std::size_t>(args.begin) / kRun * kRun;
    const std::size_t rows = (static_cast<std::size_t>(args.end) + kRun - 1) / kRun * kRun - first;
    const std::uintptr_t ahead = bytes_ahead(args.tile, args.next);
    const float* weights = args.weights + query * args.weight_stride;
    std::size_t stride = args.weight_stride;
    // Those outside [begin, end) weigh nothing.
    alignas(64) float padded[kQueries * kKiviRows];
    if (static_cast<std::size_t>(args.end - args.begin) != rows) {
      std::memset(padded, 0, sizeof(padded));
      for (std::size_t q = 0; q < kQueries; ++q) {
        std::memcpy(padded + q * kKiviRows + (static_cast<std::size_t>(args.begin) - first), weights + q * stride,
                    static_cast<std::size_t>(args.end - args.begin) * sizeof(float));
      }
      weights = padded;
      stride = kKiviRows;
    }
    alignas(64) float x[kQueries * kKiviRows];
    float offset[kQueries] = {};
    for (std::size_t g = 0, channel = 0; channel < layout.head_dim; channel += kKiviLanes) {
      if (channel == g * layout.group) {
        fold_group<kBits, kQueries>(weights, stride, layout.scales(args.tile, g) + first, layout.zeros(args.tile, g) + first,
                                    rows, ahead, x, kKiviRows, offset);
        ++g;
      }
      float* const out = args.out + query * layout.head_dim + channel;
      const std::uint32_t* const words = layout.words(args.tile, channel / kKiviLanes) + first * kBits / 32 * kKiviLanes;
      for_lanes<kQueries>(kKiviLanes, CodeProducts<kBits, kQueries, Output::kAdd>{words, rows * kBits / 32, ahead, x, kKiviRows,
                                                                                  offset, out, layout.head_dim});
    }
  }
};

#define KVARTET_KIVI_KERNELS(bits)                                                                                            \
  void write_kivi##bits##_keys(const TileFormat& format, MatView<const float> rows, std::size_t begin, std::byte* tile) {     \
    write_keys<bits>(format, rows, begin, tile);                                                                              \
  }                                                                                                                           \
  void write_kivi##bits##_values(const TileFormat& format, MatView<const float> rows, std::size_t begin, std::byte* tile) {   \
    write_values<bits>(format, rows, begin, tile);                                                                            \
  }                                                                                                                           \
  void score_kivi##bits(const TileFormat& format, const ScoreArgs& args) { for_query_chunks<ScoreKivi<bits>>(format, args); } \
  void accumulate_kivi##bits(const TileFormat& format, const AccumulateArgs& args) {                                          \
    for_query_chunks<AccumulateKivi<bits>>(format, args);                                                                     \
  }
KVARTET_KIVI_KERNELS(2)
KVARTET_KIVI_KERNELS(3)
KVARTET_KIVI_KERNELS(4)
KVARTET_KIVI_KERNELS(8)
#undef KVARTET_KIVI_KERNELS

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(write_kivi2_keys);
HWY_EXPORT(write_kivi3_keys);
HWY_EXPORT(write_kivi4_keys);
HWY_EXPORT(write_kivi8_keys);
HWY_EXPORT(write_kivi2_values);
HWY_EXPORT(write_kivi3_values);
HWY_EXPORT(write_kivi4_values);
HWY_EXPORT(write_kivi8_values);
HWY_EXPORT(score_kivi2);
HWY_EXPORT(score_kivi3);
HWY_EXPORT(score_kivi4);
HWY_EXPORT(score_kivi8);
HWY_EXPORT(accumulate_kivi2);
HWY_EXPORT(accumulate_kivi3);
HWY_EXPORT(accumulate_kivi4);
HWY_EXPORT(accumulate_kivi8);

namespace {

// With every magnitude below this, zero points and scales (at most a third of the range) fit f16.
constexpr float kLimit = 65520.0F;

Status encode(const TileFormat& format, std::byte* tile, int begin, MatView<const float> rows) {
  KV_CHECK(begin % format.row_step == 0 && rows.rows % static_cast<std::size_t>(format.row_step) == 0);
  KV_TRY(check_finite(rows, "kivi", kLimit));
  const bool keys = format.side == Side::kKey;
  const auto write = [&]() {
    switch (format.bits) {
      case 2: return keys ? HWY_DYNAMIC_DISPATCH(write_kivi2_keys) : HWY_DYNAMIC_DISPATCH(write_kivi2_values);
      case 3: return keys ? HWY_DYNAMIC_DISPATCH(write_kivi3_keys) : HWY_DYNAMIC_DISPATCH(write_kivi3_values);
      case 4: return keys ? HWY_DYNAMIC_DISPATCH(write_kivi4_keys) : HWY_DYNAMIC_DISPATCH(write_kivi4_values);
      default: return keys ? HWY_DYNAMIC_DISPATCH(write_kivi8_keys) : HWY_DYNAMIC_DISPATCH(write_kivi8_values);
    }
  }();
  write(format, rows, static_cast<std::size_t>(begin), tile);
  return {};
}

void decode(const TileFormat& format, const std::byte* tile, int begin, int end, MatView<float> out) {
  const KiviLayout layout(format);
  const std::size_t steps = 32 / static_cast<std::size_t>(format.bits);
  for (std::size_t row = static_cast<std::size_t>(begin); row < static_cast<std::size_t>(end); ++row) {
    for (std::size_t channel = 0; channel < layout.head_dim; ++channel) {
      const bool keys = format.side == Side::kKey;
      const std::size_t lane = keys ? row : channel;
      const std::size_t step = keys ? channel : row;
      const std::uint32_t* const words = layout.words(tile, lane / kKiviLanes) + lane % kKiviLanes;
      std::uint32_t code = 0;
      if (format.bits == 3) {
        code = planar_bits(3, words + step / 32 * 3 * kKiviLanes, step % 32);
      } else {
        const std::uint32_t word = words[step / steps * kKiviLanes];
        code = word >> (static_cast<std::size_t>(format.bits) * (step % steps)) & ((1U << format.bits) - 1U);
      }
      const float scale = float_from_f16(layout.scales(tile, lane / layout.group)[step]);
      const float zero = float_from_f16(layout.zeros(tile, lane / layout.group)[step]);
      out.row(row - static_cast<std::size_t>(begin))[channel] = scale * static_cast<float>(code) + zero;
    }
  }
}

Status check_request(const FormatRequest& request, int head_dim) {
  if (request.bits != 2 && request.bits != 3 && request.bits != 4 && request.bits != 8) {
    return usage_error(fmt::format("kivi with {} bits is not available; take 2, 3, 4 or 8", request.bits));
  }
  if (request.group != 32 && request.group != 64 && request.group != 128) {
    return usage_error(fmt::format("a kivi group of {} is not available; take 32, 64 or 128", request.group));
  }
  if (head_dim % request.group != 0) {
    int fits = request.group;
    while (fits >= 32 && head_dim % fits != 0) fits /= 2;
    return usage_error(fmt::format("a kivi group of {} does not divide the head dimension {}; {}", request.group, head_dim,
                                   fits >= 32 ? fmt::format("take group={}", fits) : "take f16"));
  }
  return {};
}

}  // namespace

Result<TileFormat> make_kivi_format(const FormatRequest& request, Side side, int head_dim) {
  KV_TRY(check_request(request, head_dim));
  TileFormat format;
  format.name = fmt::format("kivi{}", request.bits);
  format.side = side;
  format.head_dim = head_dim;
  format.tile_rows = static_cast<int>(kKiviRows);
  format.row_step = side == Side::kKey ? request.group : 1;
  format.bits = request.bits;
  format.group = request.group;
  format.group_bytes = 4;
  format.tile_bytes = format.live_bytes(format.tile_rows);
  format.kernels.encode = encode;
  format.kernels.decode = decode;
  switch (request.bits) {
    case 2:
      format.kernels.score = SIMD_CHOOSE(score_kivi2);
      format.kernels.accumulate = SIMD_CHOOSE(accumulate_kivi2);
      break;
    case 3:
      format.kernels.score = SIMD_CHOOSE(score_kivi3);
      format.kernels.accumulate = SIMD_CHOOSE(accumulate_kivi3);
      break;
    case 4:
      format.kernels.score = SIMD_CHOOSE(score_kivi4);
      format.kernels.accumulate = SIMD_CHOOSE(accumulate_kivi4);
      break;
    default:
      format.kernels.score = SIMD_CHOOSE(score_kivi8);
      format.kernels.accumulate = SIMD_CHOOSE(accumulate_kivi8);
      break;
  }
  if (const KiviKernels integer = kivi_kernels_avx512(request.bits, head_dim); integer.score != nullptr) {
    format.kernels.score = integer.score;
    format.kernels.accumulate = integer.accumulate;
  }
  return format;
}

}  // namespace kvartet
#endif
