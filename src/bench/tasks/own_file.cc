#include "bench/tasks/own_file.h"

#include <fmt/format.h>

#include <charconv>

#include "bench/tasks/records.h"
#include "cache/spec_grammar.h"

namespace kvartet {
namespace {

constexpr int kDefaultMaxNew = 128;

class OwnFileTask : public Task {
 public:
  OwnFileTask(std::string path, std::string metric, int max_new_tokens)
      : path_(std::move(path)), metric_(std::move(metric)), max_new_tokens_(max_new_tokens) {}

  std::string spec() const override {
    return max_new_tokens_ == kDefaultMaxNew ? path_ : fmt::format("{}:max_new={}", path_, max_new_tokens_);
  }
  std::string metric() const override { return metric_; }

  Result<SampleSet> samples(const TaskRequest& request) const override {
    KV_ASSIGN(const std::string text, request.files->read_file(path_));
    return sample_set(parse_records(text, path_, metric_), path_, request.samples, [&](Record record) {
      Sample sample;
      sample.id = std::move(record.id);
      sample.document = std::move(record.context);
      sample.question = sample.document.empty() ? record.input : "\n\n" + record.input;
      sample.gold = record.answers.front();
      sample.answers = std::move(record.answers);
      sample.all_classes = std::move(record.all_classes);
      sample.length = record.length;
      sample.max_new_tokens = max_new_tokens_;
      return sample;
    });
  }

 private:
  std::string path_;
  std::string metric_;
  int max_new_tokens_;
};

std::vector<std::string_view> metric_names() {
  std::vector<std::string_view> names;
  for (const Metric& metric : metrics()) names.push_back(metric.name);
  names.push_back(kLikelihoodMetric);
  return names;
}

Result<int> max_new_of(const TaskSpec& spec) {
  int value = kDefaultMaxNew;
  for (const auto& [key, text] : spec.keys) {
    if (key != "max_new") return usage_error(fmt::format("unknown key {} of task {}; it takes max_new", key, spec.name));
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > 1'000'000) {
      return usage_error(fmt::format("max_new={} of task {} is not a number from 1 to 1000000", text, spec.name));
    }
  }
  return value;
}

}  // namespace

bool is_record_file(std::string_view task_name) { return task_name.ends_with(".jsonl"); }

Result<std::unique_ptr<Task>> make_own_file_task(const TaskSpec& spec, std::string_view metric) {
  const std::vector<std::string_view> names = metric_names();
  if (metric.empty()) return usage_error(fmt::format("task {} needs --metric, one of {}", spec.name, fmt::join(names, ", ")));
  if (find_metric(metric) == nullptr && metric != kLikelihoodMetric) {
    return usage_error(fmt::format("unknown metric {}; {}", kvartet::quoted(metric), choice_hint(metric, names)));
  }
  KV_ASSIGN(const int max_new, max_new_of(spec));
  return std::unique_ptr<Task>(std::make_unique<OwnFileTask>(spec.name, std::string(metric), max_new));
}

}  // namespace kvartet
