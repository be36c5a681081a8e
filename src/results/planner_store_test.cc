#include "results/planner_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "results/merge.h"
#include "results/paired.h"
#include "results/sqlite.h"
#include "results/store.h"

namespace kvartet {
namespace {

class PlannerStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvartet_planner_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  Result<PlannerStore> open() { return PlannerStore::open(FileSystem::real(), root_ + "/home"); }
  std::string results() const { return root_ + "/results"; }

  static RunRecord run() {
    RunRecord r;
    r.identity = {
        .model_hash = "00ff", .model_name = "tiny", .model_shape = "2 layers", .seed = 1, .parameters = "", .version = "0.1.0"};
    r.machine = {.cpu = "cpu", .cores = 2, .memory_bytes = 1, .compiler = "g++"};
    r.started = "2025-01-01T00:00:00Z";
    return r;
  }

  // Sample i: full has likelihood -0.1 and score 1, kivi -0.1 - 0.01 * i and score 1 - i % 2.
  static Status add_samples(Store& store, int begin, int end) {
    KV_TRY(store.add_task("needle", "contains"));
    for (int i = begin; i < end; ++i) {
      SampleRecord s;
      s.key = {"needle", 2048, "n" + std::to_string(i)};
      s.ordinal = i;
      s.prompt_hash = "aa";
      s.prompt_tokens = 2000 + i;
      s.answers_json = "[]";
      s.classes_json = "null";
      Outcome full;
      full.key = s.key;
      full.spec = "full";
      full.score = 1;
      full.gold_log_likelihood = -0.1;
      Outcome kivi = full;
      kivi.spec = "kivi:bits=4";
      kivi.score = 1 - i % 2;
      kivi.gold_log_likelihood = -0.1 - 0.01 * i;
      Outcome failed = full;
      failed.spec = "q8_0";
      failed.error = "out of memory";
      const std::vector<Outcome> outcomes = {kivi, full, failed};
      KV_TRY(store.finish_sample(s, outcomes));
    }
    return {};
  }

