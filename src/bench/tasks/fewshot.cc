#include "bench/tasks/fewshot.h"

#include <fmt/format.h>

#include <array>
#include <set>
#include <utility>

#include "bench/tasks/draw.h"
#include "bench/tasks/generated_document.h"
#include "bench/tasks/generated_task.h"

namespace kvartet {
namespace {

using Words = std::string_view;

// A kind of sentence: patterns with two slots, and what may stand in them.
struct Kind {
  std::array<Words, 4> patterns;
  std::array<Words, 8> first;
  std::array<Words, 8> second;
};

constexpr std::array<Kind, 6> kKinds = {{
    {{"Rain and {} are expected in {} tonight.", "The {} over {} will last until Friday.",
      "After days of {} the sky over {} is clear again.", "Farmers in {1} hope that the {0} ends soon."},
     {"wind", "fog", "snow", "hail", "thunder", "frost", "heat", "storm"},
     {"Norway", "the valley", "Texas", "the islands", "Kansas", "the north", "Scotland", "the mountains"}},
    {{"Fry the {} in butter and add some {}.", "The soup of {} needs more {}.", "We ate {} with {} for dinner.",
      "Mix the {1} with the {0} and bake it for an hour."},
     {"onions", "potatoes", "mushrooms", "carrots", "beans", "tomatoes", "noodles", "eggs"},
     {"salt", "pepper", "cheese", "garlic", "parsley", "cream", "lemon", "mustard"}},
    {{"The team from {} won the {} by two points.", "{} lost the last match of the {}.", "Fans of {} cheered when the {} began.",
      "The coach of {} was proud after the {}."},
     {"Leeds", "Boston", "Turin", "Madrid", "Dallas", "Lyon", "Glasgow", "Porto"},
     {"cup", "final", "season", "tournament", "game", "league", "derby", "race"}},
    {{"The price of {} rose by {} percent.", "Banks expect {} to fall by {} percent.",
      "Shares in {} gained {} percent on Monday.", "Investors sold {} after a loss of {} percent."},
     {"oil", "gold", "steel", "wheat", "copper", "coffee", "cotton", "silver"},
     {"two", "three", "four", "five", "six", "seven", "eight", "nine"}},
    {{"The doctor gave her a {} for the pain in her {}.", "He broke his {1} and needs a {0}.", "A {} helps against a swollen {}.",
      "The nurse put a {} on the child's {}."},
     {"pill", "bandage", "cream", "cast", "cold pack", "shot", "syrup", "plaster"},
     {"knee", "back", "ankle", "shoulder", "wrist", "elbow", "hand", "foot"}},
    {{"The {} played the new {} twice.", "Everybody sang when the {} began the {}.", "The {} wrote a {} for the queen.",
      "She learned the {1} from an old {0}."},
     {"band", "pianist", "orchestra", "choir", "violinist", "drummer", "singer", "guitarist"},
     {"song", "waltz", "symphony", "tune", "ballad", "march", "hymn", "melody"}},
}};

constexpr std::array<Words, 12> kLabelWords = {"marble", "window", "anchor", "purple", "basket", "candle",
                                               "tiger",  "paper",  "river",  "button", "hammer", "pencil"};

std::string draw_sentence(Rng& rng, const Kind& kind) {
  const std::string pattern = draw_one(rng, kind.patterns);
  const std::string first = draw_one(rng, kind.first);
  return fmt::format(fmt::runtime(pattern), first, draw_one(rng, kind.second));
}

// Two words that say nothing about the kind, so that a label can be known from the examples alone. Two labels share their first
// word: the first token of an answer is predicted by the exact pass over the prompt, whatever the cache, and must not decide.
std::vector<std::string> draw_labels(Rng& rng, std::size_t classes) {
  const std::size_t pairs = (classes + 1) / 2;
  const std::vector<std::size_t> words = draw_distinct(rng, kLabelWords.size(), pairs + classes);
  std::vector<std::string> labels;
  for (std::size_t i = 0; i < classes; ++i)
    labels.push_back(fmt::format("{} {}", kLabelWords[words[i / 2]], kLabelWords[words[pairs + i]]));
  return labels;
}

class Fewshot : public DocumentTask {
 public:
  Fewshot(int classes, int questions)
      : DocumentTask(spec_with_questions(classes == 6 ? "fewshot" : fmt::format("fewshot:classes={}", classes), questions),
                     "classification"),
        classes_(static_cast<std::size_t>(classes)),
        questions_(questions) {}
  AnswerCut answer_cut() const override { return AnswerCut::kFirstLine; }

 protected:
  Result<std::vector<Sample>> make_document(const TaskRequest& request, const Haystack&, int index) const override {
    Rng rng = draw_rng(request.seed, DrawStream::kFewshot, index);
    const std::vector<std::size_t> kinds = draw_distinct(rng, kKinds.size(), classes_);
    const std::vector<std::string> labels = draw_labels(rng, classes_);
    std::set<std::string> sentences;  // that are asked about, and no example
    std::vector<DocumentQuestion> questions;
    for (int i = 0; i < questions_; ++i) {
      const std::size_t asked = rng.below(classes_);
      std::string sentence = draw_sentence(rng, kKinds[kinds[asked]]);
      while (!sentences.insert(sentence).second) sentence = draw_sentence(rng, kKinds[kinds[asked]]);
      questions.push_back({question(sentence, labels, asked), {}});
    }
    const Rng base = draw_rng(request.seed, DrawStream::kFewshotExamples, index);
    const auto example = [&](std::size_t i) {
      Rng draw(base.at(i));
      // Every round of examples shows every class once.
      Rng round(base.at(1'000'000'000 + i / classes_));
      const std::size_t of = draw_distinct(round, classes_, classes_)[i % classes_];
      std::string text = draw_sentence(draw, kKinds[kinds[of]]);
      while (sentences.contains(text)) text = draw_sentence(draw, kKinds[kinds[of]]);
      return fmt::format("Sentence: {}\nType: {}\n\n", text, labels[of]);
    };
    return fill_shared_document(request, spec(), {.piece = example, .starts_block = {}, .typical_tokens = 23}, {},
                                std::move(questions));
  }

 private:
  static Sample question(const std::string& sentence, const std::vector<std::string>& labels, std::size_t asked) {
    Sample sample;
    sample.before = "Every sentence has a type. Here are examples.\n\n";
    sample.question = fmt::format("\n\nSentence: {}\nType:", sentence);
    sample.answers = {labels[asked]};
    sample.all_classes = labels;
    sample.gold = labels[asked];
    sample.max_new_tokens = 8;
    sample.chat_template = false;
    sample.stop_at_newline = true;
    return sample;
  }

  std::size_t classes_;
  int questions_;
};

Result<std::unique_ptr<Task>> make_fewshot(const TaskSpec& spec) {
  if (!spec.set.empty()) return usage_error(fmt::format("The task fewshot has no set '{}'.", spec.set));
  TaskKeys keys(spec);
  const int classes = keys.whole("classes", 6, 2, static_cast<int>(kKinds.size()));
  const int questions = keys.whole("questions", 1, 1, kMostQuestions);
  KV_TRY(keys.status());
  return std::unique_ptr<Task>(std::make_unique<Fewshot>(classes, questions));
}

}  // namespace

TaskEntry fewshot_task() {
  return {.name = "fewshot",
          .keys = "classes=6,questions=1",
          .metric = "classification",
          .summary = "sentences sorted under labels that only the examples in the prompt explain",
          .make = make_fewshot};
}

}  // namespace kvartet
