#include "quantize/float_format.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "core/float16.h"
#include "quantize/f16_kernels.h"
#include "quantize/row_check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quantize/float_format.cc"
#include "simd/dispatch.h"

#include "quantize/lane_products-inl.h"
#include "simd/f16_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvartet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kTileRows = 64;

HWY_INLINE std::size_t smaller(std::size_t a, std::size_t b) { return a < b ? a : b; }

// ---- encode

HWY_INLINE void narrow_row(const float* HWY_RESTRICT from, std::size_t count, float* HWY_RESTRICT to) {
  std::memcpy(to, from, count * sizeof(float));
}
HWY_INLINE void narrow_row(const float* HWY_RESTRICT from, std::size_t count, std::uint16_t* HWY_RESTRICT to) {
  const hn::CappedTag<float, 8> d;
  for (std::size_t c = 0; c < count; c += hn::Lanes(d)) store_f16(hn::LoadU(d, from + c), d, to + c);
}

// Rows [begin, begin + rows.rows) of a value tile; the rows are known to be in range.
template <class T>
void write_value_rows(MatView<const float> rows, std::size_t begin, T* HWY_RESTRICT tile) {
  for (std::size_t c = 0; c < rows.cols; c += kBlockLanes) {
    const std::size_t width = smaller(kBlockLanes, rows.cols - c);
    T* const block = tile + c * kTileRows + begin * width;
    for (std::size_t r = 0; r < rows.rows; ++r) narrow_row(rows.row(r) + c, width, block + r * width);
  }
}

// The same for a key tile, transposed through a small block so that both sides are walked along cache lines.
template <class T>
void write_key_rows(MatView<const float> rows, std::size_t begin, T* HWY_RESTRICT tile) {
  constexpr std::size_t kChannels = 8;
  T block[kBlockLanes][kChannels];
  for (std::size_t r0 = 0, count = 0; r0 < rows.rows; r0 += count) {
    const std::size_t lane = (begin + r0) % kBlockLanes;
    count = smaller(kBlockLanes - lane, rows.rows - r0);
    T* const lanes = tile + (begin + r0 - lane) * rows.cols + lane;
    for (std::size_t c0 = 0; c0 < rows.cols; c0 += kChannels) {
      for (std::size_t r = 0; r < count; ++r) narrow_row(rows.row(r0 + r) + c0, kChannels, block[r]);
      for (std::size_t c = 0; c < kChannels; ++c) {
        for (std::size_t r = 0; r < count; ++r) lanes[(c0 + c) * kBlockLanes + r] = block[r][c];
      }
    }
  }
}

void write_f32_keys(MatView<const float> rows, std::size_t begin, std::byte* tile) {
  write_key_rows(rows, begin, reinterpret_cast<float*>(tile));
}
void write_f16_keys(MatView<const float> rows, std::size_t begin, std::byte* tile) {
  write_key_rows(rows, begin, reinterpret_cast<std::uint16_t*>(tile));
}
void write_f32_values(MatView<const float> rows, std::size_t begin, std::byte* tile) {
  write_value_rows(rows, begin, reinterpret_cast<float*>(tile));
}
void write_f16_values(MatView<const float> rows, std::size_t begin, std::byte* tile) {
  write_value_rows(rows, begin, reinterpret_cast<std::uint16_t*>(tile));
}

// ---- rows that are f16 already

