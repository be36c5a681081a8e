#include "bench/metrics/qa_match.h"

#include <cstddef>
#include <map>

#include "bench/metrics/best_reference.h"
#include "bench/metrics/unicode_text.h"

namespace kvartet {
namespace {

bool is_ascii_punctuation(char32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

bool is_triviaqa_quote(char32_t c) { return c == U'\u2018' || c == U'\u2019' || c == U'\u00B4'; }  // backtick is ASCII

bool is_article(std::u32string_view word) { return word == U"a" || word == U"an" || word == U"the"; }

// re.sub(r"\b(a|an|the)\b", " ", text): an article is a whole run of word characters, so "a-team" has one and "à" none.
std::u32string blank_articles(std::u32string_view text) {
  std::u32string out;
  out.reserve(text.size());
  std::size_t at = 0;
  while (at < text.size()) {
    std::size_t end = at;
    while (end < text.size() && is_word(text[end])) ++end;
    if (end == at) {
      out.push_back(text[at++]);
      continue;
    }
    const std::u32string_view word = text.substr(at, end - at);
    out += is_article(word) ? std::u32string_view(U" ") : word;
    at = end;
  }
  return out;
}

double token_f1(const std::vector<std::u32string>& prediction, const std::vector<std::u32string>& reference) {
  std::map<std::u32string_view, int> available;
  for (const std::u32string& token : reference) ++available[token];
  int common = 0;
  for (const std::u32string& token : prediction) {
    const auto found = available.find(token);
    if (found == available.end() || found->second == 0) continue;
    --found->second;
    ++common;
  }
  if (common == 0) return 0;
  const double precision = static_cast<double>(common) / static_cast<double>(prediction.size());
  const double recall = static_cast<double>(common) / static_cast<double>(reference.size());
  return 2 * precision * recall / (precision + recall);
}

}  // namespace

std::vector<std::u32string> squad_tokens(std::string_view text) {
  std::u32string kept;
  for (const char32_t c : to_lower(decode_utf8(text))) {
    if (!is_ascii_punctuation(c)) kept.push_back(c);
  }
  return split_words(blank_articles(kept));
}

std::vector<std::u32string> triviaqa_tokens(std::string_view text) {
  std::u32string spaced = to_lower(decode_utf8(text));
  for (char32_t& c : spaced) {
    if (is_ascii_punctuation(c) || is_triviaqa_quote(c)) c = U' ';
  }
  return split_words(blank_articles(spaced));
}

double qa_f1(std::string_view prediction, Texts references, Texts) {
  const std::vector<std::u32string> tokens = squad_tokens(prediction);
  return best_reference(references, [&](const std::string& reference) { return token_f1(tokens, squad_tokens(reference)); });
}

double exact_match_squad(std::string_view prediction, Texts references, Texts) {
  const std::vector<std::u32string> tokens = squad_tokens(prediction);
  return best_reference(references, [&](const std::string& reference) { return tokens == squad_tokens(reference); });
}

double exact_match_triviaqa(std::string_view prediction, Texts references, Texts) {
  const std::vector<std::u32string> tokens = triviaqa_tokens(prediction);
  return best_reference(references, [&](const std::string& reference) { return tokens == triviaqa_tokens(reference); });
}

}  // namespace kvartet
