// kvartet fidelity: how far a cache's next-token distributions are from full's, on the user's own text.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/diagnose.h"
#include "bench/fidelity.h"
#include "cli/command.h"
#include "cli/planning.h"
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
  FidelityRequest request;
  bool json = false;
  bool diagnose = false;
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

Status fidelity(FidelityFlags& flags) {
  KV_ASSIGN(std::vector<CacheSpec> specs, parse_specs(flags.kv));
  KV_ASSIGN(std::string text, FileSystem::real().read_file(flags.file));
  KV_ASSIGN(EngineOptions options, engine_options(flags.model));
  options.bf16_copy = true;  // activation rounding of low-bit products would drown q8_0 (DESIGN 6)
  KV_ASSIGN(std::unique_ptr<Engine> engine, Engine::open(options));
  // What nobody asked for is shortened to what fits; the table says how far the runs go.
  if (!flags.free_given)
    flags.request.free_tokens = std::min(flags.request.free_tokens, free_room(flags.request, engine->shape()));
  KV_ASSIGN(std::vector<Token> tokens, build_prompt(engine->vocabulary(), PromptForm::kRaw, {text, ""}));
  KV_ASSIGN(FidelityReport report,
            measure_fidelity(*engine, tokens, flags.request, specs, [](double share) { show_progress("comparing", share); }));
  DiagnosisReport diagnosis;
  if (flags.diagnose) {
    KV_ASSIGN(diagnosis, diagnose_selection(*engine, tokens, flags.request, specs,
                                            [](double share) { show_progress("diagnosing", share); }));
  }
  show_progress("", 1);
  const Status kept = keep_for_planner(flags, options.model_path, tokens, report);
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
  command->add_option("-f,--file", flags->file, "the text")->required();
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
  command->add_flag("--json", flags->json, "one JSON document on standard output");
  command->callback([flags, action, command] {
    flags->free_given = command->count("--free") > 0;
    if (flags->request.free_tokens == 0) flags->request.free_starts = 0;
    *action = [flags] { return fidelity(*flags); };
  });
}

}  // namespace kvartet