  std::string root_;
};

TEST(Moments, AgreeWithTheObviousFormulas) {
  const double x[] = {0.5, -1, 3, 2.25, 0, 0.125};
  Moments all, left, right;
  double mean = 0;
  for (const double v : x) mean += v / 6;
  double m2 = 0;
  for (const double v : x) m2 += (v - mean) * (v - mean);
  for (int i = 0; i < 6; ++i) {
    all.add(x[i]);
    (i < 2 ? left : right).add(x[i]);
  }
  left.merge(right);
  for (const Moments& m : {all, left}) {
    EXPECT_EQ(m.n, 6);
    EXPECT_NEAR(m.mean, mean, 1e-12);
    EXPECT_NEAR(m.m2, m2, 1e-12);
  }
  EXPECT_NEAR(all.standard_error(), student_t_975(5) / 1.959964 * std::sqrt(m2 / 5 / 6), 1e-12);
  EXPECT_EQ(Moments{}.standard_error(), 0);
}

TEST_F(PlannerStoreTest, EvidenceIsThePairedDifferenceToFull) {
  {
    Store store = Store::open(FileSystem::real(), results(), run()).value();
    ASSERT_TRUE(add_samples(store, 0, 10).ok());
  }
  const std::vector<EvidenceCell> cells = read_evidence(FileSystem::real(), results()).value();
  ASSERT_EQ(cells.size(), 1U);  // the reference and failures are no cells
  EXPECT_EQ(cells[0].spec, "kivi:bits=4");
  EXPECT_EQ(cells[0].task, "needle");
  EXPECT_EQ(cells[0].metric, "contains");
  EXPECT_EQ(cells[0].context, 2048);
  EXPECT_EQ(cells[0].model_hash, "00ff");
  EXPECT_EQ(cells[0].parameters, "question=seen");
  EXPECT_NEAR(cells[0].prompt_tokens, 2004.5, 0.6);
  EXPECT_EQ(cells[0].nats.n, 10);
  EXPECT_NEAR(cells[0].nats.mean, 0.045, 1e-12);
  EXPECT_NEAR(cells[0].score.mean, 0.5, 1e-12);
}

TEST_F(PlannerStoreTest, StatisticsAreRememberedUntilTheResultsChange) {
  {
    Store store = Store::open(FileSystem::real(), results(), run()).value();
    ASSERT_TRUE(add_samples(store, 0, 4).ok());
  }
  PlannerStore planner = open().value();
  const std::vector<EvidenceCell> first = planner.evidence(FileSystem::real(), results()).value();
  EXPECT_EQ(planner.evidence(FileSystem::real(), results()).value(), first);
  EXPECT_EQ(first, read_evidence(FileSystem::real(), results()).value());
  {
    Store store = Store::open(FileSystem::real(), results(), run()).value();
    ASSERT_TRUE(add_samples(store, 4, 40).ok());
  }
  EXPECT_EQ(planner.evidence(FileSystem::real(), results()).value()[0].nats.n, 40);
}

// Results do not change when a new version of the program counts them in another way; what it remembers of them must.
TEST_F(PlannerStoreTest, StatisticsOfAnEarlierRuleAreMadeAnew) {
  {
    Store store = Store::open(FileSystem::real(), results(), run()).value();
    ASSERT_TRUE(add_samples(store, 0, 4).ok());
  }
  const std::vector<EvidenceCell> sound = open().value().evidence(FileSystem::real(), results()).value();
  {
    Database database = Database::open(root_ + "/home/" + kPlannerFile, Access::kReadWrite).value();
    // As programs without a revision left them.
    ASSERT_TRUE(database.execute("UPDATE evidence_stores SET stamp = substr(stamp, instr(stamp, ':') + 1)").ok());
    ASSERT_TRUE(database.execute("UPDATE evidence SET nats_n = 400").ok());
  }
  EXPECT_EQ(open().value().evidence(FileSystem::real(), results()).value(), sound);
}

// From memory as from the file, and samples that stand in two folders count once.
TEST_F(PlannerStoreTest, EvidenceOfMergedResultsCountsASampleOnce) {
  const std::string other = root_ + "/other";
  for (const std::string& folder : {results(), other}) {
    Store store = Store::open(FileSystem::real(), folder, run()).value();
    ASSERT_TRUE(add_samples(store, folder == other ? 2 : 0, folder == other ? 9 : 4).ok());
  }
  const StoredResults first = Store::open_for_reading(FileSystem::real(), results()).value().load().value();
  const StoredResults second = Store::open_for_reading(FileSystem::real(), other).value().load().value();
  EXPECT_EQ(evidence_of(first), read_evidence(FileSystem::real(), results()).value());
  const MergedResults merged = merge_results({{results(), first}, {other, second}}).value();
  const std::vector<EvidenceCell> cells = evidence_of(merged.results);
  ASSERT_EQ(cells.size(), 1U);
  EXPECT_EQ(cells[0].nats.n, 9);
  EXPECT_NEAR(cells[0].nats.mean, 0.04, 1e-12);
}

TEST_F(PlannerStoreTest, MissingEmptyForeignAndDamagedResultsAreBadInputOrEmpty) {
  PlannerStore planner = open().value();
  EXPECT_EQ(planner.evidence(FileSystem::real(), results()).status().code(), Code::kBadInput);
  { ASSERT_TRUE(Store::open(FileSystem::real(), results(), run()).ok()); }
  EXPECT_TRUE(planner.evidence(FileSystem::real(), results()).value().empty());
  // The planner's own file under the name of results: another program's database, as far as results go.
  std::filesystem::copy_file(root_ + "/home/" + kPlannerFile, results() + "/" + kStoreFile,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(planner.evidence(FileSystem::real(), results()).status().code(), Code::kBadInput);
  std::ofstream(results() + "/" + kStoreFile, std::ios::trunc) << std::string(5000, 'x');
  EXPECT_EQ(planner.evidence(FileSystem::real(), results()).status().code(), Code::kBadInput);
}

TEST_F(PlannerStoreTest, ACalibrationIsKeptPerMachineAndThreads) {
  PlannerStore planner = open().value();
  Calibration c;
  c.machine = {.cpu = "cpu", .cores = 2, .memory_bytes = 1'000'000, .compiler = "g++"};
  c.threads = 2;
  c.version = "0.1.0";
  c.measured = "2025-01-01T00:00:00Z";
  c.rates = {{.what = "read", .subject = "", .value = 3e10, .spread = 0.1},
             {.what = "attend", .subject = "f16/f16", .head_dim = 64, .group = 3, .depth = 512, .value = 1e-5}};
  ASSERT_TRUE(planner.save(c).ok());
  c.threads = 1;
  c.measured = "2025-01-02T00:00:00Z";
  ASSERT_TRUE(planner.save(c).ok());
  c.rates.pop_back();
  ASSERT_TRUE(planner.save(c).ok());  // replaces the second
  const std::vector<Calibration> all = planner.calibrations().value();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].threads, 1);
  EXPECT_EQ(all[0].rates.size(), 1U);
  EXPECT_EQ(all[1].rates.size(), 2U);
  EXPECT_EQ(std::count(all[0].rates.begin(), all[0].rates.end(), c.rates[0]), 1);
  EXPECT_TRUE(same_machine(all[0].machine, c.machine));
  Machine other = c.machine;
  other.cpu = "another";
  EXPECT_FALSE(same_machine(other, c.machine));
  other = c.machine;
  other.memory_bytes = 1'001'000;  // a few pages
  EXPECT_TRUE(same_machine(other, c.machine));
  other.memory_bytes = 2'000'000;
  EXPECT_FALSE(same_machine(other, c.machine));
}

