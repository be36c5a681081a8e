#include "bench/tasks/needle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "bench/metrics/metric.h"
#include "bench/tasks/draw.h"
#include "bench/tasks/needle_facts.h"
#include "bench/tasks/needle_haystack.h"
#include "core/memory_file_system.h"

namespace kvartet {
namespace {

void put(MemoryFileSystem& files, const std::string& path, std::string_view text) {
  auto file = files.create(path);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->append(text).ok());
  ASSERT_TRUE((*file)->close().ok());
}

// One token per word: enough to test lengths.
Result<int> count_words(std::string_view text) {
  int words = 0;
  bool inside = false;
  for (char c : text) {
    const bool space = c == ' ' || c == '\n';
    words += !space && !inside ? 1 : 0;
    inside = !space;
  }
  return words;
}

class NeedleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(files_.make_directories("data/haystack").ok());
    std::string b;
    for (int i = 0; i < 300; ++i) b += "Sentence " + std::to_string(i) + " of the second essay talks of e.g. nothing at all. ";
    put(files_, "data/haystack/b.txt", b);
    put(files_, "data/haystack/a.txt", "First essay here. It has two sentences.");
    put(files_, "data/haystack/notes.md", "Not an essay.");
  }
  TaskRequest request(int context, int samples = 5, std::uint64_t seed = 1) {
    TaskRequest r;
    r.context_tokens = context;
    r.samples = samples;
    r.seed = seed;
    r.data_dir = "data";
    r.files = &files_;
    r.count_tokens = count_words;
    return r;
  }
  static std::unique_ptr<Task> task(std::string_view spec) { return make_task(spec).value(); }

  MemoryFileSystem files_;
};

TEST_F(NeedleTest, HidesOneFactAndFillsTheContext) {
  const std::vector<Sample> samples = task("needle")->samples(request(400)).value().samples;
  ASSERT_EQ(samples.size(), 5U);
  for (const Sample& s : samples) {
    ASSERT_EQ(s.answers.size(), 1U);
    const std::string prompt = s.prompt();
    EXPECT_NE(s.document.find(" is " + s.answers[0] + "."), std::string::npos);
    EXPECT_EQ(s.question.find(s.answers[0]), std::string::npos);
    EXPECT_NE(s.gold.find(s.answers[0]), std::string::npos);
    const int words = count_words(prompt).value();
    EXPECT_LE(words, 400);
    EXPECT_GT(words, 400 - 15);  // one sentence more would not have fitted
  }
}

TEST_F(NeedleTest, NeedlesStandAtSentenceBordersAtTheirDepths) {
  const std::vector<Sample> samples = task("needle")->samples(request(400, 8)).value().samples;
  std::vector<double> at;
  for (const Sample& s : samples) {
    const std::size_t needle = s.document.find("The number of the locker that");
    ASSERT_NE(needle, std::string::npos);
    EXPECT_TRUE(needle == 0 || s.document[needle - 1] == ' ' || s.document[needle - 1] == '\n');
    if (needle > 1) {
      EXPECT_EQ(s.document[s.document.find_last_not_of(" \n", needle - 1)], '.');
    }
    at.push_back(static_cast<double>(needle) / static_cast<double>(s.document.size()));
  }
  // Eight samples: one in each eighth, give or take a sentence.
  std::sort(at.begin(), at.end());
  for (std::size_t i = 0; i + 1 < at.size(); ++i) EXPECT_NEAR(at[i + 1] - at[i], 0.125, 0.04);
}

TEST_F(NeedleTest, MultineedleAsksForAllAndScoresTheShare) {
  const std::unique_ptr<Task> four = task("multineedle:k=4");
  EXPECT_EQ(four->spec(), "multineedle:k=4");
  EXPECT_EQ(task("multineedle")->spec(), "multineedle:k=4");
  const Sample s = four->samples(request(500, 1)).value().samples.at(0);
  ASSERT_EQ(s.answers.size(), 4U);
  EXPECT_EQ(std::set<std::string>(s.answers.begin(), s.answers.end()).size(), 4U);
  for (const std::string& value : s.answers) {
    EXPECT_NE(s.document.find(value), std::string::npos);
    EXPECT_NE(s.gold.find(value), std::string::npos);
  }
  const Metric* metric = find_metric(four->metric());
  ASSERT_NE(metric, nullptr);
  EXPECT_DOUBLE_EQ(score_answer(*metric, four->answer_cut(), s.gold, s.answers, {}), 1);
  EXPECT_DOUBLE_EQ(score_answer(*metric, four->answer_cut(), "It is " + s.answers[2] + ", I think.", s.answers, {}), 0.25);
}

