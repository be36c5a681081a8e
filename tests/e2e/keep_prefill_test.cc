// kvartet bench --keep-prefill: a cache that comes later reads what was kept, and its table is that of a run that prefilled.
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <memory>

#include "bench_fixture.h"

namespace kvartet::e2e {
namespace {

class KeepPrefill : public BenchFixture {
 protected:
  Finished keep(const std::string& name, const Arguments& caches, const Arguments& more = {},
                const Surroundings& surroundings = {}) const {
    return run(bench_arguments(name, more + Arguments{"--json", "--keep-prefill", out("kept")}, caches), surroundings);
  }
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> list;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(out("kept"), none)) list.push_back(entry.path());
    std::sort(list.begin(), list.end());
    return list;
  }
  // Whether times were shared is not the same for one that reads.
  static Json table(const Finished& f) {
    Json list = rows(f);
    for (Json& row : list) row.erase("shared");
    return list;
  }

  const Arguments first_ = {"--kv", "full", "--kv", "q8_0"};
  const Arguments later_ = {"--kv", "snapkv:budget=100", "--kv", "h2o:budget=100", "--kv", "shadowkv:rank=16,sinks=32"};
  const Arguments few_ = {"--samples", "2"};
};

TEST_F(KeepPrefill, ALaterCacheReadsAndGivesTheSameTable) {
  const Json expected = table(run(bench_arguments("plain", few_ + Arguments{"--json"}, later_)));
  const Json expected_first = table(run(bench_arguments("plain-first", few_ + Arguments{"--json"}, first_)));
  const Finished first = keep("first", first_, few_);
  ASSERT_TRUE(is_ok(first));
  EXPECT_EQ(table(first), expected_first);
  EXPECT_NE(first.err.find("0 read, 4 written"), std::string::npos) << first.err;
  EXPECT_EQ(files().size(), 4U);

  const Finished later = keep("later", later_, few_);
  ASSERT_TRUE(is_ok(later));
  EXPECT_EQ(table(later), expected);
  EXPECT_NE(later.err.find("4 read, 0 written"), std::string::npos) << later.err;

  // The same folder of results, too: a seventh cache joins the first ones.
  const Finished joined = keep("first", {"--kv", "streamingllm:window=64"}, few_);
  ASSERT_TRUE(is_ok(joined));
  EXPECT_NE(joined.err.find("4 read, 0 written"), std::string::npos) << joined.err;
  EXPECT_EQ(rows(joined).size(), 6U);
  for (const Json& row : joined.json()["rows"]) EXPECT_EQ(row["shared"], true) << row["spec"];
}

// The document is what is prefilled when the question comes later: other prompts, other files.
TEST_F(KeepPrefill, UnseenQuestionsKeepTheDocument) {
  const Arguments unseen = few_ + Arguments{"--question-position", "unseen"};
  const Json expected = table(run(bench_arguments("plain", unseen + Arguments{"--json"}, later_)));
  ASSERT_TRUE(is_ok(keep("first", first_, unseen)));
  const Finished later = keep("later", later_, unseen);
  ASSERT_TRUE(is_ok(later));
  EXPECT_EQ(table(later), expected);
  EXPECT_NE(later.err.find("4 read"), std::string::npos) << later.err;
  EXPECT_NE(keep("seen", first_, few_).err.find("0 read, 4 written"), std::string::npos);
}

TEST_F(KeepPrefill, DryRunTellsFilesAndBytes) {
  const Finished before = keep("out", first_, few_ + Arguments{"--dry-run"});
  EXPECT_EQ(before.code, 0) << before.err;
  EXPECT_NE(before.out.find("0 of 4 prompts kept already"), std::string::npos) << before.out;
  EXPECT_FALSE(std::filesystem::exists(out("kept")));
  ASSERT_TRUE(is_ok(keep("out", first_, few_)));
  const Finished after = keep("more", first_, Arguments{"--samples", "3", "--dry-run"});
  EXPECT_NE(after.out.find("4 of 6 prompts kept already"), std::string::npos) << after.out;
  EXPECT_EQ(files().size(), 4U);
}

TEST_F(KeepPrefill, DamagedFilesAreNamedAndReplaced) {
  const Json expected = table(run(bench_arguments("plain", few_ + Arguments{"--json"}, later_)));
  ASSERT_TRUE(is_ok(keep("first", first_, few_)));
  const auto list = files();
  ASSERT_EQ(list.size(), 4U);
  std::string bytes = read_text(list[0]);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_text(list[0], bytes);
  std::filesystem::resize_file(list[1], std::filesystem::file_size(list[1]) - 64);
  bytes = read_text(list[2]);
  bytes[8] = 9;  // the version
  write_text(list[2], bytes);
  const Finished later = keep("later", later_, few_);
  ASSERT_TRUE(is_ok(later));
  EXPECT_EQ(table(later), expected);
  for (const char* what : {"is damaged", "was it cut short?", "has version 9", "1 read, 3 written, 3 files of no use"})
    EXPECT_NE(later.err.find(what), std::string::npos) << what << " is missing in:\n" << later.err;
  const Finished again = keep("again", later_, few_);
  EXPECT_NE(again.err.find("4 read, 0 written"), std::string::npos) << again.err;
  EXPECT_EQ(table(again), expected);
}

