// --kv auto in the benchmark: every task and context has its own choice.
#pragma once

#include <vector>

#include "bench/runner/benchmark.h"
#include "cache/spec.h"
#include "cli/auto_spec.h"
#include "core/status.h"
#include "results/evidence.h"
#include "results/records.h"

namespace kvartet {

// The caches of one task at one context: what --kv names, and what each --kv auto chose for it.
struct TaskCaches {
  std::vector<CacheSpec> specs;
  std::vector<AutoDecision> decisions;
};

// The choice is made for the longest prompt and the longest answer of the task: it must fit all of them. `site` says the
// model and threads; the rest follows from the task. Errors as decide().
Result<TaskCaches> caches_of_task(const std::vector<CacheSpec>& fixed, const std::vector<AutoSpec>& wishes, AutoSite site,
                                  const PlannedTask& task);

// Keeps what happened: the largest of the task's samples stands beside the prediction, which was made for it. Times shared
// with other caches are no cache's own and are left out, those of runs alone are taken; a loss needs `full` in the same folder.
void keep_task_outcomes(const TaskCaches& caches, const PlannedTask& task, const StoredResults& results,
                        const std::vector<EvidenceCell>& evidence);

}  // namespace kvartet