// lanes[r] of channel c becomes rows[r][c] for the eight lanes r of `mask`; rows without a lane may be anything that can be read.
// Eight rows and channels are transposed at once.
HWY_INLINE void put_eight_rows(const std::byte* const* rows, const std::uint16_t* HWY_RESTRICT mask, std::size_t head_dim,
                               std::uint16_t* HWY_RESTRICT lanes) {
  const hn::Full128<std::uint16_t> d;
  const hn::Repartition<std::uint32_t, decltype(d)> d32;
  const hn::Repartition<std::uint64_t, decltype(d)> d64;
  using V = hn::Vec<decltype(d)>;
  const auto wanted = hn::MaskFromVec(hn::LoadU(d, mask));
  for (std::size_t c = 0; c < head_dim; c += 8) {
    hn::Vec<decltype(d32)> pairs[2][4];  // [channels 0-3, 4-7][rows 01, 23, 45, 67]: two rows' numbers of a channel together
    for (std::size_t r = 0; r < 4; ++r) {
      const V a = hn::LoadU(d, reinterpret_cast<const std::uint16_t*>(rows[2 * r]) + c);
      const V b = hn::LoadU(d, reinterpret_cast<const std::uint16_t*>(rows[2 * r + 1]) + c);
      pairs[0][r] = hn::BitCast(d32, hn::InterleaveLower(d, a, b));
      pairs[1][r] = hn::BitCast(d32, hn::InterleaveUpper(d, a, b));
    }
    for (std::size_t half = 0; half < 2; ++half) {
      const auto low03 = hn::BitCast(d64, hn::InterleaveLower(d32, pairs[half][0], pairs[half][1]));
      const auto high03 = hn::BitCast(d64, hn::InterleaveUpper(d32, pairs[half][0], pairs[half][1]));
      const auto low47 = hn::BitCast(d64, hn::InterleaveLower(d32, pairs[half][2], pairs[half][3]));
      const auto high47 = hn::BitCast(d64, hn::InterleaveUpper(d32, pairs[half][2], pairs[half][3]));
      const V channels[4] = {
          hn::BitCast(d, hn::InterleaveLower(d64, low03, low47)), hn::BitCast(d, hn::InterleaveUpper(d64, low03, low47)),
          hn::BitCast(d, hn::InterleaveLower(d64, high03, high47)), hn::BitCast(d, hn::InterleaveUpper(d64, high03, high47))};
      for (std::size_t i = 0; i < 4; ++i) {
        std::uint16_t* const to = lanes + (c + 4 * half + i) * kBlockLanes;
        hn::StoreU(hn::IfThenElse(wanted, channels[i], hn::LoadU(d, to)), d, to);
      }
    }
  }
}

void put_f16_key_rows(const F16Row* HWY_RESTRICT rows, std::size_t count, std::size_t head_dim,
                      std::uint16_t* HWY_RESTRICT tile) {
  constexpr std::size_t kEight = 8;
  for (std::size_t i = 0; i < count;) {
    const std::size_t group = static_cast<std::size_t>(rows[i].at) / kEight * kEight;
    const std::byte* eight[kEight];
    alignas(16) std::uint16_t mask[kEight] = {};
    for (std::size_t r = 0; r < kEight; ++r) eight[r] = rows[i].numbers;
    for (; i < count && static_cast<std::size_t>(rows[i].at) < group + kEight; ++i) {
      const std::size_t lane = static_cast<std::size_t>(rows[i].at) - group;
      eight[lane] = rows[i].numbers;
      mask[lane] = 0xffff;
    }
    put_eight_rows(eight, mask, head_dim, tile + group / kBlockLanes * kBlockLanes * head_dim + group % kBlockLanes);
  }
}

void narrow_to_f16(const float* HWY_RESTRICT from, std::size_t count, std::byte* HWY_RESTRICT to) {
  narrow_row(from, count, reinterpret_cast<std::uint16_t*>(to));
}

// ---- score and accumulate

template <int kQueries, class T>
HWY_INLINE void score_queries(const TileFormat& format, const ScoreArgs& args, std::size_t query) {
  const std::size_t head_dim = static_cast<std::size_t>(format.head_dim);
  const std::size_t begin = static_cast<std::size_t>(args.begin);
  const std::size_t end = static_cast<std::size_t>(args.end);
  const std::size_t first = begin / kBlockLanes * kBlockLanes;
  alignas(64) float sums[kQueries][kTileRows] = {};
  for (std::size_t t = first; t < end; t += kBlockLanes) {
    const PlainRows<T> keys{reinterpret_cast<const T*>(args.tile) + t * head_dim, kBlockLanes};
    for_lanes<kQueries>(kBlockLanes, AddPlainRows<kQueries, T>{keys, head_dim, args.q + query * head_dim, head_dim,
                                                               sums[0] + (t - first), kTileRows});
  }
  for (std::size_t q = 0; q < kQueries; ++q) {
    std::memcpy(args.logits + (query + q) * args.logit_stride, sums[q] + (begin - first), (end - begin) * sizeof(float));
  }
}

