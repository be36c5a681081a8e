// RULER's tasks without a single place to look at: variable tracking, common words, frequent words.
#include <fmt/format.h>

#include <algorithm>
#include <numbers>
#include <set>

#include "bench/tasks/draw.h"
#include "bench/tasks/generated_document.h"
#include "bench/tasks/generated_task.h"
#include "bench/tasks/ruler.h"
#include "bench/tasks/ruler_noise.h"
#include "bench/tasks/ruler_words.h"

namespace kvartet {
namespace {

constexpr int kShortContext = 4096;  // below it RULER repeats the common words less often

std::string list_of(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ", ")); }

template <typename T>
void shuffle(Rng& rng, std::vector<T>& items) {
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[rng.below(i)]);
}

class VariableTracking : public GeneratedTask {
 public:
  static constexpr int kHops = 4;
  explicit VariableTracking(std::string spec) : GeneratedTask(std::move(spec), "string_match") {}

 protected:
  Result<Sample> make_sample(const TaskRequest& request, const Haystack&, int index) const override {
    Rng rng = draw_rng(request.seed, DrawStream::kRulerVariables, index);
    std::set<std::string> seen;
    std::vector<std::string> names;
    while (names.size() <= kHops) {
      if (const std::string name = variable_name(rng); seen.insert(name).second) names.push_back(name);
    }
    const std::string value = std::to_string(10'000 + rng.below(90'000));
    const std::vector<double> depths = even_depths(request.seed, DrawStream::kRulerDepths, index, kHops + 1);
    std::vector<GoldPiece> chain;
    for (std::size_t j = 0; j < names.size(); ++j) {
      chain.push_back({depths[j], fmt::format("VAR {} = {}. ", names[j], j == 0 ? value : "VAR " + names[j - 1]), {}});
    }
    Sample sample;
    sample.before =
        "A text hides assignments to variables. Find every variable that has the value asked for, directly or through other "
        "variables.\n\n"
        "Example: VAR QQA = 11111. The day is long. VAR QQB = VAR QQA. Birds sing. VAR QQC = VAR QQB.\n"
        "Variables with the value 11111: QQA, QQB, QQC\n\nText: ";
    sample.question = fmt::format("\n\nList the {} variables of the text that have the value {}.", kHops + 1, value);
    sample.answers = names;
    sample.gold = fmt::format("Variables with the value {}: {}", value, list_of(names));
    sample.max_new_tokens = 30 + 2 * kHops;  // RULER's 30, and room for an introduction
    KV_TRY(fill_document(request, spec(), noise_filler(), chain, sample));
    return sample;
  }
};

// A numbered list of words, shuffled.
std::string numbered(const std::vector<std::string>& words) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) out += fmt::format("{}. {} ", i + 1, words[i]);
  if (!out.empty()) out.pop_back();
  return out;
}

class CommonWords : public GeneratedTask {
 public:
  static constexpr std::size_t kCommon = 10;
  explicit CommonWords(std::string spec) : GeneratedTask(std::move(spec), "string_match") {}

 protected:
  Result<Sample> make_sample(const TaskRequest& request, const Haystack&, int index) const override {
    Rng rng = draw_rng(request.seed, DrawStream::kRulerWords, index);
    const std::vector<std::string> order = words_in_order(rng);
    const std::vector<std::string> common(order.begin(), order.begin() + kCommon);
    const int often = request.context_tokens < kShortContext ? 6 : 30;
    const int seldom = request.context_tokens < kShortContext ? 1 : 3;
    const Rng shuffler(rng.next());

    Sample sample;
    sample.before =
        "A numbered list repeats some words more often than others. Name the words that it repeats most.\n\n"
        "Example: 1. mill 2. rose 3. lamp 4. mill 5. rope 6. lamp 7. mill 8. lamp\nThe 2 most common words: mill, lamp\n\nList: ";
    sample.question = fmt::format("\n\nWhat are the {} most common words of the list?", kCommon);
    sample.answers = common;
    sample.gold = fmt::format("The {} most common words: {}", kCommon, list_of(common));
    sample.max_new_tokens = 120;
    const FitWish wish = {.task = spec(), .most = order.size() - kCommon, .typical_tokens = 7.0 * seldom};
    KV_TRY(fit_units(request, wish, sample, [&](std::size_t uncommon) {
             std::vector<std::string> words;
             for (const std::string& word : common) words.insert(words.end(), static_cast<std::size_t>(often), word);
             for (std::size_t i = 0; i < uncommon; ++i) {
               words.insert(words.end(), static_cast<std::size_t>(seldom), order[kCommon + i]);
             }
             Rng fresh = shuffler;
             shuffle(fresh, words);
             sample.document = numbered(words);
             sample.length = word_count(sample.document);
           }).status());
    return sample;
  }

