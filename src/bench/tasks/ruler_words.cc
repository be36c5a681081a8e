#include "bench/tasks/ruler_words.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "core/check.h"

namespace kvartet {
namespace {

constexpr std::array<std::string_view, kPlainNouns> kNouns = {
    "river",   "stone",  "candle", "window",   "garden", "bridge", "basket",  "hammer",   "pepper",  "violin", "ladder",
    "button",  "carpet", "engine", "feather",  "ribbon", "saddle", "tunnel",  "anchor",   "barrel",  "copper", "desert",
    "forest",  "guitar", "helmet", "island",   "jacket", "kettle", "lantern", "market",   "needle",  "orange", "pencil",
    "quarry",  "rocket", "silver", "temple",   "valley", "walnut", "blanket", "cabin",    "dolphin", "elbow",  "falcon",
    "goblet",  "harbor", "insect", "jungle",   "kitten", "lemon",  "magnet",  "napkin",   "oyster",  "parrot", "quilt",
    "rabbit",  "shovel", "tomato", "umbrella", "velvet", "wagon",  "yogurt",  "zipper",   "acorn",   "beetle", "canyon",
    "dagger",  "eagle",  "fiddle", "glacier",  "honey",  "iron",   "jewel",   "knight",   "leather", "mirror", "nectar",
    "oven",    "pillow", "queen",  "raven",    "sailor", "tiger",  "urchin",  "vinegar",  "whistle", "yacht",  "zebra",
    "almond",  "bottle", "cotton", "drum",     "ember",  "flute",  "grape",   "hazel",    "inkwell", "jasper", "kite",
    "lake",    "meadow", "nest",   "onion",    "puddle", "rice",   "salmon",  "thunder",  "tulip",   "vase",   "wheat",
    "wool",    "yard",   "apron",  "brick",    "cherry", "donkey", "easel",   "fountain", "gravel",  "hinge",  "igloo",
    "jasmine", "knot",   "lizard", "mango",    "nutmeg", "olive",  "plum"};

constexpr std::array<std::string_view, 64> kAdjectives = {
    "amber",  "brave", "calm",   "dusty",  "eager",   "fancy",   "gentle", "hollow",  "icy",   "jolly",  "keen",
    "lively", "merry", "narrow", "odd",    "pale",    "quiet",   "rapid",  "shy",     "tall",  "usual",  "vivid",
    "warm",   "young", "zesty",  "bitter", "clever",  "damp",    "early",  "faint",   "grand", "humble", "inner",
    "jagged", "kind",  "loyal",  "misty",  "noble",   "orderly", "plain",  "quick",   "rusty", "sleepy", "tender",
    "upper",  "vast",  "windy",  "yellow", "ancient", "blunt",   "curly",  "distant", "exact", "frozen", "golden",
    "heavy",  "idle",  "late",   "mellow", "neat",    "open",    "polite", "round",   "steep"};

std::string letters(Rng& rng, std::string_view alphabet, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += alphabet[rng.below(alphabet.size())];
  return out;
}

}  // namespace

std::string plain_word(std::size_t i) {
  KV_CHECK(i < kPlainWords);
  if (i < kPlainNouns) return std::string(kNouns[i]);
  const std::size_t pair = i - kPlainNouns;
  const std::size_t first = pair / (kPlainNouns - 1);
  const std::size_t second = pair % (kPlainNouns - 1);
  return std::string(kNouns[first]) + "-" + std::string(kNouns[second < first ? second : second + 1]);
}

std::string key_word(Rng& rng) {
  const std::string_view adjective = kAdjectives[rng.below(kAdjectives.size())];
  return fmt::format("{}-{}", adjective, kNouns[rng.below(64)]);
}

std::string long_number(Rng& rng) { return std::to_string(1'000'000 + rng.below(9'000'000)); }

std::string identifier(Rng& rng) {
  const std::uint64_t high = rng.next();
  const std::uint64_t low = rng.next();
  return fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", high >> 32, high >> 16 & 0xffff, high & 0xffff, low >> 48,
                     low & 0xffff'ffff'ffff);
}

std::string variable_name(Rng& rng) { return letters(rng, "ABCDEFGHIJKLMNOPQRSTUVWXYZ", 5); }
std::string coded_word(Rng& rng) { return letters(rng, "abcdefghijklmnopqrstuvwxyz", 6); }

}  // namespace kvartet
