#include "bench/tasks/text2json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/json_lines.h"
#include "bench/tasks/draw.h"
#include "bench/tasks/generated_document.h"
#include "bench/tasks/generated_task.h"
#include "bench/tasks/text2json_families.h"
#include "bench/tasks/whole_records.h"

namespace kvartet {
namespace {

constexpr std::string_view kShapes[] = {"paper", "scaled"};
constexpr std::string_view kScorers[] = {"robust", "strict"};

// The paper's figures (offloading.md 13.2).
constexpr int kLeastTokens = 10'000;
constexpr int kMostTokens = 63'500;
constexpr int kLeastEntries = 3;
constexpr int kMostEntries = 20;
constexpr int kNewTokens = 1024;

constexpr int kTokensPerScaledEntry = 300;  // of context, at least: below it the text would be nothing but entries
constexpr int kNewTokensPerEntry = 56;      // an entry takes 30 to 50

std::string metric_name(const std::string& scorer) { return scorer == "strict" ? "text2json_strict" : "text2json"; }

std::string array_of(const EntityFamily& family, const std::vector<Entity>& entities) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const Entity& e : entities) {
    array.push_back({{"name", e.name}, {std::string(family.keys[0]), e.first}, {std::string(family.keys[1]), e.second}});
  }
  return array.dump();
}

class Text2Json : public GeneratedTask {
 public:
  Text2Json(const std::string& shape, const std::string& scorer)
      : GeneratedTask(fmt::format("text2json:shape={}{}", shape, scorer == "strict" ? ",scorer=strict" : ""),
                      metric_name(scorer)),
        scaled_(shape == "scaled") {}

 protected:
  bool needs_haystack() const override { return true; }

  Result<Sample> make_sample(const TaskRequest& request, const Haystack& haystack, int index) const override {
    Rng rng = draw_rng(request.seed, DrawStream::kText2Json, index);
    TaskRequest sized = request;
    if (!scaled_) {
      if (request.context_tokens < kMostTokens) {
        return exhausted(
            fmt::format("The task {} has the paper's shape, prompts of {} to {} tokens, but only {} remain for the prompt; give "
                        "--context 65536 or more, or take text2json:shape=scaled.",
                        spec(), kLeastTokens, kMostTokens, request.context_tokens));
      }
      // The fourth power of a uniform number has the mean 1/5: prompts of 20,700 tokens on average, as few long ones.
      const double u = rng.uniform();
      sized.context_tokens = kLeastTokens + static_cast<int>(u * u * u * u * (kMostTokens - kLeastTokens));
    }
    const int most =
        scaled_ ? std::clamp(request.context_tokens / kTokensPerScaledEntry, kLeastEntries, kMostEntries) : kMostEntries;
    const auto family_index = static_cast<std::size_t>(index) % kEntityFamilies;
    const EntityFamily& family = entity_family(family_index);
    const auto count = static_cast<std::size_t>(kLeastEntries) + rng.below(static_cast<std::uint64_t>(most - kLeastEntries + 1));
    // As many again have names and no attributes.
    const std::vector<Entity> drawn = draw_entities(family_index, rng, 2 * count);
    const std::vector<Entity> entities(drawn.begin(), drawn.begin() + static_cast<std::ptrdiff_t>(count));

    Sample sample;
    sample.before = fmt::format("The text below mentions {}. Find {}.\n\n", family.plural, family.task);
    sample.question = fmt::format(
        "\n\nNow write down {0}, in the order of the text. Answer with a JSON array and nothing else, in this form, all values "
        "as texts:\n"
        "[{{\"name\": \"...\", \"{1}\": \"...\", \"{2}\": \"...\"}}, ...]",
        family.task, family.keys[0], family.keys[1]);
    sample.gold = array_of(family, entities);
    sample.answers = {sample.gold};
    sample.max_new_tokens = scaled_ ? std::min(kNewTokens, 32 + kNewTokensPerEntry * most) : kNewTokens;

    const std::size_t start = draw_rng(request.seed, DrawStream::kText2JsonFiller, index).below(haystack.sentences.size());
    KV_TRY(fill_document(sized, spec(), essay_filler(haystack, start), pieces(request.seed, index, family_index, drawn, rng),
                         sample));
    keep_entries(sample);
    return sample;
  }

