// kvartet bench: interrupted, killed, continued, reported and re-scored, the table is always the same.
#include <gtest/gtest.h>

#include <chrono>
#include <map>

#include "bench_fixture.h"
#include "core/rng.h"

namespace kvartet::e2e {
namespace {

class Bench : public BenchFixture {};

TEST_F(Bench, TwoTasksTwoCaches) {
  const Finished f = bench("out", {"--samples", "4", "--json"});
  ASSERT_TRUE(is_ok(f));
  const Json d = f.json();
  ASSERT_EQ(d["rows"].size(), 4U);
  for (const Json& row : d["rows"]) {
    for (const char* key : {"task", "context", "spec", "n", "score", "low", "high", "likelihood", "ttft_s", "decode_tokens_per_s",
                            "compression_ratio", "fast_ratio", "acted"}) {
      EXPECT_TRUE(row.contains(key)) << key;  // DESIGN 6
    }
    EXPECT_EQ(row["n"], 4);
    EXPECT_EQ(row["failed"], 0);
    EXPECT_LE(row["prompt_tokens"], row["context"]);
    EXPECT_LT(row["likelihood"], 0);
    EXPECT_EQ(row["likelihood_difference"].is_null(), row["spec"] == "full");
  }
  const Finished table = run({"report", out("out")});
  ASSERT_TRUE(is_ok(table));
  EXPECT_NE(table.out.find("multineedle:k=2, context 900: 4 samples"), std::string::npos) << table.out;
}

// A file or a pipe gets lines, not one line that is rewritten; the first at once.
TEST_F(Bench, ProgressInLinesWhereNoTerminalIs) {
  const Finished f = bench("out", {"--samples", "2"});
  ASSERT_TRUE(is_ok(f));
  EXPECT_NE(f.err.find("needle at 900 tokens: sample 1 of 4; 0 %\n"), std::string::npos) << f.err;
  EXPECT_EQ(f.err.find_first_of("\r\x1b"), std::string::npos) << f.err;
  EXPECT_EQ(f.out.find("sample 1 of 4"), std::string::npos);
  EXPECT_EQ(bench("out", {"--samples", "2"}).err.find("sample 1"), std::string::npos) << "nothing is left to do";
}

TEST_F(Bench, ReportGivesTheSameRows) {
  const Finished f = bench("out", {"--samples", "2", "--json"});
  ASSERT_TRUE(is_ok(f));
  const Finished again = run({"report", out("out"), "--json"});
  ASSERT_TRUE(is_ok(again));
  EXPECT_EQ(without_decisions(again), f.json());
}

// Neither the clone's models/ nor --data: the essays are where KVARTET_MODELS says that the models are.
TEST_F(Bench, EssaysAreFoundWhereTheModelsAre) {
  const Arguments asked = {"bench", "-m",        model_, "--kv",      "full", "--task", "needle",   "--samples",
                           "1",     "--context", "900",  "--threads", "1",    "-o",     out("out"), "--dry-run"};
  std::filesystem::create_directory(folder_.path("empty"));
  std::filesystem::create_directory(folder_.path("empty/haystack"));
  ASSERT_EQ(setenv("KVARTET_MODELS", folder_.path().c_str(), 1), 0);
  const Finished found = run(asked);
  const Finished checked = run({"data", "check", folder_.path("empty"), "--json"});
  ASSERT_EQ(setenv("KVARTET_MODELS", folder_.path("empty").c_str(), 1), 0);
  const Finished none = run(asked);
  std::filesystem::remove(folder_.path("empty/haystack"));
  ASSERT_EQ(setenv("KVARTET_MODELS", folder_.path().c_str(), 1), 0);
  const Finished without_own = run({"data", "check", folder_.path("empty"), "--json"});
  unsetenv("KVARTET_MODELS");
  EXPECT_TRUE(is_ok(found));
  EXPECT_TRUE(is_refused(none, 3, folder_.path("empty/haystack") + " holds no .txt files"));
  EXPECT_EQ(checked.json()["sets"][0]["state"], "damaged");
  EXPECT_EQ(without_own.json()["sets"][0]["note"], "the essays in " + folder_.path("haystack") + " are used");
}

TEST_F(Bench, DryRunWritesNothing) {
  const Finished f = bench("out", {"--samples", "3", "--dry-run"});
  ASSERT_TRUE(is_ok(f));
  EXPECT_NE(f.out.find("3 prompts"), std::string::npos) << f.out;
  EXPECT_FALSE(std::filesystem::exists(out("out")));
}

// Flags take the place of the preset's tasks, lengths and samples; its caches stay, and its claims come at the end.
TEST_F(Bench, PresetBringsCachesAndClaims) {
  const Finished f = run(bench_arguments("out", {"--preset", "compression-paper", "--samples", "2", "--json"}, {}));
  ASSERT_TRUE(is_ok(f));
  const Json d = f.json();
  EXPECT_GE(d["rows"].size(), 2U * 7);
  ASSERT_EQ(d["claims"].size(), 15U);
  for (const Json& claim : d["claims"]) EXPECT_FALSE(claim["reason"].get<std::string>().empty()) << claim["claim"];
  EXPECT_EQ(d["claims"][0]["result"], "undecided");  // of four samples
  const Finished page = run({"report", out("out"), "-o", out("page.html")});
  ASSERT_TRUE(is_ok(page));
  // Of one model every trend is the same as itself.
  EXPECT_TRUE(is_refused(run({"report", out("out"), "--beside", out("out"), "--json"}), 2, "both results are of"));
  for (const char* flag : {"--speed", "--diagnosis"}) {
    EXPECT_TRUE(is_refused(run({"report", out("out"), "-o", out("odd.html"), flag, "/dev/zero"}), 3, "no ordinary file"));
    EXPECT_TRUE(is_refused(run({"report", out("out"), flag, "speed.json"}), 2, flag));
  }
}

TEST_F(Bench, PresetDryRunTellsHoursAndBytes) {
  const Finished f = run(bench_arguments("out", {"--preset", "compression-paper", "--samples", "2", "--dry-run"}, {}));
  ASSERT_TRUE(is_ok(f));
  EXPECT_NE(f.out.find("streamingllm:sinks=4,budget=0.25"), std::string::npos) << f.out;
  EXPECT_NE(f.out.find(" hours"), std::string::npos) << f.out;
  EXPECT_FALSE(std::filesystem::exists(out("out")));
}

TEST_F(Bench, NeitherCacheNorPresetIsRefused) {
  const Finished f = run({"bench", "-m", model_, "--task", "needle", "-o", out("out")});
  EXPECT_EQ(f.code, 2);
  EXPECT_NE(f.err.find("--preset"), std::string::npos) << f.err;
  const Finished wrong = run({"bench", "-m", model_, "--preset", "paper", "-o", out("out")});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_NE(wrong.err.find("compression-paper"), std::string::npos) << wrong.err;
}

// DESIGN 6: Ctrl-C keeps what is finished and exits 130, and the same command resumes.
TEST_F(Bench, InterruptedRunGoesOnWhereItWas) {
  const Json whole = rows(bench("whole", {"--samples", "12", "--json"}));
  Program program(bench_arguments("cut", {"--samples", "12", "--json"}));
  wait_for_samples(program, "cut", 2);
  program.kill(SIGINT);
  const Finished cut = program.wait();
  ASSERT_EQ(cut.code, 130) << cut.err;
  EXPECT_NE(cut.err.find("kvartet: interrupted"), std::string::npos) << cut.err;
  const int done = samples_in("cut");
  EXPECT_GE(done, 2);
  ASSERT_LT(done, 24) << "the interruption came too late to show anything";
  EXPECT_FALSE(cut.json()["rows"].empty());  // the table so far

  const Finished rest = bench("cut", {"--samples", "12", "--json"});
  ASSERT_TRUE(is_ok(rest));
  EXPECT_NE(rest.err.find("samples: " + std::to_string(done) + " in "), std::string::npos) << rest.err;
  EXPECT_EQ(rows(rest), whole);
}

TEST_F(Bench, KilledRunGoesOnWhereItWas) {
  const Json whole = rows(bench("whole", {"--samples", "8", "--json"}));
  Program program(bench_arguments("cut", {"--samples", "8", "--json"}));
  wait_for_samples(program, "cut", 3);
  program.kill(SIGKILL);
  ASSERT_EQ(program.wait().signal, SIGKILL);
  const int done = samples_in("cut");
  EXPECT_GE(done, 3);
  ASSERT_LT(done, 16) << "the kill came too late to show anything";
  EXPECT_TRUE(is_ok(run({"report", out("cut")})));
  const Finished rest = bench("cut", {"--samples", "8", "--json"});
  ASSERT_TRUE(is_ok(rest));
  EXPECT_EQ(rows(rest), whole);
}

// Whenever it is killed, also while it opens or writes its results: the table and the prediction files of an undisturbed run.
TEST_F(Bench, KilledAtRandomMomentsGivesTheSameTable) {
  const auto start = std::chrono::steady_clock::now();
  const Json whole = rows(bench("whole", {"--samples", "4", "--json"}));
  const auto duration = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count();
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    Rng rng(seed);
    const std::string name = fmt::format("cut{}", seed);
    std::string moments;
    for (int kills = 0; kills < 5; ++kills) {
      const auto moment = static_cast<useconds_t>(rng.below(static_cast<std::uint64_t>(duration)));
      moments += fmt::format(" {}", moment);
      Program program(bench_arguments(name, {"--samples", "4", "--json"}));
      usleep(moment);
      program.kill(SIGKILL);
      static_cast<void>(program.wait());
    }
    SCOPED_TRACE("seed " + std::to_string(seed) + ", killed after microseconds" + moments);
    const Finished rest = bench(name, {"--samples", "4", "--json"});
    ASSERT_TRUE(is_ok(rest));
    EXPECT_EQ(rows(rest), whole);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(out("whole") + "/predictions")) {
      if (!entry.is_regular_file()) continue;
      const std::filesystem::path other = out(name) / std::filesystem::relative(entry.path(), out("whole"));
      EXPECT_EQ(read_text(other), read_text(entry.path())) << other;
    }
  }
}

