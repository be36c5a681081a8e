#include "bench/tasks/longbench.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/tasks/records.h"
#include "cache/spec_grammar.h"

namespace kvartet {
namespace {

constexpr LongBenchSet kSets[] = {
    {"narrativeqa", "f1"},
    {"qasper", "f1"},
    {"multifieldqa_en", "f1"},
    {"hotpotqa", "f1"},
    {"2wikimqa", "f1"},
    {"musique", "f1"},
    {"gov_report", "rouge"},
    {"qmsum", "rouge"},
    {"multi_news", "rouge"},
    {"trec", "classification", AnswerCut::kFirstLine, /*chat_template=*/false},
    {"triviaqa", "f1", AnswerCut::kFirstLine, /*chat_template=*/false},
    {"samsum", "rouge", AnswerCut::kFirstLine, /*chat_template=*/false, /*stop_at_newline=*/true},
    {"passage_count", "count"},
    {"passage_retrieval_en", "retrieval"},
    {"lcc", "code_sim", AnswerCut::kNone, /*chat_template=*/false},
    {"repobench-p", "code_sim", AnswerCut::kNone, /*chat_template=*/false},
};

constexpr std::string_view kChineseSets[] = {"multifieldqa_zh", "dureader", "vcsum", "lsht", "passage_retrieval_zh"};

constexpr std::string_view kContextMark = "{context}";
constexpr std::string_view kInputMark = "{input}";

const LongBenchSet* find_set(std::string_view name) {
  for (const LongBenchSet& set : kSets) {
    if (set.name == name) return &set;
  }
  return nullptr;
}

// How one set asks: its template cut at {context}, and the length of an answer.
struct Prompting {
  std::string before;
  std::string behind;
  int max_new_tokens = 0;
};

Result<nlohmann::json> read_config(FileSystem& files, const std::string& path) {
  KV_ASSIGN(const std::string text, files.read_file(path));
  nlohmann::json config = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return bad_input(fmt::format("{} is not a JSON object; take the file from the LongBench repository", path));
  }
  return config;
}

Result<Prompting> read_prompting(FileSystem& files, const std::string& folder, const std::string& set) {
  const std::string prompt_path = folder + "/config/dataset2prompt.json";
  const std::string length_path = folder + "/config/dataset2maxlen.json";
  KV_ASSIGN(const nlohmann::json prompts, read_config(files, prompt_path));
  KV_ASSIGN(const nlohmann::json lengths, read_config(files, length_path));
  const auto prompt = prompts.find(set);
  if (prompt == prompts.end() || !prompt->is_string()) return bad_input(fmt::format("{} has no prompt for {}", prompt_path, set));
  const auto length = lengths.find(set);
  const bool has_length = length != lengths.end() && length->is_number_integer();
  if (!has_length || length->get<long>() < 1 || length->get<long>() > 1'000'000) {
    return bad_input(fmt::format("{} has no answer length between 1 and 1000000 for {}", length_path, set));
  }
  const std::string text = prompt->get<std::string>();
  const std::size_t cut = text.find(kContextMark);
  if (cut == std::string::npos) {
    return bad_input(fmt::format("the prompt for {} in {} has no {}", set, prompt_path, kContextMark));
  }
  return Prompting{text.substr(0, cut), text.substr(cut + kContextMark.size()), static_cast<int>(length->get<long>())};
}

std::string with_input(std::string text, std::string_view input) {
  const std::size_t at = text.find(kInputMark);
  return at == std::string::npos ? text : text.replace(at, kInputMark.size(), input);
}

Sample sample_of(Record record, const LongBenchSet& set, const Prompting& prompting) {
  Sample sample;
  sample.id = std::move(record.id);
  sample.before = with_input(prompting.before, record.input);
  sample.document = std::move(record.context);
  sample.question = with_input(prompting.behind, record.input);
  sample.gold = record.answers.front();
  sample.answers = std::move(record.answers);
  sample.all_classes = std::move(record.all_classes);
  sample.length = record.length;
  sample.max_new_tokens = prompting.max_new_tokens;
  sample.chat_template = set.chat_template;
  sample.stop_at_newline = set.stop_at_newline;
  return sample;
}

class LongBenchTask : public Task {
 public:
  explicit LongBenchTask(const LongBenchSet& set) : set_(set) {}

  std::string spec() const override { return fmt::format("longbench/{}", set_.name); }
  std::string metric() const override { return std::string(set_.metric); }
  AnswerCut answer_cut() const override { return set_.answer_cut; }

  Result<SampleSet> samples(const TaskRequest& request) const override {
    if (request.data_dir.empty()) {
      return usage_error(
          fmt::format("{} reads LongBench's own files: give --data DIR, the folder that holds longbench/", spec()));
    }
    const std::string folder = request.data_dir + "/longbench";
    const std::string path = fmt::format("{}/{}.jsonl", folder, set_.name);
    KV_ASSIGN(const Prompting prompting, read_prompting(*request.files, folder, std::string(set_.name)));
    KV_ASSIGN(const std::string text, request.files->read_file(path));
    RecordFile file = parse_records(text, path, set_.metric);
    return sample_set(std::move(file), path, request.samples,
                      [&](Record record) { return sample_of(std::move(record), set_, prompting); });
  }

 private:
  LongBenchSet set_;
};

}  // namespace

std::span<const LongBenchSet> longbench_sets() { return kSets; }

std::span<const std::string_view> longbench_chinese_sets() { return kChineseSets; }

std::vector<TaskEntry> longbench_tasks() {
  std::vector<TaskEntry> entries;
  for (const LongBenchSet& set : kSets) {
    entries.push_back({.name = fmt::format("longbench/{}", set.name),
                       .keys = "",
                       .metric = std::string(set.metric),
                       .summary = fmt::format("LongBench {} from your own copy of its files (--data)", set.name),
                       .make = make_longbench_task});
  }
  return entries;
}

Result<std::unique_ptr<Task>> make_longbench_task(const TaskSpec& spec) {
  if (std::find(std::begin(kChineseSets), std::end(kChineseSets), spec.set) != std::end(kChineseSets)) {
    return usage_error(
        fmt::format("longbench/{} is a Chinese set: its score needs the word segmenter jieba, which is not part of Kvartet; "
                    "choose an English set",
                    spec.set));
  }
  const LongBenchSet* set = find_set(spec.set);
  if (set == nullptr) {
    std::vector<std::string_view> names;
    for (const LongBenchSet& known : kSets) names.push_back(known.name);
    return usage_error(fmt::format("unknown LongBench set {}; {}", kvartet::quoted("longbench/" + spec.set),
                                   choice_hint(spec.set, names, "longbench/")));
  }
  if (!spec.keys.empty()) {
    const auto& [key, value] = spec.keys.front();
    return usage_error(fmt::format("longbench/{} takes no keys, but got {}={}", set->name, key, value));
  }
  return std::unique_ptr<Task>(std::make_unique<LongBenchTask>(*set));
}

}  // namespace kvartet
