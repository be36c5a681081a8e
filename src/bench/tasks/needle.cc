#include "bench/tasks/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "bench/tasks/draw.h"
#include "bench/tasks/generated_document.h"
#include "bench/tasks/generated_task.h"
#include "bench/tasks/needle_facts.h"

namespace kvartet {
namespace {

// A short clause has about 12 tokens, the long one of a single fact about 40.
constexpr int kNewTokensPerNeedle = 16;
constexpr int kNewTokens = 32;

// One fact is stated at length, several briefly. The words of an answer that only repeat the question cost no cache any
// likelihood, so they set how much one lost value weighs: with about 40 tokens an answer, a fifth of a nat per token.
std::string subject(const NeedleFact& fact, std::size_t facts) {
  if (facts > 1) return fmt::format("{} in {}", fact.name, fact.place);
  return fmt::format(
      "the number of the locker that {} and a friend from school rented at the old railway station in the north of {} "
      "for the whole summer of last year",
      fact.name, fact.place);
}

std::string clause(const NeedleFact& fact, std::size_t facts) {
  return fmt::format("{}{} is {}", facts > 1 ? "the locker number of " : "", subject(fact, facts), fact.value);
}

std::string sentence(std::string text) {
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text + ".";
}

std::string question_text(const std::vector<NeedleFact>& facts) {
  std::vector<std::string> subjects;
  for (const NeedleFact& fact : facts) subjects.push_back(subject(fact, facts.size()));
  return fmt::format("\n\nUse the text above to answer this question. What {}{}?",
                     facts.size() > 1 ? "are the locker numbers of " : "is ", words_joined(subjects));
}

// The facts restated as one sentence: what the likelihood is measured on.
std::string gold_text(const std::vector<NeedleFact>& facts) {
  std::vector<std::string> clauses;
  for (const NeedleFact& fact : facts) clauses.push_back(clause(fact, facts.size()));
  return sentence(words_joined(clauses));
}

// `needles` facts are asked for in each of `questions` questions about a document, which hides them all. Those of one question
// lie evenly through the text.
class NeedleTask : public DocumentTask {
 public:
  NeedleTask(const std::string& spec, int needles, int questions)
      : DocumentTask(spec_with_questions(spec, questions), needles == 1 ? "contains" : "keywords"),
        needles_(needles),
        questions_(questions) {}

 protected:
  bool needs_haystack() const override { return true; }

  Result<std::vector<Sample>> make_document(const TaskRequest& request, const Haystack& haystack, int index) const override {
    const int hidden = needles_ * questions_;
    const std::vector<NeedleFact> facts = needle_facts(request.seed, index, hidden);
    const std::vector<double> depths = even_depths(request.seed, DrawStream::kNeedleDepths, index, hidden);
    const std::size_t start = draw_rng(request.seed, DrawStream::kNeedleStart, index).below(haystack.sentences.size());
    std::vector<GoldPiece> gold;
    for (std::size_t j = 0; j < facts.size(); ++j)
      gold.push_back({depths[j], sentence(clause(facts[j], static_cast<std::size_t>(needles_))) + " ", {}});
    std::vector<DocumentQuestion> questions;
    for (int i = 0; i < questions_; ++i) questions.push_back(question(facts, asked_fact(index, i, questions_)));
    return fill_shared_document(request, spec(), essay_filler(haystack, start), gold, std::move(questions));
  }

 private:
  // About facts first, first + questions, ...
  DocumentQuestion question(const std::vector<NeedleFact>& all, int first) const {
    DocumentQuestion out;
    std::vector<NeedleFact> facts;
    for (auto j = static_cast<std::size_t>(first); j < all.size(); j += static_cast<std::size_t>(questions_)) {
      out.gold.push_back(j);
      facts.push_back(all[j]);
    }
    Sample& sample = out.sample;
    sample.before = "Read this text.\n\n";
    // The draw is already in random order, so asking in depth order would tell nothing; sorting by name asks in another.
    std::sort(facts.begin(), facts.end(), [](const NeedleFact& a, const NeedleFact& b) { return a.name < b.name; });
    sample.question = question_text(facts);
    sample.gold = gold_text(facts);
    for (const NeedleFact& fact : facts) sample.answers.push_back(fact.value);
    sample.max_new_tokens = kNewTokens + kNewTokensPerNeedle * needles_;
    return out;
  }

  int needles_;
  int questions_;
};

Status refuse_set(const TaskSpec& spec) {
  if (spec.set.empty()) return {};
  return usage_error(fmt::format("The task {} has no set '{}'; write multineedle:k=4.", spec.name, spec.set));
}

Result<std::unique_ptr<Task>> make_needle(const TaskSpec& spec) {
  KV_TRY(refuse_set(spec));
  TaskKeys keys(spec);
  const int questions = keys.whole("questions", 1, 1, kMaxNeedles);
  const Status status = keys.status();
  if (!status.ok())
    return usage_error(fmt::format("{} For several facts in one question use multineedle:k=4.", status.message()));
  return std::unique_ptr<Task>(std::make_unique<NeedleTask>("needle", 1, questions));
}

Result<std::unique_ptr<Task>> make_multineedle(const TaskSpec& spec) {
  KV_TRY(refuse_set(spec));
  TaskKeys keys(spec);
  const int count = keys.whole("k", 4, 1, kMaxNeedles);
  const int questions = keys.whole("questions", 1, 1, kMaxNeedles / count);
  KV_TRY(keys.status());
  return std::unique_ptr<Task>(std::make_unique<NeedleTask>(fmt::format("multineedle:k={}", count), count, questions));
}

}  // namespace

TaskEntry needle_task() {
  return {.name = "needle",
          .keys = "questions=1",
          .metric = "contains",
          .summary = "one made-up fact hidden in essays, asked for at the end",
          .make = make_needle};
}

TaskEntry multineedle_task() {
  return {.name = "multineedle",
          .keys = "k=4,questions=1",
          .metric = "keywords",
          .summary = "k made-up facts hidden in essays, all asked for at the end",
          .make = make_multineedle};
}

}  // namespace kvartet
