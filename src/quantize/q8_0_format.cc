#include "quantize/q8_0_format.h"

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "core/float16.h"
#include "quantize/block_format.h"
#include "quantize/q8_0_kernels.h"
#include "quantize/row_check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/q8_0_format.cc"
#include "simd/dispatch.h"

#include "quantize/lane_products-inl.h"
#include "simd/f16_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kTileRows = 64;
constexpr std::size_t kBlock = 32;

// ---- encode

// One block of 32 channels: int8 codes, and the scale as f16. Codes come from the rounded scale, so an element is off by
// at most half a step however small the block is.
HWY_INLINE std::uint16_t quantize_block(const float* HWY_RESTRICT x, std::int8_t* HWY_RESTRICT codes) {
  const hn::CappedTag<float, 8> d;
  const hn::Rebind<std::int8_t, decltype(d)> di8;
  const hn::RebindToSigned<decltype(d)> di;
  auto largest = hn::Zero(d);
  for (std::size_t c = 0; c < kBlock; c += hn::Lanes(d)) largest = hn::Max(largest, hn::Abs(hn::LoadU(d, x + c)));
  const std::uint16_t scale = f16_from_float(hn::GetLane(hn::MaxOfLanes(d, largest)) / 127.0F);
  if (scale == 0) {
    std::memset(codes, 0, kBlock);
    return scale;
  }
  const auto step = hn::Set(d, float_from_f16(scale));
  for (std::size_t c = 0; c < kBlock; c += hn::Lanes(d)) {
    const auto steps = hn::Div(hn::LoadU(d, x + c), step);
    const auto nearest = hn::NearestInt(steps);  // half to even; half goes away from zero by one more
    const auto rounded = hn::ConvertTo(d, nearest);
    const auto cut_half = hn::Eq(hn::Sub(steps, rounded), hn::CopySign(hn::Set(d, 0.5F), steps));
    const auto away = hn::IfThenElseZero(cut_half, hn::CopySign(hn::Set(d, 1.0F), steps));
    const auto code = hn::ConvertTo(di, hn::Add(rounded, away));
    const auto clamped = hn::Max(hn::Min(code, hn::Set(di, 127)), hn::Set(di, -127));
    hn::StoreU(hn::DemoteTo(di8, clamped), di8, codes + c);
  }
  return scale;
}

HWY_INLINE std::uint16_t* tile_scales(std::byte* tile, std::size_t head_dim) {
  return reinterpret_cast<std::uint16_t*>(tile + kTileRows * head_dim);
}
HWY_INLINE const std::uint16_t* tile_scales(const std::byte* tile, std::size_t head_dim) {
  return reinterpret_cast<const std::uint16_t*>(tile + kTileRows * head_dim);
}

void write_q8_0_values(MatView<const float> rows, std::size_t begin, std::byte* tile) {
  std::uint16_t* const scales = tile_scales(tile, rows.cols);
  for (std::size_t c = 0; c < rows.cols; c += kBlock) {
    std::int8_t* const codes = reinterpret_cast<std::int8_t*>(tile) + c * kTileRows + begin * kBlock;
    for (std::size_t r = 0; r < rows.rows; ++r) {
      scales[c / kBlock * kTileRows + begin + r] = quantize_block(rows.row(r) + c, codes + r * kBlock);
    }
  }
}

// Transposed through a small block, so that both sides are walked along cache lines.
void write_q8_0_keys(MatView<const float> rows, std::size_t begin, std::byte* tile) {
  std::int8_t block[kBlockLanes][kBlock];
  std::uint16_t* const scales = tile_scales(tile, rows.cols);
  for (std::size_t r0 = 0, count = 0; r0 < rows.rows; r0 += count) {
    const std::size_t lane = (begin + r0) % kBlockLanes;
    count = rows.rows - r0 < kBlockLanes - lane ? rows.rows - r0 : kBlockLanes - lane;
    std::int8_t* const codes = reinterpret_cast<std::int8_t*>(tile) + (begin + r0 - lane) * rows.cols + lane;
    for (std::size_t c0 = 0; c0 < rows.cols; c0 += kBlock) {
      std::uint16_t* const block_scales = scales + c0 / kBlock * kTileRows + begin + r0;
      for (std::size_t r = 0; r < count; ++r) block_scales[r] = quantize_block(rows.row(r0 + r) + c0, block[r]);
      for (std::size_t c = 0; c < kBlock; ++c) {
        for (std::size_t r = 0; r < count; ++r) codes[(c0 + c) * kBlockLanes + r] = block[r][c];
      }
    }
  }
}

