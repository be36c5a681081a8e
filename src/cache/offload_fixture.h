// For tests of caches that select rows: one fed with normal rows whose keys are known before and after rotation, and the obvious
// selection in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache_fixture.h"
#include "core/float16.h"
#include "core/rope_table.h"
#include "offload/row_places.h"

namespace kvartet::test {

inline constexpr std::size_t kWidth = kKvHeads * kDim;

inline ModelShape rotating_shape(int layers = 1, int heads = kHeads) {
  ModelShape shape = small_shape(layers);
  for (LayerShape& layer : shape.layers) layer.heads = heads;
  shape.rope = {.dims = kDim, .base = 10000, .scale = 1, .layout = RopeLayout::kNeighbours};
  return shape;
}

// A cache fed with normal rows; keys are known before and after rotation.
class Offloaded {
 public:
  Offloaded(const std::string& spec, int tokens, int heads = kHeads, int threads = 1,
            std::shared_ptr<Arena> arena = Arena::create())
      : shape_(rotating_shape(1, heads)),
        pre_(normals(tokens, 1)),
        post_(pre_),
        values_(normals(tokens, 2)),
        queries_(normals(tokens * heads / kKvHeads, 3)),
        cache_(SequenceCache::create(spec_of(spec), shape_, std::move(arena), {.threads = threads}).value()) {
    const RopeTable rope = RopeTable::create(shape_.rope, tokens, *Arena::create()).value();
    for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t)
      for (std::size_t h = 0; h < kKvHeads; ++h) rope.rotate(post_.data() + t * kWidth + h * kDim, static_cast<int>(t));
  }

  Status prompt(int tokens) {
    const auto heads = static_cast<std::size_t>(shape_.layers[0].heads);
    KV_TRY(cache_.seal_prompt(0, {.key = rows(post_, tokens),
                                  .key_pre = rows(pre_, tokens),
                                  .value = rows(values_, tokens),
                                  .queries = {queries_.data(), static_cast<std::size_t>(tokens), heads, kDim, heads * kDim}}));
    cache_.finish_prompt(tokens);
    return {};
  }
  // Up to attention: append, select.
  Status begin_step(const std::vector<float>& queries, const std::vector<float>& guessed = {}) {
    const auto at = static_cast<std::size_t>(cache_.next_position()) * kWidth;
    KV_TRY(cache_.append_row(0, {post_.data() + at, kKvHeads, kDim}, {values_.data() + at, kKvHeads, kDim}));
    const MatView<const float> guess(guessed.empty() ? nullptr : guessed.data(), guessed.size() / kDim, kDim);
    return cache_.before_attention(0, {queries.data(), queries.size() / kDim, kDim}, guess);
  }
  Status end_step() {
    KV_TRY(cache_.after_attention(0, {}));
    cache_.finish_step();
    return {};
  }
  Status step(const std::vector<float>& queries) {
    KV_TRY(begin_step(queries));
    return end_step();
  }
  std::vector<float> queries(std::uint64_t seed) const {
    Rng rng(seed, 4);
    std::vector<float> q(static_cast<std::size_t>(shape_.layers[0].heads) * kDim);
    for (float& x : q) x = static_cast<float>(rng.normal());
    return q;
  }
  // Attention in double over exact rows at these positions.
  std::vector<double> attend_exactly(const float* q, int head, const std::vector<std::int32_t>& positions) const {
    std::vector<float> k;
    std::vector<float> v;
    for (const std::int32_t p : positions) {
      const auto at = static_cast<std::size_t>(p) * kWidth + static_cast<std::size_t>(head) * kDim;
      for (std::size_t c = 0; c < kDim; ++c) k.push_back(float_from_f16(f16_from_float(post_[at + c])));
      for (std::size_t c = 0; c < kDim; ++c) v.push_back(float_from_f16(f16_from_float(values_[at + c])));
    }
    return attend(std::vector<float>(q, q + kDim), k, v);
  }
  // Positions in a view, found by their exact key rows (the stores must be exact).
  std::vector<std::int32_t> positions_in(const HeadView& view, int head) const {
    std::vector<std::int32_t> found;
    const std::vector<float> rows = read_rows(view.keys);
    for (std::size_t r = 0; r < rows.size() / kDim; ++r) {
      for (std::size_t t = 0; t < pre_.size() / kWidth; ++t) {
        if (std::abs(rows[r * kDim] - post_[t * kWidth + static_cast<std::size_t>(head) * kDim]) < 2e-3F &&
            std::abs(rows[r * kDim + 1] - post_[t * kWidth + static_cast<std::size_t>(head) * kDim + 1]) < 2e-3F &&
            std::abs(rows[r * kDim + 9] - post_[t * kWidth + static_cast<std::size_t>(head) * kDim + 9]) < 2e-3F) {
          found.push_back(static_cast<std::int32_t>(t));
          break;
        }
      }
    }
    EXPECT_EQ(found.size(), rows.size() / kDim);
    std::sort(found.begin(), found.end());
    return found;
  }
  const float* key(int t, int h) const {
    return post_.data() + static_cast<std::size_t>(t) * kWidth + static_cast<std::size_t>(h) * kDim;
  }
  const std::vector<float>& pre() const { return pre_; }
  std::vector<float>& post() { return post_; }
  // Of all tokens of the prompt: [tokens, heads, kDim].
  std::vector<float>& prompt_queries() { return queries_; }
  const float* value(int t, int h) const {
    return values_.data() + static_cast<std::size_t>(t) * kWidth + static_cast<std::size_t>(h) * kDim;
  }
  SequenceCache& cache() { return cache_; }
  const ModelShape& shape() const { return shape_; }

