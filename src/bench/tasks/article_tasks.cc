#include "bench/tasks/article_tasks.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/tasks/draw.h"
#include "bench/tasks/generated_task.h"
#include "bench/tasks/made_up_articles.h"

namespace kvartet {
namespace {

constexpr int kNewTokens = 32;
constexpr const char* kAsk = "\n\nUse the articles above to answer this question. What is ";
constexpr const char* kBefore = "Read these articles.\n\n";

PersonFact fact_of(int i) { return kPersonFacts[static_cast<std::size_t>(i) % std::size(kPersonFacts)]; }

// What turn `turn` of a chat asks about somebody else: never the kind of fact that the last turn asks for, whose value
// would stand in the prompt by chance.
PersonFact other_fact(int index, int turn) { return fact_of(index + 2 + (turn - 1) % 4); }

class DocQa : public GeneratedTask {
 public:
  DocQa() : GeneratedTask("docqa", "contains") {}

 protected:
  Result<Sample> make_sample(const TaskRequest& request, const Haystack&, int index) const override {
    const ArticleWorld world(request.seed, index);
    const Person person = world.person(0);
    const PersonFact fact = fact_of(index);
    Sample sample;
    sample.before = kBefore;
    sample.question = kAsk + fact_subject(fact, person.name) + "?";
    sample.answers = {fact_value(fact, person)};
    sample.gold = fact_sentence(fact, person);
    sample.max_new_tokens = kNewTokens;
    const double depth = even_depths(request.seed, DrawStream::kArticleQuestion, index, 1)[0];
    KV_TRY(fill_document(request, spec(), world.filler(1, /*with_companies=*/false), {world.article(depth, person, {fact})},
                         sample));
    return sample;
  }
};

// "the city in which the owner of Halden Rope Works was born": the company's article names the owner, the owner's article,
// apart from it, the city.
class MultiHop : public GeneratedTask {
 public:
  MultiHop() : GeneratedTask("multihop", "contains") {}

 protected:
  Result<Sample> make_sample(const TaskRequest& request, const Haystack&, int index) const override {
    const ArticleWorld world(request.seed, index);
    const Person person = world.person(0);
    const Company company = world.company(0);
    const PersonFact fact = fact_of(index);
    Sample sample;
    sample.before = kBefore;
    sample.question = kAsk + fact_subject(fact, "the owner of " + company.name) + "?";
    sample.answers = {fact_value(fact, person)};
    sample.gold = fmt::format("The owner of {} is {}. {}", company.name, person.name, fact_sentence(fact, person));
    sample.max_new_tokens = 2 * kNewTokens;
    const std::vector<double> depths = even_depths(request.seed, DrawStream::kArticleQuestion, index, 2);
    const bool person_first = (index / 2) % 2 == 1;
    std::vector<GoldPiece> gold;
    if (person_first) {
      gold = {world.article(depths[0], person, {fact}), world.article(depths[1], company)};
    } else {
      gold = {world.article(depths[0], company), world.article(depths[1], person, {fact})};
    }
    KV_TRY(fill_document(request, spec(), world.filler(1, /*with_companies=*/true), gold, sample));
    return sample;
  }
};

class Chat : public GeneratedTask {
 public:
  explicit Chat(int turns) : GeneratedTask(fmt::format("chat:turns={}", turns), "contains"), turns_(turns) {}

 protected:
  // Turns 1 to n - 1 are given with their answers; the last goes back to the person of the first and asks another fact.
  Result<Sample> make_sample(const TaskRequest& request, const Haystack&, int index) const override {
    const ArticleWorld world(request.seed, index);
    const PersonFact first = fact_of(index);
    const PersonFact last = fact_of(index + 1);
    const Person subject = world.person(0);
    Sample sample;
    sample.before = kBefore;
    sample.question = "\n\nThis is a conversation about the articles above.\n\n";
    const auto add_turn = [&](PersonFact fact, const Person& person) {
      sample.question +=
          fmt::format("Question: What is {}?\nAnswer: {}\n", fact_subject(fact, person.name), fact_sentence(fact, person));
    };
    add_turn(first, subject);
    for (int turn = 1; turn + 1 < turns_; ++turn) add_turn(other_fact(index, turn), world.person(static_cast<std::size_t>(turn)));
    sample.question += fmt::format("Question: Back to {}. What is {}?\n\nAnswer the last question.", subject.name,
                                   fact_subject(last, "this person"));
    sample.answers = {fact_value(last, subject)};
    sample.gold = fact_sentence(last, subject);
    sample.max_new_tokens = kNewTokens;
    KV_TRY(fill_document(request, spec(), world.filler(static_cast<std::size_t>(turns_), /*with_companies=*/false),
                         articles(world, request.seed, index, subject, first, last), sample));
    keep_subject(subject, last, sample);
    return sample;
  }

 private:
  // Everybody who is talked about has an article; the subject's depth goes evenly through the text over the samples.
  std::vector<GoldPiece> articles(const ArticleWorld& world, std::uint64_t seed, int index, const Person& subject,
                                  PersonFact first, PersonFact last) const {
    std::vector<GoldPiece> gold = {
        world.article(even_depths(seed, DrawStream::kArticleQuestion, index, 1)[0], subject, {last, first})};
    for (int turn = 1; turn + 1 < turns_; ++turn) {
      gold.push_back(
          world.article((turn - 0.5) / (turns_ - 2), world.person(static_cast<std::size_t>(turn)), {other_fact(index, turn)}));
    }
    std::stable_sort(gold.begin(), gold.end(), [](const GoldPiece& a, const GoldPiece& b) { return a.depth < b.depth; });
    return gold;
  }

  static void keep_subject(const Person& subject, PersonFact last, Sample& sample) {
    const std::string sentence = fact_sentence(last, subject);
    const std::size_t at = sample.document.find(sentence);
    sample.gold_spans = {{at, at + sentence.size()}};
  }

  int turns_;
};

Result<std::unique_ptr<Task>> make_docqa(const TaskSpec& spec) {
  if (!spec.set.empty()) return usage_error(fmt::format("The task docqa has no set '{}'.", spec.set));
  KV_TRY(TaskKeys(spec).status());
  return std::unique_ptr<Task>(std::make_unique<DocQa>());
}

Result<std::unique_ptr<Task>> make_multihop(const TaskSpec& spec) {
  if (!spec.set.empty()) return usage_error(fmt::format("The task multihop has no set '{}'.", spec.set));
  KV_TRY(TaskKeys(spec).status());
  return std::unique_ptr<Task>(std::make_unique<MultiHop>());
}

Result<std::unique_ptr<Task>> make_chat(const TaskSpec& spec) {
  if (!spec.set.empty()) return usage_error(fmt::format("The task chat has no set '{}'.", spec.set));
  TaskKeys keys(spec);
  const int turns = keys.whole("turns", 4, 2, 8);
  KV_TRY(keys.status());
  return std::unique_ptr<Task>(std::make_unique<Chat>(turns));
}

}  // namespace

TaskEntry docqa_task() {
  return {.name = "docqa",
          .keys = "",
          .metric = "contains",
          .summary = "one fact of one of many made-up articles",
          .make = make_docqa};
}

TaskEntry multihop_task() {
  return {.name = "multihop",
          .keys = "",
          .metric = "contains",
          .summary = "two facts that stand in made-up articles apart from each other",
          .make = make_multihop};
}

TaskEntry chat_task() {
  return {.name = "chat",
          .keys = "turns=4",
          .metric = "contains",
          .summary = "the last of several questions about made-up articles, which goes back to the first",
          .make = make_chat};
}

}  // namespace kvartet
