// The four kinds of records of Text2JSON's generator: entities with two attributes, said in prose.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/rng.h"

namespace kvartet {

struct Entity {
  std::string name;
  std::string first;  // value of the family's first key
  std::string second;
};

struct EntityFamily {
  std::string_view plural;   // "products"
  std::string_view keys[2];  // beside "name"
  std::string_view task;     // what to extract, for the prompt
};

inline constexpr std::size_t kEntityFamilies = 4;
const EntityFamily& entity_family(std::size_t family);

// `count` entities with different names, no brackets, quotes or curly apostrophes in any value.
std::vector<Entity> draw_entities(std::size_t family, Rng& rng, std::size_t count);

// One or two sentences that say both attributes.
std::string entity_prose(std::size_t family, const Entity& entity, Rng& rng);

// A sentence about something with a similar name that lacks both attributes, so it is no entry.
std::string lookalike_prose(std::size_t family, const Entity& entity, Rng& rng);

}  // namespace kvartet
