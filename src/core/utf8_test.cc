#include "core/utf8.h"

#include <gtest/gtest.h>

#include "core/rng.h"

namespace kvartet {
namespace {

using std::string;

// The decoder everybody would write: decode the number, then ask whether it is one.
std::size_t valid_prefix_by_value(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned>(static_cast<unsigned char>(text[at + i])); };
    const std::size_t n = byte(0) < 0x80 ? 1 : byte(0) >> 5 == 6 ? 2 : byte(0) >> 4 == 14 ? 3 : byte(0) >> 3 == 30 ? 4 : 0;
    if (n == 0 || at + n > text.size()) return at;
    unsigned value = n == 1 ? byte(0) : byte(0) & (0x7FU >> n);
    for (std::size_t i = 1; i < n; ++i) {
      if (byte(i) >> 6 != 2) return at;
      value = value << 6 | (byte(i) & 0x3FU);
    }
    constexpr unsigned kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    if (value < kLeast[n] || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return at;
    at += n;
  }
  return at;
}

string random_bytes(Rng* rng) {
  // Bytes that meet often: leads with narrow second ranges, range ends, continuations, ASCII.
  static constexpr unsigned char kPool[] = {'a',  'z',  0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2,
                                            0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
  string s;
  for (std::uint64_t n = rng->below(24); s.size() < n;) s += static_cast<char>(kPool[rng->below(sizeof(kPool))]);
  return s;
}

TEST(Utf8, ValidPrefixEndsAtTheFirstBadByte) {
  EXPECT_EQ(valid_utf8_prefix(""), 0U);
  EXPECT_EQ(valid_utf8_prefix("plain ascii, longer than one word"), 33U);
  EXPECT_EQ(valid_utf8_prefix("h\xC3\xA9!"), 4U);
  EXPECT_EQ(valid_utf8_prefix("0123456789\xFFzzz"), 10U);
  EXPECT_EQ(valid_utf8_prefix("a\xC0\xAF"), 1U) << "overlong";
  EXPECT_EQ(valid_utf8_prefix("a\xED\xA0\x80"), 1U) << "surrogate";
  EXPECT_EQ(valid_utf8_prefix("a\xF4\x90\x80\x80"), 1U) << "above U+10FFFF";
  EXPECT_TRUE(is_valid_utf8("\xF4\x8F\xBF\xBF"));
  EXPECT_TRUE(is_valid_utf8(std::string_view("a\0b", 3))) << "NUL is a character";
}

TEST(Utf8, AgreesWithDecodingByValue) {
  Rng rng(1);
  for (int i = 0; i < 200000; ++i) {
    const string s = random_bytes(&rng);
    ASSERT_EQ(valid_utf8_prefix(s), valid_prefix_by_value(s)) << ::testing::PrintToString(s);
  }
}

TEST(Utf8, CompletePrefixHoldsBackOnlyWhatCanStillBecomeACharacter) {
  EXPECT_EQ(complete_utf8_prefix("ab\xF0\x9F\x98"), 2U);
  EXPECT_EQ(complete_utf8_prefix("ab\xF0\x9F\x98\x80"), 6U);
  EXPECT_EQ(complete_utf8_prefix("ab\xE6\x97"), 2U);
  EXPECT_EQ(complete_utf8_prefix("ab\x97"), 3U) << "a lone continuation byte stays invalid";
  EXPECT_EQ(complete_utf8_prefix("ab\xC0"), 3U);
  EXPECT_EQ(complete_utf8_prefix("\xE0\x80"), 2U) << "overlong already";
  EXPECT_EQ(complete_utf8_prefix("\xC3"), 0U);
}

TEST(Utf8, ReplacesOneMaximalSubpartByOneCharacter) {  // the example of the Unicode standard, table 3-8
  EXPECT_EQ(replace_invalid_utf8("a\xF1\x80\x80\xE1\x80\xC2"
                                 "b\x80"
                                 "c\x80\xBF"
                                 "d"),
            "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
            "b\xEF\xBF\xBD"
            "c\xEF\xBF\xBD\xEF\xBF\xBD"
            "d");
  EXPECT_EQ(replace_invalid_utf8("ok\xF0\x9F"), "ok\xEF\xBF\xBD");
}

TEST(Utf8Stream, C10PiecesAreValidAndJoinToTheWhole) {  // user-needs C10
  Rng rng(2);
  for (int i = 0; i < 50000; ++i) {
    const string s = random_bytes(&rng);
    Utf8Stream stream;
    string joined;
    for (std::size_t at = 0; at < s.size();) {
      const std::size_t n = std::min<std::size_t>(1 + rng.below(4), s.size() - at);
      const string piece = stream.push(std::string_view(s).substr(at, n));
      ASSERT_TRUE(is_valid_utf8(piece));
      joined += piece;
      at += n;
      ASSERT_EQ(joined, replace_invalid_utf8(std::string_view(s).substr(0, complete_utf8_prefix(s.substr(0, at)))))
          << "held back more or less than needed";
    }
    joined += stream.finish();
    ASSERT_EQ(joined, replace_invalid_utf8(s)) << ::testing::PrintToString(s);
  }
}

TEST(Utf8Stream, C10HoldsBackCharactersThatComeInSeveralTokens) {  // C10: emoji, Hangul, a ZWJ sequence, byte by byte
  const string text = "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB \xED\x95\x9C";
  Utf8Stream stream;
  string joined;
  int pieces = 0;
  for (const char byte : text) {
    const string piece = stream.push({&byte, 1});
    pieces += piece.empty() ? 0 : 1;
    joined += piece;
  }
  EXPECT_EQ(pieces, 5);
  EXPECT_EQ(joined, text);
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace kvartet
