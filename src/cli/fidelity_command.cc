// kvartet fidelity: how far a cache's next-token distributions are from full's, on the user's own text.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/diagnose.h"
#include "bench/fidelity.h"
#include "bench/runner/benchmark.h"
#include "cli/command.h"
#include "cli/planning.h"
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
  std::string data_dir;
  FidelityRequest request;
  bool json = false;
  bool diagnose = false;
  bool sweep = false;
  bool free_given = false;
};

// For the planner, which knows something of these caches from now on. Nobody's measurement fails over it.
Status keep_for_planner(const FidelityFlags& flags, const std::string& model_path, std::span<const Token> tokens,
                        const FidelityReport& report) {
  std::optional<PlannerStore> store = open_planner_store();
  if (!store) return {};
  FidelityRecord record;
  KV_ASSIGN(record.model_hash, model_fingerprint(FileSystem::real(), model_path));
  record.model_name = flags.model.model;
  record.text_hash = hash_tokens(tokens);
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

// What is compared over: tokens, how many of them, and where in them the answer stands.
struct FidelityText {
  std::vector<Token> tokens;
  FidelityRequest request;
  std::vector<std::int32_t> gold;
};

Result<FidelityText> text_of_file(const FidelityFlags& flags, const std::string& text, const Engine& engine) {
  FidelityText out{.tokens = {}, .request = flags.request, .gold = {}};
  KV_ASSIGN(out.tokens, build_prompt(engine.vocabulary(), PromptForm::kRaw, {text, ""}));
  return out;
}

// The first sample's prompt, and its gold answer as the text that goes on.
Result<FidelityText> text_of_task(const FidelityFlags& flags, const Engine& engine) {
  BenchmarkRequest request;
  request.tasks = {flags.task};
  request.contexts = {flags.request.context};
  request.samples = 1;
  request.data_dir = flags.data_dir;
  KV_ASSIGN(const std::vector<PlannedTask> planned,
            plan_benchmark(request, engine.vocabulary(), engine.shape(), FileSystem::real()));
  const PreparedSample& sample = planned.front().samples.front();
  if (sample.gold.size() < 2) {
    return usage_error(fmt::format("the answer of {} has {}, too few to compare over; choose another task", flags.task,
                                   counted(sample.gold.size(), "token")));
  }
  FidelityText out{.tokens = sample.prompt(), .request = flags.request, .gold = sample.gold_positions};
  out.tokens.insert(out.tokens.end(), sample.gold.begin(), sample.gold.end());
  out.request.context = static_cast<int>(out.tokens.size());
  out.request.tokens = static_cast<int>(sample.gold.size()) - 1;
  out.request.windows = 1;
  return out;
}

Status check_flags(const FidelityFlags& flags) {
  if (flags.file.empty() == flags.task.empty()) {
    return usage_error("fidelity compares over a text: give one of -f FILE and --task TASK");
  }
  if (flags.sweep && !flags.diagnose) return usage_error("--sweep belongs to --diagnose; give both");
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
  KV_ASSIGN(FidelityText text, flags.task.empty() ? text_of_file(flags, read, *engine) : text_of_task(flags, *engine));
  // What nobody asked for is shortened to what fits; the table says how far the runs go.
  if (!flags.free_given) text.request.free_tokens = std::min(text.request.free_tokens, free_room(text.request, engine->shape()));
  KV_ASSIGN(FidelityReport report,
            measure_fidelity(*engine, text.tokens, text.request, specs, [](double share) { show_progress("comparing", share); }));
  DiagnosisReport diagnosis;
  if (flags.diagnose) {
    KV_ASSIGN(diagnosis, diagnose_selection(*engine, text.tokens, text.request, specs, {.gold = text.gold, .sweep = flags.sweep},
                                            [](double share) { show_progress("diagnosing", share); }));
  }
  show_progress("", 1);
  // An answer's few tokens say too little of a cache.
  const Status kept = flags.task.empty() ? keep_for_planner(flags, options.model_path, text.tokens, report) : Status();
  if (!kept.ok()) print_note("note: the planner will not know of this: " + kept.message());
  if (flags.diagnose && flags.json) {
    nlohmann::json document = fidelity_json(report);
    document["diagnosis"] = diagnosis_json(diagnosis);
    print(document.dump(1) + "\n");
    return {};
  }
  if (flags.diagnose) {
    print(fidelity_table(report) + diagnosis_table(diagnosis));
    return {};
  }
  print(flags.json ? fidelity_json(report).dump(1) + "\n" : fidelity_table(report));
  return {};
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
      "instead of a text: the first prompt of this task at --context tokens, and its gold answer; with --diagnose also "
      "whether the rows that hold the answer are found");
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
  command->add_flag("--json", flags->json, "one JSON document on standard output");
  command->callback([flags, action, command] {
    flags->free_given = command->count("--free") > 0;
    if (flags->request.free_tokens == 0) flags->request.free_starts = 0;
    *action = [flags] { return fidelity(*flags); };
  });
}

}  // namespace kvartet
