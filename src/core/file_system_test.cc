// The contract of FileSystem, on the real one and on the one in memory.
#include "core/file_system.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/memory_file_system.h"

namespace kvartet {
namespace {

std::string new_folder() {
  std::string pattern = ::testing::TempDir() + "kvartet-file-system-XXXXXX";
  const char* made = ::mkdtemp(pattern.data());
  return made == nullptr ? std::string() : std::string(made);
}

enum class Kind { kReal, kMemory };

class FileSystemContract : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == Kind::kReal) {
      fs_ = &FileSystem::real();
      root_ = new_folder();
      ASSERT_FALSE(root_.empty());
    } else {
      fs_ = &memory_;
      root_ = "/root-of-test";
      ASSERT_TRUE(memory_.make_directories(root_).ok());
    }
  }
  void TearDown() override {
    if (GetParam() == Kind::kReal && !root_.empty()) std::filesystem::remove_all(root_);
  }
  std::string in_root(const std::string& name) const { return root_ + "/" + name; }
  void write(const std::string& name, std::string_view text) {
    auto file = fs_->create(in_root(name));
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE((*file)->append(text).ok());
    ASSERT_TRUE((*file)->close().ok());
  }
  std::string read(const std::string& name) { return fs_->read_file(in_root(name)).value(); }

  MemoryFileSystem memory_;
  FileSystem* fs_ = nullptr;
  std::string root_;
};

TEST_P(FileSystemContract, WhatIsWrittenIsReadAndMapped) {
  std::string text(100001, 'x');
  text[5] = '\0';
  text.back() = '\n';
  write("a", text);
  EXPECT_EQ(read("a"), text);
  auto mapped = fs_->map_file(in_root("a"));
  ASSERT_TRUE(mapped.ok());
  const auto bytes = (*mapped)->bytes();
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()), text);
}

TEST_P(FileSystemContract, AnEmptyFileIsReadAndMappedAsNothing) {
  write("empty", "");
  EXPECT_EQ(read("empty"), "");
  auto mapped = fs_->map_file(in_root("empty"));
  ASSERT_TRUE(mapped.ok());
  EXPECT_TRUE((*mapped)->bytes().empty());
}

TEST_P(FileSystemContract, AMappedFileStaysAfterItsNameIsGone) {
  write("a", "text");
  auto mapped = fs_->map_file(in_root("a"));
  ASSERT_TRUE(mapped.ok());
  ASSERT_TRUE(fs_->remove(in_root("a")).ok());
  EXPECT_EQ((*mapped)->bytes()[0], std::byte{'t'});
}

TEST_P(FileSystemContract, CreateTruncatesAndOpenAppendGoesOn) {
  write("a", "long old text");
  write("a", "new");
  EXPECT_EQ(read("a"), "new");
  for (const std::string name : {"a", "b"}) {
    auto file = fs_->open_append(in_root(name));
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->append("er").ok());
    ASSERT_TRUE((*file)->append("!").ok());
    ASSERT_TRUE((*file)->sync().ok());
    ASSERT_TRUE((*file)->close().ok());
  }
  EXPECT_EQ(read("a"), "newer!");
  EXPECT_EQ(read("b"), "er!");
}

TEST_P(FileSystemContract, AClosedFileRefusesWrites) {
  auto file = fs_->create(in_root("a"));
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->close().ok());
  EXPECT_TRUE((*file)->close().ok());
  EXPECT_EQ((*file)->append("x").code(), Code::kInternal);
  EXPECT_EQ((*file)->sync().code(), Code::kInternal);
}

TEST_P(FileSystemContract, MissingFilesAndFoldersAreBadInputAndNamed) {
  for (const Status& status :
       {fs_->read_file(in_root("no")).status(), fs_->map_file(in_root("no")).status(), fs_->list(in_root("no")).status()}) {
    EXPECT_EQ(status.code(), Code::kBadInput);
    EXPECT_NE(status.message().find(in_root("no")), std::string::npos) << status.message();
  }
  EXPECT_EQ(fs_->read_file(root_).status().code(), Code::kBadInput);
  EXPECT_EQ(fs_->map_file(root_).status().code(), Code::kBadInput);
}

