#include "bench/metrics/unicode_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include "bench/metrics/unicode_tables.h"
#include "core/utf8.h"

namespace kvartet {
namespace {

using unicode_tables::CodePointRange;
using unicode_tables::LowerRun;

constexpr char32_t kReplacement = 0xFFFD;
constexpr char32_t kCapitalIWithDot = 0x130;
constexpr char32_t kCapitalSigma = 0x3A3;
constexpr char32_t kSmallSigma = 0x3C3;
constexpr char32_t kFinalSigma = 0x3C2;

bool in_ranges(std::span<const CodePointRange> ranges, char32_t c) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), c, [](char32_t x, const CodePointRange& r) { return x < r.first; });
  return after != ranges.begin() && c <= std::prev(after)->last;
}

char32_t lower_of(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  const auto& runs = unicode_tables::kLower;
  const auto after = std::upper_bound(runs.begin(), runs.end(), c, [](char32_t x, const LowerRun& r) { return x < r.first; });
  if (after == runs.begin()) return c;
  const LowerRun& run = *std::prev(after);  // runs do not overlap
  if (c <= run.last && (c - run.first) % run.step == 0) return static_cast<char32_t>(static_cast<std::int32_t>(c) + run.delta);
  return c;
}

// Does a capital sigma at `at` end its word: a cased letter before it, none after it (ignorable marks skipped)?
bool is_final_sigma(std::u32string_view text, std::size_t at) {
  std::size_t i = at;
  while (i > 0 && in_ranges(unicode_tables::kSigmaIgnorable, text[i - 1])) --i;
  if (i == 0 || !in_ranges(unicode_tables::kSigmaCased, text[i - 1])) return false;
  std::size_t j = at + 1;
  while (j < text.size() && in_ranges(unicode_tables::kSigmaIgnorable, text[j])) ++j;
  return j == text.size() || !in_ranges(unicode_tables::kSigmaCased, text[j]);
}

// The code point of one whole character of 1 to 4 bytes.
char32_t code_point(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0);
  char32_t c = byte(0) & (0xFFU >> (character.size() + 1));
  for (std::size_t i = 1; i < character.size(); ++i) c = (c << 6) | (byte(i) & 0x3FU);
  return c;
}

}  // namespace

std::u32string decode_utf8(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Piece piece = next_utf8(text);
    out.push_back(piece.kind == Utf8Kind::kCharacter ? code_point(text.substr(0, piece.bytes)) : kReplacement);
    text.remove_prefix(piece.bytes);
  }
  return out;
}

std::string encode_utf8(std::u32string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : text) {
    if (c < 0x80) {
      out.push_back(static_cast<char>(c));
    } else if (c < 0x800) {
      out.push_back(static_cast<char>(0xC0 | (c >> 6)));
      out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
    } else if (c < 0x10000) {
      out.push_back(static_cast<char>(0xE0 | (c >> 12)));
      out.push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
      out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
    } else {
      out.push_back(static_cast<char>(0xF0 | (c >> 18)));
      out.push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
      out.push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
      out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
    }
  }
  return out;
}

bool is_space(char32_t c) { return in_ranges(unicode_tables::kSpace, c); }
bool is_word(char32_t c) { return in_ranges(unicode_tables::kWord, c); }
bool is_digit(char32_t c) { return in_ranges(unicode_tables::kDigit, c); }

std::u32string to_lower(std::u32string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == kCapitalIWithDot) {
      out += U"i\u0307";
    } else if (text[i] == kCapitalSigma) {
      out.push_back(is_final_sigma(text, i) ? kFinalSigma : kSmallSigma);
    } else {
      out.push_back(lower_of(text[i]));
    }
  }
  return out;
}

std::vector<std::u32string> split_words(std::u32string_view text) {
  std::vector<std::u32string> words;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && !is_space(text[i])) continue;
    if (i > begin) words.emplace_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  return words;
}

std::vector<std::string> digit_runs(std::string_view text) {
  const std::u32string points = decode_utf8(text);
  std::vector<std::string> runs;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= points.size(); ++i) {
    if (i < points.size() && is_digit(points[i])) continue;
    if (i > begin) runs.push_back(encode_utf8(std::u32string_view(points).substr(begin, i - begin)));
    begin = i + 1;
  }
  return runs;
}

}  // namespace kvartet
