// A small made-up world: short articles about people and companies whose facts nobody can know without reading them.
// The documents of docqa, multihop and chat.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/tasks/generated_document.h"

namespace kvartet {

struct Person {
  std::string name;        // "Marta Brown"
  std::string birthplace;  // "Lisbon"
  std::string home;        // another place
  std::string work;        // "carpenter"
  std::string pet;         // "heron"
  std::string instrument;  // "cello"
  std::string drink;       // "plum juice"
};

struct Company {
  std::string name;     // "Halden Rope Works"
  std::string product;  // "ropes"
  std::string place;
  std::string owner;  // a person's name
};

enum class PersonFact : std::uint8_t { kBirthplace, kWork, kPet, kInstrument, kDrink };
inline constexpr PersonFact kPersonFacts[] = {PersonFact::kBirthplace, PersonFact::kWork, PersonFact::kPet,
                                              PersonFact::kInstrument, PersonFact::kDrink};

// "the city in which Marta Brown was born"; `who` may also be "this person" or "the owner of Halden Rope Works".
std::string fact_subject(PersonFact fact, const std::string& who);
const std::string& fact_value(PersonFact fact, const Person& person);
// "The city in which Marta Brown was born is Lisbon." As the article says it.
std::string fact_sentence(PersonFact fact, const Person& person);

// People and companies of one sample. Those with an index below `reserved` are in no filler: they are the sample's own.
class ArticleWorld {
 public:
  ArticleWorld(std::uint64_t seed, int sample);
  Person person(std::size_t i) const;    // different names for i < kPeople
  Company company(std::size_t i) const;  // different names for i < kCompanies; the owner is person(i + kOwnerShift)
  static constexpr std::size_t kPeople = 1600;
  static constexpr std::size_t kCompanies = 600;

  // Articles of one sentence per piece, people and companies in turn if `with_companies`, else people alone.
  Filler filler(std::size_t reserved, bool with_companies) const;

  // A whole article as a gold piece; the span is the sentence of the first of `facts` (one to three, all of them told), or
  // of the owner.
  GoldPiece article(double depth, const Person& person, const std::vector<PersonFact>& facts) const;
  GoldPiece article(double depth, const Company& company) const;

 private:
  std::uint64_t seed_;
  int sample_;
  std::vector<std::size_t> first_;  // orders of the names
  std::vector<std::size_t> last_;
  std::vector<std::size_t> companies_;
};

}  // namespace kvartet
