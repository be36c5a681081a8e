// Readers of LongProc, NeedleBench and Loong on files of their forms, and prompt templates.
#include <gtest/gtest.h>

#include <cstdlib>

#include "bench/metrics/metric.h"
#include "bench/tasks/longproc.h"
#include "bench/tasks/loong.h"
#include "bench/tasks/needlebench.h"
#include "bench/tasks/prompt_template.h"
#include "bench/tasks/task_fixture.h"

namespace kvartet {
namespace {

TEST(PromptTemplate, FillsFieldsAndHalvesDoubledBraces) {
  const std::map<std::string, std::string, std::less<>> fields = {{"a", "{b}"}, {"b", "2"}};
  EXPECT_EQ(fill_template("x {a} {{b}} {b}", fields).value(), "x {b} {b} 2");  // values are not filled again
  EXPECT_NE(fill_template("{c}", fields).status().message().find("{c}"), std::string::npos);
  EXPECT_EQ(fill_template("a } b", fields).status().code(), Code::kBadInput);
  EXPECT_EQ(fill_template("a { b", fields).status().code(), Code::kBadInput);
}

TEST(PromptTemplate, ReadsAYamlBlock) {
  const char* yaml = "OTHER: |-\n  no\nUSER_PROMPT: |-\n  one\n\n    two\n  three\n\nNEXT: x\n";
  EXPECT_EQ(yaml_block(yaml, "USER_PROMPT").value(), "one\n\n  two\nthree");
  EXPECT_EQ(yaml_block("A: |-\r\n  one\r\n  two", "A").value(), "one\ntwo");
  EXPECT_EQ(yaml_block(yaml, "MISSING").status().code(), Code::kBadInput);
}

class HtmlToTsvTask : public TaskFixture {
 protected:
  void SetUp() override {
    put("data/longproc/prompts.yaml",
        "USER_PROMPT: |-\n  Page:\n  {html_str}\n\n  About {task_topic}: {task_description}{filtering_instruction}\n  "
        "{tsv_header}\n  {{Your output}}\n");
    put("data/longproc/webpage/a.html", "<p>{one} two</p>");
    put("data/longproc/webpage/b.html",
        "many words " + std::string(100, 'w') + " more more more more more more more more more more");
  }
  static std::string record(const std::string& id, const std::string& page, const std::string& gt = "n\\tp\\nA\\t1\\n") {
    return R"({"task_id":")" + id + R"(","website_id":"W","html_path":")" + page +
           R"(","task_topic":"shops","task_description":"(1) n",)" + R"("gt":")" + gt +
           R"(","tsv_header":"n\tp","filtering_instruction":" Only A.","output_length_group":"0.5k"})";
  }
};

TEST_F(HtmlToTsvTask, FillsThePromptAndNamesWhatDoesNotFit) {
  put("data/longproc/html_to_tsv_0.5k.json", "[" + record("x1", "webpage/a.html") + "," + record("x2", "webpage/b.html") + "," +
                                                 record("x3", "webpage/c.html") + "," + record("x4", "../a.html") + "," +
                                                 record("x5", "webpage/a.html", "no table") + ",7]");
  const SampleSet set = load("longproc/html_to_tsv:group=0.5k", 20, 0).value();
  ASSERT_EQ(set.samples.size(), 1U);
  const Sample& s = set.samples[0];
  EXPECT_EQ(s.id, "x1");
  EXPECT_EQ(s.prompt(), "Page:\n<p>{one} two</p>\n\nAbout shops: (1) n Only A.\nn\tp\n{Your output}");
  EXPECT_EQ(s.document, "<p>{one} two</p>");
  EXPECT_EQ(s.answers, (std::vector<std::string>{"n\tp\nA\t1\n"}));
  EXPECT_EQ(s.max_new_tokens, 1024);
  ASSERT_EQ(set.skipped.size(), 5U);
  EXPECT_NE(set.skipped[0].reason.find("does not fit"), std::string::npos);
  EXPECT_NE(set.skipped[1].reason.find("c.html"), std::string::npos);
  EXPECT_NE(set.skipped[2].reason.find("leaves the folder"), std::string::npos);
  EXPECT_NE(set.skipped[3].reason.find("gt"), std::string::npos);
  EXPECT_EQ(set.skipped[4].line, 6);
  EXPECT_EQ(load("longproc/html_to_tsv:group=0.5k", 3).status().code(), Code::kExhausted);
}