TEST_P(FileSystemContract, WhatTheSystemRefusesIsIo) {
  write("file", "x");
  EXPECT_EQ(fs_->create(in_root("no/a")).status().code(), Code::kIo);
  EXPECT_EQ(fs_->create(root_).status().code(), Code::kIo);
  EXPECT_EQ(fs_->open_append(in_root("no/a")).status().code(), Code::kIo);
  EXPECT_EQ(fs_->rename(in_root("no"), in_root("a")).code(), Code::kIo);
  EXPECT_EQ(fs_->rename(in_root("file"), in_root("no/a")).code(), Code::kIo);
  EXPECT_EQ(fs_->remove(in_root("no")).code(), Code::kIo);
  EXPECT_EQ(fs_->make_directories(in_root("file")).code(), Code::kIo);
  EXPECT_EQ(fs_->make_directories(in_root("file/below")).code(), Code::kIo);
  EXPECT_EQ(read("file"), "x");
}

TEST_P(FileSystemContract, RenameReplaces) {
  write("a", "new");
  write("b", "old");
  ASSERT_TRUE(fs_->rename(in_root("a"), in_root("b")).ok());
  EXPECT_FALSE(fs_->exists(in_root("a")));
  EXPECT_EQ(read("b"), "new");
}

TEST_P(FileSystemContract, FoldersAreMadeListedAndRemovedWhenEmpty) {
  ASSERT_TRUE(fs_->make_directories(in_root("b/c/d")).ok());
  ASSERT_TRUE(fs_->make_directories(in_root("b/c/d")).ok());  // again: nothing to do
  write("z", "");
  write("a", "");
  write("b/inside", "");
  EXPECT_EQ(fs_->list(root_).value(), (std::vector<std::string>{"a", "b", "z"}));
  EXPECT_EQ(fs_->list(in_root("b/")).value(), (std::vector<std::string>{"c", "inside"}));
  EXPECT_TRUE(fs_->exists(in_root("b/c/../inside")));
  EXPECT_EQ(fs_->remove(in_root("b")).code(), Code::kIo);
  EXPECT_TRUE(fs_->remove(in_root("b/c/d")).ok());
  EXPECT_FALSE(fs_->exists(in_root("b/c/d")));
}

TEST_P(FileSystemContract, AtomicWritesReplaceAndLeaveNoTrace) {
  ASSERT_TRUE(write_file_atomically(*fs_, in_root("a"), "first").ok());
  ASSERT_TRUE(write_file_atomically(*fs_, in_root("a"), "second").ok());
  EXPECT_EQ(read("a"), "second");
  EXPECT_EQ(fs_->list(root_).value(), (std::vector<std::string>{"a"}));
  EXPECT_EQ(write_file_atomically(*fs_, in_root("no/a"), "x").code(), Code::kIo);
}

// Two programs at once: none takes the other's unfinished file away.
TEST(AtomicWrites, OfSeveralProcessesAllSucceed) {
  const std::string root = new_folder();
  ASSERT_FALSE(root.empty());
  std::vector<pid_t> writers;
  for (int w = 0; w < 3; ++w) {
    writers.push_back(fork());
    if (writers.back() != 0) continue;
    int failures = 0;
    for (int i = 0; i < 60; ++i) {
      if (!write_file_atomically(FileSystem::real(), root + "/a", std::string(5000, static_cast<char>('a' + w))).ok()) ++failures;
    }
    _exit(failures);
  }
  for (const pid_t writer : writers) {
    int status = 0;
    ASSERT_EQ(waitpid(writer, &status, 0), writer);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << "writes that failed";
  }
  EXPECT_EQ(FileSystem::real().read_file(root + "/a")->size(), 5000U);
  EXPECT_EQ(FileSystem::real().list(root)->size(), 1U);
  std::filesystem::remove_all(root);
}

