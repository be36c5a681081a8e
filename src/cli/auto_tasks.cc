#include "cli/auto_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "cli/command.h"

namespace kvartet {

Result<TaskCaches> caches_of_task(const std::vector<CacheSpec>& fixed, const std::vector<AutoSpec>& wishes, AutoSite site,
                                  const PlannedTask& task) {
  TaskCaches caches;
  caches.specs = fixed;
  if (wishes.empty() || task.samples.empty()) return caches;
  site.what = fmt::format("{} at {}", task.task, task.context);
  site.workload.position = task.position;
  for (const PreparedSample& s : task.samples) {
    site.workload.prompt_tokens = std::max(site.workload.prompt_tokens, s.record.prompt_tokens);
    site.workload.output_tokens = std::max(site.workload.output_tokens, s.sample.max_new_tokens);
  }
  site.workload.output_tokens = std::max(std::min(site.workload.output_tokens, task.context - site.workload.prompt_tokens), 1);
  const std::optional<TaskKind> kind = kind_of_task(task.task);
  site.guess = kind ? KindGuess{*kind, "the task is known"} : guess_kind("", task.samples.front().sample.question);
  for (const AutoSpec& wish : wishes) {
    KV_ASSIGN(AutoDecision decision, decide(wish, site));
    KV_ASSIGN(std::vector<CacheSpec> chosen, parse_specs({decision.spec}));
    const bool is_there =
        std::any_of(caches.specs.begin(), caches.specs.end(), [&](const CacheSpec& s) { return s.canonical == decision.spec; });
    if (!is_there) caches.specs.push_back(std::move(chosen.front()));
    caches.decisions.push_back(std::move(decision));
  }
  return caches;
}

void keep_task_outcomes(const TaskCaches& caches, const PlannedTask& task, const StoredResults& results,
                        const std::vector<EvidenceCell>& evidence) {
  for (const AutoDecision& decision : caches.decisions) {
    PlanRecord happened;
    for (const Outcome& o : results.outcomes) {
      if (o.failed() || o.spec != decision.spec || o.key.cell() != task.cell()) continue;
      happened.actual_bytes = std::max(happened.actual_bytes.value_or(0), static_cast<double>(o.allocated_bytes));
      if (o.shared) continue;
      happened.actual_ttft_s = std::max(happened.actual_ttft_s.value_or(0), o.ttft_s);
      if (o.decode_tokens_per_s > 0)
        happened.actual_decode_tokens_per_s = std::min(happened.actual_decode_tokens_per_s.value_or(1e18), o.decode_tokens_per_s);
    }
    for (const SoloRun& s : results.solo) {
      if (s.failed() || s.spec != decision.spec || s.key.cell() != task.cell()) continue;
      happened.actual_ttft_s = std::max(happened.actual_ttft_s.value_or(0), s.ttft_s);
      if (s.decode_tokens_per_s > 0)
        happened.actual_decode_tokens_per_s = std::min(happened.actual_decode_tokens_per_s.value_or(1e18), s.decode_tokens_per_s);
    }
    const std::string position = fmt::format("question={}", question_position_name(task.position));
    for (const EvidenceCell& cell : evidence) {
      if (cell.spec == decision.spec && cell.task == task.task && cell.context == task.context && cell.parameters == position &&
          cell.nats.n > 0)
        happened.actual_loss = cell.nats.mean;
    }
    keep_outcome(decision, happened);
  }
}

}  // namespace kvartet
