// The vocabulary of the ruler tasks: plain words, key words, numbers and identifiers, all drawn from the counter-based rng.
#pragma once

#include <cstddef>
#include <string>

#include "core/rng.h"

namespace kvartet {

// Different words for 0 <= i < kPlainWords: short English nouns first, then compounds of two of them.
inline constexpr std::size_t kPlainNouns = 128;
inline constexpr std::size_t kPlainWords = kPlainNouns + kPlainNouns * (kPlainNouns - 1);
std::string plain_word(std::size_t i);

std::string key_word(Rng& rng);       // "quiet-harbor", one of 4,096
std::string long_number(Rng& rng);    // seven digits
std::string identifier(Rng& rng);     // 128 bits as 8-4-4-4-12 hex digits
std::string variable_name(Rng& rng);  // five capital letters
std::string coded_word(Rng& rng);     // six small letters that spell nothing

}  // namespace kvartet
