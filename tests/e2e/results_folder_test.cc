// kvartet bench and report with output folders that are full, read-only, another run's, or no folder at all.
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/mount.h>

#include "bench_fixture.h"

namespace kvartet::e2e {
namespace {

class ResultsFolder : public BenchFixture {
 protected:
  std::string store_bytes(const std::string& name) const { return read_text(out(name) + "/results.sqlite"); }
};

TEST_F(ResultsFolder, OfAnotherRunIsLeftAlone) {
  ASSERT_TRUE(is_ok(bench("out", {"--samples", "2"})));
  const std::string before = store_bytes("out");
  EXPECT_TRUE(is_refused(bench("out", {"--samples", "2", "--seed", "5"}), 2, "seed"));
  TinyModelOptions other = wide_heads();
  other.seed = 9;
  model_ = tiny_model(folder_, other, "other.gguf");
  EXPECT_TRUE(is_refused(bench("out", {"--samples", "2"}), 2, "model"));
  EXPECT_EQ(store_bytes("out"), before);
}

// The prompts come from the haystack: other essays under the same name make other samples.
TEST_F(ResultsFolder, WithSamplesOfChangedTextIsLeftAlone) {
  ASSERT_TRUE(is_ok(bench("out", {"--samples", "2"})));
  folder_.file("haystack/mills.txt", "Another story altogether. It has two sentences.\n");
  EXPECT_TRUE(is_refused(bench("out", {"--samples", "2"}), 2, "another prompt"));
}

TEST_F(ResultsFolder, ThatIsAFile) {
  folder_.file("out", "precious");
  EXPECT_TRUE(is_refused(bench("out", {"--samples", "2"}), 5, out("out")));
  EXPECT_EQ(read_text(out("out")), "precious");
  EXPECT_TRUE(is_refused(run({"report", out("out")}), 3, out("out")));
}

TEST_F(ResultsFolder, WithAFileOfThatNameThatIsNoStore) {
  std::filesystem::create_directory(out("out"));
  for (const std::string& text : {std::string("precious"), std::string(5000, 'x')}) {
    folder_.file("out/results.sqlite", text);
    EXPECT_TRUE(is_refused(bench("out", {"--samples", "2"}), 3, "results.sqlite"));
    EXPECT_TRUE(is_refused(run({"report", out("out")}), 3, "results.sqlite"));
    EXPECT_EQ(store_bytes("out"), text);
  }
}

TEST_F(ResultsFolder, ThatIsDamaged) {
  ASSERT_TRUE(is_ok(bench("out", {"--samples", "2"})));
  std::string bytes = store_bytes("out");
  std::fill(bytes.begin() + 4096, bytes.end(), '\x5a');
  folder_.file("out/results.sqlite", bytes);
  EXPECT_TRUE(is_refused(run({"report", out("out")}), 3, "damaged"));
  EXPECT_TRUE(is_refused(bench("out", {"--samples", "2"}), 3, "damaged"));
  EXPECT_EQ(bench("out", {"--samples", "2", "--dry-run"}).err, run({"report", out("out")}).err);
  EXPECT_TRUE(is_refused(bench("out", {"--samples", "2", "--dry-run"}), 3, "damaged"));
  EXPECT_EQ(store_bytes("out"), bytes);
}

// A row that cannot be is damage, too; a dry run finds it as a report does.
TEST_F(ResultsFolder, WithImpossibleFiguresIsRefusedByADryRun) {
  ASSERT_TRUE(is_ok(bench("out", {"--samples", "1"})));
  EXPECT_TRUE(is_ok(bench("out", {"--samples", "1", "--dry-run"})));
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open((out("out") + "/results.sqlite").c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, "UPDATE outcomes SET score = 7", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
  const Finished dry = bench("out", {"--samples", "1", "--dry-run"});
  EXPECT_TRUE(is_refused(dry, 3, "cannot be"));
  EXPECT_EQ(dry.err, run({"report", out("out")}).err);
}

TEST_F(ResultsFolder, ReadOnly) {
  Surroundings obedient;
  obedient.obey_permissions = true;
  std::filesystem::create_directory(out("out"));
  std::filesystem::permissions(out("out"), std::filesystem::perms(0555));
  EXPECT_TRUE(is_refused(run(bench_arguments("out", {"--samples", "2"}), obedient), 5, "out"));
  EXPECT_TRUE(std::filesystem::is_empty(out("out")));
  EXPECT_TRUE(is_refused(run(bench_arguments("out/deeper", {"--samples", "2"}), obedient), 5, "deeper"));
}

// Results may be looked at where nothing may be written.
TEST_F(ResultsFolder, ReadOnlyCanBeReported) {
  const Finished made = bench("out", {"--samples", "2", "--json"});
  ASSERT_TRUE(is_ok(made));
  Surroundings obedient;
  obedient.obey_permissions = true;
  std::filesystem::permissions(out("out") + "/results.sqlite", std::filesystem::perms(0444));
  std::filesystem::permissions(out("out"), std::filesystem::perms(0555));
  const Finished shown = run({"report", out("out"), "--json"}, obedient);
  ASSERT_TRUE(is_ok(shown));
  EXPECT_EQ(without_decisions(shown), made.json());
  EXPECT_TRUE(is_refused(run(bench_arguments("out", {"--samples", "3"}), obedient), 5, "out"));
}

// A process that is killed while SQLite writes leaves a journal; whoever comes next, also a reader, must undo the half.
TEST_F(ResultsFolder, WithAHalfWrittenTransactionCanBeReportedAndContinued) {
  const Finished made = bench("out", {"--samples", "2", "--json"});
  ASSERT_TRUE(is_ok(made));
  const std::string path = out("out") + "/results.sqlite";
  const pid_t writer = fork();
  if (writer == 0) {
    sqlite3* database = nullptr;
    sqlite3_open(path.c_str(), &database);
    // So little cache that changed pages go to the file before the commit, which never comes.
    sqlite3_exec(database, "PRAGMA cache_size = 5; BEGIN IMMEDIATE; DELETE FROM outcomes;", nullptr, nullptr, nullptr);
    for (int i = 0; i < 100; ++i) {
      sqlite3_exec(database, "INSERT INTO tasks(task, metric) VALUES(hex(randomblob(9)), hex(zeroblob(2000)))", nullptr, nullptr,
                   nullptr);
    }
    _exit(0);
  }
  ASSERT_EQ(waitpid(writer, nullptr, 0), writer);
  ASSERT_GT(std::filesystem::file_size(path + "-journal"), 0U);
  ASSERT_GT(std::filesystem::file_size(path), 200'000U) << "nothing was written early, so this test shows nothing";
  const Finished shown = run({"report", out("out"), "--json"});
  ASSERT_TRUE(is_ok(shown));
  EXPECT_EQ(without_decisions(shown), made.json());
  EXPECT_EQ(rows(bench("out", {"--samples", "2", "--json"})), rows(made));
}

TEST_F(ResultsFolder, MissingForAReport) {
  EXPECT_TRUE(is_refused(run({"report", out("nowhere")}), 3, "nowhere"));
  std::filesystem::create_directory(out("empty"));
  EXPECT_TRUE(is_refused(run({"report", out("empty")}), 3, "empty"));
  EXPECT_TRUE(std::filesystem::is_empty(out("empty")));
}

TEST_F(ResultsFolder, IsMadeWithItsParents) {
  EXPECT_TRUE(is_ok(bench("a/b/c", {"--samples", "1"})));
  EXPECT_TRUE(std::filesystem::exists(out("a/b/c") + "/results.sqlite"));
}

// What was finished before the disk was full is kept; with room again the same command ends as if nothing had happened.
TEST_F(ResultsFolder, OnAFullDisk) {
  std::filesystem::create_directory(out("disk"));
  if (mount("kvartet-e2e", out("disk").c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "a small file system cannot be mounted here (it takes root)";
  }
  struct Unmount {
    ~Unmount() { umount(path.c_str()); }
    std::string path;
  } unmount{out("disk")};

  const Json whole = rows(bench("whole", {"--samples", "30", "--json"}));
  const Finished full = bench("disk", {"--samples", "30", "--json"});
  EXPECT_TRUE(is_sentence(full, 4, "space"));
  const int kept = samples_in("disk");
  EXPECT_GT(kept, 0);
  EXPECT_LT(kept, 60);
  EXPECT_TRUE(is_ok(run({"report", out("disk")})));
  ASSERT_EQ(mount("kvartet-e2e", out("disk").c_str(), "tmpfs", MS_REMOUNT, "size=4m"), 0);
  const Finished rest = bench("disk", {"--samples", "30", "--json"});
  ASSERT_TRUE(is_ok(rest));
  EXPECT_EQ(rows(rest), whole);
}

// The same without root: a file may have only so many bytes.
TEST_F(ResultsFolder, WhereFilesMayNotGrow) {
  Surroundings small;
  small.file_size = 50'000;
  const Finished f = run(bench_arguments("out", {"--samples", "30", "--json"}), small);
  EXPECT_TRUE(is_sentence(f, 5, "results.sqlite"));
  EXPECT_TRUE(is_ok(run({"report", out("out")})));
  const Finished rest = bench("out", {"--samples", "30", "--json"});
  ASSERT_TRUE(is_ok(rest));
  for (const Json& row : rows(rest)) EXPECT_EQ(row["n"], 30);
}

// A disk that is full before the first byte leaves an empty file: no other program's, and no obstacle.
TEST_F(ResultsFolder, OnADiskThatIsFullFromTheStart) {
  Surroundings none;
  none.file_size = 500;  // less than SQLite's first write
  const Finished f = run(bench_arguments("out", {"--samples", "2", "--json"}), none);
  EXPECT_TRUE(is_refused(f, 5, "results.sqlite"));
  ASSERT_EQ(std::filesystem::file_size(out("out") + "/results.sqlite"), 0U) << "another start than this test is about";
  for (const Arguments& reader : {Arguments{"report", out("out")}, {"report", out("out"), "--json"}}) {
    const Finished shown = run(reader);
    EXPECT_TRUE(is_refused(shown, 3, "holds no results"));
    EXPECT_EQ(shown.err.find("another program"), std::string::npos) << shown.err;
  }
  EXPECT_TRUE(is_ok(bench("out", {"--samples", "2", "--dry-run"})));
  const Finished rest = bench("out", {"--samples", "2", "--json"});
  ASSERT_TRUE(is_ok(rest));
  EXPECT_EQ(rows(rest), rows(bench("whole", {"--samples", "2", "--json"})));
}

// Nothing in a stranger's file acts by itself: a view could take forever, a trigger change what is written.
TEST_F(ResultsFolder, WithViewsOrTriggersIsRefused) {
  for (const char* hostile :
       {"DROP TABLE tasks; CREATE VIEW tasks AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT "
        "x AS ordinal, 'needle' AS task, 'f1' AS metric FROM n",
        "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM outcomes; END", "DROP TABLE runs"}) {
    std::filesystem::remove_all(out("out"));
    ASSERT_TRUE(is_ok(bench("out", {"--samples", "1"})));
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open((out("out") + "/results.sqlite").c_str(), &database), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(database, hostile, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(database);
    sqlite3_close(database);
    EXPECT_TRUE(is_refused(run({"report", out("out")}), 3, "results.sqlite")) << hostile;
    EXPECT_TRUE(is_refused(bench("out", {"--samples", "1"}), 3, "results.sqlite")) << hostile;
  }
}

}  // namespace
}  // namespace kvartet::e2e
