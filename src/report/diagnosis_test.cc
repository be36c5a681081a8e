#include "report/diagnosis.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/diagnosis_fixture.h"
#include "report/html_elements.h"
#include "report/page_fixture.h"

namespace kvartet {
namespace {

TEST(Diagnosis, ThePageShowsWhichRowsAreFound) {
  EXPECT_EQ(page_of(made_results(6)).find("Which rows are found"), std::string::npos);
  const SelectionDiagnosis diagnosis = parse_diagnosis(made_diagnosis("yakv").dump(), "essay.json").value();
  const std::string html = page_of(made_results(6), {.diagnoses = {diagnosis}});
  const std::vector<Element> all = parsed(html);
  std::size_t cells = 0;
  std::size_t empty = 0;
  for (const Element& e : named(all, "rect")) {
    if (!e.attributes.contains("class")) continue;
    empty += e.attributes.at("class") == "cold" ? 1 : 0;
    if (e.attributes.at("class") != "heat") continue;
    ++cells;
    const double opacity = std::stod(e.attributes.at("fill-opacity"));
    EXPECT_GT(opacity, 0);
    EXPECT_LE(opacity, 1);
  }
  EXPECT_EQ(cells, 2U * (4 + 10));  // two maps of two layers and two heads, and their scales
  EXPECT_EQ(empty, 2U * 2);
  std::string described;
  for (const Element& e : named(all, "desc")) described += e.text;
  EXPECT_NE(described.find("Layer 0: nothing is selected."), std::string::npos);
  EXPECT_NE(described.find("Layer 1: mean 0.82, least 0.80 in head 0, largest 0.85 in head 1."), std::string::npos) << described;
  for (const char* text : {"essay.json: 10 steps after 2,028 tokens, of which 12 hold the answer", "0.850 (0.750 to 0.950)",
                           "0.1100", "Attention mass by budget", "1/1024", "1/4", "Gold tokens attended by layer and head"})
    EXPECT_NE(html.find(text), std::string::npos) << text;
}

TEST(Diagnosis, OfSeveralTexts) {
  nlohmann::json document = made_diagnosis("yakv");
  document["diagnosis"]["texts"] = 3;
  const SelectionDiagnosis diagnosis = parse_diagnosis(document.dump(), "essay.json").value();
  EXPECT_EQ(diagnosis.texts, 3);
  EXPECT_NE(page_of(made_results(6), {.diagnoses = {diagnosis}}).find("essay.json: 10 steps in 3 texts of up to 2,028 tokens"),
            std::string::npos);
}

TEST(Diagnosis, WhatIsNoneIsRefused) {
  for (const char* text : {"", "[]", "{}", "{\"rows\": []}", "{\"diagnosis\": 5}", "not json",
                           "{\"prefix_tokens\": 1, \"steps\": 1, \"gold_tokens\": 0, \"rows\": []}"}) {
    const Result<SelectionDiagnosis> diagnosis = parse_diagnosis(text, "x.json");
    EXPECT_EQ(diagnosis.status().code(), Code::kBadInput) << text;
    EXPECT_NE(diagnosis.status().message().find("x.json"), std::string::npos);
  }
  for (const char* field : {"recall", "mass_ratio", "output_error", "spec", "reuse"}) {
    nlohmann::json document = made_diagnosis("yakv");
    document["diagnosis"]["rows"][0][field] = 7;
    EXPECT_FALSE(parse_diagnosis(document.dump(), "x.json").ok()) << field;
    document["diagnosis"]["rows"][0].erase(field);
    EXPECT_FALSE(parse_diagnosis(document.dump(), "x.json").ok()) << field;
  }
  nlohmann::json ragged = made_diagnosis("yakv");
  ragged["diagnosis"]["rows"][0]["mass_ratio"]["map"][1] = {0.5};
  EXPECT_FALSE(parse_diagnosis(ragged.dump(), "x.json").ok());
}

TEST(Diagnosis, FiguresThatCannotBeAreRefused) {
  for (const char* path :
       {"/diagnosis/prefix_tokens", "/diagnosis/steps", "/diagnosis/gold_tokens", "/diagnosis/rows/0/selected_rows",
        "/diagnosis/rows/0/recall/mean", "/diagnosis/rows/0/mass_ratio/p95"}) {
    nlohmann::json document = made_diagnosis("yakv");
    document[nlohmann::json::json_pointer(path)] = 1e300;
    EXPECT_FALSE(parse_diagnosis(document.dump(), "x.json").ok()) << path;
  }
  nlohmann::json negative = made_diagnosis("yakv");
  negative["diagnosis"]["steps"] = -1;
  EXPECT_FALSE(parse_diagnosis(negative.dump(), "x.json").ok());
  nlohmann::json lines = made_diagnosis("yakv");  // without a cell, but a hundred thousand of them
  lines["diagnosis"]["rows"][0]["recall"]["map"] = std::vector<std::vector<double>>(100'000);
  EXPECT_FALSE(parse_diagnosis(lines.dump(), "x.json").ok());
}

// A cache that takes every row of the text is in no diagnosis, and its sweep is no less shown for that.
TEST(Diagnosis, ASweepWhoseCacheSelectsNothingIsShown) {
  nlohmann::json document = made_diagnosis("yakv");
  document["diagnosis"]["rows"].erase(0);
  for (nlohmann::json& row : document["diagnosis"]["rows"])
    row["spec"] = "yakv:budget=" + std::to_string(row["budget_share"].get<double>());
  const std::string html = page_of(made_results(6), {.diagnoses = {parse_diagnosis(document.dump(), "x.json").value()}});
  for (const char* spec : {"yakv:budget=0.000977", "yakv:budget=0.015625", "yakv:budget=0.250000"})
    EXPECT_NE(html.find(spec), std::string::npos) << spec;
}

}  // namespace
}  // namespace kvartet