TEST_F(Bench, AnotherCacheLaterAddsOnlyItself) {
  const Json both = rows(bench("both", {"--samples", "3", "--json"}));
  ASSERT_TRUE(is_ok(run(bench_arguments("later", {"--samples", "3"}, {"--kv", "full"}))));
  const Finished f = run(bench_arguments("later", {"--samples", "3", "--json"}, {"--kv", "kivi:bits=2,residual=32"}));
  ASSERT_TRUE(is_ok(f));
  Json later = rows(f);
  Json expected = both;
  for (Json* list : {&later, &expected}) {
    for (Json& row : *list) row.erase("shared");  // each ran alone now
  }
  EXPECT_EQ(later, expected);
}

TEST_F(Bench, SameTableForAnyNumberOfThreads) {
  const Json one = rows(bench("one", {"--samples", "2", "--json"}));
  Arguments three = bench_arguments("three", {"--samples", "2", "--json"});
  *(std::find(three.begin(), three.end(), "--threads") + 1) = "3";
  EXPECT_EQ(rows(run(three)), one);
}

TEST_F(Bench, UnseenQuestionIsAnotherRun) {
  const Json seen = rows(bench("seen", {"--samples", "2", "--json"}));
  const Json unseen = rows(bench("unseen", {"--samples", "2", "--json", "--question-position", "unseen"}));
  ASSERT_EQ(seen.size(), unseen.size());
  EXPECT_EQ(seen[0]["prompt_tokens"], unseen[0]["prompt_tokens"]);
  EXPECT_NE(seen, unseen);
}

