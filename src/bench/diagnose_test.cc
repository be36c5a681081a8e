// The diagnosis on a tiny model: cases whose answer is known (offloading.md 5.7 and 10).
#include "bench/diagnose.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "core/rng.h"
#include "model/tiny_model.h"

namespace kvartet {
namespace {

constexpr int kLayers = 3;
constexpr int kHeads = 6;

std::unique_ptr<Engine> open_tiny() {
  const std::string path = testing::TempDir() + "/diagnose-" + std::to_string(getpid()) + ".gguf";
  EXPECT_TRUE(write_tiny_model(path, {.layers = kLayers, .hidden = 128, .heads = kHeads, .kv_heads = 2, .head_dim = 32}).ok());
  auto engine = Engine::open({.model_path = path, .threads = 1}).value();
  std::filesystem::remove(path);
  return engine;
}

std::vector<Token> text_of(int tokens) {
  Rng rng(5);
  std::vector<Token> text(static_cast<std::size_t>(tokens));
  for (Token& token : text) token = static_cast<Token>(rng.below(256));
  return text;
}

std::vector<CacheSpec> specs_of(const std::vector<std::string>& texts) {
  std::vector<CacheSpec> specs;
  for (const std::string& text : texts) specs.push_back(parse_spec(text).value());
  return specs;
}

constexpr int kSteps = 8;

// A prefix of 212 tokens.
ComparedText compared_text(std::vector<std::int32_t> gold = {}) {
  return {.tokens = text_of(221), .compared = kSteps, .gold = std::move(gold)};
}

DiagnosisReport diagnosed(const std::vector<ComparedText>& texts, const std::vector<std::string>& specs,
                          const DiagnosisOptions& options = {}) {
  const auto engine = open_tiny();
  Result<DiagnosisReport> report = diagnose_selection(*engine, texts, specs_of(specs), options);
  EXPECT_TRUE(report.ok()) << report.status().message();
  return std::move(report).value();
}

TEST(Diagnose, SpreadByHand) {
  const Spread s = spread_of({3, 1, 2});
  EXPECT_DOUBLE_EQ(s.mean, 2);
  EXPECT_DOUBLE_EQ(s.p5, 1);
  EXPECT_DOUBLE_EQ(s.p95, 2);
  EXPECT_EQ(spread_of({}).mean, 0);
}

// Means 1 and 4: their mean is 2.5, the standard error 1.5, and t of one degree of freedom 12.706.
TEST(Diagnose, IntervalsAreOverTexts) {
  SampleGrid grid;
  grid.add(0, 0, 0);
  grid.add(1, 0, 2);
  grid.end_text();
  grid.end_text();  // a text without samples says nothing
  EXPECT_EQ(grid.all().by_text.texts, 1);
  EXPECT_EQ(grid.all().by_text.half_width, 0);
  grid.add(0, 0, 4);
  grid.end_text();
  const Spread s = grid.all();
  EXPECT_DOUBLE_EQ(s.mean, 2);
  EXPECT_EQ(s.by_text.texts, 2);
  EXPECT_DOUBLE_EQ(s.by_text.mean, 2.5);
  EXPECT_NEAR(s.by_text.half_width, 12.706 * 1.5, 0.01);
}

// Two texts give what each gives alone.
TEST(Diagnose, SeveralTexts) {
  const ComparedText first = compared_text({100, 101});
  ComparedText second = first;
  std::rotate(second.tokens.begin(), second.tokens.begin() + 50, second.tokens.end());
  second.compared = 3;  // and a longer prefix
  const DiagnosisReport a = diagnosed({first}, {"yakv"});
  const DiagnosisReport b = diagnosed({second}, {"yakv"});
  const DiagnosisReport both = diagnosed({first, second}, {"yakv"});
  EXPECT_EQ(both.texts, 2);
  EXPECT_EQ(both.steps, kSteps + 3);
  EXPECT_EQ(both.prefix_tokens, 217);
  EXPECT_EQ(both.gold_tokens, 4);
  const auto figure = [](const DiagnosisReport& r) { return r.rows[0].mass.all; };
  EXPECT_NEAR(figure(both).by_text.mean, 0.5 * (figure(a).mean + figure(b).mean), 1e-6);
  EXPECT_NEAR(figure(both).mean, (kSteps * figure(a).mean + 3 * figure(b).mean) / (kSteps + 3), 1e-6);
  EXPECT_GT(figure(both).by_text.half_width, 0);
  // A text begins without a step before it.
  EXPECT_NEAR(both.rows[0].reuse.mean, (7 * a.rows[0].reuse.mean + 2 * b.rows[0].reuse.mean) / 9, 1e-6);
  EXPECT_EQ(diagnosis_json(both)["rows"][0]["mass"]["by_text"]["texts"], 2);
  EXPECT_NE(diagnosis_table(both).find("mean of 2 texts"), std::string::npos);
  EXPECT_EQ(diagnosis_table(a).find("interval"), std::string::npos);
}

TEST(Diagnose, ExactIndexAndExactRowsLoseNothingButTheMass) {
  const DiagnosisReport report = diagnosed(
      {compared_text()},
      {"full", "select:index=f32", "select:index=higgs1", "select:index=f32,keys=higgs2,values=higgs2", "oracle:share=head"});
  ASSERT_EQ(report.rows.size(), 4U);  // full selects nothing
  const DiagnosisRow& exact = report.rows[0];
  EXPECT_GT(exact.recall.all.mean, 0.97);  // the index has f32 keys, the judge the f16 ones: near ties may differ
  EXPECT_NEAR(exact.mass_ratio.all.mean, 1, 1e-3);
  EXPECT_LT(exact.key_error.p95, 1e-3);
  EXPECT_NEAR(exact.output_error.all.mean, exact.exact_oracle.mean, 0.02);
  EXPECT_NEAR(exact.output_error.all.mean, exact.exact_selected.mean, 1e-4);  // two ways to the same number
  EXPECT_NEAR(exact.kept_mass + exact.selected_mass + exact.generated_mass, exact.mass.all.mean, 1e-6);
  EXPECT_EQ(exact.kept_rows, 64);
  EXPECT_EQ(exact.selected_rows, 6);  // 212 / 32
  EXPECT_EQ(exact.layers, (std::vector<int>{0, 1, 2}));
  EXPECT_GT(exact.bytes_per_step, 0);
  const DiagnosisRow& coarse = report.rows[1];
  EXPECT_LT(coarse.recall.all.mean, exact.recall.all.mean);
  EXPECT_LE(coarse.mass.all.mean, coarse.oracle_mass.mean + 1e-9);
  EXPECT_NEAR(coarse.stored_oracle.mean, exact.exact_oracle.mean, 1e-3);
  const DiagnosisRow& rough = report.rows[2];
  EXPECT_NEAR(rough.key_error.mean, std::sqrt(0.0955), 0.03);
  EXPECT_NEAR(rough.value_error.mean, std::sqrt(0.0955), 0.03);
  EXPECT_GT(rough.stored_oracle.mean, rough.exact_oracle.mean);
  // T-ORACLE2, and what sharing costs: nothing where every query head chooses for itself.
  const DiagnosisRow& own = report.rows[3];
  EXPECT_GT(own.recall.all.mean, 0.97);
  EXPECT_GT(own.own_recall.mean, 0.97);
  EXPECT_EQ(own.aggregation_loss.mean, 0);
  EXPECT_GT(exact.aggregation_loss.mean, 0);
  EXPECT_NEAR(exact.own_mass.mean - exact.oracle_mass.mean, exact.aggregation_loss.mean, 1e-6);
  EXPECT_EQ(diagnosis_json(report)["rows"].size(), 4U);
  EXPECT_NE(diagnosis_table(report).find("select:"), std::string::npos);
}

// Section 10, item 5, behind the output matrix: an exact cache loses what the budget loses, a coarse index or coarse rows more,
// and a cache that reads every candidate nothing.
TEST(Diagnose, ErrorsBehindTheOutputMatrix) {
  const DiagnosisReport report =
      diagnosed({compared_text()}, {"select:index=f32", "select:index=higgs1,dense=1",
                                    "select:index=f32,keys=higgs2,values=higgs2", "select:index=f32,budget=147,local=64"});
  ASSERT_EQ(report.rows.size(), 4U);
  for (const DiagnosisRow& row : report.rows) {
    ASSERT_EQ(row.projected_error.by_layer.size(), static_cast<std::size_t>(kLayers));
    double sum = 0;
    for (const int layer : row.layers) sum += row.projected_error.by_layer[static_cast<std::size_t>(layer)].mean;
    EXPECT_NEAR(row.projected_error.all.mean, sum / static_cast<double>(row.layers.size()), 1e-6) << row.spec;
    EXPECT_LE(row.projected_error.all.p5, row.projected_error.all.p95) << row.spec;
    EXPECT_EQ(row.projected_error.all.by_text.texts, 1) << row.spec;
  }
  const DiagnosisRow& exact = report.rows[0];
  EXPECT_GT(exact.projected_error.all.mean, 0);
  EXPECT_NEAR(exact.projected_error.all.mean, exact.projected_exact_oracle.all.mean, 0.02);
  EXPECT_NEAR(exact.projected_error.all.mean, exact.projected_exact_selected.all.mean, 1e-4);
  const DiagnosisRow& coarse = report.rows[1];
  EXPECT_EQ(coarse.projected_error.by_layer[0].mean, 0);  // keeps everything
  EXPECT_GT(coarse.projected_exact_selected.by_layer[2].mean, coarse.projected_exact_oracle.by_layer[2].mean);
  const DiagnosisRow& rough = report.rows[2];
  EXPECT_GT(rough.projected_stored_oracle.all.mean, 1.1 * rough.projected_exact_oracle.all.mean);
  const DiagnosisRow& nearly_all = report.rows[3];  // all candidates but one
  EXPECT_LT(nearly_all.projected_error.all.mean, 0.3 * exact.projected_error.all.mean);
  const nlohmann::json json = diagnosis_json(report);
  EXPECT_EQ(json["rows"][1]["projected_error"]["stored_selected"]["by_layer"].size(), 2U);
  EXPECT_NEAR(json["rows"][0]["projected_error"]["exact_oracle"]["mean"].get<double>(), exact.projected_exact_oracle.all.mean,
              1e-12);
  EXPECT_NE(diagnosis_table(report).find("behind its output matrix"), std::string::npos);
}

// The map's mean is the mean; layers that keep everything have no place in it.
TEST(Diagnose, MapsAreByLayerAndQueryHead) {
  const DiagnosisReport report =
      diagnosed({compared_text()}, {"yakv:dense=1", "infinigen:budget=12", "lrqk:budget=12", "quest:budget=48"});
  ASSERT_EQ(report.rows.size(), 4U);
  EXPECT_EQ(report.layers, kLayers);
  EXPECT_EQ(report.heads, kHeads);
  for (const DiagnosisRow& row : report.rows) {
    const int dense = row.spec.starts_with("yakv") ? 1 : row.spec.starts_with("lrqk") ? 0 : 2;
    for (const GridFigure* figure : {&row.recall, &row.mass, &row.mass_ratio, &row.output_error}) {
      ASSERT_EQ(figure->map.size(), static_cast<std::size_t>(kLayers * kHeads));
      double sum = 0;
      int cells = 0;
      for (std::size_t i = 0; i < figure->map.size(); ++i) {
        EXPECT_EQ(std::isnan(figure->map[i]), static_cast<int>(i) / kHeads < dense) << row.spec << " " << i;
        if (std::isnan(figure->map[i])) continue;
        sum += figure->map[i];
        ++cells;
      }
      EXPECT_NEAR(sum / cells, figure->all.mean, 1e-6) << row.spec;
      EXPECT_EQ(figure->by_layer.size(), static_cast<std::size_t>(kLayers));
      EXPECT_EQ(figure->by_head.size(), static_cast<std::size_t>(kHeads));
    }
    EXPECT_EQ(std::ssize(row.layers), kLayers - dense);
    EXPECT_LE(row.mass.all.mean, row.own_mass.mean + 1e-9) << row.spec;
    EXPECT_TRUE(row.gold_recall.map.empty());
  }
  // Quest: rows of whole pages, nothing kept, everything competes.
  const DiagnosisRow& quest = report.rows[3];
  EXPECT_EQ(quest.kept_rows, 0);
  EXPECT_LE(quest.selected_rows, 48);
  EXPECT_GT(quest.selected_rows, 32);
  EXPECT_EQ(quest.key_error.mean, 0);
  EXPECT_EQ(quest.bytes_per_step, 0);
  EXPECT_EQ(quest.generated_mass, 0);
  const nlohmann::json json = diagnosis_json(report);
  EXPECT_TRUE(json["rows"][0]["mass_ratio"]["map"][0][0].is_null());
  EXPECT_EQ(json["rows"][0]["mass_ratio"]["by_layer"].size(), 2U);
  EXPECT_EQ(json["rows"][1]["recall"]["map"].size(), static_cast<std::size_t>(kLayers));
}

// Gold positions in the local window are always attended; in the middle only those that are selected.
TEST(Diagnose, GoldRecall) {
  const DiagnosisReport kept = diagnosed({compared_text({150, 170, 211})}, {"yakv:local=64"});
  EXPECT_EQ(kept.gold_tokens, 3);
  EXPECT_DOUBLE_EQ(kept.rows[0].gold_recall.all.mean, 1);
  EXPECT_DOUBLE_EQ(kept.rows[0].gold_by_one.mean, 1);
  EXPECT_DOUBLE_EQ(kept.rows[0].gold_by_half.mean, 1);
  std::vector<std::int32_t> everywhere;
  for (int t = 0; t < 148; ++t) everywhere.push_back(t);
  const DiagnosisReport some = diagnosed({compared_text(everywhere)}, {"yakv:local=64"});
  // Six of the 148 candidates per head, all of them gold.
  EXPECT_NEAR(some.rows[0].gold_recall.all.mean, 6.0 / 148, 1e-6);
  EXPECT_GE(some.rows[0].gold_by_one.mean, 6.0 / 148);
  EXPECT_LE(some.rows[0].gold_by_half.mean, 12.0 / 148);
  EXPECT_NE(diagnosis_table(some).find("gold"), std::string::npos);
  EXPECT_TRUE(diagnosis_json(some)["rows"][0].contains("gold_by_one_head"));
}

TEST(Diagnose, BudgetSweep) {
  const std::vector<SweptSpec> swept = budget_sweep(parse_spec("shadowkv:rank=16,budget=64").value());
  ASSERT_EQ(swept.size(), 9U);
  EXPECT_EQ(swept.front().spec.offload->budget, (Amount{1.0 / 1024, true}));
  EXPECT_EQ(swept.back().spec.offload->budget, (Amount{0.25, true}));
  EXPECT_EQ(swept.back().spec.offload->rank, 16);
  EXPECT_TRUE(budget_sweep(parse_spec("kivi").value()).empty());
  EXPECT_EQ(budget_sweep(parse_spec("quest").value()).size(), 9U);

  const DiagnosisReport report = diagnosed({compared_text()}, {"oracle:local=16"}, {.sweep = true});
  ASSERT_EQ(report.rows.size(), 10U);
  EXPECT_TRUE(report.rows[0].sweep_of.empty());
  double last = 0;
  for (std::size_t i = 1; i < report.rows.size(); ++i) {
    EXPECT_EQ(report.rows[i].sweep_of, report.rows[0].spec);
    EXPECT_GE(report.rows[i].mass.all.mean, last - 1e-6);
    last = report.rows[i].mass.all.mean;
  }
  EXPECT_GT(last, report.rows[1].mass.all.mean);
  const nlohmann::json json = diagnosis_json(report);
  EXPECT_EQ(json["rows"][9]["budget_share"], 0.25);
  EXPECT_NE(diagnosis_table(report).find("  at 1/1024"), std::string::npos);
}

}  // namespace
}  // namespace kvartet
