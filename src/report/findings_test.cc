#include "report/findings.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "report/breakdown.h"
#include "report/frontier.h"
#include "report/names.h"
#include "report/report_fixture.h"

namespace kvartet {
namespace {

constexpr const char* kFour = "kivi:bits=4,group=32,residual=128";
constexpr const char* kTwo = "kivi:bits=2,group=32,residual=128";

std::vector<std::size_t> indices(std::initializer_list<std::size_t> list) { return list; }

TEST(Frontier, KeepsWhatNothingBeatsInBothMeasures) {
  const std::vector<Tradeoff> points = {{1, 0}, {2, -1}, {3, -0.5}, {4, -3}, {4, -2}, {0.5, 0}};
  EXPECT_EQ(frontier(points), indices({4, 2, 0}));
  // Judge: the definition, pair by pair.
  for (std::size_t i = 0; i < points.size(); ++i) {
    bool beaten = false;
    for (const Tradeoff& other : points) {
      const bool no_worse = other.cheap >= points[i].cheap && other.good >= points[i].good;
      beaten = beaten || (no_worse && (other.cheap > points[i].cheap || other.good > points[i].good));
    }
    const auto line = frontier(points);
    EXPECT_EQ(std::ranges::find(line, i) == line.end(), beaten) << i;
  }
}

TEST(Frontier, OfEqualPointsTheFirst) {
  const std::vector<Tradeoff> points = {{1, 1}, {1, 1}};
  EXPECT_EQ(frontier(points), indices({0}));
  EXPECT_TRUE(frontier({}).empty());
}

TEST(Names, KeepWhatTellsCachesApart) {
  const auto names =
      short_names({"full", kFour, kTwo, "snapkv:budget=0.25,window=32,kernel=7,pool=max",
                   "streamingllm:sinks=4,window=512,rope=absolute", "streamingllm:sinks=4,window=256,rope=absolute",
                   "snapkv:budget=0.25,window=32,kernel=7,pool=max+kivi:bits=4,group=32,residual=128"});
  EXPECT_EQ(names.at("full"), "full");
  EXPECT_EQ(names.at(kFour), "kivi:bits=4");
  EXPECT_EQ(names.at(kTwo), "kivi:bits=2");
  EXPECT_EQ(names.at("snapkv:budget=0.25,window=32,kernel=7,pool=max"), "snapkv:budget=0.25");
  EXPECT_EQ(names.at("streamingllm:sinks=4,window=256,rope=absolute"), "streamingllm:window=256");
  EXPECT_EQ(names.at("snapkv:budget=0.25,window=32,kernel=7,pool=max+kivi:bits=4,group=32,residual=128"),
            "snapkv:budget=0.25+kivi:bits=4");
}

TEST(Names, StayDifferentWhenOneHasAKeyLess) {
  const auto names = short_names({"a:x=1", "a:x=1,y=2"});
  EXPECT_EQ(names.at("a:x=1"), "a");
  EXPECT_EQ(names.at("a:x=1,y=2"), "a:y=2");
  const auto budgets = short_names({"a:budget=1,z=0", "a:budget=2,run=16,z=0"});
  EXPECT_EQ(budgets.at("a:budget=2,run=16,z=0"), "a:budget=2,run=16");
}

TEST(Names, Numbers) {
  EXPECT_EQ(signed_text(-0.0004, 3), "0.000");
  EXPECT_EQ(signed_text(-0.25, 2), "−0.25");
  EXPECT_EQ(signed_text(1, 1), "+1.0");
  EXPECT_EQ(grouped(1234567), "1,234,567");
  EXPECT_EQ(grouped(-123), "−123");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(range_text(2.71, 2.74, 1), "2.7");
  EXPECT_EQ(range_text(2.7, 2.9, 1), "2.7 to 2.9");
}

WorkloadFinding only_finding(const StoredResults& results) {
  const std::vector<WorkloadFinding> all = find_answers(results, report_rows(results));
  EXPECT_EQ(all.size(), 1U);
  return all.front();
}

TEST(Findings, TheSmallestCacheThatDoesNotLose) {
  const StoredResults results = made_results(40);
  const WorkloadFinding finding = only_finding(results);
  EXPECT_EQ(finding.workload, WorkKind::kQuestions);
  EXPECT_EQ(finding.samples, 80);
  ASSERT_EQ(finding.caches.size(), 3U);
  EXPECT_EQ(finding.caches[0].loss, Loss::kReference);
  EXPECT_EQ(finding.caches[1].loss, Loss::kAsGood);
  EXPECT_EQ(finding.caches[1].pairs, 80);
  EXPECT_NEAR(*finding.caches[1].likelihood.difference, 0, 1e-12);
  EXPECT_NEAR(*finding.caches[1].extra_ttft_s, 0.5, 1e-12);
  EXPECT_NEAR(*finding.caches[1].decode_factor, 1.5, 1e-12);
  EXPECT_EQ(finding.caches[2].loss, Loss::kLoses);
  ASSERT_EQ(finding.best, 1U);

  const Answer answer = answer_of(finding, short_names(specs_of(results)));
  EXPECT_NE(answer.claim.find("kivi:bits=4 loses nothing: it is shown to be as good as full, and takes 4.0 times less memory"),
            std::string::npos)
      << answer.claim;
  ASSERT_EQ(answer.others.size(), 1U);
  // 50 points lost are 10 margins, 0.4 nats only 8: the score is named.
  EXPECT_NE(answer.others[0].find("kivi:bits=2 (8.0 times less memory) loses: −50.0 points on needle at 2,048 tokens"),
            std::string::npos)
      << answer.others[0];
}

// With 6 samples a table (12 in all) equal scores show nothing, but the likelihood does.
TEST(Findings, FewSamplesShowNoMeasuredLossOnly) {
  const WorkloadFinding finding = only_finding(made_results(6));
  EXPECT_EQ(finding.caches[1].loss, Loss::kNoMeasuredLoss);
  EXPECT_EQ(finding.best, 1U);
}

TEST(Findings, OneBadTableIsALoss) {
  StoredResults results = made_results(40);
  for (Outcome& o : results.outcomes) {
    if (o.spec == kFour && o.key.context == 4096) o.gold_log_likelihood = *o.gold_log_likelihood - 0.1;
  }
  const WorkloadFinding finding = only_finding(results);
  EXPECT_EQ(finding.caches[1].loss, Loss::kLoses);
  EXPECT_NE(finding.caches[1].worst.find("4,096"), std::string::npos);
  EXPECT_FALSE(finding.best.has_value());
}

// Differences in turns of `mean` + and - `spread`, over 12 samples: half of the interval is 0.664 spread.
void set_differences(StoredResults& results, const std::string& spec, double mean, double spread) {
  for (Outcome& o : results.outcomes) {
    if (o.spec != spec) continue;
    o.score = 1;
    o.gold_log_likelihood = -0.2 + mean + (std::stoi(o.key.sample) % 2 == 0 ? spread : -spread);
  }
}

TEST(Findings, TheUndecidedStandInOrderOfTheLossThatIsStillPossible) {
  StoredResults results = made_results(6);
  set_differences(results, kFour, 0, 0.1);
  set_differences(results, kTwo, 0, 0.2);
  const auto names = short_names(specs_of(results));
  WorkloadFinding finding = only_finding(results);
  EXPECT_FALSE(finding.best.has_value());
  EXPECT_EQ(finding.undecided, indices({1, 2}));
  const Answer answer = answer_of(finding, names);
  EXPECT_NE(
      answer.nearest.find("Of 2 undecided caches, nearest to harmless is kivi:bits=4 (4.0 times less memory): 0.000 nats per "
                          "token (−0.066 to +0.066)."),
      std::string::npos)
      << answer.nearest;
  EXPECT_NE(answer.nearest.find("within ±0.05 nats"), std::string::npos) << answer.nearest;
  ASSERT_EQ(answer.others.size(), 2U);
  EXPECT_TRUE(answer.others[0].starts_with("kivi:bits=4 (4.0 times less memory): undecided, 0.000 nats per token"))
      << answer.others[0];
  EXPECT_NE(answer.others[0].find("12 samples are too few"), std::string::npos) << answer.others[0];
  EXPECT_TRUE(answer.others[1].starts_with("kivi:bits=2")) << answer.others[1];

  set_differences(results, kFour, -0.03, 0.1);  // -0.096 to +0.036
  set_differences(results, kTwo, 0, 0.13);      // -0.086 to +0.086
  finding = only_finding(results);
  EXPECT_EQ(finding.undecided, indices({2, 1}));
  EXPECT_NE(answer_of(finding, names).nearest.find("nearest to harmless is kivi:bits=2"), std::string::npos);

  set_differences(results, kFour, 0, 0.01);  // harmless: of the one undecided cache nothing more is said
  finding = only_finding(results);
  EXPECT_EQ(finding.best, 1U);
  EXPECT_EQ(answer_of(finding, names).nearest, "");
}

// "Nearest to harmless" is no word for a cache that gained.
TEST(Findings, AnUndecidedCacheThatGainedIsSaidToHaveGained) {
  StoredResults results = made_results(6);
  set_differences(results, kFour, 0.02, 0.1);  // -0.046 to +0.086
  set_differences(results, kTwo, 0, 0.2);
  const Answer answer = answer_of(only_finding(results), short_names(specs_of(results)));
  EXPECT_NE(answer.nearest.find("most promising is kivi:bits=4 (4.0 times less memory), which gained: +0.020 nats per token"),
            std::string::npos)
      << answer.nearest;
  EXPECT_EQ(answer.nearest.find("harmless"), std::string::npos) << answer.nearest;
}

// docs/decisions/0013: a summary's ROUGE-L is about 0.18, so that 5 points would be 28 % of it.
TEST(Findings, ALossIsJudgedByWhatFullScores) {
  const auto with_full_at = [](double full, double lost) {
    StoredResults results = made_results(20);
    results.tasks = {{"needle", "rouge"}};
    for (Outcome& o : results.outcomes) {
      const double wobble = std::stoi(o.key.sample) % 2 == 0 ? 0.01 : -0.01;
      o.score = o.spec == "full" ? full : full - (o.spec == kFour ? lost + wobble : 0);
    }
    return only_finding(results);
  };
  const WorkloadFinding small = with_full_at(0.18, 0.03);
  EXPECT_NEAR(small.caches[1].score.margin, 1.8, 1e-9);
  EXPECT_EQ(small.caches[1].loss, Loss::kLoses);
  EXPECT_EQ(small.caches[2].score.verdict, Verdict::kSame);
  const auto names = std::map<std::string, std::string>{{"full", "full"}, {kFour, "four"}, {kTwo, "two"}};
  const std::vector<std::string> others = answer_of(small, names).others;
  EXPECT_TRUE(std::ranges::any_of(others, [](const std::string& s) {
    return s.find(
               "loses: −3.0 points, −17 % of full's 18.0 on needle at 2,048 tokens, by score alone: its likelihood is the same "
               "(0.000 nats per token)") != std::string::npos;
  })) << others.at(0);
  EXPECT_EQ(with_full_at(0.18, 0.005).caches[1].score.verdict, Verdict::kSame);
  EXPECT_EQ(with_full_at(0.7, 0.03).caches[1].score.verdict, Verdict::kSame);  // the margin is never more than 5 points
  EXPECT_NEAR(with_full_at(0.7, 0.03).caches[1].score.margin, 5, 1e-9);
}

TEST(Findings, FewDocumentsAreSaidWithTheWidthOfTheirIntervals) {
  const auto few = [](const StoredResults& r) { return answer_of(only_finding(r), short_names(specs_of(r))).few; };
  EXPECT_EQ(few(made_results(10)), "");  // 20 in all
  const std::string text = few(made_results(6));
  // 12 scores that do not differ: half of 1.96 sqrt((1 / 14) / 14) is 14.0 points.
  EXPECT_TRUE(text.starts_with("only 12 samples: the 95 % intervals of the differences are ±14.0 to ")) << text;
  EXPECT_NE(text.find("nats per token wide"), std::string::npos) << text;
  StoredResults shared = made_results(20);
  for (SampleRecord& s : shared.samples) s.document = s.key.sample.back();
  EXPECT_TRUE(few(shared).starts_with("only 40 samples about 10 documents: ")) << few(shared);
}

TEST(Findings, WithoutAnIntervalTheMeanPutsInOrderAndNothingMeasuredComesLast) {
  StoredResults results = made_results(1);
  std::erase_if(results.samples, [](const SampleRecord& s) { return s.key.context == 4096; });
  std::erase_if(results.outcomes, [](const Outcome& o) { return o.key.context == 4096; });
  for (Outcome& o : results.outcomes) o.score.reset();
  set_differences(results, kFour, -0.02, 0);
  for (Outcome& o : results.outcomes) o.score.reset();
  WorkloadFinding finding = only_finding(results);
  EXPECT_EQ(finding.undecided, indices({1, 2}));
  for (Outcome& o : results.outcomes) {
    if (o.spec == kFour) o.gold_log_likelihood.reset();
  }
  finding = only_finding(results);
  EXPECT_EQ(finding.undecided, indices({2, 1}));
  const Answer answer = answer_of(finding, short_names(specs_of(results)));
  EXPECT_NE(answer.nearest.find("Undecided, and nearest to harmless is kivi:bits=2"), std::string::npos) << answer.nearest;
  EXPECT_NE(answer.others[1].find("nothing to compare"), std::string::npos) << answer.others[1];
}

TEST(Findings, WithoutFullNothingIsClaimed) {
  StoredResults results = made_results(10);
  std::erase_if(results.outcomes, [](const Outcome& o) { return o.spec == "full"; });
  const WorkloadFinding finding = only_finding(results);
  EXPECT_FALSE(finding.has_reference);
  EXPECT_FALSE(finding.best.has_value());
  EXPECT_NE(answer_of(finding, short_names(specs_of(results))).claim.find("--kv full"), std::string::npos);
}

TEST(Findings, AFailedCacheIsNamed) {
  StoredResults results = made_results(10);
  for (Outcome& o : results.outcomes) {
    if (o.spec == kTwo) o.error = "out of memory";
  }
  const WorkloadFinding finding = only_finding(results);
  EXPECT_EQ(finding.caches[2].loss, Loss::kFailed);
  const Answer answer = answer_of(finding, short_names(specs_of(results)));
  ASSERT_EQ(answer.others.size(), 1U);
  EXPECT_NE(answer.others[0].find("failed on all of its 20 samples"), std::string::npos);
}

// What a cache loses on unseen questions is no loss on seen ones, and does not hide behind them.
TEST(Findings, PositionsOfTheQuestionAreAnsweredApart) {
  StoredResults results = made_results(40);
  add_unseen(results);
  for (Outcome& o : results.outcomes) {
    if (o.spec == kFour && o.key.position == QuestionPosition::kUnseen) o.gold_log_likelihood = *o.gold_log_likelihood - 0.3;
  }
  const std::vector<WorkloadFinding> all = find_answers(results, report_rows(results));
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].position, QuestionPosition::kSeen);
  EXPECT_EQ(all[0].samples, 80);
  EXPECT_EQ(all[0].caches[1].loss, Loss::kAsGood);
  EXPECT_EQ(all[1].position, QuestionPosition::kUnseen);
  EXPECT_EQ(all[1].samples, 80);
  EXPECT_EQ(all[1].caches[1].loss, Loss::kLoses);
  EXPECT_EQ(all[1].caches[1].pairs, 80);
}

