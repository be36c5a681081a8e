#include "plan/cost_model.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cache/sequence_cache.h"
#include "plan/candidates.h"
#include "plan/plan_fixture.h"

namespace kvartet {
namespace {

using test::smol_model;

SpecFacts facts_of(const std::string& spec) { return spec_facts(spec, smol_model().shape).value(); }

const CostTerm& term_of(const std::vector<CostTerm>& terms, const std::string& name) {
  return *std::find_if(terms.begin(), terms.end(), [&](const CostTerm& t) { return t.name == name; });
}

Calibration a_calibration() {
  Calibration c;
  c.threads = 2;
  c.rates = {
      {.what = "weights", .subject = "q4_1", .value = 8e9},
      {.what = "linear", .subject = "q4_1", .value = 100e9},
      {.what = "prefill-attention", .subject = "native", .head_dim = 64, .group = 3, .value = 50e9},
      {.what = "prefill-attention", .subject = "exact", .head_dim = 64, .group = 3, .value = 20e9},
      {.what = "attend", .subject = "f16/f16", .head_dim = 64, .group = 3, .depth = 512, .value = 30e-6},
      {.what = "attend", .subject = "f16/f16", .head_dim = 64, .group = 3, .depth = 4096, .value = 200e-6},
      {.what = "attend", .subject = "q8_0/q8_0", .head_dim = 64, .group = 3, .depth = 512, .value = 20e-6},
      {.what = "attend", .subject = "q8_0/q8_0", .head_dim = 64, .group = 3, .depth = 4096, .value = 120e-6},
      {.what = "encode", .subject = "f16/f16", .head_dim = 64, .value = 20e-9},
      {.what = "append", .subject = "f16/f16", .head_dim = 64, .value = 50e-9},
      {.what = "evict", .subject = "snapkv", .value = 100e-9},
  };
  return c;
}

// Must show 1: predicted bytes are the cache's own formula, for every candidate at three contexts.
TEST(CostModel, BytesAreTheExactPredictionOfTheCache) {
  const ModelCost model = smol_model();
  const CostModel costs(model, nullptr, 2);
  for (const CacheSpec& spec : candidate_specs()) {
    const Result<SpecFacts> facts = spec_facts(spec, model.shape);
    if (!facts.ok()) continue;  // does not fit this model
    for (const int tokens : {300, 2048, 7000}) {
      Workload w;
      w.prompt_tokens = tokens;
      w.output_tokens = 100;
      const CostPrediction p = costs.predict(*facts, w).value();
      EXPECT_EQ(p.after_prompt, predict_bytes(spec, model.shape, tokens, 0).value()) << spec.canonical;
      EXPECT_EQ(p.at_end, predict_bytes(spec, model.shape, tokens, 100).value()) << spec.canonical;
      EXPECT_LE(p.fast_bytes(), p.bytes());
      if (!facts->selects()) {
        EXPECT_EQ(p.fast_bytes(), p.bytes());
      }
    }
  }
}

// The rows that attention is charged for are those that the byte formula counts.
TEST(CostModel, KeptRowsAreThoseOfTheByteFormula) {
  ModelShape one_head;
  one_head.context = 1 << 20;
  one_head.layers = {LayerShape{.heads = 1, .kv_heads = 1, .head_dim = 64, .window = 0}};
  for (const char* text :
       {"snapkv:budget=0.1", "adakv", "h2o:budget=0.5", "tova", "streamingllm", "cam:target=256", "pyramidkv"}) {
    const CacheSpec spec = parse_spec(text).value();
    const SpecFacts facts = spec_facts(spec, one_head).value();
    const auto live = [&](int tokens, int generated) {
      return static_cast<double>(predict_bytes(spec, one_head, tokens, generated).value().live);
    };
    for (const int tokens : {200, 3000})
      for (const int generated : {0, 70})
        EXPECT_DOUBLE_EQ(kept_rows(facts, tokens, generated), live(tokens, generated) / live(1, 0)) << text << " " << tokens;
  }
}

TEST(CostModel, TimesAreTheSumOfTheirTerms) {
  const ModelCost model = smol_model();
  const Calibration calibration = a_calibration();
  const CostModel costs(model, &calibration, 2);
  Workload w;
  w.prompt_tokens = 4000;
  w.output_tokens = 192;
  w.questions = 2;
  const CostPrediction p = costs.predict(facts_of("full"), w).value();
  EXPECT_DOUBLE_EQ(p.ttft_s, sum(p.ttft));
  EXPECT_DOUBLE_EQ(p.step_s, sum(p.step));
  // The prompt's last logits give the first answer's first token; the second answer begins with a step.
  EXPECT_DOUBLE_EQ(p.total_s, p.ttft_s + (2 * 192 - 1) * p.step_s);
  // By hand: 98 MB at 8 GB/s; 4096 rows of 90 heads at 200 us.
  EXPECT_NEAR(p.step[0].value, 98e6 / 8e9, 1e-6);
  EXPECT_NEAR(p.step[1].value, 90 * 200e-6, 1e-6);
  // 2 * (134.5M - 28.3M) * 4000 flop at 100 GFLOP/s; 30 * 2 * 9 * 64 * 4000^2 at 50 GFLOP/s.
  EXPECT_NEAR(p.ttft[0].value, 2 * 106.2e6 * 4000 / 100e9, 0.01);
  EXPECT_NEAR(p.ttft[1].value, 30 * 2.0 * 9 * 64 * 16e6 / 50e9, 1e-6);
  EXPECT_EQ(p.ttft.size(), 3U);  // and what is written: no step
}

// Prefill attention of weights that are not rounded is exact, and slower where the CPU multiplies rounded numbers.
TEST(CostModel, ExactPrefillAttentionHasItsOwnRate) {
  ModelCost model = smol_model();
  model.native_attention = false;
  const Calibration calibration = a_calibration();
  Workload w;
  w.prompt_tokens = 4000;
  const CostPrediction p = CostModel(model, &calibration, 2).predict(facts_of("full"), w).value();
  EXPECT_NEAR(p.ttft[1].value, 30 * 2.0 * 9 * 64 * 16e6 / 20e9, 1e-6);
}

TEST(CostModel, DepthsBetweenAndBeyondTheMeasuredOnesLieOnTheLine) {
  const ModelCost model = smol_model();
  const Calibration calibration = a_calibration();
  const CostModel costs(model, &calibration, 2);
  const auto attention = [&](int depth) { return costs.step_terms(facts_of("full"), depth, depth)[1].value; };
  EXPECT_NEAR(attention(512), 90 * 30e-6, 1e-9);
  EXPECT_NEAR(attention(2304), 90 * 115e-6, 1e-9);
  EXPECT_NEAR(attention(7680), 90 * 370e-6, 1e-9);
  EXPECT_GT(attention(1), 0);
}

// A pair that was not calibrated is half of each of its halves.
TEST(CostModel, APairIsMadeOfItsHalves) {
  const ModelCost model = smol_model();
  const Calibration calibration = a_calibration();
  const CostModel costs(model, &calibration, 2);
  EXPECT_NEAR(costs.step_terms(facts_of("q8_0/full"), 4096, 4096)[1].value, 90 * 160e-6, 1e-9);
}

// qjl writes keys alone: its half is what a pair takes without the other's.
TEST(CostModel, AFormatOfOneSideIsKnownFromAPair) {
  const ModelCost model = smol_model();
  Calibration c = a_calibration();
  const std::string pair = facts_of("qjl/q8_0").formats();
  c.rates.push_back({.what = "attend", .subject = pair, .head_dim = 64, .group = 3, .depth = 512, .value = 35e-6});
  c.rates.push_back({.what = "attend", .subject = pair, .head_dim = 64, .group = 3, .depth = 4096, .value = 180e-6});
  c.rates.push_back({.what = "append", .subject = "q8_0/q8_0", .head_dim = 64, .value = 60e-9});
  c.rates.push_back({.what = "append", .subject = pair, .head_dim = 64, .value = 900e-9});
  const CostModel costs(model, &c, 2);
  const auto terms = [&](const std::string& spec) { return costs.step_terms(facts_of(spec), 4096, 4096); };
  EXPECT_NEAR(terms("qjl/q8_0")[1].value, 90 * 180e-6, 1e-9);
  EXPECT_NEAR(terms("qjl/full")[1].value, 90 * (180e-6 - 60e-6 + 100e-6), 1e-9);
  EXPECT_NEAR(terms("qjl/full")[2].value, 90 * (900e-9 - 30e-9 + 25e-9), 1e-12);
}

// `kvartet calibrate` measures calibrated_formats(): with them nothing about any candidate's rows is left to assume.
TEST(CostModel, TheCalibratedFormatsTellEveryCandidate) {
  const ModelCost model = smol_model();
  Calibration c = a_calibration();
  std::erase_if(c.rates,
                [](const Rate& r) { return r.what == rate::kAttend || r.what == rate::kEncode || r.what == rate::kAppend; });
  for (const CacheSpec& spec : calibrated_formats(candidate_specs())) {
    const std::string formats = spec_facts(spec, model.shape)->formats();
    for (const int depth : {512, 4096})
      c.rates.push_back(
          {.what = "attend", .subject = formats, .head_dim = 64, .group = 3, .depth = depth, .value = depth * 30e-9});
    for (const char* what : {"encode", "append"})
      c.rates.push_back({.what = what, .subject = formats, .head_dim = 64, .value = 20e-9});
  }
  const CostModel costs(model, &c, 2);
  int checked = 0;
  for (const CacheSpec& spec : candidate_specs()) {
    const Result<SpecFacts> facts = spec_facts(spec, model.shape);
    if (!facts.ok() || facts->selects()) continue;
    const std::vector<CostTerm> terms = costs.step_terms(*facts, 2000, 2000);
    for (const char* name : {"attention", "append"})
      EXPECT_EQ(term_of(terms, name).detail.find("assumed"), std::string::npos) << spec.canonical << ": " << name;
    ++checked;
  }
  EXPECT_GT(checked, 100);
}

TEST(CostModel, AnEvictorIsChargedForTheRowsThatStay) {
  const ModelCost model = smol_model();
  const Calibration calibration = a_calibration();
  const CostModel costs(model, &calibration, 2);
  EXPECT_NEAR(costs.step_terms(facts_of("snapkv:budget=0.5"), 4608, 4608)[1].value,
              costs.step_terms(facts_of("full"), 2304, 2304)[1].value, 1e-9);
  // Generated rows stay with snapkv, but not with streamingllm.
  EXPECT_DOUBLE_EQ(kept_rows(facts_of("snapkv:budget=0.5"), 1000, 100), 600);
  EXPECT_DOUBLE_EQ(kept_rows(facts_of("streamingllm"), 1000, 100), 516);
  EXPECT_DOUBLE_EQ(kept_share(facts_of("streamingllm"), 100, 64), 1);
  EXPECT_DOUBLE_EQ(kept_share(facts_of("streamingllm"), 1000, 64), 0.516);
  // Holds the prompt, and not the answer: the first step sees all, the middle one 516 of 766, the last one half.
  EXPECT_NEAR(kept_share(facts_of("streamingllm"), 500, 532), (1 + 4 * 516.0 / 766 + 0.5) / 6, 1e-12);
  EXPECT_DOUBLE_EQ(kept_share(facts_of("snapkv:budget=600"), 500, 532), 1);
}

// tier=disk: as many reads as pages are touched, at the rate of random reads, or their bytes, whichever takes longer.
TEST(CostModel, RowsOnADiskTakeItsReadsOrItsBytes) {
  const ModelCost model = smol_model();
  Calibration calibration = a_calibration();
  calibration.rates.push_back({.what = "disk-ops", .subject = "direct", .value = 50e3});
  calibration.rates.push_back({.what = "disk-read", .subject = "direct", .value = 1e9});
  const SpecFacts facts = facts_of("select:budget=64,chunk=1,keys=f16,values=f16,tier=disk,dense=0,share=group");
  const auto fetch = [&](const Calibration* c) { return term_of(CostModel(model, c, 2).step_terms(facts, 4096, 4096), "fetch"); };
  // By hand: a row of 256 bytes; 64 rows of 3 heads in 30 layers, each on a page of its own: 5,760 reads, 23.6 MB.
  EXPECT_NEAR(fetch(&calibration).value, 5760 / 50e3, 1e-6);
  EXPECT_NE(fetch(&calibration).detail.find("calibrated"), std::string::npos) << fetch(&calibration).detail;
  calibration.rates.back().value = 1e8;  // now the bytes take longer
  EXPECT_NEAR(fetch(&calibration).value, 5760 * 4096 / 1e8, 1e-6);
  // Sixteen neighbours share a page.
  const SpecFacts chunked = facts_of("select:budget=64,chunk=16,keys=f16,values=f16,tier=disk,dense=0,share=group");
  const CostModel costs(model, &calibration, 2);
  EXPECT_NEAR(term_of(costs.step_terms(chunked, 4096, 4096), "fetch").value, 360 * 4096 / 1e8, 1e-6);
  EXPECT_NE(fetch(nullptr).detail.find("assumed"), std::string::npos);
  EXPECT_GT(fetch(nullptr).value, 0);
}

TEST(CostModel, ASelectingCacheIsChargedForRowsThatCouldBeChosenAndForThoseThatAre) {
  const ModelCost model = smol_model();
  Calibration c = a_calibration();
  for (const auto& [what, value] : {std::pair("score", 1e-9), std::pair("chosen", 20e-9)})
    c.rates.push_back({.what = what, .subject = "select", .head_dim = 64, .group = 3, .value = value});
  // Sealing takes 100 us once and 300 ns a token.
  for (const auto& [depth, value] : {std::pair(500, 250e-6), std::pair(1500, 550e-6)})
    c.rates.push_back({.what = "seal", .subject = "select", .head_dim = 64, .group = 3, .depth = depth, .value = value});
  const CostModel costs(model, &c, 2);
  const auto term = [](const std::vector<CostTerm>& terms, const std::string& name) {
    const auto found = std::ranges::find(terms, name, &CostTerm::name);
    return found == terms.end() ? -1.0 : found->value;
  };
  Workload w;
  w.prompt_tokens = 2000;
  const CostPrediction p = costs.predict(facts_of("select:budget=0.25"), w).value();
  constexpr double kHeads = 90;
  EXPECT_NEAR(term(p.step, "select"), 1e-9 * 2000 * kHeads, 1e-12);
  EXPECT_NEAR(term(p.step, "chosen rows"), 20e-9 * 500 * kHeads, 1e-12);
  EXPECT_EQ(term(p.step, "fetch"), -1);
  EXPECT_NEAR(term(p.ttft, "build the index"), (100e-6 + 300e-9 * 2000) * kHeads, 1e-9);
  EXPECT_EQ(term(p.ttft, "write the cache"), -1);
  // What was not calibrated is assumed, and says so.
  const CostPrediction other = costs.predict(facts_of("quest:budget=0.25"), w).value();
  EXPECT_GT(term(other.step, "fetch"), -1);
  EXPECT_GT(other.time_error, p.time_error);
}

// Ranking rows by every step's weights costs a step something, where it was measured.
TEST(CostModel, AMethodByWhichRowsLeaveAfterStepsIsChargedForIt) {
  const ModelCost model = smol_model();
  Calibration c = a_calibration();
  const CostModel before(model, &c, 2);
  const double without = sum(before.step_terms(facts_of("cam:target=256"), 4096, 4096));
  c.rates.push_back({.what = "depart", .subject = "cam", .head_dim = 64, .group = 3, .value = 40e-9});
  const CostModel costs(model, &c, 2);
  const std::vector<CostTerm> terms = costs.step_terms(facts_of("cam:target=256"), 4096, 4096);
  EXPECT_NEAR(term_of(terms, "choose rows").value, 40e-9 * 256 * 90, 1e-12);
  EXPECT_NEAR(sum(terms), without + 40e-9 * 256 * 90, 1e-12);
  const std::vector<CostTerm> nothing_leaves = costs.step_terms(facts_of("cam:target=256"), 200, 200);
  EXPECT_EQ(nothing_leaves.size(), before.step_terms(facts_of("cam:target=256"), 200, 200).size());
  EXPECT_EQ(costs.step_terms(facts_of("snapkv"), 4096, 4096).size(), costs.step_terms(facts_of("full"), 4096, 4096).size());
}

// Of a long answer only the rows that stay near are attended, and the others are scored with the prompt's.
TEST(CostModel, GeneratedRowsThatWentFarAreScoredAndNotAttended) {
  const ModelCost model = smol_model();
  Calibration c = a_calibration();
  for (const auto& [what, value] : {std::pair("score", 1e-9), std::pair("chosen", 20e-9)})
    c.rates.push_back({.what = what, .subject = "select", .head_dim = 64, .group = 3, .value = value});
  const CostModel costs(model, &c, 2);
  const SpecFacts bounded = facts_of("select:budget=100,generated=256");
  const std::vector<CostTerm> terms = costs.step_terms(bounded, 1000, 2000);
  const int far = bounded.spec.offload->far_generated(1000);
  EXPECT_EQ(far, (1000 - 256) / 64 * 64 + 64);
  EXPECT_NEAR(term_of(terms, "select").value, 1e-9 * (1000 + far) * 90, 1e-12);
  EXPECT_EQ(kept_rows(bounded, 1000, 1000), 100 + 64 + 1000 - far);
  EXPECT_LT(term_of(terms, "attention").value,
            term_of(costs.step_terms(facts_of("select:budget=100"), 1000, 2000), "attention").value);
}

// Nothing is chosen from a prompt that is too short: a step is `full`'s, and so is the prompt.
TEST(CostModel, AShortPromptIsNotSelectedFrom) {
  const ModelCost model = smol_model();
  Calibration c = a_calibration();
  for (const auto& [what, value] : {std::pair("score", 1e-9), std::pair("chosen", 20e-9), std::pair("seal", 1e-3)})
    c.rates.push_back({.what = what, .subject = "select", .head_dim = 64, .group = 3, .depth = 1, .value = value});
  const CostModel costs(model, &c, 2);
  for (const char* text : {"select:budget=0.1,min=512,keys=higgs4", "select:budget=100,min=512", "quest:budget=0.1,chunk=16"}) {
    const SpecFacts facts = facts_of(text);
    const int tokens = facts.evict_method == "quest" ? 10 : 400;
    EXPECT_FALSE(selects_from(facts, tokens)) << text;
    EXPECT_TRUE(selects_from(facts, 4000)) << text;
    EXPECT_EQ(kept_rows(facts, tokens, 50), tokens + 50) << text;
    EXPECT_EQ(chosen_rows(facts, tokens), 0) << text;
    EXPECT_EQ(kept_share(facts, tokens, 50), 1) << text;
    Workload w;
    w.prompt_tokens = tokens;
    w.output_tokens = 50;
    const CostPrediction here = costs.predict(facts, w).value();
    const CostPrediction full = costs.predict(facts_of("full"), w).value();
    EXPECT_DOUBLE_EQ(here.step_s, full.step_s) << text;
    EXPECT_DOUBLE_EQ(here.ttft_s, full.ttft_s) << text;
  }
}

// A prompt that is near as a whole leaves its answer near, too.
TEST(CostModel, AfterAShortPromptNoGeneratedRowGoesFar) {
  const ModelCost model = smol_model();
  const Calibration c = a_calibration();
  const CostModel costs(model, &c, 2);
  for (const char* text : {"select:budget=100,generated=256", "select:budget=0.1,min=512,generated=256,dense=2"}) {
    const SpecFacts bounded = facts_of(text);
    EXPECT_EQ(near_generated(bounded, 150, 1000), 1000) << text;
    EXPECT_LT(near_generated(bounded, 1000, 1000), 1000) << text;
    const double at_end = term_of(costs.step_terms(bounded, 150, 1150), "attention").value;
    EXPECT_GT(at_end, 1.5 * term_of(costs.step_terms(bounded, 150, 450), "attention").value) << text;
  }
}

TEST(CostModel, WithoutDiskRatesTheErrorIsStated) {
  const ModelCost model = smol_model();
  const Calibration calibration = a_calibration();
  Workload w;
  w.prompt_tokens = 4000;
  const SpecFacts facts = facts_of("select:budget=1024,chunk=1,tier=disk,dense=0");
  Calibration with_disk = calibration;
  with_disk.rates.push_back({.what = "disk-ops", .subject = "direct", .value = 50e3});
  with_disk.rates.push_back({.what = "disk-read", .subject = "direct", .value = 1e9});
  EXPECT_GT(CostModel(model, &calibration, 2).predict(facts, w)->time_error,
            CostModel(model, &with_disk, 2).predict(facts, w)->time_error);
}

TEST(CostModel, UncalibratedTimesSaySoAndAreWide) {
  const ModelCost model = smol_model();
  const Calibration calibration = a_calibration();
  Workload w;
  w.prompt_tokens = 2048;
  const CostPrediction guessed = CostModel(model, nullptr, 2).predict(facts_of("kivi"), w).value();
  const CostPrediction measured = CostModel(model, &calibration, 2).predict(facts_of("full"), w).value();
  EXPECT_GE(guessed.time_error, 1);
  EXPECT_LT(measured.time_error, 0.2);
  EXPECT_NE(guessed.step[0].detail.find("assumed"), std::string::npos);
  EXPECT_GT(guessed.step_s, 0);
}

}  // namespace
}  // namespace kvartet
