#include "results/merge.h"

#include <gtest/gtest.h>

namespace kvartet {
namespace {

StoredResults part(std::initializer_list<int> samples, const std::string& spec, std::int64_t process = 1) {
  StoredResults r;
  RunRecord run;
  run.identity = {
      .model_hash = "00ff", .model_name = "tiny", .model_shape = "s", .seed = 1, .parameters = "rows=1", .version = "0.1.0"};
  run.machine.cpu = "cpu";
  run.started = "2025-01-01T00:00:00Z";
  run.process = process;
  run.id = 7;
  r.runs = {run};
  r.tasks = {{"needle", "contains"}};
  for (const int i : samples) {
    SampleRecord s;
    s.key = {"needle", 2048, std::to_string(i)};
    s.ordinal = i;
    s.prompt_hash = "hash " + std::to_string(i);
    r.samples.push_back(s);
    Outcome o;
    o.key = s.key;
    o.spec = spec;
    o.score = i;
    o.run = 7;
    r.outcomes.push_back(o);
  }
  return r;
}

Result<MergedResults> merged(StoredResults a, StoredResults b) {
  return merge_results({{"first/folder", std::move(a)}, {"second/folder", std::move(b)}});
}

TEST(Merge, PartsOfAJobStandAsOneRunOfIt) {
  const MergedResults m = merged(part({0, 3}, "full", 1), part({1, 2}, "full", 2)).value();
  ASSERT_EQ(m.results.samples.size(), 4U);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(m.results.samples[static_cast<std::size_t>(i)].ordinal, i);
    EXPECT_EQ(m.results.outcomes[static_cast<std::size_t>(i)].score, i);
  }
  EXPECT_EQ(m.repeated, 0);
  ASSERT_EQ(m.results.runs.size(), 2U);
  EXPECT_NE(m.results.outcomes[0].run, m.results.outcomes[1].run);
}

TEST(Merge, AnotherDaysCacheStandsBesideTheFirst) {
  const MergedResults m = merged(part({0, 1}, "full", 1), part({0, 1}, "kivi", 2)).value();
  EXPECT_EQ(m.results.samples.size(), 2U);
  ASSERT_EQ(m.results.outcomes.size(), 4U);
  EXPECT_EQ(m.results.outcomes[0].spec, "full");
  EXPECT_EQ(m.results.outcomes[1].spec, "kivi");
  EXPECT_EQ(m.results.outcomes[1].key.sample, "0");
}

TEST(Merge, TheSameTwiceChangesNothingAndIsCounted) {
  const MergedResults m = merged(part({0, 1}, "full"), part({0, 1}, "full")).value();
  EXPECT_EQ(m.results.runs.size(), 1U);
  EXPECT_EQ(m.results.outcomes.size(), 2U);
  EXPECT_EQ(m.repeated, 2);
}

TEST(Merge, ASuccessTakesThePlaceOfAFailure) {
  StoredResults failed = part({0}, "full", 1);
  failed.outcomes[0].error = "killed";
  const MergedResults m = merged(failed, part({0}, "full", 2)).value();
  ASSERT_EQ(m.results.outcomes.size(), 1U);
  EXPECT_FALSE(m.results.outcomes[0].failed());
}

TEST(Merge, KnowledgeOfANewerFolderFillsWhatAnOldOneLacks) {
  StoredResults newer = part({0}, "kivi", 2);
  newer.samples[0].question = "Which?";
  newer.samples[0].depths_json = "[0.5]";
  const MergedResults m = merged(part({0}, "full", 1), newer).value();
  EXPECT_EQ(m.results.samples[0].question, "Which?");
  EXPECT_EQ(m.results.samples[0].depths_json, "[0.5]");
}

// One folder has the questions seen, the other unseen: they are other samples of the same prompts.
TEST(Merge, PositionsOfTheQuestionStandSideBySide) {
  StoredResults unseen = part({0, 1}, "full", 2);
  for (SampleRecord& s : unseen.samples) s.key.position = QuestionPosition::kUnseen;
  for (Outcome& o : unseen.outcomes) o.key.position = QuestionPosition::kUnseen;
  const MergedResults m = merged(unseen, part({0, 1}, "full", 1)).value();
  EXPECT_EQ(m.repeated, 0);
  ASSERT_EQ(m.results.samples.size(), 4U);
  ASSERT_EQ(m.results.outcomes.size(), 4U);
  EXPECT_EQ(m.results.outcomes[1].key.position, QuestionPosition::kSeen);
  EXPECT_EQ(m.results.outcomes[2].key.position, QuestionPosition::kUnseen);
  EXPECT_EQ(parameters_text(m.results), "question=seen+unseen, rows=1");
}

TEST(Merge, RunsAloneComeAlong) {
  StoredResults a = part({0}, "full", 1);
  StoredResults b = part({0}, "full", 2);
  SoloRun solo;
  solo.key = a.samples[0].key;
  solo.spec = "full";
  solo.run = 7;
  for (const int repeat : {1, 0}) {
    solo.repeat = repeat;
    b.solo.push_back(solo);
  }
  solo.error = "killed";
  a.solo = {solo};  // repeat 0
  const MergedResults m = merged(a, b).value();
  ASSERT_EQ(m.results.solo.size(), 2U);
  EXPECT_EQ(m.results.solo[0].repeat, 0);
  EXPECT_FALSE(m.results.solo[0].failed());
  EXPECT_EQ(m.results.solo[1].repeat, 1);
  EXPECT_EQ(m.results.solo[0].run, m.results.runs[1].id);
}

TEST(Merge, RefusesWhatDoesNotMatchAndSaysWhich) {
  const auto refused = [](const StoredResults& other, std::initializer_list<const char*> words) {
    const Result<MergedResults> r = merged(part({0}, "full"), other);
    ASSERT_FALSE(r.ok()) << *words.begin();
    EXPECT_EQ(r.status().code(), Code::kUsage);
    EXPECT_NE(r.status().message().find("first/folder"), std::string::npos) << r.status().message();
    EXPECT_NE(r.status().message().find("second/folder"), std::string::npos) << r.status().message();
    for (const char* word : words) EXPECT_NE(r.status().message().find(word), std::string::npos) << r.status().message();
  };
  StoredResults other = part({0}, "full");
  other.runs[0].identity.model_hash = "1234";
  refused(other, {"model", "00ff", "1234"});
  other = part({0}, "full");
  other.runs[0].identity.seed = 9;
  refused(other, {"seed", "1", "9"});
  other = part({0}, "full");
  other.runs[0].identity.parameters = "rows=2";
  refused(other, {"rows=1", "rows=2"});
  other = part({0}, "full");
  other.runs[0].identity.version = "9.9.9";
  refused(other, {"version", "0.1.0", "9.9.9"});
  other = part({0}, "full");
  other.tasks[0].metric = "f1";
  refused(other, {"needle", "contains", "f1"});
  other = part({0}, "full");
  other.samples[0].prompt_hash = "other";
  refused(other, {"sample 0", "hash 0", "other"});
}

}  // namespace
}  // namespace kvartet
