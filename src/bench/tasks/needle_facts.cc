#include "bench/tasks/needle_facts.h"

#include <array>
#include <string_view>

#include "bench/tasks/draw.h"
#include "core/check.h"

namespace kvartet {
namespace {

constexpr std::array<std::string_view, 24> kNames = {"Marta", "Edwin",  "Sofia",  "Oscar", "Helen", "Victor", "Clara", "Bruno",
                                                     "Irene", "Felix",  "Nadia",  "Hugo",  "Laura", "Simon",  "Greta", "Tomas",
                                                     "Wanda", "Julian", "Amelia", "Peter", "Rosa",  "Martin", "Alice", "Daniel"};
constexpr std::array<std::string_view, 24> kPlaces = {
    "Lisbon", "Oslo",   "Vienna", "Dublin", "Prague", "Athens",  "Madrid", "Geneva", "Tokyo",  "Havana", "Lima",  "Quebec",
    "Cairo",  "Sydney", "Warsaw", "Berlin", "Milan",  "Houston", "Denver", "Naples", "Dallas", "Munich", "Kyoto", "Zurich"};

}  // namespace

std::vector<NeedleFact> needle_facts(std::uint64_t seed, int sample, int count) {
  KV_CHECK(count >= 1 && count <= kMaxNeedles);
  Rng rng = draw_rng(seed, DrawStream::kNeedleFacts, sample);
  const auto facts_wanted = static_cast<std::size_t>(count);
  const std::vector<std::size_t> names = draw_distinct(rng, kNames.size(), facts_wanted);
  const std::vector<std::size_t> places = draw_distinct(rng, kPlaces.size(), facts_wanted);
  const std::vector<std::size_t> values = draw_distinct(rng, 90, facts_wanted);
  std::vector<NeedleFact> facts;
  for (std::size_t i = 0; i < facts_wanted; ++i) {
    facts.push_back({std::string(kNames[names[i]]), std::string(kPlaces[places[i]]), std::to_string(10 + values[i])});
  }
  return facts;
}

}  // namespace kvartet