TEST_F(PlannerStoreTest, ADecisionIsKeptWithWhatHappened) {
  std::int64_t id = 0;
  PlanRecord p;
  p.decided = "2025-01-01T00:00:00Z";
  p.model = "tiny";
  p.kind = "summary";
  p.kind_source = "given";
  p.prompt_tokens = 100;
  p.limits = "memory=1M";
  p.spec = "kivi:bits=4";
  p.reason = "because";
  p.calibrated = true;
  p.loss_high = 2.5;
  p.predicted_bytes = 1000;
  {
    PlannerStore planner = open().value();
    id = planner.add(p).value();
    PlanRecord actual;
    actual.actual_bytes = 1001;
    actual.actual_ttft_s = 0.5;
    ASSERT_TRUE(planner.finish(id, actual).ok());
  }
  const std::vector<PlanRecord> all = open().value().plans().value();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].id, id);
  EXPECT_EQ(all[0].kind, "summary");
  EXPECT_EQ(all[0].loss_high, 2.5);
  EXPECT_TRUE(all[0].calibrated);
  EXPECT_EQ(all[0].actual_bytes, 1001);
  EXPECT_EQ(all[0].actual_ttft_s, 0.5);
  EXPECT_FALSE(all[0].actual_decode_tokens_per_s.has_value());
}

FidelityRecord fidelity_record() {
  return {.model_hash = "00ff",
          .model_name = "tiny",
          .text_hash = "aa",
          .spec = "kivi:bits=4",
          .prefix_tokens = 1000,
          .tokens = 256,
          .kl_mean = 0.02,
          .kl_sd = 0.05,
          .measured = "2025-01-01T00:00:00Z"};
}

TEST_F(PlannerStoreTest, FidelityIsKeptPerModelTextCacheAndLength) {
  FidelityRecord r = fidelity_record();
  FidelityRecord other = r;
  other.text_hash = "bb";
  {
    PlannerStore planner = open().value();
    ASSERT_TRUE(planner.keep(std::vector{r, other}).ok());
    r.kl_mean = 0.03;
    ASSERT_TRUE(planner.keep(std::vector{r}).ok());  // replaces the first
  }
  EXPECT_EQ(open().value().fidelity().value(), (std::vector{r, other}));
}

TEST(FidelityCell, HasTheDivergenceInTheLosssPlaceAndFewerSamplesThanTokens) {
  const EvidenceCell cell = fidelity_cell(fidelity_record());
  EXPECT_TRUE(is_fidelity(cell));
  EXPECT_FALSE(is_paper_form(cell));
  EXPECT_EQ(cell.prompt_tokens, 1000);
  EXPECT_EQ(cell.nats.n, 32);
  EXPECT_EQ(cell.nats.mean, 0.02);
  EXPECT_NEAR(cell.nats.variance(), 0.05 * 0.05, 1e-15);
}