// What choosing rows for one question cost the next one, in words, and nothing where it is not decided.
TEST(Findings, SecondQuestionsSayWhatTheFirstOneCostThem) {
  StoredResults results = made_results(40);
  add_second(results);
  std::vector<WorkloadFinding> all = find_answers(results, report_rows(results));
  ASSERT_EQ(all.size(), 2U);
  const auto names = short_names(specs_of(results));
  EXPECT_EQ(all[1].position, QuestionPosition::kSecond);
  EXPECT_EQ(answer_of(all[0], names).next, "");
  EXPECT_EQ(
      answer_of(all[1], names).next,
      "What choosing rows for one question cost the next one: asked second instead of seen, kivi:bits=2 loses 0.300 nats per "
      "token more (0.300); kivi:bits=4 loses no more than the 0.05 that count as nothing.");

  StoredResults few = made_results(2);
  add_second(few);
  all = find_answers(few, report_rows(few));
  EXPECT_EQ(answer_of(all[1], names).next, "");
}

// Runs alone exist at 2,048 tokens only: they give the factors, and no shared time of the other table mixes in.
// The first token of an answer comes from the exact prompt pass: with answers of one token no cache can be told from `full`, so
// none may be recommended by them. Asked later, the same answers count.
TEST(Findings, AnswersOfOneTokenDecideOnlyWhereTheQuestionWasUnseen) {
  StoredResults r = made_results(20);
  for (SampleRecord& s : r.samples) s.gold_tokens = 1;
  add_unseen(r);
  const std::vector<ReportRow> rows = report_rows(r);
  for (const ReportRow& row : rows) {
    const bool counts = row.position == QuestionPosition::kUnseen && row.spec != "full";
    EXPECT_EQ(row.paired, counts ? 20 : 0) << cell_name(row.cell()) << row.spec;
    EXPECT_EQ(row.score.difference.has_value(), counts);
    EXPECT_EQ(row.likelihood.difference.has_value(), counts);
    EXPECT_TRUE(row.score.mean.has_value());
  }
  const std::vector<WorkloadFinding> findings = find_answers(r, rows);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_FALSE(findings[0].best.has_value());
  for (const CacheFinding& c : findings[0].caches)
    EXPECT_EQ(c.loss, c.spec == "full" ? Loss::kReference : Loss::kUndecided) << c.spec;
  ASSERT_TRUE(findings[1].best.has_value());
  EXPECT_EQ(findings[1].caches[*findings[1].best].spec, kFour);
  for (const DepthRow& depth : depth_rows(r)) {
    if (depth.cell.position != QuestionPosition::kSeen) continue;
    for (const DepthBin& bin : depth.bins) EXPECT_FALSE(bin.likelihood.difference.has_value());
  }
  const std::vector<std::string> caveats = report_caveats(r, rows);
  EXPECT_EQ(std::ranges::count_if(caveats,
                                  [](const std::string& c) {
                                    return c.starts_with("An answer of one token") &&
                                           c.find("needle at 2048, 4096 tokens (40 of 40 prompts)") != std::string::npos;
                                  }),
            1);

  // The rest of the answer is the cache's own: its scores decide nothing here, and are told where they are others.
  const auto telling = [&](const std::string& words) {
    const std::vector<std::string> all = report_caveats(r, rows);
    return std::ranges::count_if(all, [&](const std::string& c) { return c.find(words) != std::string::npos; });
  };
  EXPECT_EQ(telling("of 80 answers of other caches to these prompts, 20 scored otherwise"), 1);  // every second of kTwo
  const auto four = std::ranges::find_if(
      r.outcomes, [](const Outcome& o) { return o.spec == kFour && o.key.position == QuestionPosition::kSeen; });
  four->score = 0;
  EXPECT_EQ(telling("of 80 answers of other caches to these prompts, 21 scored otherwise"), 1);
  four->score = 1;

  r.samples[0].gold_tokens = 2;  // one of the 40 that were seen
  EXPECT_EQ(report_rows(r)[1].paired, 1);
}

