// Generated tables behind unicode_text.h; sorted, disjoint.
#pragma once

#include <cstdint>
#include <span>

namespace kvartet::unicode_tables {

struct CodePointRange {
  char32_t first;
  char32_t last;
};
struct LowerRun {  // lower(c) = c + delta for c = first, first + step, ..., last
  char32_t first;
  char32_t last;
  char32_t step;
  std::int32_t delta;
};

extern const std::span<const CodePointRange> kSpace;
extern const std::span<const CodePointRange> kWord;
extern const std::span<const CodePointRange> kDigit;
extern const std::span<const CodePointRange> kSigmaIgnorable;
extern const std::span<const CodePointRange> kSigmaCased;
extern const std::span<const LowerRun> kLower;
extern const std::uint64_t kFingerprint;  // of Python's own answers, for the test

}  // namespace kvartet::unicode_tables
