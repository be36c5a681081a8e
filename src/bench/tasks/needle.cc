#include "bench/tasks/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "bench/tasks/needle_facts.h"
#include "bench/tasks/needle_haystack.h"
#include "core/rng.h"

namespace kvartet {
namespace {

constexpr int kDefaultSamples = 20;
constexpr std::uint64_t kStartStream = std::uint64_t{3} << 32;
// A short clause has about 12 tokens, the long one of a single fact about 40.
constexpr int kNewTokensPerNeedle = 16;
constexpr int kNewTokens = 32;
constexpr double kTypicalSentence = 22;  // tokens

std::string words_joined(const std::vector<std::string>& parts) {
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += i + 1 == parts.size() ? " and " : ", ";
    out += parts[i];
  }
  return out;
}

// One fact is stated at length, several briefly. The words of an answer that only repeat the question cost no cache any
// likelihood, so they set how much one lost value weighs: with about 40 tokens an answer, a fifth of a nat per token.
std::string subject(const NeedleFact& fact, std::size_t facts) {
  if (facts > 1) return fmt::format("{} in {}", fact.name, fact.place);
  return fmt::format("the number of the locker that {} and a friend from school rented at the old railway station in the north of {} "
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
  return fmt::format("\n\nUse the text above to answer this question. What {}{}?", facts.size() > 1 ? "are the locker numbers of " : "is ",
                     words_joined(subjects));
}

// The facts restated as one sentence: what the likelihood is measured on.
std::string gold_text(const std::vector<NeedleFact>& facts) {
  std::vector<std::string> clauses;
  for (const NeedleFact& fact : facts) clauses.push_back(clause(fact, facts.size()));
  return sentence(words_joined(clauses));
}

// `sentences` sentences from `start` on, around the end if need be, with fact j in front of the sentence at its depth.
std::string document_text(const Haystack& haystack, std::size_t start, std::size_t sentences, const std::vector<NeedleFact>& facts,
                          const std::vector<double>& depths) {
  std::string out;
  std::size_t next = 0;
  for (std::size_t i = 0; i <= sentences; ++i) {
    while (next < facts.size() && static_cast<std::size_t>(depths[next] * static_cast<double>(sentences)) <= i) {
      out += sentence(clause(facts[next++], facts.size()));
      out += ' ';
    }
    if (i < sentences) out += haystack.sentences[(start + i) % haystack.sentences.size()];
  }
  while (!out.empty() && (out.back() == ' ' || out.back() == '\n')) out.pop_back();
  return out;
}

class NeedleTask : public Task {
 public:
  NeedleTask(std::string spec, int needles) : spec_(std::move(spec)), needles_(needles) {}

  std::string spec() const override { return spec_; }
  std::string metric() const override { return needles_ == 1 ? "contains" : "keywords"; }

  Result<SampleSet> samples(const TaskRequest& request) const override {
    KV_CHECK(request.files != nullptr && request.count_tokens);
    if (request.context_tokens <= 0) {
      return usage_error(fmt::format("The task {} needs a length: give --context T, for example 4096.", spec_));
    }
    KV_ASSIGN(const Haystack haystack, load_haystack(*request.files, request.data_dir));
    SampleSet out;
    const int count = request.samples > 0 ? request.samples : kDefaultSamples;
    for (int i = 0; i < count; ++i) {
      KV_ASSIGN(Sample sample, make_sample(haystack, request, i));
      out.samples.push_back(std::move(sample));
    }
    return out;
  }

 private:
  Result<Sample> make_sample(const Haystack& haystack, const TaskRequest& request, int index) const {
    std::vector<NeedleFact> facts = needle_facts(request.seed, index, needles_);
    const std::vector<double> depths = needle_depths(request.seed, index, needles_);
    const std::size_t start = Rng(request.seed, kStartStream | static_cast<std::uint32_t>(index)).below(haystack.sentences.size());

    Sample sample;
    sample.id = fmt::format("{}", index);
    sample.before = "Read this text.\n\n";
    // The draw is already in random order, so asking in depth order would tell nothing; sorting by name asks in another.
    std::vector<NeedleFact> asked = facts;
    std::sort(asked.begin(), asked.end(), [](const NeedleFact& a, const NeedleFact& b) { return a.name < b.name; });
    sample.question = question_text(asked);
    sample.gold = gold_text(asked);
    for (const NeedleFact& fact : asked) sample.answers.push_back(fact.value);
    sample.depths = depths;
    sample.max_new_tokens = kNewTokens + kNewTokensPerNeedle * needles_;
    KV_TRY(fill_document(haystack, request, start, facts, depths, sample));
    sample.length = static_cast<int>(std::count(sample.document.begin(), sample.document.end(), ' ')) + 1;
    return sample;
  }

  // The most sentences whose whole prompt stays within the tokens asked for.
  Status fill_document(const Haystack& haystack, const TaskRequest& request, std::size_t start, const std::vector<NeedleFact>& facts,
                       const std::vector<double>& depths, Sample& sample) const {
    const auto tokens_with = [&](std::size_t sentences) {
      sample.document = document_text(haystack, start, sentences, facts, depths);
      return request.count_tokens(sample.prompt());
    };
    KV_ASSIGN(const int least, tokens_with(0));
    if (least > request.context_tokens) {
      return exhausted(fmt::format("The task {} needs at least {} tokens for its facts and question, but only {} remain for the prompt; "
                                   "give a larger --context.",
                                   spec_, least, request.context_tokens));
    }
    // Tokens grow with sentences almost evenly, so interpolation needs few of the costly counts; every third step halves
    // the interval in case it does not.
    std::size_t low = 0;
    std::size_t high = 0;  // 0: no count above the limit seen yet
    int low_tokens = least;
    double tokens_per_sentence = kTypicalSentence;
    for (int step = 0; high == 0 || low + 1 < high; ++step) {
      const auto reach = static_cast<std::size_t>((request.context_tokens - low_tokens) / tokens_per_sentence);
      std::size_t next = low + reach + 1;
      if (high != 0) next = step % 3 == 2 ? low + (high - low) / 2 : std::clamp(low + reach, low + 1, high - 1);
      KV_ASSIGN(const int tokens, tokens_with(next));
      if (next > low && tokens > least) tokens_per_sentence = std::max(1.0, (tokens - low_tokens) / static_cast<double>(next - low));
      if (tokens <= request.context_tokens) {
        low = next;
        low_tokens = tokens;
      } else {
        high = next;
      }
    }
    KV_ASSIGN(const int tokens, tokens_with(low));
    KV_CHECK(tokens <= request.context_tokens);
    return {};
  }

  std::string spec_;
  int needles_;
};

Result<int> needle_count(const TaskSpec& spec, int fallback) {
  if (!spec.set.empty()) return usage_error(fmt::format("The task {} has no set '{}'; write {}:k=4.", spec.name, spec.set, spec.name));
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
