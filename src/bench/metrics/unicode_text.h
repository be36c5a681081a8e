// The parts of Python's str that LongBench's metrics rest on: lower(), split(), and re's idea of words and digits.
// Exact for the Unicode version of the tables (unicode_tables.cc).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvartet {

// Invalid pieces become U+FFFD; metrics never fail on a text.
std::u32string decode_utf8(std::string_view text);
std::string encode_utf8(std::u32string_view text);

bool is_space(char32_t c);  // str.isspace()
bool is_word(char32_t c);   // \w
bool is_digit(char32_t c);  // \d: decimal digits of all scripts

// str.lower(), with its two rules that look further than one letter: U+0130 becomes two code points, and a capital
// sigma at the end of a word becomes the final one.
std::u32string to_lower(std::u32string_view text);

// str.split(): runs of white space separate, no empty pieces.
std::vector<std::u32string> split_words(std::u32string_view text);

// re.findall(r"\d+", text)
std::vector<std::string> digit_runs(std::string_view text);

}  // namespace kvartet
