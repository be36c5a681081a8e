#include "bench/tasks/made_up_articles.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "bench/tasks/draw.h"
#include "core/check.h"

namespace kvartet {
namespace {

using Words = std::string_view;

constexpr std::array<Words, 40> kFirst = {"Marta",  "Edwin",  "Sofia",  "Oscar",  "Helen",  "Victor", "Clara", "Bruno",
                                          "Irene",  "Felix",  "Nadia",  "Hugo",   "Laura",  "Simon",  "Greta", "Tomas",
                                          "Wanda",  "Julian", "Amelia", "Peter",  "Rosa",   "Martin", "Alice", "Daniel",
                                          "Emma",   "Lukas",  "Vera",   "Anton",  "Judith", "Karl",   "Olga",  "Robert",
                                          "Teresa", "Walter", "Agnes",  "Conrad", "Dora",   "Gustav", "Ida",   "Leon"};
// Names of few tokens, and facts said in the words of the question: what a small model can find.
constexpr std::array<Words, 40> kLast = {"Brown",  "Young", "Turner", "Weaver", "Marsh",  "Baker", "Carter", "Cooper",
                                         "Fisher", "Hill",  "King",   "Lee",    "Miller", "Moore", "Parker", "Reed",
                                         "Scott",  "Stone", "Taylor", "Walker", "White",  "Wood",  "Bell",   "Bishop",
                                         "Brooks", "Cole",  "Cook",   "Cross",  "Ford",   "Fox",   "Grant",  "Green",
                                         "Hunt",   "James", "Lane",   "Mason",  "Page",   "Price", "Rose",   "Ward"};
constexpr std::array<Words, 24> kPlaces = {"Lisbon", "Oslo",    "Vienna", "Dublin", "Prague", "Athens", "Madrid", "Geneva",
                                           "Tokyo",  "Havana",  "Lima",   "Quebec", "Cairo",  "Sydney", "Warsaw", "Berlin",
                                           "Milan",  "Houston", "Denver", "Naples", "Dallas", "Munich", "Kyoto",  "Zurich"};
constexpr std::array<Words, 20> kWork = {"carpenter", "teacher", "baker",     "pilot",  "nurse",    "lawyer",  "farmer",
                                         "painter",   "plumber", "dentist",   "sailor", "tailor",   "chemist", "butcher",
                                         "gardener",  "singer",  "librarian", "judge",  "mechanic", "cook"};
constexpr std::array<Words, 20> kPets = {"parrot", "goat",   "turtle", "rabbit", "donkey", "snake", "horse",
                                         "goose",  "monkey", "pig",    "lizard", "duck",   "fox",   "sheep",
                                         "owl",    "crab",   "falcon", "spider", "pony",   "frog"};
constexpr std::array<Words, 16> kInstruments = {"cello", "flute", "violin",   "trumpet",  "harp",     "guitar",
                                                "piano", "drums", "organ",    "banjo",    "clarinet", "tuba",
                                                "oboe",  "lute",  "bagpipes", "accordion"};
constexpr std::array<Words, 16> kDrinks = {"milk",        "cocoa",    "lemonade",   "cider",     "beer",         "ginger tea",
                                           "apple juice", "coffee",   "water",      "mint tea",  "tomato juice", "orange juice",
                                           "green tea",   "red wine", "buttermilk", "plum juice"};
constexpr std::array<Words, 30> kCompanyNames = {"Halden",  "Brook",  "Alder",   "Crown",   "Delta", "Ember", "Falcon", "Granite",
                                                 "Harbor",  "Iris",   "Juniper", "Kestrel", "Lunar", "Mason", "Nordic", "Opal",
                                                 "Pioneer", "Quartz", "Regent",  "Summit",  "Tulip", "Union", "Vector", "Willow",
                                                 "Yarrow",  "Zenith", "Atlas",   "Beacon",  "Comet", "Dover"};
constexpr std::array<Words, 20> kProducts = {"rope",   "glass",  "paper", "soap",  "bicycle", "clock",  "carpet",
                                             "pencil", "shoe",   "lamp",  "chair", "brick",   "button", "piano",
                                             "tent",   "candle", "knife", "boat",  "hat",     "toy"};
constexpr std::array<Words, 16> kIdlePerson = {"Neighbors say that {} is friendly but seldom at home. ",
                                               "On Sundays {} goes for a long walk along the river. ",
                                               "For many years {} has kept a diary. ",
                                               "Nobody has ever seen {} in a hurry. ",
                                               "In winter {} likes to sit by the fire and read old newspapers. ",
                                               "Friends often ask {} for advice. ",
                                               "Last year {} repaired the roof of the house without any help. ",
                                               "When guests come, {} tells them stories about the sea. ",
                                               "A large map of the world hangs in the hall. ",
                                               "The garden behind the house is full of roses and weeds. ",
                                               "There was once a plan to sell the house, but nothing came of it. ",
                                               "A long letter from an old friend still lies on the desk. ",
                                               "Nothing pleases {} more than a quiet morning. ",
                                               "The stairs of the house are steep, and visitors complain about them. ",
                                               "Twice a year the whole family meets for a weekend. ",
                                               "It is said that {} never forgets a face. "};
constexpr std::array<Words, 6> kIdleCompany = {"{} employs about sixty people. ",
                                               "The offices of {} are on the second floor of an old mill. ",
                                               "Every spring {} opens its doors to visitors for a day. ",
                                               "{} was in the news when its truck got stuck under a bridge. ",
                                               "The canteen of {} is known for its soup. ",
                                               "Most customers of {} come back after a year. "};

Rng fact_rng(std::uint64_t seed, int sample, std::size_t entity, bool is_company) {
  return Rng(draw_rng(seed, DrawStream::kArticleFacts, sample).at(2 * entity + (is_company ? 1 : 0)));
}

std::string filled(Words pattern, const std::string& name) { return fmt::format(fmt::runtime(pattern), name); }

// Facts and idle talk in an order of the article's own: three facts, the `asked` ones among them, the home, eight
// sentences that say nothing. Few facts to an article keep the task within a small model's reach.
constexpr std::size_t kPersonFactsTold = 3;
constexpr std::size_t kIdleSentences = 8;
constexpr std::size_t kPersonSentences = kPersonFactsTold + 1 + kIdleSentences;
constexpr std::size_t kCompanySentences = 4;

std::vector<std::string> person_sentences(const Person& p, Rng rng, std::vector<PersonFact> told) {
  for (const std::size_t i : draw_distinct(rng, std::size(kPersonFacts), std::size(kPersonFacts))) {
    const bool there = std::find(told.begin(), told.end(), kPersonFacts[i]) != told.end();
    if (!there && told.size() < kPersonFactsTold) told.push_back(kPersonFacts[i]);
  }
  std::vector<std::string> pool;
  for (const PersonFact fact : told) pool.push_back(fact_sentence(fact, p) + " ");
  pool.push_back(fmt::format("{} now lives in {}. ", p.name, p.home));
  for (const std::size_t i : draw_distinct(rng, kIdlePerson.size(), kIdleSentences))
    pool.push_back(filled(kIdlePerson[i], p.name));
  std::vector<std::string> out;
  for (const std::size_t i : draw_distinct(rng, pool.size(), pool.size())) out.push_back(pool[i]);
  return out;
}

std::string owner_sentence(const Company& c) { return fmt::format("The owner of {} is {}.", c.name, c.owner); }

std::vector<std::string> company_sentences(const Company& c, Rng rng) {
  std::vector<std::string> pool = {owner_sentence(c) + " ", fmt::format("{} makes {}s in {}. ", c.name, c.product, c.place)};
  for (const std::size_t i : draw_distinct(rng, kIdleCompany.size(), 2)) pool.push_back(filled(kIdleCompany[i], c.name));
  std::vector<std::string> out;
  for (const std::size_t i : draw_distinct(rng, pool.size(), pool.size())) out.push_back(pool[i]);
  return out;
}

// Headline in front of the first sentence, an empty line behind the last.
void make_article(const std::string& title, std::vector<std::string>& sentences) {
  sentences.front() = title + "\n" + sentences.front();
  sentences.back().back() = '\n';
  sentences.back() += '\n';
}

GoldPiece gold_article(double depth, const std::string& title, std::vector<std::string> sentences, const std::string& answer) {
  make_article(title, sentences);
  GoldPiece piece = {.depth = depth, .text = {}, .span = {}};
  for (const std::string& s : sentences) piece.text += s;
  piece.span.begin = piece.text.find(answer);
  KV_CHECK(piece.span.begin != std::string::npos);
  piece.span.end = piece.span.begin + answer.size();
  return piece;
}

}  // namespace

std::string fact_subject(PersonFact fact, const std::string& who) {
  switch (fact) {
    case PersonFact::kBirthplace: return fmt::format("the city in which {} was born", who);
    case PersonFact::kWork: return fmt::format("the job that {} has had for ten years", who);
    case PersonFact::kPet: return fmt::format("the animal that {} keeps in the garden", who);
    case PersonFact::kInstrument: return fmt::format("the instrument that {} plays in the evening", who);
    case PersonFact::kDrink: return fmt::format("the drink that {} has every morning", who);
  }
  KV_CHECK(false);
}

const std::string& fact_value(PersonFact fact, const Person& p) {
  switch (fact) {
    case PersonFact::kBirthplace: return p.birthplace;
    case PersonFact::kWork: return p.work;
    case PersonFact::kPet: return p.pet;
    case PersonFact::kInstrument: return p.instrument;
    case PersonFact::kDrink: return p.drink;
  }
  KV_CHECK(false);
}

std::string fact_sentence(PersonFact fact, const Person& p) {
  std::string text = fmt::format("{} is {}.", fact_subject(fact, p.name), fact_value(fact, p));
  text[0] = 'T';
  return text;
}

ArticleWorld::ArticleWorld(std::uint64_t seed, int sample) : seed_(seed), sample_(sample) {
  Rng rng = draw_rng(seed, DrawStream::kArticleNames, sample);
  first_ = draw_distinct(rng, kFirst.size(), kFirst.size());
  last_ = draw_distinct(rng, kLast.size(), kLast.size());
  companies_ = draw_distinct(rng, kCompanies, kCompanies);
}

Person ArticleWorld::person(std::size_t i) const {
  KV_CHECK(i < kPeople);
  Rng rng = fact_rng(seed_, sample_, i, /*is_company=*/false);
  const std::vector<std::size_t> places = draw_distinct(rng, kPlaces.size(), 2);
  Person p;
  // Of forty people in a row no two share a first name, and hardly any a last name.
  p.name = fmt::format("{} {}", kFirst[first_[i % kFirst.size()]], kLast[last_[(i + i / kFirst.size()) % kLast.size()]]);
  p.birthplace = kPlaces[places[0]];
  p.home = kPlaces[places[1]];
  p.work = draw_one(rng, kWork);
  p.pet = draw_one(rng, kPets);
  p.instrument = draw_one(rng, kInstruments);
  p.drink = draw_one(rng, kDrinks);
  return p;
}

Company ArticleWorld::company(std::size_t i) const {
  KV_CHECK(i < kCompanies);
  Rng rng = fact_rng(seed_, sample_, i, /*is_company=*/true);
  Company c;
  const std::string product(kProducts[companies_[i] % kProducts.size()]);
  c.product = product;
  c.name = fmt::format("{} {} Works", kCompanyNames[companies_[i] / kProducts.size()],
                       static_cast<char>(product[0] - 'a' + 'A') + product.substr(1));
  c.place = draw_one(rng, kPlaces);
  c.owner = person(i).name;
  return c;
}

Filler ArticleWorld::filler(std::size_t reserved, bool with_companies) const {
  // Article a: person a + reserved; with companies, person and company a / 2 + reserved in turn, so that every owner has
  // an article as well.
  const auto sentences_of = [*this, reserved](std::size_t entity, bool is_company) {
    const std::size_t i = entity + reserved;
    const Rng order(fact_rng(seed_, sample_, i, is_company).at(1000));
    if (!is_company) {
      const Person p = person(i);
      std::vector<std::string> sentences = person_sentences(p, order, {});
      make_article(p.name, sentences);
      return sentences;
    }
    const Company c = company(i);
    std::vector<std::string> sentences = company_sentences(c, order);
    make_article(c.name, sentences);
    return sentences;
  };
  if (!with_companies) {
    return {.piece = [sentences_of](std::size_t i) { return sentences_of(i / kPersonSentences, false)[i % kPersonSentences]; },
            .starts_block = [](std::size_t i) { return i % kPersonSentences == 0; },
            .most = (kPeople - reserved) * kPersonSentences,
            .typical_tokens = 13};
  }
  constexpr std::size_t kBoth = kPersonSentences + kCompanySentences;
  return {.piece =
              [sentences_of](std::size_t i) {
                const std::size_t within = i % kBoth;
                if (within < kPersonSentences) return sentences_of(i / kBoth, false)[within];
                return sentences_of(i / kBoth, true)[within - kPersonSentences];
              },
          .starts_block = [](std::size_t i) { return i % kBoth == 0 || i % kBoth == kPersonSentences; },
          .most = (kCompanies - reserved) * kBoth,
          .typical_tokens = 13};
}

GoldPiece ArticleWorld::article(double depth, const Person& p, const std::vector<PersonFact>& facts) const {
  const Rng order = draw_rng(seed_, DrawStream::kArticleQuestion, sample_);
  const auto number = static_cast<std::uint64_t>(p.name[0]) + p.name.size();
  return gold_article(depth, p.name, person_sentences(p, Rng(order.at(number)), facts), fact_sentence(facts.front(), p));
}

GoldPiece ArticleWorld::article(double depth, const Company& c) const {
  Rng order = draw_rng(seed_, DrawStream::kArticleQuestion, sample_);
  return gold_article(depth, c.name, company_sentences(c, Rng(order.at(7))), owner_sentence(c));
}

}  // namespace kvartet
