#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "bench/tasks/article_tasks.h"
#include "bench/tasks/codebase.h"
#include "bench/tasks/contracts.h"
#include "bench/tasks/fewshot.h"
#include "bench/tasks/longbench.h"
#include "bench/tasks/longproc.h"
#include "bench/tasks/loong.h"
#include "bench/tasks/needle.h"
#include "bench/tasks/needlebench.h"
#include "bench/tasks/own_file.h"
#include "bench/tasks/ruler.h"
#include "bench/tasks/task.h"
#include "bench/tasks/text2json.h"
#include "cache/spec_grammar.h"

namespace kvartet {
namespace {

std::vector<TaskEntry> all_tasks() {
  std::vector<TaskEntry> tasks;
  tasks.push_back(needle_task());
  tasks.push_back(multineedle_task());
  tasks.push_back(docqa_task());
  tasks.push_back(multihop_task());
  tasks.push_back(fewshot_task());
  tasks.push_back(chat_task());
  tasks.push_back(codebase_task());
  tasks.push_back(contracts_task());
  for (TaskEntry& entry : text2json_tasks()) tasks.push_back(std::move(entry));
  for (TaskEntry& entry : ruler_tasks()) tasks.push_back(std::move(entry));
  for (TaskEntry& entry : longbench_tasks()) tasks.push_back(std::move(entry));
  tasks.push_back(needlebench_task());
  tasks.push_back(html_to_tsv_task());
  tasks.push_back(loong_task());
  return tasks;
}

// Splits `path.jsonl:keys` behind the file's ending (a path may hold colons) and everything else at the first colon.
std::pair<std::string_view, std::string_view> split_name(std::string_view text) {
  constexpr std::string_view kEnding = ".jsonl";
  if (text.ends_with(kEnding)) return {text, {}};
  const std::size_t file_end = text.rfind(".jsonl:");
  const std::size_t colon = file_end == std::string_view::npos ? text.find(':') : file_end + kEnding.size();
  if (colon == std::string_view::npos) return {text, {}};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

Status parse_keys(std::string_view text, std::string_view whole, TaskSpec& spec) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view pair = text.substr(begin, end - begin);
    const std::size_t equals = pair.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == pair.size()) {
      return usage_error(fmt::format("\"{}\" in task {} is not key=value; write for example multineedle:k=4", pair, whole));
    }
    const std::string key(pair.substr(0, equals));
    for (const auto& [known, value] : spec.keys) {
      if (known == key) return usage_error(fmt::format("task {} gives {} twice", whole, key));
    }
    spec.keys.emplace_back(key, pair.substr(equals + 1));
    begin = end + 1;
  }
  return {};
}

// A set's bare name finds its task; else few edits do.
std::optional<std::string_view> likely_task(std::string_view name) {
  std::vector<std::string_view> names;
  for (const TaskEntry& entry : task_registry()) {
    if (entry.name.ends_with(fmt::format("/{}", name))) return entry.name;
    names.push_back(entry.name);
  }
  return likely_name(name, names);
}

}  // namespace

std::string gold_continuation(const Sample& sample, PromptForm form) {
  if (form == PromptForm::kChat) return sample.gold;
  const std::string prompt = sample.prompt();
  const bool ends_in_text = !prompt.empty() && std::string_view(" \t\n\r").find(prompt.back()) == std::string_view::npos;
  return ends_in_text ? " " + sample.gold : sample.gold;
}

std::vector<double> Sample::gold_depths() const {
  std::vector<double> depths;
  for (const GoldSpan& span : gold_spans)
    depths.push_back(static_cast<double>(span.begin) / static_cast<double>(document.size()));
  return depths;
}

Result<TaskSpec> parse_task_spec(std::string_view text) {
  const auto [name, keys] = split_name(text);
  TaskSpec spec;
  spec.name = name;
  if (!is_record_file(name)) {
    const std::size_t slash = name.find('/');
    spec.name = name.substr(0, slash);
    if (slash != std::string_view::npos) spec.set = name.substr(slash + 1);
  }
  if (spec.name.empty()) return usage_error(fmt::format("\"{}\" names no task; see kvartet tasks", text));
  if (name.size() < text.size()) KV_TRY(parse_keys(keys, text, spec));
  return spec;
}

const std::vector<TaskEntry>& task_registry() {
  static const std::vector<TaskEntry> tasks = all_tasks();
  return tasks;
}

Result<std::unique_ptr<Task>> make_task(std::string_view text, std::string_view metric) {
  KV_ASSIGN(const TaskSpec spec, parse_task_spec(text));
  if (is_record_file(spec.name)) return make_own_file_task(spec, metric);
  if (!metric.empty()) {
    return usage_error(fmt::format("task {} brings its own metric; --metric {} is for your own .jsonl files", text, metric));
  }
  if (spec.name == "longbench") return make_longbench_task(spec);  // also says why it refuses the Chinese sets
  if (spec.name == "ruler") return make_ruler_task(spec);          // and the tasks on third-party texts

  const std::string name = spec.set.empty() ? spec.name : spec.name + "/" + spec.set;
  for (const TaskEntry& entry : task_registry()) {
    if (entry.name == name) return entry.make(spec);
  }
  const std::optional<std::string_view> likely = likely_task(name);
  return usage_error(fmt::format("unknown task {}; {}see kvartet tasks; your own file must end in .jsonl", kvartet::quoted(name),
                                 likely ? fmt::format("the nearest is {}; ", *likely) : ""));
}

}  // namespace kvartet
