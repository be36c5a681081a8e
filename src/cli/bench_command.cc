// kvartet bench: tasks x contexts x caches into a results folder.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "bench/presets.h"
#include "bench/runner/benchmark.h"
#include "bench/runner/estimate.h"
#include "bench/runner/predictions.h"
#include "bench/runner/solo.h"
#include "bench/runner/solo_child.h"
#include "bench/tasks/task.h"
#include "cache/spec_list.h"
#include "cli/auto_spec.h"
#include "cli/auto_tasks.h"
#include "cli/bench_progress.h"
#include "cli/command.h"
#include "cli/json_output.h"
#include "cli/learning.h"
#include "cli/prefill_keeping.h"
#include "cli/self_checking.h"
#include "cli/shared_prompts.h"
#include "cli/task_notes.h"
#include "core/bytes_text.h"
#include "core/clock.h"
#include "core/counted.h"
#include "core/file_system.h"
#include "engine/engine.h"
#include "report/claims.h"
#include "report/rows.h"
#include "report/text_table.h"
#include "results/fingerprint.h"
#include "results/store.h"

namespace kvartet {
namespace {

constexpr int kMostSamples = 100'000;  // of one task and length: all of their prompts are in memory at once

struct BenchFlags {
  ModelFlags model;
  std::optional<std::string> preset;
  std::vector<std::string> kv;
  BenchmarkRequest request;
  std::vector<std::string> question_positions = {"seen"};
  int solo = 0;
  std::string out;
  bool json = false;
  bool dry_run = false;
  std::optional<std::string> keep_prefill;
  SelfCheckFlags self_check;
  LearnFlags learn;
};

std::string shape_text(const ModelShape& s) {
  const LayerShape& layer = s.layers.front();
  return fmt::format("{}, {}, {}/{} heads of {}, hidden {}", s.architecture, counted(s.layer_count(), "layer"), layer.heads,
                     layer.kv_heads, layer.head_dim, s.hidden);
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

Status print_report(const StoredResults& results, bool json) {
  const std::vector<ReportRow> rows = report_rows(results);
  if (json) {
    nlohmann::json document = report_json(results, rows);
    document["claims"] = claims_json(find_claims(results));
    print(json_text(document));
  } else {
    print(text_table(results, rows));
    print(claims_text(find_claims(results)));
  }
  return {};
}

// Rates of a short prompt, for the estimate of a dry run.
Result<RunRates> probe_rates(Engine& engine, double open_s) {
  constexpr int kPrompt = 256;
  constexpr int kSteps = 8;
  const int tokens = std::min(kPrompt, engine.shape().context - kSteps);
  if (tokens < 1) return exhausted("The model's context is too short to measure anything.");
  const std::vector<Token> prompt(static_cast<std::size_t>(tokens), Token{1});
  KV_ASSIGN(const CacheSpec full, parse_spec("full"));
  KV_ASSIGN(std::vector<Sequence> sequences, engine.prefill(prompt, {&full, 1}));
  Sequence* sequence = sequences.data();
  GenerateOptions options;
  options.max_tokens = kSteps;
  options.ignore_end = true;
  KV_ASSIGN(const std::vector<Completion> completions, engine.generate({&sequence, 1}, options));
  RunRates rates;
  rates.open_s = open_s;
  rates.prefill_tokens_per_s = tokens / std::max(1e-6, sequences.front().prefill_s);
  rates.decode_tokens_per_s = (kSteps - 1) / std::max(1e-6, completions.front().decode_s);
  return rates;
}

void print_dry_run(const std::vector<PlannedTask>& plan, const std::vector<CacheSpec>& specs, const RunEstimate& estimate) {
  std::string text = counted(specs.size(), "cache") + ":\n";
  for (const CacheSpec& spec : specs) text += fmt::format("  {}\n", spec.canonical);
  text += "over:\n";
  for (const PlannedTask& task : plan) {
    long long tokens = 0;
    for (const PreparedSample& s : task.samples) tokens += s.record.prompt_tokens;
    text += fmt::format("  {:30} context {:>7}: {:>12}, {:>23}, {} unusable{}\n", task.task, task.context,
                        counted(task.samples.size(), "prompt"), counted(tokens, "prompt token"),
                        counted(task.skipped.size(), "record"), question_suffix(task.position));
  }
  if (estimate.solo_runs > 0) {
    text += fmt::format("and {} of a cache alone, about {:.1f} hours of the following\n", counted(estimate.solo_runs, "run"),
                        estimate.solo_hours);
  }
  text += fmt::format(
      "about {:.1f} hours if every answer were as long as allowed; at most {} of caches at once, {} of them in "
      "memory\n",
      estimate.hours, bytes_text(estimate.cache_bytes), bytes_text(estimate.fast_bytes));
  if (estimate.shared_prompts > 0) {
    text += fmt::format(
        "{} to be computed from where a document's first prompt has read it; at most {} of memory hold the document's "
        "rows meanwhile\n",
        counted(estimate.shared_prompts, "prompt"), bytes_text(estimate.shared_bytes));
  }
  print(text);
}

// What --kv asks for: caches by name, and choices left to the planner.
struct AskedCaches {
  std::vector<CacheSpec> named;
  std::vector<AutoSpec> wishes;
};

Result<AskedCaches> asked_caches(const std::vector<std::string>& texts) {
  AskedCaches asked;
  std::vector<std::string> names;
  for (const std::string& text : texts) {
    if (!is_auto(text)) {
      names.push_back(text);
      continue;
    }
    KV_ASSIGN(AutoSpec wish, parse_auto(text));
    asked.wishes.push_back(std::move(wish));
  }
  KV_ASSIGN(asked.named, parse_specs(names));
  return asked;
}

// The caches, and the tasks with their prompts: from the preset where one is named, with what the flags say in its place.
struct Work {
  std::vector<CacheSpec> specs;
  std::vector<PlannedTask> plan;
  AnswerCaps caps;
};

void print_notes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) print_note(note);
}

Result<Work> plan_work(const BenchFlags& flags, const Preset* preset, const AskedCaches& asked, const Engine& engine) {
  FileSystem& files = FileSystem::real();
  Work work;
  work.specs = asked.named;
  for (const CacheSpec& spec : work.specs) KV_TRY(check_spec(spec, engine.shape()));
  if (preset == nullptr) {
    KV_ASSIGN(work.plan, plan_benchmark(flags.request, engine.vocabulary(), engine.shape(), files));
    return work;
  }
  if (work.specs.empty() && asked.wishes.empty()) {
    KV_ASSIGN(PresetSpecs chosen, preset_specs(*preset, engine.shape()));
    print_notes(chosen.notes);
    work.specs = std::move(chosen.specs);
    work.caps = std::move(chosen.caps);
  }
  KV_ASSIGN(const PresetRequests requests, preset_requests(*preset, flags.request, engine.shape(), files));
  print_notes(requests.notes);
  KV_ASSIGN(PresetPlan planned, plan_preset(requests.requests, engine.vocabulary(), engine.shape(), files));
  print_notes(planned.notes);
  work.plan = std::move(planned.tasks);
  return work;
}

// Those asked for by name and those the planner chose, each once.
std::vector<CacheSpec> all_specs(std::span<const CacheSpec> named, std::span<const TaskCaches> chosen) {
  std::vector<CacheSpec> all(named.begin(), named.end());
  for (const TaskCaches& of_task : chosen) {
    for (const CacheSpec& spec : of_task.specs) add_once(&all, spec);
  }
  return all;
}

Result<const Preset*> chosen_preset(const BenchFlags& flags) {
  const BenchmarkRequest& asked = flags.request;
  const bool names_work = flags.preset.has_value() || !flags.kv.empty() || !asked.tasks.empty() || !asked.metric.empty();
  KV_TRY(check_learn_flags(flags.learn, names_work));
  if (flags.learn.on) return static_cast<const Preset*>(nullptr);
  if (flags.preset) return find_preset(*flags.preset);
  if (flags.kv.empty())
    return usage_error("--kv is required; name a cache, for example --kv full, or a whole study with --preset.");
  if (flags.request.tasks.empty())
    return usage_error("--task is required; name a task, for example --task needle, or a whole study with --preset.");
  return static_cast<const Preset*>(nullptr);
}

// Seen first, then unseen and second, whatever the order on the command line. "both" are those of one and the same prompt.
std::vector<QuestionPosition> asked_positions(const std::vector<std::string>& names) {
  std::vector<QuestionPosition> out;
  for (const QuestionPosition position : kQuestionPositions) {
    const bool asked = std::ranges::any_of(names, [&](const std::string& name) {
      return name == question_position_name(position) || (name == "both" && position != QuestionPosition::kSecond);
    });
    if (asked) out.push_back(position);
  }
  return out;
}

std::vector<const PreparedSample*> samples_of(const std::vector<PlannedTask>& plan) {
  std::vector<const PreparedSample*> samples;
  for (const PlannedTask& task : plan) {
    for (const PreparedSample& sample : task.samples) samples.push_back(&sample);
  }
  return samples;
}

// One prefill for all caches of a sample. Where tasks have caches of their own, they run one after the other.
Result<BenchmarkSummary> bench_shared(Engine& engine, const std::vector<PlannedTask>& plan, const std::vector<TaskCaches>& caches,
                                      const AnswerCaps& caps, bool same_caches, KeptPrefills* kept, Store& store) {
  SharedPrompts shared(engine);
  BenchmarkHooks hooks;
  hooks.cancel = &interrupted();
  ProgressLines lines;
  hooks.progress = [&](const BenchmarkProgress& progress) { show_bench_progress(progress, &lines); };
  hooks.measure = [&](const PreparedSample& sample, std::span<const CacheSpec> missing, const Engine::Progress& progress) {
    shared.begin();
    Result<std::vector<Outcome>> outcomes =
        measure_capped_sample(engine, sample, missing, sample.record.key.position, caps, progress);
    shared.end();
    return outcomes;
  };
  hooks.end_document = [&] { engine.drop_shared_prefix(); };
  engine.use_kept_prefills(kept);
  if (kept != nullptr) {
    hooks.begin = [&](std::span<const PreparedSample* const> samples) { return prepare_keeping(*kept, engine.shape(), samples); };
  }
  BenchmarkSummary summary;
  if (same_caches) {
    KV_ASSIGN(summary, run_benchmark(plan, caches.front().specs, store, hooks));
  }
  for (std::size_t i = 0; i < plan.size() && !same_caches && !summary.cancelled; ++i) {
    KV_ASSIGN(const BenchmarkSummary one, run_benchmark(std::span(plan).subspan(i, 1), caches[i].specs, store, hooks));
    summary.samples_run += one.samples_run;
    summary.samples_resumed += one.samples_resumed;
    summary.outcomes_failed += one.outcomes_failed;
    summary.cancelled = one.cancelled;
  }
  show_progress("", 1);
  shared.print_notes();
  return summary;
}

// Each cache alone, once the shared runs are done. `caches`: those of each task of the plan.
Result<SoloSummary> bench_solo(const BenchFlags& flags, const SoloSettings& settings, const std::vector<PlannedTask>& plan,
                               const std::vector<TaskCaches>& caches, Store& store) {
  std::vector<SoloWork> work;
  for (const PlannedTask* task : solo_tasks(plan)) {
    work.push_back({task, caches[static_cast<std::size_t>(task - plan.data())].specs});
  }
  const SoloProgram program = {"/proc/self/exe", settings, &interrupted()};
  SoloHooks hooks;
  hooks.cancel = &interrupted();
  ProgressLines lines;
  hooks.progress = [&](const SoloProgress& progress) { show_solo_progress(progress, &lines); };
  hooks.measure = [&](const PreparedSample& sample, const CacheSpec& spec, double limit_s) {
    return run_alone(program, sample, spec, limit_s);
  };
  KV_ASSIGN(SoloSummary summary, run_solo(work, flags.solo, store, hooks));
  show_progress("", 1);
  for (const std::string& note : summary.notes) print_note(note);
  if (summary.resumed > 0)
    print_note(fmt::format("runs of a cache alone: {} in {} already, {} made now", summary.resumed, flags.out, summary.run));
  return summary;
}

// What the command ends with when everything is stored and printed.
Status ending(const BenchmarkSummary& summary, const SoloSummary& solo, const std::string& folder) {
  if (summary.cancelled || solo.cancelled)
    return cancelled(fmt::format("interrupted; what was finished is in {}, and the same command goes on from there", folder));
  if (summary.outcomes_failed > 0) {
    return internal_error(fmt::format("{} failed, for the reasons given with the table; the same command tries again",
                                      counted(summary.outcomes_failed, "answer")));
  }
  if (solo.failed > 0) {
    return internal_error(
        fmt::format("{} of a cache alone failed, for the reasons given with the table; the same command tries again",
                    counted(solo.failed, "run")));
  }
  return {};
}

// A run refuses stored results that are damaged, and so does its dry run, which writes nothing.
Status check_stored(const std::string& directory) {
  const std::string path = fmt::format("{}/{}", directory, kStoreFile);
  std::error_code ignored;
  if (!FileSystem::real().exists(path) || std::filesystem::is_empty(path, ignored)) return {};  // a run begins there
  KV_ASSIGN(Store store, Store::open_for_reading(FileSystem::real(), directory));
  return store.load().status();
}

// What --learn measures, within its hours, said before it begins.
Result<std::vector<TaskCaches>> learned_caches(const BenchFlags& flags, Engine& engine, double open_s, Lessons* lessons,
                                               std::vector<PlannedTask>* plan) {
  if (flags.learn.hours > 0) {
    KV_ASSIGN(const RunRates rates, probe_rates(engine, open_s));
    KV_TRY(fit_into_hours(flags.learn.hours, *plan, engine.shape(), rates, lessons));
  }
  KV_ASSIGN(std::vector<TaskCaches> caches, caches_of_lessons(*lessons, plan));
  if (!flags.json || flags.dry_run) print(lessons_text(*lessons));
  return caches;
}

Status bench(BenchFlags& flags) {
  KV_ASSIGN(const SelfCheckMode self_check, self_check_mode(flags.self_check));
  KV_ASSIGN(const Preset* preset, chosen_preset(flags));
  if (preset != nullptr) flags.request.form = preset->form;
  if (flags.solo > 0 && flags.request.form == "paper") {
    return usage_error(
        fmt::format("--solo times whole answers, but {} cuts those of some caches; leave one of the two out", preset->name));
  }
  KV_ASSIGN(AskedCaches asked, asked_caches(flags.kv));
  const std::vector<AutoSpec>& wishes = asked.wishes;
  for (const std::string& task : flags.request.tasks) KV_TRY(make_task(task, flags.request.metric).status());
  flags.request.question_positions = asked_positions(flags.question_positions);
  flags.request.essays_dir = essays_directory();
  flags.request.cancel = &interrupted();
  FileSystem& files = FileSystem::real();
  KV_ASSIGN(const EngineOptions options, engine_options(flags.model));
  std::optional<Lessons> lessons;
  const LearnSite site_of_learning = {options.model_path, options.threads, flags.out, flags.request.data_dir};
  if (flags.learn.on) {
    KV_ASSIGN(lessons, plan_lessons(flags.learn, site_of_learning, {}, &flags.request));
    print_notes(lessons->notes);
    if (lessons->empty()) {
      if (flags.json) print("{\"rows\": []}\n");
      (flags.json ? print_note : print)(lessons_text(*lessons));
      return {};
    }
  }
  if (flags.dry_run) KV_TRY(check_stored(flags.out));
  const double opening = Clock::real().seconds();
  KV_ASSIGN(std::unique_ptr<Engine> engine, Engine::open(options));
  const double open_s = Clock::real().seconds() - opening;
  Work work;
  if (lessons) {
    KV_ASSIGN(work.plan,
              plan_fitting(flags.learn, site_of_learning, engine->vocabulary(), engine->shape(), &flags.request, &*lessons));
    print_notes(lessons->notes);
  } else {
    KV_ASSIGN(work, plan_work(flags, preset, asked, *engine));
  }
  const std::vector<CacheSpec>& specs = work.specs;
  const std::vector<PlannedTask>& plan = work.plan;
  print_task_notes(plan);
  std::vector<TaskCaches> caches;
  if (lessons) {
    KV_ASSIGN(caches, learned_caches(flags, *engine, open_s, &*lessons, &work.plan));
    if (flags.dry_run) return {};
  }
  AutoSite site;
  site.model = flags.model.model;
  site.model_path = options.model_path;
  site.threads = options.threads;
  for (std::size_t i = caches.size(); i < plan.size(); ++i) {
    KV_ASSIGN(TaskCaches one, caches_of_task(specs, wishes, site, plan[i]));
    caches.push_back(std::move(one));
  }
  std::unique_ptr<KeptPrefills> kept;
  if (flags.keep_prefill) {
    KV_ASSIGN(kept, open_kept_prefills(*flags.keep_prefill, options.model_path));
  }
  if (flags.dry_run) {
    KV_ASSIGN(const RunRates rates, probe_rates(*engine, open_s));
    print_dry_run(plan, specs, estimate_run(plan, specs, engine->shape(), rates, flags.solo));
    if (kept == nullptr) return {};
    KV_ASSIGN(const KeptPrefills::Plan keeping, plan_keeping(*kept, engine->shape(), samples_of(plan)));
    print(keeping_text(keeping, *flags.keep_prefill));
    return {};
  }
  KV_ASSIGN(RunRecord run, run_record(flags, *engine, options.model_path));
  const auto look_at_caches = [&] { return check_caches(*engine, options.model_path, all_specs(specs, caches), self_check); };
  // What is refused leaves no folder behind; one that is there may refuse at once.
  const bool is_new = !files.exists(fmt::format("{}/{}", flags.out, kStoreFile));
  if (is_new) {
    KV_TRY(look_at_caches());
    if (kept != nullptr) KV_TRY(prepare_keeping(*kept, engine->shape(), samples_of(plan)));
  }
  KV_ASSIGN(Store store, Store::open(files, flags.out, run));
  if (!is_new) KV_TRY(look_at_caches());
  const bool same_caches = wishes.empty() && !lessons;
  KV_ASSIGN(const BenchmarkSummary summary, bench_shared(*engine, plan, caches, work.caps, same_caches, kept.get(), store));
  SoloSummary solo;
  if (flags.solo > 0 && !summary.cancelled) {
    engine.reset();  // a cache alone is alone in memory, too
    const SoloSettings settings = {options.model_path, options.threads, options.fast_tier_bytes, options.tier_directory};
    KV_ASSIGN(solo, bench_solo(flags, settings, plan, caches, store));
  }
  KV_ASSIGN(StoredResults results, store.load());
  if (!wishes.empty()) {
    KV_ASSIGN(const std::vector<EvidenceCell> evidence, store.evidence());
    for (std::size_t i = 0; i < plan.size(); ++i) keep_task_outcomes(caches[i], plan[i], results, evidence);
  }
  KV_TRY(write_predictions(files, flags.out, results));
  KV_TRY(print_report(results, flags.json));
  if (summary.samples_resumed > 0)
    print_note(fmt::format("samples: {} in {} already, {} run now", summary.samples_resumed, flags.out, summary.samples_run));
  const Status keeping = kept == nullptr ? Status() : report_keeping(*kept, *flags.keep_prefill);
  KV_TRY(ending(summary, solo, flags.out));
  return keeping;
}

}  // namespace