// A paper's own form is told from a fair one by the cells themselves.
TEST_F(PlannerStoreTest, EvidenceTellsAPapersOwnForm) {
  RunRecord paper = run();
  paper.identity.parameters = "form=paper";
  {
    Store store = Store::open(FileSystem::real(), results(), paper).value();
    ASSERT_TRUE(add_samples(store, 0, 4).ok());
  }
  const std::vector<EvidenceCell> cells = read_evidence(FileSystem::real(), results()).value();
  ASSERT_EQ(cells.size(), 1U);
  EXPECT_EQ(cells[0].parameters, "question=seen,form=paper");
  EXPECT_TRUE(is_paper_form(cells[0]));
}

// A memory of format 1 loses nothing but its statistics, which are made anew.
TEST_F(PlannerStoreTest, AMemoryOfFormat1IsRenewed) {
  {
    Store store = Store::open(FileSystem::real(), results(), run()).value();
    ASSERT_TRUE(add_samples(store, 0, 4).ok());
  }
  PlanRecord decision;
  decision.decided = "2025-01-01T00:00:00Z";
  decision.spec = "kivi:bits=4";
  {
    PlannerStore planner = open().value();
    ASSERT_TRUE(planner.add(decision).ok());
    ASSERT_TRUE(planner.evidence(FileSystem::real(), results()).ok());
    Database database = Database::open(root_ + "/home/" + kPlannerFile, Access::kReadWrite).value();
    ASSERT_TRUE(database
                    .execute("DROP TABLE fidelity; ALTER TABLE calibrations DROP COLUMN revision; UPDATE evidence SET task = "
                             "'old'; PRAGMA user_version = 1;")
                    .ok());
  }
  PlannerStore planner = open().value();
  EXPECT_EQ(planner.plans().value().size(), 1U);
  EXPECT_TRUE(planner.fidelity().value().empty());
  EXPECT_EQ(planner.evidence(FileSystem::real(), results()).value()[0].task, "needle");
}

// What a calibration of format 2 measured, nobody can tell any more: it stays, and is of no revision that is used.
TEST_F(PlannerStoreTest, ACalibrationOfFormat2IsOfRevision0) {
  Calibration calibration = {.machine = run().machine, .threads = 1, .version = "0", .measured = "2025", .rates = {}};
  calibration.rates.push_back({.what = "read", .subject = "", .value = 1e9, .spread = 0.1});
  {
    PlannerStore planner = open().value();
    ASSERT_TRUE(planner.save(calibration).ok());
    EXPECT_EQ(planner.calibrations().value()[0].revision, kCalibrationRevision);
    Database database = Database::open(root_ + "/home/" + kPlannerFile, Access::kReadWrite).value();
    ASSERT_TRUE(database.execute("ALTER TABLE calibrations DROP COLUMN revision; PRAGMA user_version = 2;").ok());
  }
  PlannerStore planner = open().value();
  const std::vector<Calibration> old = planner.calibrations().value();
  ASSERT_EQ(old.size(), 1U);
  EXPECT_EQ(old[0].revision, 0);
  EXPECT_NE(kCalibrationRevision, 0);
  EXPECT_EQ(old[0].rates, calibration.rates);
  ASSERT_TRUE(planner.save(calibration).ok());  // measured anew
  EXPECT_EQ(planner.calibrations().value()[0].revision, kCalibrationRevision);
  EXPECT_EQ(planner.calibrations().value().size(), 1U);
}

