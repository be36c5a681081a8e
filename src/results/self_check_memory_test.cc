#include "results/self_check_memory.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/memory_file_system.h"

namespace kvartet {
namespace {

SelfCheck check_of(const std::string& spec, double agreement) {
  return {.spec = spec,
          .seen = 425,
          .tokens = 40,
          .top1_agreement = agreement,
          .kl_mean = 0.1 + 0.2,  // has to come back to the last bit
          .acted = true,
          .cause = "a cause",
          .safe_spec = "q8_0",
          .safe_agreement = 0.975};
}

TEST(SelfCheckMemoryTest, WhatWasAddedIsFoundInTheNextProgram) {
  MemoryFileSystem files;
  const std::string path = "home/kvartet/self-checks.tsv";
  SelfCheckMemory empty = SelfCheckMemory::load(files, path, "probe 1").value();
  EXPECT_EQ(empty.find("m", "q4_0"), nullptr);
  const std::vector<SelfCheck> checks = {check_of("q4_0", 0.25), check_of("kivi:bits=4,group=32,residual=128", 1)};
  ASSERT_TRUE(empty.add(files, "m", checks).ok());
  EXPECT_EQ(*empty.find("m", "q4_0"), checks[0]);

  SelfCheckMemory memory = SelfCheckMemory::load(files, path, "probe 1").value();
  ASSERT_NE(memory.find("m", "q4_0"), nullptr);
  EXPECT_EQ(*memory.find("m", "q4_0"), checks[0]);
  EXPECT_EQ(*memory.find("m", checks[1].spec), checks[1]);
  EXPECT_EQ(memory.find("another model", "q4_0"), nullptr);
  EXPECT_EQ(SelfCheckMemory::load(files, path, "probe 2").value().find("m", "q4_0"), nullptr);

  const std::vector<SelfCheck> again = {check_of("q4_0", 0.5)};
  ASSERT_TRUE(memory.add(files, "m", again).ok());
  EXPECT_EQ(SelfCheckMemory::load(files, path, "probe 1").value().find("m", "q4_0")->top1_agreement, 0.5);
}

TEST(SelfCheckMemoryTest, DamagedLinesArePassedOver) {
  MemoryFileSystem files;
  SelfCheckMemory memory = SelfCheckMemory::load(files, "checks.tsv", "p").value();
  const std::vector<SelfCheck> checks = {check_of("a", 0.25), check_of("b", 0.5), check_of("c", 0.75)};
  for (const SelfCheck& check : checks) ASSERT_TRUE(memory.add(files, "m", {&check, 1}).ok());
  std::string text = files.read_file("checks.tsv").value();
  text[text.find("\tb\t425") + 3] = 'x';  // no number any more
  text.resize(text.size() - 4);           // the last line is cut off
  text = "nonsense\n\n\t\t\t\t\t\t\t\t\t\t\n" + text;
  const auto file = files.create("checks.tsv").value();
  ASSERT_TRUE(file->append(text).ok());
  const SelfCheckMemory read = SelfCheckMemory::load(files, "checks.tsv", "p").value();
  EXPECT_NE(read.find("m", "a"), nullptr);
  EXPECT_EQ(read.find("m", "b"), nullptr);
  EXPECT_EQ(read.find("m", "c"), nullptr);
}

}  // namespace
}  // namespace kvartet