TEST_F(HtmlToTsvTask, SaysWhatIsWrongWithTheFiles) {
  EXPECT_NE(message("longproc/html_to_tsv").find("html_to_tsv_8k.json is not there"), std::string::npos);
  put("data/longproc/html_to_tsv_2k.json", "{}");
  EXPECT_NE(message("longproc/html_to_tsv").find("group=2k"), std::string::npos);
  EXPECT_NE(message("longproc/html_to_tsv:group=2k").find("not a JSON list"), std::string::npos);
  EXPECT_NE(message("longproc/html_to_tsv:group=4k").find("group=8k, 2k or 0.5k"), std::string::npos);
  put("data/longproc/prompts.yaml", "USER_PROMPT: |-\n  no mark\n");
  EXPECT_NE(message("longproc/html_to_tsv:group=2k").find("{html_str}"), std::string::npos);
}

class NeedleBenchTask : public TaskFixture {
 protected:
  static std::string needle(const std::string& arg1, const std::string& arg2, const std::string& language = "English") {
    return R"({"needle":"The king of )" + arg1 + " is " + arg2 + R"(.","retrieval_question":"Who is the king of )" + arg1 +
           R"(? Please answer in the format 'The king of )" + arg1 + R"( is________.'","gold_standard_answer":"x","arg1":")" +
           arg1 + R"(","arg2":")" + arg2 + R"(","type":1,"language":")" + language + "\"}\n";
  }
  void put_files(int kings) {
    std::string lines =
        needle("Mond", "Karl", "Chinese") + needle("Mars", "Otto") + needle("Mars", "Karl") + needle("Venus", "Otto");
    for (int i = 0; i < kings; ++i) lines += needle("Star" + std::to_string(i), "King" + std::to_string(i));
    put("data/needlebench/needles.jsonl", lines);
    std::string essays;
    for (int i = 0; i < 30; ++i) {
      essays += R"({"title":"t","text":"Essay )" + std::to_string(i) + " begins here. It goes on for a while and stops. \"}\n";
    }
    put("data/needlebench/PaulGrahamEssays.jsonl", essays);
  }
};

TEST_F(NeedleBenchTask, ElevenNeedlesAtTheElevenDepths) {
  put_files(12);
  for (const Sample& s : samples("needlebench/multineedle", 700, 3)) {
    ASSERT_EQ(s.answers.size(), 11U);
    const std::vector<double> depths = s.gold_depths();
    for (std::size_t j = 0; j < 11; ++j) {
      EXPECT_NE(gold_text(s, j).find(s.answers[j]), std::string::npos);  // answers are in order of depth
      EXPECT_NEAR(depths[j], static_cast<double>(j) / 10, 0.12);
      EXPECT_EQ(s.document[s.gold_spans[j].begin - 1], '\n');
      EXPECT_TRUE(s.gold_spans[j].end == s.document.size() || s.document[s.gold_spans[j].end] == '\n');
    }
    EXPECT_NE(s.question.find("Who is the king of Mars?"),
              std::string::npos);  // the first new pair; later ones repeat Mars or Otto
    EXPECT_NE(s.question.find("The king of Mars is________"), std::string::npos);
    EXPECT_EQ(s.question.find("Venus"), std::string::npos);
    EXPECT_EQ(score_answer(*find_metric("keywords"), AnswerCut::kNone, s.gold, s.answers, {}), 1);
    EXPECT_LE(word_count(s.prompt()), 700);
  }
  EXPECT_NE(samples("needlebench/multineedle", 700, 1)[0].prompt(), samples("needlebench/multineedle", 700, 1, 2)[0].prompt());
  EXPECT_EQ(samples("needlebench/multineedle:k=3", 700, 1)[0].answers.size(), 3U);
}

TEST_F(NeedleBenchTask, SaysWhatIsWrongWithTheFiles) {
  EXPECT_NE(message("needlebench/multineedle").find("needles.jsonl"), std::string::npos);
  put_files(4);
  EXPECT_NE(message("needlebench/multineedle").find("5 English needles"), std::string::npos);
  put("data/needlebench/PaulGrahamEssays.jsonl", "{\"text\":5}\n");
  EXPECT_NE(message("needlebench/multineedle:k=3").find("Essays.jsonl:1"), std::string::npos);
  EXPECT_NE(message("needlebench/multineedle:k=12").find("k from 1 to 11"), std::string::npos);
}

