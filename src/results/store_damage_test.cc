// What the results store does with damaged files, full disks, killed processes and folders that are none.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <limits>

#include "results/store.h"
#include "results/store_fixture.h"

namespace kvartet {
namespace {

// What `body` returns in a child process, so that limits and user ids stay there.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

// Neither written nor read: axes of a report would have no end.
TEST_F(StoreTest, FiguresThatCannotBeAreRefused) {
  Store store = open(run()).value();
  const std::vector<Outcome> sound = {outcome(0, "full")};
  ASSERT_TRUE(store.finish_sample(sample(0), sound).ok());
  const std::vector<std::function<void(Outcome&)>> changes = {
      [](Outcome& o) { o.score = 1.5; },
      [](Outcome& o) { o.gold_log_likelihood = std::numeric_limits<double>::infinity(); },
      [](Outcome& o) { o.gold_log_likelihood = 1; },
      [](Outcome& o) { o.ttft_s = -1; },
      [](Outcome& o) { o.decode_tokens_per_s = 1e300; },
      [](Outcome& o) { o.live_bytes = -5; },
      [](Outcome& o) { o.rows_kept = std::numeric_limits<double>::infinity(); },
      [](Outcome& o) { o.token_gaps_json = "[10.25,1"; }};
  for (const auto& change : changes) {
    std::vector<Outcome> odd = {outcome(1, "full")};
    change(odd[0]);
    EXPECT_EQ(store.finish_sample(sample(1), odd).code(), Code::kInternal);
    odd[0].error = "it failed";  // then they mean nothing
    EXPECT_TRUE(store.finish_sample(sample(1), odd).ok());
  }
  EXPECT_TRUE(store.load().ok());
  const std::string path = folder() + "/results.sqlite";
  for (const char* sql : {"UPDATE outcomes SET score = 9e999", "UPDATE outcomes SET score = 1, ttft_s = -1"}) {
    ASSERT_TRUE(Database::open(path, Access::kReadWrite).value().execute(std::string(sql) + " WHERE sample = 'n0'").ok());
    const Status status = Store::open_for_reading(FileSystem::real(), folder()).value().load().status();
    EXPECT_EQ(status.code(), Code::kBadInput);
    EXPECT_NE(status.message().find("sample n0 of needle through full"), std::string::npos) << status.message();
  }
}

// A position that there is not must not read as another, in whichever table it stands.
TEST_F(StoreTest, UnknownQuestionPositionsAreDamage) {
  {
    Store store = open(run()).value();
    const std::vector<Outcome> done = {outcome(0, "full")};
    ASSERT_TRUE(store.finish_sample(sample(0), done).ok());
    ASSERT_TRUE(store.finish_solo(solo_run(sample(0).key, "full", 0)).ok());
  }
  const std::string path = folder() + "/results.sqlite";
  for (const char* table : {"samples", "solo"}) {
    const auto put = [&](const char* position) {
      const std::string sql = fmt::format("UPDATE {} SET question_position = '{}'", table, position);
      ASSERT_TRUE(Database::open(path, Access::kReadWrite).value().execute(sql).ok());
    };
    put("third");
    const Status status = Store::open_for_reading(FileSystem::real(), folder()).value().load().status();
    EXPECT_EQ(status.code(), Code::kBadInput) << table;
    EXPECT_NE(status.message().find("'third'"), std::string::npos) << status.message();
    put("seen");
    EXPECT_TRUE(Store::open_for_reading(FileSystem::real(), folder()).value().load().ok()) << table;
  }
}

// A damaged list must not read as none, wherever it stands.
TEST_F(StoreTest, DamagedListsAreNamedWithTheirSample) {
  {
    Store store = open(run()).value();
    const std::vector<Outcome> done = {outcome(0, "full"), outcome(0, "kivi")};
    ASSERT_TRUE(store.finish_sample(sample(0), done).ok());
    ASSERT_TRUE(store.finish_solo(solo_run(sample(0).key, "kivi", 2)).ok());
    SoloRun odd = solo_run(sample(0).key, "kivi", 3);
    odd.token_gaps_json = "[1,2.5";
    EXPECT_EQ(store.finish_solo(odd).code(), Code::kInternal);
    SampleRecord nowhere = sample(1);
    nowhere.depths_json = "[null]";
    const std::vector<Outcome> other = {outcome(1, "full")};
    EXPECT_EQ(store.finish_sample(nowhere, other).code(), Code::kInternal);
    nowhere = sample(1);
    nowhere.answers_json = "[\"cut off";
    EXPECT_EQ(store.finish_sample(nowhere, other).code(), Code::kInternal);
    ASSERT_EQ(store.load()->samples.size(), 1U);
  }
  const std::string path = folder() + "/results.sqlite";
  const auto execute = [&](const std::string& sql) { return Database::open(path, Access::kReadWrite).value().execute(sql).ok(); };
  struct DamagedList {
    const char* table;
    const char* column;
    const char* sound;
    const char* about;
    std::vector<const char*> damaged = {"[10.25,1", "10.25", "{}", "[\"1\"]", "[1e999]", "[-1]"};
  };
  const std::vector<const char*> no_texts = {"", "[\"42\"", "\"42\"", "[42]", "{}", "nothing", "[[\"42\"]]"};
  const DamagedList lists[] = {
      {"outcomes", "token_gaps_ms", "[10.25,11]", "sample n0 of needle through full cannot be"},
      {"solo", "token_gaps_ms", "[1,2.5]", "sample n0 of needle through kivi alone, run 3, cannot be"},
      {"samples", "depths", "[0.5]", "the depths of sample n0 of needle cannot be"},
      {"samples", "answers", "[\"42\"]", "the answers or classes of sample n0 of needle cannot be", no_texts},
      {"samples", "classes", "null", "the answers or classes of sample n0 of needle cannot be", no_texts}};
  for (const auto& list : lists) {
    for (const char* damaged : list.damaged) {
      const auto put = [&](const char* text) {
        return execute(std::string("UPDATE ") + list.table + " SET " + list.column + " = '" + text + "'");
      };
      ASSERT_TRUE(put(damaged));
      const Status status = Store::open_for_reading(FileSystem::real(), folder()).value().load().status();
      EXPECT_EQ(status.code(), Code::kBadInput) << list.table << damaged;
      EXPECT_NE(status.message().find(list.about), std::string::npos) << status.message();
      ASSERT_TRUE(put(list.sound));
      EXPECT_TRUE(Store::open_for_reading(FileSystem::real(), folder()).value().load().ok());
    }
  }
}

// What a disk leaves that is full before the first byte.
TEST_F(StoreTest, AnEmptyFileHoldsNoResultsAndIsNoObstacle) {
  std::filesystem::create_directories(folder());
  fclose(fopen((folder() + "/results.sqlite").c_str(), "w"));
  const Status status = Store::open_for_reading(FileSystem::real(), folder()).status();
  EXPECT_EQ(status.code(), Code::kBadInput);
  EXPECT_NE(status.message().find("holds no results"), std::string::npos) << status.message();
  EXPECT_TRUE(open(run()).ok());
}

TEST_F(StoreTest, TablesThatAreNotOursAreBadInput) {
  const std::string path = folder() + "/results.sqlite";
  for (const char* sql : {"DROP TABLE runs", "ALTER TABLE runs RENAME COLUMN cpu TO processor", "CREATE VIEW extra AS SELECT 1",
                          "CREATE TRIGGER extra BEFORE INSERT ON runs BEGIN SELECT RAISE(IGNORE); END",
                          "DROP TABLE runs; CREATE TABLE runs AS SELECT 1 AS run"}) {
    std::filesystem::remove_all(folder());
    ASSERT_TRUE(open(run()).ok());
    ASSERT_TRUE(Database::open(path, Access::kReadWrite).value().execute(sql).ok()) << sql;
    Result<Store> reader = Store::open_for_reading(FileSystem::real(), folder());
    EXPECT_EQ(reader.ok() ? reader->load().status().code() : reader.status().code(), Code::kBadInput) << sql;
    EXPECT_EQ(open(run()).status().code(), Code::kBadInput) << sql;
  }
}

TEST_F(StoreTest, AFormatOfTheFutureIsRefused) {
  ASSERT_TRUE(open(run()).ok());
  ASSERT_TRUE(Database::open(folder() + "/results.sqlite", Access::kReadWrite).value().execute("PRAGMA user_version = 6").ok());
  const Result<Store> r = Store::open_for_reading(FileSystem::real(), folder());
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kBadInput);
  EXPECT_NE(r.status().message().find("format 6"), std::string::npos);
  EXPECT_EQ(open(run()).status().code(), Code::kBadInput);
}

TEST_F(StoreTest, AKilledProcessKeepsItsFinishedSamples) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    Store store = open(run()).value();
    if (!store.add_task("needle", "contains").ok()) _exit(1);
    for (int i = 0;; ++i) {
      const std::vector<Outcome> done = {outcome(i, "full"), outcome(i, "q8_0")};
      if (!store.finish_sample(sample(i), done).ok()) _exit(1);
      const char byte = 1;
      if (write(pipe_ends[1], &byte, 1) != 1) _exit(1);
    }
  }
  char byte = 0;
  int finished = 0;
  while (finished < 5 && read(pipe_ends[0], &byte, 1) == 1) ++finished;
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  close(pipe_ends[1]);
  while (read(pipe_ends[0], &byte, 1) == 1) ++finished;
  close(pipe_ends[0]);

  const StoredResults r = open(run()).value().load().value();
  EXPECT_GE(r.samples.size(), static_cast<std::size_t>(finished));
  EXPECT_EQ(r.outcomes.size(), 2 * r.samples.size());  // whole samples only
}

