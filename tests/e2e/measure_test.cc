// kvartet fidelity, speed, methods, tasks and model.
#include <gtest/gtest.h>

#include <set>

#include "tiny_models.h"

namespace kvartet::e2e {
namespace {

class Measure : public testing::Test {
 protected:
  Finished fidelity(const Arguments& more) const {
    return run(Arguments{"fidelity", "-m", model_, "--threads", "1", "-f", text_} + more);
  }
  Finished speed(const Arguments& more) const {
    return run(Arguments{"speed", "-m", model_, "--threads", "1", "--gen", "4", "--rounds", "2", "--prefill-rounds", "1"} + more);
  }
  ScratchFolder folder_;
  std::string model_ = tiny_model(folder_, wide_heads());
  std::string text_ = folder_.file("text.txt", std::string(300, 'a') + std::string(300, 'b') + std::string(300, 'c'));
};

// compression.md T14, on a tiny model: q8_0 < KIVI-4 < KIVI-2 in mean KL, and none of the coarser ones agrees more often.
TEST_F(Measure, FidelityOrdersTheCaches) {
  const Finished f = fidelity({"--kv", "full", "--kv", "q8_0", "--kv", "kivi:bits=2,residual=32", "--kv",
                               "kivi:bits=4,residual=32", "--kv", "f32", "--context", "600", "--tokens", "100", "--json"});
  ASSERT_TRUE(is_ok(f));
  const Json d = f.json();
  EXPECT_EQ(d["reference"]["spec"], "full");
  EXPECT_EQ(d["reference"]["tokens"], 100);
  ASSERT_EQ(d["rows"].size(), 4U) << "the reference is never a row";
  for (const Json& row : d["rows"]) {
    for (const char* key : {"spec", "tokens", "kl_mean", "kl_p99", "top1_agreement", "perplexity"})
      EXPECT_TRUE(row.contains(key)) << key;
    EXPECT_GE(row["kl_mean"], 0);
  }
  const Json& q8 = d["rows"][0];
  const Json& kivi2 = d["rows"][1];
  const Json& kivi4 = d["rows"][2];
  EXPECT_LT(d["rows"][3]["kl_mean"], q8["kl_mean"]);  // f32 is nearer to f16 than q8_0 is
  EXPECT_LT(q8["kl_mean"], kivi4["kl_mean"]);
  EXPECT_LT(kivi4["kl_mean"], kivi2["kl_mean"]);
  EXPECT_GE(q8["top1_agreement"], kivi4["top1_agreement"]);
  EXPECT_GE(kivi4["top1_agreement"], kivi2["top1_agreement"]);
  EXPECT_TRUE(is_ok(fidelity({"--kv", "q8_0", "--context", "100", "--tokens", "10"})));
}

TEST_F(Measure, FidelityRefusesTextThatIsTooShortOrBroken) {
  EXPECT_TRUE(is_refused(fidelity({"--kv", "q8_0", "--context", "901", "--tokens", "10"}), 3, "900"));
  EXPECT_TRUE(is_refused(fidelity({"--kv", "q8_0", "--context", "5000", "--tokens", "10"}), 4, "1024"));
  folder_.file("text.txt", std::string(900, 'a') + "\xff");
  EXPECT_TRUE(is_refused(fidelity({"--kv", "q8_0", "--context", "100", "--tokens", "10"}), 3, "UTF-8"));
  folder_.file("text.txt", "");
  EXPECT_TRUE(is_refused(fidelity({"--kv", "q8_0", "--context", "100", "--tokens", "10"}), 3, "empty"));
}

// No hint that cannot be followed, and no sum that runs over.
TEST_F(Measure, FidelityRefusesWindowsWithoutAPrefix) {
  const Finished shortest = fidelity({"--kv", "q8_0", "--context", "2", "--tokens", "1"});
  EXPECT_TRUE(is_refused(shortest, 2, "give --context 3 at least."));
  EXPECT_EQ(shortest.err.find("--tokens"), std::string::npos) << shortest.err;
  EXPECT_TRUE(is_refused(fidelity({"--kv", "q8_0", "--context", "100", "--tokens", "99"}), 2, "--tokens 98 at most"));
  EXPECT_TRUE(is_ok(fidelity({"--kv", "q8_0", "--context", "100", "--tokens", "98"})));
  EXPECT_TRUE(is_ok(fidelity({"--kv", "q8_0", "--context", "3", "--tokens", "1"})));
  EXPECT_TRUE(is_refused(fidelity({"--kv", "q8_0", "--context", "600", "--tokens", "2147483647"}), 2, "--tokens 598 at most"));
  EXPECT_TRUE(
      is_refused(fidelity({"--kv", "q8_0", "--context", "600", "--tokens", "9", "--windows", "2147483647"}), 3, "windows"));
}

// Of four free starts in a window of 600 tokens the last lies behind 574 (499 and three quarters of 100): 450 are left of 1,024.
TEST_F(Measure, FidelityRefusesFreeRunsBeyondTheContext) {
  const Arguments window = {"--kv", "q8_0", "--context", "600", "--tokens", "100", "--free"};
  EXPECT_TRUE(is_refused(fidelity(window + Arguments{"100000"}), 4, "--free 450 at most"));
  EXPECT_TRUE(is_refused(fidelity(window + Arguments{"451"}), 4, "--free 450 at most"));
  EXPECT_TRUE(is_ok(fidelity(window + Arguments{"450"})));
  EXPECT_TRUE(is_ok(fidelity(window + Arguments{"0"})));
  // What was not asked for is shortened, and the table says to what.
  folder_.file("text.txt", std::string(2000, 'a'));
  const Finished whole = fidelity({"--kv", "q8_0", "--context", "1024", "--tokens", "20"});
  ASSERT_TRUE(is_ok(whole));
  EXPECT_NE(whole.out.find("runs of at most 6\n"), std::string::npos) << whole.out;
}

TEST_F(Measure, FidelitySaysWhereASelectionLoses) {
  const Arguments caches = {"--kv", "oracle:local=16", "--kv", "q8_0", "--context", "200", "--tokens", "3", "--free", "0"};
  const Finished f = fidelity(caches + Arguments{"--diagnose", "--sweep", "--json"});
  ASSERT_TRUE(is_ok(f));
  const Json d = f.json()["diagnosis"];
  ASSERT_EQ(d["rows"].size(), 10U);  // and nothing of a cache that selects nothing
  EXPECT_EQ(d["rows"][0]["mass_ratio"]["map"].size(), d["layers"]);
  EXPECT_EQ(d["rows"][9]["budget_share"], 0.25);
  EXPECT_TRUE(is_ok(fidelity(caches + Arguments{"--diagnose"})));
  EXPECT_TRUE(is_refused(fidelity(caches + Arguments{"--sweep"}), 2, "--diagnose"));
  EXPECT_TRUE(is_refused(fidelity(caches + Arguments{"--task", "needle"}), 2, "--task"));
  EXPECT_TRUE(is_refused(fidelity(caches + Arguments{"--samples", "2"}), 2, "--windows"));
}

TEST_F(Measure, FidelityOfATaskTakesTheUsersOwnRecords) {
  const std::string records =
      folder_.file("own.jsonl", R"({"input": "What grinds?", "context": "The mill grinds corn.", "answers": ["the old mill"]})"
                                "\n"
                                R"({"input": "Who sings?", "context": "The wren sings.", "answers": ["a small wren"]})"
                                "\n");
  const Arguments task = {"fidelity", "-m", model_, "--threads", "1", "--kv", "q8_0", "--task", records, "--context", "400"};
  const Finished f = run(task + Arguments{"--samples", "2", "--json"});
  ASSERT_TRUE(is_ok(f));
  EXPECT_EQ(f.json()["reference"]["windows"], 2);
  // What is no record, and what is too short, is left out and told.
  std::ofstream(records, std::ios::app) << "no record\n"
                                        << R"({"input": "Yes?", "context": "Yes.", "answers": ["y"]})" << "\n";
  const Finished some = run(task + Arguments{"--samples", "3", "--json"});
  ASSERT_TRUE(is_ok(some));
  EXPECT_EQ(some.json()["reference"]["windows"], 2);
  EXPECT_NE(some.err.find("own.jsonl:3: "), std::string::npos) << some.err;
  EXPECT_NE(some.err.find("1 of 3 prompts left out"), std::string::npos) << some.err;
  const std::string short_one = folder_.file("short.jsonl", R"({"input": "Yes?", "context": "Yes.", "answers": ["y"]})");
  EXPECT_TRUE(is_refused(run({"fidelity", "-m", model_, "--kv", "q8_0", "--task", short_one, "--context", "400"}), 2, "answers"));
  EXPECT_TRUE(is_refused(run(task + Arguments{"--samples", "0"}), 2, "--samples"));
  // Every prompt is prepared, and held, before the first is run: a million of them took minutes and gigabytes.
  EXPECT_TRUE(is_refused(run(task + Arguments{"--samples", "1000000"}), 2, "--samples"));
  EXPECT_TRUE(is_refused(run(task + Arguments{"--windows", "2"}), 2, "--samples"));
  EXPECT_TRUE(is_refused(fidelity({"--kv", "q8_0", "--data", folder_.path()}), 2, "--task"));
}

// A method that did not act says so, and the sweep of one that takes every row stands for itself.
TEST_F(Measure, ADiagnosisSaysWhatIsNotInIt) {
  const Arguments window = {"--context", "200", "--tokens", "3", "--free", "0", "--diagnose"};
  const Finished none = fidelity(window + Arguments{"--kv", "q8_0"});
  ASSERT_TRUE(is_ok(none));
  EXPECT_NE(none.err.find("nothing is diagnosed"), std::string::npos) << none.err;
  EXPECT_EQ(none.out.find("recall"), std::string::npos) << none.out;
  const Finished swept = fidelity(window + Arguments{"--kv", "yakv:budget=5000", "--sweep"});
  ASSERT_TRUE(is_ok(swept));
  EXPECT_NE(swept.err.find("takes every row"), std::string::npos) << swept.err;
  EXPECT_NE(swept.out.find("1 = yakv:budget=0.0009765625"), std::string::npos) << swept.out;
  const Json rows = fidelity(window + Arguments{"--kv", "yakv:budget=5000", "--sweep", "--json"}).json()["diagnosis"]["rows"];
  ASSERT_EQ(rows.size(), 9U);
  for (const Json& row : rows) EXPECT_FALSE(row.contains("sweep_of"));
}

// Prefixes are computed once, and the results are the same.
TEST_F(Measure, FidelityKeepsPrefixes) {
  const Arguments asked = {"--kv", "oracle:local=16", "--context", "200",        "--tokens", "3", "--windows",
                           "2",    "--free",          "0",         "--diagnose", "--json"};
  const Finished plain = fidelity(asked);
  ASSERT_TRUE(is_ok(plain));
  EXPECT_EQ(plain.json()["diagnosis"]["texts"], 2);
  const Arguments keep = {"--keep-prefill", folder_.path("kept")};
  const Finished first = fidelity(asked + keep);
  const Finished second = fidelity(asked + keep);
  ASSERT_TRUE(is_ok(first));
  ASSERT_TRUE(is_ok(second));
  EXPECT_EQ(first.out, plain.out);
  EXPECT_EQ(second.out, plain.out);
  EXPECT_NE(first.err.find("2 read, 2 written"), std::string::npos) << first.err;
  EXPECT_NE(second.err.find("4 read, 0 written"), std::string::npos) << second.err;
}

TEST_F(Measure, FidelityCanBeInterruptedWhileItPreparesPrompts) {
  Program program({"fidelity", "-m", model_, "--threads", "1", "--kv", "q8_0", "--task", "fewshot", "--context", "900",
                   "--samples", "10000"});
  usleep(500'000);
  ASSERT_TRUE(program.running());
  program.kill(SIGTERM);
  EXPECT_TRUE(is_refused(program.wait(), 130, "interrupted"));
}

TEST_F(Measure, FidelityCanBeInterruptedWhileItCompares) {
  model_ = tiny_model(folder_, slow_model(), "slow.gguf");
  folder_.file("text.txt", std::string(60'000, 'a'));
  Program program(
      {"fidelity", "-m", model_, "--threads", "1", "-f", text_, "--kv", "q8_0", "--context", "50100", "--tokens", "50000"});
  usleep(1'000'000);
  ASSERT_TRUE(program.running());
  program.kill(SIGINT);
  EXPECT_TRUE(is_refused(program.wait(), 130, "interrupted"));
}

TEST_F(Measure, SpeedHasARowPerCacheDepthAndPhase) {
  const Finished f = speed({"--kv", "full", "--kv", "kivi:bits=4", "--depth", "0", "--depth", "200", "--json"});
  ASSERT_TRUE(is_ok(f));
  const Json d = f.json();
  EXPECT_GT(d["machine"]["read_gb_per_s"], 0);
  EXPECT_GT(d["machine"]["compute_gflop_per_s"], 0);
  ASSERT_EQ(d["rows"].size(), 6U);  // no prefill of nothing
  for (const Json& row : d["rows"]) {
    EXPECT_EQ(row["engine"], "kvartet");
    EXPECT_GT(row["tokens_per_s"], 0);
    EXPECT_EQ(row["runs"].size(), row["phase"] == "decode" ? 2U : 1U);
    EXPECT_FALSE(row["phase"] == "prefill" && row["depth"] == 0);
  }
}

// What a decode step reads at least: the weights of the file's layers, the output matrix, the live bytes of the cache.
TEST_F(Measure, SpeedByDirectFillSaysWhereAStepGoes) {
  const Finished f = speed({"--kv", "full", "--kv", "kivi:bits=4", "--depth", "300", "--fill", "direct", "--json"});
  ASSERT_TRUE(is_ok(f));
  const Json rows = f.json()["rows"];
  ASSERT_EQ(rows.size(), 2U);  // nothing was prefilled
  const Json explained = run({"explain", "-m", model_, "--kv", "full", "--prompt-tokens", "300", "--json"}).json();
  const double allocated = explained["bytes_total"];
  EXPECT_LE(rows[0]["step"]["cache_bytes"], allocated);
  EXPECT_GT(rows[0]["step"]["cache_bytes"], 300.0 / 384 * allocated - 1);  // live rows of three tiles of 128
  EXPECT_LT(rows[1]["step"]["cache_bytes"], rows[0]["step"]["cache_bytes"]);
  for (const Json& row : rows) {
    EXPECT_EQ(row["phase"], "decode");
    for (const char* part : {"linear_s", "attention_s", "logits_s", "layer_bytes", "head_bytes"})
      EXPECT_GT(row["step"][part], 0) << part;
  }
  const Finished text = speed({"--kv", "full", "--depth", "100", "--fill", "direct", "--breakdown"});
  ASSERT_TRUE(is_ok(text));
  EXPECT_NE(text.out.find("one decode step"), std::string::npos);
  EXPECT_TRUE(is_refused(speed({"--kv", "snapkv", "--depth", "100", "--fill", "direct"}), 2, "prefill"));
}

TEST_F(Measure, SpeedOfARandomShape) {
  const std::string shape = "smollm2-135m,layers=1";
  const Arguments command = {"speed", "--shape", shape,    "--threads", "1", "--kv",     "full", "--depth",
                             "4",     "--fill",  "direct", "--gen",     "1", "--rounds", "1",    "--json"};
  setenv("KVARTET_MODELS", folder_.path("models").c_str(), 1);
  EXPECT_TRUE(is_ok(run(command)));
  EXPECT_TRUE(is_ok(run(command)));  // finds the file it wrote
  unsetenv("KVARTET_MODELS");
  EXPECT_TRUE(std::filesystem::exists(folder_.path("models/random-smollm2-135m-layers-1.gguf")));
  EXPECT_TRUE(is_refused(run({"speed", "--shape", "llama", "--kv", "full", "--depth", "4"}), 2, "llama-3.2-1b"));
  EXPECT_TRUE(is_refused(run({"speed", "--kv", "full", "--depth", "4"}), 2, "--shape"));
}

// A rate from half a measurement is none.
TEST_F(Measure, SpeedCanBeInterruptedInItsLastRound) {
  model_ = tiny_model(folder_, slow_model(), "slow.gguf");
  Program program({"speed", "-m", model_, "--threads", "1", "--kv", "full", "--depth", "0", "--gen", "90000", "--rounds", "1"});
  usleep(1'000'000);
  ASSERT_TRUE(program.running());
  program.kill(SIGINT);
  EXPECT_TRUE(is_refused(program.wait(), 130, "interrupted"));
}

// DESIGN 6: the peer always gives decode rows for f16, q8_0 and q4_0 and prefill rows for f16.
TEST_F(Measure, SpeedOfThePeer) {
  const Finished f = speed({"--kv", "full", "--depth", "64", "--peer", "llama.cpp", "--json"});
  ASSERT_TRUE(is_ok(f));
  const Json d = f.json();
  std::set<std::string> seen;
  for (const Json& row : d["rows"]) {
    if (row["engine"] != "llama.cpp") continue;
    const std::string spec = row["spec"];
    seen.insert(spec.substr(0, spec.find(' ')) + " " + row["phase"].get<std::string>());
    EXPECT_GT(row["tokens_per_s"], 0);
  }
  EXPECT_EQ(seen, (std::set<std::string>{"f16 decode", "f16 prefill", "q8_0 decode", "q4_0 decode"}));
}

TEST_F(Measure, SpeedRefusesWhatDoesNotFit) {
  EXPECT_TRUE(is_refused(speed({"--kv", "full", "--depth", "1024"}), 4, "1024"));
  EXPECT_TRUE(is_refused(speed({"--kv", "full", "--depth", "512", "--fast-tier-bytes", "10K"}), 4, "10240"));
  EXPECT_TRUE(is_refused(speed({"--kv", "full", "--depth", "2147483647"}), 4, "depth 2147483647"));
  const Arguments endless = {"speed", "-m", model_, "--threads", "1", "--kv", "full", "--depth", "8", "--gen", "2147483647"};
  EXPECT_TRUE(is_refused(run(endless), 4, "2147483647 generated tokens"));
}

TEST(Lists, MethodsAndTasks) {
  const Finished methods = run({"methods"});
  ASSERT_TRUE(is_ok(methods));
  for (const char* name : {"full", "f32", "q8_0", "kivi", "streamingllm", "snapkv"}) {
    EXPECT_NE(methods.out.find(std::string("\n") + name + " "), std::string::npos) << name;
  }
  const Finished tasks = run({"tasks"});
  ASSERT_TRUE(is_ok(tasks));
  for (const char* name : {"needle", "multineedle", "longbench/multi_news"}) {
    EXPECT_NE(tasks.out.find(std::string("\n") + name + " "), std::string::npos) << name;
  }
}

TEST(Lists, ModelTellsItsShape) {
  const ScratchFolder folder;
  TinyModelOptions options = wide_heads();
  options.architecture = "qwen2";
  options.tied = true;
  const Finished f = run({"model", tiny_model(folder, options)});
  ASSERT_TRUE(is_ok(f));
  for (const char* fact : {"qwen2", "2 KV", "head_dim 32", "1024", "tied", "512 bytes per token"}) {
    EXPECT_NE(f.out.find(fact), std::string::npos) << fact << "\n" << f.out;
  }
}

}  // namespace
}  // namespace kvartet::e2e
