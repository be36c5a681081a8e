#include "plan/quality_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "plan/plan_fixture.h"

namespace kvartet {
namespace {

using test::cell;
using test::smol_model;

SpecFacts facts_of(const std::string& spec) { return spec_facts(spec, smol_model().shape).value(); }

LossPrediction predict(const std::vector<EvidenceCell>& cells, const std::string& spec, TaskKind kind, int tokens,
                       int questions = 1) {
  QualityModel model(cells, "ours", smol_model().shape);
  Workload w;
  w.kind = kind;
  w.prompt_tokens = tokens;
  w.questions = questions;
  return model.explain(facts_of(spec), w);
}

double width(const LossPrediction& l) { return l.high - l.low; }

TEST(QualityModel, TheReferenceLosesNothingByDefinition) {
  const LossPrediction l = predict({}, "full", TaskKind::kSummary, 2048);
  EXPECT_EQ(l.expected, 0);
  EXPECT_EQ(l.high, 0);
  EXPECT_EQ(l.source, LossSource::kExact);
  // A window that holds prompt and answer drops nothing; one that the answer outgrows does.
  EXPECT_EQ(predict({}, "streamingllm:window=1024", TaskKind::kSummary, 300).source, LossSource::kExact);
  EXPECT_EQ(predict({}, "streamingllm", TaskKind::kSummary, 300).source, LossSource::kPrior);
  // A cache that could choose every row keeps them all near, in whatever it would have written the far ones; one that chooses a
  // few less does not.
  for (const char* rows : {"", ",keys=fp8,values=fp8"}) {
    EXPECT_EQ(predict({}, fmt::format("select:budget=0.99{}", rows), TaskKind::kSummary, 2048).source, LossSource::kExact);
    EXPECT_EQ(predict({}, fmt::format("select:budget=0.95{}", rows), TaskKind::kSummary, 2048).source, LossSource::kPrior);
    EXPECT_EQ(predict({}, fmt::format("select:budget=0.95{}", rows), TaskKind::kSummary, 60).source, LossSource::kExact);
  }
}

TEST(QualityModel, WithoutResultsThereIsAPriorThatSaysSo) {
  for (const char* spec : {"q8_0", "kivi:bits=2", "snapkv", "snapkv+kivi"}) {
    const LossPrediction l = predict({}, spec, TaskKind::kExtraction, 4096);
    EXPECT_EQ(l.source, LossSource::kPrior) << spec;
    EXPECT_LE(l.low, l.expected);
    EXPECT_LT(l.expected, l.high);
    EXPECT_FALSE(l.evidence.empty());
  }
}

// The papers' order, as prior alone: eviction hurts extraction and summaries, position-only eviction hurts needles.
TEST(QualityModel, ThePriorFollowsThePapers) {
  EXPECT_LT(prior_of_format(8.5, 8.5, TaskKind::kChat).mean, prior_of_format(5, 5, TaskKind::kChat).mean);
  EXPECT_LT(prior_of_format(5, 5, TaskKind::kChat).mean, prior_of_format(3, 3, TaskKind::kChat).mean);
  // Fine keys do not make up for coarse values.
  EXPECT_GT(prior_of_format(16, 3, TaskKind::kChat).mean, prior_of_format(5, 5, TaskKind::kChat).mean);
  EXPECT_LT(prior_of_format(5, 3, TaskKind::kChat).mean, prior_of_format(3, 5, TaskKind::kChat).mean);
  EXPECT_LT(prior_of_eviction(RowChoice::kByScores, 0.25, TaskKind::kSingleFact, true).mean,
            prior_of_eviction(RowChoice::kByScores, 0.25, TaskKind::kExtraction, true).mean);
  EXPECT_LT(prior_of_eviction(RowChoice::kByScores, 0.25, TaskKind::kSingleFact, true).mean,
            prior_of_eviction(RowChoice::kByScores, 0.25, TaskKind::kSingleFact, false).mean);
  EXPECT_LT(prior_of_eviction(RowChoice::kByScores, 0.25, TaskKind::kSingleFact, true).mean,
            prior_of_eviction(RowChoice::kByPosition, 0.25, TaskKind::kSingleFact, true).mean);
  double last = 1e9;
  for (const double share : {0.01, 0.1, 0.25, 0.5, 0.9, 1.0}) {
    const double mean = prior_of_eviction(RowChoice::kByScores, share, TaskKind::kSummary, true).mean;
    EXPECT_LT(mean, last);
    last = mean;
  }
}

TEST(QualityModel, ManySamplesOfTheSameCellDecide) {
  const std::vector<EvidenceCell> cells = {cell("needle", 2048, "kivi:bits=2", 100, 0.31, 0.2)};
  const LossPrediction l = predict(cells, "kivi:bits=2", TaskKind::kSingleFact, 2048);
  EXPECT_EQ(l.source, LossSource::kMeasured);
  EXPECT_EQ(l.measured_samples, 100);
  EXPECT_NEAR(l.expected, 0.31, 0.03);
  EXPECT_LT(l.low, 0.31);
  EXPECT_GT(l.high, 0.31 - 0.001);
}

TEST(QualityModel, MoreSamplesNarrowTheInterval) {
  double last = 1e9;
  for (const int n : {2, 5, 20, 100}) {
    const double w =
        width(predict({cell("needle", 2048, "kivi:bits=4", n, 0.0075, 0.01)}, "kivi:bits=4", TaskKind::kSingleFact, 2048));
    EXPECT_LT(w, last) << n;
    last = w;
  }
  // One sample has no spread and says nothing.
  EXPECT_EQ(predict({cell("needle", 2048, "kivi:bits=4", 1, 0.5, 0)}, "kivi:bits=4", TaskKind::kSingleFact, 2048).source,
            LossSource::kPrior);
}

TEST(QualityModel, EveryDifferenceWidensTheInterval) {
  const std::vector<EvidenceCell> cells = {cell("needle", 2048, "kivi:bits=4", 50, 0.0075, 0.01)};
  const double same = width(predict(cells, "kivi:bits=4", TaskKind::kSingleFact, 2048));
  EXPECT_GT(width(predict(cells, "kivi:bits=4", TaskKind::kSummary, 2048)), same);
  EXPECT_GT(width(predict(cells, "kivi:bits=4", TaskKind::kSingleFact, 8000)), same);
  EXPECT_GT(width(predict(cells, "kivi:bits=4/2", TaskKind::kSingleFact, 2048)), same);
  std::vector<EvidenceCell> foreign = cells;
  foreign[0].model_hash = "another";
  const LossPrediction other = predict(foreign, "kivi:bits=4", TaskKind::kSingleFact, 2048);
  EXPECT_GT(width(other), same);
  EXPECT_EQ(other.source, LossSource::kNeighbour);
  EXPECT_EQ(other.measured_samples, 0);
}

TEST(QualityModel, ANeighbourPullsTheEstimateFromThePriorTowardsItself) {
  const double prior = predict({}, "snapkv:budget=0.25", TaskKind::kSummary, 4096).expected;
  const std::vector<EvidenceCell> bad = {cell("longbench/multi_news", 4096, "snapkv:budget=0.25", 40, 0.5, 0.3)};
  const LossPrediction half = predict(bad, "snapkv:budget=0.5", TaskKind::kSummary, 4096);
  EXPECT_GT(half.expected, predict({}, "snapkv:budget=0.5", TaskKind::kSummary, 4096).expected);
  EXPECT_LT(half.expected, 0.5);  // more rows lose less
  EXPECT_GT(predict(bad, "snapkv:budget=0.25", TaskKind::kSummary, 4096).expected, prior);
}

// A large loss measured for this kind is not talked down by small losses of other kinds, however well measured, nor by how many
// there are; and the way from one share of rows to another makes it less sure, not smaller.
TEST(QualityModel, OtherKindsDoNotOutvoteALargeLossOfThisKind) {
  std::vector<EvidenceCell> cells = {cell("longbench/multi_news", 4096, "snapkv:budget=0.25", 50, 0.54, 0.36)};
  const auto far = [&] { return predict(cells, "snapkv:budget=0.9", TaskKind::kSummary, 4096); };
  const LossPrediction alone = far();
  EXPECT_GT(alone.expected, 0.02);  // 0.07 of what a quarter loses, by the priors' shape: 0.038
  EXPECT_GT(width(alone), alone.expected);
  for (const char* task : {"needle", "docqa", "ruler/vt", "chat", "fewshot"})
    for (const int context : {512, 1024, 2048, 4096, 8000})
      cells.push_back(cell(task, context, "snapkv:budget=0.25", 50, 0.002, 0.02));
  EXPECT_GT(far().expected, 0.6 * alone.expected);
  const LossPrediction l = predict(test::some_evidence(), "snapkv:budget=0.5", TaskKind::kSummary, 4096);
  EXPECT_GT(l.expected, 0.1);
  EXPECT_GT(l.high, 0.2);
  EXPECT_GT(predict(test::some_evidence(), "snapkv:budget=0.75", TaskKind::kSummary, 4096).expected, 0.03);
}

TEST(QualityModel, ACombinationIsTheSumOfItsPartsUntilItIsMeasured) {
  std::vector<EvidenceCell> cells = test::some_evidence();
  const double a = predict(cells, "snapkv:budget=0.25", TaskKind::kSingleFact, 2048).mean;
  const double b = predict(cells, "kivi:bits=4", TaskKind::kSingleFact, 2048).mean;
  const LossPrediction sum = predict(cells, "snapkv:budget=0.25+kivi:bits=4", TaskKind::kSingleFact, 2048);
  EXPECT_NEAR(sum.mean, a + b, 1e-11);
  cells.push_back(cell("needle", 2048, "snapkv:budget=0.25+kivi:bits=4", 60, 0.2, 0.1));
  const LossPrediction measured = predict(cells, "snapkv:budget=0.25+kivi:bits=4", TaskKind::kSingleFact, 2048);
  EXPECT_GT(measured.expected, sum.expected);
  EXPECT_EQ(measured.measured_samples, 60);
}

// A second question was not seen either, but what was kept had been chosen for another one: near to a question that is not known,
// the same as neither that nor one that was seen.
TEST(QualityModel, SecondQuestionsAreEvidenceOfTheirOwn) {
  const char* spec = "snapkv:budget=0.25";
  const auto measured = [&](const char* position) {
    std::vector<EvidenceCell> cells = {cell("needle", 2048, spec, 100, 0.31, 0.2)};
    cells[0].parameters = fmt::format("question={}", position);
    return cells;
  };
  const auto asked = [&](const std::vector<EvidenceCell>& cells, int questions) {
    return predict(cells, spec, TaskKind::kSingleFact, 2048, questions);
  };
  for (const int questions : {1, 2}) {
    EXPECT_EQ(asked(measured("second"), questions).measured_samples, 0) << questions;
    EXPECT_NE(asked(measured("second"), questions).source, LossSource::kMeasured) << questions;
  }
  EXPECT_EQ(asked(measured("seen"), 1).measured_samples, 100);
  EXPECT_EQ(asked(measured("unseen"), 2).measured_samples, 100);
  EXPECT_LT(width(asked(measured("second"), 2)), width(asked(measured("seen"), 2)));
  EXPECT_GT(width(asked(measured("second"), 2)), width(asked(measured("unseen"), 2)));
  // And it can be asked about.
  QualityModel model(measured("second"), "ours", smol_model().shape);
  Workload second;
  second.kind = TaskKind::kSingleFact;
  second.prompt_tokens = 2048;
  second.position = QuestionPosition::kSecond;
  EXPECT_EQ(model.predict(facts_of(spec), second).measured_samples, 100);
  // A format does not care: where every row stays, the position of the question is no difference.
  const std::vector<EvidenceCell> format = {cell("needle", 2048, "kivi:bits=2", 100, 0.31, 0.2)};
  EXPECT_EQ(predict(format, "kivi:bits=2", TaskKind::kSingleFact, 2048, 2).measured_samples, 100);
}

// What is not known is not the same as what is known to lose nothing.
TEST(QualityModel, DoubtCounts) {
  const auto expected = [](int n, double sd) {
    return predict({cell("fewshot", 2048, "snapkv", n, 0.0, sd)}, "snapkv", TaskKind::kFewShot, 2048).expected;
  };
  EXPECT_GT(expected(4, 1.0), 5 * expected(200, 0.01));
  EXPECT_LT(expected(200, 0.01), 0.001);
  EXPECT_NEAR(above_zero({0, 1}), 1 / std::sqrt(2 * 3.14159265358979), 1e-9);  // by hand
  EXPECT_EQ(above_zero({-1, 0}), 0);
  EXPECT_NEAR(above_zero({5, 0.1}), 5, 1e-12);
}

TEST(QualityModel, BeatingTheReferenceEarnsNoCredit) {
  const LossPrediction l =
      predict({cell("needle", 2048, "kivi:bits=4", 200, -0.05, 0.01)}, "kivi:bits=4", TaskKind::kSingleFact, 2048);
  EXPECT_EQ(l.expected, 0);
  EXPECT_LT(l.low, 0);
}

TEST(QualityModel, CellsOfUnknownCachesAreCountedAndLeftOut) {
  std::vector<EvidenceCell> cells = test::some_evidence();
  cells[0].spec = "nosuchmethod:bits=9";
  QualityModel model(cells, "ours", smol_model().shape);
  EXPECT_EQ(model.unread_cells(), 1);
  EXPECT_EQ(model.foreign_cells(), 0);
}

// Of whose model a cell is does not depend on whether anything can be learnt from it: what is not foreign counts as our own.
TEST(QualityModel, CellsOfAnotherModelAreForeignEvenWhereTheySayNothing) {
  std::vector<EvidenceCell> cells = {cell("needle", 1024, "kivi:bits=4", 1, 0.01, 0.01),
                                     cell("needle", 1024, "cam:target=4096", 20, 0.01, 0.01),
                                     cell("needle", 1024, "kivi:bits=4", 20, 0.01, 0.01)};
  for (EvidenceCell& c : cells) c.model_hash = "another";
  const QualityModel model(cells, "ours", smol_model().shape);
  EXPECT_EQ(model.foreign_cells(), 3);
}

// An explanation is the prediction, in words too.
TEST(QualityModel, AnExplanationHasTheNumbersOfThePrediction) {
  const std::vector<EvidenceCell> cells = test::some_evidence();
  QualityModel model(cells, "ours", smol_model().shape);
  Workload w;
  w.kind = TaskKind::kSummary;
  w.prompt_tokens = 3000;
  for (const char* spec : {"full", "q8_0", "kivi:bits=2", "snapkv", "snapkv:budget=0.5+kivi:bits=4", "streamingllm+q8_0"}) {
    const LossPrediction a = model.predict(facts_of(spec), w);
    const LossPrediction b = model.explain(facts_of(spec), w);
    EXPECT_TRUE(a.evidence.empty());
    EXPECT_FALSE(b.evidence.empty());
    EXPECT_EQ(std::tuple(a.low, a.expected, a.high, a.source, a.measured_samples),
              std::tuple(b.low, b.expected, b.high, b.source, b.measured_samples))
        << spec;
  }
}

TEST(QualityModel, CellsInAPapersOwnFormAreCountedAndLeftOut) {
  std::vector<EvidenceCell> cells = test::some_evidence();
  const LossPrediction fair = predict(cells, "kivi:bits=2", TaskKind::kSummary, 2048);
  for (EvidenceCell cell : test::some_evidence()) {
    cell.parameters = "question=seen,form=paper";
    cell.nats.mean = 5;
    cells.push_back(cell);
  }
  QualityModel model(cells, "ours", smol_model().shape);
  EXPECT_EQ(model.paper_cells(), static_cast<int>(cells.size()) / 2);
  EXPECT_EQ(model.unread_cells() + model.foreign_cells(), 0);
  const LossPrediction both = predict(cells, "kivi:bits=2", TaskKind::kSummary, 2048);
  EXPECT_EQ(both.expected, fair.expected);
  EXPECT_EQ(both.measured_samples, fair.measured_samples);
}

EvidenceCell divergence(const std::string& spec, double kl) {
  return fidelity_cell({.model_hash = "ours",
                        .model_name = "smollm2",
                        .text_hash = "t",
                        .spec = parse_spec(spec).value().canonical,
                        .prefix_tokens = 2000,
                        .tokens = 256,
                        .kl_mean = kl,
                        .kl_sd = 2 * kl,
                        .measured = "2025-01-01T00:00:00Z"});
}

// Two minutes of `kvartet fidelity` move the estimate towards what was seen, and never count as a measured loss.
TEST(QualityModel, FidelityIsAWeakSign) {
  const LossPrediction prior = predict({}, "kivi:bits=2", TaskKind::kChat, 2048);
  const LossPrediction seen = predict({divergence("kivi:bits=2", 0.3)}, "kivi:bits=2", TaskKind::kChat, 2048);
  EXPECT_GT(seen.expected, prior.expected + 0.05);
  EXPECT_LT(seen.expected, 0.35);
  EXPECT_EQ(seen.source, LossSource::kNeighbour);
  EXPECT_EQ(seen.measured_samples, 0);
  EXPECT_GT(seen.high, 1.8 * seen.expected);  // off by 0.7 of it in either direction
  // Of lost rows a text says less than of coarse ones, and a task that was measured says more than either.
  const auto relative_width = [](const LossPrediction& l) { return (l.high - l.low) / l.expected; };
  EXPECT_GT(relative_width(predict({divergence("snapkv", 0.3)}, "snapkv", TaskKind::kChat, 2048)), relative_width(seen));
  const LossPrediction measured = predict({divergence("kivi:bits=2", 0.3), cell("needle", 2048, "kivi:bits=2", 60, 0.1, 0.05)},
                                          "kivi:bits=2", TaskKind::kSingleFact, 2048);
  EXPECT_NEAR(measured.expected, 0.1, 0.02);
  EXPECT_EQ(measured.source, LossSource::kMeasured);
}

TEST(QualityModel, FidelityOfAnotherCacheOrModelSaysLess) {
  const double same = predict({divergence("kivi:bits=2", 0.3)}, "kivi:bits=2", TaskKind::kChat, 2048).expected;
  const double prior = predict({}, "kivi:bits=2", TaskKind::kChat, 2048).expected;
  EvidenceCell foreign = divergence("kivi:bits=2", 0.3);
  foreign.model_hash = "another";
  const double other = predict({foreign}, "kivi:bits=2", TaskKind::kChat, 2048).expected;
  EXPECT_GT(other, prior);
  EXPECT_LT(other, same);
  EXPECT_EQ(predict({divergence("kivi:bits=2", 0.3)}, "snapkv", TaskKind::kChat, 2048).expected,
            predict({}, "snapkv", TaskKind::kChat, 2048).expected);
}

// Never a point without an interval, whatever the store says.
TEST(QualityModel, EveryPredictionIsFiniteAndOrdered) {
  std::vector<SpecFacts> all;
  for (const CacheSpec& spec : candidate_specs())
    if (Result<SpecFacts> facts = spec_facts(spec, smol_model().shape); facts.ok()) all.push_back(std::move(*facts));
  const std::vector<std::string> texts = test::candidate_texts();
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<EvidenceCell> cells = test::random_evidence(seed, texts);
    QualityModel model(cells, "ours", smol_model().shape);
    Workload w;
    w.kind = kTaskKinds[seed % kTaskKinds.size()];
    w.prompt_tokens = 1000 + 300 * static_cast<int>(seed);
    for (const SpecFacts& facts : all) {
      const std::string& spec = facts.spec.canonical;
      const LossPrediction l = model.explain(facts, w);
      EXPECT_TRUE(std::isfinite(l.low) && std::isfinite(l.high)) << spec;
      EXPECT_LE(l.low, l.expected) << spec;
      EXPECT_LE(l.expected, l.high) << spec;
      EXPECT_TRUE(l.source == LossSource::kExact || l.low < l.high) << spec;
      double weights = 0;
      for (const EvidenceLine& line : l.evidence) weights += line.weight;
      EXPECT_NEAR(weights, 1, 1e-6) << spec;
    }
  }
}

}  // namespace
}  // namespace kvartet