 private:
  // The common words, then the uncommon ones: plain nouns while there are any, then compounds without a common word in
  // them, so that naming an uncommon word never looks like naming a common one.
  static std::vector<std::string> words_in_order(Rng& rng) {
    std::vector<std::string> words;
    for (const std::size_t i : draw_distinct(rng, kPlainNouns, kPlainNouns)) words.push_back(plain_word(i));
    const std::vector<std::string> common(words.begin(), words.begin() + kCommon);
    for (const std::size_t i : draw_distinct(rng, kPlainWords - kPlainNouns, kPlainWords - kPlainNouns)) {
      std::string word = plain_word(kPlainNouns + i);
      const bool has_common =
          std::any_of(common.begin(), common.end(), [&](const std::string& c) { return word.find(c) != std::string::npos; });
      if (!has_common) words.push_back(std::move(word));
    }
    return words;
  }
};

class FrequentWords : public GeneratedTask {
 public:
  static constexpr std::size_t kRanks = 500;
  static constexpr std::size_t kAsked = 3;
  explicit FrequentWords(std::string spec) : GeneratedTask(std::move(spec), "string_match") {}

 protected:
  Result<Sample> make_sample(const TaskRequest& request, const Haystack&, int index) const override {
    Rng rng = draw_rng(request.seed, DrawStream::kRulerWords, index);
    std::vector<std::string> vocabulary = {"...."};  // rank 1 is noise, as in RULER
    std::set<std::string> seen;
    while (vocabulary.size() < kRanks) {
      if (const std::string word = coded_word(rng); seen.insert(word).second) vocabulary.push_back(word);
    }
    const Rng shuffler(rng.next());
    Sample sample;
    sample.before =
        "The coded text below is made of words without a meaning. Ignore the dots '....' and find the words that come most "
        "often.\n\n";
    sample.question = fmt::format("\n\nWhat are the {} words that come most often in the coded text?", kAsked);
    sample.answers.assign(vocabulary.begin() + 1, vocabulary.begin() + 1 + kAsked);
    sample.gold = fmt::format("The {} words that come most often: {}", kAsked, list_of(sample.answers));
    sample.max_new_tokens = 50;
    // Below 72 words the ranks 2 to 4 have too few occurrences to be told apart.
    const FitWish wish = {.task = spec(), .least = 72, .typical_tokens = 2.5};
    KV_TRY(fit_units(request, wish, sample, [&](std::size_t words) {
             Rng fresh = shuffler;
             sample.document = coded_text(vocabulary, words, fresh);
             sample.length = word_count(sample.document);
           }).status());
    return sample;
  }

 private:
  // Word of rank k (from 1) comes floor(words * k^-2 / zeta(2)) times.
  static std::string coded_text(const std::vector<std::string>& vocabulary, std::size_t words, Rng& rng) {
    constexpr double kZetaOfTwo = std::numbers::pi * std::numbers::pi / 6;
    std::vector<std::string> text;
    for (std::size_t rank = 1; rank <= vocabulary.size(); ++rank) {
      const double share = 1 / (static_cast<double>(rank * rank) * kZetaOfTwo);
      text.insert(text.end(), static_cast<std::size_t>(static_cast<double>(words) * share), vocabulary[rank - 1]);
    }
    shuffle(rng, text);
    return fmt::format("{}", fmt::join(text, " "));
  }
};

}  // namespace

std::unique_ptr<Task> make_ruler_variable_tracking(std::string spec) {
  return std::make_unique<VariableTracking>(std::move(spec));
}
std::unique_ptr<Task> make_ruler_common_words(std::string spec) { return std::make_unique<CommonWords>(std::move(spec)); }
std::unique_ptr<Task> make_ruler_frequent_words(std::string spec) { return std::make_unique<FrequentWords>(std::move(spec)); }

}  // namespace kvartet
