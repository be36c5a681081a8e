// Every file operation below the results store fails once, or from then on: a sentence that names the file and the cause, what
// was finished stays, and the same work done again ends as if nothing had happened.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "faulty_sqlite.h"
#include "results/planner_store.h"
#include "results/store.h"

namespace kvartet {
namespace {

constexpr int kSamples = 3;

RunRecord run_record() {
  RunRecord r;
  r.identity = {.model_hash = "00ff",
                .model_name = "tiny",
                .model_shape = "2 layers",
                .seed = 1,
                .parameters = "question=seen",
                .version = "0.1.0"};
  r.machine = {.cpu = "cpu", .cores = 2, .memory_bytes = 1, .compiler = "g++"};
  r.started = "2025-01-01T00:00:00Z";
  r.process = 1;
  return r;
}

SampleRecord sample(int i) {
  SampleRecord s;
  s.key = {"needle", 900, std::to_string(i)};
  s.ordinal = i;
  s.prompt_hash = "aa";
  s.answers_json = "[\"42\"]";
  s.classes_json = "null";
  return s;
}

std::vector<Outcome> outcomes(int i) {
  std::vector<Outcome> both(2);
  for (Outcome& o : both) {
    o.key = sample(i).key;
    o.spec = &o == both.data() ? "full" : "kivi";
    o.prediction.assign(3000, static_cast<char>('a' + i));  // several pages
    o.score = 1;
  }
  return both;
}

class ResultsStoreFaults : public testing::Test {
 protected:
  ResultsStoreFaults() {
    std::string pattern = testing::TempDir() + "kvartet_store_faults_XXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  ~ResultsStoreFaults() override { std::filesystem::remove_all(root_); }

  // What a benchmark does with its store. `finished`: samples that were reported as written.
  static Status work(const std::string& folder, int* finished) {
    KV_ASSIGN(Store store, Store::open(FileSystem::real(), folder, run_record()));
    KV_TRY(store.add_task("needle", "contains"));
    const std::vector<std::string> specs = {"full", "kivi"};
    for (int i = 0; i < kSamples; ++i) {
      KV_ASSIGN(const std::vector<std::string> missing, store.missing(sample(i).key, "aa", specs));
      if (!missing.empty()) KV_TRY(store.finish_sample(sample(i), outcomes(i)));
      ++*finished;
    }
    return store.load().status();
  }

  static Result<StoredResults> read(const std::string& folder) {
    KV_ASSIGN(Store store, Store::open_for_reading(FileSystem::real(), folder));
    return store.load();
  }

  static void expect_whole(const std::string& folder) {
    const Result<StoredResults> all = read(folder);
    ASSERT_TRUE(all.ok()) << all.status().message();
    ASSERT_EQ(all->samples.size(), static_cast<std::size_t>(kSamples));
    ASSERT_EQ(all->outcomes.size(), 2U * kSamples);
    for (int i = 0; i < kSamples; ++i) {
      for (const std::size_t o : {2U * static_cast<unsigned>(i), 2U * static_cast<unsigned>(i) + 1}) {
        EXPECT_EQ(all->outcomes[o].prediction, outcomes(i)[0].prediction);
      }
    }
  }

  std::string root_;
};

TEST_F(ResultsStoreFaults, EveryOperationMayFail) {
  FaultySqlite sqlite;
  int refused = 0;
  const SqliteFault kinds[] = {{}, {.lasting = true}, {.full = true}, {.lasting = true, .full = true}};
  for (const SqliteFault& kind : kinds) {
    for (long n = 1;; ++n) {
      const std::string folder = root_ + "/out";
      std::filesystem::remove_all(folder);
      SCOPED_TRACE("operation " + std::to_string(n) + (kind.lasting ? " and all later ones" : "") + (kind.full ? ", full" : ""));
      SqliteFault fault = kind;
      fault.nth = n;
      sqlite.arm(fault);
      int finished = 0;
      const Status status = work(folder, &finished);
      const bool failed = sqlite.failed();
      sqlite.arm({});
      if (!failed) {
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_GT(n, 50) << "so few operations that this test shows little";
        break;
      }
      if (!status.ok()) {
        ++refused;
        EXPECT_TRUE(status.code() == Code::kIo || status.code() == Code::kExhausted) << status.message();
        EXPECT_NE(status.message().find(folder + "/results.sqlite"), std::string::npos) << status.message();
        const auto names = [&](const char* cause) { return status.message().find(cause) != std::string::npos; };
        EXPECT_TRUE(names("disk I/O error") || names("full") || names("unable to open")) << status.message();
      }
      // A reader sees whole samples, at least those that were reported as written, or is told that there are none yet.
      const Result<StoredResults> kept = read(folder);
      if (kept.ok()) {
        EXPECT_GE(kept->samples.size(), static_cast<std::size_t>(finished));
        EXPECT_EQ(kept->outcomes.size(), 2 * kept->samples.size());
      } else {
        EXPECT_EQ(finished, 0);
        EXPECT_EQ(kept.status().code(), Code::kBadInput);
        EXPECT_NE(kept.status().message().find("no results"), std::string::npos) << kept.status().message();
      }
      int again = 0;
      const Status mended = work(folder, &again);
      ASSERT_TRUE(mended.ok()) << mended.message();
      expect_whole(folder);
    }
  }
  EXPECT_GT(refused, 100);
}

// Taking over another folder is one transaction: all of it, or nothing.
TEST_F(ResultsStoreFaults, TakingOverAnotherFolderIsAllOrNothing) {
  FaultySqlite sqlite;
  const std::string theirs = root_ + "/theirs";
  int finished = 0;
  ASSERT_TRUE(work(theirs, &finished).ok());
  for (long n = 1;; ++n) {
    const std::string folder = root_ + "/own";
    std::filesystem::remove_all(folder);
    Result<Store> store = Store::open(FileSystem::real(), folder, run_record());
    ASSERT_TRUE(store.ok()) << store.status().message();
    sqlite.arm({.nth = n});
    const Status status = store->merge(FileSystem::real(), theirs);
    const bool failed = sqlite.failed();
    sqlite.arm({});
    const Result<StoredResults> kept = store->load();
    ASSERT_TRUE(kept.ok()) << kept.status().message();
    EXPECT_EQ(kept->samples.size(), status.ok() ? static_cast<std::size_t>(kSamples) : 0U) << n;
    EXPECT_EQ(kept->outcomes.size(), 2 * kept->samples.size()) << n;
    if (!failed) {
      EXPECT_TRUE(status.ok()) << status.message();
      break;
    }
  }
  expect_whole(theirs);
}

// The planner's memory is made the same way.
TEST_F(ResultsStoreFaults, ThePlannersMemoryMayFailAnywhere) {
  FaultySqlite sqlite;
  Calibration calibration;
  calibration.machine = run_record().machine;
  calibration.threads = 1;
  calibration.rates.resize(1);
  calibration.rates[0].what = "read";
  const auto work = [&](const std::string& folder) -> Status {
    KV_ASSIGN(PlannerStore store, PlannerStore::open(FileSystem::real(), folder));
    KV_TRY(store.save(calibration));
    return store.calibrations().status();
  };
  for (const bool full : {false, true}) {
    for (long n = 1;; ++n) {
      const std::string folder = root_ + "/planner";
      std::filesystem::remove_all(folder);
      sqlite.arm({.nth = n, .lasting = true, .full = full});
      const Status status = work(folder);
      const bool failed = sqlite.failed();
      sqlite.arm({});
      if (!failed) {
        EXPECT_TRUE(status.ok()) << status.message();
        break;
      }
      if (!status.ok()) {
        EXPECT_TRUE(status.code() == Code::kIo || status.code() == Code::kExhausted) << status.message();
        EXPECT_NE(status.message().find("planner.sqlite"), std::string::npos) << status.message();
      }
      const Status mended = work(folder);
      ASSERT_TRUE(mended.ok()) << n << ": " << mended.message();
    }
  }
}

}  // namespace
}  // namespace kvartet