// Seen and unseen in one command, in two, or in one folder after the other: the same rows, and both side by side.
TEST_F(Bench, BothPositionsOfTheQuestion) {
  const Finished f = bench("both", {"--samples", "3", "--json", "--question-position", "both"});
  ASSERT_TRUE(is_ok(f));
  const Json both = rows(f);
  ASSERT_EQ(both.size(), 8U);
  EXPECT_EQ(f.json()["positions"].size(), 4U);
  for (const Json& row : f.json()["positions"]) EXPECT_EQ(row["n"], 3);
  const Json seen = rows(bench("seen", {"--samples", "3", "--json"}));
  const Json unseen = rows(bench("unseen", {"--samples", "3", "--json", "--question-position", "unseen"}));
  for (const Json& alone : {seen, unseen}) {
    for (const Json& row : alone) EXPECT_NE(std::find(both.begin(), both.end(), row), both.end()) << row;
  }
  const Finished added = bench("seen", {"--samples", "3", "--json", "--question-position", "unseen"});
  ASSERT_TRUE(is_ok(added));
  EXPECT_EQ(rows(added), both);
  EXPECT_TRUE(std::filesystem::exists(out("both") + "/predictions/needle/900-unseen/full.jsonl"));
  const Finished table = run({"report", out("both")});
  EXPECT_NE(table.out.find("needle at 900 tokens: question seen or unseen"), std::string::npos) << table.out;
}

