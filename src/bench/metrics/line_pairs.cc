#include "bench/metrics/line_pairs.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <string>

namespace kvartet {
namespace {

bool is_word_byte(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || (static_cast<unsigned char>(c) & 0x80U) != 0;
}

// Where `word` stands in `text` from `from` on with no word going on at either side; npos: nowhere.
std::size_t find_word(std::string_view text, std::string_view word, std::size_t from) {
  for (std::size_t at = text.find(word, from); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool opens = at == 0 || !is_word_byte(text[at - 1]) || !is_word_byte(word.front());
    const bool closes = end == text.size() || !is_word_byte(text[end]) || !is_word_byte(word.back());
    if (opens && closes) return at;
  }
  return std::string_view::npos;
}

bool has_pair(std::string_view text, std::string_view thing, std::string_view value) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const std::size_t at = find_word(line, thing, 0);
    if (at != std::string_view::npos && find_word(line, value, at + thing.size()) != std::string_view::npos) return true;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return false;
}

}  // namespace

double line_pairs(std::string_view prediction, Texts references, Texts) {
  if (references.empty()) return 0;
  const auto hits = std::count_if(references.begin(), references.end(), [&](const std::string& reference) {
    const std::string_view pair = reference;
    const std::size_t colon = pair.find(": ");
    if (colon == 0 || colon == std::string_view::npos || colon + 2 == pair.size()) return false;
    return has_pair(prediction, pair.substr(0, colon), pair.substr(colon + 2));
  });
  return static_cast<double>(hits) / static_cast<double>(references.size());
}

}  // namespace kvartet