// ---- score and accumulate

// logits[query, token] = sum over blocks of scale * (sum over the block's channels of q * code) for a block of 32 tokens.
template <int kQueries>
struct ScoreBlocks {
  PlainRows<std::int8_t> keys;            // [head_dim][32 tokens]
  const std::uint16_t* scales = nullptr;  // [head_dim / 32][64], at the first token
  std::size_t head_dim = 0;
  const float* q = nullptr;  // [kQueries, head_dim]
  float* logits = nullptr;   // [kQueries, 64]

  template <int kVectors, class D>
  HWY_NOINLINE void run(D d, std::size_t lane) const {
    constexpr std::size_t kLanes = hn::MaxLanes(D());
    for (std::size_t c = 0; c < head_dim; c += kBlock) {
      PlainRows<std::int8_t> block = keys;
      block.first += c * kBlockLanes + lane;
      LaneSums<kQueries, kVectors, D> sums;
      sums.clear(d);
      add_products(d, block, kBlock, q + c, head_dim, sums);
      const std::uint16_t* const block_scales = scales + c / kBlock * kTileRows + lane;
      prefetch_ahead(block_scales, keys.ahead);
      for (int v = 0; v < kVectors; ++v) {
        const auto scale = load_f16(d, block_scales + v * kLanes);
        for (int k = 0; k < kQueries; ++k) {
          float* const logit = logits + k * kTileRows + lane + v * kLanes;
          hn::StoreU(hn::MulAdd(scale, sums.of[k][v], hn::LoadU(d, logit)), d, logit);
        }
      }
    }
  }
};

struct ScoreQ8 {
  template <int kQueries>
  static HWY_INLINE void run(const TileFormat& format, const ScoreArgs& args, std::size_t query) {
    const std::size_t head_dim = static_cast<std::size_t>(format.head_dim);
    const std::size_t begin = static_cast<std::size_t>(args.begin);
    const std::size_t end = static_cast<std::size_t>(args.end);
    const std::size_t first = begin / kBlockLanes * kBlockLanes;
    alignas(64) float logits[kQueries][kTileRows] = {};
    for (std::size_t t = first; t < end; t += kBlockLanes) {
      const PlainRows<std::int8_t> keys{reinterpret_cast<const std::int8_t*>(args.tile) + t * head_dim, kBlockLanes,
                                        bytes_ahead(args.tile, args.next)};
      for_lanes<kQueries>(kBlockLanes, ScoreBlocks<kQueries>{keys, tile_scales(args.tile, head_dim) + t, head_dim,
                                                             args.q + query * head_dim, logits[0] + (t - first)});
    }
    for (std::size_t k = 0; k < kQueries; ++k) {
      std::memcpy(args.logits + (query + k) * args.logit_stride, logits[k] + (begin - first), (end - begin) * sizeof(float));
    }
  }
};

