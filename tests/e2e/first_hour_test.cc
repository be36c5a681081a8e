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
  EXPECT_TRUE(is_refused(run({"mthods"}), 2, "the nearest is methods"));
  EXPECT_TRUE(is_refused(run({"data", "chek"}), 2, "the nearest is check"));
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

// What is no number is not called too large or too small, by no flag of any command.
TEST(FirstHour, FlagsThatTakeNumbersTellWordsFromWrongNumbers) {
  const struct {
    Arguments command;
    std::vector<std::string> flags;
  } commands[] = {
      {{"run", "-m", "none.gguf", "-p", "text"}, {"-n", "--threads"}},
      {{"bench", "-m", "none.gguf", "--kv", "full", "--task", "needle", "-o", "never"},
       {"--samples", "--context", "--solo", "--threads"}},
      {{"fidelity", "-m", "none.gguf", "--kv", "full", "-f", "none"},
       {"--context", "--tokens", "--windows", "--free", "--threads"}},
      {{"speed", "-m", "none.gguf", "--kv", "full"}, {"--depth", "--gen", "--rounds", "--prefill-rounds", "--threads"}},
      {{"explain", "-m", "none.gguf", "--kv", "full"}, {"--prompt-tokens", "--output-tokens"}},
      {{"plan", "-m", "none.gguf"}, {"--prompt-tokens", "--output-tokens", "--questions", "--threads"}},
      {{"calibrate"}, {"--threads"}},
  };
  for (const auto& [command, flags] : commands) {
    for (const std::string& flag : flags) {
      for (const char* word : {"abc", "1.5", "7x", "", "0x10", "010"}) {
        const Finished f = run(command + Arguments{flag, word});
        EXPECT_TRUE(is_refused(f, 2, flag + " takes a whole number")) << command[0] << " " << flag << " " << word;
        EXPECT_NE(f.err.find(std::string("not '") + word + "'"), std::string::npos) << f.err;
      }
      EXPECT_TRUE(is_refused(run(command + Arguments{flag, "99999999999"}), 2, flag + " 99999999999 is outside"));
    }
  }
  const Arguments r = {"run", "-m", "none.gguf", "-p", "text"};
  for (const char* word : {"abc", "nan", "1.0.0"}) {
    EXPECT_TRUE(is_refused(run(r + Arguments{"--temp", word}), 2, "--temp takes a number from 0 to 100")) << word;
    EXPECT_TRUE(is_refused(run(r + Arguments{"--top-p", word}), 2, "--top-p takes a number from 0 to 1")) << word;
  }
  EXPECT_TRUE(is_refused(run(r + Arguments{"--temp", "inf"}), 2, "--temp inf is outside"));
  // Seeds are of 64 bits, and 010 is not eight.
  for (const Arguments& command : {r, Arguments{"bench", "-m", "none.gguf", "--kv", "full", "--task", "needle", "-o", "never"}}) {
    for (const char* word : {"010", "0x10", "1.5", "", "abc"}) {
      EXPECT_TRUE(is_refused(run(command + Arguments{"--seed", word}), 2,
                             "--seed takes a whole number from 0, not '" + std::string(word) + "'"))
          << command[0] << " " << word;
    }
    EXPECT_TRUE(
        is_refused(run(command + Arguments{"--seed", "18446744073709551616"}), 2, "--seed 18446744073709551616 is outside"));
    EXPECT_TRUE(is_refused(run(command + Arguments{"--seed", "18446744073709551615"}), 3, "none.gguf"));
  }
  for (const char* word : {"0x10M", "M", "12Q", "-5M", "nan", "1e300G", "0.1", "5 M"}) {
    EXPECT_TRUE(is_refused(run(r + Arguments{"--fast-tier-bytes", word}), 2, "is not a number of bytes")) << word;
  }
  for (const char* word : {"010M", "300M", "1.5GiB", "2k"})
    EXPECT_TRUE(is_refused(run(r + Arguments{"--fast-tier-bytes", word}), 3, "none.gguf")) << word;
}

// Beyond any use: refused with the limit, not estimated into nonsense.
TEST(FirstHour, NumbersBeyondAnyUseAreRefused) {
  const Arguments bench = {"bench", "-m", "none.gguf", "--kv", "full", "--task", "needle", "-o", "never", "--dry-run"};
  EXPECT_TRUE(is_refused(run(bench + Arguments{"--solo", "2147483647"}), 2, "--solo 2147483647 is outside 0 to 10000"));
  EXPECT_TRUE(is_refused(run(bench + Arguments{"--samples", "2147483647"}), 2, "--samples 2147483647 is outside 1 to 100000"));
  const Arguments speed = {"speed", "-m", "none.gguf", "--kv", "full", "--depth", "1"};
  EXPECT_TRUE(is_refused(run(speed + Arguments{"--rounds", "2147483647"}), 2, "--rounds 2147483647 is outside"));
}

TEST(FirstHour, MisspeltPresetNamesTheNearest) {
  const Arguments bench = {"bench", "-m", "none.gguf", "-o", "never"};
  EXPECT_TRUE(is_refused(run(bench + Arguments{"--preset", "compresion-paper"}), 2, "the nearest is compression-paper (choose"));
  EXPECT_TRUE(is_refused(run(bench + Arguments{"--preset", ""}), 2, "the preset has no name; choose compression-paper"));
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
  EXPECT_TRUE(refused("nvfp4", "not built yet"));
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
