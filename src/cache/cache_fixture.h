// For tests: random rows that depend only on (seed, token), caches fed with them, and views read back.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/sequence_cache.h"
#include "core/rng.h"

namespace kvartet::test {

inline constexpr int kKvHeads = 2;
inline constexpr int kHeads = 6;
inline constexpr int kDim = 64;

inline ModelShape small_shape(int layers = 1, int head_dim = kDim) {
  ModelShape shape;
  shape.context = 1 << 20;
  shape.layers.assign(static_cast<std::size_t>(layers),
                      LayerShape{.heads = kHeads, .kv_heads = kKvHeads, .head_dim = head_dim, .window = 0});
  return shape;
}

// Keys and values of tokens [0, tokens): [tokens, kKvHeads, head_dim].
class TokenRows {
 public:
  TokenRows(int tokens, std::uint64_t seed, int head_dim = kDim) : head_dim_(head_dim) {
    const std::size_t n = static_cast<std::size_t>(tokens) * kKvHeads * static_cast<std::size_t>(head_dim);
    keys.resize(n);
    values.resize(n);
    const Rng key_rng(seed, 0);
    const Rng value_rng(seed, 1);
    for (std::size_t i = 0; i < n; ++i) {
      keys[i] = uniform(key_rng.at(i));
      values[i] = uniform(value_rng.at(i));
    }
  }
  HeadRows<const float> key_rows(int begin, int end) const { return rows_of(keys, begin, end); }
  HeadRows<const float> value_rows(int begin, int end) const { return rows_of(values, begin, end); }
  const float* key(int token, int head) const { return key_rows(token, token + 1).row(0, static_cast<std::size_t>(head)); }
  const float* value(int token, int head) const { return value_rows(token, token + 1).row(0, static_cast<std::size_t>(head)); }

  std::vector<float> keys;
  std::vector<float> values;

 private:
  static float uniform(std::uint64_t bits) {
    return static_cast<float>(static_cast<double>(bits >> 11) * 0x1.0p-52 - 1.0) * 3.0F;
  }
  HeadRows<const float> rows_of(const std::vector<float>& data, int begin, int end) const {
    const auto dim = static_cast<std::size_t>(head_dim_);
    return {data.data() + static_cast<std::size_t>(begin) * kKvHeads * dim, static_cast<std::size_t>(end - begin), kKvHeads, dim,
            kKvHeads * dim};
  }
  int head_dim_;
};

// One long sequence of rows that most tests feed.
inline const TokenRows& shared_rows() {
  static const TokenRows rows(4500, 17);
  return rows;
}

// Random positive scores for a window of `window` queries over `tokens` keys, and as column sums.
inline LayerScores random_scores(int window, int tokens, std::uint64_t seed) {
  LayerScores scores{.heads = kHeads, .window_rows = window, .tokens = tokens, .window = {}, .column_sums = {}};
  const Rng column_rng(seed, 3);
  scores.column_sums.resize(static_cast<std::size_t>(kHeads) * static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < scores.column_sums.size(); ++i)
    scores.column_sums[i] = static_cast<float>(column_rng.at(i) >> 44) * 0x1.0p-18F;
  const Rng rng(seed, 2);
  scores.window.resize(static_cast<std::size_t>(kHeads) * static_cast<std::size_t>(window) * static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < scores.window.size(); ++i) scores.window[i] = static_cast<float>(rng.at(i) >> 44) * 0x1.0p-20F;
  return scores;
}

inline CacheSpec spec_of(const std::string& text) {
  Result<CacheSpec> spec = parse_spec(text);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  return *spec;
}

// A cache and what it is fed with: the rows of token t are rows.key(t, head), whatever the path.
struct FedCache {
  SequenceCache cache;
  ModelShape shape;
  const TokenRows* rows;

