#include "bench/metrics/entry_match.h"

#include <gtest/gtest.h>

namespace kvartet {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kGold = R"([{"name":"A","price":"1","color":"red"},{"name":"B","price":"2","color":"blue"},
  {"name":"C's","price":"3","color":"it’s"},{"name":"D","price":"4","color":"gray"}])";
constexpr const char* kPerfect = R"([{"name":"A","price":"1","color":"red"},{"name":"B","price":"2","color":"blue"},
  {"name":"C's","price":"3","color":"it's"},{"name":"D","price":"4","color":"gray"}])";

double percent(std::string_view prediction) {
  const Result<EntryScore> result = score_entries(prediction, kGold, EntryScoring::kRobust);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return 100 * result->score;
}

bool raises(std::string_view prediction) { return !score_entries(prediction, kGold, EntryScoring::kStrict).ok(); }

// offloading.md 13.2, worked example.
TEST(EntryMatch, WorkedExample) {
  const std::string body =
      R"({"name":"A","price":"1","color":"red"},{"name":"B","price":"9","color":"blue"},{"name":"C's","price":"3"},
    {"name":"X","price":"1","color":"red"})";
  EXPECT_DOUBLE_EQ(percent("[" + body + "]"), 45.0);
  EXPECT_DOUBLE_EQ(percent("[" + body + R"(,{"name":"A","price":"1","color":"red"}])"), 37.5);
  const EntryScore score = score_entries("[" + body + "]", kGold, EntryScoring::kStrict).value();
  EXPECT_EQ(score.gold, 4);
  EXPECT_EQ(score.matched, 3);
  EXPECT_EQ(score.unknown, 1);
  EXPECT_EQ(score.missing_fields, 1);
  EXPECT_EQ(score.wrong_values, 1);
  EXPECT_FALSE(score.format_failure);
}

// offloading.md 13.2, the table of edge cases, row by row.
TEST(EntryMatch, FencesProseAndWrappersDoNotMatter) {
  EXPECT_EQ(percent(kPerfect), 100);
  EXPECT_EQ(percent("```json\n" + std::string(kPerfect) + "\n```"), 100);
  EXPECT_EQ(percent("Here you are: " + std::string(kPerfect) + " That is all."), 100);
  EXPECT_EQ(percent("{\"items\": " + std::string(kPerfect) + "}"), 100);
}

TEST(EntryMatch, BrokenFormsScoreZero) {
  const auto fails = [](std::string_view prediction) {
    const EntryScore s = score_entries(prediction, kGold, EntryScoring::kStrict).value();
    return s.format_failure && s.score == 0;
  };
  EXPECT_TRUE(fails(R"([{"name":"A","price":"[1]","color":"red"}])"));
  EXPECT_TRUE(fails(R"([{"name":"A","price":"1]","color":"red"}])"));
  EXPECT_TRUE(fails(std::string(kPerfect) + kPerfect));
  EXPECT_TRUE(fails(R"([{"name":"A","price":"1","color":"red"})"));
  EXPECT_TRUE(fails(R"([{"name":"A","price":"1","color":"red"},])"));
  EXPECT_TRUE(fails("] ["));
  EXPECT_TRUE(fails("no array"));
  EXPECT_TRUE(fails(""));
  EXPECT_TRUE(fails("[not json]"));
}

TEST(EntryMatch, EmptyArrayIsAnAnswerWithoutEntries) {
  const EntryScore s = score_entries("[]", kGold, EntryScoring::kStrict).value();
  EXPECT_EQ(s.score, 0);
  EXPECT_FALSE(s.format_failure);
}

