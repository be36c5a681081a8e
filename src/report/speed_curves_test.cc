#include "report/speed_curves.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/html_elements.h"
#include "report/page_fixture.h"
#include "report/speed_fixture.h"

namespace kvartet {
namespace {

TEST(SpeedCurves, ThePageShowsRatesByDepth) {
  EXPECT_EQ(page_of(made_results(6)).find("Speed by depth"), std::string::npos);
  const SpeedCurves speed = parse_speed(made_speed("kivi:bits=4,group=32,residual=32").dump(), "quiet.json").value();
  ASSERT_EQ(speed.decode.size(), 3U);
  EXPECT_EQ(speed.decode[1].points.front().depth, 0);  // sorted, whatever the order of the rows
  const std::string html = page_of(made_results(6), {.speeds = {speed}});
  const std::vector<Element> all = parsed(html);
  std::string described;
  for (const Element& e : named(all, "desc")) described += e.text;
  EXPECT_NE(described.find("full: 100.0 at 0, 50.0 at 7168."), std::string::npos) << described;
  EXPECT_NE(described.find("llama.cpp f16: 100.0 at 0, 25.0 at 7168."), std::string::npos) << described;
  for (const char* text : {"random-model on Some CPU", "quiet.json: 2 threads, plain reading at 39.5 GB/s", "75.0 (×1.50)",
                           "25.0 (×0.50)", "by real prompts", "Prompt tokens per second"})
    EXPECT_NE(html.find(text), std::string::npos) << text;
}

// 1.6 and 1.8 of a large model may be anything from 6 to 19 % apart.
TEST(SpeedCurves, SlowRatesHaveThreeDigits) {
  nlohmann::json document = made_speed("q8_0");
  document["rows"][0]["tokens_per_s"] = 1.754;
  const std::string html = page_of(made_results(6), {.speeds = {parse_speed(document.dump(), "x.json").value()}});
  EXPECT_NE(html.find(">1.75<"), std::string::npos);
  EXPECT_NE(html.find(">50.0<"), std::string::npos);
}

TEST(SpeedCurves, OneDepthIsATableWithoutAPicture) {
  nlohmann::json document = made_speed("kivi:bits=4");
  nlohmann::json rows = nlohmann::json::array();
  for (const nlohmann::json& row : document["rows"])
    if (row["depth"] == 7168) rows.push_back(row);
  document["rows"] = rows;
  const std::string html = page_of(made_results(6), {.speeds = {parse_speed(document.dump(), "x.json").value()}});
  EXPECT_NE(html.find("75.0 (×1.50)"), std::string::npos);
  EXPECT_EQ(html.find("id=\"speed-decode-1-t\""), std::string::npos);
}

TEST(SpeedCurves, WhatIsNoneIsRefused) {
  std::vector<std::string> texts = {"", "[]", "{}", "not json", "{\"rows\": []}"};
  for (const char* field : {"model", "fill", "machine", "rows"}) {
    nlohmann::json document = made_speed("q8_0");
    document.erase(field);
    texts.push_back(document.dump());
  }
  for (const auto& [field, wrong] : {std::pair<const char*, nlohmann::json>{"phase", "encode"},
                                     {"tokens_per_s", 0},
                                     {"tokens_per_s", "fast"},
                                     {"depth", -1},
                                     {"depth", 1.5},
                                     {"depth", 0},  // as in row 2, with another rate
                                     {"spec", 5}}) {
    nlohmann::json document = made_speed("q8_0");
    document["rows"][1][field] = wrong;
    texts.push_back(document.dump());
  }
  nlohmann::json nothing = made_speed("q8_0");
  nothing["rows"] = nlohmann::json::array();
  texts.push_back(nothing.dump());
  for (const std::string& text : texts) {
    const Result<SpeedCurves> speed = parse_speed(text, "x.json");
    ASSERT_FALSE(speed.ok()) << text;
    EXPECT_EQ(speed.status().code(), Code::kBadInput) << text;
    EXPECT_NE(speed.status().message().find("x.json"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace kvartet
