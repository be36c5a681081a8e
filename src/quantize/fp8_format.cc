#include "quantize/fp8_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "core/float8.h"
#include "quantize/row_check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/fp8_format.cc"
#include "simd/dispatch.h"

#include "quantize/lane_products-inl.h"
#include "simd/f16_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kTileRows = 64;
// An E4M3 number's bits, moved up, are those of an f16 number 2^8 times smaller, subnormals included.
constexpr float kF16Factor = 256.0F;

struct E4m3 {
  std::int8_t bits;
};

template <class D>
HWY_INLINE hn::Vec<D> load_lanes(D d, const E4m3* HWY_RESTRICT p) {
  const hn::Rebind<std::int8_t, D> di8;
  const hn::Rebind<std::int16_t, D> di16;
  const hn::Rebind<hwy::float16_t, D> dh;
  // Widened with its sign and moved up, the number has its sign in the two topmost bits; the second belongs to the exponent.
  const auto bits = hn::PromoteTo(di16, hn::LoadU(di8, &p->bits));
  const auto f16 = hn::And(hn::ShiftLeft<7>(bits), hn::Set(di16, static_cast<std::int16_t>(0xbf80)));
  return hn::PromoteTo(d, hn::BitCast(dh, f16));
}

HWY_INLINE float scale_of(const TileFormat& format) {
  float scale = 1.0F;
  const std::byte* const stored = format.calibration.get();
  if (stored != nullptr) std::memcpy(&scale, stored, sizeof(scale));
  return scale;
}

struct ScoreFp8 {
  template <int kQueries>
  static HWY_INLINE void run(const TileFormat& format, const ScoreArgs& args, std::size_t query) {
    const std::size_t head_dim = static_cast<std::size_t>(format.head_dim);
    const std::size_t begin = static_cast<std::size_t>(args.begin);
    const std::size_t end = static_cast<std::size_t>(args.end);
    const std::size_t first = begin / kBlockLanes * kBlockLanes;
    const float factor = scale_of(format) * kF16Factor;
    alignas(64) float sums[kQueries][kTileRows] = {};
    for (std::size_t t = first; t < end; t += kBlockLanes) {
      const PlainRows<E4m3> keys{reinterpret_cast<const E4m3*>(args.tile) + t * head_dim, kBlockLanes,
                                 bytes_ahead(args.tile, args.next)};
      for_lanes<kQueries>(kBlockLanes, AddPlainRows<kQueries, E4m3>{keys, head_dim, args.q + query * head_dim, head_dim,
                                                                    sums[0] + (t - first), kTileRows});
    }
    for (std::size_t q = 0; q < kQueries; ++q) {
      float* const logits = args.logits + (query + q) * args.logit_stride;
      for (std::size_t r = begin; r < end; ++r) logits[r - begin] = sums[q][r - first] * factor;
    }
  }
};

struct AccumulateFp8 {
  template <int kQueries>
  static HWY_INLINE void run(const TileFormat& format, const AccumulateArgs& args, std::size_t query) {
    const std::size_t head_dim = static_cast<std::size_t>(format.head_dim);
    const std::size_t begin = static_cast<std::size_t>(args.begin);
    const std::size_t rows = static_cast<std::size_t>(args.end) - begin;
    const float factor = scale_of(format) * kF16Factor;
    alignas(64) float scaled[kQueries][kTileRows];
    for (std::size_t q = 0; q < kQueries; ++q) {
      const float* const weights = args.weights + (query + q) * args.weight_stride;
      for (std::size_t r = 0; r < rows; ++r) scaled[q][r] = weights[r] * factor;
    }
    for (std::size_t c = 0; c < head_dim; c += kBlockLanes) {
      const std::size_t width = head_dim - c < kBlockLanes ? head_dim - c : kBlockLanes;
      const PlainRows<E4m3> values{reinterpret_cast<const E4m3*>(args.tile) + c * kTileRows + begin * width, width,
                                   bytes_ahead(args.tile, args.next)};
      for_lanes<kQueries>(
          width, AddPlainRows<kQueries, E4m3>{values, rows, scaled[0], kTileRows, args.out + query * head_dim + c, head_dim});
    }
  }
};

void score_fp8(const TileFormat& format, const ScoreArgs& args) { for_query_chunks<ScoreFp8>(format, args); }
void accumulate_fp8(const TileFormat& format, const AccumulateArgs& args) { for_query_chunks<AccumulateFp8>(format, args); }

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(score_fp8);
HWY_EXPORT(accumulate_fp8);

