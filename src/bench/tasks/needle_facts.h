// Facts nobody can know without reading the prompt: Marta's locker in Lisbon has the number 482.
//
// Values are digits on purpose: models read most digits token by token and guess an unseen one with about ln 10 nats, so
// the likelihood that a lost fact costs varies little from sample to sample and few samples tell caches apart.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvartet {

struct NeedleFact {
  std::string name;   // "Marta"
  std::string place;  // "Lisbon"
  std::string value;  // "482"
};

// `count` facts (at most kMaxNeedles) with different names, places and values. A pure function of its arguments.
inline constexpr int kMaxNeedles = 16;
std::vector<NeedleFact> needle_facts(std::uint64_t seed, int sample, int count);

// Depths in [0, 1), ascending, one in each of `count` equal parts of the text. Over samples they fill each part evenly
// (van der Corput sequence, shifted by the seed), however many samples are drawn.
std::vector<double> needle_depths(std::uint64_t seed, int sample, int count);

}  // namespace kvartet
