#include "bench/metrics/unicode_text.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "bench/metrics/unicode_tables.h"

namespace kvartet {
namespace {

std::string lower(std::string_view text) { return encode_utf8(to_lower(decode_utf8(text))); }

// The same walk as fingerprint() in scripts/make_unicode_tables.py, there with Python's own answers.
TEST(UnicodeText, EveryCodePointIsAsPythonSaysIt) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 0x100000001B3ULL; };
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    const bool final_alone = to_lower(std::u32string{c, U'\u03a3'}).back() == U'\u03c2';
    const bool final_after_a = to_lower(std::u32string{U'a', c, U'\u03a3'}).back() == U'\u03c2';
    add(is_space(c) * 1U + is_word(c) * 2U + is_digit(c) * 4U + final_alone * 8U + final_after_a * 16U);
    for (const char32_t x : to_lower(std::u32string{c})) add(x);
  }
  EXPECT_EQ(hash, unicode_tables::kFingerprint);
}

TEST(UnicodeText, LowerKnowsTheSpecialCases) {
  EXPECT_EQ(lower("ÀÉÎÕÜ ŁŃŻ ΑΒΓ АБВЁ ẞ"), "àéîõü łńż αβγ абвё ß");
  EXPECT_EQ(lower("İstanbul"), "i̇stanbul");  // two code points for one
  EXPECT_EQ(lower("ΟΔΟΣ ΣΟΦΙΑ Σ"), "οδος σοφια σ");
  EXPECT_EQ(lower("ΟΔΟΣ'Α"), "οδοσ'α");  // the apostrophe is looked past
  EXPECT_EQ(lower("ΟΔΟΣ."), "οδος.");
}

TEST(UnicodeText, SplitsWhereStrSplitDoes) {
  const auto words = split_words(
      U"\u00a0one\u3000two\u2003\u0085three\x1f"
      U"four\u200bfive ");  // U+200B is no white space
  EXPECT_EQ(words, (std::vector<std::u32string>{U"one", U"two", U"three", U"four\u200bfive"}));
  EXPECT_TRUE(split_words(U"").empty());
  EXPECT_TRUE(split_words(U" \n").empty());
}

TEST(UnicodeText, DigitRunsOfAllScripts) {
  EXPECT_EQ(digit_runs("Paragraph 12, 3rd or ٣٤; ² is none"), (std::vector<std::string>{"12", "3", "٣٤"}));
  EXPECT_TRUE(digit_runs("none").empty());
}

TEST(UnicodeText, BadBytesBecomeReplacementsAndGoodTextSurvives) {
  EXPECT_EQ(decode_utf8("a\xff"
                        "b"),
            U"a\ufffd"
            U"b");
  const std::string text = "mixed é 東京 😀 \n";
  EXPECT_EQ(encode_utf8(decode_utf8(text)), text);
}

}  // namespace
}  // namespace kvartet
