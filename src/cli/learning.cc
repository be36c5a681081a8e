#include "cli/learning.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <set>
#include <utility>

#include "bench/tasks/task.h"
#include "cache/spec_list.h"
#include "cli/planning.h"
#include "core/file_system.h"
#include "results/fingerprint.h"
#include "results/store.h"

namespace kvartet {
namespace {

// What measures a kind of task, the first of them whose files are there. Reasoning has no task of ours yet.
struct KindTask {
  TaskKind kind;
  std::string_view task;
  std::string_view file;  // below --data; empty: needs none
};
constexpr std::array<KindTask, 5> kKindTasks = {{{TaskKind::kSingleFact, "needle", ""},
                                                 {TaskKind::kExtraction, "multineedle:k=4", ""},
                                                 {TaskKind::kSummary, "longbench/multi_news", "longbench/multi_news.jsonl"},
                                                 {TaskKind::kFewShot, "fewshot", ""},
                                                 {TaskKind::kChat, "chat", ""}}};
constexpr int kUsualCells = 12;
constexpr std::array<int, 2> kContexts = {2048, 4096};

Result<std::vector<TaskKind>> asked_kinds(const LearnFlags& flags) {
  std::vector<TaskKind> kinds;
  for (const std::string& name : flags.kinds) {
    KV_ASSIGN(const TaskKind kind, parse_kind(name));
    kinds.push_back(kind);
  }
  if (kinds.empty()) kinds.assign(kTaskKinds.begin(), kTaskKinds.end());
  return kinds;
}

// Empty: no task, and `why` says what is missing.
std::string task_of(TaskKind kind, const std::string& data_dir, std::string* why) {
  const auto entry = std::find_if(kKindTasks.begin(), kKindTasks.end(), [&](const KindTask& t) { return t.kind == kind; });
  if (entry == kKindTasks.end()) {
    *why = "no task measures it yet";
    return {};
  }
  if (!entry->file.empty() && (data_dir.empty() || !FileSystem::real().exists(fmt::format("{}/{}", data_dir, entry->file)))) {
    *why = fmt::format("{} needs --data with {}", entry->task, entry->file);
    return {};
  }
  return std::string(entry->task);
}

std::vector<int> usual_contexts(int model_context) {
  std::vector<int> contexts;
  for (const int context : kContexts)
    if (context <= model_context) contexts.push_back(context);
  if (contexts.empty()) contexts.push_back(model_context);
  return contexts;
}

Result<std::unique_ptr<Gathered>> gather_for(const LearnFlags& flags, const LearnSite& site) {
  const std::vector<std::string> folders = flags.results.empty() ? results_of_environment() : flags.results;
  KV_ASSIGN(std::unique_ptr<Gathered> gathered, gather(site.model_path, folders, site.threads));
  if (is_among(site.out, folders) || !FileSystem::real().exists(site.out + "/" + kStoreFile)) return gathered;
  // What an earlier --learn measured counts, although nobody names the folder twice.
  KV_ASSIGN(const std::vector<EvidenceCell> cells, read_evidence(FileSystem::real(), site.out));
  gathered->add(cells);
  if (gathered->inputs.model_hash.empty() && !cells.empty()) {
    KV_ASSIGN(gathered->inputs.model_hash, model_fingerprint(FileSystem::real(), site.model_path));
  }
  return gathered;
}

int context_of(const Workload& w) { return w.prompt_tokens + w.output_tokens; }

bool is_of(const Lessons& lessons, const Lesson& lesson, const PlannedTask& task) {
  return context_of(lesson.workload) == task.context && lessons.tasks.at(lesson.workload.kind) == task.task;
}

std::vector<CacheSpec> caches_of(const Lessons& lessons, const PlannedTask& task) {
  std::vector<CacheSpec> specs;
  for (const Lesson& lesson : lessons.list) {
    if (is_of(lessons, lesson, task)) add_once(&specs, lesson.spec);
  }
  return specs;
}

}  // namespace

void add_learn_flags(CLI::App* command, LearnFlags* flags) {
  command->add_flag("--learn", flags->on,
                    "instead of --kv and --task: measure the caches and tasks that would change a decision of kvartet plan most; "
                    "--dry-run lists them with their reasons");
  command->add_option("--for", flags->kinds,
                      "with --learn: a kind of task (kvartet plan); repeatable (default: all that can be)");
  command->add_option("--memory", flags->memory,
                      "with --learn: a cap on the cache (K, M, G); repeatable (default: a quarter and an eighth of f16)");
  command->add_option("--results", flags->results,
                      "with --learn: a results folder to learn from; repeatable (default: KVARTET_RESULTS, and that of -o)");
  command->add_option("--cells", flags->cells, "with --learn: at most so many caches of a task and context (default: 12)")
      ->check(at_least(1));
  command->add_option("--hours", flags->hours, "with --learn: what is estimated to take no longer (0: no limit)")
      ->capture_default_str()
      ->check(number_within(0, 1e6));
}

Status check_learn_flags(const LearnFlags& flags, bool names_work) {
  const bool more = !flags.kinds.empty() || !flags.memory.empty() || !flags.results.empty() || flags.cells || flags.hours > 0;
  if (!flags.on && more)
    return usage_error("--for, --memory, --results, --cells and --hours belong to --learn; add it, or leave them out");
  if (flags.on && names_work)
    return usage_error("--learn chooses caches and tasks by itself; leave --kv, --task, --metric and --preset out, or --learn");
  return {};
}

Result<Lessons> plan_lessons(const LearnFlags& flags, const LearnSite& site, const TaskLengths& unfit,
                             BenchmarkRequest* request) {
  KV_ASSIGN(const std::vector<TaskKind> kinds, asked_kinds(flags));
  LearnRequest learn;
  learn.most = static_cast<std::size_t>(flags.cells.value_or(kUsualCells));
  for (const std::string& cap : flags.memory) {
    KV_ASSIGN(const std::size_t bytes, parse_bytes(cap));
    learn.memory.push_back(bytes);
  }
  KV_ASSIGN(const std::unique_ptr<Gathered> gathered, gather_for(flags, site));
  if (request->contexts.empty()) request->contexts = usual_contexts(gathered->inputs.model.shape.context);
  Lessons lessons;
  for (const TaskKind kind : kinds) {
    std::string why;
    const std::string task = task_of(kind, site.data_dir, &why);
    if (task.empty()) {
      lessons.notes.push_back(fmt::format("{} is not learned about: {}", kind_name(kind), why));
      continue;
    }
    KV_ASSIGN(const std::unique_ptr<Task> made, make_task(task));
    lessons.tasks[kind] = made->spec();
    for (const int context : request->contexts) {
      if (unfit.contains({lessons.tasks[kind], context})) continue;
      Workload w = workload_filling(kind, context);
      w.position = request->question_positions.front();
      learn.workloads.push_back(w);
    }
  }
  if (learn.workloads.empty()) return bad_input(lessons.notes.empty() ? "no kind of task" : lessons.notes.front());
  KV_ASSIGN(lessons.list, find_lessons(gathered->inputs, learn));
  request->tasks.clear();
  for (const auto& [kind, task] : lessons.tasks) {
    const bool asked =
        std::any_of(lessons.list.begin(), lessons.list.end(), [&](const Lesson& l) { return l.workload.kind == kind; });
    if (asked) request->tasks.push_back(task);
  }
  return lessons;
}

namespace {

struct Unfit {
  TaskLengths cells;
  std::vector<std::string> notes;
  Status first;  // refusal
};

// By task and length: prompts are made once, however often the lessons are chosen anew.
using PlannedCells = std::map<std::pair<std::string, int>, std::vector<PlannedTask>>;

std::vector<std::pair<std::string, int>> cells_of(const BenchmarkRequest& request) {
  std::vector<std::pair<std::string, int>> cells;
  for (const std::string& task : request.tasks)
    for (const int context : std::set<int>(request.contexts.begin(), request.contexts.end())) cells.emplace_back(task, context);
  return cells;
}

// Plans every task at every length by itself; what does not fit is added to `unfit`.
Status plan_each(const BenchmarkRequest& request, const Vocabulary& vocabulary, const ModelShape& shape, PlannedCells* planned,
                 Unfit* unfit) {
  BenchmarkRequest one = request;
  for (const auto& [task, context] : cells_of(request)) {
    if (unfit->cells.contains({task, context}) || planned->contains({task, context})) continue;
    one.tasks = {task};
    one.contexts = {context};
    Result<std::vector<PlannedTask>> plan = plan_benchmark(one, vocabulary, shape, FileSystem::real());
    if (plan.ok()) {
      planned->emplace(std::pair(task, context), std::move(*plan));
      continue;
    }
    if (plan.status().code() != Code::kExhausted) return plan.status();
    if (unfit->first.ok()) unfit->first = plan.status();
    unfit->notes.push_back(fmt::format("{} at {} tokens is not learned about: {}", task, context, plan.status().message()));
    unfit->cells.insert({task, context});
  }
  return {};
}

std::vector<PlannedTask> take(const BenchmarkRequest& request, PlannedCells planned) {
  std::vector<PlannedTask> plan;
  for (const auto& cell : cells_of(request)) {
    if (const auto found = planned.find(cell); found != planned.end())
      std::move(found->second.begin(), found->second.end(), std::back_inserter(plan));
  }
  return plan;
}

}  // namespace

Result<std::vector<PlannedTask>> plan_fitting(const LearnFlags& flags, const LearnSite& site, const Vocabulary& vocabulary,
                                              const ModelShape& shape, BenchmarkRequest* request, Lessons* lessons) {
  Unfit unfit;
  PlannedCells planned;
  for (;;) {
    const std::size_t known = unfit.cells.size();
    KV_TRY(plan_each(*request, vocabulary, shape, &planned, &unfit));
    if (unfit.cells.size() == known) {
      lessons->notes = std::move(unfit.notes);
      return take(*request, std::move(planned));
    }
    Result<Lessons> others = plan_lessons(flags, site, unfit.cells, request);
    if (!others.ok() || others->empty()) return unfit.first;
    *lessons = std::move(*others);
  }
}

Result<std::vector<TaskCaches>> caches_of_lessons(const Lessons& lessons, std::vector<PlannedTask>* plan) {
  KV_ASSIGN(const CacheSpec full, parse_spec("full"));
  std::erase_if(*plan, [&](const PlannedTask& task) { return caches_of(lessons, task).empty(); });
  std::vector<TaskCaches> all;
  for (const PlannedTask& task : *plan) {
    TaskCaches caches;
    caches.specs = {full};
    for (CacheSpec& spec : caches_of(lessons, task)) add_once(&caches.specs, std::move(spec));
    all.push_back(std::move(caches));
  }
  return all;
}

Status fit_into_hours(double hours, const std::vector<PlannedTask>& plan, const ModelShape& shape, const RunRates& rates,
                      Lessons* lessons) {
  if (hours <= 0) return {};
  double last = 0;
  while (!lessons->list.empty()) {
    std::vector<PlannedTask> left = plan;
    KV_ASSIGN(const std::vector<TaskCaches> caches, caches_of_lessons(*lessons, &left));
    double sum = 0;
    for (std::size_t i = 0; i < left.size(); ++i)
      sum += estimate_run(std::span(left).subspan(i, 1), caches[i].specs, shape, rates).hours;
    if (sum <= hours) return {};
    last = sum;
    lessons->list.pop_back();
  }
  return exhausted(fmt::format(
      "the most valuable cell alone takes about {:.2f} hours, --hours allows {:g}; give more, or fewer --samples", last, hours));
}

std::string lessons_text(const Lessons& lessons) {
  if (lessons.empty()) {
    return fmt::format("nothing to learn: no measurement is expected to improve a decision by {} nats per token or more\n",
                       kLeastValue);
  }
  std::string text =
      "what would change a decision most (gain: nats per token of the reference answer that the choice would lose less)\n";
  text += fmt::format("{:>7} {:>7}  {:22} {:>7}  {}\n", "gain", "chance", "task", "context", "cache");
  for (const Lesson& l : lessons.list) {
    text += fmt::format("{:>7.4f} {:>5.0f} %  {:22} {:>7}  {}\n", l.value, 100 * l.chance, lessons.tasks.at(l.workload.kind),
                        context_of(l.workload), l.spec.canonical);
    text += "        " + wrapped(l.reason, 8);
  }
  return text;
}

}  // namespace kvartet
