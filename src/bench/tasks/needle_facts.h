// Facts nobody can know without reading the prompt: Marta's locker in Lisbon has the number 48.
//
// Values are two digits on purpose. Models read digits one by one and lose 3 to 4 nats on each that they must guess, much
// the same in every sample: so few samples tell caches apart by likelihood. Two digits keep that loss small against the
// noise of where a needle happens to lie; the price is that a wrong answer holds the right digits by chance now and then
// (1 in 90 for a wrong number of two digits).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvartet {

struct NeedleFact {
  std::string name;   // "Marta"
  std::string place;  // "Lisbon"
  std::string value;  // "48"
};

// `count` facts (at most kMaxNeedles) with different names, places and values. A pure function of its arguments.
inline constexpr int kMaxNeedles = 16;
std::vector<NeedleFact> needle_facts(std::uint64_t seed, int sample, int count);

}  // namespace kvartet
