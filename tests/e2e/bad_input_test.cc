// Whatever is wrong with a prompt, a spec or a flag: one sentence, the right exit code, nothing on standard output.
#include <gtest/gtest.h>

#include "tiny_models.h"

namespace kvartet::e2e {
namespace {

class BadInput : public testing::Test {
 protected:
  Finished ask(const Arguments& more) const { return run(Arguments{"run", "-m", model_, "--threads", "1", "-n", "2"} + more); }

  ScratchFolder folder_;
  std::string model_ = tiny_model(folder_, wide_heads());
};

// C7.
TEST_F(BadInput, C7EmptyPrompt) {
  const std::string empty = folder_.file("empty.txt", "");
  for (const Arguments& how : {Arguments{}, {"--raw"}, {"--question", "why?"}}) {
    EXPECT_TRUE(is_refused(ask(Arguments{"-p", ""} + how), 3, "empty"));
    EXPECT_TRUE(is_refused(ask(Arguments{"-f", empty} + how), 3, "empty"));
  }
  EXPECT_TRUE(is_refused(ask({"-p", "text", "--question", ""}), 3, "empty"));
}

TEST_F(BadInput, PromptFileThatIsNone) {
  EXPECT_TRUE(is_refused(ask({"-f", folder_.path("missing.txt")}), 3, "missing.txt"));
  EXPECT_TRUE(is_refused(ask({"-f", folder_.path()}), 3, folder_.path()));
}

TEST_F(BadInput, TextThatIsNotUtf8) {
  for (const char* bytes : {"caf\xe9", "\xff\xfe", "cut \xe2\x82", "\xc0\xaf", "\xed\xa0\x80"}) {
    EXPECT_TRUE(is_refused(ask({"-p", bytes}), 3, "UTF-8"));
    EXPECT_TRUE(is_refused(ask({"-f", folder_.file("bad.txt", bytes)}), 3, "UTF-8"));
    EXPECT_TRUE(is_refused(ask({"-p", "text", "--question", bytes}), 3, "UTF-8"));
    EXPECT_TRUE(is_refused(ask({"-p", "text", "--stop", bytes}), 2, "UTF-8"));
  }
}

TEST_F(BadInput, BytesThatAreOddButAllowed) {
  const std::string text(
      "\xef\xbb\xbf"
      "a\0b\r\n\t\x01 \xf0\x9f\x98\x80",
      15);
  EXPECT_TRUE(is_ok(ask({"-f", folder_.file("odd.txt", text)})));
}

// DESIGN 5: refused before weights load, so also in front of a model that is not there.
TEST_F(BadInput, SpecsThatAreMisspeltOrSenseless) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"", ""},
      {"kivy:bits=4", "kivi"},
      {"KIVI", "kivi"},
      {"kivi:bit=4", "bits"},
      {"kivi:bits", "bits"},
      {"kivi:bits=", "bits"},
      {"kivi:bits=5", "5"},
      {"kivi:bits=4.5", "4.5"},
      {"kivi:bits=-4", "-4"},
      {"kivi:bits=4,bits=2", "bits"},
      {"kivi:bits=4/4/4", "4/4/4"},
      {"kivi:group=48", "48"},
      {"kivi:residual=7", "7"},
      {"kivi:bits=4,", ""},
      {"kivi::bits=4", ""},
      {"+kivi", ""},
      {"kivi+", ""},
      {"snapkv:budget=0", "0"},
      {"snapkv:budget=-3", "-3"},
      {"snapkv:budget=nan", "nan"},
      {"snapkv:budget=1.5", "1.5"},
      {"snapkv:budget=99999999999999999999", "budget"},
      {"snapkv:pool=mean", "max"},
      {"snapkv:kernel=0", "kernel"},
      {"snapkv:kernel=4", "kernel"},
      {"streamingllm:window=0,sinks=0", ""},
      {"streamingllm:window=8,budget=9", "budget"},
      {"kivi:bits=4+snapkv:budget=0.25", "snapkv"},
      {"q8_0+kivi:bits=4", ""},
      {"snapkv+streamingllm", ""},
      {"full,q8_0", ""},
      {"full:bits=4", "full"},
      {"f16", "full"},
      {"q8_0 ", ""},
      {"kivi:bits=\xff", ""},
      {"kivi\nbits=4", ""},
  };
  for (const auto& [spec, about] : cases) {
    EXPECT_TRUE(is_refused(run({"run", "-m", folder_.path("missing.gguf"), "--kv", spec, "-p", "text"}), 2, about))
        << "spec: " << spec;
  }
  EXPECT_TRUE(is_refused(run({"explain", "-m", model_, "--kv", "kivy", "--prompt-tokens", "100"}), 2, "kivi"));
  EXPECT_TRUE(is_refused(run({"bench", "-m", model_, "--kv", "kivy", "--task", "needle", "-o", folder_.path("out")}), 2, "kivi"));
  EXPECT_TRUE(is_refused(run({"fidelity", "-m", model_, "--kv", "kivy", "-f", "x"}), 2, "kivi"));
  EXPECT_TRUE(is_refused(run({"speed", "-m", model_, "--kv", "kivy", "--depth", "8"}), 2, "kivi"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("out")));
}

