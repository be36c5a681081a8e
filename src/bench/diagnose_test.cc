// The diagnosis on a tiny model: cases whose answer is known (offloading.md 5.7 and 10).
#include "bench/diagnose.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/rng.h"
#include "model/tiny_model.h"

namespace kvartet {
namespace {

TEST(Diagnose, SpreadByHand) {
  const Spread s = spread_of({3, 1, 2});
  EXPECT_DOUBLE_EQ(s.mean, 2);
  EXPECT_DOUBLE_EQ(s.p5, 1);
  EXPECT_DOUBLE_EQ(s.p95, 2);
  EXPECT_EQ(spread_of({}).mean, 0);
}

TEST(Diagnose, ExactIndexAndExactRowsLoseNothingButTheMass) {
  const std::string path = testing::TempDir() + "/diagnose-" + std::to_string(getpid()) + ".gguf";
  ASSERT_TRUE(write_tiny_model(path, {.hidden = 128, .heads = 6, .kv_heads = 2, .head_dim = 32}).ok());
  const auto engine = Engine::open({.model_path = path, .threads = 1}).value();
  std::filesystem::remove(path);
  Rng rng(5);
  std::vector<Token> text(220);
  for (Token& token : text) token = static_cast<Token>(rng.below(256));
  std::vector<CacheSpec> specs;
  for (const char* spec :
       {"full", "select:index=f32", "select:index=higgs1", "select:index=f32,keys=higgs2,values=higgs2", "oracle:share=head"}) {
    specs.push_back(parse_spec(spec).value());
  }
  const auto report = diagnose_selection(*engine, text, {.context = 220, .tokens = 8}, specs);
  ASSERT_TRUE(report.ok()) << report.status().message();
  ASSERT_EQ(report->rows.size(), 4U);  // full selects nothing
  const DiagnosisRow& exact = report->rows[0];
  EXPECT_GT(exact.recall.mean, 0.97);  // the index has f32 keys, the judge the f16 ones: near ties may differ
  EXPECT_NEAR(exact.mass_ratio.mean, 1, 1e-3);
  EXPECT_LT(exact.key_error.p95, 1e-3);
  EXPECT_NEAR(exact.stored_selected.mean, exact.exact_oracle.mean, 0.02);
  EXPECT_NEAR(exact.stored_selected.mean, exact.exact_selected.mean, 1e-4);  // two ways to the same number
  const DiagnosisRow& coarse = report->rows[1];
  EXPECT_LT(coarse.recall.mean, exact.recall.mean);
  EXPECT_LE(coarse.mass.mean, coarse.oracle_mass.mean + 1e-9);
  EXPECT_NEAR(coarse.stored_oracle.mean, exact.exact_oracle.mean, 1e-3);
  const DiagnosisRow& rough = report->rows[2];
  EXPECT_NEAR(rough.key_error.mean, std::sqrt(0.0955), 0.03);
  EXPECT_GT(rough.stored_oracle.mean, rough.exact_oracle.mean);
  EXPECT_GT(report->rows[3].recall.mean, 0.97);
  EXPECT_EQ(diagnosis_json(*report)["rows"].size(), 4U);
  EXPECT_NE(diagnosis_table(*report).find("select:"), std::string::npos);
}

}  // namespace
}  // namespace kvartet
