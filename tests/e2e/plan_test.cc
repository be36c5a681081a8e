// kvartet plan and --kv auto: what is chosen is said, kept and true; whatever is wrong is one sentence with its exit code.
#include <gtest/gtest.h>

#include <cstdlib>
#include <regex>

#include "bench_fixture.h"
#include "results/planner_store.h"
#include "results/sqlite.h"

namespace kvartet::e2e {
namespace {

class PlanProgram : public BenchFixture {
 protected:
  void SetUp() override {
    setenv("KVARTET_HOME", folder_.path("home").c_str(), 1);
    unsetenv("KVARTET_RESULTS");
  }
  void TearDown() override { unsetenv("KVARTET_HOME"); }

  Finished plan(const Arguments& more) const {
    return run(
        Arguments{"plan", "-m", model_, "--for", "summary", "--prompt-tokens", "600", "--output-tokens", "20", "--threads", "1"} +
        more);
  }
};

TEST_F(PlanProgram, IsOneDocumentWithTheFieldsOthersRelyOn) {
  const Finished f = plan({"--json"});
  ASSERT_TRUE(is_ok(f));
  const Json j = f.json();
  EXPECT_EQ(j["chosen"]["spec"], "full");
  for (const char* key : {"bytes", "ttft_s", "decode_tokens_per_s", "reason"}) EXPECT_TRUE(j["chosen"].contains(key)) << key;
  for (const char* key : {"low", "expected", "high"}) EXPECT_TRUE(j["chosen"]["loss"].contains(key)) << key;
  ASSERT_FALSE(j["alternatives"].empty());
  for (const Json& a : j["alternatives"]) {
    EXPECT_TRUE(a.contains("rejected"));
    EXPECT_FALSE(a["reason"].get<std::string>().empty());
  }
  EXPECT_EQ(plan({"--json"}).out, f.out);  // the same inputs, the same plan
}

TEST_F(PlanProgram, ExplainHasTheTermsOfTheChosenPlan) {
  const Finished f = plan({});
  ASSERT_TRUE(is_ok(f));
  for (const char* word : {"chosen: full", "because", "weights", "attention", "prior", "not calibrated", "peak memory"}) {
    EXPECT_NE(f.out.find(word), std::string::npos) << word;
  }
}

// Predicted bytes are the bytes that `explain` counts, which are the bytes that a run allocates.
TEST_F(PlanProgram, BytesAreThoseOfExplain) {
  const Json chosen = plan({"--json", "--prefer", "memory", "--max-loss", "1"}).json()["chosen"];
  const Finished f = run({"explain", "-m", model_, "--kv", chosen["spec"], "--prompt-tokens", "600", "--json"});
  EXPECT_EQ(f.json()["bytes_total"], chosen["bytes_after_prompt"]);
}

TEST_F(PlanProgram, NamedCachesAreTheOnlyCandidates) {
  const Finished f = plan({"--json", "--kv", "q8_0", "--kv", "kivi:bits=4"});
  ASSERT_TRUE(is_ok(f));
  EXPECT_EQ(f.json()["chosen"]["spec"], "q8_0");
  ASSERT_EQ(f.json()["alternatives"].size(), 1U);
  EXPECT_TRUE(f.json()["alternatives"][0]["spec"].get<std::string>().starts_with("kivi:bits=4"));
  EXPECT_TRUE(is_refused(plan({"--kv", "kivy"}), 2, "kivi"));
}

// Weights are not read: a file whose download has come as far as its tensor records can be planned for, and not be run.
TEST_F(PlanProgram, ReadsNoWeights) {
  const std::string whole = read_text(model_);
  const std::size_t last_record = whole.rfind("output_norm.weight");
  ASSERT_NE(last_record, std::string::npos);
  const Finished of_whole = plan({"--json"});
  ASSERT_LT(last_record + 8192, whole.size() / 2);
  std::filesystem::resize_file(model_, last_record + 8192);
  const Finished of_part = plan({"--json"});
  ASSERT_TRUE(is_ok(of_part));
  EXPECT_EQ(of_part.out, of_whole.out);
  EXPECT_TRUE(is_refused(run({"run", "-m", model_, "--threads", "1", "-p", "text", "-n", "2"}), 3, "is cut off"));
  EXPECT_TRUE(is_refused(run({"run", "-m", model_, "--threads", "1", "--kv", "auto", "-p", "text", "-n", "2"}), 3, "is cut off"));
}

TEST_F(PlanProgram, NothingFeasibleIsExitCode4WithWhatWouldFixIt) {
  const Finished f = plan({"--memory", "20K", "--max-loss", "0"});
  EXPECT_EQ(f.code, 4) << f.err;
  EXPECT_NE(f.err.find("would allow"), std::string::npos) << f.err;
}

TEST_F(PlanProgram, SenselessRequestsAreUsage) {
  EXPECT_TRUE(is_refused(plan({"--memory", "10"}), 2, "row"));
  EXPECT_TRUE(is_refused(plan({"--memory", "1M", "--fast-memory", "2M"}), 2, "--fast-memory"));
  EXPECT_TRUE(is_refused(plan({"--max-loss", "-2"}), 2, "--max-loss"));
  EXPECT_TRUE(is_refused(plan({"--max-loss", "2"}), 2, "0.02"));  // two percent, in the wrong unit
  EXPECT_TRUE(is_refused(plan({"--prefer", "sped"}), 2, "speed"));
  EXPECT_TRUE(is_refused(run({"plan", "-m", model_, "--for", "sumary", "--prompt-tokens", "10"}), 2, "summary"));
  EXPECT_TRUE(is_refused(run({"plan", "-m", model_, "--for", "summary"}), 2, "--prompt-tokens"));
  EXPECT_TRUE(
      is_refused(run({"plan", "-m", folder_.path("none.gguf"), "--for", "chat", "--prompt-tokens", "10"}), 3, "none.gguf"));
  EXPECT_TRUE(is_refused(run({"plan", "-m", model_, "--for", "chat", "--prompt-tokens", "1000000"}), 4, "context"));
  EXPECT_TRUE(is_refused(run({"plan", "-m", model_, "--for", "chat", "--prompt-tokens", "10", "--memory", ""}), 2, "bytes"));
  EXPECT_TRUE(is_refused(run({"plan", "-m", model_, "--for", "chat", "--prompt-tokens", "10", "--fast-memory", ""}), 2, "bytes"));
  EXPECT_TRUE(is_refused(
      run({"plan", "-m", model_, "--for", "chat", "--prompt-tokens", "10", "--questions", "3", "--question-position", "seen"}), 2,
      "--questions 3"));
  EXPECT_TRUE(is_refused(run({"plan", "--audit"}), 3, "no decisions"));
  // 'auto' is a choice, and known: only not here.
  EXPECT_TRUE(is_refused(plan({"--kv", "auto"}), 2, "leave it out"));
  EXPECT_TRUE(is_refused(run({"speed", "-m", model_, "--kv", "auto", "--depth", "10"}), 2, "'run' and 'bench'"));
  EXPECT_TRUE(is_refused(run({"plan", "--audit", "-m", model_, "--for", "chat", "--prompt-tokens", "10"}), 2, "--audit"));
}

TEST_F(PlanProgram, ResultsThatAreNoneAreBadInput) {
  EXPECT_TRUE(is_refused(plan({"--results", out("nowhere")}), 3, "nowhere"));
  std::filesystem::create_directory(out("damaged"));
  folder_.file("damaged/results.sqlite", std::string(4000, 'x'));
  EXPECT_TRUE(is_refused(plan({"--results", out("damaged")}), 3, "damaged"));
  ASSERT_TRUE(is_ok(run(bench_arguments("alone", {"--samples", "2"}, {"--kv", "full"}))));
  EXPECT_TRUE(is_refused(plan({"--results", out("alone")}), 3, "alone"));
  EXPECT_TRUE(is_refused(run({"plan", "-m", model_, "--for", "chat", "--prompt-tokens", "9", "--output-tokens", "99999"}), 4,
                         "no room for a prompt"));
  EXPECT_TRUE(is_sentence(plan({"--kv", "shadowkv"}), 4, "no cache can be taken: shadowkv"));
}

TEST_F(PlanProgram, ResultsOfThisModelAreCounted) {
  ASSERT_TRUE(is_ok(run(bench_arguments("measured", {"--samples", "6"}, {"--kv", "full", "--kv", "kivi:bits=2"}))));
  const Finished f = plan({"--results", out("measured"), "--json"});
  ASSERT_TRUE(is_ok(f));
  EXPECT_EQ(
      f.json()["statistics"],
      "2 measured cells of this model (a task, a length and a cache each) from 1 folder");  // two tasks, one cache beside full
}

// scripts/check_plan compares these two, of every cache at large depths.
TEST_F(PlanProgram, BytesAtTheEndAreThoseThatASpeedMeasurementHolds) {
  const Arguments caches = {"--kv", "full", "--kv", "kivi:bits=4,residual=32", "--kv", "snapkv:budget=0.25+q4_0",
                            "--kv", "h2o",  "--kv", "streamingllm:window=64",  "--kv", "select:budget=0.1"};
  const Finished f = run(Arguments{"speed", "-m", model_, "--threads", "1", "--depth", "300", "--gen", "5", "--rounds", "1",
                                   "--prefill-rounds", "1", "--json"} +
                         caches);
  ASSERT_TRUE(is_ok(f));
  const Finished planned = run(Arguments{"plan", "-m", model_, "--for", "chat", "--prompt-tokens", "300", "--output-tokens", "5",
                                         "--threads", "1", "--json"} +
                               caches);
  ASSERT_TRUE(is_ok(planned));
  Json candidates = planned.json()["alternatives"];
  candidates.push_back(planned.json()["chosen"]);
  const Json rows = f.json()["rows"];
  int compared = 0;
  for (const Json& row : rows) {
    if (row["phase"] != "decode") continue;
    for (const Json& c : candidates) {
      if (c["spec"] != row["spec"]) continue;
      const Json& held = row["held"];
      EXPECT_EQ(c["bytes_at_end"].get<double>(),
                held["fast_allocated_bytes"].get<double>() + held["slow_allocated_bytes"].get<double>())
          << row["spec"];
      EXPECT_EQ(c["live_bytes_at_end"], held["live_bytes"]) << row["spec"];
      ++compared;
    }
  }
  EXPECT_EQ(compared, 6);
}

// The report decides for every kind of task, from the results it shows; the model is found by the name that the results have.
// The planner's memory is a help, and no reason to refuse a plan or a report.
TEST_F(PlanProgram, ADamagedMemoryIsToldAndDoneWithout) {
  ASSERT_TRUE(is_ok(run(bench_arguments("results", {"--samples", "2"}))));
  ASSERT_TRUE(is_ok(plan({})));
  for (const char* sql : {"INSERT INTO fidelity VALUES('h', 't', 'q8_0', 1, 1, 'm', 9e999, 0, '')", "DROP TABLE rates"}) {
    ASSERT_TRUE(Database::open(folder_.path("home/planner.sqlite"), Access::kReadWrite).value().execute(sql).ok()) << sql;
    for (const Finished& f : {plan({"--results", out("results")}), run({"report", out("results"), "--json", "-m", model_})}) {
      ASSERT_TRUE(is_ok(f)) << sql;
      EXPECT_NE(f.err.find("works without its memory"), std::string::npos) << f.err;
      EXPECT_EQ(f.out.find(" nan"), std::string::npos) << f.out;
    }
  }
}

// Rates that another revision of the program measured are not this program's: one sentence says so, and how to measure anew.
TEST_F(PlanProgram, ACalibrationOfAnotherRevisionIsNotUsed) {
  const Machine here = this_machine();
  Calibration calibration = {.machine = here, .threads = 1, .version = "0", .measured = "2025-01-01", .rates = {}};
  calibration.rates.push_back({.what = std::string(rate::kRead), .subject = "", .value = 5e9, .spread = 0});
  ASSERT_TRUE(PlannerStore::open(FileSystem::real(), folder_.path("home")).value().save(calibration).ok());
  EXPECT_NE(plan({}).out.find("calibrated 2025-01-01"), std::string::npos);
  for (const int other : {0, kCalibrationRevision + 1}) {
    calibration.revision = other;
    ASSERT_TRUE(PlannerStore::open(FileSystem::real(), folder_.path("home")).value().save(calibration).ok());
    const Finished f = plan({});
    ASSERT_TRUE(is_ok(f));
    EXPECT_EQ(f.out.find("calibrated 2025-01-01"), std::string::npos) << f.out;
    const std::string text = std::regex_replace(f.out, std::regex("\\s+"), " ");  // its lines are wrapped
    for (const char* word : {"2025-01-01", "was not used", "kvartet calibrate --threads 1"})
      EXPECT_NE(text.find(word), std::string::npos) << word << " in\n" << f.out;
    EXPECT_TRUE(plan({"--json"}).json()["calibrated_read_gb_per_s"].is_null());
  }
}

// In the planner, with --learn and on the report's page alike.
TEST_F(PlanProgram, AFolderThatIsNamedTwiceIsNoMoreEvidence) {
  ASSERT_TRUE(is_ok(run(bench_arguments("results", {"--samples", "6"}))));
  const std::string again = out("results") + "/../results/";
  const Json once = plan({"--results", out("results"), "--json"}).json();
  const Finished twice = plan({"--results", out("results"), "--results", again, "--json"});
  EXPECT_NE(twice.err.find("counts once"), std::string::npos) << twice.err;
  EXPECT_EQ(twice.json()["chosen"], once["chosen"]);
  EXPECT_EQ(twice.json()["alternatives"], once["alternatives"]);
  const Json report = run({"report", out("results"), "--json", "-m", model_}).json();
  ASSERT_FALSE(report["decisions"]["rows"].empty());
  const Json report_of_both = run({"report", out("results"), again, "--json", "-m", model_}).json();
  EXPECT_EQ(report_of_both["decisions"]["rows"], report["decisions"]["rows"]);
}

TEST_F(PlanProgram, TheReportShowsWhichCacheToTake) {
  ASSERT_TRUE(is_ok(run(bench_arguments("measured", {"--samples", "6"}, {"--kv", "full", "--kv", "kivi:bits=2"}))));
  const std::string page = folder_.path("report.html");
  const Finished f = run({"report", out("measured"), "-o", page, "--json"});
  ASSERT_TRUE(is_ok(f));
  const Json decisions = f.json()["decisions"];
  EXPECT_EQ(decisions["statistics"], "2 measured cells of this model (a task, a length and a cache each) from 1 folder");
  ASSERT_FALSE(decisions["rows"].empty());
  for (const Json& row : decisions["rows"]) {
    if (!row["spec"].is_null()) {
      EXPECT_LE(row["bytes"].get<double>(), row["cap_bytes"].get<double>());
    }
  }
  EXPECT_NE(read_text(page).find("id=\"decisions\""), std::string::npos);
  // Another model's choices would be no answer; without the model there are none, and it is said.
  const std::string other = tiny_model(folder_, {}, "other.gguf");
  EXPECT_TRUE(is_refused(run({"report", out("measured"), "-o", page, "-m", other}), 3, "another model"));
  std::filesystem::rename(model_, model_ + ".moved");
  const Finished without = run({"report", out("measured"), "-o", page});
  ASSERT_TRUE(is_ok(without));
  EXPECT_NE(without.err.find("without the planner's choices"), std::string::npos) << without.err;
  EXPECT_EQ(read_text(page).find("id=\"decisions\""), std::string::npos);
}

// Two minutes of fidelity, and the planner knows something.
TEST_F(PlanProgram, FidelityIsKeptAsAWeakSign) {
  const std::string file = folder_.file("text.txt", haystack_text());
  ASSERT_TRUE(is_ok(run({"fidelity", "-m", model_, "--threads", "1", "--kv", "kivi:bits=2", "-f", file, "--context", "300",
                         "--tokens", "32", "--free", "0"})));
  const Finished f = plan({"--json"});
  ASSERT_TRUE(is_ok(f));
  EXPECT_NE(f.json()["statistics"].get<std::string>().find("1 figure of kvartet fidelity"), std::string::npos) << f.out;
}

// What would change a decision is listed with its reason, run, and not asked for again.
TEST_F(PlanProgram, LearnMeasuresWhatIsOpen) {
  const auto learn = [&](const Arguments& more) {
    return run(Arguments{"bench", "-m", model_, "--threads", "1", "--learn", "--for", "single-fact", "--context", "900",
                         "--samples", "3", "--cells", "2", "--data", folder_.path(), "-o", out("learned")} +
               more);
  };
  const Finished listed = learn({"--dry-run"});
  ASSERT_TRUE(is_ok(listed));
  EXPECT_NE(listed.out.find("needle"), std::string::npos) << listed.out;
  EXPECT_NE(listed.out.find("nats per token"), std::string::npos) << listed.out;
  EXPECT_FALSE(std::filesystem::exists(out("learned")));
  const Finished f = learn({"--json"});
  ASSERT_TRUE(is_ok(f));
  const Json rows = f.json()["rows"];
  EXPECT_GE(rows.size(), 2U);
  EXPECT_EQ(rows[0]["spec"], "full");
  for (const Json& row : rows) {
    EXPECT_EQ(row["task"], "needle");
    EXPECT_EQ(row["n"], 3);
    EXPECT_TRUE(row["spec"] == "full" || listed.out.find(row["spec"].get<std::string>()) != std::string::npos) << row["spec"];
  }
  EXPECT_TRUE(is_ok(plan({"--results", out("learned")})));
}

// A task that does not fit a context is left out there, and does not end what can be learned of the others.
TEST_F(PlanProgram, LearnGoesOnWhereATaskDoesNotFit) {
  const auto learn = [&](const Arguments& more) {
    return run(Arguments{"bench", "-m", model_, "--threads", "1", "--learn", "--samples", "2", "--cells", "2000", "--data",
                         folder_.path(), "--dry-run", "-o", out("learned")} +
               more);
  };
  EXPECT_TRUE(is_sentence(learn({"--for", "single-fact", "--context", "300"}), 4, "needle"));
  const Finished some = learn({"--for", "single-fact", "--for", "few-shot", "--context", "900", "--context", "300"});
  ASSERT_TRUE(is_ok(some));
  EXPECT_NE(some.err.find("needle at 300 tokens is not learned about: "), std::string::npos) << some.err;
  const auto is_listed = [&](const char* task, int context) {
    return some.out.find(fmt::format("{:22} {:>7}", task, context)) != std::string::npos;
  };
  EXPECT_TRUE(is_listed("needle", 900)) << some.out;
  EXPECT_FALSE(is_listed("needle", 300)) << some.out;
  EXPECT_TRUE(is_listed("fewshot", 300)) << some.out;
}

TEST_F(PlanProgram, LearnIsRefusedWhereItMakesNoSense) {
  const Arguments learn = {"bench", "-m", model_, "--learn", "-o", out("learned")};
  EXPECT_TRUE(is_refused(run(learn + Arguments{"--kv", "full"}), 2, "--kv"));
  EXPECT_TRUE(is_refused(run(learn + Arguments{"--for", "poems"}), 2, "poems"));
  EXPECT_TRUE(is_refused(run(learn + Arguments{"--for", "chat", "--memory", "10", "--context", "900"}), 2, "row"));
  EXPECT_TRUE(is_refused(run(bench_arguments("plain", {"--hours", "1"})), 2, "--learn"));
  EXPECT_TRUE(is_refused(run(bench_arguments("plain", {"--cells", "1"})), 2, "--cells"));
  for (const char* hours : {"nan", "inf", "-1", "soon"})
    EXPECT_TRUE(is_refused(run(learn + Arguments{"--hours", hours}), 2, "--hours"));
}

TEST_F(PlanProgram, AutoSaysWhatItChoseAndKeepsWhatHappened) {
  const std::string file = folder_.file("text.txt", haystack_text().substr(0, 600));
  const Finished f = run({"run", "-m", model_, "--threads", "1", "--kv", "auto:memory=300K,max-loss=1", "-f", file, "--question",
                          "Summarize the text.", "-n", "4", "--json"});
  ASSERT_EQ(f.code, 0) << f.err;
  EXPECT_NE(f.err.find("summary"), std::string::npos) << f.err;
  EXPECT_NE(f.err.find("guessed"), std::string::npos) << f.err;
  const Json kv = f.json()["kv"];
  EXPECT_LE(kv["allocated_bytes"].get<double>(), 300 * 1024);
  const Json rows = run({"plan", "--audit", "--json"}).json()["rows"];
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0]["spec"], kv["spec"]);
  EXPECT_EQ(rows[0]["predicted"]["bytes"], rows[0]["actual"]["bytes"]);  // exactly
  EXPECT_EQ(rows[0]["actual"]["bytes"], kv["allocated_bytes"]);
}