template <int kQueries, class T>
HWY_INLINE void accumulate_queries(const TileFormat& format, const AccumulateArgs& args, std::size_t query) {
  const std::size_t head_dim = static_cast<std::size_t>(format.head_dim);
  const std::size_t begin = static_cast<std::size_t>(args.begin);
  const std::size_t rows = static_cast<std::size_t>(args.end) - begin;
  for (std::size_t c = 0; c < head_dim; c += kBlockLanes) {
    const std::size_t width = smaller(kBlockLanes, head_dim - c);
    const PlainRows<T> values{reinterpret_cast<const T*>(args.tile) + c * kTileRows + begin * width, width};
    for_lanes<kQueries>(width, AddPlainRows<kQueries, T>{values, rows, args.weights + query * args.weight_stride,
                                                         args.weight_stride, args.out + query * head_dim + c, head_dim});
  }
}

template <class T>
struct Score {
  template <int kQueries>
  static HWY_INLINE void run(const TileFormat& format, const ScoreArgs& args, std::size_t query) {
    score_queries<kQueries, T>(format, args, query);
  }
};
template <class T>
struct Accumulate {
  template <int kQueries>
  static HWY_INLINE void run(const TileFormat& format, const AccumulateArgs& args, std::size_t query) {
    accumulate_queries<kQueries, T>(format, args, query);
  }
};

void score_f32(const TileFormat& format, const ScoreArgs& args) { for_query_chunks<Score<float>>(format, args); }
void score_f16(const TileFormat& format, const ScoreArgs& args) { for_query_chunks<Score<std::uint16_t>>(format, args); }
void accumulate_f32(const TileFormat& format, const AccumulateArgs& args) { for_query_chunks<Accumulate<float>>(format, args); }
void accumulate_f16(const TileFormat& format, const AccumulateArgs& args) {
  for_query_chunks<Accumulate<std::uint16_t>>(format, args);
}

}  // namespace kvartet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvartet {

HWY_EXPORT(write_f32_keys);
HWY_EXPORT(write_f16_keys);
HWY_EXPORT(write_f32_values);
HWY_EXPORT(write_f16_values);
HWY_EXPORT(put_f16_key_rows);
HWY_EXPORT(narrow_to_f16);
HWY_EXPORT(score_f32);
HWY_EXPORT(score_f16);
HWY_EXPORT(accumulate_f32);
HWY_EXPORT(accumulate_f16);

