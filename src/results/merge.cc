#include "results/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace kvartet {
namespace {

// Everything seen so far, and which folder brought it first.
class Merger {
 public:
  Status add(const std::string& folder, StoredResults part);
  MergedResults finish();

 private:
  using OutcomeKey = std::pair<SampleKey, std::string>;
  using RunKey = std::tuple<std::string, std::string, std::int64_t>;  // processor, start, process: the store's own key

  Status check_identity(const std::string& folder, const RunIdentity& theirs);
  Status add_task(const std::string& folder, const StoredTask& task);
  Status add_sample(const std::string& folder, SampleRecord sample);
  std::int64_t number_of(const RunRecord& run);
  void add_outcome(Outcome outcome);
  void add_solo(SoloRun solo);

  MergedResults merged_;
  std::string first_folder_;  // the first with a run
  std::map<std::string, std::pair<std::size_t, std::string>> tasks_;
  std::map<SampleKey, std::pair<std::size_t, std::string>> samples_;
  std::map<RunKey, std::int64_t> runs_;
  std::map<std::string, std::size_t> caches_;
  std::map<OutcomeKey, std::size_t> outcomes_;
  std::map<std::pair<OutcomeKey, int>, std::size_t> solo_;  // and the repeat
};

Status Merger::check_identity(const std::string& folder, const RunIdentity& theirs) {
  if (merged_.results.runs.empty()) return {};
  const RunIdentity& ours = merged_.results.runs.front().identity;
  const auto differ = [&](const char* what, const std::string& a, const std::string& b) {
    return usage_error(
        fmt::format("The folders {} and {} cannot stand in one report: the {} of the first is {}, of the second {}; "
                    "report them apart.",
                    first_folder_, folder, what, a, b));
  };
  const auto model = [](const RunIdentity& id) { return fmt::format("{} (hash {})", id.model_name, id.model_hash); };
  if (ours.model_hash != theirs.model_hash) return differ("model", model(ours), model(theirs));
  if (ours.seed != theirs.seed) return differ("seed", std::to_string(ours.seed), std::to_string(theirs.seed));
  if (ours.parameters != theirs.parameters) return differ("set of sample parameters", ours.parameters, theirs.parameters);
  if (ours.version != theirs.version) return differ("Kvartet version", ours.version, theirs.version);
  return {};
}

Status Merger::add_task(const std::string& folder, const StoredTask& task) {
  const auto [it, fresh] = tasks_.try_emplace(task.task, merged_.results.tasks.size(), folder);
  if (fresh) {
    merged_.results.tasks.push_back(task);
    return {};
  }
  const std::string& metric = merged_.results.tasks[it->second.first].metric;
  if (metric == task.metric) return {};
  return usage_error(
      fmt::format("The folders {} and {} cannot stand in one report: {} is scored by {} in the first and by {} in the "
                  "second; report them apart.",
                  it->second.second, folder, task.task, metric, task.metric));
}

Status Merger::add_sample(const std::string& folder, SampleRecord sample) {
  const auto [it, fresh] = samples_.try_emplace(sample.key, merged_.results.samples.size(), folder);
  if (fresh) {
    merged_.results.samples.push_back(std::move(sample));
    return {};
  }
  SampleRecord& known = merged_.results.samples[it->second.first];
  if (known.prompt_hash != sample.prompt_hash) {
    return usage_error(
        fmt::format("The folders {} and {} cannot stand in one report: the prompt of sample {} of {} at {} tokens has the hash "
                    "{} in the first and {} in the second; report them apart.",
                    it->second.second, folder, sample.key.sample, sample.key.task, sample.key.context, known.prompt_hash,
                    sample.prompt_hash));
  }
  // A folder of an older format knows less about the same sample.
  if (known.question.empty()) known.question = std::move(sample.question);
  if (known.depths_json.empty()) known.depths_json = std::move(sample.depths_json);
  if (known.document.empty()) known.document = std::move(sample.document);
  return {};
}

std::int64_t Merger::number_of(const RunRecord& run) {
  const auto [it, fresh] =
      runs_.try_emplace({run.machine.cpu, run.started, run.process}, static_cast<std::int64_t>(runs_.size()) + 1);
  if (fresh) {
    merged_.results.runs.push_back(run);
    merged_.results.runs.back().id = it->second;
  }
  return it->second;
}

void Merger::add_outcome(Outcome outcome) {
  caches_.try_emplace(outcome.spec, caches_.size());
  auto& list = merged_.results.outcomes;
  const auto [it, fresh] = outcomes_.try_emplace({outcome.key, outcome.spec}, list.size());
  if (fresh) {
    list.push_back(std::move(outcome));
    return;
  }
  ++merged_.repeated;
  Outcome& known = list[it->second];
  if (known.failed() && !outcome.failed()) known = std::move(outcome);
}

void Merger::add_solo(SoloRun solo) {
  auto& list = merged_.results.solo;
  const auto [it, fresh] = solo_.try_emplace({{solo.key, solo.spec}, solo.repeat}, list.size());
  if (fresh) {
    list.push_back(std::move(solo));
  } else if (list[it->second].failed() && !solo.failed()) {
    list[it->second] = std::move(solo);
  }
}

Status Merger::add(const std::string& folder, StoredResults part) {
  std::map<std::int64_t, std::int64_t> numbers;  // their run -> ours
  for (const RunRecord& run : part.runs) {
    KV_TRY(check_identity(folder, run.identity));
    if (merged_.results.runs.empty()) first_folder_ = folder;
    numbers[run.id] = number_of(run);
  }
  for (const StoredTask& task : part.tasks) KV_TRY(add_task(folder, task));
  for (SampleRecord& sample : part.samples) KV_TRY(add_sample(folder, std::move(sample)));
  for (Outcome& outcome : part.outcomes) {
    outcome.run = numbers[outcome.run];
    add_outcome(std::move(outcome));
  }
  for (SoloRun& solo : part.solo) {
    solo.run = numbers[solo.run];
    add_solo(std::move(solo));
  }
  return {};
}

MergedResults Merger::finish() {
  const auto task_order = [&](const std::string& task) {
    const auto it = tasks_.find(task);
    return it == tasks_.end() ? tasks_.size() : it->second.first;
  };
  std::map<SampleKey, int> ordinals;
  for (const SampleRecord& s : merged_.results.samples) ordinals[s.key] = s.ordinal;
  std::ranges::stable_sort(merged_.results.samples, {}, [&](const SampleRecord& s) {
    return std::tuple(task_order(s.key.task), s.key.task, s.key.context, s.key.position, s.ordinal, s.key.sample);
  });
  std::ranges::stable_sort(merged_.results.outcomes, {}, [&](const Outcome& o) {
    return std::tuple(task_order(o.key.task), o.key.task, o.key.context, o.key.position, ordinals[o.key], o.key.sample,
                      caches_.at(o.spec));
  });
  std::ranges::stable_sort(merged_.results.solo, {}, [&](const SoloRun& s) {
    const auto cache = caches_.find(s.spec);
    const std::size_t place = cache == caches_.end() ? caches_.size() : cache->second;
    return std::tuple(task_order(s.key.task), s.key.task, s.key.context, s.key.position, s.key.sample, place, s.repeat);
  });
  return std::move(merged_);
}

}  // namespace

Result<MergedResults> merge_results(std::vector<FolderResults> parts) {
  Merger merger;
  for (FolderResults& part : parts) KV_TRY(merger.add(part.folder, std::move(part.results)));
  return merger.finish();
}

}  // namespace kvartet