// No plan is made of figures that cannot be: statistics are made anew, what was measured is refused.
TEST_F(PlannerStoreTest, FiguresThatCannotBeAreNotUsed) {
  {
    Store store = Store::open(FileSystem::real(), results(), run()).value();
    ASSERT_TRUE(add_samples(store, 0, 4).ok());
  }
  Calibration calibration = {.machine = run().machine, .threads = 1, .version = "0", .measured = "2025", .rates = {}};
  calibration.rates.push_back({.what = "read", .subject = "", .value = 1e9, .spread = 0.1});
  FidelityRecord fidelity = {.model_hash = "00ff", .model_name = "tiny", .text_hash = "t", .spec = "q8_0", .measured = "2025"};
  fidelity.prefix_tokens = 100;
  fidelity.tokens = 50;
  fidelity.kl_mean = 0.1;
  PlannerStore planner = open().value();
  ASSERT_TRUE(planner.save(calibration).ok());
  ASSERT_TRUE(planner.keep({&fidelity, 1}).ok());
  const std::vector<EvidenceCell> sound = planner.evidence(FileSystem::real(), results()).value();
  const auto execute = [&](const std::string& sql) {
    return Database::open(root_ + "/home/" + kPlannerFile, Access::kReadWrite).value().execute(sql).ok();
  };
  for (const char* damage : {"nats_mean = 9e999", "nats_m2 = -3", "nats_n = -5", "nats_n = 4294967298", "score_mean = -9e999",
                             "prompt_tokens = 0", "context = -1"}) {
    ASSERT_TRUE(execute(std::string("UPDATE evidence SET ") + damage));
    EXPECT_EQ(planner.evidence(FileSystem::real(), results()).value(), sound) << damage;
  }
  for (const char* damage : {"value = 9e999", "value = -1", "spread = -1", "depth = -1"}) {
    ASSERT_TRUE(planner.save(calibration).ok());
    EXPECT_TRUE(planner.calibrations().ok());
    ASSERT_TRUE(execute(std::string("UPDATE rates SET ") + damage));
    EXPECT_EQ(planner.calibrations().status().code(), Code::kBadInput) << damage;
  }
  for (const char* damage : {"kl_mean = 9e999", "kl_sd = -1", "tokens = 0", "tokens = 4294967298", "prefix_tokens = -3"}) {
    ASSERT_TRUE(execute("DELETE FROM fidelity") && planner.keep({&fidelity, 1}).ok());
    EXPECT_TRUE(planner.fidelity().ok());
    ASSERT_TRUE(execute(std::string("UPDATE fidelity SET ") + damage));
    EXPECT_EQ(planner.fidelity().status().code(), Code::kBadInput) << damage;
  }
  PlanRecord decision;
  decision.decided = "2025";
  decision.predicted_ttft_s = 1;
  for (const char* damage : {"predicted_ttft_s = 9e999", "predicted_bytes = -1", "loss_low = 5", "actual_rate = -2"}) {
    ASSERT_TRUE(execute("DELETE FROM plans") && planner.add(decision).ok());
    EXPECT_TRUE(planner.plans().ok());
    ASSERT_TRUE(execute(std::string("UPDATE plans SET ") + damage));
    EXPECT_EQ(planner.plans().status().code(), Code::kBadInput) << damage;
  }
  fidelity.kl_mean = std::numeric_limits<double>::infinity();
  EXPECT_EQ(planner.keep({&fidelity, 1}).code(), Code::kInternal);
}

TEST_F(PlannerStoreTest, AMemoryThatLacksATableIsBadInput) {
  for (const char* sql : {"DROP TABLE calibrations", "DROP TABLE rates", "DROP TABLE evidence", "DROP TABLE evidence_stores",
                          "DROP TABLE plans", "DROP TABLE fidelity", "CREATE VIEW extra AS SELECT 1"}) {
    std::filesystem::remove_all(root_ + "/home");
    ASSERT_TRUE(open().ok());
    ASSERT_TRUE(Database::open(root_ + "/home/" + kPlannerFile, Access::kReadWrite).value().execute(sql).ok());
    EXPECT_EQ(open().status().code(), Code::kBadInput) << sql;
  }
}

TEST_F(PlannerStoreTest, OtherFilesUnderItsNameAreBadInput) {
  std::filesystem::create_directories(root_ + "/home");
  std::ofstream(root_ + "/home/" + kPlannerFile) << std::string(5000, 'x');
  EXPECT_EQ(open().status().code(), Code::kBadInput);
  EXPECT_NE(open().status().message().find("remove it"), std::string::npos) << open().status().message();
  EXPECT_EQ(open().status().message().find("results"), std::string::npos) << open().status().message();
  std::filesystem::remove(root_ + "/home/" + kPlannerFile);
  { ASSERT_TRUE(Store::open(FileSystem::real(), results(), run()).ok()); }
  std::filesystem::copy_file(results() + "/" + kStoreFile, root_ + "/home/" + kPlannerFile);
  EXPECT_EQ(open().status().code(), Code::kBadInput);
}

}  // namespace
}  // namespace kvartet
