// kvartet score: good lines are scored, bad ones named as file:line with exit 3 (DESIGN 6, user-needs C20).
#include <gtest/gtest.h>

#include "program.h"

namespace kvartet::e2e {
namespace {

std::string line(const std::string& prediction, const std::string& answer) {
  return R"({"pred": ")" + prediction + R"(", "answers": [")" + answer + R"("], "all_classes": null, "length": 100})";
}

class Score : public testing::Test {
 protected:
  Finished score(const std::string& text, const Arguments& more = {"--json"}) const {
    return run(Arguments{"score", "--task", "longbench/hotpotqa", folder_.file("p.jsonl", text)} + more);
  }
  ScratchFolder folder_;
};

TEST_F(Score, CleanFile) {
  const Finished f = score(line("blue", "blue") + "\n" + line("green", "blue") + "\n");
  ASSERT_TRUE(is_ok(f));
  EXPECT_EQ(f.err, "");
  const Json d = f.json();
  EXPECT_EQ(d["task"], "longbench/hotpotqa");
  EXPECT_EQ(d["n"], 2);
  EXPECT_EQ(d["score"], 50.0);
  EXPECT_TRUE(d["skipped"].empty());
  EXPECT_NE(score(line("blue", "blue"), {}).out.find("100.00"), std::string::npos);
}

TEST_F(Score, C20ByteOrderMarkWindowsLinesBlankLinesAndNoFinalNewlineAreFine) {
  const Finished f = score("\xef\xbb\xbf" + line("blue", "blue") + "\r\n\r\n \t\n" + line("green", "blue"));
  ASSERT_TRUE(is_ok(f));
  EXPECT_EQ(f.json()["n"], 2);
  EXPECT_EQ(f.json()["score"], 50.0);
}

TEST_F(Score, C20BadLinesAreNamedAndTheOthersScored) {
  const std::string good = line("blue", "blue");
  const std::vector<std::string> lines = {
      good,                                                                  // 1
      "{broken",                                                             // 2
      R"({"answers": ["blue"]})",                                            // 3: no pred
      R"({"pred": "blue"})",                                                 // 4: no answers
      R"({"pred": "a)" + std::string(1, '\0') + R"(b", "answers": ["a"]})",  // 5
      "{\"pred\": \"caf\xe9\", \"answers\": [\"a\"]}",                       // 6
      R"([1, 2])",                                                           // 7
      R"({"pred": 5, "answers": ["a"]})",                                    // 8
      R"({"pred": "a", "answers": []})",                                     // 9
      R"({"id": "x", "pred": "blue", "answers": ["blue"]})",                 // 10
      R"({"id": "x", "pred": "blue", "answers": ["blue"]})",                 // 11: repeated id
      R"({"pred": "a", "answers": ["a"]} {"pred": "b", "answers": ["b"]})",  // 12
      line(std::string(5'000'000, 'z'), "blue"),                             // 13: good, and long
      std::string(100'000, '['),                                             // 14: deep
      R"({"pred": "a", "answers": ["a"], "length": 1e999})",                 // 15: no number
  };
  std::string text;
  for (const std::string& l : lines) text += l + "\n";
  const Finished f = score(text);
  EXPECT_EQ(f.code, 3);
  EXPECT_EQ(f.signal, 0);
  const Json d = f.json();
  EXPECT_EQ(d["n"], 3);
  EXPECT_NEAR(d["score"].get<double>(), 66.67, 1e-9);
  EXPECT_EQ(d["skipped"].size(), 12U);
  for (int number = 1; number <= static_cast<int>(lines.size()); ++number) {
    const bool good_line = number == 1 || number == 10 || number == 13;
    EXPECT_EQ(f.err.find("p.jsonl:" + std::to_string(number) + ": ") == std::string::npos, good_line) << number << "\n" << f.err;
  }
  EXPECT_EQ(std::count(f.err.begin(), f.err.end(), '\n'), 13) << f.err;
  const std::size_t last = f.err.rfind("\n", f.err.size() - 2) + 1;
  EXPECT_TRUE(f.err.substr(last).starts_with("kvartet: ")) << f.err;
}

TEST_F(Score, FilesWithNothingToScore) {
  EXPECT_TRUE(is_refused(score(""), 3, "p.jsonl"));
  EXPECT_TRUE(is_refused(score("\n\n \n"), 3, "p.jsonl"));
  EXPECT_TRUE(is_refused(run({"score", "--task", "longbench/hotpotqa", folder_.path("missing.jsonl")}), 3, "missing.jsonl"));
  EXPECT_TRUE(is_refused(run({"score", "--task", "longbench/hotpotqa", folder_.path()}), 3, folder_.path()));
  const Finished all_bad = score("{\n{\n");
  EXPECT_EQ(all_bad.code, 3);
  EXPECT_EQ(all_bad.json()["n"], 0);
}

TEST_F(Score, Utf16IsNamedAsWhatItIs) {
  const Finished f = score(std::string("\xff\xfe{\0}\0", 6), {});
  EXPECT_EQ(f.code, 3);
  EXPECT_NE(f.err.find("UTF-16"), std::string::npos) << f.err;
}

}  // namespace
}  // namespace kvartet::e2e
