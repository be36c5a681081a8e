#include "bench/tasks/longbench.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>

#include "core/memory_file_system.h"

namespace kvartet {
namespace {

void put(FileSystem& files, const std::string& path, std::string_view text) {
  ASSERT_TRUE(write_file_atomically(files, path, text).ok());
}

class LongBenchTaskTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(files_.make_directories("data/longbench/config").ok());
    put(files_, "data/longbench/config/dataset2prompt.json",
        R"({"hotpotqa": "Passages.\n{context}\n\nQuestion: {input}\nAnswer:", "multi_news": "News:\n{context}\n\nSummary:",
            "samsum": "{context}\n\n{input}", "qasper": "no mark"})");
    put(files_, "data/longbench/config/dataset2maxlen.json",
        R"({"hotpotqa": 32, "multi_news": 512, "samsum": 128, "qasper": 128})");
  }

  Result<SampleSet> load(std::string_view spec, int samples = 0) {
    KV_ASSIGN(const auto task, make_task(spec));
    TaskRequest request;
    request.samples = samples;
    request.data_dir = "data";
    request.files = &files_;
    return task->samples(request);
  }

  MemoryFileSystem files_;
};

TEST_F(LongBenchTaskTest, FillsTheTemplate) {
  put(files_, "data/longbench/hotpotqa.jsonl",
      R"({"input":"Who is {context}?","context":"Doc {input} here","answers":["Ada","Countess"],"length":3,"_id":"x1"})"
      "\n");
  ;
  const auto set = load("longbench/hotpotqa");
  ASSERT_TRUE(set.ok()) << set.status().message();
  ASSERT_EQ(set->samples.size(), 1U);
  const Sample& sample = set->samples[0];
  EXPECT_EQ(sample.id, "x1");
  EXPECT_EQ(sample.before, "Passages.\n");
  EXPECT_EQ(sample.document, "Doc {input} here");  // marks in the texts are no marks
  EXPECT_EQ(sample.question, "\n\nQuestion: Who is {context}?\nAnswer:");
  EXPECT_EQ(sample.prompt(), "Passages.\nDoc {input} here\n\nQuestion: Who is {context}?\nAnswer:");
  EXPECT_EQ(sample.answers, (std::vector<std::string>{"Ada", "Countess"}));
  EXPECT_EQ(sample.gold, "Ada");
  EXPECT_EQ(gold_continuation(sample, PromptForm::kRaw), " Ada");
  EXPECT_EQ(gold_continuation(sample, PromptForm::kChat), "Ada");
  EXPECT_EQ(sample.length, 3);
  EXPECT_EQ(sample.max_new_tokens, 32);
  EXPECT_TRUE(sample.chat_template);
  EXPECT_FALSE(sample.stop_at_newline);
}

TEST_F(LongBenchTaskTest, SamsumStopsAtNewlineAndHasNoTemplate) {
  put(files_, "data/longbench/samsum.jsonl", R"({"input":"Dialogue","context":"two words","answers":["S"]})");
  const auto set = load("longbench/samsum");
  ASSERT_TRUE(set.ok()) << set.status().message();
  EXPECT_FALSE(set->samples[0].chat_template);
  EXPECT_TRUE(set->samples[0].stop_at_newline);
  EXPECT_EQ(set->samples[0].length, 2);     // counted when the field is missing
  EXPECT_EQ(set->samples[0].id, "line 1");  // as is the id
}

TEST_F(LongBenchTaskTest, TakesTheFirstRecordsAndNamesTheBadOnes) {
  put(files_, "data/longbench/multi_news.jsonl",
      "{\"input\":\"\",\"context\":\"a\",\"answers\":[\"x\"],\"_id\":\"1\"}\n{\"input\":\"\",\"context\":\"b\"}\n"
      "{\"input\":\"\",\"context\":\"c\",\"answers\":[\"x\"],\"_id\":\"1\"}\n"
      "{\"input\":\"\",\"context\":\"d\",\"answers\":[\"x\"],\"_id\":\"4\"}\n{\"input\":\"\",\"context\":\"e\",\"answers\":["
      "\"x\"],\"_id\":\"5\"}");
  const auto set = load("longbench/multi_news", 2);
  ASSERT_TRUE(set.ok());
  ASSERT_EQ(set->samples.size(), 2U);
  EXPECT_EQ(set->samples[1].document, "d");
  ASSERT_EQ(set->skipped.size(), 2U);
  EXPECT_EQ(set->skipped[0].where(), "data/longbench/multi_news.jsonl:2");
  EXPECT_NE(set->skipped[1].reason.find("repeats the id 1 of line 1"), std::string::npos);
}