// A record file of the user's own whose answers are in part what the model says, so that scores are neither 0 nor 100.
// The prediction files, re-scored by kvartet score, give the table's scores; a dirty line is named, never dropped silently.
TEST_F(Bench, PredictionsOfOwnFileReScoreToTheTable) {
  const auto records = [&](const std::vector<std::string>& answers) {
    std::string text = "\xef\xbb\xbf\n";
    for (std::size_t i = 0; i < answers.size(); ++i) {
      text += Json{{"_id", fmt::format("r{}", i)},
                   {"input", "What is said here?"},
                   {"context", haystack_text().substr(i * 40, 300)},
                   {"answers", {answers[i]}},
                   {"length", 100}}
                  .dump() +
              "\r\n";
    }
    return folder_.file("mine.jsonl", text + "{\"input\": broken\n");
  };
  const auto bench_own = [&](const std::string& name, const std::string& file) {
    return run({"bench", "-m", model_, "--threads", "1", "--task", file + ":max_new=12", "--metric", "f1", "--context", "700",
                "-o", out(name), "--json", "--kv", "full", "--kv", "kivi:bits=2,residual=32"});
  };
  const Finished first = bench_own("first", records(std::vector<std::string>(6, "nobody knows")));
  ASSERT_TRUE(is_ok(first));
  EXPECT_NE(first.err.find("mine.jsonl:8: "), std::string::npos) << first.err;

  std::vector<std::string> said;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(out("first") + "/predictions")) {
    if (entry.path().filename() != "full.jsonl") continue;
    for (const Json& line : prediction_lines(entry.path())) said.push_back(line["pred"]);
  }
  ASSERT_EQ(said.size(), 6U);
  for (std::size_t i = 0; i < said.size(); i += 2) said[i] = "nobody knows";
  const std::string file = records(said);
  const Finished second = bench_own("second", file);
  ASSERT_TRUE(is_ok(second));

  const Json table = second.json();
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(out("second") + "/predictions")) {
    if (!entry.is_regular_file()) continue;
    ++files;
    const std::vector<Json> lines = prediction_lines(entry.path());
    ASSERT_EQ(lines.size(), 6U);
    for (const char* key :
         {"pred", "answers", "all_classes", "length", "id", "spec", "prompt_tokens", "completion_tokens", "prompt_hash"}) {
      EXPECT_TRUE(lines[0].contains(key)) << key;  // DESIGN 6
    }
    const Finished scored = run({"score", "--task", file, "--metric", "f1", entry.path(), "--json"});
    ASSERT_TRUE(is_ok(scored));
    for (const Json& row : table["rows"]) {
      if (row["spec"] != lines[0]["spec"]) continue;
      EXPECT_NEAR(scored.json()["score"].get<double>(), row["score"].get<double>(), 0.006);  // two decimals
    }
    if (entry.path().filename() == "full.jsonl") {
      EXPECT_GT(scored.json()["score"], 10.0);
      EXPECT_LT(scored.json()["score"], 90.0);
    }
  }
  EXPECT_EQ(files, 2);
}

// Every cache sees the same token ids (the hash of them is stored).
TEST_F(Bench, CachesSeeTheSamePrompts) {
  ASSERT_TRUE(is_ok(bench("out", {"--samples", "3"})));
  std::map<std::string, std::set<std::string>> hashes;  // of each sample
  for (const auto& entry : std::filesystem::recursive_directory_iterator(out("out") + "/predictions")) {
    if (!entry.is_regular_file()) continue;
    const std::string task = entry.path().parent_path().parent_path().filename();
    for (const Json& line : prediction_lines(entry.path()))
      hashes[task + line["id"].get<std::string>()].insert(line["prompt_hash"]);
  }
  EXPECT_EQ(hashes.size(), 6U);
  for (const auto& [sample, all] : hashes) EXPECT_EQ(all.size(), 1U) << sample;
}

// Samples that cannot be run are counted and explained, and the exit code tells a script.
TEST_F(Bench, FailedAnswersAreCountedAndExplained) {
  const Finished f = bench("out", {"--samples", "2", "--json", "--fast-tier-bytes", "300K"});
  EXPECT_EQ(f.code, 1) << f.err;
  EXPECT_NE(f.err.find("kvartet: "), std::string::npos);
  const Json d = f.json();
  int failed = 0;
  for (const Json& row : d["rows"]) {
    failed += row["failed"].get<int>();
    EXPECT_EQ(row["failed"].get<int>() + row["n"].get<int>(), 2);
    EXPECT_EQ(row["failed"] > 0, row["first_error"].get<std::string>().find("bytes") != std::string::npos);
  }
  EXPECT_EQ(failed, 4) << "full fails, kivi fits";
  // With room enough the same command mends what failed.
  EXPECT_EQ(rows(bench("out", {"--samples", "2", "--json"})).size(), 4U);
}

}  // namespace
}  // namespace kvartet::e2e
