// For tests: random rows, encoded heads, and attention as it is defined (compression.md section 0), in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "attention/aligned_scratch.h"
#include "attention/attention_kernels.h"
#include "core/bfloat16.h"
#include "core/check.h"
#include "core/matrix.h"
#include "core/rng.h"
#include "core/uz.h"
#include "quantize/tile_format.h"
#include "simd/targets.h"

namespace kvartet {

inline std::vector<float> random_rows(std::size_t count, double scale, std::uint64_t stream) {
  Rng rng(7, stream);
  std::vector<float> x(count);
  for (float& v : x) v = static_cast<float>(rng.normal() * scale);
  return x;
}

// Does prefill attention multiply in BF16 here, if it may?
inline bool multiplies_bf16() { return attention_kernels(Precision::kNative).element == sizeof(std::uint16_t); }

inline std::vector<float> rounded_to_bf16(std::vector<float> x) {
  for (float& v : x) v = float_from_bf16(bf16_from_float(v));
  return x;
}

// Queries that BF16 holds once they are packed, times log2(e) / sqrt(head_dim): with keys and values that it holds, every product
// is exact, and what remains is the rounding of weights.
inline std::vector<float> queries_rounded_to_bf16(std::vector<float> q, int head_dim) {
  const float scale = kLog2E / std::sqrt(static_cast<float>(head_dim));
  for (float& v : q) v = float_from_bf16(bf16_from_float(v * scale)) / scale;
  return q;
}

// Softmax attention of one query over rows [begin, end), logits q . k / sqrt(head_dim). No row: zeros.
struct ReferenceAttention {
  std::vector<double> weights;  // [end - begin]
  std::vector<double> out;      // [head_dim]
  double max = 0;
  double sum = 0;

  ReferenceAttention(const float* q, MatView<const float> keys, MatView<const float> values, std::size_t begin, std::size_t end)
      : weights(end - begin), out(values.cols) {
    for (std::size_t t = begin; t < end; ++t) {
      for (std::size_t c = 0; c < keys.cols; ++c) weights[t - begin] += static_cast<double>(q[c]) * keys.row(t)[c];
      weights[t - begin] /= std::sqrt(static_cast<double>(keys.cols));
    }
    if (weights.empty()) return;
    max = *std::max_element(weights.begin(), weights.end());
    for (double& w : weights) sum += w = std::exp(w - max);
    for (std::size_t t = begin; t < end; ++t) {
      double& w = weights[t - begin];
      w /= sum;
      for (std::size_t c = 0; c < values.cols; ++c) out[c] += w * values.row(t)[c];
    }
  }
};

// |got - want| / |want| in the L2 norm, over all pairs added.
class RelativeError {
 public:
  void add(const float* got, std::span<const double> want) {
    for (std::size_t i = 0; i < want.size(); ++i) {
      difference_ += (got[i] - want[i]) * (got[i] - want[i]);
      norm_ += want[i] * want[i];
    }
  }
  double value() const { return std::sqrt(difference_ / norm_); }

 private:
  double difference_ = 0;
  double norm_ = 0;
};

// What attention over coded rows may be off by: T4's 1e-5 where kernels count in floats. Kernels in integers are near-exact
// (quantize/integer_products_avx512.h): a coefficient is off by up to 2^-16 of the largest of its run, a logit of 5 so by about
// 1e-4, and that is an error of its weight.
inline double coded_tolerance(const SimdTarget& target) { return target.extension >= SimdExtension::kVnni ? 1e-3 : 1e-5; }

// A stretch of rows in one pair of formats.
struct Stretch {
  FormatRequest key;
  FormatRequest value;
  int rows = 0;
};

// One KV head whose rows lie in tiles, and the same rows decoded.
class EncodedHead {
 public:
  EncodedHead(std::span<const Stretch> stretches, int head_dim, std::uint64_t stream) : head_dim_(head_dim) {
    for (const Stretch& s : stretches) {
      append(*make_tile_format(s.key, Side::kKey, head_dim), *make_tile_format(s.value, Side::kValue, head_dim), s.rows, stream);
    }
  }
  EncodedHead(const TileFormat& key, const TileFormat& value, int rows, std::uint64_t stream) : head_dim_(key.head_dim) {
    append(key, value, rows, stream);
  }

  HeadView view() const { return {key_side_.pieces, value_side_.pieces, rows_}; }
  MatView<const float> keys() const { return {key_side_.decoded.data(), uz(rows_), uz(head_dim_)}; }
  MatView<const float> values() const { return {value_side_.decoded.data(), uz(rows_), uz(head_dim_)}; }

 private:
  struct SideRows {
    std::vector<TilePiece> pieces;
    std::vector<float> decoded;
  };

  void append(const TileFormat& key, const TileFormat& value, int rows, std::uint64_t stream) {
    append_side(key, rows, stream * 2, &key_side_);
    append_side(value, rows, stream * 2 + 1, &value_side_);
    rows_ += rows;
  }

  // Tiles start on their own; pieces also end at multiples of kBlockRows of the head's rows.
  void append_side(const TileFormat& shared_format, int rows, std::uint64_t stream, SideRows* side) {
    const TileFormat& format = formats_.emplace_back(shared_format);
    const std::vector<float> data = random_rows(uz(rows) * uz(head_dim_), 1.0, stream * 1000 + uz(rows_));
    side->decoded.resize(uz(rows_ + rows) * uz(head_dim_));
    for (int row = 0; row < rows; row += format.tile_rows) {
      const int count = std::min(format.tile_rows, rows - row);
      std::byte* const tile = reinterpret_cast<std::byte*>(tiles_.emplace_back().ensure(format.tile_bytes / sizeof(float) + 1));
      std::fill_n(tile, format.tile_bytes, std::byte{0});
      const MatView<const float> part{data.data() + uz(row) * uz(head_dim_), uz(count), uz(head_dim_)};
      KV_CHECK(format.kernels.encode(format, tile, 0, part).ok());
      float* const decoded = side->decoded.data() + uz(rows_ + row) * uz(head_dim_);
      format.kernels.decode(format, tile, 0, count, {decoded, uz(count), uz(head_dim_)});
      for (int begin = 0; begin < count;) {
        const int head_row = rows_ + row + begin;
        const int end = std::min(count, begin + kBlockRows - head_row % kBlockRows);
        side->pieces.push_back({&format, tile, head_row, begin, end});
        begin = end;
      }
    }
  }

  int head_dim_;
  int rows_ = 0;
  std::deque<TileFormat> formats_;
  std::deque<AlignedScratch> tiles_;
  SideRows key_side_;
  SideRows value_side_;
};

}  // namespace kvartet
