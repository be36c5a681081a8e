#include "bench/tasks/needle_facts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "core/check.h"
#include "core/rng.h"

namespace kvartet {
namespace {

constexpr std::array<std::string_view, 24> kNames = {"Marta",  "Edwin", "Sofia", "Oscar", "Helen", "Victor", "Clara", "Bruno",
                                                     "Irene",  "Felix", "Nadia", "Hugo",  "Laura", "Simon",  "Greta", "Tomas",
                                                     "Wanda",  "Julian", "Amelia", "Peter", "Rosa", "Martin", "Alice", "Daniel"};
constexpr std::array<std::string_view, 24> kPlaces = {"Lisbon", "Oslo",    "Vienna", "Dublin", "Prague", "Athens", "Madrid", "Geneva",
                                                      "Tokyo",  "Havana",  "Lima",   "Quebec", "Cairo",  "Sydney", "Warsaw", "Berlin",
                                                      "Milan",  "Houston", "Denver", "Naples", "Dallas", "Munich", "Kyoto",  "Zurich"};

// Streams of the generator: one per purpose, so that a new purpose leaves the others' draws as they are.
constexpr std::uint64_t kFactStream = 1;
constexpr std::uint64_t kDepthStream = 2;

// The first `count` of a random order of [0, n).
std::vector<std::size_t> draw_distinct(Rng& rng, std::size_t n, int count) {
  std::vector<std::size_t> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = i;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) std::swap(order[i], order[i + rng.below(n - i)]);
  order.resize(static_cast<std::size_t>(count));
  return order;
}

double van_der_corput(std::uint64_t i) {
  double x = 0;
  for (double digit = 0.5; i != 0; i >>= 1, digit /= 2) x += (i & 1U) != 0 ? digit : 0;
  return x;
}

}  // namespace

std::vector<NeedleFact> needle_facts(std::uint64_t seed, int sample, int count) {
  KV_CHECK(count >= 1 && count <= kMaxNeedles);
  Rng rng(seed, kFactStream << 32 | static_cast<std::uint32_t>(sample));
  const std::vector<std::size_t> names = draw_distinct(rng, kNames.size(), count);
  const std::vector<std::size_t> places = draw_distinct(rng, kPlaces.size(), count);
  const std::vector<std::size_t> values = draw_distinct(rng, 90, count);
  std::vector<NeedleFact> facts;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    facts.push_back({std::string(kNames[names[i]]), std::string(kPlaces[places[i]]), std::to_string(10 + values[i])});
  }
  return facts;
}

std::vector<double> needle_depths(std::uint64_t seed, int sample, int count) {
  const double shift = Rng(seed, kDepthStream << 32).uniform();
  double whole = 0;
  const double within = std::modf(van_der_corput(static_cast<std::uint64_t>(sample)) + shift, &whole);
  std::vector<double> depths;
  for (int j = 0; j < count; ++j) depths.push_back((j + within) / count);
  return depths;
}

}  // namespace kvartet