// Whenever it is killed: no half-written file is used, and the same command ends as if nothing had happened.
TEST_F(KeepPrefill, KilledAgainAndAgain) {
  const Json expected = table(run(bench_arguments("plain", few_ + Arguments{"--json"}, later_)));
  for (const int milliseconds : {20, 40, 60, 80, 100, 130, 160}) {
    Program program(bench_arguments("cut", few_ + Arguments{"--json", "--keep-prefill", out("kept")}, first_));
    usleep(static_cast<useconds_t>(milliseconds) * 1000);
    program.kill(SIGKILL);
    static_cast<void>(program.wait());
  }
  const Finished rest = keep("cut", first_, few_);
  ASSERT_TRUE(is_ok(rest));
  EXPECT_EQ(rest.err.find("of no use"), std::string::npos) << rest.err;
  const bool wrote = rest.err.find(" written") != std::string::npos && rest.err.find(" 0 written") == std::string::npos;
  if (wrote) {  // then what the killed ones left is gone
    EXPECT_EQ(files().size(), 4U);
  }
  const Finished later = keep("later", later_, few_);
  ASSERT_TRUE(is_ok(later));
  EXPECT_EQ(table(later), expected);
  EXPECT_EQ(later.err.find("of no use"), std::string::npos) << later.err;
}

TEST_F(KeepPrefill, WhatAKilledRunLeftIsRemoved) {
  std::filesystem::create_directory(out("kept"));
  folder_.file("kept/a.prefill.12-0123456789abcdef.unfinished", "half");
  folder_.file("kept/notes.txt", "precious");
  ASSERT_TRUE(is_ok(keep("first", first_, few_)));
  EXPECT_EQ(files().size(), 4U + 1);
  EXPECT_EQ(read_text(out("kept/notes.txt")), "precious");
}

// Four at once on one folder: whoever is first or last, all give the table of a run without the folder.
TEST_F(KeepPrefill, SeveralRunsShareAFolderAtTheSameTime) {
  const Json expected = table(run(bench_arguments("plain", few_ + Arguments{"--json"}, first_)));
  std::vector<std::unique_ptr<Program>> programs;
  for (const char* name : {"a", "b", "c", "d"}) {
    programs.push_back(
        std::make_unique<Program>(bench_arguments(name, few_ + Arguments{"--json", "--keep-prefill", out("kept")}, first_)));
  }
  for (const auto& program : programs) {
    const Finished f = program->wait();
    ASSERT_TRUE(is_ok(f));
    EXPECT_EQ(table(f), expected);
    EXPECT_EQ(f.err.find("of no use"), std::string::npos) << f.err;
  }
  EXPECT_EQ(files().size(), 4U);
}

TEST_F(KeepPrefill, AFullDiskIsFoundBeforeTheFirstPrompt) {
  std::filesystem::create_directory(out("kept"));
  if (mount("kvartet-e2e", out("kept").c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "a small file system cannot be mounted here (it takes root)";
  }
  struct Unmount {
    ~Unmount() { umount(path.c_str()); }
    std::string path;
  } unmount{out("kept")};
  EXPECT_TRUE(is_refused(keep("out", first_, few_), 4, "free some space"));
  EXPECT_FALSE(std::filesystem::exists(out("out")));
  EXPECT_NE(keep("out", first_, few_ + Arguments{"--dry-run"}).out.find("too little"), std::string::npos);
}

// A disk that fills up on the way costs files, not answers; the exit code tells.
TEST_F(KeepPrefill, ADiskThatFillsUpCostsNoAnswer) {
  const Json expected = table(run(bench_arguments("plain", few_ + Arguments{"--json"}, first_)));
  Surroundings small;
  small.file_size = 400'000;  // enough for the store
  const Finished f = keep("out", first_, few_, small);
  EXPECT_TRUE(is_sentence(f, 4, "4 prefills could not be kept"));
  EXPECT_EQ(table(f), expected);
  EXPECT_TRUE(files().empty());
}

TEST_F(KeepPrefill, FoldersThatAreNone) {
  EXPECT_TRUE(is_refused(run(bench_arguments("out", few_ + Arguments{"--keep-prefill", ""})), 2, "--keep-prefill"));
  folder_.file("kept", "precious");
  EXPECT_TRUE(is_refused(keep("out", first_, few_), 5, out("kept")));
  EXPECT_EQ(read_text(out("kept")), "precious");
  EXPECT_TRUE(
      is_refused(run(bench_arguments("out", few_ + Arguments{"--keep-prefill", out("kept") + "/deeper"})), 5, out("kept")));
  EXPECT_FALSE(std::filesystem::exists(out("out"))) << "a refused command leaves no folder behind";
}

TEST_F(KeepPrefill, AReadOnlyFolderCanBeReadFrom) {
  ASSERT_TRUE(is_ok(keep("first", first_, few_)));
  std::filesystem::permissions(out("kept"), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  const Surroundings strict{.obey_permissions = true};
  const Finished later = keep("later", later_, few_, strict);
  const Finished more = keep("more", first_, {"--samples", "3"}, strict);
  std::filesystem::permissions(out("kept"), std::filesystem::perms::owner_all);
  ASSERT_TRUE(is_ok(later));
  EXPECT_NE(later.err.find("4 read"), std::string::npos) << later.err;
  EXPECT_TRUE(is_refused(more, 5, out("kept")));
}

}  // namespace
}  // namespace kvartet::e2e
