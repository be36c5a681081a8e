#include "bench/tasks/needlebench.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/json_lines.h"
#include "bench/tasks/draw.h"
#include "bench/tasks/generated_document.h"
#include "bench/tasks/generated_task.h"

namespace kvartet {
namespace {

constexpr const char* kComma = "\xE3\x80\x81";  // NeedleBench joins questions by an ideographic comma, in English too
constexpr const char* kFormatCue = " Please answer in the format '";

struct BenchNeedle {
  std::string text;
  std::string question;  // "Which band ... on Mars?"
  std::string form;      // "The first band ... was________"
  std::string keyword;   // arg2
};

Result<BenchNeedle> needle_of(const nlohmann::json& object) {
  BenchNeedle needle;
  KV_ASSIGN(needle.text, text_field(object, "needle"));
  KV_ASSIGN(needle.keyword, text_field(object, "arg2"));
  KV_ASSIGN(const std::string question, text_field(object, "retrieval_question"));
  const std::size_t cue = question.find(kFormatCue);
  needle.question = question.substr(0, cue);
  if (cue != std::string::npos) {
    needle.form = question.substr(cue + std::string_view(kFormatCue).size());
    while (needle.form.ends_with('\'') || needle.form.ends_with('.')) needle.form.pop_back();
  }
  if (needle.keyword.empty() || needle.text.find(needle.keyword) == std::string::npos)
    return bad_input("arg2 does not stand in the needle");
  return needle;
}

// The first `count` English needles in file order whose arg1 and arg2 are both new.
Result<std::vector<BenchNeedle>> read_needles(FileSystem& files, const std::string& path, std::size_t count) {
  KV_ASSIGN(const std::string text, files.read_file(path));
  std::vector<BenchNeedle> needles;
  std::set<std::string> first;
  std::set<std::string> second;
  const std::vector<SkippedLine> bad = read_json_lines(text, path, [&](int, const nlohmann::json& object) -> Status {
    KV_ASSIGN(const std::string language, text_field(object, "language"));
    if (language != "English" || needles.size() == count) return {};
    KV_ASSIGN(const std::string arg1, text_field(object, "arg1"));
    KV_ASSIGN(BenchNeedle needle, needle_of(object));
    if (first.contains(arg1) || second.contains(needle.keyword)) return {};
    first.insert(arg1);
    second.insert(needle.keyword);
    needles.push_back(std::move(needle));
    return {};
  });
  if (needles.size() == count) return needles;
  const std::string reason = bad.empty() ? "" : fmt::format(" ({}: {})", bad.front().where(), bad.front().reason);
  return bad_input(
      fmt::format("{} holds {} English needles of different things, and {} are needed{}", path, needles.size(), count, reason));
}

Result<std::vector<std::string>> read_essays(FileSystem& files, const std::string& path) {
  KV_ASSIGN(const std::string text, files.read_file(path));
  std::vector<std::string> essays;
  const std::vector<SkippedLine> bad = read_json_lines(text, path, [&](int, const nlohmann::json& object) -> Status {
    KV_ASSIGN(std::string essay, text_field(object, "text"));
    if (!essay.empty()) essays.push_back(std::move(essay));
    return {};
  });
  if (!bad.empty()) return bad_input(fmt::format("{}: {}", bad.front().where(), bad.front().reason));
  if (essays.empty()) return bad_input(fmt::format("{} holds no essays", path));
  return essays;
}

class NeedleBench : public Task {
 public:
  explicit NeedleBench(int count) : count_(count) {}
  std::string spec() const override { return fmt::format("needlebench/multineedle:k={}", count_); }
  std::string metric() const override { return "keywords"; }

  Result<SampleSet> samples(const TaskRequest& request) const override {
    if (request.data_dir.empty()) {
      return usage_error(
          fmt::format("{} reads NeedleBench's files: give --data DIR, the folder that holds needlebench/", spec()));
    }
    if (request.context_tokens <= 0)
      return usage_error(fmt::format("The task {} needs a length: give --context T, for example 4096.", spec()));
    const std::string folder = request.data_dir + "/needlebench";
    KV_ASSIGN(const std::vector<BenchNeedle> needles,
              read_needles(*request.files, folder + "/needles.jsonl", static_cast<std::size_t>(count_)));
    KV_ASSIGN(const std::vector<std::string> essays, read_essays(*request.files, folder + "/PaulGrahamEssays.jsonl"));
    SampleSet out;
    const int count = request.samples > 0 ? request.samples : kDefaultSamples;
    for (int i = 0; i < count; ++i) {
      KV_ASSIGN(Sample sample, make_sample(request, needles, essays, i));
      out.samples.push_back(std::move(sample));
    }
    return out;
  }

 private:
  Result<Sample> make_sample(const TaskRequest& request, const std::vector<BenchNeedle>& all,
                             const std::vector<std::string>& essays, int index) const {
    Rng rng = draw_rng(request.seed, DrawStream::kNeedleBench, index);
    Haystack haystack;
    for (const std::size_t i : draw_distinct(rng, essays.size(), essays.size())) {
      for (std::string& sentence : split_sentences(essays[i] + "\n\n")) haystack.sentences.push_back(std::move(sentence));
    }
    std::vector<BenchNeedle> needles;
    for (const std::size_t i : draw_distinct(rng, all.size(), all.size())) needles.push_back(all[i]);

    Sample sample;
    sample.id = fmt::format("{}", index);
    sample.before =
        "This tests how well you find facts in a long text. Read the text and answer the questions behind it from the text "
        "alone.\n\n";
    std::vector<std::string> questions;
    std::vector<std::string> forms;
    std::vector<GoldPiece> pieces;
    for (std::size_t j = 0; j < needles.size(); ++j) {
      questions.push_back(needles[j].question);
      if (!needles[j].form.empty()) forms.push_back(needles[j].form);
      sample.answers.push_back(needles[j].keyword);
      sample.gold += (j == 0 ? "" : " ") + needles[j].text;
      const double depth = needles.size() == 1 ? 0.0 : static_cast<double>(j) / static_cast<double>(needles.size() - 1);
      pieces.push_back({depth, "\n" + needles[j].text + "\n", {1, 1 + needles[j].text.size()}});
    }
    sample.question = fmt::format("\n\nThe questions: {}\nAnswer all of them, in this form: {}", fmt::join(questions, kComma),
                                  fmt::join(forms, kComma));
    // NeedleBench's limit is 1,024 tokens at 128K; shorter contexts leave less, yet enough for every needle.
    sample.max_new_tokens = std::clamp(request.context_tokens / 8, 32 + 24 * count_, 1024);
    KV_TRY(fill_document(request, spec(), essay_filler(haystack, 0), pieces, sample));
    return sample;
  }

  int count_;
};

Result<std::unique_ptr<Task>> make_needlebench(const TaskSpec& spec) {
  TaskKeys keys(spec);
  const int count = keys.whole("k", 11, 1, 11);
  KV_TRY(keys.status());
  return std::unique_ptr<Task>(std::make_unique<NeedleBench>(count));
}

}  // namespace

TaskEntry needlebench_task() {
  return {.name = "needlebench/multineedle",
          .keys = "k=11",
          .metric = "keywords",
          .summary = "NeedleBench's needles at depths 0 to 100 %, from your own copy of its files (--data)",
          .make = make_needlebench};
}

}  // namespace kvartet
