#include "model/exact_layer.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cache/cache_fixture.h"
#include "core/arena.h"

namespace kvartet {
namespace {

// Several caches choose by the same scores: each takes that long alone, and together they take it once. What is not theirs is the
// prefill's.
TEST(LayerSealing, ScoresThatCachesShareCountOnceForAllAndInFullForEach) {
  constexpr int kTokens = 40;
  constexpr double kScoreSeconds = 1000;  // beyond any doubt of the clock
  const ModelShape shape = test::small_shape();
  std::vector<SequenceCache> caches;
  for (const char* text : {"tova:budget=16", "tova:budget=20", "full"}) {
    caches.push_back(*SequenceCache::create(*parse_spec(text), shape, Arena::create()));
  }
  std::vector<SequenceCache*> all;
  for (SequenceCache& cache : caches) all.push_back(&cache);
  LayerSealing sealing(all, 1);

  const test::TokenRows tokens(kTokens, 1);
  LayerScores scores;
  scores.heads = test::kHeads;
  scores.tokens = kTokens;
  scores.window_rows = 1;
  scores.window.assign(static_cast<std::size_t>(test::kHeads) * kTokens, 1.0F / kTokens);
  const LayerRows rows = {
      .key = tokens.key_rows(0, kTokens), .key_pre = {}, .value = tokens.value_rows(0, kTokens), .scores = &scores};
  const Status sealed = sealing.seal(0, rows, kScoreSeconds);
  ASSERT_TRUE(sealed.ok()) << sealed.message();

  EXPECT_GE(sealing.seconds(0), kScoreSeconds);
  EXPECT_GE(sealing.seconds(1), kScoreSeconds);
  EXPECT_LT(sealing.seconds(2), kScoreSeconds);
  EXPECT_GE(sealing.spent(), kScoreSeconds);
  EXPECT_LT(sealing.spent(), 1.5 * kScoreSeconds);
}

}  // namespace
}  // namespace kvartet
