// kvartet bench: tasks x contexts x caches into a results folder.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "bench/runner/benchmark.h"
#include "bench/runner/predictions.h"
#include "bench/tasks/task.h"
#include "cli/auto_spec.h"
#include "cli/auto_tasks.h"
#include "cli/command.h"
#include "core/file_system.h"
#include "engine/engine.h"
#include "report/rows.h"
#include "report/text_table.h"
#include "results/fingerprint.h"
#include "results/store.h"

namespace kvartet {
namespace {

struct BenchFlags {
  ModelFlags model;
  std::vector<std::string> kv;
  BenchmarkRequest request;
  std::string question_position = "seen";
  std::string out;
  bool json = false;
  bool dry_run = false;
};

std::string shape_text(const ModelShape& s) {
  const LayerShape& layer = s.layers.front();
  return fmt::format("{}, {} layers, {}/{} heads of {}, hidden {}", s.architecture, s.layer_count(), layer.heads, layer.kv_heads,
                     layer.head_dim, s.hidden);
}

Result<RunRecord> run_record(const BenchFlags& flags, const Engine& engine, const std::string& model_path) {
  RunRecord run;
  KV_ASSIGN(run.identity.model_hash, model_fingerprint(FileSystem::real(), model_path));
  run.identity.model_name = flags.model.model;
  run.identity.model_shape = shape_text(engine.shape());
  run.identity.seed = flags.request.seed;
  run.identity.parameters = run_parameters(flags.request);
  run.identity.version = kvartet_version();
  run.machine = this_machine();
  run.threads = engine.threads();
  run.started = utc_timestamp();
  run.process = getpid();
  return run;
}

void show_bench_progress(const BenchmarkProgress& p) {
  if (!stderr_is_terminal() || p.total == 0) return;
  std::string left;
  if (p.seconds_left >= 0) {
    const int seconds = static_cast<int>(p.seconds_left);
    left = fmt::format(", {:.0f} tokens/s, {} min {} s left", p.tokens_per_s, seconds / 60, seconds % 60);
  }
  show_progress(fmt::format("{} at {}: sample {} of {}{};", p.task, p.context, p.done + 1, p.total, left),
                (p.done + p.sample_share) / p.total);
}

Status print_report(const StoredResults& results, bool json) {
  const std::vector<ReportRow> rows = report_rows(results);
  if (json) {
    print(report_json(results, rows).dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } else {
    print(text_table(results, rows));
  }
  return {};
}

void print_dry_run(const std::vector<PlannedTask>& plan, const std::vector<CacheSpec>& specs) {
  std::string text = fmt::format("{} caches over:\n", specs.size());
  for (const PlannedTask& task : plan) {
    long long tokens = 0;
    for (const PreparedSample& s : task.samples) tokens += s.record.prompt_tokens;
    text += fmt::format("  {:30} context {:>7}: {:>4} prompts, {:>9} prompt tokens, {} records unusable\n", task.task,
                        task.context, task.samples.size(), tokens, task.skipped.size());
  }
  print(text);
}

Status bench(BenchFlags& flags) {
  std::vector<std::string> named;
  std::vector<AutoSpec> wishes;
  for (const std::string& kv : flags.kv) {
    if (!is_auto(kv)) {
      named.push_back(kv);
      continue;
    }
    KV_ASSIGN(AutoSpec wish, parse_auto(kv));
    wishes.push_back(std::move(wish));
  }
  KV_ASSIGN(std::vector<CacheSpec> specs, parse_specs(named));
  for (const std::string& task : flags.request.tasks) KV_TRY(make_task(task, flags.request.metric).status());
  flags.request.question_position = flags.question_position == "unseen" ? QuestionPosition::kUnseen : QuestionPosition::kSeen;
  FileSystem& files = FileSystem::real();
  EngineOptions options;
  KV_ASSIGN(options.model_path, resolve_model(flags.model.model));
  options.threads = resolved_threads(flags.model);
  options.fast_tier_bytes = flags.model.fast_tier_bytes;
  options.cancel = &interrupted();
  KV_ASSIGN(std::unique_ptr<Engine> engine, Engine::open(options));
  for (const CacheSpec& spec : specs) KV_TRY(check_spec(spec, engine->shape()));
  KV_ASSIGN(std::vector<PlannedTask> plan, plan_benchmark(flags.request, engine->vocabulary(), engine->shape(), files));
  for (const PlannedTask& task : plan) {
    for (const SkippedLine& line : task.skipped) print_note(fmt::format("{}: {}; left out", line.where(), line.reason));
  }
  std::vector<TaskCaches> caches;
  AutoSite site;
  site.model = flags.model.model;
  site.model_path = options.model_path;
  site.threads = options.threads;
  site.workload.sealed_before_question = flags.request.question_position == QuestionPosition::kUnseen;
  for (const PlannedTask& task : plan) {
    KV_ASSIGN(TaskCaches one, caches_of_task(specs, wishes, site, task));
    caches.push_back(std::move(one));
  }
  if (flags.dry_run) {
    print_dry_run(plan, specs);
    return {};
  }
  KV_ASSIGN(RunRecord run, run_record(flags, *engine, options.model_path));
  KV_ASSIGN(Store store, Store::open(files, flags.out, run));
  BenchmarkHooks hooks;
  hooks.cancel = &interrupted();
  hooks.progress = show_bench_progress;
  hooks.measure = [&](const PreparedSample& sample, std::span<const CacheSpec> missing, const Engine::Progress& progress) {
    return measure_sample(*engine, sample, missing, flags.request.question_position, progress);
  };
  BenchmarkSummary summary;
  if (wishes.empty()) {
    KV_ASSIGN(summary, run_benchmark(plan, specs, store, hooks));
  }
  for (std::size_t i = 0; i < plan.size() && !wishes.empty() && !summary.cancelled; ++i) {
    KV_ASSIGN(const BenchmarkSummary one, run_benchmark(std::span(plan).subspan(i, 1), caches[i].specs, store, hooks));
    summary.samples_run += one.samples_run;
    summary.samples_resumed += one.samples_resumed;
    summary.outcomes_failed += one.outcomes_failed;
    summary.cancelled = one.cancelled;
  }
  show_progress("", 1);
  KV_ASSIGN(StoredResults results, store.load());
  if (!wishes.empty()) {
    KV_ASSIGN(const std::vector<EvidenceCell> evidence, store.evidence());
    for (std::size_t i = 0; i < plan.size(); ++i) keep_task_outcomes(caches[i], plan[i], results, evidence);
  }
  KV_TRY(write_predictions(files, flags.out, results));
  KV_TRY(print_report(results, flags.json));
  if (summary.samples_resumed > 0)
    print_note(
        fmt::format("{} samples were in {} already; {} were run now", summary.samples_resumed, flags.out, summary.samples_run));
  if (summary.cancelled)
    return cancelled(fmt::format("interrupted; what was finished is in {}, and the same command goes on from there", flags.out));
  if (summary.outcomes_failed > 0) {
    return internal_error(fmt::format(
        "{} answers failed, for the reasons given with the table; the same command tries them again", summary.outcomes_failed));
  }
  return {};
}

}  // namespace

void add_bench(CLI::App& app, Action* action) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command =
      app.add_subcommand("bench", "several caches over tasks, one prefill for all; resumes where it was interrupted");
  add_model_flags(command, &flags->model);
  command->add_option("--kv", flags->kv, "a cache, or auto[:memory=BYTES,for=KIND,...]; repeatable. Differences are to full")
      ->required();
  command->add_option("--task", flags->request.tasks, "a task (kvartet tasks) or your own file of records; repeatable")
      ->required();
  command->add_option("--metric", flags->request.metric, "for your own file: how answers are scored");
  command->add_option("--context", flags->request.contexts, "tokens of prompt and answer; repeatable (default: the model's)")
      ->check(at_least(1));
  command->add_option("--samples", flags->request.samples, "prompts per task and context (default: the task's own)")
      ->check(at_least(1));
  command
      ->add_option("--question-position", flags->question_position,
                   "seen: the cache is sealed after the question; unseen: before it")
      ->capture_default_str()
      ->check(CLI::IsMember({"seen", "unseen"}));
  command->add_option("--data", flags->request.data_dir, "folder that holds longbench/, haystack/, ... (kvartet data check)");
  command->add_option("--seed", flags->request.seed, "of the generated tasks")->capture_default_str();
  command->add_flag("--dry-run", flags->dry_run, "only say what would be run");
  command->add_option("-o,--out", flags->out, "results folder: results.sqlite and predictions/")->required();
  command->add_flag("--json", flags->json, "one JSON document on standard output");
  command->callback([flags, action] { *action = [flags] { return bench(*flags); }; });
}

}  // namespace kvartet
