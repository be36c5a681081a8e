// kvartet plan: which cache for this workload, and why; --audit: what became of the decisions of --kv auto.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "cache/spec_grammar.h"
#include "cli/auto_spec.h"
#include "cli/command.h"
#include "cli/json_output.h"
#include "cli/planning.h"
#include "core/file_system.h"

namespace kvartet {
namespace {

struct PlanFlags {
  std::string model;
  std::string kind;
  int prompt_tokens = 0;
  int output_tokens = 0;
  int questions = 1;
  std::string question_position = "seen";
  bool position_given = false;
  std::string memory;
  std::string fast_memory;
  bool memory_given = false;  // an empty one, as of an unset variable, is not the same as no limit
  bool fast_memory_given = false;
  std::optional<double> max_loss;
  std::string prefer;
  std::vector<std::string> kv;
  std::vector<std::string> results;
  int threads = 0;
  bool audit = false;
  bool plans_too = false;  // beside --audit something of a plan is asked for
  bool all = false;
  bool json = false;
};

Result<PlanRequest> request_of(const PlanFlags& flags) {
  if (flags.model.empty() || flags.kind.empty() || flags.prompt_tokens == 0) {
    return usage_error("a plan needs -m MODEL, --for KIND and --prompt-tokens N; or --audit alone; see kvartet plan --help");
  }
  PlanRequest request;
  KV_ASSIGN(request.workload.kind, parse_kind(flags.kind));
  request.workload.prompt_tokens = flags.prompt_tokens;
  request.workload.output_tokens = flags.output_tokens;
  request.workload.questions = flags.questions;
  if (const std::optional<QuestionPosition> position = find_question_position(flags.question_position))
    request.workload.position = *position;
  if (flags.questions > 1 && request.workload.position == QuestionPosition::kSecond)
    return usage_error("--question-position second is about one question after another; give it, or --questions, not both");
  if (flags.questions > 1 && flags.position_given && request.workload.position == QuestionPosition::kSeen) {
    return usage_error(fmt::format(
        "--question-position seen is about one question, and --questions {} shares a cache that was sealed before any of "
        "them was known; drop one of the two",
        flags.questions));
  }
  if (flags.memory_given) {
    KV_ASSIGN(request.memory, parse_bytes(flags.memory));
  }
  if (flags.fast_memory_given) {
    KV_ASSIGN(request.fast_memory, parse_bytes(flags.fast_memory));
  }
  request.max_loss = flags.max_loss;
  if (!flags.prefer.empty()) {
    KV_ASSIGN(request.prefer, parse_prefer(flags.prefer));
  }
  return request;
}

std::string ratio_text(const std::optional<double>& actual, double predicted) {
  return actual && predicted > 0 ? fmt::format("{:.3f}", *actual / predicted) : "-";
}

Status audit(bool json) {
  const std::string home = planner_home();
  if (home.empty()) return bad_input("there are no decisions to audit: the planner has no folder of its own; set KVARTET_HOME");
  KV_ASSIGN(PlannerStore store, PlannerStore::open(FileSystem::real(), home));
  KV_ASSIGN(const std::vector<PlanRecord> plans, store.plans());
  if (plans.empty()) return bad_input(fmt::format("there are no decisions in {}; make some with kvartet run --kv auto", home));
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::string text = fmt::format("actual / predicted of the decisions in {}\n{:20} {:12} {:>7} {:52} {:>7} {:>7} {:>7}\n", home,
                                 "decided", "kind", "prompt", "cache", "bytes", "ttft", "tok/s");
  for (const PlanRecord& p : plans) {
    text += fmt::format("{:20} {:12} {:>7} {:52} {:>7} {:>7} {:>7}\n", printable(p.decided), printable(p.kind), p.prompt_tokens,
                        printable(p.spec), ratio_text(p.actual_bytes, p.predicted_bytes),
                        ratio_text(p.actual_ttft_s, p.predicted_ttft_s),
                        ratio_text(p.actual_decode_tokens_per_s, p.predicted_decode_tokens_per_s));
    const auto number = [](const std::optional<double>& x) {
      return x ? nlohmann::ordered_json(*x) : nlohmann::ordered_json(nullptr);
    };
    rows.push_back({{"decided", p.decided},
                    {"model", p.model},
                    {"kind", p.kind},
                    {"kind_source", p.kind_source},
                    {"prompt_tokens", p.prompt_tokens},
                    {"limits", p.limits},
                    {"spec", p.spec},
                    {"reason", p.reason},
                    {"calibrated", p.calibrated},
                    {"predicted",
                     {{"bytes", p.predicted_bytes},
                      {"ttft_s", p.predicted_ttft_s},
                      {"decode_tokens_per_s", p.predicted_decode_tokens_per_s},
                      {"loss", {{"low", p.loss_low}, {"expected", p.loss_expected}, {"high", p.loss_high}}}}},
                    {"actual",
                     {{"bytes", number(p.actual_bytes)},
                      {"ttft_s", number(p.actual_ttft_s)},
                      {"decode_tokens_per_s", number(p.actual_decode_tokens_per_s)},
                      {"loss", number(p.actual_loss)}}}});
  }
  print(json ? json_text(nlohmann::ordered_json{{"rows", rows}}) : text);
  return {};
}

Status plan(const PlanFlags& flags) {
  if (flags.audit)
    return flags.plans_too ? usage_error("--audit looks back and plans nothing: give it alone, or with --json")
                           : audit(flags.json);
  KV_ASSIGN(const PlanRequest request, request_of(flags));
  const std::vector<std::string> folders = flags.results.empty() ? results_of_environment() : flags.results;
  ModelFlags threads;
  threads.threads = flags.threads;
  KV_ASSIGN(const std::string model_path, resolve_model(flags.model));
  KV_ASSIGN(const std::unique_ptr<Gathered> gathered, gather(model_path, folders, resolved_threads(threads)));
  if (!flags.kv.empty()) {
    if (std::any_of(flags.kv.begin(), flags.kv.end(), is_auto))
      return usage_error("--kv names caches to choose among, and 'auto' is none; leave it out to choose among all");
    KV_ASSIGN(gathered->inputs.candidates, parse_specs(flags.kv));
  }
  KV_ASSIGN(const Plan plan, make_plan(gathered->inputs, request));
  if (!flags.results.empty() && plan.cells.tasks == 0) {
    print_note(fmt::format("note: none of the results is of this model; its losses are {}",
                           plan.cells.foreign > 0 ? "estimated from other models" : "priors"));
  }
  print(flags.json ? json_text(plan_json(plan, *gathered, request))
                   : explain_text(plan, *gathered, request, flags.model, flags.all));
  if (!plan.feasible) return exhausted(plan.reason);
  return {};
}

}  // namespace

void add_plan(CLI::App& app, Action* action) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = app.add_subcommand("plan", "which cache for this workload, what it will cost, and why; reads no weights");
  command->add_option("-m,--model", flags->model, "a GGUF file, or smollm2");
  command->add_option("--for", flags->kind, "single-fact, extraction, summary, few-shot, chat or reasoning");
  command->add_option("--prompt-tokens", flags->prompt_tokens, "tokens of the prompt")->check(at_least(1));
  command->add_option("--output-tokens", flags->output_tokens, "tokens of one answer (default: typical of the kind)")
      ->check(at_least(1));
  command
      ->add_option("--questions", flags->questions,
                   "questions on the same sealed prompt; more than one are not known when it is sealed")
      ->capture_default_str()
      ->check(at_least(1));
  command
      ->add_option(
          "--question-position", flags->question_position,
          "seen: the cache is sealed after the question; unseen: before it; second: after another question about the document")
      ->capture_default_str()
      ->check(CLI::IsMember({"seen", "unseen", "second"}));
  command->add_option("--memory", flags->memory, "cap on the cache over all tiers (K, M, G)");
  command->add_option("--fast-memory", flags->fast_memory, "cap on its part in RAM (K, M, G)");
  command->add_option(
      "--max-loss", flags->max_loss,
      "nats per token of the reference answer that may be lost, 0 to 1; 0.01 is about one percent of its probability");
  command->add_option("--prefer", flags->prefer, "quality (default), speed or memory");
  command->add_option("--kv", flags->kv, "a cache to choose from; repeatable (default: a search over all that can be written)");
  command->add_option("--results", flags->results, "a results folder of kvartet bench; repeatable (default: KVARTET_RESULTS)");
  command->add_option("--threads", flags->threads, "compute threads planned for (default: physical cores)")
      ->check(whole_number(1, 1024));
  command->add_flag("--audit", flags->audit, "instead: the decisions of --kv auto beside what happened");
  command->add_flag("--all", flags->all, "list every candidate, not the first of each kind");
  command->add_flag("--json", flags->json, "one JSON document on standard output");
  command->callback([flags, action, command] {
    flags->position_given = command->count("--question-position") > 0;
    flags->memory_given = command->count("--memory") > 0;
    flags->fast_memory_given = command->count("--fast-memory") > 0;
    for (const CLI::Option* option : command->get_options())
      flags->plans_too =
          flags->plans_too || (option->count() > 0 && option->get_name() != "--audit" && option->get_name() != "--json");
    *action = [flags] { return plan(*flags); };
  });
}

}  // namespace kvartet