void add_bench(CLI::App& app, Action* action) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command =
      app.add_subcommand("bench", "several caches over tasks, one prefill for all; resumes where it was interrupted");
  add_model_flags(command, &flags->model);
  std::string names;
  for (const Preset& preset : presets()) names += fmt::format("\n{}: {}", preset.name, preset.summary);
  command->add_option("--preset", flags->preset, "a whole study; --kv, --task, --context, --samples replace parts of it" + names);
  command->add_option("--kv", flags->kv, "a cache, or auto[:memory=BYTES,for=KIND,...]; repeatable. Differences are to full");
  command->add_option("--task", flags->request.tasks, "a task (kvartet tasks) or your own file of records; repeatable");
  command->add_option("--metric", flags->request.metric, "for your own file: how answers are scored (kvartet tasks)");
  command
      ->add_option("--context", flags->request.contexts,
                   "room for prompt and answer together, in tokens; repeatable (default: the model's context)")
      ->check(at_least(1));
  command->add_option("--samples", flags->request.samples, "prompts per task and context (default: the task's own)")
      ->check(whole_number(1, kMostSamples));
  command
      ->add_option("--question-position", flags->question_positions,
                   "seen: the cache is sealed after the question; unseen: before it; both: once each, compared in the report; "
                   "second: sealed after another question about the document (:questions=2 or more), whose right answer and this "
                   "question follow in a conversation; repeatable")
      ->default_str("seen")
      ->check(CLI::IsMember({"seen", "unseen", "second", "both"}));
  command
      ->add_option(
          "--solo", flags->solo,
          fmt::format("also time every cache alone, in a process of its own, this often per task and context; {} or more "
                      "(0: only the times that all caches share)",
                      kSoloRepeats))
      ->capture_default_str()
      ->check(whole_number(0, kMostSoloRepeats));
  command->add_option("--data", flags->request.data_dir, "folder that holds longbench/, haystack/, ... (kvartet data check)");
  command->add_option("--seed", flags->request.seed, "of the generated tasks")->capture_default_str()->check(seed_number());
  command->add_option("--keep-prefill", flags->keep_prefill,
                      "a folder for the exact rows of every prompt: a cache that is benchmarked later reads them instead of "
                      "prefilling, with the same results. Large; --dry-run tells how large");
  add_self_check_flags(command, &flags->self_check);
  add_learn_flags(command, &flags->learn);
  command->add_flag("--dry-run", flags->dry_run, "only say what would be run");
  command->add_option("-o,--out", flags->out, "results folder: results.sqlite and predictions/")->required();
  command->add_flag("--json", flags->json, "one JSON document on standard output");
  command->callback([flags, action] { *action = [flags] { return bench(*flags); }; });
}

}  // namespace kvartet
