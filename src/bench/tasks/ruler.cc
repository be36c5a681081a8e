#include "bench/tasks/ruler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "bench/tasks/draw.h"
#include "bench/tasks/generated_document.h"
#include "bench/tasks/generated_task.h"
#include "bench/tasks/ruler_noise.h"
#include "bench/tasks/ruler_words.h"
#include "cache/spec_grammar.h"

namespace kvartet {
namespace {

enum class Hay : std::uint8_t { kNoise, kEssays, kNeedles };
enum class Token : std::uint8_t { kWord, kNumber, kIdentifier };

// One row of RULER's synthetic.yaml.
struct NeedleShape {
  std::string_view name;
  std::string_view summary;
  Hay hay = Hay::kEssays;
  Token key = Token::kWord;
  Token value = Token::kNumber;
  int keys = 1;     // needles of different keys in the text
  int values = 1;   // needles of the same key
  int queries = 1;  // keys asked for
};

constexpr NeedleShape kNeedleShapes[] = {
    {.name = "niah_single_1", .summary = "one number for one key in a text that repeats itself", .hay = Hay::kNoise},
    {.name = "niah_single_2", .summary = "one number for one key in essays"},
    {.name = "niah_single_3", .summary = "one 36-character identifier for one key in essays", .value = Token::kIdentifier},
    {.name = "niah_multikey_1", .summary = "four keys with a number each in essays, one asked for", .keys = 4},
    {.name = "niah_multikey_2", .summary = "one key among needles that fill the text", .hay = Hay::kNeedles},
    {.name = "niah_multikey_3",
     .summary = "as niah_multikey_2, keys and values are identifiers",
     .hay = Hay::kNeedles,
     .key = Token::kIdentifier,
     .value = Token::kIdentifier},
    {.name = "niah_multivalue", .summary = "four numbers for one key in essays", .values = 4},
    {.name = "niah_multiquery", .summary = "four keys in essays, all asked for", .keys = 4, .queries = 4},
};

constexpr int kNeedleNewTokens = 128;

std::string draw_token(Rng& rng, Token kind) {
  if (kind == Token::kWord) return key_word(rng);
  return kind == Token::kNumber ? long_number(rng) : identifier(rng);
}

struct Needle {
  std::string key;
  std::string value;
};

// Tasks that hide several keys and ask for one can ask for others of the same document.
bool takes_questions(const NeedleShape& shape) { return shape.name.starts_with("niah_multikey"); }

NeedleShape with_keys(NeedleShape shape, int least) {
  shape.keys = std::max(shape.keys, least);
  return shape;
}

class RulerNeedles : public DocumentTask {
 public:
  RulerNeedles(const std::string& spec, const NeedleShape& shape, int questions)
      : DocumentTask(spec_with_questions(spec, questions), "string_match"),
        shape_(with_keys(shape, questions)),
        questions_(questions) {}

 protected:
  bool needs_haystack() const override { return shape_.hay == Hay::kEssays; }

  Result<std::vector<Sample>> make_document(const TaskRequest& request, const Haystack& haystack, int index) const override {
    const std::vector<Needle> needles = draw_needles(request.seed, index);
    const std::vector<double> depths =
        even_depths(request.seed, DrawStream::kRulerDepths, index, static_cast<int>(needles.size()));
    std::vector<GoldPiece> pieces;
    for (std::size_t j = 0; j < needles.size(); ++j) pieces.push_back({depths[j], statement(needles[j]) + separator(), {}});

    std::vector<DocumentQuestion> questions;
    for (int i = 0; i < questions_; ++i)
      questions.push_back(question_about(needles, asked_needles(request.seed, index, i, needles)));
    return fill_shared_document(request, spec(), filler(request.seed, index, haystack, needles), pieces, std::move(questions));
  }

 private:
  DocumentQuestion question_about(const std::vector<Needle>& needles, std::vector<std::size_t> order) const {
    DocumentQuestion out;
    Sample& sample = out.sample;
    sample.before =
        fmt::format("The text below hides {0}s. Remember them, you will be asked for {0}s afterwards.\n\n", value_noun());
    std::vector<std::string> keys;
    for (const std::size_t j : order) {
      sample.answers.push_back(needles[j].value);
      if (keys.empty() || shape_.queries > 1) keys.push_back(needles[j].key);
    }
    sample.question = question(keys);
    sample.gold = gold(keys, sample.answers);
    sample.max_new_tokens = kNeedleNewTokens;
    std::sort(order.begin(), order.end());
    out.gold = std::move(order);  // needles that nobody asks for are no gold
    return out;
  }

  std::string value_noun() const { return shape_.value == Token::kNumber ? "hidden number" : "hidden code"; }
  std::string separator() const { return shape_.hay == Hay::kNeedles ? "\n" : " "; }
  std::string statement(const Needle& n) const { return fmt::format("A {} for {} is {}.", value_noun(), n.key, n.value); }

  std::string question(const std::vector<std::string>& keys) const {
    const bool many = shape_.values * shape_.queries > 1;
    return fmt::format("\n\n{} the {}{} for {} in the text above? Answer with {}.", many ? "What are all" : "What is",
                       value_noun(), many ? "s" : "", words_joined(keys), many ? "all of them" : "it alone");
  }

  std::string gold(const std::vector<std::string>& keys, const std::vector<std::string>& values) const {
    if (values.size() == 1) return fmt::format("The {} for {} is {}.", value_noun(), keys[0], values[0]);
    return fmt::format("The {}s for {} are {}.", value_noun(), words_joined(keys), words_joined(values));
  }

