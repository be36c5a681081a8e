// Fidelity through an engine: windows of one text, first divergence in free running, errors per layer.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "bench/fidelity.h"
#include "core/rng.h"
#include "model/tiny_model.h"

namespace kvartet {
namespace {

std::unique_ptr<Engine> open(TinyModelOptions model) {
  const std::string path = testing::TempDir() + "/fidelity-" + std::to_string(getpid()) + "-" + model.architecture + ".gguf";
  EXPECT_TRUE(write_tiny_model(path, model).ok());
  auto engine = Engine::open({.model_path = path, .threads = 1}).value();
  std::filesystem::remove(path);
  return engine;
}

std::unique_ptr<Engine> open() { return open({.hidden = 128, .heads = 6, .kv_heads = 2, .head_dim = 32, .context = 512}); }

std::vector<Token> random_text(std::size_t tokens) {
  Rng rng(5);
  std::vector<Token> text(tokens);
  for (Token& token : text) token = static_cast<Token>(rng.below(256));
  return text;
}

std::vector<CacheSpec> specs_of(const std::vector<const char*>& texts) {
  std::vector<CacheSpec> specs;
  for (const char* text : texts) specs.push_back(parse_spec(text).value());
  return specs;
}

std::vector<Sequence> prefilled(Engine& engine, std::span<const Token> text, const std::vector<const char*>& specs) {
  return engine.prefill(text, specs_of(specs)).value();
}

TEST(FidelityWindows, AreTextsOfTheirOwn) {
  const auto engine = open();
  const std::vector<Token> text = random_text(402);
  const auto specs = specs_of({"q4_0", "streamingllm:window=40"});
  const FidelityRequest one = {.context = 150, .tokens = 30};
  const FidelityRequest two = {.context = 150, .tokens = 30, .windows = 2};
  const FidelityReport both = measure_fidelity(*engine, text, two, specs).value();
  EXPECT_EQ(both.tokens, 60);
  EXPECT_EQ(both.windows, 2);
  const FidelityReport first = measure_fidelity(*engine, text, one, specs).value();
  const FidelityReport second = measure_fidelity(*engine, std::span(text).subspan(201), one, specs).value();
  ASSERT_EQ(both.rows.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(both.rows[i].tokens, 60);
    EXPECT_NEAR(both.rows[i].kl_mean, (first.rows[i].kl_mean + second.rows[i].kl_mean) / 2, 1e-12);
    EXPECT_DOUBLE_EQ(both.rows[i].kl_max, std::max(first.rows[i].kl_max, second.rows[i].kl_max));
    EXPECT_LE(both.rows[i].kl_p95, both.rows[i].kl_p99);
    EXPECT_LE(both.rows[i].kl_p99, both.rows[i].kl_max);
  }
  const FidelityRequest three = {.context = 150, .tokens = 30, .windows = 3};
  const Status refused = measure_fidelity(*engine, text, three, specs).status();
  EXPECT_EQ(refused.code(), Code::kBadInput);
  EXPECT_NE(refused.message().find("--windows"), std::string::npos) << refused.message();
}

TEST(FirstDivergence, OfTheSameCacheNeverComes) {
  const auto engine = open();
  std::vector<Sequence> sequences = prefilled(*engine, random_text(120), {"full", "full", "f32", "kivi:bits=2,residual=32"});
  const std::vector<int> same = tokens_until_divergence(*engine, sequences, 25).value();
  EXPECT_EQ(same[1], 25);
  EXPECT_GE(same[2], same[3]);
  EXPECT_LT(same[3], 25);
}

// The definition: greedy texts of two generations, compared from the front.
TEST(FirstDivergence, IsWhereTwoGreedyTextsPart) {
  const auto engine = open();
  for (std::size_t length : {60U, 90U, 120U}) {
    const std::vector<const char*> specs = {"full", "q4_0", "streamingllm:window=30"};
    std::vector<Sequence> sequences = prefilled(*engine, random_text(length), specs);
    std::vector<Sequence> apart = prefilled(*engine, random_text(length), specs);
    const std::vector<int> same = tokens_until_divergence(*engine, sequences, 20).value();
    Sequence* const all[] = {&apart[0], &apart[1], &apart[2]};
    std::vector<std::vector<Token>> texts;
    const std::vector<Completion> done = engine->generate(all, {.max_tokens = 20, .ignore_end = true}).value();
    for (const Completion& completion : done) texts.push_back(completion.tokens);
    for (std::size_t i = 1; i < texts.size(); ++i) {
      const auto parted = std::mismatch(texts[0].begin(), texts[0].end(), texts[i].begin()).first - texts[0].begin();
      EXPECT_EQ(same[i], parted) << specs[i];
    }
  }
}

TEST(FirstDivergence, CountsAreMeansAndLowerBounds) {
  Divergence d;
  EXPECT_EQ(d.mean(), 0);
  d.add(3, 10);
  d.add(10, 10);
  EXPECT_EQ(d.runs, 2);
  EXPECT_EQ(d.diverged, 1);
  EXPECT_DOUBLE_EQ(d.mean(), 6.5);
}

std::vector<LayerErrors> layer_errors(Engine& engine, const std::vector<const char*>& specs) {
  const std::vector<Token> text = random_text(205);
  std::vector<const char*> all = {"full"};
  all.insert(all.end(), specs.begin(), specs.end());
  std::vector<Sequence> sequences = prefilled(engine, std::span(text).first(200), all);
  std::vector<LayerErrors> errors(specs.size());
  const Status status = add_layer_errors(engine, sequences, std::span(text).subspan(200), errors);
  EXPECT_TRUE(status.ok()) << status.message();
  for (const Sequence& sequence : sequences) {
    EXPECT_EQ(sequence.cache.next_position(), 205);
    EXPECT_TRUE(sequence.cache.check_integrity().ok());
  }
  return errors;
}

TEST(LayerErrorsTest, OfTheSameCacheAreZero) {
  TinyModelOptions windowed = {.hidden = 128, .heads = 6, .kv_heads = 2, .head_dim = 32, .context = 512};
  windowed.architecture = "gemma3";
  windowed.window = 48;
  windowed.window_period = 2;
  for (const auto& engine : {open(), open(windowed)}) {
    const std::vector<LayerErrors> errors = layer_errors(*engine, {"full", "q8_0"});
    for (std::size_t l = 0; l < errors[0].size(); ++l) {
      EXPECT_EQ(errors[0][l].keys.value(), 0);
      EXPECT_EQ(errors[0][l].values.value(), 0);
      EXPECT_EQ(errors[0][l].outputs.value(), 0);
      EXPECT_GT(errors[0][l].keys.squared_norm, 0);
      EXPECT_GT(errors[1][l].keys.value(), 0);
      EXPECT_LT(errors[1][l].keys.value(), 0.01);  // 8 bits: steps of 1 / 127 of the largest of 32
      EXPECT_LT(errors[1][l].outputs.value(), 0.05);
    }
  }
}

TEST(LayerErrorsTest, TellFormatsAndDroppedRowsApart) {
  const auto engine = open();
  const std::vector<LayerErrors> errors = layer_errors(
      *engine, {"q4_0", "q4_0:center=mean", "full/q4_0", "streamingllm:window=60", "h2o:budget=60", "select:index=f32"});
  for (std::size_t l = 0; l < 2; ++l) {
    EXPECT_NEAR(errors[0][l].keys.value(), 0.08, 0.03);  // 4 bits: steps of 1 / 8 of the largest of 32, of normal numbers
    EXPECT_NEAR(errors[1][l].keys.value(), 0.08, 0.03);  // the mean that the keys are written without is back
    EXPECT_EQ(errors[2][l].keys.value(), 0);
    EXPECT_NEAR(errors[2][l].values.value(), errors[0][l].values.value(), 1e-9);
    for (const std::size_t evicting : {3U, 4U}) {
      EXPECT_EQ(errors[evicting][l].keys.value(), 0);  // what stays is exact; what is gone shows in the output
      EXPECT_EQ(errors[evicting][l].values.value(), 0);
      EXPECT_GT(errors[evicting][l].outputs.value(), 0.01);
      EXPECT_TRUE(errors[evicting][l].has_rows);
    }
    EXPECT_LT(errors[2][l].outputs.value(), errors[0][l].outputs.value());
  }
  EXPECT_FALSE(errors[5].back().has_rows);
  EXPECT_GT(mean_output_error(errors[5]), 0);
}

TEST(FidelityReportTest, JsonCarriesTailDivergenceAndLayers) {
  const auto engine = open();
  const FidelityRequest request = {
      .context = 250, .tokens = 30, .windows = 2, .free_starts = 3, .free_tokens = 12, .layer_steps = 2};
  const FidelityReport report =
      measure_fidelity(*engine, random_text(510), request, specs_of({"q4_0", "select:index=f32"})).value();
  const nlohmann::json json = fidelity_json(report);
  EXPECT_EQ(json["reference"]["windows"], 2);
  EXPECT_EQ(json["reference"]["free_tokens"], 12);
  const nlohmann::json& row = json["rows"][0];
  for (const char* key : {"kl_mean", "kl_p95", "kl_p99", "kl_max"}) EXPECT_TRUE(row.contains(key)) << key;
  EXPECT_EQ(row["first_divergence"]["runs"], 6);
  EXPECT_LE(row["first_divergence"]["mean_tokens"], 12);
  for (const char* key : {"key_error", "value_error", "output_error"}) EXPECT_EQ(row["layers"][key].size(), 2U) << key;
  EXPECT_TRUE(json["rows"][1]["layers"]["key_error"].back().is_null());
  const std::string table = fidelity_table(report);
  EXPECT_NE(table.find("2 windows"), std::string::npos) << table;
  EXPECT_NE(table.find("output"), std::string::npos) << table;

  // Looking on changes nothing: the comparison itself is the same without it.
  const FidelityRequest plain = {.context = 250, .tokens = 30, .windows = 2};
  const FidelityReport without =
      measure_fidelity(*engine, random_text(510), plain, specs_of({"q4_0", "select:index=f32"})).value();
  EXPECT_EQ(without.rows[0].kl_mean, report.rows[0].kl_mean);
  EXPECT_FALSE(fidelity_json(without)["rows"][0].contains("layers"));
  EXPECT_FALSE(fidelity_json(without)["rows"][0].contains("first_divergence"));
}

}  // namespace
}  // namespace kvartet
