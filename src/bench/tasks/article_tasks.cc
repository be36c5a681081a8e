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

// What document `document` tells of its person `i`, of as many as it has questions.
PersonFact told_fact(int document, int i, int questions) { return fact_of(document * questions + i); }

// What turn `turn` of a chat asks about somebody else: never the kind of fact that the last turn asks for, whose value
// would stand in the prompt by chance.
PersonFact other_fact(int index, int turn) { return fact_of(index + 2 + (turn - 1) % 4); }

class DocQa : public DocumentTask {
 public:
  explicit DocQa(int questions) : DocumentTask(spec_with_questions("docqa", questions), "contains"), questions_(questions) {}

 protected:
  Result<std::vector<Sample>> make_document(const TaskRequest& request, const Haystack&, int index) const override {
    const ArticleWorld world(request.seed, index);
    const std::vector<double> depths = even_depths(request.seed, DrawStream::kArticleQuestion, index, questions_);
    std::vector<GoldPiece> gold;
    for (int i = 0; i < questions_; ++i) {
      const auto at = static_cast<std::size_t>(i);
      gold.push_back(world.article(depths[at], world.person(at), {told_fact(index, i, questions_)}));
    }
    std::vector<DocumentQuestion> questions;
    for (int i = 0; i < questions_; ++i) questions.push_back(question(world, index, asked_fact(index, i, questions_)));
    const Filler filler = world.filler(static_cast<std::size_t>(questions_), /*with_companies=*/false);
    return fill_shared_document(request, spec(), filler, gold, std::move(questions));
  }

 private:
  DocumentQuestion question(const ArticleWorld& world, int index, int asked) const {
    const auto at = static_cast<std::size_t>(asked);
    const Person person = world.person(at);
    const PersonFact fact = told_fact(index, asked, questions_);
    DocumentQuestion out;
    out.gold = {at};
    Sample& sample = out.sample;
    sample.before = kBefore;
    sample.question = kAsk + fact_subject(fact, person.name) + "?";
    sample.answers = {fact_value(fact, person)};
    sample.gold = fact_sentence(fact, person);
    sample.max_new_tokens = kNewTokens;
    return out;
  }

  int questions_;
};

// "the city in which the owner of Halden Rope Works was born": the company's article names the owner, the owner's article,
// apart from it, the city. Pair i of articles stands at depths i and i + (number of pairs): half the text apart.
class MultiHop : public DocumentTask {
 public:
  explicit MultiHop(int questions)
      : DocumentTask(spec_with_questions("multihop", questions), "contains"), questions_(questions) {}

 protected:
  Result<std::vector<Sample>> make_document(const TaskRequest& request, const Haystack&, int index) const override {
    const ArticleWorld world(request.seed, index);
    const std::vector<double> depths = even_depths(request.seed, DrawStream::kArticleQuestion, index, 2 * questions_);
    std::vector<GoldPiece> front;
    std::vector<GoldPiece> back;
    for (int i = 0; i < questions_; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double first = depths[at];
      const double second = depths[at + static_cast<std::size_t>(questions_)];
      const bool person_first = ((index + i) / 2) % 2 == 1;
      front.push_back(person_first ? world.article(first, world.person(at), {told_fact(index, i, questions_)})
                                   : world.article(first, world.company(at)));
      back.push_back(person_first ? world.article(second, world.company(at))
                                  : world.article(second, world.person(at), {told_fact(index, i, questions_)}));
    }
    front.insert(front.end(), back.begin(), back.end());
    std::vector<DocumentQuestion> questions;
    for (int i = 0; i < questions_; ++i) questions.push_back(question(world, index, asked_fact(index, i, questions_)));
    const Filler filler = world.filler(static_cast<std::size_t>(questions_), /*with_companies=*/true);
    return fill_shared_document(request, spec(), filler, front, std::move(questions));
  }

 private:
  DocumentQuestion question(const ArticleWorld& world, int index, int asked) const {
    const auto at = static_cast<std::size_t>(asked);
    const Person person = world.person(at);
    const Company company = world.company(at);
    const PersonFact fact = told_fact(index, asked, questions_);
    DocumentQuestion out;
    out.gold = {at, at + static_cast<std::size_t>(questions_)};
    Sample& sample = out.sample;
    sample.before = kBefore;
    sample.question = kAsk + fact_subject(fact, "the owner of " + company.name) + "?";
    sample.answers = {fact_value(fact, person)};
    sample.gold = fmt::format("The owner of {} is {}. {}", company.name, person.name, fact_sentence(fact, person));
    sample.max_new_tokens = 2 * kNewTokens;
    return out;
  }

  int questions_;
};

// Turns 1 to n - 1 are given with their answers; the last goes back to the person of the first and asks another fact. Several
// conversations about one document differ in that person.
class Chat : public DocumentTask {
 public:
  Chat(int turns, int questions)
      : DocumentTask(spec_with_questions(fmt::format("chat:turns={}", turns), questions), "contains"),
        turns_(turns),
        questions_(questions) {}

