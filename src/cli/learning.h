// bench --learn: measures what would change the planner's decisions most, instead of what the command line names.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/runner/benchmark.h"
#include "bench/runner/estimate.h"
#include "cli/auto_tasks.h"
#include "cli/command.h"
#include "core/status.h"
#include "plan/learning.h"

namespace kvartet {

struct LearnFlags {
  bool on = false;
  std::vector<std::string> kinds;
  std::vector<std::string> memory;
  std::vector<std::string> results;
  std::optional<int> cells;
  double hours = 0;  // 0: no limit
};
void add_learn_flags(CLI::App* command, LearnFlags* flags);
// kUsage: flags of --learn without it, or with it what it chooses by itself.
Status check_learn_flags(const LearnFlags& flags, bool names_work);

struct Lessons {
  std::vector<Lesson> list;               // most valuable first
  std::map<TaskKind, std::string> tasks;  // what measures each kind
  std::vector<std::string> notes;         // kinds that cannot be measured, and why
  bool empty() const { return list.empty(); }
};

struct LearnSite {
  std::string model_path;
  int threads = 1;
  std::string out;       // the results so far are evidence, if they are there
  std::string data_dir;  // for the tasks of real documents
};

// Tasks by their text, and contexts.
using TaskLengths = std::set<std::pair<std::string, int>>;

// Sets the request's tasks and, where none are given, its contexts. `unfit` is not learned about. Only the model's metadata is
// read.
Result<Lessons> plan_lessons(const LearnFlags& flags, const LearnSite& site, const TaskLengths& unfit, BenchmarkRequest* request);

// The benchmark's plan for the lessons. Where a task does not fit a context, which only the vocabulary tells, nothing can be
// learned: that is noted, and the lessons are chosen anew without. As plan_benchmark(); kExhausted: nothing fits that could be
// learned about.
Result<std::vector<PlannedTask>> plan_fitting(const LearnFlags& flags, const LearnSite& site, const Vocabulary& vocabulary,
                                              const ModelShape& shape, BenchmarkRequest* request, Lessons* lessons);

// The caches of each task of the plan: full and those to be learned about; tasks without a lesson leave the plan.
Result<std::vector<TaskCaches>> caches_of_lessons(const Lessons& lessons, std::vector<PlannedTask>* plan);

// Drops the least valuable lessons until the rest takes no longer, as estimated. kExhausted: the first takes longer already.
Status fit_into_hours(double hours, const std::vector<PlannedTask>& plan, const ModelShape& shape, const RunRates& rates,
                      Lessons* lessons);

std::string lessons_text(const Lessons& lessons);

}  // namespace kvartet