// Of a memory that is damaged the audit says just that.
TEST_F(PlanProgram, TheAuditOfADamagedMemorySaysSo) {
  std::filesystem::create_directory(folder_.path("home"));
  folder_.file("home/planner.sqlite", std::string(4000, 'x'));
  const Finished f = run({"plan", "--audit"});
  EXPECT_TRUE(is_refused(f, 3, "damaged; remove it"));
  EXPECT_EQ(f.err.find("no folder of its own"), std::string::npos) << f.err;
}

// A file's name is any bytes, and stands in the decision; a memory may hold whatever somebody wrote there.
TEST_F(PlanProgram, TheAuditShowsOddNamesAndRefusesOddFigures) {
  const std::string odd = folder_.path("odd\xff.gguf");
  std::filesystem::copy_file(model_, odd);
  ASSERT_TRUE(is_ok(run({"run", "-m", odd, "--threads", "1", "--kv", "auto:memory=300K,max-loss=1", "-p", "text", "-n", "2"})));
  const Finished f = run({"plan", "--audit", "--json"});
  ASSERT_TRUE(is_ok(f));
  EXPECT_EQ(f.json()["rows"].size(), 1U);
  const auto damage = [&](const char* what) {
    return Database::open(folder_.path("home/planner.sqlite"), Access::kReadWrite).value().execute(what).ok();
  };
  ASSERT_TRUE(damage("UPDATE plans SET kind = 'red ' || char(27) || '[31m'"));
  EXPECT_EQ(run({"plan", "--audit"}).out.find('\x1b'), std::string::npos);
  ASSERT_TRUE(damage("UPDATE plans SET actual_bytes = -1"));
  EXPECT_TRUE(is_refused(run({"plan", "--audit"}), 3, "damaged"));
}

