// Segmentation: the worked examples and short prompts of offloading.md 1.4, 1.5 and T-PART, T-BUDGET, T-SHORT.
#include "offload/select_segments.h"

#include <gtest/gtest.h>

#include <cmath>

#include "offload/presets.h"

namespace kvartet {
namespace {

SelectOptions preset(std::string_view name) {
  for (const SelectPreset& p : select_presets()) {
    if (p.name == name) return p.options;
  }
  ADD_FAILURE() << name;
  return {};
}

TEST(Segments, TBudgetTheRowsOf15) {
  const Segments shadow = segment_prompt(preset("shadowkv").request(20100));
  EXPECT_EQ(shadow.candidates, 2508);
  EXPECT_EQ(shadow.local, 36);
  EXPECT_EQ(shadow.selected, 39);
  EXPECT_EQ(shadow.outlier_chunks, 48);
  EXPECT_EQ(shadow.kept_tokens(8) + shadow.selected * 8, 732);
  const Segments yakv = segment_prompt(preset("yakv").request(20100));
  EXPECT_EQ(yakv.selected, 628);
  EXPECT_EQ(yakv.local, 64);
  EXPECT_EQ(yakv.kept_tokens(1) + yakv.selected, 692);
  const Segments engine = segment_prompt(preset("yakv-engine").request(20100));
  EXPECT_EQ(engine.selected, 314);
  EXPECT_EQ(engine.front, 126);
  EXPECT_EQ(engine.local, 126);
}

TEST(Segments, TBudgetExactProductsAndOneUlpBelow) {
  SegmentRequest request{.prompt = 6400, .chunk = 1, .budget = {0.03125, true}};
  EXPECT_EQ(segment_prompt(request).selected, 200);
  request.budget.value = std::nextafter(0.03125, 0.0);
  EXPECT_EQ(segment_prompt(request).selected, 199);
}

TEST(Segments, TPart) {
  for (const Segmentation kind : {Segmentation::kChunks, Segmentation::kInfix}) {
    for (const OutlierRule rule : {OutlierRule::kFirst, OutlierRule::kCosine}) {
      for (const int chunk : {1, 2, 3, 4, 8, 16}) {
        for (int n = 1; n <= 2000; ++n) {
          const Segments s = segment_prompt({.prompt = n,
                                             .chunk = chunk,
                                             .budget = {0.05, true},
                                             .sinks = {static_cast<double>(2 * chunk), false},
                                             .local = {static_cast<double>(4 * chunk), false},
                                             .segmentation = kind,
                                             .rule = rule});
          if (s.dense) {
            ASSERT_EQ(s, Segments{});
            continue;
          }
          ASSERT_EQ(s.front + s.candidates * chunk + s.local, n);
          ASSERT_GE(s.local, 0);
          ASSERT_LE(s.selected, s.candidates - s.outlier_chunks);
          ASSERT_LT(s.kept_tokens(chunk) + s.selected * chunk, n);
        }
      }
    }
  }
}

TEST(Segments, TShort) {
  for (const int n : {0, 1, 7, 8, 31, 32, 40, 384, 416}) EXPECT_TRUE(segment_prompt(preset("shadowkv").request(n)).dense) << n;
  for (const int n : {0, 1, 63, 64, 65, 66}) EXPECT_TRUE(segment_prompt(preset("yakv").request(n)).dense) << n;
  for (const int n : {511, 512}) EXPECT_TRUE(segment_prompt(preset("yakv-engine").request(n)).dense) << n;
  EXPECT_FALSE(segment_prompt(preset("yakv").request(70)).dense);
  EXPECT_EQ(segment_prompt(preset("yakv").request(90)).selected, 2);
  // A share that rounds to nothing selects one chunk.
  EXPECT_EQ(segment_prompt({.prompt = 100, .chunk = 8, .budget = {0.01, true}}).selected, 1);
  EXPECT_EQ(segment_prompt({.prompt = 100, .chunk = 8, .budget = {0.01, true}, .at_least_one = false}).selected, 0);
}

// Runs of chunks are cut as chunks of their length are.
TEST(Segments, RunsAreLargerChunks) {
  for (const char* const name : {"yakv", "yakv-engine", "arkvale"}) {
    for (const int run : {1, 2, 16, 64}) {
      for (int prompt = 0; prompt < 3000; prompt += 97) {
        SelectOptions options = preset(name);
        options.outliers = OutlierRule::kFirst;
        options.sinks = {64, false};
        options.local = {64, false};
        options.run = run;
        const Segments s = segment_prompt(options.request(prompt));
        SegmentRequest larger = options.request(prompt);
        larger.chunk *= run;
        larger.run = 1;
        Segments expected = segment_prompt(larger);
        expected.candidates *= run;
        expected.selected *= run;
        ASSERT_EQ(s, expected) << name << " " << run << " " << prompt;
        if (s.dense) continue;
        ASSERT_EQ(s.kept_tokens(options.index.chunk) + s.candidates * options.index.chunk, prompt);
        ASSERT_EQ(s.candidates % run + s.selected % run, 0);
      }
    }
  }
}

TEST(Segments, TheEngineFillsUpToItsLeastPrompt) {
  const Segments s = segment_prompt(preset("yakv-engine").request(1000));
  EXPECT_EQ(s.front + s.selected + s.local, 512);
}

}  // namespace
}  // namespace kvartet
