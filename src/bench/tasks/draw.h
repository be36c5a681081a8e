// Random draws of the generated tasks: one stream per purpose, so that a new purpose leaves the others' draws as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/rng.h"

namespace kvartet {

// Never renumber: the numbers are part of what (seed, sample) means.
enum class DrawStream : std::uint64_t {
  kNeedleFacts = 1,
  kNeedleDepths = 2,
  kNeedleStart = 3,
  kRulerNeedles = 16,
  kRulerFiller = 17,
  kRulerStart = 18,
  kRulerDepths = 19,
  kRulerVariables = 20,
  kRulerWords = 21,
  kArticleNames = 32,
  kArticleFacts = 33,
  kArticleQuestion = 34,
  kFewshot = 40,
  kFewshotExamples = 41,
  kCodebase = 48,
  kCodebaseFiller = 49,
  kContracts = 56,
  kContractsFiller = 57,
  kText2Json = 64,
  kText2JsonFiller = 65,
  kNeedleBench = 72,
};

inline Rng draw_rng(std::uint64_t seed, DrawStream stream, int sample) {
  return Rng(seed, static_cast<std::uint64_t>(stream) << 32 | static_cast<std::uint32_t>(sample));
}

// The first `count` of a random order of [0, n). count <= n.
std::vector<std::size_t> draw_distinct(Rng& rng, std::size_t n, std::size_t count);

inline std::string draw_one(Rng& rng, std::span<const std::string_view> words) {
  return std::string(words[rng.below(words.size())]);
}

// `count` depths in [0, 1), ascending, one in each of `count` equal parts of the text. Over samples they fill each part
// evenly (van der Corput sequence, shifted by the seed), however many samples are drawn.
std::vector<double> even_depths(std::uint64_t seed, DrawStream stream, int sample, int count);

}  // namespace kvartet
