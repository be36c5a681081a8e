#include "report/token_buckets.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/report_fixture.h"

namespace kvartet {
namespace {

StoredResults results_of(const std::string& task, const std::vector<int>& prompt_tokens) {
  StoredResults r;
  r.runs = {made_run()};
  r.tasks = {{task, "f1"}};
  for (int i = 0; i < std::ssize(prompt_tokens); ++i) {
    r.samples.push_back(made_sample(task, 16384, i));
    r.samples.back().prompt_tokens = prompt_tokens[static_cast<std::size_t>(i)];
    for (const char* spec : {"full", "q8_0"}) {
      r.outcomes.push_back(made_outcome(task, 16384, i, spec, 1, -0.2));
      r.outcomes.back().ttft_s = i;
    }
  }
  return r;
}

// The borders are 4,096 and 8,192 prompt tokens; figures are those of the bucket's samples alone.
TEST(TokenBuckets, PutSamplesWhereTheirPromptBelongs) {
  const StoredResults results = results_of("longbench/qasper", {100, 4095, 4096, 8191, 8192, 30000, 9000});
  const std::vector<TokenBucket> buckets = token_buckets(results);
  ASSERT_EQ(buckets.size(), 3U);
  EXPECT_EQ(buckets[0].name, "0-4k");
  const int counts[] = {2, 2, 3};
  const double ttft[] = {0.5, 2.5, 5};
  for (std::size_t b = 0; b < 3; ++b) {
    ASSERT_EQ(buckets[b].rows.size(), 2U);
    EXPECT_EQ(buckets[b].rows[0].spec, "full");
    EXPECT_EQ(buckets[b].rows[0].n, counts[b]);
    EXPECT_DOUBLE_EQ(buckets[b].rows[1].ttft_s, ttft[b]);
  }
  EXPECT_EQ(token_buckets_json(results).size(), 6U);
  const std::string text = token_buckets_text(results);
  EXPECT_NE(text.find("8k+"), std::string::npos) << text;
}

// One bucket says nothing that the table above it does not; prompts of generated tasks all have the length asked for.
TEST(TokenBuckets, AreLeftOutWhereThereIsNothingToTellApart) {
  EXPECT_TRUE(token_buckets(results_of("longbench/qasper", {100, 200})).empty());
  EXPECT_TRUE(token_buckets(results_of("needle", {100, 5000})).empty());
  EXPECT_EQ(token_buckets_text(results_of("needle", {100, 5000})), "");
  StoredResults both = results_of("longbench/qasper", {100, 5000});
  const StoredResults short_set = results_of("longbench/triviaqa", {100, 200});
  both.samples.insert(both.samples.end(), short_set.samples.begin(), short_set.samples.end());
  both.outcomes.insert(both.outcomes.end(), short_set.outcomes.begin(), short_set.outcomes.end());
  for (const TokenBucket& bucket : token_buckets(both)) {
    for (const ReportRow& row : bucket.rows) EXPECT_EQ(row.task, "longbench/qasper");
  }
}

}  // namespace
}  // namespace kvartet
