#include "results/outcome_check.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <vector>

namespace kvartet {
namespace {

TEST(ListOfNumbers, IsWhatAStoreWrites) {
  for (const char* sound : {"", "[]", "[ ]", "[1]", "[1,2.5]", " [ 0 , 1e3 ,\n7.25E-1 ] "}) {
    EXPECT_TRUE(is_list_of_numbers(sound, 0, 1e12)) << sound;
  }
}

// What was cut short, spoilt or is of another kind.
TEST(ListOfNumbers, IsNothingElse) {
  for (const char* damaged :
       {"[",       "[1",    "[1,",   "[1,]",  "[,1]",    "[1 2]", "1,2",  "]",     "[1]]",   "[1],", "null",  "{}",     "[null]",
        "[\"1\"]", "[[1]]", "[nan]", "[inf]", "[1e999]", "[-1]",  "[+1]", "[0x1]", "[1e13]", "x",    "[1;2]", "[1.2.3]"}) {
    EXPECT_FALSE(is_list_of_numbers(damaged, 0, 1e12)) << damaged;
  }
  EXPECT_TRUE(is_list_of_numbers("[-1]", -1, 0));
}

TEST(ListOfTexts, IsWhatAStoreWrites) {
  for (const char* sound : {"[]", "[ ]", R"([""])", R"(["a","b, c"])", R"([ "a" , "\"quoted\" \\ \n\u00e9" ])", "[\"\xC3\xA9\"]",
                            R"(["\ud83d\ude00"])"}) {
    EXPECT_TRUE(is_list_of_texts(sound)) << sound;
  }
}

TEST(ListOfTexts, IsNothingElse) {
  for (const char* damaged : {"",
                              "[",
                              "]",
                              "\"a\"",
                              "null",
                              "{}",
                              "[1]",
                              "[null]",
                              "[[]]",
                              R"([["a"]])",
                              R"(["a")",
                              R"(["a",])",
                              R"([,"a"])",
                              R"(["a" "b"])",
                              R"(["a]])",
                              R"(["a"]x)",
                              R"(["\x"])",
                              R"(["\u12"])",
                              R"(["\u12g4"])",
                              R"(["\ud83d"])",
                              R"(["\ude00"])",
                              R"(["\ud83d\u0041"])",
                              R"(["\)",
                              "[\"a\nb\"]",
                              "[\"\xC3\"]"}) {
    EXPECT_FALSE(is_list_of_texts(damaged)) << damaged;
  }
  SampleRecord sample;
  EXPECT_TRUE(has_possible_texts(sample));
  sample.classes_json = R"(["red"])";
  EXPECT_TRUE(has_possible_texts(sample));
  sample.answers_json = "null";
  EXPECT_FALSE(has_possible_texts(sample));
}

TEST(SoloFigures, MustBePossible) {
  SoloRun sound;
  sound.ttft_s = 1;
  sound.completion_tokens = 3;
  sound.token_gaps_json = "[1,2]";
  EXPECT_TRUE(has_possible_figures(sound));
  const std::vector<std::function<void(SoloRun&)>> changes = {
      [](SoloRun& s) { s.ttft_s = -1; },
      [](SoloRun& s) { s.prefill_s = std::numeric_limits<double>::infinity(); },
      [](SoloRun& s) { s.compress_s = std::numeric_limits<double>::quiet_NaN(); },
      [](SoloRun& s) { s.decode_tokens_per_s = 1e300; },
      [](SoloRun& s) { s.end_to_end_tokens_per_s = -1; },
      [](SoloRun& s) { s.completion_tokens = -3; },
      [](SoloRun& s) { s.peak_rss_bytes = std::numeric_limits<std::int64_t>::max(); },
      [](SoloRun& s) { s.weight_bytes = -1; },
      [](SoloRun& s) { s.token_gaps_json = "[1,"; }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SoloRun odd = sound;
    changes[i](odd);
    EXPECT_FALSE(has_possible_figures(odd)) << i;
    odd.error = "it failed";  // then they mean nothing
    EXPECT_TRUE(has_possible_figures(odd)) << i;
  }
}

}  // namespace
}  // namespace kvartet
