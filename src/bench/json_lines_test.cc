#include "bench/json_lines.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvartet {
namespace {

struct Outcome {
  std::vector<std::pair<int, std::string>> read;  // line, field "a"
  std::vector<SkippedLine> skipped;
};

Outcome read(std::string_view text) {
  Outcome outcome;
  outcome.skipped = read_json_lines(text, "f.jsonl", [&](int line, const nlohmann::json& object) -> Status {
    KV_ASSIGN(const std::string a, text_field(object, "a"));
    outcome.read.emplace_back(line, a);
    return {};
  });
  return outcome;
}

// user-needs C20: BOM, CRLF, blank lines and a missing final newline are fine.
TEST(JsonLines, C20AcceptsWhatEditorsDo) {
  const Outcome outcome = read("\xEF\xBB\xBF{\"a\":\"1\"}\r\n\r\n \t\n{\"a\":\"2\"}\n{\"a\":\"3\"}");
  EXPECT_TRUE(outcome.skipped.empty());
  EXPECT_EQ(outcome.read, (std::vector<std::pair<int, std::string>>{{1, "1"}, {4, "2"}, {5, "3"}}));
  EXPECT_TRUE(read("\xEF\xBB\xBF\n{\"a\":\"1\"}").skipped.empty());
  EXPECT_TRUE(read("").read.empty());
  EXPECT_TRUE(read("\n\n").skipped.empty());
}

// user-needs C20: the rest is reported as file:line.
TEST(JsonLines, C20ReportsEveryBadLineWithItsReason) {
  using namespace std::string_literals;
  const std::string text =
      "{\"a\":\"1\"}\n{\"b\":1}\n{\"a\":\"x\0y\"}\n{\"a\":\"\xff\"}\n{\"a\":\n[1]\n{\"a\":5}\n{\"a\":1e999}\n{\"a\":\"9\"}\n"s;
  const Outcome outcome = read(text);
  EXPECT_EQ(outcome.read, (std::vector<std::pair<int, std::string>>{{1, "1"}, {9, "9"}}));
  ASSERT_EQ(outcome.skipped.size(), 7U);
  const char* const reasons[] = {"missing",    "NUL",           "0xff at column 7 is not UTF-8", "broken JSON", "array",
                                 "not a text", "cannot be read"};
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(outcome.skipped[i].where(), "f.jsonl:" + std::to_string(i + 2));
    EXPECT_NE(outcome.skipped[i].reason.find(reasons[i]), std::string::npos) << outcome.skipped[i].reason;
  }
}

// A value that is written again (answers may be JSON) recurses as deeply as it is nested.
TEST(JsonLines, C20NestingHasABound) {
  const auto nested = [](std::size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  std::vector<std::string> texts;
  const auto list = [&](int, const nlohmann::json& object) -> Status {
    KV_ASSIGN(texts, json_list_field(object, "a"));
    return {};
  };
  EXPECT_TRUE(read_json_lines("{\"a\":" + nested(199) + "}", "f.jsonl", list).empty());
  EXPECT_EQ(texts, std::vector<std::string>{nested(198)});
  EXPECT_TRUE(read_json_lines("{\"a\":\"\\\"" + std::string(1000, '[') + "\"}", "f.jsonl", list).empty()) << "brackets in a text";
  for (const std::size_t levels : {std::size_t{200}, std::size_t{1'000'000}}) {
    const std::vector<SkippedLine> skipped = read_json_lines("{\"a\":" + nested(levels) + "}", "f.jsonl", list);
    ASSERT_EQ(skipped.size(), 1U);
    EXPECT_NE(skipped[0].reason.find("levels; at most 200"), std::string::npos) << skipped[0].reason;
  }
}

TEST(JsonLines, ReportsUtf16AsOneDefect) {
  using namespace std::string_literals;
  const Outcome outcome = read("\xFF\xFE{\0\n\0}\0\n\0"s);
  ASSERT_EQ(outcome.skipped.size(), 1U);
  EXPECT_NE(outcome.skipped[0].reason.find("UTF-16"), std::string::npos);
}

TEST(JsonLines, C20LongAndDeepLinesAreFine) {
  const std::string big(5 << 20, 'x');
  const std::string deep = "{\"a\":" + std::string(200000, '[') + std::string(200000, ']') + "}";
  const Outcome outcome = read("{\"a\":\"" + big + "\"}\n" + deep + "\n");
  ASSERT_EQ(outcome.read.size(), 1U);
  EXPECT_EQ(outcome.read[0].second.size(), big.size());
  EXPECT_EQ(outcome.skipped.size(), 1U);
}

TEST(JsonLines, Fields) {
  const auto object = nlohmann::json::parse(R"({"list":["x","y"],"one":"x","none":null,"bad":["x",1],"_id":"q7","length":12})");
  EXPECT_EQ(text_list_field(object, "list").value(), (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(text_or_list_field(object, "list").value(), (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(text_or_list_field(object, "one").value(), std::vector<std::string>{"x"});
  EXPECT_NE(text_list_field(object, "one").status().message().find("one is a text where a list of texts is needed"),
            std::string::npos);
  EXPECT_TRUE(text_list_field(object, "none").value().empty());
  EXPECT_FALSE(text_list_field(object, "bad").ok());
  EXPECT_FALSE(text_list_field(object, "missing").ok());
  EXPECT_EQ(id_field(object).value(), "q7");
  EXPECT_EQ(id_field(nlohmann::json::parse(R"({"id":5,"_id":"q"})")).value(), "5");
  EXPECT_EQ(id_field(nlohmann::json::parse(R"({"id":null,"_id":"q"})")).value(), "q");
  EXPECT_EQ(id_field(nlohmann::json::parse("{}")).value(), "");
  EXPECT_NE(id_field(nlohmann::json::parse(R"({"id":[5]})")).status().message().find("JSON array"), std::string::npos);
  EXPECT_EQ(length_field(object).value(), 12);
  EXPECT_EQ(length_field(nlohmann::json::parse("{}")).value(), -1);
  EXPECT_EQ(length_field(nlohmann::json::parse(R"({"length":null})")).value(), -1);
  EXPECT_NE(length_field(nlohmann::json::parse(R"({"length":"long"})")).status().message().find("JSON string"),
            std::string::npos);
  EXPECT_NE(length_field(nlohmann::json::parse(R"({"length":-4})")).status().message().find("-4"), std::string::npos);
}

}  // namespace
}  // namespace kvartet
