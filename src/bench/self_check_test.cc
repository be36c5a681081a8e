// The self-check on models whose trouble is known: keys with large biases, synthetic ones of norm 500 (compression.md 12.4).
#include "bench/self_check.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include <filesystem>

#include "bench/fidelity.h"
#include "core/rng.h"
#include "model/tiny_model.h"

namespace kvartet {
namespace {

// As Qwen2 has it: a base of a million, and the bias on channels that hardly turn.
TinyModelOptions qwen2(double key_bias_norm) {
  TinyModelOptions model = {.hidden = 128, .heads = 4, .kv_heads = 2, .head_dim = 64, .context = 512};
  model.architecture = "qwen2";
  model.rope_base = 1e6;
  model.key_bias_norm = key_bias_norm;
  return model;
}

struct OpenModel {
  std::unique_ptr<Engine> engine;
  ModelSuspects suspects;
};

OpenModel open(const TinyModelOptions& model) {
  const std::string path = testing::TempDir() + "/self-check-" + std::to_string(getpid()) + ".gguf";
  EXPECT_TRUE(write_tiny_model(path, model).ok());
  OpenModel open = {Engine::open({.model_path = path, .threads = 1}).value(), model_suspects(path).value()};
  std::filesystem::remove(path);
  return open;
}

std::vector<CacheSpec> specs_of(const std::vector<const char*>& texts) {
  std::vector<CacheSpec> specs;
  for (const char* text : texts) specs.push_back(parse_spec(text).value());
  return specs;
}

TEST(BiasedKeys, PerChannelGroupsAreUnharmedRowsAreLostAndTheMeanRepairsThem) {
  const std::vector<const char*> texts = {"kivi:bits=4,residual=32", "q4_0", "q4_0:center=mean", "turboquant:bits=4",
                                          "turboquant:bits=4,center=mean"};
  const auto specs = specs_of(texts);
  const OpenModel plain = open(qwen2(0));
  const OpenModel biased = open(qwen2(500));
  EXPECT_LT(plain.suspects.key_bias_norm, 20);
  EXPECT_NEAR(biased.suspects.key_bias_norm, 500, 5);
  const auto before = self_check(*plain.engine, specs, plain.suspects).value();
  const auto after = self_check(*biased.engine, specs, biased.suspects).value();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    RecordProperty(texts[i], std::to_string(before[i].top1_agreement) + " -> " + std::to_string(after[i].top1_agreement));
    EXPECT_TRUE(after[i].acted) << texts[i];
    EXPECT_EQ(verdict_of(before[i]), SelfCheckVerdict::kGood) << texts[i] << " " << before[i].top1_agreement;
  }
  for (const std::size_t unharmed : {0U, 2U, 4U}) {
    EXPECT_EQ(verdict_of(after[unharmed]), SelfCheckVerdict::kGood) << texts[unharmed] << " " << after[unharmed].top1_agreement;
    EXPECT_EQ(self_check_sentence(after[unharmed]), "");
  }
  for (const std::size_t harmed : {1U, 3U}) {
    EXPECT_EQ(verdict_of(after[harmed]), SelfCheckVerdict::kPoor) << texts[harmed] << " " << after[harmed].top1_agreement;
    EXPECT_GT(after[harmed].kl_mean, 20 * after[harmed + 1].kl_mean) << texts[harmed];
    const std::string sentence = self_check_sentence(after[harmed]);
    EXPECT_NE(sentence.find("biases (norm 500"), std::string::npos) << sentence;
    EXPECT_EQ(after[harmed].safe_spec, specs[harmed + 1].canonical) << sentence;
  }
}

TEST(SelfCheckTest, ACacheThatSawTooFewTokensSaysSo) {
  const OpenModel model = open(qwen2(0));
  const auto checks =
      self_check(*model.engine, specs_of({"streamingllm", "cam:target=1024", "streamingllm:window=64"}), model.suspects).value();
  EXPECT_EQ(verdict_of(checks[0]), SelfCheckVerdict::kIdle);
  EXPECT_EQ(verdict_of(checks[1]), SelfCheckVerdict::kIdle);
  EXPECT_NE(verdict_of(checks[2]), SelfCheckVerdict::kIdle);
  EXPECT_NE(self_check_sentence(checks[0]).find("not checked: on the 425 tokens"), std::string::npos)
      << self_check_sentence(checks[0]);
}

// One prefill for all: the figures do not depend on who else is checked.
TEST(SelfCheckTest, TogetherAsAlone) {
  const OpenModel model = open(qwen2(0));
  const auto specs = specs_of({"q4_0", "snapkv", "kivi:bits=2", "h2o"});
  const auto together = self_check(*model.engine, specs, model.suspects).value();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto alone = self_check(*model.engine, {&specs[i], 1}, model.suspects).value();
    // Up to one near tie: sums of another batch size are rounded otherwise.
    EXPECT_NEAR(alone[0].top1_agreement, together[i].top1_agreement, 1.01 / 40) << specs[i].canonical;
    EXPECT_EQ(alone[0].acted, together[i].acted);
  }
}