// Sensible elsewhere, but not for this model's head_dim of 32.
TEST_F(BadInput, SpecThatDoesNotFitTheModel) {
  for (const char* spec : {"kivi:bits=4,group=64", "snapkv+kivi:group=128"}) {
    EXPECT_TRUE(is_refused(ask({"-p", "text", "--kv", spec}), 2, "32")) << spec;
    EXPECT_TRUE(is_refused(run({"explain", "-m", model_, "--kv", spec, "--prompt-tokens", "100"}), 2, "32")) << spec;
  }
}

TEST_F(BadInput, SameCacheTwice) {
  const Arguments twice = {"--kv", "kivi", "--kv", "kivi:bits=4"};
  EXPECT_TRUE(is_refused(run(Arguments{"explain", "-m", model_, "--prompt-tokens", "100"} + twice), 2, "twice"));
  EXPECT_TRUE(is_refused(run(Arguments{"speed", "-m", model_, "--depth", "8"} + twice), 2, "twice"));
}

TEST_F(BadInput, CommandLinesThatMakeNoSense) {
  const Arguments r = {"run", "-m", model_, "-p", "text"};
  const Arguments b = {"bench", "-m", model_, "--kv", "full", "--task", "needle", "-o", folder_.path("out")};
  const Arguments s = {"speed", "-m", model_, "--kv", "full", "--depth", "8"};
  const std::vector<Arguments> cases = {
      {},
      {"dance"},
      {"--dance"},
      {"run"},
      {"run", "-m", model_},
      {"run", "-p", "text"},
      {"bench", "-m", model_, "--kv", "full", "-o", folder_.path("out")},
      {"bench", "-m", model_, "--kv", "full", "--task", "needle"},
      {"bench", "-m", model_, "--task", "needle", "-o", folder_.path("out")},
      {"fidelity", "-m", model_, "--kv", "full"},
      {"speed", "-m", model_, "--kv", "full"},
      {"speed", "-m", model_, "--depth", "8"},
      {"score", "--task", "needle"},
      {"score", "x.jsonl"},
      {"explain", "-m", model_, "--kv", "full"},
      {"explain", "-m", model_, "--prompt-tokens", "5"},
      {"explain", "-m", model_, "--kv", "full", "--prompt-tokens", "0"},
      {"explain", "-m", model_, "--kv", "full", "--prompt-tokens", "2147483647", "--output-tokens", "2147483647"},
      {"explain", "-m", model_, "--kv", "full", "--prompt-tokens", "5", "--output-tokens", "-1"},
      {"report"},
      {"model"},
      {"methods", "more"},
      r + Arguments{"--dance"},
      r + Arguments{"more"},
      r + Arguments{"-f", "x"},
      r + Arguments{"-p", "again"},
      r + Arguments{"--raw", "--chat"},
      r + Arguments{"-n"},
      r + Arguments{"-n", "-1"},
      r + Arguments{"-n", "many"},
      r + Arguments{"-n", "99999999999"},
      r + Arguments{"--threads", "0"},
      r + Arguments{"--threads", "99999"},
      r + Arguments{"--temp", "-1"},
      r + Arguments{"--temp", "nan"},
      r + Arguments{"--top-p", "0"},
      r + Arguments{"--top-p", "1.5"},
      r + Arguments{"--top-p", "nan"},
      r + Arguments{"--seed", "x"},
      r + Arguments{"--stop", ""},
      r + Arguments{"--fast-tier-bytes", "0"},
      r + Arguments{"--fast-tier-bytes", "12Q"},
      r + Arguments{"--fast-tier-bytes", "-5M"},
      r + Arguments{"--kv", "full", "--kv", "q8_0"},
      b + Arguments{"--samples", "-1"},
      b + Arguments{"--context", "0"},
      b + Arguments{"--question-position", "sideways"},
      b + Arguments{"--seed", "-x"},
      b + Arguments{"--task", "needel"},
      b + Arguments{"--task", "needle:k=2"},
      b + Arguments{"--task", "multineedle:k=0"},
      b + Arguments{"--task", "multineedle:k=x"},
      b + Arguments{"--task", "longbench/hotpot"},
      b + Arguments{"--task", "my.jsonl"},
      b + Arguments{"--task", "my.jsonl", "--metric", "f7"},
      s + Arguments{"--depth", "-1"},
      s + Arguments{"--gen", "0"},
      s + Arguments{"--rounds", "0"},
      s + Arguments{"--peer", "vllm"},
      {"score", "--task", "needel", "x.jsonl"},
      {"score", "--task", "mine.jsonl", "x.jsonl"},
      {"fidelity", "-m", model_, "--kv", "q8_0", "-f", folder_.file("t.txt", "text"), "--context", "8", "--tokens", "8"},
  };
  for (const Arguments& arguments : cases) {
    std::string line;
    for (const std::string& a : arguments) line += a + " ";
    EXPECT_TRUE(is_refused(run(arguments), 2)) << line;
  }
  EXPECT_FALSE(std::filesystem::exists(folder_.path("out")));
}

