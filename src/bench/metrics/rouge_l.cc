#include "bench/metrics/rouge_l.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "bench/metrics/best_reference.h"
#include "bench/metrics/unicode_text.h"

namespace kvartet {
namespace {

using Sentence = std::vector<std::uint32_t>;  // word numbers

// Gives equal words equal numbers, from 0.
class WordNumbers {
 public:
  std::uint32_t of(const std::string& word) {
    return numbers_.try_emplace(word, static_cast<std::uint32_t>(numbers_.size())).first->second;
  }
  std::size_t size() const { return numbers_.size(); }

 private:
  std::unordered_map<std::string, std::uint32_t> numbers_;
};

// Pieces between dots; a piece of white space only is a sentence of one empty word, an empty piece is none.
std::vector<Sentence> sentences(std::string_view text, WordNumbers& numbers) {
  std::vector<Sentence> found;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t dot = std::min(text.find('.', begin), text.size());
    if (dot > begin) {
      Sentence& sentence = found.emplace_back();
      for (const std::u32string& word : split_words(decode_utf8(text.substr(begin, dot - begin)))) {
        sentence.push_back(numbers.of(encode_utf8(word)));
      }
      if (sentence.empty()) sentence.push_back(numbers.of(""));
    }
    begin = dot + 1;
  }
  return found;
}

std::size_t distinct_words(const std::vector<Sentence>& text, std::size_t word_count) {
  std::vector<bool> seen(word_count);
  for (const Sentence& sentence : text) {
    for (const std::uint32_t word : sentence) seen[word] = true;
  }
  return static_cast<std::size_t>(std::count(seen.begin(), seen.end(), true));
}

// Marks the words of one longest common subsequence. Which one matters, for only distinct words count in the end: from
// the ends of both, take equal words, else step back in the reference only if that is strictly longer.
void mark_common_words(const Sentence& reference, const Sentence& hypothesis, std::vector<bool>& marked) {
  const std::size_t columns = hypothesis.size();
  std::vector<bool> reference_steps(reference.size() * columns);  // table[i-1][j] > table[i][j-1]: one bit a cell, not the table
  std::vector<std::uint32_t> above(columns + 1);
  std::vector<std::uint32_t> row(columns + 1);
  for (std::size_t i = 0; i < reference.size(); ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      reference_steps[i * columns + j] = above[j + 1] > row[j];
      row[j + 1] = reference[i] == hypothesis[j] ? above[j] + 1 : std::max(above[j + 1], row[j]);
    }
    std::swap(row, above);
  }
  std::size_t i = reference.size();
  std::size_t j = columns;
  while (i > 0 && j > 0) {
    if (reference[i - 1] == hypothesis[j - 1]) {
      marked[reference[i - 1]] = true;
      --i;
      --j;
    } else if (reference_steps[(i - 1) * columns + (j - 1)]) {
      --i;
    } else {
      --j;
    }
  }
}

}  // namespace

double rouge_l_f(std::string_view hypothesis, std::string_view reference) {
  WordNumbers numbers;
  const std::vector<Sentence> hypothesis_sentences = sentences(hypothesis, numbers);
  const std::vector<Sentence> reference_sentences = sentences(reference, numbers);
  if (hypothesis_sentences.empty() || reference_sentences.empty()) return 0;

  std::vector<bool> common(numbers.size());
  for (const Sentence& r : reference_sentences) {
    for (const Sentence& h : hypothesis_sentences) mark_common_words(r, h, common);
  }
  const auto count = static_cast<double>(std::count(common.begin(), common.end(), true));
  const double precision = count / static_cast<double>(distinct_words(hypothesis_sentences, numbers.size()));
  const double recall = count / static_cast<double>(distinct_words(reference_sentences, numbers.size()));
  return 2.0 * ((precision * recall) / (precision + recall + 1e-8));
}

double rouge_l(std::string_view prediction, Texts references, Texts) {
  return best_reference(references, [&](const std::string& reference) { return rouge_l_f(prediction, reference); });
}

}  // namespace kvartet
