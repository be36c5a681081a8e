#include "bench/tasks/text2json.h"

#include <nlohmann/json.hpp>
#include <set>

#include "bench/metrics/metric.h"
#include "bench/tasks/task_fixture.h"
#include "bench/tasks/text2json_families.h"

namespace kvartet {
namespace {

class Text2JsonTask : public TaskFixture {};

TEST_F(Text2JsonTask, GoldIsAnArrayInTheReleasedForm) {
  std::set<std::string> families;
  for (const Sample& s : samples("text2json:shape=scaled", 3000, 8)) {
    const nlohmann::json gold = nlohmann::json::parse(s.answers.at(0), nullptr, false);
    ASSERT_TRUE(gold.is_array());
    EXPECT_GE(gold.size(), 3U);
    EXPECT_LE(gold.size(), 10U);  // one for 300 tokens
    ASSERT_EQ(gold.size(), s.gold_spans.size());
    std::set<std::string> names;
    for (std::size_t i = 0; i < gold.size(); ++i) {
      ASSERT_EQ(gold[i].size(), 3U);
      for (const auto& [key, value] : gold[i].items()) {
        ASSERT_TRUE(value.is_string());
        EXPECT_EQ(value.get<std::string>().find_first_of("[]\""), std::string::npos);
        EXPECT_NE(gold_text(s, i).find(value.get<std::string>()), std::string::npos) << key;  // entries in text order
      }
      names.insert(gold[i]["name"]);
    }
    EXPECT_EQ(names.size(), gold.size());
    EXPECT_TRUE(check_answer("text2json", "", s.answers, {}).ok());
    families.insert(s.before);
  }
  EXPECT_EQ(families.size(), kEntityFamilies);
}

// offloading.md 13.2: 10K to 63.5K tokens with a mean of about 20.1K; 3 to 20 entries; 1,024 tokens of answer.
TEST_F(Text2JsonTask, PaperShape) {
  double sum = 0;
  std::size_t least = 100;
  std::size_t most = 0;
  const std::vector<Sample> all = samples("text2json", 65536, 60);
  for (const Sample& s : all) {
    const int words = word_count(s.prompt());
    EXPECT_GE(words, 10'000 - 14);
    EXPECT_LE(words, 63'500);
    sum += words;
    least = std::min(least, s.gold_spans.size());
    most = std::max(most, s.gold_spans.size());
    EXPECT_EQ(s.max_new_tokens, 1024);
  }
  EXPECT_NEAR(sum / static_cast<double>(all.size()), 20'500, 4'000);
  EXPECT_EQ(least, 3U);
  EXPECT_EQ(most, 20U);
  EXPECT_EQ(make_task("text2json").value()->spec(), "text2json:shape=paper");
  EXPECT_EQ(make_task("text2json:shape=scaled,scorer=strict").value()->metric(), "text2json_strict");
}

TEST_F(Text2JsonTask, LookalikesHaveNoAttributes) {
  Rng rng(1);
  for (std::size_t family = 0; family < kEntityFamilies; ++family) {
    for (const Entity& e : draw_entities(family, rng, 40)) {
      const std::string lookalike = lookalike_prose(family, e, rng);
      EXPECT_NE(lookalike.find(e.name), std::string::npos);
      EXPECT_EQ(lookalike.find(e.first), std::string::npos);
      EXPECT_EQ(lookalike.find(e.second), std::string::npos);
    }
  }
}

TEST_F(Text2JsonTask, ReadsTheReleasedForm) {
  put("data/text2json/t.jsonl",
      R"({"problem":"List the movies. Text.","answer":"[{\"name\":\"A\",\"director\":\"B\",\"year\":\"1\"}]"})"
      "\n"
      R"({"problem":"twice","answer":"[{\"name\":\"A\",\"x\":\"B\",\"y\":\"1\"},{\"name\":\"A\",\"x\":\"B\",\"y\":\"1\"}]"})"
      "\n"
      R"({"problem":"one two three four five six seven eight nine ten eleven twelve","answer":"[]","id":"long"})"
      "\n{\"problem\":5}\n");
  const SampleSet set = load("text2json/released", 10, 0).value();
  ASSERT_EQ(set.samples.size(), 1U);
  EXPECT_EQ(set.samples[0].prompt(), "List the movies. Text.");
  EXPECT_EQ(set.samples[0].id, "line 1");
  EXPECT_EQ(set.samples[0].max_new_tokens, 1024);
  ASSERT_EQ(set.skipped.size(), 3U);
  EXPECT_NE(set.skipped[0].reason.find("two gold entries"), std::string::npos);  // "bad" records leave the denominator
  EXPECT_EQ(set.skipped[0].where(), "data/text2json/t.jsonl:2");
  EXPECT_NE(set.skipped[1].reason.find("problem"), std::string::npos);
  EXPECT_NE(set.skipped[2].reason.find("12 tokens does not fit the 10"), std::string::npos);  // never cut
  EXPECT_EQ(load("text2json/released", 3).status().code(), Code::kExhausted);
  put("data/text2json/t.jsonl", "");
  EXPECT_EQ(load("text2json/released", 10).status().code(), Code::kBadInput);
}

}  // namespace
}  // namespace kvartet