struct AccumulateQ8 {
  // The scale of a row's block goes into its weight.
  template <int kQueries>
  static HWY_INLINE void run(const TileFormat& format, const AccumulateArgs& args, std::size_t query) {
    const hn::CappedTag<float, 8> d;
    const std::size_t head_dim = static_cast<std::size_t>(format.head_dim);
    const std::size_t begin = static_cast<std::size_t>(args.begin);
    const std::size_t rows = static_cast<std::size_t>(args.end) - begin;
    const std::uintptr_t ahead = bytes_ahead(args.tile, args.next);
    const float* const weights = args.weights + query * args.weight_stride;
    for (std::size_t c = 0; c < head_dim; c += kBlock) {
      const std::uint16_t* const scales = tile_scales(args.tile, head_dim) + c / kBlock * kTileRows + begin;
      prefetch_ahead(scales, ahead);
      prefetch_ahead(scales + 32, ahead);
      alignas(64) float scaled[kQueries][kTileRows];
      std::size_t r = 0;
      for (; r + hn::Lanes(d) <= rows; r += hn::Lanes(d)) {
        const auto scale = load_f16(d, scales + r);
        for (int k = 0; k < kQueries; ++k) {
          hn::Store(hn::Mul(scale, hn::LoadU(d, weights + k * args.weight_stride + r)), d, scaled[k] + r);
        }
      }
      for (; r < rows; ++r) {
        for (int k = 0; k < kQueries; ++k) scaled[k][r] = float_from_f16(scales[r]) * weights[k * args.weight_stride + r];
      }
      const PlainRows<std::int8_t> values{reinterpret_cast<const std::int8_t*>(args.tile) + c * kTileRows + begin * kBlock,
                                          kBlock, ahead};
      for_lanes<kQueries>(kBlock, AddPlainRows<kQueries, std::int8_t>{values, rows, scaled[0], kTileRows,
                                                                      args.out + query * head_dim + c, head_dim});
    }
  }
};

void score_q8_0(const TileFormat& format, const ScoreArgs& args) { for_query_chunks<ScoreQ8>(format, args); }
void accumulate_q8_0(const TileFormat& format, const AccumulateArgs& args) { for_query_chunks<AccumulateQ8>(format, args); }

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(write_q8_0_keys);
HWY_EXPORT(write_q8_0_values);
HWY_EXPORT(score_q8_0);
HWY_EXPORT(accumulate_q8_0);

namespace {

constexpr int kTileRows = 64;
constexpr int kBlock = 32;
constexpr float kLimit = 65520.0F * 127.0F;  // a larger magnitude has a scale beyond f16

Status encode(const TileFormat& format, std::byte* tile, int begin, MatView<const float> rows) {
  KV_TRY(check_finite(rows, "q8_0", kLimit));
  const auto write = format.side == Side::kKey ? HWY_DYNAMIC_DISPATCH(write_q8_0_keys) : HWY_DYNAMIC_DISPATCH(write_q8_0_values);
  write(rows, static_cast<std::size_t>(begin), tile);
  return {};
}

void decode(const TileFormat& format, const std::byte* tile, int begin, int end, MatView<float> out) {
  const std::int8_t* codes = reinterpret_cast<const std::int8_t*>(tile);
  const std::uint16_t* scales = reinterpret_cast<const std::uint16_t*>(tile + kTileRows * format.head_dim);
  for (int row = begin; row < end; ++row) {
    for (int c = 0; c < format.head_dim; ++c) {
      const bool keys = format.side == Side::kKey;
      const int lane = keys ? row : c;
      const int step = keys ? c : row;
      const int steps = keys ? format.head_dim : kTileRows;
      const int at = lane / kBlock * kBlock * steps + step * kBlock + lane % kBlock;
      const float scale = float_from_f16(scales[c / kBlock * kTileRows + row]);
      out.row(static_cast<std::size_t>(row - begin))[c] = scale * static_cast<float>(codes[at]);
    }
  }
}

}  // namespace

Result<TileFormat> make_q8_0_format(const FormatRequest& request, Side side, int head_dim) {
  if (head_dim % kBlock != 0) {
    return usage_error(
        fmt::format("q8_0 needs a head dimension that is a multiple of 32, this model has {}; use full", head_dim));
  }
  TileFormat format;
  format.name = "q8_0";
  format.side = side;
  format.head_dim = head_dim;
  format.tile_rows = kTileRows;
  format.bits = 8;
  format.group = kBlock;
  format.group_bytes = 2;
  format.tile_bytes = format.live_bytes(kTileRows);
  format.kernels.encode = encode;
  format.kernels.decode = decode;
  format.kernels.score = SIMD_CHOOSE(score_q8_0);
  format.kernels.accumulate = SIMD_CHOOSE(accumulate_q8_0);
  if (const Q8Kernels integer = q8_0_kernels_avx512(head_dim); integer.score != nullptr) {
    format.kernels.score = integer.score;
    format.kernels.accumulate = integer.accumulate;
  }
  return rotated_as_asked(std::move(format), request);
}

}  // namespace kvartet
#endif