TEST_F(NeedleTest, SamplesArePureFunctionsOfSeedAndIndex) {
  const auto five = task("needle")->samples(request(400, 5)).value().samples;
  const auto eight = task("needle")->samples(request(400, 8)).value().samples;
  for (std::size_t i = 0; i < five.size(); ++i) {
    EXPECT_EQ(five[i].prompt(), eight[i].prompt());  // more samples extend a run, they do not replace it
    EXPECT_EQ(five[i].id, eight[i].id);
  }
  const auto other = task("needle")->samples(request(400, 5, 2)).value().samples;
  EXPECT_NE(five[0].prompt(), other[0].prompt());
}

TEST_F(NeedleTest, RefusesWhatMakesNoSense) {
  EXPECT_EQ(make_task("needle:k=2").status().code(), Code::kUsage);
  EXPECT_EQ(make_task("multineedle:k=0").status().code(), Code::kUsage);
  EXPECT_EQ(make_task("multineedle:k=17").status().code(), Code::kUsage);
  EXPECT_EQ(make_task("multineedle:k=four").status().code(), Code::kUsage);
  EXPECT_EQ(make_task("multineedle:depth=1").status().code(), Code::kUsage);
  EXPECT_EQ(make_task("needle/big").status().code(), Code::kUsage);
  EXPECT_EQ(task("needle")->samples(request(0)).status().code(), Code::kUsage);
  EXPECT_EQ(task("needle")->samples(request(10)).status().code(), Code::kExhausted);
  MemoryFileSystem empty;
  TaskRequest r = request(400);
  r.files = &empty;
  const Status status = task("needle")->samples(r).status();
  EXPECT_EQ(status.code(), Code::kBadInput);
  EXPECT_NE(status.message().find("make setup"), std::string::npos);
}

TEST(NeedleFacts, AreDistinctWithinASampleAndMany) {
  std::set<std::string> clauses;
  for (int sample = 0; sample < 200; ++sample) {
    std::set<std::string> names;
    std::set<std::string> values;
    for (const NeedleFact& f : needle_facts(7, sample, kMaxNeedles)) {
      names.insert(f.name);
      values.insert(f.value);
      clauses.insert(f.name + f.place + f.value);
      EXPECT_EQ(f.value.size(), 2U);
    }
    EXPECT_EQ(names.size(), std::size_t{kMaxNeedles});
    EXPECT_EQ(values.size(), std::size_t{kMaxNeedles});
  }
  EXPECT_GT(clauses.size(), 3000U);
}

TEST(NeedleFacts, DepthsFillEveryPart) {
  for (int k : {1, 4}) {
    for (int j = 0; j < k; ++j) {
      std::vector<double> depths;
      for (int sample = 0; sample < 16; ++sample)
        depths.push_back(even_depths(3, DrawStream::kNeedleDepths, sample, k)[static_cast<std::size_t>(j)] * k - j);
      std::sort(depths.begin(), depths.end());
      EXPECT_GE(depths.front(), 0);
      EXPECT_LT(depths.back(), 1);
      for (std::size_t i = 0; i + 1 < depths.size(); ++i) EXPECT_NEAR(depths[i + 1] - depths[i], 1.0 / 16, 1e-9);
    }
  }
}

TEST(NeedleHaystack, CutsAtSentenceEndsOnlyAndLosesNothing) {
  const std::string text = "One is done. Two, e.g. this, costs 3.5 euros!  \"Three?\" Four ends\nhere (really.) Five";
  const std::vector<std::string> pieces = split_sentences(text);
  const std::vector<std::string> expected = {"One is done. ", "Two, e.g. this, costs 3.5 euros!  ", "\"Three?\" ",
                                             "Four ends\nhere (really.) ", "Five"};
  EXPECT_EQ(pieces, expected);
  std::string joined;
  for (const std::string& p : pieces) joined += p;
  EXPECT_EQ(joined, text);
}

TEST(NeedleHaystack, LooksIntoTheDataFolderFirstAndThenWhereTheModelsAre) {
  MemoryFileSystem files;
  for (const char* folder : {"data/haystack", "elsewhere/haystack"}) {
    ASSERT_TRUE(files.make_directories(folder).ok());
    put(files, std::string(folder) + "/x.txt", std::string("From ") + folder);
  }
  EXPECT_EQ(load_haystack(files, "data", "elsewhere/haystack").value().sentences.front(), "From data/haystack\n\n");
  for (const char* data_dir : {"", "nowhere"})
    EXPECT_EQ(load_haystack(files, data_dir, "elsewhere/haystack").value().sentences.front(), "From elsewhere/haystack\n\n");
  const Status none = load_haystack(files, "", "gone/haystack").status();
  EXPECT_EQ(none.code(), Code::kBadInput);
  EXPECT_NE(none.message().find("gone/haystack"), std::string::npos) << none.message();
}

TEST(NeedleHaystack, RefusesTextThatIsNotUtf8) {
  MemoryFileSystem files;
  ASSERT_TRUE(files.make_directories("models/haystack").ok());
  put(files, "models/haystack/x.txt", "bad \xff text.");
  EXPECT_EQ(load_haystack(files, "", "models/haystack").status().code(), Code::kBadInput);
}

}  // namespace
}  // namespace kvartet