class LoongTask : public TaskFixture {};

TEST_F(LoongTask, TakesWhatNeedsNoJudge) {
  put("data/loong/doc/financial/2024-ACME Corp-j.txt", "ACME earned 5.");
  put("data/loong/doc/financial/2023-ACME Corp-j.txt", "ACME earned 4.");
  put("data/loong/doc/paper/p1.md", "# Title One\nText.");
  put("data/loong/doc/legal/legal.json", R"({"L1":{"content":"Facts. ","result":"Guilty."}})");
  const auto record = [](const std::string& id, const std::string& type, int level, const std::string& doc,
                         const std::string& answer, const std::string& language = "en") {
    return R"({"id":")" + id + R"(","type":")" + type + R"(","level":)" + std::to_string(level) + R"(,"set":1,"language":")" +
           language + R"(","question":"Q?","instruction":"I.","prompt_template":"{instruction}\n{docs}\n{question}","doc":[")" +
           doc + R"("],"answer":)" + answer + ",\"shuffle_doc\":true}\n";
  };
  put("data/loong/loong.jsonl",
      record("a", "financial", 3, "ACME", R"({"high":["ACME"]})") + record("b", "paper", 4, "p1.md", R"("[\"x\"]")") +
          record("c", "legal", 3, "L1", R"({"k":[1]})", "zh") + record("d", "paper", 1, "p1.md", "\"In words.\"") +
          record("e", "paper", 3, "gone.md", "[1]") + record("f", "other", 3, "x", "[1]"));
  const SampleSet set = load("loong", 1000, 0).value();
  ASSERT_EQ(set.samples.size(), 2U);
  EXPECT_EQ(set.samples[0].prompt(), "I.\n\u300Aj\u300B\nACME earned 5.\n\n\nQ?");
  EXPECT_NE(set.samples[1].document.find("Title One\n# Title One"), std::string::npos);
  EXPECT_EQ(set.samples[1].answers[0], "[\"x\"]");
  ASSERT_EQ(set.skipped.size(), 3U);
  EXPECT_NE(set.skipped[0].reason.find("judge"), std::string::npos);
  EXPECT_EQ(set.skipped[0].line, 4);
  EXPECT_NE(set.skipped[1].reason.find("gone.md"), std::string::npos);
  EXPECT_NE(set.skipped[2].reason.find("type other"), std::string::npos);
  EXPECT_EQ(load("loong:language=zh", 1000).value().samples.size(), 1U);
  EXPECT_NE(message("loong:language=fr").find("language=en, zh or all"), std::string::npos);
}

// The real files, when they are there.
TEST(ForeignFiles, RealOnes) {
  const char* data = std::getenv("KVARTET_DATA");
  FileSystem& files = FileSystem::real();
  if (data == nullptr || !files.exists(std::string(data) + "/longproc/html_to_tsv_0.5k.json")) {
    GTEST_SKIP() << "skipped: set KVARTET_DATA to a folder that holds longproc/ and needlebench/";
  }
  TaskRequest request;
  request.data_dir = data;
  request.files = &files;
  request.context_tokens = 8000;
  request.count_tokens = [](std::string_view text) -> Result<int> { return static_cast<int>(text.size() / 4); };
  const auto pages = make_task("longproc/html_to_tsv:group=0.5k").value()->samples(request);
  ASSERT_TRUE(pages.ok()) << pages.status().message();
  EXPECT_EQ(pages->samples.size() + pages->skipped.size(), 100U);
  EXPECT_GT(pages->samples.size(), 5U);
  const Metric* rows = find_metric("tsv_rows");
  for (const Sample& s : pages->samples)
    EXPECT_EQ(score_answer(*rows, AnswerCut::kNone, "```tsv\n" + s.gold + "\n```", s.answers, {}), 1) << s.id;
  request.samples = 2;
  const auto needles = make_task("needlebench/multineedle").value()->samples(request);
  ASSERT_TRUE(needles.ok()) << needles.status().message();
  EXPECT_EQ(needles->samples[0].answers.size(), 11U);
}

}  // namespace
}  // namespace kvartet
