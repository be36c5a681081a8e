// The observation window's softmax rows (compression.md 4.1): over all visible keys, causal inside the window.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "attention/attention_fixture.h"
#include "attention/prefill_attention.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

class WindowScoresOnTarget : public testing::TestWithParam<SimdTarget> {
 protected:
  ScopedSimdTarget scope_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(All, WindowScoresOnTarget, testing::ValuesIn(simd_targets()),
                         [](const auto& info) { return info.param.name; });

constexpr std::size_t kHeadDim = 64;

LayerScores exported(const std::vector<float>& q, const std::vector<float>& k, std::size_t heads, std::size_t kv_heads,
                     int window, int threads) {
  LayerScores scores;
  export_window_scores({q.data(), q.size() / (heads * kHeadDim), heads, kHeadDim, heads * kHeadDim},
                       {k.data(), k.size() / (kv_heads * kHeadDim), kv_heads, kHeadDim, kv_heads * kHeadDim}, window, threads,
                       &scores);
  return scores;
}

TEST_P(WindowScoresOnTarget, EqualTheSoftmaxOfEveryVisibleKey) {
  constexpr std::size_t kHeads = 6;
  constexpr std::size_t kKvHeads = 2;
  for (const std::size_t tokens : {1U, 5U, 31U, 32U, 33U, 128U, 300U, 1000U}) {
    SCOPED_TRACE(tokens);
    const int window = 32;
    const std::size_t rows = std::min<std::size_t>(window, tokens);
    const std::size_t given = std::min<std::size_t>(window + 3, tokens);  // more queries than the window needs
    const std::vector<float> q = random_rows(given * kHeads * kHeadDim, 3.0, 1);
    const std::vector<float> k = random_rows(tokens * kKvHeads * kHeadDim, 1.0, 2);
    const LayerScores scores = exported(q, k, kHeads, kKvHeads, window, 2);
    ASSERT_EQ(scores.heads, static_cast<int>(kHeads));
    ASSERT_EQ(scores.window_rows, static_cast<int>(rows));
    ASSERT_EQ(scores.tokens, static_cast<int>(tokens));
    ASSERT_TRUE(scores.column_sums.empty());
    const HeadRows<const float> keys{k.data(), tokens, kKvHeads, kHeadDim, kKvHeads * kHeadDim};
    for (std::size_t h = 0; h < kHeads; ++h) {
      const MatView<const float> got = scores.head_window(static_cast<int>(h));
      for (std::size_t i = 0; i < rows; ++i) {
        const float* const query = q.data() + ((given - rows + i) * kHeads + h) * kHeadDim;
        const std::size_t visible = tokens - rows + i + 1;
        const MatView<const float> head_keys = keys.head(h / (kHeads / kKvHeads));
        const ReferenceAttention exact(query, head_keys, head_keys, 0, visible);
        RelativeError error;
        error.add(got.row(i), exact.weights);
        ASSERT_LT(error.value(), 5e-6);
        for (std::size_t t = visible; t < tokens; ++t) ASSERT_EQ(got.row(i)[t], 0.0F);
      }
    }
  }
}

TEST(WindowScores, T12SameBitsForEveryThreadCount) {
  const std::vector<float> q = random_rows(32 * 3 * kHeadDim, 3.0, 1);
  const std::vector<float> k = random_rows(900 * kHeadDim, 1.0, 2);
  const LayerScores want = exported(q, k, 3, 1, 32, 1);
  for (const int threads : {2, 3, 7, 16}) EXPECT_EQ(want.window, exported(q, k, 3, 1, 32, threads).window);
}

TEST(WindowScores, NoWindowExportsNothing) {
  const std::vector<float> q = random_rows(3 * kHeadDim, 3.0, 1);
  const std::vector<float> k = random_rows(9 * kHeadDim, 1.0, 2);
  const LayerScores scores = exported(q, k, 3, 1, 0, 1);
  EXPECT_EQ(scores.window_rows, 0);
  EXPECT_TRUE(scores.window.empty());
}

}  // namespace
}  // namespace kvartet