TEST(EntryMatch, OneEntryOfFour) {
  EXPECT_EQ(percent("[{\"name\":\"C\u2019s\",\"price\":\"3\",\"color\":\"it's\"}]"), 25);  // curly apostrophe
  EXPECT_EQ(percent(R"([{"name":"A","price":"1 ","color":"red"}])"), 18.75);               // trailing space
  EXPECT_EQ(percent(R"([{"name":"A","price":"1","color":"Red"}])"), 18.75);                // no case folding
  EXPECT_EQ(percent(R"([{"name":"A","price":1,"color":"red"}])"), 25);                     // integer for "1"
  EXPECT_EQ(percent(R"([{"name":"A","price":-1,"color":"red"}])"), 18.75);
  EXPECT_EQ(percent(R"([{"name":"A","price":null,"color":"red"}])"), 12.5);          // null is missing
  EXPECT_EQ(percent(R"([{"name":"A"}])"), 0);                                        // both missing
  EXPECT_EQ(percent(R"([{"name":"A","price":"2","color":"x"}])"), 12.5);             // both wrong
  EXPECT_EQ(percent(R"([{"name":"A","price":"2"}])"), 6.25);                         // one wrong, one missing
  EXPECT_EQ(percent(R"([{"color":"red","name":"A","size":"9","price":"1"}])"), 25);  // extra keys, any order
}

TEST(EntryMatch, UnexpectedKindsAreWrongOrUnknownAndStrictRaises) {
  for (const char* value : {"1.0", "true", R"({"a":"1"})"}) {
    const std::string prediction = std::string(R"([{"name":"A","price":)") + value + R"(,"color":"red"}])";
    EXPECT_EQ(percent(prediction), 18.75) << value;
    EXPECT_TRUE(raises(prediction)) << value;
  }
  for (const char* element : {"5", "1.5", "null", "true", "\"my name is\""}) {
    const std::string prediction = std::string(R"([{"name":"A","price":"1","color":"red"},)") + element + "]";
    EXPECT_EQ(percent(prediction), 20) << element;
    EXPECT_TRUE(raises(prediction)) << element;
  }
  for (const char* element : {"\"other\"", "{}", R"({"price":"1"})", R"({"name":5})", R"({"name":null})"}) {
    const std::string prediction = std::string(R"([{"name":"A","price":"1","color":"red"},)") + element + "]";
    EXPECT_EQ(percent(prediction), 20) << element;
    EXPECT_FALSE(raises(prediction)) << element;
  }
}

TEST(EntryMatch, BadGoldIsRefusedAndEmptyGoldScoresZero) {
  const auto refusal = [](std::string_view gold) { return score_entries("[]", gold, EntryScoring::kRobust).status(); };
  EXPECT_NE(refusal(R"([{"name":"A","x":"1","y":"2"},{"name":"A","x":"1","y":"2"}])").message().find("name A"),
            std::string::npos);
  EXPECT_EQ(refusal("[{\"name\":\"A's\",\"x\":\"1\",\"y\":\"2\"},{\"name\":\"A\u2019s\",\"x\":\"1\",\"y\":\"2\"}]").code(),
            Code::kBadInput);
  EXPECT_EQ(refusal("no list").code(), Code::kBadInput);
  EXPECT_EQ(refusal(R"([{"name":"A","x":"1"}])").code(), Code::kBadInput);
  EXPECT_EQ(refusal(R"([{"name":"A","x":1,"y":"2"}])").code(), Code::kBadInput);
  EXPECT_EQ(score_entries("[]", "[]", EntryScoring::kStrict)->score, 0);
  EXPECT_EQ(score_entries(R"([{"name":"A"}])", "[]", EntryScoring::kStrict)->score, 0);
}

TEST(EntryMatch, MetricCountsFormatAndRetrievalFailuresApart) {
  const Words gold{kGold};
  const auto part = [&](std::string_view prediction, std::size_t i) { return entry_match_parts(prediction, gold, {})[i].value; };
  EXPECT_EQ(part("broken", 0), 1);
  EXPECT_EQ(part("broken", 1), 0);
  EXPECT_EQ(part(R"([{"name":"A","price":"1","color":"red"}])", 0), 0);
  EXPECT_EQ(part(R"([{"name":"A","price":"1","color":"red"}])", 1), 1);
  EXPECT_EQ(part(R"([{"name":"A","price":"1","color":"red"}])", 2), 0.25);
  EXPECT_EQ(part(kPerfect, 0) + part(kPerfect, 1), 0);
  EXPECT_EQ(entry_match(kPerfect, gold, {}), 1);
  EXPECT_TRUE(check_entries("", gold, {}).ok());
  EXPECT_FALSE(check_entries("", Words{"x"}, {}).ok());
}

}  // namespace
}  // namespace kvartet
