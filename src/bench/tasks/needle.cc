#include "bench/tasks/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

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

class NeedleTask : public GeneratedTask {
 public:
  NeedleTask(std::string spec, int needles)
      : GeneratedTask(std::move(spec), needles == 1 ? "contains" : "keywords"), needles_(needles) {}

 protected:
  bool needs_haystack() const override { return true; }

  Result<Sample> make_sample(const TaskRequest& request, const Haystack& haystack, int index) const override {
    std::vector<NeedleFact> facts = needle_facts(request.seed, index, needles_);
    const std::vector<double> depths = even_depths(request.seed, DrawStream::kNeedleDepths, index, needles_);
    const std::size_t start = draw_rng(request.seed, DrawStream::kNeedleStart, index).below(haystack.sentences.size());
    std::vector<GoldPiece> gold;
    for (std::size_t j = 0; j < facts.size(); ++j)
      gold.push_back({depths[j], sentence(clause(facts[j], facts.size())) + " ", {}});

    Sample sample;
    sample.before = "Read this text.\n\n";
    // The draw is already in random order, so asking in depth order would tell nothing; sorting by name asks in another.
    std::sort(facts.begin(), facts.end(), [](const NeedleFact& a, const NeedleFact& b) { return a.name < b.name; });
    sample.question = question_text(facts);
    sample.gold = gold_text(facts);
    for (const NeedleFact& fact : facts) sample.answers.push_back(fact.value);
    sample.max_new_tokens = kNewTokens + kNewTokensPerNeedle * needles_;
    KV_TRY(fill_document(request, spec(), essay_filler(haystack, start), gold, sample));
    return sample;
  }

 private:
  int needles_;
};

Result<int> needle_count(const TaskSpec& spec, int fallback) {
  if (!spec.set.empty())
    return usage_error(fmt::format("The task {} has no set '{}'; write {}:k=4.", spec.name, spec.set, spec.name));
  int count = fallback;
  for (const auto& [key, value] : spec.keys) {
    if (key != "k" || spec.name == "needle") {
      return usage_error(fmt::format("The task {} does not know the key '{}'{}.", spec.name, key,
                                     spec.name == "needle" ? "; for several facts use multineedle:k=4" : "; its only key is k"));
    }
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), count);
    if (error != std::errc() || end != value.data() + value.size() || count < 1 || count > kMaxNeedles) {
      return usage_error(fmt::format("The task {} takes k from 1 to {}, not '{}'.", spec.name, kMaxNeedles, value));
    }
  }
  return count;
}

Result<std::unique_ptr<Task>> make_needle(const TaskSpec& spec) {
  KV_ASSIGN(const int count, needle_count(spec, 1));
  return std::unique_ptr<Task>(std::make_unique<NeedleTask>("needle", count));
}

Result<std::unique_ptr<Task>> make_multineedle(const TaskSpec& spec) {
  KV_ASSIGN(const int count, needle_count(spec, 4));
  return std::unique_ptr<Task>(std::make_unique<NeedleTask>(fmt::format("multineedle:k={}", count), count));
}

}  // namespace

TaskEntry needle_task() {
  return {.name = "needle",
          .keys = "",
          .metric = "contains",
          .summary = "one made-up fact hidden in essays, asked for at the end",
          .make = make_needle};
}

TaskEntry multineedle_task() {
  return {.name = "multineedle",
          .keys = "k=4",
          .metric = "keywords",
          .summary = "k made-up facts hidden in essays, all asked for at the end",
          .make = make_multineedle};
}

}  // namespace kvartet
