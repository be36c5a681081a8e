// Rows in files, seen from the command line: the same answer, exact bytes, nothing left behind (offloading.md 1.2).
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <string>

#include "tiny_models.h"

namespace kvartet::e2e {
namespace {

class TierCommand : public testing::Test {
 protected:
  TierCommand() { std::filesystem::create_directory(rows_); }

  Finished ask(const std::string& kv, const Arguments& more = {}) const { return ask_for("6", kv, more); }
  Finished ask_for(const std::string& tokens, const std::string& kv, const Arguments& more = {}) const {
    return run(Arguments{"run", "-m", model_, "--threads", "1", "--raw", "-f", text_, "-n", tokens, "--kv", kv, "--tier-dir",
                         rows_, "--json"} +
               more);
  }

  ScratchFolder folder_;
  std::string model_ = tiny_model(folder_, wide_heads());
  std::string text_ = folder_.file("text.txt", std::string(700, 'x') + std::string(200, 'y'));
  std::string rows_ = folder_.path("rows");
};

TEST_F(TierCommand, EveryTierGivesTheSameAnswerAndSaysWhereItsBytesAre) {
  const Json ram = ask("yakv").json();
  EXPECT_TRUE(ram["kv"]["bytes_by_tier"].contains("slow"));
  for (const std::string tier : {"mmap", "disk"}) {
    const Finished finished = ask("yakv:tier=" + tier);
    ASSERT_TRUE(is_ok(finished)) << tier;
    const Json d = finished.json();
    EXPECT_EQ(d["text"], ram["text"]) << tier;
    const Json& bytes = d["kv"]["bytes_by_tier"];
    EXPECT_GT(bytes[tier], 4096) << tier;
    EXPECT_EQ(bytes["ram"].get<std::size_t>() + bytes[tier].get<std::size_t>(), d["kv"]["allocated_bytes"]) << tier;
    EXPECT_GT(d["kv_end"]["traffic"]["rows_fetched"], 0) << tier;
    const std::string medium = d["kv_end"]["traffic"]["medium"];
    EXPECT_TRUE(std::filesystem::is_empty(rows_));
    if (medium.starts_with("pread")) continue;  // io_uring is refused here: its buffers are not there
    const Json before = run({"explain", "-m", model_, "--kv", "yakv:tier=" + tier, "--prompt-tokens",
                             std::to_string(d["prompt_tokens"].get<int>()), "--json"})
                            .json();
    EXPECT_EQ(before["bytes_by_tier"], bytes) << tier;
    EXPECT_EQ(before["live_bytes"], d["kv"]["live_bytes"]) << tier;
  }
}

// The table names how rows were reached, as the JSON does.
TEST_F(TierCommand, SpeedNamesTheMedium) {
  const auto speed = [&](const Arguments& more) {
    return run(Arguments{"speed",   "-m",   model_,     "--threads", "1",
                         "--gen",   "2",    "--rounds", "1",         "--prefill-rounds",
                         "1",       "--kv", "full",     "--kv",      "yakv:tier=disk",
                         "--depth", "300",  "--depth",  "400",       "--tier-dir",
                         rows_} +
               more);
  };
  const Finished json = speed({"--json"});
  ASSERT_TRUE(is_ok(json));
  const Json last = json.json()["rows"].back();
  const std::string medium = last["traffic"]["medium"];
  EXPECT_NE(medium.find("page cache"), std::string::npos) << medium;
  const Finished text = speed({});
  ASSERT_TRUE(is_ok(text));
  const std::string line = "slow tier of yakv:budget=0.03125: " + medium + "\n";
  const std::size_t at = text.out.find(line);
  ASSERT_NE(at, std::string::npos) << text.out;
  EXPECT_EQ(text.out.find(line, at + 1), std::string::npos) << "once for both depths";
  EXPECT_NE(text.out.find("random reads of 4 KiB"), std::string::npos) << text.out;
  // Its whole name once, below, and no line that a terminal would break.
  EXPECT_NE(text.out.find("\nyakv:budget=0.03125 is yakv:budget=0.03125,chunk=1,index=higgs2,"), std::string::npos) << text.out;
  std::istringstream lines(text.out);
  for (std::string shown; std::getline(lines, shown);) EXPECT_LE(shown.size(), 120U) << shown;
}

// Three sequences on one file: the sealed document and a fork for each question.
TEST_F(TierCommand, QuestionsShareTheSealedRows) {
  const Arguments questions = {"--question", "What?", "--question", "Why?"};
  const Json ram = ask("yakv", questions).json();
  const Json disk = ask("yakv:tier=disk,cache=0.25", questions).json();
  ASSERT_EQ(disk["answers"].size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(disk["answers"][i]["text"], ram["answers"][i]["text"]);
}

// A long answer of which only some rows stay near: the same text from every tier, and at the end what explain said.
TEST_F(TierCommand, ALongAnswerStaysBounded) {
  std::string text;
  for (const std::string tier : {"ram", "mmap", "disk"}) {
    const std::string kv = "yakv:generated=64,tier=" + tier;
    const Finished finished = ask_for("100", kv);
    ASSERT_TRUE(is_ok(finished)) << tier;
    const Json d = finished.json();
    if (text.empty()) text = d["text"];
    EXPECT_EQ(d["text"], text) << tier;
    const int steps = d["completion_tokens"].get<int>() - 1;
    EXPECT_GT(steps, 64);
    const Json before = run({"explain", "-m", model_, "--kv", kv, "--prompt-tokens",
                             std::to_string(d["prompt_tokens"].get<int>()), "--output-tokens", std::to_string(steps), "--json"})
                            .json();
    EXPECT_EQ(before["live_bytes"], d["kv_end"]["live_bytes"]) << tier;
  }
}

TEST_F(TierCommand, RefusalsAreOneSentence) {
  EXPECT_TRUE(is_refused(ask("yakv:tier=tape"), 2, "tier"));
  EXPECT_TRUE(is_refused(ask("yakv:cache=7"), 2, "cache"));
  EXPECT_TRUE(is_refused(run({"run", "-m", model_, "-p", "x", "--tier-dir", folder_.path("nowhere")}), 2, "nowhere"));
}

TEST_F(TierCommand, AFullDiskEndsTheRunAndNamesTheFile) {
  for (const std::string tier : {"mmap", "disk"}) {
    const Finished full =
        run({"run", "-m", model_, "--raw", "-f", text_, "-n", "2", "--kv", "yakv:tier=" + tier, "--tier-dir", rows_},
            {.file_size = 16384});
    EXPECT_TRUE(is_refused(full, 5, rows_)) << tier;
    EXPECT_EQ(full.err.find("yakv:"), full.err.rfind("yakv:")) << "the cache is named once: " << full.err;
    EXPECT_EQ(full.err.find("layer "), full.err.rfind("layer ")) << full.err;
    EXPECT_TRUE(std::filesystem::is_empty(rows_));
  }
}

TEST_F(TierCommand, AKilledRunLeavesNothing) {
  const std::string model = tiny_model(folder_, slow_model(), "slow.gguf");
  Program program({"run", "-m", model, "--threads", "1", "--raw", "-f", text_, "-n", "90000", "--temp", "1", "--kv",
                   "yakv:tier=disk", "--tier-dir", rows_});
  while (program.running() && program.out_so_far().size() < 10) usleep(1000);
  ASSERT_TRUE(program.running());
  program.kill(SIGKILL);
  ASSERT_EQ(program.wait().signal, SIGKILL);
  EXPECT_TRUE(std::filesystem::is_empty(rows_));
}

TEST_F(TierCommand, AFolderThatTakesNoFilesEndsTheRun) {
  std::filesystem::permissions(rows_, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  const Finished refused =
      run({"run", "-m", model_, "--raw", "-f", text_, "-n", "2", "--kv", "yakv:tier=disk", "--tier-dir", rows_},
          {.obey_permissions = true});
  EXPECT_TRUE(is_refused(refused, 5, rows_));
  std::filesystem::permissions(rows_, std::filesystem::perms::owner_all);
}

}  // namespace
}  // namespace kvartet::e2e