 protected:
  Result<std::vector<Sample>> make_document(const TaskRequest& request, const Haystack&, int index) const override {
    const ArticleWorld world(request.seed, index);
    std::vector<DocumentQuestion> conversations;
    for (int i = 0; i < questions_; ++i) {
      conversations.push_back(
          {conversation(world, index, world.person(static_cast<std::size_t>(asked_fact(index, i, questions_)))), {}});
    }
    const Filler filler = world.filler(static_cast<std::size_t>(questions_ - 1 + turns_), /*with_companies=*/false);
    KV_ASSIGN(std::vector<Sample> samples,
              fill_shared_document(request, spec(), filler, articles(world, request.seed, index), std::move(conversations)));
    for (Sample& sample : samples) keep_subject(sample);
    return samples;
  }

 private:
  static PersonFact first_fact(int index) { return fact_of(index); }
  static PersonFact last_fact(int index) { return fact_of(index + 1); }
  // Who is talked about in between.
  Person other(const ArticleWorld& world, int turn) const {
    return world.person(static_cast<std::size_t>(questions_ - 1 + turn));
  }

  Sample conversation(const ArticleWorld& world, int index, const Person& subject) const {
    const PersonFact first = first_fact(index);
    const PersonFact last = last_fact(index);
    Sample sample;
    sample.before = kBefore;
    sample.question = "\n\nThis is a conversation about the articles above.\n\n";
    const auto add_turn = [&](PersonFact fact, const Person& person) {
      sample.question +=
          fmt::format("Question: What is {}?\nAnswer: {}\n", fact_subject(fact, person.name), fact_sentence(fact, person));
    };
    add_turn(first, subject);
    for (int turn = 1; turn + 1 < turns_; ++turn) add_turn(other_fact(index, turn), other(world, turn));
    sample.question += fmt::format("Question: Back to {}. What is {}?\n\nAnswer the last question.", subject.name,
                                   fact_subject(last, "this person"));
    sample.answers = {fact_value(last, subject)};
    sample.gold = fact_sentence(last, subject);
    sample.max_new_tokens = kNewTokens;
    return sample;
  }

  // Everybody who is talked about has an article; the subjects' depths go evenly through the text over the samples.
  std::vector<GoldPiece> articles(const ArticleWorld& world, std::uint64_t seed, int index) const {
    const std::vector<double> depths = even_depths(seed, DrawStream::kArticleQuestion, index, questions_);
    std::vector<GoldPiece> gold;
    for (std::size_t i = 0; i < depths.size(); ++i)
      gold.push_back(world.article(depths[i], world.person(i), {last_fact(index), first_fact(index)}));
    for (int turn = 1; turn + 1 < turns_; ++turn) {
      gold.push_back(world.article((turn - 0.5) / (turns_ - 2), other(world, turn), {other_fact(index, turn)}));
    }
    std::stable_sort(gold.begin(), gold.end(), [](const GoldPiece& a, const GoldPiece& b) { return a.depth < b.depth; });
    return gold;
  }

  static void keep_subject(Sample& sample) {
    const std::size_t at = sample.document.find(sample.gold);
    sample.gold_spans = {{at, at + sample.gold.size()}};
  }

  int turns_;
  int questions_;
};

Result<std::unique_ptr<Task>> make_docqa(const TaskSpec& spec) {
  if (!spec.set.empty()) return usage_error(fmt::format("The task docqa has no set '{}'.", spec.set));
  TaskKeys keys(spec);
  const int questions = keys.whole("questions", 1, 1, kMostQuestions);
  KV_TRY(keys.status());
  return std::unique_ptr<Task>(std::make_unique<DocQa>(questions));
}

Result<std::unique_ptr<Task>> make_multihop(const TaskSpec& spec) {
  if (!spec.set.empty()) return usage_error(fmt::format("The task multihop has no set '{}'.", spec.set));
  TaskKeys keys(spec);
  const int questions = keys.whole("questions", 1, 1, kMostQuestions);
  KV_TRY(keys.status());
  return std::unique_ptr<Task>(std::make_unique<MultiHop>(questions));
}

Result<std::unique_ptr<Task>> make_chat(const TaskSpec& spec) {
  if (!spec.set.empty()) return usage_error(fmt::format("The task chat has no set '{}'.", spec.set));
  TaskKeys keys(spec);
  const int turns = keys.whole("turns", 4, 2, 8);
  const int questions = keys.whole("questions", 1, 1, kMostQuestions);
  KV_TRY(keys.status());
  return std::unique_ptr<Task>(std::make_unique<Chat>(turns, questions));
}

}  // namespace

TaskEntry docqa_task() {
  return {.name = "docqa",
          .keys = "questions=1",
          .metric = "contains",
          .summary = "one fact of one of many made-up articles",
          .make = make_docqa};
}

TaskEntry multihop_task() {
  return {.name = "multihop",
          .keys = "questions=1",
          .metric = "contains",
          .summary = "two facts that stand in made-up articles apart from each other",
          .make = make_multihop};
}

TaskEntry chat_task() {
  return {.name = "chat",
          .keys = "turns=4,questions=1",
          .metric = "contains",
          .summary = "the last of several questions about made-up articles, which goes back to the first",
          .make = make_chat};
}

}  // namespace kvartet
