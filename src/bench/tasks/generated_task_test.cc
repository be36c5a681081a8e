#include "bench/tasks/generated_task.h"

#include <set>

#include "bench/metrics/metric.h"
#include "bench/tasks/task_fixture.h"

namespace kvartet {
namespace {

struct Case {
  const char* spec;
  int context;  // words
  int slack;    // the longest unit: a unit more would not have fitted
};

constexpr Case kCases[] = {
    {"needle", 500, 14},
    {"multineedle:k=4", 500, 14},
    {"docqa", 700, 30},
    {"multihop", 700, 30},
    {"chat:turns=4", 900, 30},
    {"fewshot", 400, 16},
    {"codebase:k=8,hops=2", 500, 12},
    {"codebase:k=2,hops=1", 300, 12},
    {"contracts:k=6", 800, 30},
    {"text2json:shape=scaled", 1500, 14},
    {"text2json:shape=paper", 70000, 70000},  // lengths of its own
    {"ruler/niah_single_1", 500, 8},
    {"ruler/niah_single_2", 500, 14},
    {"ruler/niah_single_3", 500, 14},
    {"ruler/niah_multikey_1", 500, 14},
    {"ruler/niah_multikey_2", 500, 10},
    {"ruler/niah_multikey_3", 500, 10},
    {"ruler/niah_multivalue", 500, 14},
    {"ruler/niah_multiquery", 500, 14},
    {"ruler/vt", 500, 8},
    {"ruler/cwe", 500, 4},
    {"ruler/cwe", 5000, 8},
    {"ruler/fwe", 500, 6},
    {"needle:questions=4", 500, 14},
    {"multineedle:k=2,questions=3", 500, 14},
    {"docqa:questions=3", 900, 40},
    {"multihop:questions=2", 900, 40},
    {"chat:turns=4,questions=3", 1200, 40},
    {"fewshot:questions=4", 400, 24},
    {"ruler/niah_multikey_1:questions=4", 500, 14},
    {"ruler/niah_multikey_2:questions=3", 500, 10},
    {"ruler/niah_multikey_3:questions=2", 500, 10},
};

bool has_questions(const Case& c) { return std::string_view(c.spec).find("questions") != std::string_view::npos; }

class GeneratedTasks : public TaskFixture {};

TEST_F(GeneratedTasks, FillTheContextAndNeverExceedIt) {
  for (const Case& c : kCases) {
    for (const Sample& s : samples(c.spec, c.context)) {
      const int words = word_count(s.prompt());
      EXPECT_LE(words, c.context) << c.spec;
      EXPECT_GE(words, c.context - c.slack) << c.spec;
    }
  }
}

TEST_F(GeneratedTasks, ArePureFunctionsOfSeedAndSample) {
  for (const Case& c : kCases) {
    const std::vector<Sample> two = samples(c.spec, c.context, 2);
    const std::vector<Sample> three = samples(c.spec, c.context, 3);
    const std::vector<Sample> other = samples(c.spec, c.context, 2, 9);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(two[i].prompt(), three[i].prompt()) << c.spec;
      EXPECT_EQ(two[i].id, has_questions(c) ? "0." + std::to_string(i) : std::to_string(i));
      EXPECT_NE(two[i].prompt(), other[i].prompt()) << c.spec;
    }
    EXPECT_NE(two[0].prompt(), two[1].prompt()) << c.spec;
  }
}

// Whoever writes the gold text gets the full score; the answer is not in the question.
TEST_F(GeneratedTasks, GoldScoresFullAndTheQuestionDoesNotTell) {
  for (const Case& c : kCases) {
    const std::unique_ptr<Task> task = make_task(c.spec).value();
    const Metric* metric = find_metric(task->metric());
    ASSERT_NE(metric, nullptr) << c.spec;
    for (const Sample& s : samples(c.spec, c.context)) {
      ASSERT_FALSE(s.answers.empty()) << c.spec;
      EXPECT_DOUBLE_EQ(score_answer(*metric, task->answer_cut(), s.gold, s.answers, s.all_classes), 1)
          << c.spec << ": " << s.gold;
      EXPECT_TRUE(check_answer(task->metric(), s.gold, s.answers, s.all_classes).ok());
      EXPECT_LT(score_answer(*metric, task->answer_cut(), s.question, s.answers, s.all_classes), 0.5)
          << c.spec << ": " << s.question;
      EXPECT_GT(s.length, 0);
      EXPECT_LE(word_count(s.gold), s.max_new_tokens) << c.spec;
    }
  }
}

TEST_F(GeneratedTasks, GoldSpansLieInTheDocumentInOrder) {
  for (const Case& c : kCases) {
    for (const Sample& s : samples(c.spec, c.context)) {
      std::size_t last = 0;
      for (const GoldSpan& span : s.gold_spans) {
        EXPECT_LE(last, span.begin) << c.spec;
        EXPECT_LT(span.begin, span.end);
        EXPECT_LE(span.end, s.document.size());
        last = span.end;
      }
      const std::vector<double> depths = s.gold_depths();
      ASSERT_EQ(depths.size(), s.gold_spans.size());
      for (const double depth : depths) EXPECT_TRUE(depth >= 0 && depth < 1);
    }
  }
  EXPECT_EQ(samples("needle", 500)[0].gold_spans.size(), 1U);
  EXPECT_EQ(samples("multihop", 700)[0].gold_spans.size(), 2U);
  EXPECT_EQ(samples("codebase", 900)[0].gold_spans.size(), 16U);
  EXPECT_EQ(samples("contracts", 900)[0].gold_spans.size(), 12U);
  EXPECT_EQ(samples("ruler/vt", 500)[0].gold_spans.size(), 5U);
  EXPECT_EQ(samples("ruler/niah_multikey_1", 500)[0].gold_spans.size(), 1U);
}

TEST_F(GeneratedTasks, DepthsGoThroughTheWholeText) {
  for (const char* spec : {"needle", "docqa", "chat", "ruler/niah_single_2", "ruler/niah_multikey_2"}) {
    std::set<int> quarters;
    for (const Sample& s : samples(spec, 1500, 8)) quarters.insert(static_cast<int>(4 * s.gold_depths().at(0)));
    EXPECT_EQ(quarters, (std::set<int>{0, 1, 2, 3})) << spec;
  }
}

// docs/decisions/0012: prompts about one document differ in the question alone, and ask for different facts.
TEST_F(GeneratedTasks, QuestionsShareTheirDocument) {
  for (const Case& c : kCases) {
    if (!has_questions(c)) continue;
    const std::string spec = c.spec;
    const int questions = spec.back() - '0';
    EXPECT_EQ(make_task(spec).value()->spec(), spec);
    const std::vector<Sample> all = samples(spec, c.context, 2 * questions + 1);
    ASSERT_EQ(all.size(), static_cast<std::size_t>(2 * questions + 1));
    std::set<std::string> documents;
    std::set<std::string> ids;
    for (int i = 0; i < 2 * questions + 1; ++i) {
      const Sample& sample = all[static_cast<std::size_t>(i)];
      const Sample& first = all[static_cast<std::size_t>(i / questions * questions)];
      EXPECT_EQ(sample.before, first.before) << spec;
      EXPECT_EQ(sample.document, first.document) << spec;
      EXPECT_EQ(sample.length, first.length) << spec;
      documents.insert(sample.document);
      ids.insert(sample.id);
    }
    EXPECT_EQ(documents.size(), 3U) << spec;
    EXPECT_EQ(ids.size(), all.size()) << spec;
    EXPECT_EQ(all.back().id, "2.0") << spec;
    std::set<std::string> asked;
    std::set<std::size_t> begins;
    for (int i = 0; i < questions; ++i) {
      asked.insert(all[static_cast<std::size_t>(i)].question);
      for (const GoldSpan& span : all[static_cast<std::size_t>(i)].gold_spans)
        EXPECT_TRUE(begins.insert(span.begin).second) << spec;
    }
    EXPECT_EQ(asked.size(), static_cast<std::size_t>(questions)) << spec;
  }
}

// Which fact the first question of a document asks for changes from document to document.
TEST_F(GeneratedTasks, FirstQuestionsTakeEveryDepth) {
  for (const char* spec : {"needle:questions=4", "docqa:questions=4", "ruler/niah_multikey_1:questions=4"}) {
    std::set<int> places;  // among the facts of its document
    const std::vector<Sample> all = samples(spec, 1500, 16);
    for (std::size_t first = 0; first < 16; first += 4) {
      int place = 0;
      for (std::size_t i = 1; i < 4; ++i) place += all[first + i].gold_depths().at(0) < all[first].gold_depths().at(0) ? 1 : 0;
      places.insert(place);
    }
    EXPECT_EQ(places, (std::set<int>{0, 1, 2, 3})) << spec;
  }
}

TEST_F(GeneratedTasks, OneQuestionIsTheDefault) {
  for (const char* name : {"needle", "docqa", "multihop", "fewshot", "ruler/niah_multikey_2"}) {
    const std::string spelled_out = std::string(name) + ":questions=1";
    EXPECT_EQ(make_task(spelled_out).value()->spec(), name);
    EXPECT_EQ(samples(spelled_out, 900, 2)[1].prompt(), samples(name, 900, 2)[1].prompt());
  }
  EXPECT_EQ(make_task("chat:questions=1").value()->spec(), "chat:turns=4");
  EXPECT_EQ(make_task("fewshot:questions=2,classes=3").value()->spec(), "fewshot:classes=3,questions=2");
}

TEST_F(GeneratedTasks, RefuseWhatMakesNoSense) {
  for (const Case& c : kCases) {
    EXPECT_EQ(load(c.spec, 0).status().code(), Code::kUsage) << c.spec;
    EXPECT_EQ(load(c.spec, 12).status().code(), Code::kExhausted) << c.spec;
  }
  EXPECT_NE(message("codebase:k=99").find("k from 1 to 24"), std::string::npos);
  EXPECT_NE(message("codebase:depth=1").find("it takes k or hops"), std::string::npos);
  EXPECT_NE(message("chat:turns=1").find("turns from 2 to 8"), std::string::npos);
  EXPECT_NE(message("docqa:k=1").find("it takes questions"), std::string::npos);
  EXPECT_NE(message("docqa:questions=0").find("questions from 1 to 16"), std::string::npos);
  EXPECT_NE(message("multineedle:k=6,questions=3").find("questions from 1 to 2"), std::string::npos);
  EXPECT_NE(message("needle:k=3").find("multineedle:k=4"), std::string::npos);
  EXPECT_NE(message("ruler/niah_single_1:questions=2").find("takes no keys"), std::string::npos);
  EXPECT_NE(message("docqa/x").find("docqa"), std::string::npos);
  EXPECT_NE(message("fewshot:classes=x").find("classes from 2 to 6"), std::string::npos);
  EXPECT_NE(message("text2json:shape=big").find("shape=paper or scaled"), std::string::npos);
  EXPECT_NE(message("ruler/niah_single_9").find("the nearest is ruler/niah_single_"), std::string::npos);
  EXPECT_NE(message("ruler/vt:hops=3").find("takes no keys"), std::string::npos);
  EXPECT_NE(message("ruler/qa_1").find("longbench/hotpotqa"), std::string::npos);
  EXPECT_NE(message("text2json", 20000).find("text2json:shape=scaled"), std::string::npos);
}

TEST_F(GeneratedTasks, WordCountsAndPlaces) {
  EXPECT_EQ(word_count(""), 0);
  EXPECT_EQ(word_count("  a b\n\nc "), 3);
  const Filler blocks = {.piece = [](std::size_t i) { return std::to_string(i) + " "; },
                         .starts_block = [](std::size_t i) { return i % 3 == 0; }};
  Sample s;
  lay_out(blocks, 7, {{0.0, "A ", {}}, {0.3, "B ", {}}, {1.0, "C ", {}}}, s);
  EXPECT_EQ(s.document, "A 0 1 2 B 3 4 5 6 C");  // floor(0.3 * 7) = 2, the next block begins at 3
  EXPECT_EQ(gold_text(s, 1), "B");
  EXPECT_EQ(gold_text(s, 2), "C");
  lay_out(blocks, 0, {{0.5, "A ", {}}}, s);
  EXPECT_EQ(s.document, "A");
}

}  // namespace
}  // namespace kvartet