TEST(Findings, CostsComeFromRunsAloneWhereThereAreAny) {
  StoredResults results = made_results(10);
  for (Outcome& o : results.outcomes) o.shared = true;
  EXPECT_TRUE(only_finding(results).caches[2].shared);
  EXPECT_NEAR(*only_finding(results).caches[2].decode_factor, 1.5, 1e-12);
  add_solo(results);
  const WorkloadFinding finding = only_finding(results);
  const CacheFinding& two = finding.caches[2];
  EXPECT_FALSE(two.shared);
  EXPECT_NEAR(*two.decode_factor, 82.0 / 42, 1e-12);
  EXPECT_NEAR(*two.ttft_factor, 1, 1e-12);
  EXPECT_NE(answer_of(finding, short_names(specs_of(results))).cost.find("timed alone"), std::string::npos);
}

// A seventh cache, measured a day later with only its own lane in the steps, is no three times faster than full was among six.
TEST(Findings, SharedTimesOfOtherRunsAreNotHeldAgainstFulls) {
  StoredResults results = made_results(10);
  for (Outcome& o : results.outcomes) {
    o.shared = true;
    if (o.spec.starts_with("kivi:bits=2")) o.run = 2;
  }
  const WorkloadFinding finding = only_finding(results);
  EXPECT_TRUE(finding.caches[1].decode_factor.has_value());
  EXPECT_FALSE(finding.caches[2].decode_factor.has_value());
  EXPECT_FALSE(finding.caches[2].ttft_factor.has_value());
  EXPECT_FALSE(finding.caches[2].extra_ttft_s.has_value());
  const auto says_so = [&] {
    return std::ranges::any_of(report_caveats(results, report_rows(results)), [](const std::string& c) {
      return c.find("Measured in another run than full") != std::string::npos;
    });
  };
  EXPECT_TRUE(says_so());
  for (Outcome& o : results.outcomes) o.run = 2;
  EXPECT_FALSE(says_so());
  for (Outcome& o : results.outcomes) {
    o.shared = false;  // each alone: any two compare
    o.run = o.spec == "full" ? 1 : 2;
  }
  EXPECT_FALSE(says_so());
  EXPECT_NEAR(*only_finding(results).caches[2].decode_factor, 1.5, 1e-12);
}