TEST_F(PlanProgram, AutoInTheBenchmarkChoosesPerTask) {
  ASSERT_TRUE(
      is_ok(run(bench_arguments("auto", {"--samples", "2", "--json"}, {"--kv", "full", "--kv", "auto:memory=300K,max-loss=1"}))));
  const Json rows = run({"plan", "--audit", "--json"}).json()["rows"];
  ASSERT_EQ(rows.size(), 2U);  // two tasks
  EXPECT_EQ(rows[0]["kind"], "single-fact");
  EXPECT_EQ(rows[1]["kind"], "extraction");
  for (const Json& row : rows) EXPECT_EQ(row["predicted"]["bytes"], row["actual"]["bytes"]);
}

TEST_F(PlanProgram, WrongAutoSpecsAreUsage) {
  const auto ask = [&](const std::string& kv) { return run({"run", "-m", folder_.path("none.gguf"), "--kv", kv, "-p", "text"}); };
  EXPECT_TRUE(is_refused(ask("auto:memry=1M"), 2, "memory"));
  EXPECT_TRUE(is_refused(ask("auto:memory=lots"), 2, "lots"));
  EXPECT_TRUE(is_refused(ask("auto:for=poems"), 2, "poems"));
  EXPECT_TRUE(is_refused(ask("auto:max-loss=nan"), 2, "max-loss"));
  EXPECT_TRUE(is_refused(ask("auto:"), 2, "auto"));
  EXPECT_TRUE(is_refused(ask("auto:for=chat,for=summary"), 2, "'for' is set twice"));
  EXPECT_TRUE(is_refused(ask("auto:memory=1M,"), 2, "comma"));
}

}  // namespace
}  // namespace kvartet::e2e
