// Everything once: one sample, one thread, one run, one prompt kept. No sentence may speak of "1 runs".
#include <regex>

#include "bench_fixture.h"

namespace kvartet::e2e {
namespace {

// "1 runs", "1 prompt tokens": a single one of what is called several. HTML tags stand between words as line ends.
std::vector<std::string> single_plurals(const std::string& text) {
  static const std::regex tags("<[^>]*>");
  static const std::regex one(R"((?:^|[^0-9.,:=\-])1 ((?:prompt |compared |generated |lighter )?[a-z]+s)\b)");
  static const std::vector<std::string> singular = {"is", "was", "has", "less", "times", "as", "minus"};
  std::vector<std::string> found;
  const std::string plain = std::regex_replace(text, tags, "\n");
  for (std::sregex_iterator it(plain.begin(), plain.end(), one), end; it != end; ++it) {
    if (std::find(singular.begin(), singular.end(), (*it)[1].str()) == singular.end()) found.push_back("1 " + (*it)[1].str());
  }
  return found;
}

void expect_no_single_plurals(const Finished& f, const std::string& what) {
  for (const std::string& text : {f.out, f.err}) {
    EXPECT_EQ(single_plurals(text), std::vector<std::string>()) << what << ":\n" << text;
  }
}

TEST(SinglePlurals, AreFound) {
  EXPECT_EQ(single_plurals("in 1 runs, 11 runs, 1.1 runs and 1 run"), std::vector<std::string>{"1 runs"});
  EXPECT_EQ(single_plurals("<td>1 prompt tokens</td>"), std::vector<std::string>{"1 prompt tokens"});
  EXPECT_EQ(single_plurals("k=1 needles; 2,1 tokens; 1 is"), std::vector<std::string>());
}

class Plural : public BenchFixture {
 protected:
  Finished one(const std::string& name, const Arguments& more, const Arguments& caches = {"--kv", "full"}) const {
    return run(Arguments{"bench", "-m", model_, "--threads", "1", "--task", "needle", "--context", "900", "--data",
                         folder_.path(), "--samples", "1", "-o", out(name)} +
               caches + more);
  }
};

TEST_F(Plural, BenchAndReport) {
  const Arguments all = {"--solo", "1", "--keep-prefill", out("kept"), "--question-position", "both"};
  expect_no_single_plurals(one("out", all + Arguments{"--dry-run"}), "dry run");
  expect_no_single_plurals(one("out", all), "first");
  expect_no_single_plurals(one("out", all), "again");
  expect_no_single_plurals(one("more", {"--keep-prefill", out("kept")}, {"--kv", "full", "--kv", "q8_0"}), "kept");
  expect_no_single_plurals(run({"report", out("out")}), "report");
  expect_no_single_plurals(run({"report", out("out"), "-o", out("page.html")}), "page");
  EXPECT_EQ(single_plurals(read_text(out("page.html"))), std::vector<std::string>());
  expect_no_single_plurals(one("poor", {"--fast-tier-bytes", "300K"}), "a failed answer");
  expect_no_single_plurals(run({"report", out("poor")}), "report of a failure");
  Surroundings small;
  small.file_size = 400'000;
  expect_no_single_plurals(
      run(Arguments{"bench", "-m", model_, "--threads", "1", "--task", "needle", "--context", "900", "--data", folder_.path(),
                    "--samples", "1", "-o", out("small"), "--kv", "full", "--keep-prefill", out("cramped")},
          small),
      "one prefill that could not be kept");
}

TEST_F(Plural, RunFidelityScoreAndPlan) {
  expect_no_single_plurals(run({"run", "-m", model_, "--threads", "1", "--raw", "-p", "a", "-n", "1", "--kv", "streamingllm"}),
                           "run");
  const std::string text = folder_.file("text.txt", "abcdefghij");
  for (const Arguments& numbers : {Arguments{"--context", "3", "--tokens", "1", "--free", "1"},
                                   {"--context", "2", "--tokens", "1"},
                                   {"--context", "1", "--tokens", "1"}}) {
    expect_no_single_plurals(run(Arguments{"fidelity", "-m", model_, "--threads", "1", "-f", text, "--kv", "q8_0"} + numbers),
                             "fidelity");
  }
  expect_no_single_plurals(run({"score", "--task", "longbench/hotpotqa", folder_.file("none.jsonl", "one\n")}), "score");
  setenv("KVARTET_HOME", folder_.path("home").c_str(), 1);
  expect_no_single_plurals(
      run({"plan", "-m", model_, "--for", "single-fact", "--prompt-tokens", "1", "--output-tokens", "1", "--threads", "1"}),
      "plan");
  unsetenv("KVARTET_HOME");
}

}  // namespace
}  // namespace kvartet::e2e