TEST_F(LongBenchTaskTest, SaysWhatIsWrongWithTheFiles) {
  EXPECT_EQ(load("longbench/hotpotqa").status().code(), Code::kBadInput);  // no records file
  EXPECT_EQ(load("longbench/musique").status().code(), Code::kBadInput);   // no prompt
  put(files_, "data/longbench/qasper.jsonl", R"({"input":"","context":"","answers":["x"]})");
  EXPECT_NE(load("longbench/qasper").status().message().find("{context}"), std::string::npos);
  put(files_, "data/longbench/hotpotqa.jsonl", "{\n");
  EXPECT_NE(load("longbench/hotpotqa").status().message().find("hotpotqa.jsonl:1"), std::string::npos);
  put(files_, "data/longbench/hotpotqa.jsonl", "");
  EXPECT_NE(load("longbench/hotpotqa").status().message().find("holds no records"), std::string::npos);
  put(files_, "data/longbench/config/dataset2maxlen.json", "[");
  EXPECT_NE(load("longbench/hotpotqa").status().message().find("dataset2maxlen.json"), std::string::npos);

  const auto task = make_task("longbench/hotpotqa");
  TaskRequest without_data;
  without_data.files = &files_;
  EXPECT_EQ(task.value()->samples(without_data).status().code(), Code::kUsage);
}

TEST(LongBench, TableOfSection13_1) {
  const std::map<std::string_view, std::string_view> metric_of = {
      {"narrativeqa", "f1"},      {"qasper", "f1"},
      {"multifieldqa_en", "f1"},  {"hotpotqa", "f1"},
      {"2wikimqa", "f1"},         {"musique", "f1"},
      {"triviaqa", "f1"},         {"gov_report", "rouge"},
      {"qmsum", "rouge"},         {"multi_news", "rouge"},
      {"samsum", "rouge"},        {"trec", "classification"},
      {"passage_count", "count"}, {"passage_retrieval_en", "retrieval"},
      {"lcc", "code_sim"},        {"repobench-p", "code_sim"}};
  const std::set<std::string_view> first_line = {"trec", "triviaqa", "samsum"};
  const std::set<std::string_view> plain = {"trec", "triviaqa", "samsum", "lcc", "repobench-p"};
  EXPECT_EQ(longbench_sets().size(), metric_of.size());
  for (const LongBenchSet& set : longbench_sets()) {
    ASSERT_TRUE(metric_of.contains(set.name)) << set.name;
    EXPECT_EQ(set.metric, metric_of.at(set.name)) << set.name;
    EXPECT_NE(find_metric(set.metric), nullptr) << set.name;
    EXPECT_EQ(set.answer_cut == AnswerCut::kFirstLine, first_line.contains(set.name)) << set.name;
    EXPECT_EQ(set.chat_template, !plain.contains(set.name)) << set.name;
    EXPECT_EQ(set.stop_at_newline, set.name == "samsum") << set.name;
  }
}

TEST(LongBench, RefusesChineseSetsWithTheReason) {
  for (const char* set : {"multifieldqa_zh", "dureader", "vcsum", "lsht", "passage_retrieval_zh"}) {
    const auto task = make_task(std::string("longbench/") + set);
    ASSERT_FALSE(task.ok()) << set;
    EXPECT_NE(task.status().message().find("jieba"), std::string::npos);
  }
}

TEST(LongBench, ReadsTheRealFiles) {
  const char* data = std::getenv("KVARTET_DATA");
  if (data == nullptr || !FileSystem::real().exists(std::string(data) + "/longbench/multi_news.jsonl")) {
    GTEST_SKIP() << "skipped: set KVARTET_DATA to a folder that holds longbench/";
  }
  TaskRequest request;
  request.data_dir = data;
  request.files = &FileSystem::real();
  const auto set = make_task("longbench/multi_news").value()->samples(request);
  ASSERT_TRUE(set.ok()) << set.status().message();
  EXPECT_EQ(set->samples.size(), 100U);
  EXPECT_TRUE(set->skipped.empty());
  EXPECT_EQ(set->samples[0].max_new_tokens, 512);
  EXPECT_TRUE(set->samples[0].before.ends_with("News:\n"));
  EXPECT_TRUE(set->samples[0].document.starts_with("Passage 1:"));
  EXPECT_TRUE(set->samples[0].question.ends_with("Summary:"));
}

}  // namespace
}  // namespace kvartet
