#include "bench/tasks/codebase.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "bench/tasks/draw.h"
#include "bench/tasks/generated_document.h"
#include "bench/tasks/generated_task.h"

namespace kvartet {
namespace {

using Words = std::string_view;

constexpr std::array<Words, 24> kVerbs = {"load", "merge", "drop",  "count", "sort",  "fetch", "pack",  "split",
                                          "trim", "check", "build", "parse", "store", "send",  "queue", "scan",
                                          "mark", "clear", "join",  "hash",  "print", "move",  "lock",  "read"};
constexpr std::array<Words, 24> kNouns = {"cache", "order", "file",  "user",  "token", "page",  "table", "image",
                                          "label", "event", "batch", "route", "price", "stock", "mail",  "theme",
                                          "graph", "index", "block", "frame", "color", "cart",  "score", "team"};
constexpr std::array<Words, 8> kEnds = {"limit", "size", "rate", "step", "delay", "total", "code", "count"};
constexpr std::size_t kNames = kVerbs.size() * kNouns.size() * kEnds.size();
constexpr std::size_t kFunctionsPerFile = 6;

std::string function_name(std::size_t i) {
  return fmt::format("{}_{}_{}", kVerbs[i / kEnds.size() % kVerbs.size()], kNouns[i / (kEnds.size() * kVerbs.size())],
                     kEnds[i % kEnds.size()]);
}

std::string definition(const std::string& name, int value) { return fmt::format("def {}():\n    return {}\n\n", name, value); }
std::string use(const std::string& name, const std::string& other) {
  return fmt::format("def {}():\n    return {}()\n\n", name, other);
}

struct Question {
  std::string name;    // asked for
  std::string source;  // the function that returns the number; with one hop the same
  int value = 0;
};

class Codebase : public GeneratedTask {
 public:
  Codebase(int count, int hops)
      : GeneratedTask(fmt::format("codebase:k={},hops={}", count, hops), "line_pairs"), count_(count), hops_(hops) {}

 protected:
  Result<Sample> make_sample(const TaskRequest& request, const Haystack&, int index) const override {
    Rng rng = draw_rng(request.seed, DrawStream::kCodebase, index);
    const std::vector<std::size_t> names = draw_distinct(rng, kNames, kNames);
    const std::vector<std::size_t> values = draw_distinct(rng, 90, static_cast<std::size_t>(count_));
    std::vector<Question> questions;
    for (std::size_t j = 0; j < values.size(); ++j) {
      Question q = {function_name(names[2 * j]), function_name(names[2 * j + 1]), static_cast<int>(10 + values[j])};
      if (hops_ == 1) q.source = q.name;
      questions.push_back(q);
    }
    const auto reserved = static_cast<std::size_t>(2 * count_);

    Sample sample;
    sample.before = "These are the files of a program.\n\n";
    sample.question = "\n\nWhich number does each of these functions return?\n";
    for (const Question& q : questions) {
      sample.question += q.name + "\n";
      sample.answers.push_back(fmt::format("{}: {}", q.name, q.value));
      sample.gold += (sample.gold.empty() ? "" : "\n") + sample.answers.back();
    }
    sample.question += "Answer with one line for each, in the form name: number.";
    sample.max_new_tokens = 16 + 16 * count_;
    KV_TRY(fill_document(request, spec(), filler(request.seed, index, names, reserved),
                         pieces(request.seed, index, questions, rng), sample));
    return sample;
  }

 private:
  // The functions in random order of depth.
  std::vector<GoldPiece> pieces(std::uint64_t seed, int index, const std::vector<Question>& questions, Rng& rng) const {
    std::vector<std::string> texts;
    for (const Question& q : questions) {
      texts.push_back(definition(q.source, q.value));
      if (hops_ == 2) texts.push_back(use(q.name, q.source));
    }
    const std::vector<std::size_t> order = draw_distinct(rng, texts.size(), texts.size());
    const std::vector<double> depths = even_depths(seed, DrawStream::kCodebase, index, static_cast<int>(texts.size()));
    std::vector<GoldPiece> gold;
    for (std::size_t j = 0; j < texts.size(); ++j) gold.push_back({depths[j], texts[order[j]], {}});
    return gold;
  }

  // Functions of the same forms that nobody asks for, six to a file.
  static Filler filler(std::uint64_t seed, int index, std::vector<std::size_t> names, std::size_t reserved) {
    const Rng base = draw_rng(seed, DrawStream::kCodebaseFiller, index);
    const std::size_t most = names.size() - reserved;
    const auto name = [names = std::move(names), reserved](std::size_t i) { return function_name(names[reserved + i]); };
    const auto piece = [base, name](std::size_t i) {
      Rng rng(base.at(i));
      std::string text;
      if (i % kFunctionsPerFile == 0) {
        text = fmt::format("# file: {}/{}_{}.py\n\n", draw_one(rng, kNouns), draw_one(rng, kVerbs), i / kFunctionsPerFile + 1);
      }
      // Every third function passes on what an earlier one returns.
      if (i % 3 == 2) return text + use(name(i), name(i - 1 - rng.below(std::min<std::size_t>(i, 12))));
      if (i % 3 == 1) return text + fmt::format("def {}(items):\n    return len(items) + {}\n\n", name(i), 10 + rng.below(90));
      return text + definition(name(i), static_cast<int>(10 + rng.below(90)));
    };
    return {.piece = piece, .starts_block = {}, .most = most, .typical_tokens = 20};
  }

  int count_;
  int hops_;
};

Result<std::unique_ptr<Task>> make_codebase(const TaskSpec& spec) {
  if (!spec.set.empty()) return usage_error(fmt::format("The task codebase has no set '{}'.", spec.set));
  TaskKeys keys(spec);
  const int count = keys.whole("k", 8, 1, 24);
  const int hops = keys.whole("hops", 2, 1, 2);
  KV_TRY(keys.status());
  return std::unique_ptr<Task>(std::make_unique<Codebase>(count, hops));
}

}  // namespace

TaskEntry codebase_task() {
  return {.name = "codebase",
          .keys = "k=8,hops=2",
          .metric = "line_pairs",
          .summary = "what k functions return, defined and passed on across many files",
          .make = make_codebase};
}

}  // namespace kvartet
