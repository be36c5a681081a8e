// kvartet fidelity: how far a cache's next-token distributions are from full's, on the user's own text.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/diagnose.h"
#include "bench/fidelity.h"
#include "bench/runner/benchmark.h"
#include "bench/tasks/own_file.h"
#include "bench/tasks/task.h"
#include "cli/command.h"
#include "cli/json_output.h"
#include "cli/planning.h"
#include "cli/prefill_keeping.h"
#include "cli/task_notes.h"
#include "core/counted.h"
#include "core/file_system.h"
#include "engine/engine.h"
#include "engine/prompt.h"
#include "results/fingerprint.h"

namespace kvartet {
namespace {

struct FidelityFlags {
  ModelFlags model;
  std::vector<std::string> kv;
  std::string file;
  std::string task;  // instead of a file
  int samples = 1;   // prompts of it
  std::string data_dir;
  std::optional<std::string> keep_prefill;
  FidelityRequest request;
  bool json = false;
  bool diagnose = false;
  bool sweep = false;
  bool free_given = false;
  bool samples_given = false;
  bool windows_given = false;
};

// All prompts are held at once: more than anybody waits for, and no more memory than a few GB at the longest contexts.
constexpr int kMostSamples = 10'000;

// For the planner, which knows something of these caches from now on. Nobody's measurement fails over it.
Status keep_for_planner(const FidelityFlags& flags, const std::string& model_path, const std::string& text_hash,
                        const FidelityReport& report) {
  std::optional<PlannerStore> store = open_planner_store();
  if (!store) return {};
  FidelityRecord record;
  KV_ASSIGN(record.model_hash, model_fingerprint(FileSystem::real(), model_path));
  record.model_name = flags.model.model;
  record.text_hash = text_hash;
  record.prefix_tokens = report.prefix_tokens;
  record.tokens = report.tokens;
  record.measured = utc_timestamp();
  std::vector<FidelityRecord> records;
  for (const FidelityRow& row : report.rows) {
    record.spec = row.spec;
    record.kl_mean = row.kl_mean;
    record.kl_sd = row.kl_sd;
    records.push_back(record);
  }
  return store->keep(records);
}

struct Texts {
  std::vector<ComparedText> compared;
  std::string hash;  // of a file's whole text
};

Result<Texts> windows_of_file(const FidelityFlags& flags, const std::string& text, const Engine& engine) {
  KV_ASSIGN(const std::vector<Token> tokens, build_prompt(engine.vocabulary(), PromptForm::kRaw, {text, ""}));
  FidelityRequest windows = flags.request;
  windows.free_starts = 0;  // how far free runs go is looked at when they are known to fit
  Texts texts{.compared = {}, .hash = hash_tokens(tokens)};
  KV_ASSIGN(texts.compared, windows_of(engine, tokens, windows));
  return texts;
}

// The first samples' prompts, and their gold answers as the text that goes on.
Result<Texts> texts_of_task(const FidelityFlags& flags, const Engine& engine) {
  BenchmarkRequest request;
  request.tasks = {flags.task};
  request.contexts = {flags.request.context};
  request.samples = flags.samples;
  request.data_dir = flags.data_dir;
  request.essays_dir = essays_directory();
  request.cancel = &interrupted();
  KV_ASSIGN(const TaskSpec named, parse_task_spec(flags.task));
  if (is_record_file(named.name)) request.metric = "likelihood";  // the user's own records need one, and nothing is scored here
  KV_ASSIGN(const std::vector<PlannedTask> planned,
            plan_benchmark(request, engine.vocabulary(), engine.shape(), FileSystem::real()));
  print_task_notes(planned);
  Texts texts;
  for (const PreparedSample& sample : planned.front().samples) {
    const int gold = static_cast<int>(sample.gold.size());
    if (gold < 2) continue;
    ComparedText& text = texts.compared.emplace_back();
    text.tokens = sample.prompt();
    text.compared = std::min(gold - 1, flags.request.tokens);
    text.tokens.insert(text.tokens.end(), sample.gold.begin(), sample.gold.begin() + text.compared + 1);
    text.gold = sample.gold_positions;
  }
  const std::size_t all = planned.front().samples.size();
  const std::size_t short_ones = all - texts.compared.size();
  if (short_ones == all) {
    return usage_error(
        fmt::format("the answers of {} have fewer than two tokens, too few to compare over; choose another task", flags.task));
  }
  if (short_ones > 0) {
    print_note(fmt::format("note: {} of {} left out: an answer of fewer than two tokens is too short to compare over", short_ones,
                           counted(all, "prompt")));
  }
  return texts;
}

// What nobody asked for is shortened to what fits; the table says how far the runs go.
int fitting_free_tokens(const FidelityFlags& flags, std::span<const ComparedText> texts, const ModelShape& shape) {
  int fitting = flags.request.free_tokens;
  for (const ComparedText& text : texts) {
    FidelityRequest one = flags.request;
    one.context = static_cast<int>(text.tokens.size());
    one.tokens = text.compared;
    fitting = std::min(fitting, free_room(one, shape));
  }
  return fitting;
}

// Both passes over a text, and every later run with other caches, then take its prefix from the folder.
Result<std::unique_ptr<KeptPrefills>> keep_prefixes(const std::string& directory, const std::string& model_path,
                                                    std::span<const ComparedText> texts, Engine& engine) {
  KV_ASSIGN(std::unique_ptr<KeptPrefills> kept, open_kept_prefills(directory, model_path));
  std::vector<std::vector<Token>> prefixes;
  for (const ComparedText& text : texts) prefixes.emplace_back(text.prefix().begin(), text.prefix().end());
  KV_ASSIGN(const KeptPrefills::Plan plan, kept->plan(engine.shape(), prefixes));
  KV_TRY(kept->prepare(plan));
  engine.use_kept_prefills(kept.get());
  return kept;
}

// Which selecting caches are in no diagnosis.
void note_undiagnosed(std::span<const CacheSpec> specs, const DiagnosisReport& diagnosis) {
  if (diagnosis.rows.empty()) return print_note("note: nothing is diagnosed: none of the caches selects rows of these texts");
  for (const CacheSpec& spec : specs) {
    const bool there = std::any_of(diagnosis.rows.begin(), diagnosis.rows.end(),
                                   [&](const DiagnosisRow& row) { return row.spec == spec.canonical; });
    if (spec.offload && !there)
      print_note(fmt::format("note: {} is in no diagnosis: it takes every row of these texts", spec.canonical));
  }
}

std::string result_text(const FidelityFlags& flags, const FidelityReport& report, const DiagnosisReport& diagnosis) {
  if (!flags.json) return fidelity_table(report) + (diagnosis.rows.empty() ? "" : diagnosis_table(diagnosis));
  nlohmann::json document = fidelity_json(report);
  if (flags.diagnose) document["diagnosis"] = diagnosis_json(diagnosis);
  return json_text(document);
}

Status check_flags(const FidelityFlags& flags) {
  if (flags.file.empty() == flags.task.empty()) {
    return usage_error("fidelity compares over a text: give one of -f FILE and --task TASK");
  }
  if (flags.sweep && !flags.diagnose) return usage_error("--sweep belongs to --diagnose; give both");
  if (flags.samples_given && flags.task.empty()) {
    return usage_error("--samples counts the prompts of a --task; of a text give --windows");
  }
  if (flags.windows_given && flags.file.empty()) {
    return usage_error("--windows counts those of a text (-f); of a task give --samples");
  }
  if (!flags.data_dir.empty() && flags.task.empty()) {
    return usage_error("--data is the folder of a --task's files, and -f names a text; leave --data out");
  }
  return {};
}

Status fidelity(const FidelityFlags& flags) {
  KV_TRY(check_flags(flags));
  KV_ASSIGN(std::vector<CacheSpec> specs, parse_specs(flags.kv));
  std::string read;
  if (!flags.file.empty()) {
    KV_ASSIGN(read, FileSystem::real().read_file(flags.file));
  }
  KV_ASSIGN(EngineOptions options, engine_options(flags.model));
  options.bf16_copy = true;  // activation rounding of low-bit products would drown q8_0 (DESIGN 6)
  KV_ASSIGN(std::unique_ptr<Engine> engine, Engine::open(options));
  KV_ASSIGN(const Texts texts, flags.task.empty() ? windows_of_file(flags, read, *engine) : texts_of_task(flags, *engine));
  FidelityRequest request = flags.request;
  if (!flags.free_given) request.free_tokens = fitting_free_tokens(flags, texts.compared, engine->shape());
  std::unique_ptr<KeptPrefills> kept;
  if (flags.keep_prefill) {
    KV_ASSIGN(kept, keep_prefixes(*flags.keep_prefill, options.model_path, texts.compared, *engine));
  }
  KV_ASSIGN(const FidelityReport report,
            compare_texts(*engine, texts.compared, request, specs, [](double share) { show_progress("comparing", share); }));
  DiagnosisReport diagnosis;
  if (flags.diagnose) {
    KV_ASSIGN(diagnosis, diagnose_selection(*engine, texts.compared, specs, {.sweep = flags.sweep},
                                            [](double share) { show_progress("diagnosing", share); }));
  }
  show_progress("", 1);
  // An answer's few tokens say too little of a cache.
  const Status noted = flags.task.empty() ? keep_for_planner(flags, options.model_path, texts.hash, report) : Status();
  if (!noted.ok()) print_note("note: the planner will not know of this: " + noted.message());
  if (flags.diagnose) note_undiagnosed(specs, diagnosis);
  print(result_text(flags, report, diagnosis));
  return kept == nullptr ? Status() : report_keeping(*kept, *flags.keep_prefill);
}

}  // namespace

void add_fidelity(CLI::App& app, Action* action) {
  auto flags = std::make_shared<FidelityFlags>();
  flags->request.free_starts = 4;
  flags->request.layer_steps = 4;
  CLI::App* command = app.add_subcommand(
      "fidelity",
      "KL divergence, top-1 agreement, perplexity, first divergence and layer errors of caches against full, on your text; "
      "kvartet plan knows of it from then on");
  add_model_flags(command, &flags->model);
  command->add_option("--kv", flags->kv, "a cache; repeatable")->required();
  command->add_option("-f,--file", flags->file, "the text");
  command->add_option(
      "--task", flags->task,
      "instead of a text: prompts of this task at --context tokens, and of each gold answer the first --tokens; with --diagnose "
      "also whether the rows that hold the answer are found");
  command->add_option("--samples", flags->samples, "prompts of the task, from its first on; two or more give intervals")
      ->capture_default_str()
      ->check(whole_number(1, kMostSamples));
  command->add_option("--data", flags->data_dir, "the folder of the data files, for tasks that read some");
  command->add_option("--context", flags->request.context, "tokens of a window of the text")
      ->capture_default_str()
      ->check(at_least(1));
  command->add_option("--tokens", flags->request.tokens, "the last of them, over which distributions are compared")
      ->capture_default_str()
      ->check(at_least(1));
  command->add_option("--windows", flags->request.windows, "windows, spread evenly over the text")
      ->capture_default_str()
      ->check(at_least(1));
  command
      ->add_option(
          "--free", flags->request.free_tokens,
          "tokens that are written without the text, from four places of each window, to see when a cache first differs; "
          "0: none")
      ->capture_default_str()
      ->check(at_least(0));
  command->add_flag("--diagnose", flags->diagnose,
                    "for caches that select rows: recall, attention mass, and where the error comes from");
  command->add_flag("--sweep", flags->sweep,
                    "with --diagnose: each of these caches also at budgets from 1/1024 to 1/4 of the prompt");
  command->add_option("--keep-prefill", flags->keep_prefill,
                      "a folder for the exact rows of every prefix: they are computed once, also for later runs with other "
                      "caches, with the same results. Large");
  command->add_flag("--json", flags->json, "one JSON document on standard output");
  command->callback([flags, action, command] {
    flags->free_given = command->count("--free") > 0;
    flags->samples_given = command->count("--samples") > 0;
    flags->windows_given = command->count("--windows") > 0;
    if (flags->request.free_tokens == 0) flags->request.free_starts = 0;
    *action = [flags] { return fidelity(*flags); };
  });
}

}  // namespace kvartet
