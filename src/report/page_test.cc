#include "report/page.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "report/chart.h"
#include "report/diagnosis_fixture.h"
#include "report/html.h"
#include "report/html_elements.h"
#include "report/page_fixture.h"
#include "report/speed_fixture.h"

namespace kvartet {
namespace {

TEST(Html, EscapesEverythingThatCouldBecomeMarkup) {
  EXPECT_EQ(html_escaped("<b a=\"1\" c='2'>&</b>"), "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;&lt;/b&gt;");
  EXPECT_EQ(html_escaped(std::string("a\0b\x1b\xff", 5)),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD\xEF\xBF\xBD");
  Html out;
  out.open("p", {{"title", "\"><script>"}}).text("x < y").close();
  EXPECT_EQ(out.take(), "<p title=\"&quot;&gt;&lt;script&gt;\">x &lt; y</p>\n");
}

TEST(Page, IsBalancedAndOffline) {
  const std::string html = page_of(made_results(10));
  const std::vector<Element> all = parsed(html);
  EXPECT_TRUE(html.starts_with("<!DOCTYPE html>"));
  EXPECT_EQ(named(all, "html").at(0).attributes.at("lang"), "en");
  for (const Element& e : all) {
    for (const auto& [name, value] : e.attributes) {
      EXPECT_NE(name, "src") << e.name;
      if (name == "href") {
        EXPECT_TRUE(value.starts_with("#")) << value;
      }
      EXPECT_EQ(value.find("http"), name == "content" ? value.find("http") : std::string::npos) << value;
      EXPECT_FALSE(name.starts_with("on")) << name;
    }
  }
  EXPECT_EQ(html.find("url("), std::string::npos);
  EXPECT_EQ(html.find("@import"), std::string::npos);
}

TEST(Page, TablesHaveCaptionsAndHeadedRowsAndPicturesHaveNames) {
  const std::vector<Element> all = parsed(page_of(made_results(10)));
  const std::size_t tables = named(all, "table").size();
  EXPECT_GE(tables, 8U);
  EXPECT_EQ(named(all, "caption").size(), tables);
  std::size_t row_headings = 0;
  for (const Element& e : named(all, "th")) {
    const std::string scope = e.attributes.contains("scope") ? e.attributes.at("scope") : "";
    EXPECT_TRUE(scope == "row" || scope == "col") << e.text;
    row_headings += scope == "row" ? 1 : 0;
  }
  EXPECT_GT(row_headings, 20U);
  std::set<std::string> ids;
  for (const Element& e : all) {
    if (e.attributes.contains("id")) {
      EXPECT_TRUE(ids.insert(e.attributes.at("id")).second) << e.attributes.at("id");
    }
  }
  for (const Element& e : named(all, "svg")) {
    if (e.attributes.contains("aria-hidden")) continue;
    EXPECT_EQ(e.attributes.at("role"), "img");
    EXPECT_TRUE(ids.contains(e.attributes.at("aria-labelledby")));
    EXPECT_TRUE(ids.contains(e.attributes.at("aria-describedby")));
  }
  for (const Element& e : named(all, "a"))
    EXPECT_TRUE(ids.contains(e.attributes.at("href").substr(1))) << e.attributes.at("href");
}

TEST(Page, ContentsNameEachTaskOnceWithItsLengths) {
  StoredResults r = made_results(4);
  add_unseen(r);
  const std::string html = page_of(r);
  const std::string contents = html.substr(html.find("<nav"), html.find("</nav>") - html.find("<nav"));
  EXPECT_EQ(contents.find("needle: "), contents.rfind("needle: "));
  for (const char* label : {"needle, 2,048 tokens", "needle, 4,096 tokens, question unseen"})
    EXPECT_NE(contents.find(fmt::format("aria-label=\"{}\"", label)), std::string::npos) << contents;
}

TEST(Page, ShowsTheNumbersOfTheRows) {
  const StoredResults results = made_results(10);
  const std::vector<ReportRow> rows = report_rows(results);
  const std::vector<Element> all = parsed(page_of(results));
  const auto data =
      std::ranges::find_if(all, [](const Element& e) { return e.attributes.contains("id") && e.attributes.at("id") == "data"; });
  ASSERT_NE(data, all.end());
  EXPECT_EQ(nlohmann::json::parse(data->text), report_json(results, rows));

  // The first table of the second section, row by row: score, its interval, nats, ratios.
  std::vector<std::string> texts;
  for (const Element& e : named(all, "tr")) texts.push_back(e.text);
  const auto has_row = [&](const std::vector<std::string>& parts) {
    return std::ranges::any_of(texts, [&](const std::string& text) {
      std::size_t at = 0;
      for (const std::string& part : parts) {
        at = text.find(part + "\n", at);
        if (at == std::string::npos) return false;
        at += part.size();
      }
      return true;
    });
  };
  for (const ReportRow& r : rows) {
    const std::string interval = r.score.low ? fmt::format("{:+.1f} to {:+.1f}", *r.score.low, *r.score.high) : "–";
    std::string with_minus;
    for (const char c : interval) with_minus += c == '-' ? std::string("−") : std::string(1, c);
    EXPECT_TRUE(
        has_row({fmt::format("{:.1f}", *r.score.mean), with_minus, fmt::format("−{:.3f}", -*r.likelihood.mean),
                 fmt::format("{:.2f}", r.compression_ratio), fmt::format("{:.2f}", r.fast_ratio), fmt::format("{:.2f}", r.ttft_s),
                 fmt::format("{:.1f}", *r.decode_tokens_per_s), fmt::format("{:.0f} %", 100 * r.acted)}))
        << r.spec << " at " << r.context;
  }
}

TEST(Page, HostileTextsStayTexts) {
  const std::string evil = "\"'><script>alert(1)</script><img src=x onerror=alert(2)></title></style><!--";
  StoredResults results = made_results(6);
  for (Outcome& o : results.outcomes) {
    o.prediction = evil + std::string("\0\xff\xfe", 3) + evil;
    o.finish_reason = evil;
    if (o.key.sample == "5" && o.spec != "full") o.error = evil;
  }
  results.samples[0].question = evil;
  results.samples[0].answers_json = nlohmann::json(std::vector<std::string>{evil}).dump();
  results.samples[0].prompt_hash = evil;
  results.samples[0].depths_json = evil;
  results.runs[0].identity.model_name = evil;
  results.runs[0].identity.parameters = evil;
  add_solo(results);
  results.solo[0].key.sample = evil;
  results.solo[5].error = evil;
  results.runs[0].machine.cpu = evil;
  results.tasks.push_back({evil, evil});
  results.samples.push_back(made_sample(evil, 1, 0));
  results.outcomes.push_back(made_outcome(evil, 1, 0, evil, 1, -1));
  results.outcomes.push_back(made_outcome(evil, 1, 0, "full", 0, -1));
  const SelectionDiagnosis diagnosis = parse_diagnosis(made_diagnosis(evil).dump(), evil).value();
  nlohmann::json rates = made_speed(evil);
  rates["model"] = evil;
  rates["machine"]["cpu"] = evil;
  rates["rows"][4]["engine"] = evil;
  const SpeedCurves speed = parse_speed(rates.dump(), evil).value();
  const std::string html =
      page_of(results, {.folders = {evil}, .notes = {evil}, .diagnoses = {diagnosis, diagnosis}, .speeds = {speed, speed}});
  const std::vector<Element> all = parsed(html);
  EXPECT_EQ(named(all, "script").size(), 2U);  // the data and our own
  EXPECT_TRUE(named(all, "img").empty());
  EXPECT_EQ(named(all, "title").size(),
            1U + static_cast<std::size_t>(
                     std::ranges::count_if(named(all, "svg"), [](const Element& e) { return e.attributes.contains("role"); })));
  for (const Element& e : all) EXPECT_FALSE(e.attributes.contains("onerror"));
  EXPECT_EQ(html.find("<!--"), std::string::npos);
  EXPECT_NE(html.find("&lt;script&gt;alert(1)"), std::string::npos);
  EXPECT_FALSE(
      nlohmann::json::parse(std::ranges::find_if(all, [](const Element& e) { return e.name == "script"; })->text, nullptr, false)
          .is_discarded());
}

TEST(Page, MarksTheReferenceAnswerInTheReplies) {
  const std::string html = page_of(made_results(6));
  EXPECT_NE(html.find("the answer is <mark>42</mark>"), std::string::npos);
  EXPECT_NE(html.find("What is the number?"), std::string::npos);
}

// A store of format 1 has no depths and no gaps; one without scores or full has no comparisons. Each is a page all the same.
TEST(Page, LeavesOutWhatIsNotThere) {
  StoredResults old = made_results(6);
  for (SampleRecord& s : old.samples) s.depths_json = s.question = "";
  for (Outcome& o : old.outcomes) o.token_gaps_json.clear();
  std::string html = page_of(old);
  parsed(html);
  EXPECT_EQ(html.find("id=\"depths\""), std::string::npos);
  EXPECT_EQ(html.find("Time between two tokens"), std::string::npos);

  StoredResults bare = made_results(6);
  std::erase_if(bare.outcomes, [](const Outcome& o) { return o.spec == "full"; });
  for (Outcome& o : bare.outcomes) o.score = std::nullopt;
  parsed(page_of(bare));

  StoredResults failed = made_results(6);
  for (Outcome& o : failed.outcomes) o.error = "out of memory";
  html = page_of(failed);
  parsed(html);
  EXPECT_NE(html.find("out of memory"), std::string::npos);
}

TEST(Page, ShowsEachCacheAlone) {
  StoredResults results = made_results(6);
  for (Outcome& o : results.outcomes) o.shared = true;
  EXPECT_EQ(page_of(results).find("Each cache alone"), std::string::npos);
  add_solo(results);
  const std::string html = page_of(results);
  std::vector<std::string> captions;
  for (const Element& e : named(parsed(html), "caption")) captions.push_back(e.text);
  EXPECT_EQ(std::ranges::count_if(captions, [](const std::string& c) { return c.starts_with("Each cache alone"); }), 1);
  for (const char* text : {"1.20 (1.00 to 1.40)", "2.00*", "42.0 (40.0 to 44.0)", "204.0 MiB", "the same"})
    EXPECT_NE(html.find(text), std::string::npos) << text;
  EXPECT_NE(html.find("Rates of each cache alone."), std::string::npos);
  // Rates that were shared are no measure of speed: no picture of them.
  EXPECT_NE(page_of(made_results(6)).find("Likelihood against decode rate"), std::string::npos);
  StoredResults shared = made_results(6);
  for (Outcome& o : shared.outcomes) o.shared = true;
  EXPECT_EQ(page_of(shared).find("Likelihood against decode rate"), std::string::npos);
}

TEST(Page, ShowsTheQuestionSeenAndUnseenSideBySide) {
  StoredResults results = made_results(10);
  EXPECT_EQ(page_of(results).find("question unseen"), std::string::npos);
  add_unseen(results);
  const std::string html = page_of(results);
  std::vector<std::string> captions;
  for (const Element& e : named(parsed(html), "caption")) captions.push_back(e.text);
  EXPECT_EQ(std::ranges::count_if(captions, [](const std::string& c) { return c.starts_with("Question seen or unseen"); }), 2);
  EXPECT_NE(html.find("needle at 2,048 tokens, question unseen"), std::string::npos);
  EXPECT_NE(html.find("Questions with short answers, question unseen"), std::string::npos);
  EXPECT_NE(html.find("Floor: full, which drops nothing, itself differs by up to 0.000 nats on one of 10 prompts"),
            std::string::npos);
}

TEST(Page, ShowsTheSecondQuestionBesideTheOtherPositions) {
  StoredResults results = made_results(10);
  add_unseen(results);
  add_second(results);
  const std::string html = page_of(results);
  std::vector<std::string> captions;
  for (const Element& e : named(parsed(html), "caption")) captions.push_back(e.text);
  EXPECT_EQ(std::ranges::count_if(captions, [](const std::string& c) { return c.starts_with("Question seen or unseen"); }), 2);
  EXPECT_EQ(
      std::ranges::count_if(
          captions, [](const std::string& c) { return c.starts_with("What choosing rows for one question cost the next"); }),
      2);
  for (const char* text : {"needle at 2,048 tokens, second question", "Questions with short answers, second question",
                           "asked second instead of seen, kivi:bits=2 loses 0.300 nats per token more"})
    EXPECT_NE(html.find(text), std::string::npos) << text;
}

Decisions made_decisions() {
  Decisions out;
  out.model = "tiny<b>";
  out.statistics = "12 cells of this model";
  out.machine = "not calibrated";
  for (const char* kind : {"single-fact", "summary"}) {
    DecisionKind k;
    k.kind = kind;
    k.summary = "one passage holds the answer";
    Decision d;
    d.kind = kind;
    d.prompt_tokens = 1984;
    d.answer_tokens = 64;
    d.cap_bytes = 12 << 20;
    d.cap_share = 0.25;
    d.spec = "kivi:bits=4,group=32,residual=128";
    d.reason = "the least expected loss";
    d.bytes = 11 << 20;
    d.ttft_s = 1.25;
    d.decode_tokens_per_s = 42.5;
    d.time_error = 0.15;
    d.loss = {.low = -0.002, .expected = 0.008, .high = 0.018};
    d.source = "measured here";
    d.samples = 24;
    d.what_if = "14000K or more";
    d.what_if_spec = "q8_0";
    d.what_if_loss = 0.001;
    k.decisions.push_back(d);
    d.cap_bytes = 1000;
    d.cap_share = 0.001;
    d.spec = "";
    d.reason = "no cache fits within 1 KB";
    k.decisions.push_back(d);
    k.picture.kind = kind;
    k.picture.prompt_tokens = 1984;
    k.picture.left_out = 7;
    k.picture.points = {{.spec = "full", .times_smaller = 1, .loss = {}, .chosen = false},
                        {.spec = "kivi:bits=4,group=32,residual=128",
                         .times_smaller = 3.6,
                         .loss = {.low = -0.0025, .expected = 0.0075, .high = 0.0175},
                         .chosen = true},
                        {.spec = "kivi:bits=2,group=32,residual=128",
                         .times_smaller = 6,
                         .loss = {.low = 0.1, .expected = 0.2, .high = 0.3},
                         .chosen = false}};
    out.kinds.push_back(k);
  }
  return out;
}

// The planner's choices: a table and a picture for each kind of task, reachable from the contents, without scripts or network.
TEST(Page, ShowsWhichCacheToTake) {
  const StoredResults results = made_results(6);
  EXPECT_EQ(page_of(results).find("id=\"decisions\""), std::string::npos);
  const std::string html = page_of(results, {.decisions = made_decisions()});
  const std::vector<Element> all = parsed(html);
  EXPECT_TRUE(std::ranges::any_of(named(all, "a"), [](const Element& e) { return e.attributes.at("href") == "#decisions"; }));
  std::vector<std::string> captions;
  for (const Element& e : named(all, "caption")) captions.push_back(e.text);
  EXPECT_EQ(std::ranges::count_if(captions, [](const std::string& c) { return c.starts_with("The choice for"); }), 2);
  // Times stand with their uncertainty, losses in nats: points are scores.
  for (const char* text : {"2,048 tokens, at most 12.0 MiB (f16 / 4)", "0.008 (−0.002 to +0.018)", "measured here, 24 samples",
                           "1.25 (1.09 to 1.44)", "42.5 (37.0 to 48.9)", "14000K or more: q8_0, expected loss 0.001",
                           "nothing fits", "no cache fits within 1 KB", "tiny&lt;b&gt;"})
    EXPECT_NE(html.find(text), std::string::npos) << text;
  const auto picture = std::ranges::find_if(all, [](const Element& e) {
    return e.name == "desc" && e.text.find("nats per token, to full, expected") != std::string::npos;
  });
  ASSERT_NE(picture, all.end());
  EXPECT_NE(picture->text.find("kivi:bits=4: -0.01 at 3.6."), std::string::npos) << picture->text;
  EXPECT_NE(picture->text.find("And 2 more as dots."), std::string::npos) << picture->text;
  // The frontier passes through dots too, and the filters' script finds them.
  EXPECT_EQ(std::ranges::count_if(named(all, "circle"), [](const Element& e) { return e.attributes.at("class") == "point dot"; }),
            4);
  std::set<std::string> ids;
  for (const Element& e : all) {
    if (e.attributes.contains("id")) {
      EXPECT_TRUE(ids.insert(e.attributes.at("id")).second) << e.attributes.at("id");
    }
  }
  const nlohmann::json rows = decisions_json(made_decisions())["rows"];
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0]["loss"]["expected"], 0.008);
  EXPECT_TRUE(rows[1]["spec"].is_null());
}

// The planner and the short answer answer two questions: each kind says in one sentence where they part.
TEST(Page, TheChoiceSaysWhyItIsNotTheShortAnswer) {
  const Decisions made = made_decisions();
  DecisionKind kind = made.kinds.front();
  const std::map<std::string, std::string> names = {{"kivi:bits=4,group=32,residual=128", "kivi:bits=4"}, {"q8_0", "q8_0"}};
  EXPECT_NE(beside_short_answer(kind, names).find("No task of this kind ran here"), std::string::npos);
  kind.answer.work = "summaries";
  EXPECT_NE(beside_short_answer(kind, names).find("names no cache for summaries"), std::string::npos);
  kind.answer.spec = "q8_0";
  kind.answer.evidence = "0.000 nats per token (−0.001 to +0.001)";
  const RivalChoice rival = {
      .bytes = 11.5 * (1 << 20), .loss = {.low = 0, .expected = 0.01, .high = 0.02}, .source = "neighbour"};
  for (Decision& d : kind.decisions) d.rival = rival;
  EXPECT_EQ(
      beside_short_answer(kind, names),
      "The short answer for summaries is q8_0, 0.000 nats per token (−0.001 to +0.001), the smallest that does not lose; "
      "here, with the least expected loss at 2,048 tokens, within f16 / 4 it is kivi:bits=4, expected to lose 0.008 (−0.002 "
      "to +0.018), measured here, where q8_0 is expected to lose 0.010 (0.000 to +0.020), carried over from a neighbour; within "
      "f16 / 1000 that "
      "one does not fit, taking 11.5 MiB.");
  kind.answer.spec = kind.decisions.front().spec;
  EXPECT_NE(beside_short_answer(kind, names).find("within f16 / 4 it is the same"), std::string::npos);
}

// One word for one thing: points are scores, dots and marks are what pictures show, losses by likelihood are nats.
TEST(Page, PointsAreScores) {
  const std::string html = page_of(made_results(6), {.decisions = made_decisions()});
  const std::string body = html.substr(html.find("<body"), html.find("<script") - html.find("<body"));
  static const std::regex kText(">([^<]*points?[^<]*)<");
  static const std::regex kOfAScore(
      R"re(points of 100|[0-9.] points|points to full|0 to 100 points|a tenth of|half of the points)re");
  for (std::sregex_iterator it(body.begin(), body.end(), kText), none; it != none; ++it)
    EXPECT_TRUE(std::regex_search((*it)[1].str(), kOfAScore)) << (*it)[1];
  EXPECT_EQ(body.find("expected loss, points"), std::string::npos);
}

TEST(Chart, DoublingsAreEquallyFarApart) {
  Chart chart;
  chart.id = "c";
  chart.x_scale = XScale::kDoublings;
  for (const double x : {1.0, 2.0, 4.0, 8.0}) chart.series.push_back({"s", fmt::format("x{}", x), 0, false, {{x, 0.5, {}, {}}}});
  Html out;
  write_scatter(out, chart);
  const std::string svg = out.take();
  static const std::regex kPlace(R"re(data-px="([0-9.]+)")re");
  std::vector<double> places;
  for (std::sregex_iterator it(svg.begin(), svg.end(), kPlace), none; it != none; ++it) places.push_back(std::stod((*it)[1]));
  ASSERT_EQ(places.size(), 4U);
  EXPECT_NEAR(places[1] - places[0], places[2] - places[1], 0.11);
  EXPECT_NEAR(places[2] - places[1], places[3] - places[2], 0.11);
  for (const char* tick : {">1</text>", ">2</text>", ">4</text>", ">8</text>"})
    EXPECT_NE(svg.find(tick), std::string::npos) << tick;
}

TEST(Chart, TicksAreRoundAndInside) {
  EXPECT_EQ(axis_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_FALSE(std::signbit(axis_ticks(-0.4, 10, 5).front()));  // would be written as -0
  const std::vector<double> ticks = axis_ticks(-0.37, 0.06, 5);
  ASSERT_EQ(ticks.size(), 4U);
  EXPECT_NEAR(ticks.front(), -0.3, 1e-12);
  EXPECT_TRUE(axis_ticks(1, 1, 5).empty());
}

// However many caches lie at one place, no label covers another.
TEST(Chart, LabelsDoNotCoverEachOther) {
  Chart chart;
  chart.id = "c";
  for (int i = 0; i < 8; ++i)
    chart.series.push_back({"s", fmt::format("cache-number-{}", i), i, false, {{1.0 + 0.001 * i, 0.5, {}, {}}}});
  Html out;
  write_scatter(out, chart);
  const std::string svg = out.take();
  static const std::regex kLabel(R"re(class="label" x="([0-9.]+)" y="([0-9.]+)" text-anchor="(start|end)")re");
  std::vector<std::pair<double, double>> spans;  // left, y
  for (std::sregex_iterator it(svg.begin(), svg.end(), kLabel), none; it != none; ++it) {
    const double x = std::stod((*it)[1]);
    spans.emplace_back((*it)[3] == "start" ? x : x - 90, std::stod((*it)[2]));
  }
  ASSERT_EQ(spans.size(), 8U);
  for (std::size_t i = 0; i < spans.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const bool apart = std::abs(spans[i].second - spans[j].second) > 12 || std::abs(spans[i].first - spans[j].first) > 88;
      EXPECT_TRUE(apart) << i << " and " << j;
    }
  }
}

}  // namespace
}  // namespace kvartet