 private:
  // Entries and lookalikes in turn, each in its part of the text.
  static std::vector<GoldPiece> pieces(std::uint64_t seed, int index, std::size_t family, const std::vector<Entity>& drawn,
                                       Rng& rng) {
    const std::size_t count = drawn.size() / 2;
    const std::vector<double> depths = even_depths(seed, DrawStream::kText2Json, index, static_cast<int>(drawn.size()));
    std::vector<GoldPiece> out;
    for (std::size_t j = 0; j < count; ++j) {
      out.push_back({depths[2 * j], entity_prose(family, drawn[j], rng) + " ", {}});
      out.push_back({depths[2 * j + 1], lookalike_prose(family, drawn[count + j], rng) + " ", {}});
    }
    return out;
  }

  static void keep_entries(Sample& sample) {
    std::vector<GoldSpan> kept;
    for (std::size_t i = 0; i < sample.gold_spans.size(); i += 2) kept.push_back(sample.gold_spans[i]);
    sample.gold_spans = std::move(kept);
  }

  bool scaled_;
};

class ReleasedText2Json : public Task {
 public:
  explicit ReleasedText2Json(const std::string& scorer) : strict_(scorer == "strict") {}
  std::string spec() const override { return strict_ ? "text2json/released:scorer=strict" : "text2json/released"; }
  std::string metric() const override { return strict_ ? "text2json_strict" : "text2json"; }

  Result<SampleSet> samples(const TaskRequest& request) const override {
    if (request.data_dir.empty())
      return usage_error(fmt::format("{} reads the released file: give --data DIR, the folder that holds text2json/", spec()));
    KV_ASSIGN(const std::string path, find_file(*request.files, request.data_dir + "/text2json"));
    KV_ASSIGN(const std::string text, request.files->read_file(path));
    struct Line {
      int number = 0;
      Sample sample;
    };
    std::vector<Line> lines;
    std::vector<SkippedLine> skipped = read_json_lines(text, path, [&](int number, const nlohmann::json& object) -> Status {
      KV_ASSIGN(Sample sample, sample_of(object, number));
      lines.push_back({number, std::move(sample)});
      return {};
    });
    if (lines.empty() && !skipped.empty()) {
      return bad_input(fmt::format("no line of {} is a usable record; the first: {}: {}", path, skipped.front().where(),
                                   skipped.front().reason));
    }
    KV_ASSIGN(SampleSet set, whole_records(
                                 request, path, lines.size(), [&](std::size_t i) -> Result<Sample> { return lines[i].sample; },
                                 [&](std::size_t i) { return lines[i].number; }));
    set.skipped.insert(set.skipped.begin(), skipped.begin(), skipped.end());
    return set;
  }

 private:
  static Result<std::string> find_file(FileSystem& files, const std::string& folder) {
    KV_ASSIGN(const std::vector<std::string> names, files.list(folder));
    for (const std::string& name : names) {
      if (name.ends_with(".jsonl")) return folder + "/" + name;
    }
    return bad_input(fmt::format("{} holds no .jsonl file; put the released Text2JSON file there", folder));
  }

  static Result<Sample> sample_of(const nlohmann::json& object, int line) {
    Sample sample;
    KV_ASSIGN(sample.id, id_field(object));
    if (sample.id.empty()) sample.id = fmt::format("line {}", line);
    KV_ASSIGN(sample.document, text_field(object, "problem"));
    KV_ASSIGN(sample.gold, text_field(object, "answer"));
    sample.answers = {sample.gold};
    KV_TRY(check_answer("text2json", "", sample.answers, {}));
    sample.length = word_count(sample.document);
    sample.max_new_tokens = kNewTokens;
    return sample;
  }

  bool strict_;
};

Result<std::unique_ptr<Task>> make_text2json(const TaskSpec& spec) {
  TaskKeys keys(spec);
  const std::string scorer = keys.word("scorer", kScorers);
  if (spec.set == "released") {
    KV_TRY(keys.status());
    return std::unique_ptr<Task>(std::make_unique<ReleasedText2Json>(scorer));
  }
  if (!spec.set.empty())
    return usage_error(fmt::format("The task text2json has no set '{}'; there are text2json and text2json/released.", spec.set));
  const std::string shape = keys.word("shape", kShapes);
  KV_TRY(keys.status());
  return std::unique_ptr<Task>(std::make_unique<Text2Json>(shape, scorer));
}

}  // namespace

std::vector<TaskEntry> text2json_tasks() {
  return {{.name = "text2json",
           .keys = "shape=paper,scorer=robust",
           .metric = "text2json",
           .summary = "facts scattered over essays, to be written as JSON; 10K to 63.5K tokens, or shape=scaled",
           .make = make_text2json},
          {.name = "text2json/released",
           .keys = "scorer=robust",
           .metric = "text2json",
           .summary = "Text2JSON from your own copy of its file (--data)",
           .make = make_text2json}};
}

}  // namespace kvartet
