#include <gtest/gtest.h>

#include "report/claims_fixture.h"
#include "report/names.h"
#include "report/page_fixture.h"

namespace kvartet {
namespace {

TEST(Claims, SnapKvRate) {
  Made m = compression();
  m.change(kSnap, "", times(1.5, 1));
  expect_result(m, "SnapKV generates", kYes);
  m.change(kSnap, "", times(0.4, 1));
  expect_result(m, "SnapKV generates", kNo);
  m.change(kSnap, "docqa", [](Outcome& o) { o.shared = true; });
  expect_result(m, "SnapKV generates", kNever);
  EXPECT_NE(row_of(m.results, "SnapKV generates").to_run.find(std::string(kSnap) + " --solo 5"), std::string::npos);
  EXPECT_NE(row_of(m.results, "SnapKV generates").reason.find("shared"), std::string::npos);
}

TEST(Claims, FirstToken) {
  Made m = compression();
  m.change(kTurbo4, "", times(1, 1.3));
  m.change(kTurbo3, "", times(1, 1.3));
  expect_result(m, "first token hardly changes", kYes);
  expect_result(m, "slowest to the first token", kYes);
  m.change(kTurbo4, "", times(1, 1 / 1.3));
  expect_result(m, "first token hardly changes", kNo);  // TurboQuant hardly changes it either
  expect_result(m, "slowest to the first token", kNo);  // as long as the others
  for (Outcome& o : m.results.outcomes) o.shared = true;
  for (const char* claim : {"first token hardly changes", "slowest to the first token"}) {
    EXPECT_NE(row_of(m.results, claim).reason.find("rests on the sealing alone"), std::string::npos);
    EXPECT_EQ(row_of(m.results, claim).limits, "by the sealing alone");
  }
  EXPECT_NE(page_of(m.results, {.claims = find_claims(m.results)}).find("<span class=\"small\">by the sealing alone</span>"),
            std::string::npos);
  m.change(kTurbo4, "", [](Outcome& o) { o.run = 2; });  // in other company than full: nothing to hold against it
  EXPECT_EQ(row_of(m.results, "slowest to the first token").n, 0);
  Made few = compression(1);
  few.results.outcomes.resize(kCompression.size() * 2);
  expect_result(few, "first token hardly changes", kOpen);
  expect_result(few, "slowest to the first token", kOpen);
}

TEST(Claims, TurboQuantSlowest) {
  Made m = compression();
  m.change(kTurbo4, "", times(0.7, 1));
  expect_result(m, "generates slowest", kYes);
  m.change(kTurbo4, "", times(2, 1));
  expect_result(m, "generates slowest", kNo);
  m.change(kTurbo4, "", [](Outcome& o) { o.shared = true; });
  expect_result(m, "generates slowest", kNever);
}

// Every cache alone, five times on each of the first `prompts` prompts of docqa, as fast as full.
void run_alone(Made& m, int prompts) {
  for (Outcome& o : m.results.outcomes) o.shared = true;
  for (const std::string& spec : kCompression) {
    for (int i = 0; i < prompts; ++i) {
      for (int repeat = 0; repeat < 5; ++repeat) {
        SoloRun run;
        run.key = {"docqa", 4096, std::to_string(i)};
        run.spec = spec;
        run.repeat = repeat;
        run.ttft_s = 2 + 0.01 * repeat + 0.1 * i;
        run.decode_tokens_per_s = 20 - 0.1 * repeat;
        m.results.solo.push_back(run);
      }
    }
  }
}

// Times of runs alone stand in for steps that caches shared, once there are enough prompts.
TEST(Claims, TimesOfCachesAlone) {
  Made m = compression();
  const std::vector<std::string> timed = {"SnapKV generates", "generates slowest", "not predict speed"};
  run_alone(m, kMinimumPairs - 1);
  for (const std::string& claim : timed) expect_result(m, claim, kNever);
  m.results.solo.clear();
  run_alone(m, kMinimumPairs + 1);
  expect_result(m, "SnapKV generates", kYes);
  expect_result(m, "generates slowest", kNo);
  expect_result(m, "first token hardly changes", kNo);
  EXPECT_EQ(row_of(m.results, "first token hardly changes").limits, "");
  EXPECT_NE(row_of(m.results, "SnapKV generates").reason.find("Each cache ran alone, on 6 prompts."), std::string::npos)
      << row_of(m.results, "SnapKV generates").reason;
  for (SoloRun& run : m.results.solo) {
    if (run.spec == kSnap) run.decode_tokens_per_s /= 2;
    if (run.spec == kTurbo4) run.decode_tokens_per_s /= 3;
    if (run.spec == kTurbo4) run.ttft_s *= 1.3;
  }
  expect_result(m, "SnapKV generates", kNo);
  expect_result(m, "generates slowest", kYes);
  expect_result(m, "slowest to the first token", kYes);
  std::erase_if(m.results.solo, [](const SoloRun& run) { return run.spec == kReference; });  // whoever adds a cache later
  EXPECT_EQ(row_of(m.results, "slowest to the first token").limits, "in part by the sealing alone");
  EXPECT_NE(row_of(m.results, "slowest to the first token").reason.find("ran alone, on 6 prompts, in 4 of 5 comparisons"),
            std::string::npos)
      << row_of(m.results, "slowest to the first token").reason;
  for (SoloRun& run : m.results.solo) run.error = "out of memory";
  for (const std::string& claim : timed) expect_result(m, claim, kNever);
}

}  // namespace
}  // namespace kvartet
