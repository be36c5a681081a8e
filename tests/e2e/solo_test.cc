// kvartet bench --solo: each cache alone, in processes of its own (DESIGN 6, compression.md 14).
#include <gtest/gtest.h>

#include "bench_fixture.h"

namespace kvartet::e2e {
namespace {

class Solo : public BenchFixture {
 protected:
  int runs_in(const std::string& name) const {
    Result<Store> store = Store::open_for_reading(FileSystem::real(), out(name));
    if (!store.ok()) return 0;
    Result<StoredResults> results = store->load();
    return results.ok() ? static_cast<int>(results->solo.size()) : 0;
  }
};

// What a cache writes alone is what it wrote in company; times stand beside the shared ones.
TEST_F(Solo, EveryCacheRunsAloneAndWritesTheSame) {
  const Finished f = bench("out", {"--samples", "3", "--json", "--solo", "2"});
  ASSERT_TRUE(is_ok(f));
  const Json d = f.json();
  ASSERT_EQ(d["rows"].size(), 4U);
  for (const Json& row : d["rows"]) {
    ASSERT_TRUE(row["solo"].is_object()) << row;
    const Json& solo = row["solo"];
    EXPECT_EQ(solo["runs"], 2);
    EXPECT_EQ(solo["failed"], 0);
    EXPECT_EQ(solo["same_text"], true);
    EXPECT_GT(solo["ttft_s"], 0.0);
    EXPECT_LE(solo["ttft_low_s"], solo["ttft_s"]);
    EXPECT_GE(solo["ttft_high_s"], solo["ttft_s"]);
    EXPECT_GT(solo["peak_rss_bytes"], 1'000'000);
    EXPECT_GT(solo["end_to_end_tokens_per_s"], 0.0);
    EXPECT_TRUE(row["shared"]);
    EXPECT_GT(row["ttft_s"], 0.0);
  }
  EXPECT_EQ(runs_in("out"), 8);
  const Finished table = run({"report", out("out")});
  ASSERT_TRUE(is_ok(table));
  EXPECT_NE(table.out.find("each cache alone, 2 runs"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("fewer than 5 times"), std::string::npos) << table.out;
  const Finished page = run({"report", out("out"), "-o", out("page.html")});
  ASSERT_TRUE(is_ok(page));
  EXPECT_NE(read_text(out("page.html")).find("Each cache alone"), std::string::npos);
}

TEST_F(Solo, WithoutItNothingChanges) {
  const Json with = rows(bench("with", {"--samples", "2", "--json", "--solo", "1"}));
  Json without = rows(bench("without", {"--samples", "2", "--json"}));
  ASSERT_EQ(with.size(), without.size());
  for (std::size_t i = 0; i < with.size(); ++i) {
    EXPECT_TRUE(without[i]["solo"].is_null());
    without[i]["solo"] = with[i]["solo"];
  }
  EXPECT_EQ(with, without);
}

// Ctrl-C keeps what is finished, and the same command goes on from there; more repeats later add only themselves.
TEST_F(Solo, InterruptedRunsGoOnWhereTheyWere) {
  Program program(bench_arguments("out", {"--samples", "2", "--solo", "400"}));
  while (program.running() && runs_in("out") < 3) usleep(2000);
  ASSERT_TRUE(program.running()) << "it ended by itself";
  program.kill(SIGINT);
  const Finished cut = program.wait();
  ASSERT_EQ(cut.code, 130) << cut.err;
  EXPECT_NE(cut.err.find("kvartet: interrupted"), std::string::npos) << cut.err;
  const int kept = runs_in("out");
  EXPECT_GE(kept, 3);
  const int repeats = kept / 2 + 1;  // of the first task's two caches, so that some are there and some are missing
  const Finished rest = bench("out", {"--samples", "2", "--json", "--solo", std::to_string(repeats)});
  ASSERT_TRUE(is_ok(rest));
  EXPECT_NE(rest.err.find("runs of a cache alone: "), std::string::npos) << rest.err;
  for (const Json& row : rest.json()["rows"]) EXPECT_GE(row["solo"]["runs"], repeats) << row;
}

// Processes whose parent this is.
std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> out;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string stat = read_text(entry.path() / "stat");  // "17 (kvartet) R 16 ..."
    const std::size_t after = stat.rfind(") ");
    if (after != std::string::npos && std::atoi(stat.c_str() + after + 4) == parent) out.push_back(std::atoi(name.c_str()));
  }
  return out;
}

bool runs(pid_t process) {
  const std::string stat = read_text("/proc/" + std::to_string(process) + "/stat");
  const std::size_t after = stat.rfind(") ");
  return after != std::string::npos && stat[after + 2] != 'Z' && stat[after + 2] != 'X';
}

// kill -9 cannot be caught, and yet nobody goes on computing for nobody.
TEST_F(Solo, AKilledBenchmarkLeavesNoProcessBehind) {
  model_ = tiny_model(folder_, slow_model(), "slow.gguf");
  Program program(bench_arguments("out", {"--samples", "1", "--solo", "400"}));
  std::vector<pid_t> children;
  while (program.running() && children.empty()) {
    usleep(1000);
    children = children_of(program.process());
  }
  ASSERT_EQ(children.size(), 1U);
  program.kill(SIGKILL);
  ASSERT_EQ(program.wait().signal, SIGKILL);
  for (int i = 0; i < 5000 && runs(children[0]); ++i) usleep(1000);
  EXPECT_FALSE(runs(children[0]));
}

TEST_F(Solo, TheDryRunCountsThem) {
  const Finished f = bench("out", {"--samples", "2", "--dry-run", "--solo", "5"});
  ASSERT_TRUE(is_ok(f));
  EXPECT_NE(f.out.find("20 runs of a cache alone"), std::string::npos) << f.out;
  EXPECT_FALSE(std::filesystem::exists(out("out")));
}

// The command that the runs are made with is not for people.
TEST_F(Solo, ItsCommandIsInNoHelp) {
  EXPECT_EQ(run({"--help"}).out.find("solo-child"), std::string::npos);
  const Finished nothing = run({"wrong"});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_EQ(nothing.err.find("solo-child"), std::string::npos) << nothing.err;
  EXPECT_TRUE(is_refused(run({"solo-child"}), 3, "--solo"));
  EXPECT_TRUE(is_refused(bench("out", {"--samples", "1", "--solo", "-1"}), 2, "--solo"));
}

}  // namespace
}  // namespace kvartet::e2e