TEST(SelfCheckTest, AShortContextIsUsedAndATooShortOneRefused) {
  TinyModelOptions model = qwen2(0);
  model.context = 100;
  const OpenModel small = open(model);
  const auto checks = self_check(*small.engine, specs_of({"q8_0"}), small.suspects).value();
  EXPECT_EQ(checks[0].seen, 100);
  EXPECT_EQ(checks[0].tokens, 25);
  model.context = 40;
  const OpenModel tiny = open(model);
  EXPECT_EQ(self_check(*tiny.engine, specs_of({"q8_0"}), tiny.suspects).status().code(), Code::kBadInput);
}

ModelShape shape_of(int head_dim) {
  ModelShape shape;
  shape.context = 4096;
  shape.layers.assign(4, {.heads = 4, .kv_heads = 2, .head_dim = head_dim, .window = 0});
  return shape;
}

std::string cause_of(const char* spec, int head_dim, const ModelSuspects& suspects) {
  return usual_cause(parse_spec(spec).value(), shape_of(head_dim), suspects);
}

TEST(UsualCause, IsNamedOnlyWhereItApplies) {
  const ModelSuspects large = {.parameters = 7'000'000'000};
  ModelSuspects biased = large;
  biased.key_bias_norm = 605;
  const ModelSuspects tiny = {.parameters = 135'000'000};
  EXPECT_NE(cause_of("q4_0", 128, biased).find("norm 605"), std::string::npos);
  EXPECT_NE(cause_of("turboquant:bits=3", 128, biased).find("norm 605"), std::string::npos);
  EXPECT_EQ(cause_of("kivi:bits=4", 128, biased), "");       // every channel has its own scale
  EXPECT_EQ(cause_of("q4_0:center=mean", 128, biased), "");  // taken off already
  EXPECT_EQ(cause_of("full/q4_0", 128, biased), "");         // values have no bias that matters
  EXPECT_EQ(cause_of("q4_0", 128, large), "");
  EXPECT_NE(cause_of("turboquant:bits=4", 32, large).find("32 channels"), std::string::npos);
  EXPECT_NE(cause_of("kivi:bits=2", 64, tiny).find("135 million"), std::string::npos);
  EXPECT_EQ(cause_of("kivi:bits=4", 64, tiny), "");
  EXPECT_EQ(cause_of("snapkv", 64, tiny), "");
}

std::vector<std::string> safer_than(const char* spec, const ModelSuspects& suspects = {}) {
  std::vector<std::string> texts;
  for (const CacheSpec& s : safer_specs(parse_spec(spec).value(), shape_of(64), suspects)) texts.push_back(s.canonical);
  return texts;
}

TEST(SaferSpecs, AreNearAndFitTheModel) {
  ModelSuspects biased;
  biased.key_bias_norm = 500;
  EXPECT_EQ(safer_than("q4_0", biased)[0], "q4_0:center=mean");
  EXPECT_EQ(safer_than("kivi:bits=2,residual=32")[0], "kivi:bits=4,group=32,residual=128");
  EXPECT_EQ(safer_than("kivi:bits=4")[0], "kivi:bits=8,group=32,residual=128");
  EXPECT_EQ(safer_than("snapkv:budget=0.25"), (std::vector<std::string>{"snapkv:budget=0.5,window=32,kernel=7,pool=max",
                                                                        "snapkv:budget=0.9,window=32,kernel=7,pool=max"}));
  EXPECT_EQ(safer_than("streamingllm:window=64")[0], "streamingllm:sinks=4,window=128,rope=absolute");
  EXPECT_EQ(safer_than("snapkv:budget=0.25+kivi:bits=2")[0],
            "snapkv:budget=0.25,window=32,kernel=7,pool=max+kivi:bits=4,group=32,residual=128");
  EXPECT_EQ(safer_than("h2o:budget=0.25+q4_0")[0], "h2o:budget=0.25,recent=0.5+q8_0");  // kivi's groups cannot lose single rows
  for (const std::string& text : safer_than("quest:budget=64")) EXPECT_NE(text.find("quest:budget="), std::string::npos);
}

// Long enough to act on: any tokenizer makes at least the probe's tokens of it.
TEST(SelfCheckText, IsLongEnoughForTheProbe) { EXPECT_GT(self_check_text().size(), 2000U); }

}  // namespace
}  // namespace kvartet