 private:
  static std::vector<float> normals(int tokens, std::uint64_t stream) {
    Rng rng(11, stream);
    std::vector<float> x(static_cast<std::size_t>(tokens) * kWidth);
    for (float& v : x) v = static_cast<float>(rng.normal());
    return x;
  }
  HeadRows<const float> rows(const std::vector<float>& data, int tokens) const {
    return {data.data(), static_cast<std::size_t>(tokens), kKvHeads, kDim, kWidth};
  }
  ModelShape shape_;
  std::vector<float> pre_, post_, values_, queries_;
  SequenceCache cache_;
};

inline const std::string kExact = "select:index=f32,keys=f16,values=f16,rope=post";

// log of the largest softmax weight, among these rows, that any query of the group gives each of them.
inline std::vector<double> exact_scores(const Offloaded& fed, const std::vector<float>& queries, int head, int group,
                                        const std::vector<std::int32_t>& rows) {
  std::vector<double> score(rows.size(), -1e300);
  for (int g = 0; g < group; ++g) {
    std::vector<double> logits;
    double sum = 0;
    for (const std::int32_t t : rows) {
      double dot = 0;
      for (int c = 0; c < kDim; ++c)
        dot += static_cast<double>(queries[static_cast<std::size_t>((head * group + g) * kDim + c)]) * fed.key(t, head)[c];
      logits.push_back(dot / 8);
      sum += std::exp(logits.back());
    }
    for (std::size_t j = 0; j < logits.size(); ++j) score[j] = std::max(score[j], logits[j] - std::log(sum));
  }
  return score;
}

// Scores of every candidate in double; the k best tokens.
inline std::vector<std::int32_t> exact_top(const Offloaded& fed, const std::vector<float>& queries, int head, int group,
                                           int begin, int end, int k) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(end - begin));
  std::iota(rows.begin(), rows.end(), begin);
  const std::vector<double> score = exact_scores(fed, queries, head, group, rows);
  std::vector<std::int32_t> order(score.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return score[static_cast<std::size_t>(a)] > score[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(k));
  for (std::int32_t& t : order) t += begin;
  std::sort(order.begin(), order.end());
  return order;
}

// Each spec is refused as usage, with a sentence that holds its hint.
inline void expect_refusals(const std::vector<std::pair<std::string, std::string>>& specs_and_hints) {
  for (const auto& [text, hint] : specs_and_hints) {
    const Result<CacheSpec> spec = parse_spec(text);
    ASSERT_FALSE(spec.ok()) << text;
    EXPECT_EQ(spec.status().code(), Code::kUsage);
    EXPECT_NE(spec.status().message().find(hint), std::string::npos) << spec.status().message();
  }
}

}  // namespace kvartet::test
