#include "bench/runner/gold_positions.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace kvartet {

std::vector<std::int32_t> gold_positions(const Vocabulary& vocabulary, std::span<const Token> tokens, std::string_view before,
                                         std::string_view document, std::span<const GoldSpan> spans) {
  if (spans.empty()) return {};
  std::string text;
  std::vector<std::size_t> ends;  // of each token's bytes
  for (const Token token : tokens) {
    text += vocabulary.piece(token);
    ends.push_back(text.size());
  }
  const std::size_t found = text.find(std::string(before) + std::string(document));
  if (found == std::string::npos) return {};
  const std::size_t origin = found + before.size();
  std::vector<std::int32_t> positions;
  for (const GoldSpan& span : spans) {
    const auto first = std::upper_bound(ends.begin(), ends.end(), origin + span.begin);
    for (auto token = first; token != ends.end(); ++token) {
      const std::size_t begin = token == ends.begin() ? 0 : *std::prev(token);
      if (begin >= origin + span.end) break;
      if (begin < *token) positions.push_back(static_cast<std::int32_t>(token - ends.begin()));  // control tokens have no bytes
    }
  }
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return positions;
}

}  // namespace kvartet