  Status prompt(int tokens, std::uint64_t score_seed = 5) {
    const int begin = cache.next_position();
    const ScoreNeed need = cache.score_need();
    for (int l = 0; l < shape.layer_count(); ++l) {
      const int sealed = cache.rows(l, 0);
      LayerScores scores = random_scores(std::min(need.window, tokens), sealed + tokens, score_seed);
      scores.sealed = sealed;
      LayerRows layer{.key = rows->key_rows(begin, begin + tokens),
                      .key_pre = {},
                      .value = rows->value_rows(begin, begin + tokens),
                      .scores = nullptr};
      if (need.any()) layer.scores = &scores;
      KV_TRY(cache.seal_prompt(l, layer));
    }
    cache.finish_prompt(tokens);
    return {};
  }
  Status append(int layer) {
    const int token = cache.next_position();
    const auto dim = static_cast<std::size_t>(shape.layers[0].head_dim);
    return cache.append_row(layer, {rows->key(token, 0), kKvHeads, dim}, {rows->value(token, 0), kKvHeads, dim});
  }
  // Weights of the step that depend on position and token alone, so that they do not depend on the order of rows.
  std::vector<float> weights(int layer) const {
    std::vector<float> all;
    if (!cache.wants_weights()) return all;
    for (int head = 0; head < kHeads; ++head) {
      for (const std::int32_t position : cache.positions(layer, head / (kHeads / kKvHeads))) {
        const Rng rng(static_cast<std::uint64_t>(cache.next_position()), static_cast<std::uint64_t>(head));
        all.push_back(static_cast<float>(rng.at(static_cast<std::uint64_t>(position)) >> 44) * 0x1.0p-20F);
      }
    }
    return all;
  }
  Status settle(int layer) {
    const std::vector<float> all = weights(layer);
    if (all.empty()) return cache.after_attention(layer, {});
    return cache.after_attention(layer, {all.data(), kHeads, all.size() / kHeads});
  }
  Status steps(int count) {
    for (int i = 0; i < count; ++i) {
      for (int l = 0; l < shape.layer_count(); ++l) {
        KV_TRY(append(l));
        KV_TRY(settle(l));
      }
      cache.finish_step();
    }
    return {};
  }
  FedCache fork() const { return {cache.fork(), shape, rows}; }
};

// The rows that a KV head of layer 0 still holds, in row order, as if they were the only tokens; other heads are left as made.
inline TokenRows surviving_rows(const FedCache& fed, int kv_head) {
  const std::vector<std::int32_t> kept = fed.cache.positions(0, kv_head);
  TokenRows survivors(static_cast<int>(kept.size()), 0);
  for (std::size_t row = 0; row < kept.size(); ++row) {
    const auto at = static_cast<std::ptrdiff_t>((row * kKvHeads + static_cast<std::size_t>(kv_head)) * kDim);
    std::copy_n(fed.rows->key(kept[row], kv_head), kDim, survivors.keys.begin() + at);
    std::copy_n(fed.rows->value(kept[row], kv_head), kDim, survivors.values.begin() + at);
  }
  return survivors;
}

inline FedCache fed_cache(const std::string& spec, std::shared_ptr<Arena> arena = Arena::create(),
                          ModelShape shape = small_shape(), const TokenRows* rows = &shared_rows(), int threads = 1) {
  Result<SequenceCache> cache = SequenceCache::create(spec_of(spec), shape, std::move(arena), {.threads = threads});
  EXPECT_TRUE(cache.ok()) << cache.status().message();
  return {std::move(cache).value(), std::move(shape), rows};
}

inline void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

// Rows of one side read back from its pieces: [rows, head_dim].
inline std::vector<float> read_rows(std::span<const TilePiece> pieces) {
  std::vector<float> out;
  for (const TilePiece& piece : pieces) {
    const auto dim = static_cast<std::size_t>(piece.format->head_dim);
    const auto count = static_cast<std::size_t>(piece.end - piece.begin);
    out.resize(out.size() + count * dim);
    piece.format->kernels.decode(*piece.format, piece.tile, piece.begin, piece.end,
                                 {out.data() + out.size() - count * dim, count, dim});
  }
  return out;
}

// Rows at the front of a side that are in `format`, and whether everything after them is f16.
inline int rows_in_format(std::span<const TilePiece> pieces, const std::string& format) {
  int rows = 0;
  for (const TilePiece& piece : pieces) rows += piece.format->name == format ? piece.end - piece.begin : 0;
  return rows;
}
inline int f16_rows(std::span<const TilePiece> pieces) { return rows_in_format(pieces, "f16"); }

// The same borders, formats and numbers.
inline void expect_same_side(std::span<const TilePiece> a, std::span<const TilePiece> b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].format->name, b[i].format->name);
    EXPECT_EQ(a[i].row, b[i].row);
    EXPECT_EQ(a[i].begin, b[i].begin);
    EXPECT_EQ(a[i].end, b[i].end);
  }
  EXPECT_EQ(read_rows(a), read_rows(b));
}

inline void expect_same_views(const SequenceCache& a, const SequenceCache& b, int layer = 0) {
  const std::span<const HeadView> x = a.views(layer);
  const std::span<const HeadView> y = b.views(layer);
  ASSERT_EQ(x.size(), y.size());
  for (std::size_t h = 0; h < x.size(); ++h) {
    EXPECT_EQ(x[h].rows, y[h].rows);
    expect_same_side(x[h].keys, y[h].keys);
    expect_same_side(x[h].values, y[h].values);
  }
}

// Softmax attention in double over decoded rows; `q` is [kDim].
inline std::vector<double> attend(const std::vector<float>& q, const std::vector<float>& keys, const std::vector<float>& values) {
  const std::size_t rows = keys.size() / kDim;
  std::vector<double> logits(rows, 0.0);
  double largest = -std::numeric_limits<double>::infinity();
  for (std::size_t t = 0; t < rows; ++t) {
    for (std::size_t c = 0; c < kDim; ++c) logits[t] += static_cast<double>(q[c]) * static_cast<double>(keys[t * kDim + c]);
    logits[t] /= std::sqrt(static_cast<double>(kDim));
    largest = std::max(largest, logits[t]);
  }
  std::vector<double> out(kDim, 0.0);
  double sum = 0;
  for (std::size_t t = 0; t < rows; ++t) {
    const double weight = std::exp(logits[t] - largest);
    sum += weight;
    for (std::size_t c = 0; c < kDim; ++c) out[c] += weight * static_cast<double>(values[t * kDim + c]);
  }
  for (double& x : out) x /= sum;
  return out;
}

inline std::vector<double> attend_view(const std::vector<float>& q, const HeadView& view) {
  return attend(q, read_rows(view.keys), read_rows(view.values));
}

inline std::vector<float> random_query(std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> q(kDim);
  for (float& x : q) x = static_cast<float>(rng.normal());
  return q;
}

inline void expect_close(const std::vector<double>& a, const std::vector<double>& b, double relative) {
  ASSERT_EQ(a.size(), b.size());
  double norm = 0;
  double error = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    norm += a[i] * a[i];
    error += (a[i] - b[i]) * (a[i] - b[i]);
  }
  EXPECT_LE(std::sqrt(error), relative * std::sqrt(norm) + 1e-12);
}

}  // namespace kvartet::test