TEST(Depth, SortsSamplesWithOneFactIntoFifths) {
  StoredResults results = made_results(10);
  results.samples[0].depths_json = "[0.1,0.9]";  // two facts: belongs nowhere
  results.samples[1].depths_json = "[1]";
  results.samples[2].depths_json = "not json";
  const std::vector<DepthRow> rows = depth_rows(results);
  ASSERT_EQ(rows.size(), 6U);
  EXPECT_EQ(rows[0].cell.context, 2048);
  std::vector<int> counts;
  for (const DepthBin& bin : rows[0].bins) counts.push_back(bin.n);
  EXPECT_EQ(counts, (std::vector<int>{1, 1, 1, 2, 3}));
  EXPECT_EQ(rows[2].spec, kTwo);
  EXPECT_NEAR(*rows[5].bins[0].likelihood.difference, -0.4, 2e-3);
}

TEST(Depth, OldStoresHaveNone) {
  StoredResults results = made_results(3);
  for (SampleRecord& s : results.samples) s.depths_json.clear();
  EXPECT_TRUE(depth_rows(results).empty());
}

TEST(Disagreements, WidestFirstAndOnlyWhereScoresDiffer) {
  StoredResults results = made_results(4);
  for (Outcome& o : results.outcomes) {
    if (o.spec == kTwo && o.key.sample == "2" && o.key.context == 2048) o.score = 0.5;
  }
  const std::vector<Disagreement> list = disagreements(results, {"needle", 2048});
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0].sample->key.sample, "0");
  EXPECT_DOUBLE_EQ(list[0].spread, 1);
  EXPECT_EQ(list[1].sample->key.sample, "2");
  EXPECT_EQ(list[0].outcomes.size(), 3U);
}

}  // namespace
}  // namespace kvartet
