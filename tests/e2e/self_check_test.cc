// The self-check at the command line (compression.md 12.4): a warning with cause and remedy, remembered, strict on request.
#include <gtest/gtest.h>

#include "tiny_models.h"

namespace kvartet::e2e {
namespace {

// Keys with a bias of norm 500, as in Qwen2: four bits per token row are lost on them.
TinyModelOptions biased() {
  TinyModelOptions o;
  o.architecture = "qwen2";
  o.hidden = 128;
  o.head_dim = 64;
  o.context = 1024;
  o.rope_base = 1e6;
  o.key_bias_norm = 500;
  return o;
}

class SelfCheckRun : public testing::Test {
 protected:
  void SetUp() override {
    setenv("KVARTET_SELF_CHECK", "on", 1);
    setenv("KVARTET_HOME", folder_.path("home").c_str(), 1);
  }
  void TearDown() override {
    unsetenv("KVARTET_SELF_CHECK");
    unsetenv("KVARTET_HOME");
  }
  Finished ask(const Arguments& more) const {
    return run(Arguments{"run", "-m", model_, "--threads", "1", "-p", "hello", "-n", "2"} + more);
  }
  std::string memory() const { return read_text(folder_.path("home/self-checks.tsv")); }

  ScratchFolder folder_;
  std::string model_ = tiny_model(folder_, biased());
};

TEST_F(SelfCheckRun, WarnsOfBiasedKeysEveryTimeButChecksOnce) {
  const Finished first = ask({"--kv", "q4_0"});
  ASSERT_TRUE(is_ok(first));
  EXPECT_NE(first.err.find("warning: q4_0"), std::string::npos) << first.err;
  EXPECT_NE(first.err.find("biases (norm 500"), std::string::npos) << first.err;
  EXPECT_NE(first.err.find("q4_0:center=mean is at"), std::string::npos) << first.err;  // the nearest that passes
  const std::string remembered = memory();
  EXPECT_EQ(std::count(remembered.begin(), remembered.end(), '\n'), 1);
  const Finished second = ask({"--kv", "q4_0"});
  EXPECT_NE(second.err.find("warning: q4_0"), std::string::npos) << second.err;
  EXPECT_EQ(memory(), remembered);
  EXPECT_EQ(first.out, second.out);

  // A cache that passes says nothing; `full` is not looked at.
  EXPECT_EQ(ask({"--kv", "kivi:bits=4,residual=32"}).err.find("warning"), std::string::npos);
  const std::string two = memory();
  EXPECT_EQ(std::count(two.begin(), two.end(), '\n'), 2);
  EXPECT_EQ(ask({}).err.find("warning"), std::string::npos);
  EXPECT_EQ(memory(), two);
}

TEST_F(SelfCheckRun, StrictMakesItAnErrorAndScriptsCanLeaveItOut) {
  const Finished strict = ask({"--kv", "q4_0", "--strict"});
  EXPECT_EQ(strict.code, 1);
  EXPECT_EQ(strict.out, "");
  EXPECT_NE(strict.err.find("kvartet: --strict: q4_0"), std::string::npos) << strict.err;
  EXPECT_TRUE(is_ok(ask({"--kv", "q4_0:center=mean", "--strict"})));

  EXPECT_EQ(ask({"--kv", "q4_0", "--no-self-check"}).err.find("warning"), std::string::npos);
  setenv("KVARTET_SELF_CHECK", "off", 1);
  EXPECT_EQ(ask({"--kv", "q4_0"}).err.find("warning"), std::string::npos);
  EXPECT_EQ(ask({"--kv", "q4_0", "--strict"}).code, 1);  // a flag beats the environment
  for (const char* wrong : {"Off", "0", "no", "offf"}) {
    setenv("KVARTET_SELF_CHECK", wrong, 1);
    EXPECT_TRUE(is_refused(ask({"--kv", "q4_0"}), 2, "takes on or off")) << wrong;
    EXPECT_TRUE(is_ok(ask({"--kv", "q4_0", "--no-self-check"}))) << wrong;
    const Arguments bench = {"bench", "-m", "none.gguf", "--kv", "full", "--task", "needle", "-o", folder_.path("never")};
    EXPECT_TRUE(is_refused(run(bench), 2, "KVARTET_SELF_CHECK")) << wrong;
  }
  for (const char* usual : {"", "on"}) {
    setenv("KVARTET_SELF_CHECK", usual, 1);
    EXPECT_NE(ask({"--kv", "q4_0"}).err.find("warning"), std::string::npos) << usual;
  }
  EXPECT_TRUE(is_refused(ask({"--strict", "--no-self-check"}), 2, "--strict"));
}

TEST_F(SelfCheckRun, ACacheThatDidNotActDoesNotPass) {
  const Finished f = ask({"--kv", "streamingllm"});
  ASSERT_TRUE(is_ok(f));
  EXPECT_NE(f.err.find("streamingllm:sinks=4,window=512,rope=absolute was not checked: on the 425 tokens"), std::string::npos)
      << f.err;
  EXPECT_EQ(ask({"--kv", "streamingllm"}).err.find("was not checked"), std::string::npos);  // said once
  const Finished strict = ask({"--kv", "streamingllm", "--strict"});
  EXPECT_EQ(strict.code, 1);
  EXPECT_NE(strict.err.find("could not be checked"), std::string::npos) << strict.err;
}

TEST_F(SelfCheckRun, WhatCannotBeCheckedOrKeptStopsNothing) {
  folder_.file("home", "a file where the folder should be");
  const Finished f = ask({"--kv", "q4_0"});
  EXPECT_TRUE(is_ok(f));
  EXPECT_NE(f.err.find("is not kept"), std::string::npos) << f.err;
  EXPECT_NE(f.err.find("warning: q4_0"), std::string::npos) << f.err;

  // A memory that cannot be read is no quieter: the check runs again, and the command says so.
  std::filesystem::remove(folder_.path("home"));
  std::filesystem::create_directories(folder_.path("home/self-checks.tsv"));
  for (int i = 0; i < 2; ++i) {
    const Finished forgetful = ask({"--kv", "q4_0"});
    EXPECT_TRUE(is_ok(forgetful));
    const std::size_t said = forgetful.err.find("self-checks.tsv' is a folder");
    ASSERT_NE(said, std::string::npos) << forgetful.err;
    EXPECT_EQ(forgetful.err.find("is not kept", said), std::string::npos) << "said twice: " << forgetful.err;
    EXPECT_NE(forgetful.err.find("warning: q4_0"), std::string::npos) << forgetful.err;
  }

  // The prompt fits the memory, the check's longer text beside `full` does not.
  const Finished cramped = ask({"--kv", "q4_0", "--fast-tier-bytes", "200K"});
  EXPECT_TRUE(is_ok(cramped));
  EXPECT_NE(cramped.err.find("q4_0 was not checked with this model"), std::string::npos) << cramped.err;
}

TEST_F(SelfCheckRun, BenchChecksAllItsCachesInOneGo) {
  std::filesystem::create_directory(folder_.path("haystack"));
  std::string text;
  for (int i = 0; i < 60; ++i) text += "The mill number " + std::to_string(i) + " by the river grinds corn in June. ";
  folder_.file("haystack/mills.txt", text);
  const Arguments bench = {"bench",     "-m",   model_,   "--threads",    "1",          "--task", "needle",
                           "--context", "900",  "--data", folder_.path(), "--samples",  "1",      "--kv",
                           "full",      "--kv", "q4_0",   "--kv",         "kivi:bits=4"};
  const Finished dry = run(bench + Arguments{"-o", folder_.path("out"), "--dry-run"});
  ASSERT_TRUE(is_ok(dry));
  EXPECT_EQ(dry.err.find("warning"), std::string::npos);
  const Finished f = run(bench + Arguments{"-o", folder_.path("out")});
  ASSERT_TRUE(is_ok(f));
  EXPECT_NE(f.err.find("warning: q4_0"), std::string::npos) << f.err;
  const std::string lines = memory();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
  // What is refused leaves no folder behind; one that is there stays as it is.
  EXPECT_EQ(run(bench + Arguments{"-o", folder_.path("strict"), "--keep-prefill", folder_.path("kept"), "--strict"}).code, 1);
  EXPECT_FALSE(std::filesystem::exists(folder_.path("strict")));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("kept")));
  EXPECT_EQ(run(bench + Arguments{"-o", folder_.path("out"), "--strict"}).code, 1);
  EXPECT_TRUE(is_ok(run({"report", folder_.path("out")})));
}

}  // namespace
}  // namespace kvartet::e2e