TEST_F(BadInput, SentencesHaveOneLineWhateverIsInAName) {
  EXPECT_TRUE(is_refused(run({"run", "-m", "no\nsuch\rmodel\x1b[2J.gguf", "-p", "text"}), 3, "such"));
  EXPECT_TRUE(is_refused(run({"run", "-m", model_, "--kv", "full", "-p", "a", "no\nflag"}), 2));
}

TEST_F(BadInput, CapOnTheBytesOfTheCache) {
  EXPECT_TRUE(is_refused(ask({"-p", "text", "--fast-tier-bytes", "1K"}), 4, "1024"));
  EXPECT_TRUE(is_ok(ask({"-p", "text", "--fast-tier-bytes", "1G"})));
}

TEST_F(BadInput, OutputThatCannotBeWritten) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full here";
  Surroundings full;
  full.output = "/dev/full";
  EXPECT_TRUE(is_sentence(run({"methods"}, full), 5, "output"));
  EXPECT_TRUE(is_sentence(run({"explain", "-m", model_, "--kv", "full", "--prompt-tokens", "9"}, full), 5, "output"));
  EXPECT_EQ(run({"run", "-m", model_, "-p", "text", "-n", "2", "--threads", "1"}, full).code, 5);
}

TEST(Help, OfEveryCommand) {
  EXPECT_TRUE(is_ok(run({"--help"})));
  EXPECT_TRUE(run({"--version"}).out.starts_with("kvartet "));
  for (const char* command : {"run", "bench", "fidelity", "speed", "score", "explain", "report", "methods", "tasks", "model"}) {
    const Finished f = run({command, "--help"});
    EXPECT_TRUE(is_ok(f)) << command;
    EXPECT_NE(f.out.find("Usage"), std::string::npos) << command;
    EXPECT_EQ(f.err, "") << command;
  }
}

}  // namespace
}  // namespace kvartet::e2e
