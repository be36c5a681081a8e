#include "bench/tasks/text2json_families.h"

#include <fmt/format.h>

#include <array>

#include "bench/tasks/draw.h"
#include "core/check.h"

namespace kvartet {
namespace {

using Words = std::string_view;

constexpr std::array<Words, 24> kMakes = {"Halden", "Brookline", "Alder",   "Corvus", "Deltra", "Embra",  "Falkon", "Granis",
                                          "Harbro", "Irisa",     "Junaro",  "Kestra", "Lunara", "Masona", "Nordex", "Opalis",
                                          "Pionex", "Quarza",    "Regento", "Sumara", "Tulipa", "Unova",  "Vectra", "Wilona"};
constexpr std::array<Words, 12> kWares = {"Lamp",    "Kettle", "Drill", "Camera",  "Heater", "Mixer",
                                          "Printer", "Radio",  "Scale", "Toaster", "Vacuum", "Speaker"};
constexpr std::array<Words, 12> kMaterials = {"oak",   "steel", "bamboo",   "glass",   "copper", "linen",
                                              "brass", "cork",  "aluminum", "ceramic", "walnut", "titanium"};
constexpr std::array<Words, 24> kFirst = {"Marta", "Edwin",  "Sofia",  "Oscar", "Helen", "Victor", "Clara", "Bruno",
                                          "Irene", "Felix",  "Nadia",  "Hugo",  "Laura", "Simon",  "Greta", "Tomas",
                                          "Wanda", "Julian", "Amelia", "Peter", "Rosa",  "Martin", "Alice", "Daniel"};
constexpr std::array<Words, 24> kLast = {"Osterlind", "Brandt",   "Keller", "Moreau", "Lindgren", "Novak",  "Ferreira", "Hartley",
                                         "Jensen",    "Kowalski", "Larsen", "Molnar", "Nielsen",  "Orlov",  "Petrov",   "Quinn",
                                         "Ribeiro",   "Schmidt",  "Turner", "Ulrich", "Vargas",   "Weaver", "Zeller",   "Abbott"};
constexpr std::array<Words, 12> kSpecialties = {"cardiology", "dermatology", "neurology",   "oncology",
                                                "pediatrics", "radiology",   "urology",     "surgery",
                                                "geriatrics", "psychiatry",  "orthopedics", "hematology"};
constexpr std::array<Words, 12> kHospitals = {"Riverside Clinic",   "Saint Anne Hospital",   "Northgate Hospital",
                                              "Lakeview Clinic",    "Harbor Medical Center", "Elm Street Clinic",
                                              "Summit Hospital",    "Queen Mary Hospital",   "Old Mill Clinic",
                                              "Westfield Hospital", "Bayside Clinic",        "Pine Hill Hospital"};
constexpr std::array<Words, 12> kOrganizations = {"Foundation", "Institute", "Society", "Union",    "Council", "League",
                                                  "Trust",      "Academy",   "Bureau",  "Alliance", "Guild",   "Network"};
constexpr std::array<Words, 20> kCities = {"Lisbon", "Oslo",   "Vienna", "Dublin", "Prague", "Athens", "Madrid",
                                           "Geneva", "Tokyo",  "Havana", "Lima",   "Quebec", "Cairo",  "Sydney",
                                           "Warsaw", "Berlin", "Milan",  "Denver", "Naples", "Zurich"};
constexpr std::array<Words, 24> kTitleFirst = {"Silent",  "Broken",   "Golden",  "Last",      "Hidden",  "Burning",
                                               "Frozen",  "Distant",  "Crimson", "Empty",     "Endless", "Forgotten",
                                               "Hollow",  "Northern", "Paper",   "Restless",  "Secret",  "Seventh",
                                               "Shallow", "Sunken",   "Velvet",  "Wandering", "Winter",  "Wooden"};
constexpr std::array<Words, 24> kTitleSecond = {
    "Harbor", "Mirror", "Orchard", "Signal",  "Bridge", "Letter",  "Garden", "Station",  "Lantern", "River", "Island", "Window",
    "Tower",  "Desert", "Journey", "Kingdom", "Melody", "Promise", "Shadow", "Stranger", "Summer",  "Tide",  "Voyage", "Whisper"};

constexpr EntityFamily kFamilies[kEntityFamilies] = {
    {"products", {"price", "material"}, "every product for which the text gives a price and the material it is made of"},
    {"doctors", {"specialty", "hospital"}, "every doctor for whom the text gives a specialty and the hospital or clinic"},
    {"organizations",
     {"headquarters", "founded"},
     "every organization for which the text gives the city of its headquarters and the year of its foundation"},
    {"movies", {"director", "year"}, "every movie for which the text gives the director and the year of its release"},
};

// The n-th name of a family, all different.
std::string entity_name(std::size_t family, std::size_t n) {
  switch (family) {
    case 0:
      return fmt::format("{} {} {}", kMakes[n % kMakes.size()], kWares[n / kMakes.size() % kWares.size()],
                         100 + 50 * (n / (kMakes.size() * kWares.size())));
    case 1: return fmt::format("Dr. {} {}", kFirst[n % kFirst.size()], kLast[n / kFirst.size() % kLast.size()]);
    case 2:
      return fmt::format("{} {} {}", kMakes[n % kMakes.size()], kTitleSecond[n / kMakes.size() % kTitleSecond.size()],
                         kOrganizations[n % kOrganizations.size()]);
    case 3:
      return fmt::format("The {} {}", kTitleFirst[n % kTitleFirst.size()],
                         kTitleSecond[n / kTitleFirst.size() % kTitleSecond.size()]);
    default: KV_CHECK(false);
  }
}

constexpr std::size_t kNames = 576;  // of each family

struct Patterns {
  std::array<Words, 3> prose;  // {0} name, {1} first value, {2} second value
  std::array<Words, 2> lookalike;
};
constexpr Patterns kPatterns[kEntityFamilies] = {
    {{"The {0} is made of {2}. It sells for {1}.", "For {1} you get the {0}, whose body is made of {2}.",
      "Among the new goods is the {0}. The price is {1}, and the material is {2}."},
     {"A customer asked when the {0} will be back in the shop window.", "The box of the {0} was too large for the shelf."}},
    {{"{0} works at {2}. The specialty of {0} is {1}.", "At {2} the department of {1} is led by {0}.",
      "Patients who need {1} are sent to {0}, who works at {2}."},
     {"{0} came late to the dinner.", "A letter for {0} lay on the table for a week."}},
    {{"The {0} was founded in {2}. Its headquarters are in {1}.", "Since {2} there has been the {0}, with headquarters in {1}.",
      "From its headquarters in {1} the {0} has worked since it was founded in {2}."},
     {"The {0} sent nobody to the meeting.", "A poster of the {0} hung in the corridor."}},
    {{"{0} was directed by {1}. It came to the cinemas in {2}.", "In {2} the director {1} released {0}.",
      "The director of {0} is {1}, and the year of release was {2}."},
     {"Nobody could remember the end of {0}.", "The poster of {0} was sold at an auction."}},
};

}  // namespace

const EntityFamily& entity_family(std::size_t family) {
  KV_CHECK(family < kEntityFamilies);
  return kFamilies[family];
}

std::vector<Entity> draw_entities(std::size_t family, Rng& rng, std::size_t count) {
  std::vector<Entity> entities;
  for (const std::size_t n : draw_distinct(rng, kNames, count)) {
    Entity e = {entity_name(family, n), {}, {}};
    switch (family) {
      case 0: e.first = fmt::format("{} dollars", 10 + rng.below(90)), e.second = draw_one(rng, kMaterials); break;
      case 1: e.first = draw_one(rng, kSpecialties), e.second = draw_one(rng, kHospitals); break;
      case 2: e.first = draw_one(rng, kCities), e.second = std::to_string(1850 + rng.below(170)); break;
      default:
        e.first = draw_one(rng, kFirst) + " " + draw_one(rng, kLast), e.second = std::to_string(1930 + rng.below(90));
        break;
    }
    entities.push_back(std::move(e));
  }
  return entities;
}

std::string entity_prose(std::size_t family, const Entity& e, Rng& rng) {
  const std::string pattern = draw_one(rng, kPatterns[family].prose);
  return fmt::format(fmt::runtime(pattern), e.name, e.first, e.second);
}

std::string lookalike_prose(std::size_t family, const Entity& e, Rng& rng) {
  const std::string pattern = draw_one(rng, kPatterns[family].lookalike);
  return fmt::format(fmt::runtime(pattern), e.name);
}

}  // namespace kvartet
