#include "core/child_process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "core/clock.h"

namespace kvartet {
namespace {

ChildRequest shell(const std::string& script) { return {.command = {"/bin/sh", "-c", script}}; }

TEST(ChildProcess, FeedsAndReadsItToTheEnd) {
  // More than a pipe holds, in both directions.
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(i) + "\n";
  const ChildResult r = run_child({.command = {"/bin/cat"}, .input = text}).value();
  EXPECT_TRUE(r.ok());
  EXPECT_EQ(r.out, text);
  EXPECT_EQ(r.err, "");
}

TEST(ChildProcess, OneThatDoesNotReadItsInputBreaksNothing) {
  const std::string text(1'000'000, 'x');
  ChildRequest request = shell("exec echo done");
  request.input = text;
  EXPECT_EQ(run_child(request).value().out, "done\n");
}

TEST(ChildProcess, TellsHowItEnded) {
  const ChildResult three = run_child(shell("echo first >&2; echo the reason >&2; exit 3")).value();
  EXPECT_FALSE(three.ok());
  EXPECT_EQ(three.exit_code, 3);
  EXPECT_EQ(how_it_ended(three, 0), "ended with exit code 3: the reason");
  const ChildResult killed = run_child(shell("kill -KILL $$")).value();
  EXPECT_EQ(killed.signal, SIGKILL);
  EXPECT_EQ(how_it_ended(killed, 0), "was ended by signal 9 (Killed)");
}

TEST(ChildProcess, KeepsTheEndOfAVerboseOne) {
  const ChildResult r = run_child(shell("i=0; while [ $i -lt 2000 ]; do echo line $i >&2; i=$((i+1)); done; exit 1")).value();
  EXPECT_LE(r.err.size(), kChildErrorBytes);
  EXPECT_EQ(how_it_ended(r, 0), "ended with exit code 1: line 1999");
}

TEST(ChildProcess, ASlowOneIsStopped) {
  ChildRequest request = shell("exec sleep 1000");
  request.limit_s = 0.2;
  const double begin = Clock::real().seconds();
  const ChildResult r = run_child(request).value();
  EXPECT_TRUE(r.timed_out);
  EXPECT_FALSE(r.ok());
  EXPECT_LT(Clock::real().seconds() - begin, 100);
  EXPECT_EQ(how_it_ended(r, 30), "took longer than 30 s and was stopped");
}

// It has closed what can be read of it, and goes on all the same.
TEST(ChildProcess, ASilentSlowOneIsStoppedToo) {
  ChildRequest request = shell("exec >&- 2>&-; exec sleep 1000");
  request.limit_s = 0.2;
  EXPECT_TRUE(run_child(request).value().timed_out);
}

TEST(ChildProcess, AnInterruptionEndsItAndLeavesNothingBehind) {
  std::string pattern = (std::filesystem::temp_directory_path() / "kvartet_child_XXXXXX").string();
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  const std::string started = pattern + "/started";
  std::atomic<bool> cancel = false;
  ChildRequest request = shell("echo $$ > " + started + "; exec sleep 1000");
  request.cancel = &cancel;
  std::thread interrupter([&] {
    while (!std::filesystem::exists(started) || std::filesystem::file_size(started) == 0) usleep(1000);
    cancel = true;
  });
  const Status status = run_child(request).status();
  interrupter.join();
  EXPECT_EQ(status.code(), Code::kCancelled);
  FILE* file = fopen(started.c_str(), "r");
  int id = 0;
  ASSERT_EQ(fscanf(file, "%d", &id), 1);
  fclose(file);
  EXPECT_EQ(kill(id, 0), -1);  // gone
  std::filesystem::remove_all(pattern);
}

TEST(ChildProcess, AProgramThatIsNotThereIsAnIoError) {
  const Status status = run_child({.command = {"/nowhere/at/all"}}).status();
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_NE(status.message().find("/nowhere/at/all"), std::string::npos);
}

}  // namespace
}  // namespace kvartet