namespace {

constexpr std::size_t kRows = 64;
constexpr std::size_t kLanes = 32;
constexpr std::size_t kMaxDim = 1024;

float scale_of(const TileFormat& format) {
  float scale = 1.0F;
  if (format.calibration != nullptr) std::memcpy(&scale, format.calibration.get(), sizeof(scale));
  return scale;
}

// e4m3_from_float without branches, so that the compiler takes several at a time; x is finite.
void narrow_row(const float* x, std::size_t count, float scale, std::uint8_t* out) {
  for (std::size_t c = 0; c < count; ++c) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[c] / scale);
    const std::uint32_t abs = bits & 0x7fffffffU;
    const std::uint32_t normal = (abs - 0x3c000000U + 0x7ffffU + ((abs >> 20) & 1U)) >> 20;
    const std::uint32_t tiny = std::bit_cast<std::uint32_t>(std::bit_cast<float>(abs) + 0x1.0p14F) - 0x46800000U;
    const std::uint32_t rounded = abs < 0x3c800000U ? tiny : normal;
    const std::uint32_t magnitude = abs >= std::bit_cast<std::uint32_t>(kMaxE4m3) ? 0x7eU : rounded;
    out[c] = static_cast<std::uint8_t>(magnitude | ((bits >> 24) & 0x80U));
  }
}

std::size_t place_of(const TileFormat& format, std::size_t row, std::size_t channel) {
  const std::size_t dim = static_cast<std::size_t>(format.head_dim);
  if (format.side == Side::kKey) return row / kLanes * kLanes * dim + channel * kLanes + row % kLanes;
  const std::size_t block = channel / kLanes * kLanes;
  return block * kRows + row * std::min(kLanes, dim - block) + channel - block;
}

Status encode(const TileFormat& format, std::byte* tile, int begin, MatView<const float> rows) {
  KV_TRY(check_finite(rows, "fp8"));
  const float scale = scale_of(format);
  for (std::size_t r = 0; r < rows.rows; ++r) {
    std::uint8_t codes[kMaxDim];
    narrow_row(rows.row(r), rows.cols, scale, codes);
    const std::size_t row = static_cast<std::size_t>(begin) + r;
    std::uint8_t* const out = reinterpret_cast<std::uint8_t*>(tile);
    if (format.side == Side::kKey) {
      std::uint8_t* const lane = out + place_of(format, row, 0);
      for (std::size_t c = 0; c < rows.cols; ++c) lane[c * kLanes] = codes[c];
    } else {
      for (std::size_t c = 0; c < rows.cols; c += kLanes) {
        std::memcpy(out + place_of(format, row, c), codes + c, std::min(kLanes, rows.cols - c));
      }
    }
  }
  return {};
}

void decode(const TileFormat& format, const std::byte* tile, int begin, int end, MatView<float> out) {
  for (int row = begin; row < end; ++row) {
    for (std::size_t c = 0; c < out.cols; ++c) {
      const auto bits = static_cast<std::uint8_t>(tile[place_of(format, static_cast<std::size_t>(row), c)]);
      out.row(static_cast<std::size_t>(row - begin))[c] = scale_of(format) * float_from_e4m3(bits);
    }
  }
}

void calibrate(const TileFormat&, MatView<const float> rows, std::byte* calibration) {
  float largest = 0.0F;
  for (std::size_t r = 0; r < rows.rows; ++r) {
    for (std::size_t c = 0; c < rows.cols; ++c) largest = std::max(largest, std::abs(rows.row(r)[c]));
  }
  const float scale = largest > 0.0F ? std::max(largest / kMaxE4m3, 0x1p-100F) : 1.0F;
  std::memcpy(calibration, &scale, sizeof(scale));
}

}  // namespace

Result<TileFormat> make_fp8_format(const FormatRequest& request, Side side, int head_dim) {
  if (head_dim % 8 != 0) {
    return usage_error(fmt::format("fp8 tiles need a head dimension that is a multiple of 8, this model has {}", head_dim));
  }
  TileFormat format;
  format.name = "fp8";
  format.side = side;
  format.head_dim = head_dim;
  format.tile_rows = static_cast<int>(kRows);
  format.bits = 8;
  format.tile_bytes = format.live_bytes(format.tile_rows);
  format.kernels.encode = encode;
  format.kernels.decode = decode;
  format.kernels.score = SIMD_CHOOSE(score_fp8);
  format.kernels.accumulate = SIMD_CHOOSE(accumulate_fp8);
  if (request.calibrated) {
    format.calibration_bytes = sizeof(float);
    format.kernels.calibrate = calibrate;
  }
  return format;
}

}  // namespace kvartet
#endif