  std::vector<Needle> draw_needles(std::uint64_t seed, int index) const {
    Rng rng = draw_rng(seed, DrawStream::kRulerNeedles, index);
    std::set<std::string> seen;
    const auto fresh = [&](Token kind) {
      std::string text = draw_token(rng, kind);
      while (!seen.insert(text).second) text = draw_token(rng, kind);
      return text;
    };
    std::vector<Needle> needles;
    for (int k = 0; k < shape_.keys; ++k) {
      const std::string key = fresh(shape_.key);
      for (int v = 0; v < shape_.values; ++v) needles.push_back({key, fresh(shape_.value)});
    }
    return needles;
  }

  // Which needles are asked for, in random order. A single asked one takes every depth in turn over samples and questions.
  std::vector<std::size_t> asked_needles(std::uint64_t seed, int index, int question, const std::vector<Needle>& needles) const {
    const std::size_t asked = static_cast<std::size_t>(shape_.queries * shape_.values);
    if (asked == 1) return {static_cast<std::size_t>(asked_fact(index, question, static_cast<int>(needles.size())))};
    Rng rng = draw_rng(seed, DrawStream::kRulerStart, index);
    // Every needle is drawn in random order of depth, so the first `asked` are at random depths.
    std::vector<std::size_t> order = draw_distinct(rng, needles.size(), asked);
    if (shape_.queries == 1) std::sort(order.begin(), order.end());  // values of one key: as the text gives them
    return order;
  }

  Filler filler(std::uint64_t seed, int index, const Haystack& haystack, const std::vector<Needle>& needles) const {
    if (shape_.hay == Hay::kNoise) return noise_filler();
    if (shape_.hay == Hay::kEssays) {
      return essay_filler(haystack, draw_rng(seed, DrawStream::kRulerStart, index).at(1000) % haystack.sentences.size());
    }
    std::set<std::string> gold_keys;
    for (const Needle& needle : needles) gold_keys.insert(needle.key);
    const Rng base = draw_rng(seed, DrawStream::kRulerFiller, index);
    const auto distractor = [this, base, gold_keys](std::size_t i) {
      Rng rng(base.at(i));
      Needle n = {draw_token(rng, shape_.key), draw_token(rng, shape_.value)};
      while (gold_keys.contains(n.key)) n.key = draw_token(rng, shape_.key);
      return statement(n) + separator();
    };
    return {.piece = distractor, .starts_block = {}, .typical_tokens = shape_.key == Token::kWord ? 20.0 : 60.0};
  }

  NeedleShape shape_;
  int questions_;
};

struct ListTask {
  std::string_view name;
  std::string_view summary;
  std::unique_ptr<Task> (*make)(std::string spec);
};

constexpr ListTask kListTasks[] = {
    {"vt", "variables that are set to a value through a chain of four assignments", make_ruler_variable_tracking},
    {"cwe", "the ten words that a list repeats most", make_ruler_common_words},
    {"fwe", "the three most frequent coded words of a text", make_ruler_frequent_words},
};

}  // namespace

Filler noise_filler() {
  static constexpr std::array<std::string_view, 5> kNoise = {"The kettle is warm. ", "The street is quiet. ",
                                                             "A cloud hangs over the hill. ", "Somebody closes a door. ",
                                                             "We wait and look around. "};
  return {.piece = [](std::size_t i) { return std::string(kNoise[i % kNoise.size()]); }, .starts_block = {}, .typical_tokens = 6};
}

std::vector<TaskEntry> ruler_tasks() {
  std::vector<TaskEntry> entries;
  const auto add = [&](std::string_view name, std::string_view summary, const char* keys) {
    entries.push_back({.name = fmt::format("ruler/{}", name),
                       .keys = keys,
                       .metric = "string_match",
                       .summary = fmt::format("RULER's form: {}", summary),
                       .make = make_ruler_task});
  };
  for (const NeedleShape& shape : kNeedleShapes) add(shape.name, shape.summary, takes_questions(shape) ? "questions=1" : "");
  for (const ListTask& task : kListTasks) add(task.name, task.summary, "");
  return entries;
}

Result<std::unique_ptr<Task>> make_ruler_task(const TaskSpec& spec) {
  TaskKeys keys(spec);
  const auto found = std::ranges::find(kNeedleShapes, spec.set, &NeedleShape::name);
  const bool has_keys = found != std::end(kNeedleShapes) && takes_questions(*found);
  const int questions = has_keys ? keys.whole("questions", 1, 1, kMostQuestions) : 1;
  KV_TRY(keys.status());
  const std::string name = "ruler/" + spec.set;
  std::vector<std::string_view> names;
  for (const NeedleShape& shape : kNeedleShapes) {
    if (shape.name == spec.set) return std::unique_ptr<Task>(std::make_unique<RulerNeedles>(name, shape, questions));
    names.push_back(shape.name);
  }
  for (const ListTask& task : kListTasks) {
    if (task.name == spec.set) return task.make(name);
    names.push_back(task.name);
  }
  if (spec.set == "qa_1" || spec.set == "qa_2") {
    return usage_error(
        fmt::format("ruler/{} needs the texts of a question answering set, which Kvartet does not bring; longbench/hotpotqa "
                    "is a task of that kind.",
                    spec.set));
  }
  return usage_error(fmt::format("unknown RULER task {}; {}", kvartet::quoted(spec.set), choice_hint(spec.set, names, "ruler/")));
}

}  // namespace kvartet