TEST_P(FileSystemContract, ARandomAccessFileIsReadAndWrittenAnywhere) {
  auto file = fs_->open_random(in_root("pages"), {});
  ASSERT_TRUE(file.ok()) << file.status().message();
  const std::string text = "0123456789";
  ASSERT_TRUE((*file)->write_at(5, std::as_bytes(std::span(text))).ok());
  ASSERT_TRUE((*file)->write_at(0, std::as_bytes(std::span(text)).first(5)).ok());
  ASSERT_TRUE((*file)->reserve(0, 10).ok());
  ASSERT_TRUE((*file)->sync().ok());
  EXPECT_EQ((*file)->size().value(), 15u);
  EXPECT_EQ(fs_->read_file(in_root("pages")).value(), "012340123456789");
  std::string part(4, ' ');
  ASSERT_TRUE((*file)->read_at(3, std::as_writable_bytes(std::span(part))).ok());
  EXPECT_EQ(part, "3401");
  const Status beyond = (*file)->read_at(12, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(beyond.code(), Code::kIo);
  EXPECT_NE(beyond.message().find("cut short"), std::string::npos) << beyond.message();

  auto again = fs_->open_random(in_root("pages"), {.create = false});
  ASSERT_TRUE(again.ok());
  ASSERT_TRUE((*again)->read_at(11, std::as_writable_bytes(std::span(part))).ok());
  EXPECT_EQ(part, "6789");
  EXPECT_EQ(fs_->open_random(in_root("none"), {.create = false}).status().code(), Code::kBadInput);
}

TEST_P(FileSystemContract, ANamelessFileLeavesNoTraceAndTwoDoNotMix) {
  auto a = fs_->open_random(in_root("x"), {.nameless = true});
  auto b = fs_->open_random(in_root("x"), {.nameless = true});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_TRUE(fs_->list(root_).value().empty());
  std::string one = "1";
  ASSERT_TRUE((*a)->write_at(0, std::as_bytes(std::span(one))).ok());
  EXPECT_EQ((*b)->size().value(), 0u);
}

// Also of a folder that is still to be made.
TEST_P(FileSystemContract, FreeSpaceIsToldOfAnyPath) {
  for (const std::string& path : {root_, in_root("not/yet/there"), std::string(), std::string("not-yet-there")}) {
    const auto free = fs_->free_bytes(path);
    ASSERT_TRUE(free.ok()) << free.status().message();
    EXPECT_GT(*free, 0U) << path;
  }
}

INSTANTIATE_TEST_SUITE_P(All, FileSystemContract, ::testing::Values(Kind::kReal, Kind::kMemory),
                         [](const auto& info) { return info.param == Kind::kReal ? "Real" : "Memory"; });

// Direct where the file system can; either way whole pages at page borders work.
TEST(RealFileSystem, DirectFilesTakeWholePages) {
  const std::string root = new_folder();
  auto file = FileSystem::real().open_random(root + "/direct", {.try_direct = true});
  ASSERT_TRUE(file.ok()) << file.status().message();
  alignas(4096) static std::byte page[4096];
  page[7] = std::byte{9};
  ASSERT_TRUE((*file)->write_at(4096, page).ok());
  page[7] = std::byte{0};
  ASSERT_TRUE((*file)->read_at(4096, page).ok());
  EXPECT_EQ(page[7], std::byte{9});
  std::filesystem::remove_all(root);
}

TEST(RealFileSystem, ReadsWhatHasNoSize) {
  const auto text = FileSystem::real().read_file("/proc/self/status");  // stat says 0 bytes
  ASSERT_TRUE(text.ok());
  EXPECT_NE(text->find("Pid:"), std::string::npos);
}

TEST(RealFileSystem, AFullDiskIsExhaustionWithAHint) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  auto file = FileSystem::real().open_append("/dev/full");
  ASSERT_TRUE(file.ok());
  const Status status = (*file)->append("x");
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_NE(status.message().find("free some space"), std::string::npos) << status.message();
}

TEST(RealFileSystem, AReadOnlyFolderIsIo) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const std::string folder = new_folder();
  std::filesystem::permissions(folder, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  EXPECT_EQ(FileSystem::real().create(folder + "/a").status().code(), Code::kIo);
  std::filesystem::remove_all(folder);
}

TEST(RealFileSystem, DevicesAreNotMapped) {
  EXPECT_EQ(FileSystem::real().map_file("/dev/null").status().code(), Code::kBadInput);
}

TEST(MemoryFileSystem, ACrashTakesWhatWasNotSynced) {
  MemoryFileSystem fs;
  auto file = fs.create("a");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->append("kept").ok());
  ASSERT_TRUE((*file)->sync().ok());
  ASSERT_TRUE((*file)->append(", lost").ok());
  EXPECT_EQ(fs.read_file("a").value(), "kept, lost");
  fs.crash();
  EXPECT_EQ(fs.read_file("a").value(), "kept");
}

TEST(RealFileSystem, ATemporaryFolderThatIsNotThereIsNamed) {
  const char* const before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  setenv("TMPDIR", "/no such folder", 1);
  const Status status = folder_or_temporary("").status();
  EXPECT_EQ(folder_or_temporary("rows").value(), "rows");
  before == nullptr ? unsetenv("TMPDIR") : setenv("TMPDIR", kept.c_str(), 1);
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find("'/no such folder'"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("--tier-dir"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace kvartet
