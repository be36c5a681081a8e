// What is being written has a name of its own; what a killed writer left is removed, and nothing else.
#include "engine/unfinished_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/memory_file_system.h"

namespace kvartet {
namespace {

class UnfinishedFile : public ::testing::Test {
 protected:
  UnfinishedFile() {
    std::string name = testing::TempDir() + "kvartet_unfinished_XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~UnfinishedFile() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string make(const std::string& name) const {
    std::ofstream(folder_ + "/" + name) << "text";
    return folder_ + "/" + name;
  }
  std::vector<std::string> names() const { return FileSystem::real().list(folder_).value(); }

  std::string folder_;
};

TEST_F(UnfinishedFile, NoTwoNamesAreTheSame) {
  std::set<std::string> names;
  for (int i = 0; i < 100; ++i) names.insert(unfinished_name("a/b.prefill"));
  EXPECT_EQ(names.size(), 100U);
  for (const std::string& name : names) {
    EXPECT_TRUE(name.starts_with("a/b.prefill." + std::to_string(getpid()) + "-")) << name;
    EXPECT_TRUE(name.ends_with(".unfinished")) << name;
  }
}

TEST_F(UnfinishedFile, WhatIsHeldStaysAndWhatIsLeftGoes) {
  FileSystem& files = FileSystem::real();
  const std::string path = unfinished_name(folder_ + "/a.prefill");
  {
    const auto file = create_unfinished(files, path);
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ(remove_abandoned(files, folder_), 0);
    EXPECT_EQ(names().size(), 1U);
  }
  EXPECT_EQ(remove_abandoned(files, folder_), 1);
  EXPECT_TRUE(names().empty());
}

// However a process ends, the system gives its locks back.
TEST_F(UnfinishedFile, AKilledProcessHoldsNothing) {
  FileSystem& files = FileSystem::real();
  const std::string path = unfinished_name(folder_ + "/a.prefill");
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t writer = fork();
  if (writer == 0) {
    const auto file = create_unfinished(files, path);
    const char ok = file.ok() ? 'y' : 'n';
    if (write(told[1], &ok, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char answer = 0;
  ASSERT_EQ(read(told[0], &answer, 1), 1);
  ASSERT_EQ(answer, 'y');
  EXPECT_EQ(remove_abandoned(files, folder_), 0) << "it lives";
  kill(writer, SIGKILL);
  ASSERT_EQ(waitpid(writer, nullptr, 0), writer);
  EXPECT_EQ(remove_abandoned(files, folder_), 1);
  EXPECT_TRUE(names().empty());
  close(told[0]);
  close(told[1]);
}

TEST_F(UnfinishedFile, OnlyFilesOfSuchNamesGo) {
  const std::vector<std::string> others = {"a.prefill",
                                           "a.prefill.unfinished",
                                           "a.prefill.12-0123456789abcde.unfinished",    // a digit too few
                                           "a.prefill.12-0123456789abcdeF.unfinished",   // no digit of ours
                                           "a.prefill.x-0123456789abcdef.unfinished",    // no process
                                           ".12-0123456789abcdef.unfinished",            // nothing in front
                                           "a.prefill.12-0123456789abcdef.unfinished2",  // another ending
                                           "notes.txt"};
  for (const std::string& name : others) make(name);
  make("a.prefill.12-0123456789abcdef.unfinished");
  std::filesystem::create_directory(folder_ + "/b.1-0123456789abcdef.unfinished");
  EXPECT_EQ(remove_abandoned(FileSystem::real(), folder_), 1);
  EXPECT_EQ(names().size(), others.size() + 1);
  EXPECT_EQ(remove_abandoned(FileSystem::real(), folder_ + "/nowhere"), 0);
}

// Where nothing can be locked, nothing is known.
TEST_F(UnfinishedFile, WithoutLocksEverythingStays) {
  MemoryFileSystem files;
  ASSERT_TRUE(files.make_directories("kept").ok());
  ASSERT_TRUE(create_unfinished(files, unfinished_name("kept/a.prefill")).ok());
  EXPECT_EQ(remove_abandoned(files, "kept"), 0);
  EXPECT_EQ(files.list("kept")->size(), 1U);
}

}  // namespace
}  // namespace kvartet