namespace {

constexpr int kTileRows = 64;
constexpr int kLanes = 32;
constexpr float kF16Limit = 65520.0F;  // rounds to 65,536, which f16 does not have

using WriteRows = void (*)(MatView<const float> rows, std::size_t begin, std::byte* tile);

Status encode_f32(const TileFormat& format, std::byte* tile, int begin, MatView<const float> rows) {
  KV_TRY(check_finite(rows, "f32"));
  const WriteRows write =
      format.side == Side::kKey ? HWY_DYNAMIC_DISPATCH(write_f32_keys) : HWY_DYNAMIC_DISPATCH(write_f32_values);
  write(rows, static_cast<std::size_t>(begin), tile);
  return {};
}

Status encode_f16(const TileFormat& format, std::byte* tile, int begin, MatView<const float> rows) {
  KV_TRY(check_finite(rows, "f16", kF16Limit));
  const WriteRows write =
      format.side == Side::kKey ? HWY_DYNAMIC_DISPATCH(write_f16_keys) : HWY_DYNAMIC_DISPATCH(write_f16_values);
  write(rows, static_cast<std::size_t>(begin), tile);
  return {};
}

void put_f16_value_row(const F16Row& row, int head_dim, std::byte* tile) {
  for (int c = 0; c < head_dim; c += kLanes) {
    const std::size_t width = static_cast<std::size_t>(std::min(kLanes, head_dim - c));
    const std::size_t to = static_cast<std::size_t>(c) * kTileRows + static_cast<std::size_t>(row.at) * width;
    std::memcpy(tile + 2 * to, row.numbers + 2 * c, 2 * width);
  }
}

float widen(float x) { return x; }
float widen(std::uint16_t x) { return float_from_f16(x); }

int key_index(int row, int channel, int head_dim) { return row / kLanes * kLanes * head_dim + channel * kLanes + row % kLanes; }
int value_index(int row, int channel, int head_dim) {
  const int block = channel / kLanes * kLanes;
  return block * kTileRows + row * std::min(kLanes, head_dim - block) + channel - block;
}

template <class T>
void decode(const TileFormat& format, const std::byte* tile, int begin, int end, MatView<float> out) {
  const T* elements = reinterpret_cast<const T*>(tile);
  for (int row = begin; row < end; ++row) {
    for (int c = 0; c < format.head_dim; ++c) {
      const int at = format.side == Side::kKey ? key_index(row, c, format.head_dim) : value_index(row, c, format.head_dim);
      out.row(static_cast<std::size_t>(row - begin))[c] = widen(elements[at]);
    }
  }
}

Result<TileFormat> make_format(const char* name, int bits, Side side, int head_dim) {
  if (head_dim % 8 != 0) {
    return usage_error(fmt::format("{} tiles need a head dimension that is a multiple of 8, this model has {}", name, head_dim));
  }
  TileFormat format;
  format.name = name;
  format.side = side;
  format.head_dim = head_dim;
  format.tile_rows = kTileRows;
  format.bits = bits;
  format.tile_bytes = format.live_bytes(kTileRows);
  return format;
}

}  // namespace

Result<TileFormat> make_f32_format(const FormatRequest&, Side side, int head_dim) {
  KV_ASSIGN(TileFormat format, make_format("f32", 32, side, head_dim));
  format.kernels.encode = encode_f32;
  format.kernels.decode = decode<float>;
  format.kernels.score = SIMD_CHOOSE(score_f32);
  format.kernels.accumulate = SIMD_CHOOSE(accumulate_f32);
  return format;
}

Result<TileFormat> make_f16_format(const FormatRequest&, Side side, int head_dim) {
  KV_ASSIGN(TileFormat format, make_format("f16", 16, side, head_dim));
  format.kernels.encode = encode_f16;
  format.kernels.decode = decode<std::uint16_t>;
  format.kernels.score = SIMD_CHOOSE(score_f16);
  format.kernels.accumulate = SIMD_CHOOSE(accumulate_f16);
  if (const F16Kernels wide = f16_kernels_avx512(head_dim); wide.score != nullptr) {
    format.kernels.score = wide.score;
    format.kernels.accumulate = wide.accumulate;
  }
  return format;
}

void put_f16_rows(const TileFormat& format, std::byte* tile, std::span<const F16Row> rows) {
  KV_DCHECK(format.bits == 16 && format.group == 0);
  if (format.side == Side::kValue) {
    for (const F16Row& row : rows) put_f16_value_row(row, format.head_dim, tile);
    return;
  }
  SIMD_CHOOSE(put_f16_key_rows)
  (rows.data(), rows.size(), static_cast<std::size_t>(format.head_dim), reinterpret_cast<std::uint16_t*>(tile));
}

Status as_f16_row(std::span<const float> row, std::byte* out) {
  KV_TRY(check_finite({row.data(), 1, row.size()}, "f16", kF16Limit));
  SIMD_CHOOSE(narrow_to_f16)(row.data(), row.size(), out);
  return {};
}

}  // namespace kvartet
#endif
