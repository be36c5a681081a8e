#include "results/fingerprint.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/memory_file_system.h"
#include "results/machine.h"

namespace kvartet {
namespace {

TEST(Fingerprint, TokenHashDependsOnEveryIdAndOrder) {
  const std::vector<std::int32_t> a = {1, 2, 3};
  const std::vector<std::int32_t> b = {1, 3, 2};
  const std::vector<std::int32_t> none;
  EXPECT_EQ(hash_tokens(a).size(), 16U);
  EXPECT_EQ(hash_tokens(a), hash_tokens(a));
  EXPECT_NE(hash_tokens(a), hash_tokens(b));
  EXPECT_EQ(hash_tokens(none), "ef46db3751d8e999");  // XXH64 of nothing with seed 0, from its specification
}

Result<std::string> fingerprint_of(std::string_view bytes) {
  MemoryFileSystem files;
  auto file = files.create("m.gguf");
  EXPECT_TRUE(file.ok());
  EXPECT_TRUE((*file)->append(bytes).ok());
  EXPECT_TRUE((*file)->close().ok());
  return model_fingerprint(files, "m.gguf");
}

TEST(Fingerprint, ModelHashSeesSizeEdgesAndSampledMiddle) {
  std::string big(16 << 20, 'x');
  const std::string base = fingerprint_of(big).value();
  EXPECT_NE(fingerprint_of(big + "x").value(), base);
  std::string head = big;
  head[100] = 'y';
  EXPECT_NE(fingerprint_of(head).value(), base);
  std::string tail = big;
  tail.back() = 'y';
  EXPECT_NE(fingerprint_of(tail).value(), base);
  std::string middle = big;
  middle.replace(8 << 20, 1 << 20, std::string(1 << 20, 'z'));
  EXPECT_NE(fingerprint_of(middle).value(), base);
}

TEST(Fingerprint, MissingModelIsBadInput) {
  MemoryFileSystem files;
  EXPECT_EQ(model_fingerprint(files, "none.gguf").status().code(), Code::kBadInput);
}

TEST(Machine, CpuNameFromX86AndArmText) {
  EXPECT_EQ(cpu_name("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags: a"), "Some CPU @ 2 GHz");
  EXPECT_EQ(cpu_name("processor\t: 0\nBogoMIPS\t: 50\nCPU part\t: 0xd40\n"), "0xd40");
  EXPECT_EQ(cpu_name(""), "unknown");
}

// What is touched counts from then on, also when it has been given back.
TEST(PeakResidentBytes, RememberTheMostThereWas) {
  const std::int64_t before = peak_resident_bytes();
  ASSERT_GT(before, 0);
  constexpr std::size_t kMore = std::size_t{64} << 20;
  {
    std::vector<char> block(static_cast<std::size_t>(before) + kMore, 1);
    EXPECT_EQ(block.back(), 1);
  }
  EXPECT_GT(peak_resident_bytes(), before + static_cast<std::int64_t>(kMore / 2));
}

TEST(Machine, ThisMachineHasCoresAndMemory) {
  const Machine m = this_machine();
  EXPECT_GE(m.cores, 1);
  EXPECT_GT(m.memory_bytes, std::int64_t{1} << 26);
  EXPECT_FALSE(m.compiler.empty());
  EXPECT_EQ(utc_timestamp().size(), 20U);
}

}  // namespace
}  // namespace kvartet
