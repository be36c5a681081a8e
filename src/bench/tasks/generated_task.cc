#include "bench/tasks/generated_task.h"

#include <fmt/format.h>

#include <algorithm>

#include "cache/spec_grammar.h"
#include "core/check.h"

namespace kvartet {

Result<SampleSet> DocumentTask::samples(const TaskRequest& request) const {
  KV_CHECK(request.files != nullptr && request.count_tokens);
  if (request.context_tokens <= 0) {
    return usage_error(fmt::format("The task {} needs a length: give --context T, for example 4096.", spec_));
  }
  Haystack haystack;
  if (needs_haystack()) {
    KV_ASSIGN(haystack, load_haystack(*request.files, request.data_dir, request.essays_dir));
  }
  SampleSet out;
  const auto count = static_cast<std::size_t>(request.samples > 0 ? request.samples : kDefaultSamples);
  for (int document = 0; out.samples.size() < count; ++document) {
    KV_ASSIGN(std::vector<Sample> questions, make_document(request, haystack, document));
    for (std::size_t i = 0; i < questions.size() && out.samples.size() < count; ++i) {
      questions[i].id = questions.size() == 1 ? fmt::format("{}", document) : fmt::format("{}.{}", document, i);
      out.samples.push_back(std::move(questions[i]));
    }
  }
  return out;
}

Result<std::vector<Sample>> GeneratedTask::make_document(const TaskRequest& request, const Haystack& haystack, int index) const {
  KV_ASSIGN(Sample sample, make_sample(request, haystack, index));
  std::vector<Sample> one;
  one.push_back(std::move(sample));
  return one;
}

std::string spec_with_questions(const std::string& spec, int questions) {
  if (questions == 1) return spec;
  return fmt::format("{}{}questions={}", spec, spec.find(':') == std::string::npos ? ':' : ',', questions);
}

const std::string* TaskKeys::find(std::string_view key) {
  known_.emplace_back(key);
  for (const auto& [name, value] : spec_.keys) {
    if (name == key) return &value;
  }
  return nullptr;
}

int TaskKeys::whole(std::string_view key, int fallback, int least, int most) {
  const std::string* text = find(key);
  if (text == nullptr) return fallback;
  Result<int> value = parse_whole(key, *text, least, most);
  if (value.ok()) return *value;
  if (status_.ok())
    status_ =
        usage_error(fmt::format("The task {} takes {} from {} to {}, not {}.", spec_.name, key, least, most, quoted(*text)));
  return fallback;
}

std::string TaskKeys::word(std::string_view key, std::span<const std::string_view> allowed) {
  const std::string* text = find(key);
  if (text == nullptr) return std::string(allowed.front());
  if (std::find(allowed.begin(), allowed.end(), *text) != allowed.end()) return *text;
  if (status_.ok()) {
    status_ = usage_error(fmt::format("The task {} takes {}={}, not {}.", spec_.name, key, list_names(allowed), quoted(*text)));
  }
  return std::string(allowed.front());
}

Status TaskKeys::status() const {
  if (!status_.ok()) return status_;
  for (const auto& [name, value] : spec_.keys) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    const std::string task = spec_.set.empty() ? spec_.name : spec_.name + "/" + spec_.set;
    if (known_.empty()) return usage_error(fmt::format("The task {} takes no keys, but got {}={}.", task, name, value));
    const std::vector<std::string_view> names(known_.begin(), known_.end());
    return usage_error(fmt::format("The task {} does not know the key {}; it takes {}.", task, quoted(name), list_names(names)));
  }
  return {};
}

std::string words_joined(const std::vector<std::string>& parts) {
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += i + 1 == parts.size() ? " and " : ", ";
    out += parts[i];
  }
  return out;
}

}  // namespace kvartet
