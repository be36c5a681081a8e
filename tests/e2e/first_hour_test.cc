// What somebody meets in the first hour: misspelt commands and models, flags out of range, tables that fit a terminal.
#include <gtest/gtest.h>

#include <sstream>

#include "tiny_models.h"

namespace kvartet::e2e {
namespace {

std::size_t longest_line(const std::string& text) {
  std::istringstream lines(text);
  std::size_t longest = 0;
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  return longest;
}

TEST(FirstHour, MisspeltCommandNamesTheNearest) {
  EXPECT_TRUE(is_refused(run({"mthods"}), 2, "'methods'"));
  EXPECT_TRUE(is_refused(run({"data", "chek"}), 2, "'check'"));
  EXPECT_TRUE(is_refused(run({}), 2, "bench"));
  EXPECT_TRUE(is_refused(run({"data"}), 2, "kvartet data --help"));
}

TEST(FirstHour, MistakenFlagsAreToldInShort) {
  const Arguments r = {"run", "-m", "none.gguf", "-p", "text"};
  EXPECT_TRUE(is_refused(run(r + Arguments{"-n", "-3"}), 2, "-n -3 is outside 0 to 2147483647"));
  EXPECT_TRUE(is_refused(run(r + Arguments{"--temp", "-1"}), 2, "--temp -1 is outside 0 to 100"));
  EXPECT_TRUE(is_refused(run(r + Arguments{"--seed", "abc"}), 2, "not 'abc'"));
  EXPECT_TRUE(is_refused(run(r + Arguments{"--kv", "full", "--kv", "q8_0"}), 2, "--kv is given 2 times"));
  EXPECT_TRUE(is_refused(run(r + Arguments{"--dance"}), 2, "kvartet run --help"));
  EXPECT_TRUE(is_refused(run({"bench", "-m", "none.gguf", "--kv", "full", "--task", "needle", "-o", "never", "--samples", "0"}),
                         2, "--samples 0"));
}

TEST(FirstHour, MisspeltModelNamesThoseThatAreThere) {
  const ScratchFolder folder;
  folder.file("tinyllama.gguf", "");
  ASSERT_EQ(setenv("KVARTET_MODELS", folder.path().c_str(), 1), 0);
  const Finished f = run({"explain", "-m", "tinylama", "--kv", "full", "--prompt-tokens", "9"});
  const Finished without_name = run({"model", ""});
  unsetenv("KVARTET_MODELS");
  EXPECT_TRUE(is_refused(f, 3, "tinyllama"));
  EXPECT_TRUE(is_refused(without_name, 3, "empty"));
}

TEST(FirstHour, MisspeltCachesNameWhatIsAllowed) {
  const auto refused = [](const std::string& spec, const std::string& about) {
    return is_refused(run({"explain", "-m", "none.gguf", "--kv", spec, "--prompt-tokens", "9"}), 2, about);
  };
  EXPECT_TRUE(refused("turboqant", "'turboquant'"));
  EXPECT_TRUE(refused("turboquant:bits=9", "1, 2, 3, 4, 5, 6, 7, 8"));
  EXPECT_TRUE(refused("q4_0:bits=4", "it takes rotate"));  // and calls no key near that is not
  EXPECT_TRUE(refused("quest:budget=3", "the nearest is budget=16"));
  EXPECT_TRUE(refused("infinigen", "not built yet"));
}

TEST(FirstHour, ListsFitATerminal) {
  const Finished methods = run({"methods"});
  ASSERT_TRUE(is_ok(methods));
  EXPECT_LE(longest_line(methods.out), 120U);
  for (const char* family : {"QUANTIZE", "EVICT", "MERGE", "OFFLOAD"}) {
    EXPECT_NE(methods.out.find(std::string("\n") + family + ":"), std::string::npos) << family;
  }
  EXPECT_LT(methods.out.find("\nh2o "), methods.out.find("\nMERGE"));
  EXPECT_LT(methods.out.find("\nMERGE"), methods.out.find("\ncam "));
  EXPECT_LE(longest_line(run({"tasks"}).out), 120U);
}

TEST(FirstHour, ExplainPutsALongSpecOnItsOwnLines) {
  const ScratchFolder folder;
  const Finished f =
      run({"explain", "-m", tiny_model(folder, wide_heads()), "--kv", "full", "--kv", "yakv", "--prompt-tokens", "100"});
  ASSERT_TRUE(is_ok(f));
  EXPECT_LE(longest_line(f.out), 122U);
  EXPECT_NE(f.out.find("\nyakv:"), std::string::npos) << f.out;
}

TEST(FirstHour, AFileThatIsNoPredictionsGetsNoScore) {
  const ScratchFolder folder;
  const std::string none = folder.file("none.jsonl", "one\ntwo\n");
  EXPECT_TRUE(is_refused(run({"score", "--task", "longbench/hotpotqa", none}), 3, "none of the 2 lines"));
}

TEST(FirstHour, AReportOnNonsenseGivesNoHintForBench) {
  const ScratchFolder folder;
  folder.file("results.sqlite", "nonsense");
  const Finished f = run({"report", folder.path()});
  EXPECT_TRUE(is_refused(f, 3, "not a Kvartet results file"));
  EXPECT_EQ(f.err.find("-o"), std::string::npos) << f.err;  // which means something else here
}

}  // namespace
}  // namespace kvartet::e2e