TEST_F(StoreTest, AFullDiskIsAnIoErrorAndKeepsWhatWasFinished) {
  const int code = in_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {200000, 200000};  // a file of at most 200 kB stands for a full disk
    setrlimit(RLIMIT_FSIZE, &limit);
    Store store = open(run()).value();
    for (int i = 0; i < 1000; ++i) {
      Outcome big = outcome(i, "full");
      big.prediction.assign(5000, 'x');
      const std::vector<Outcome> done = {big};
      const Status status = store.finish_sample(sample(i), done);
      if (!status.ok()) return status.code() == Code::kIo && i > 0 ? 10 : 11;
    }
    return 12;
  });
  ASSERT_EQ(code, 10);
  const StoredResults r = open(run()).value().load().value();
  EXPECT_GT(r.outcomes.size(), 0U);
  EXPECT_EQ(r.outcomes.size(), r.samples.size());
}

TEST_F(StoreTest, AFolderThatCannotBeWrittenIsAnIoError) {
  ASSERT_TRUE(open(run()).ok());
  std::filesystem::permissions(folder() + "/results.sqlite", std::filesystem::perms(0444));
  std::filesystem::permissions(folder(), std::filesystem::perms(0555));
  std::filesystem::permissions(root_, std::filesystem::perms(0755));
  const int code = in_child([&] {
    if (getuid() == 0 && setuid(65534) != 0) return 12;  // root may write anywhere
    const Result<Store> r = open(run());
    if (r.ok()) return 11;
    return r.status().code() == Code::kIo ? 10 : 13;
  });
  std::filesystem::permissions(folder(), std::filesystem::perms(0755));
  EXPECT_EQ(code, 10);
}

TEST_F(StoreTest, AFileInPlaceOfTheFolderIsAnIoError) {
  FILE* f = fopen(folder().c_str(), "w");
  ASSERT_NE(f, nullptr);
  fclose(f);
  EXPECT_EQ(open(run()).status().code(), Code::kIo);
}

}  // namespace
}  // namespace kvartet
