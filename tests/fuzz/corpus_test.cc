// The fuzzers' kept inputs, and small changes of them, through the parsers: every run of the tests repeats every finding.
// A broken promise or a crash ends this program.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/rng.h"
#include "targets.h"

namespace kvartet::fuzz {
namespace {

struct Input {
  std::string name;
  std::string bytes;
};

std::vector<Input> corpus_of(std::string_view target) {
  std::vector<Input> inputs;
  const std::filesystem::path folder = std::filesystem::path(KVARTET_SOURCE_DIR) / "tests/fuzz/corpus" / target;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    inputs.push_back({entry.path().filename().string(), {std::istreambuf_iterator<char>(file), {}}});
  }
  std::ranges::sort(inputs, {}, &Input::name);
  return inputs;
}

std::string changed(std::string bytes, Rng& rng) {
  for (std::uint64_t n = 1 + rng.below(4); n > 0 && !bytes.empty(); --n) {
    const std::size_t at = rng.below(bytes.size());
    switch (rng.below(4)) {
      case 0: bytes[at] = static_cast<char>(rng.below(256)); break;
      case 1: bytes.erase(at, 1 + rng.below(8)); break;
      case 2: bytes.insert(at, bytes.substr(rng.below(bytes.size()), 1 + rng.below(8))); break;
      default: bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ (1U << rng.below(8)));
    }
  }
  return bytes;
}

class Corpus : public testing::TestWithParam<Target> {};

TEST_P(Corpus, KeptInputsKeepTheirPromises) {
  const std::vector<Input> inputs = corpus_of(GetParam().name);
  EXPECT_GE(inputs.size(), 8U);
  for (const Input& input : inputs) {
    SCOPED_TRACE(input.name);
    EXPECT_LT(input.bytes.size(), 64U << 10U) << input.name << ": kept inputs are small";
    GetParam().feed(input.bytes);
  }
}

TEST_P(Corpus, SmallChangesKeepThemToo) {
  Rng rng(5);
  for (const Input& input : corpus_of(GetParam().name)) {
    for (int i = 0; i < 12; ++i) GetParam().feed(changed(input.bytes, rng));
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Corpus, testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvartet::fuzz
