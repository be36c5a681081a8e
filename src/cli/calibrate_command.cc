// kvartet calibrate: measures this machine once, for the planner.
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "bench/calibrate.h"
#include "cli/command.h"
#include "cli/json_output.h"
#include "cli/planning.h"
#include "core/counted.h"
#include "plan/candidates.h"

namespace kvartet {
namespace {

struct CalibrateFlags {
  std::string model;
  int threads = 0;
  std::string tier_directory;
  bool json = false;
};

constexpr std::pair<double, double> kSelectorBudgets = {0.05, 0.25};  // shares of the prompt, of candidate_specs()

void add_selectors(std::vector<SelectorPair>* pairs) {
  std::map<std::string, SelectorPair> by_name;
  for (const CacheSpec& spec : candidate_specs()) {
    if (!spec.offload || !spec.offload->budget.share) continue;
    SelectorPair& pair = by_name[spec.canonical.substr(0, spec.canonical.find(':'))];
    if (spec.offload->budget.value == kSelectorBudgets.first) pair.few = spec;
    if (spec.offload->budget.value == kSelectorBudgets.second) pair.many = spec;
  }
  for (auto& [name, pair] : by_name) {
    pair.name = name;
    if (pair.few.offload && pair.many.offload) pairs->push_back(std::move(pair));
  }
}

// The formats that tell all, every evictor as its name alone has it, and every selecting method at two budgets.
void choose_specs(CalibrateOptions* options) {
  add_selectors(&options->selectors);
  const std::vector<CacheSpec> candidates = candidate_specs();
  options->formats = calibrated_formats(candidates);
  for (const CacheSpec& spec : candidates) {
    const std::string& text = spec.canonical;
    if (text.find('+') != std::string::npos || spec.offload || spec.evict == Evict::kNone) continue;
    const Result<CacheSpec> plain = parse_spec(text.substr(0, text.find(':')));
    if (plain.ok() && plain->canonical == text) options->evictors.push_back(spec);
  }
}

nlohmann::ordered_json json_of(const CalibrateReport& report) {
  nlohmann::ordered_json rates = nlohmann::ordered_json::array();
  for (const Rate& r : report.calibration.rates) {
    rates.push_back({{"what", r.what},
                     {"subject", r.subject},
                     {"head_dim", r.head_dim},
                     {"group", r.group},
                     {"depth", r.depth},
                     {"value", r.value},
                     {"spread", r.spread}});
  }
  const Machine& m = report.calibration.machine;
  return {{"machine",
           {{"cpu", m.cpu},
            {"cores", m.cores},
            {"memory_bytes", m.memory_bytes},
            {"compiler", m.compiler},
            {"threads", report.calibration.threads}}},
          {"seconds", report.seconds},
          {"left_out", report.left_out},
          {"disk", report.disk},
          {"rates", rates}};
}

std::string text_of(const CalibrateReport& report) {
  std::string text = fmt::format("{}, {}, {:.0f} s\n{:18} {:24} {:>8} {:>6} {:>6} {:>14} {:>8}\n",
                                 machine_text(report.calibration.machine), counted(report.calibration.threads, "thread"),
                                 report.seconds, "what", "of", "head_dim", "group", "rows", "value", "spread");
  for (const Rate& r : report.calibration.rates) {
    const bool is_time = r.what == rate::kAttend || r.what == rate::kEncode || r.what == rate::kAppend ||
                         r.what == rate::kEvict || r.what == rate::kSeal || r.what == rate::kScore || r.what == rate::kChosen ||
                         r.what == rate::kDepart;
    const std::string value = is_time                    ? fmt::format("{:.4f} us", r.value * 1e6)
                              : r.what == rate::kDiskOps ? fmt::format("{:.1f} k/s", r.value * 1e-3)
                                                         : fmt::format("{:.2f} G/s", r.value * 1e-9);
    const auto dash = [](int n) { return n == 0 ? std::string("-") : std::to_string(n); };
    text += fmt::format("{:18} {:24} {:>8} {:>6} {:>6} {:>14} {:>6.0f} %\n", r.what, r.subject.empty() ? "-" : r.subject,
                        dash(r.head_dim), dash(r.group), dash(r.depth), value, 100 * r.spread);
  }
  return text;
}

Status calibrate_machine(const CalibrateFlags& flags) {
  const std::string home = planner_home();
  if (home.empty()) return io_error("there is no place for a calibration: set KVARTET_HOME to a folder");
  KV_ASSIGN(PlannerStore store, PlannerStore::open(FileSystem::real(), home));
  CalibrateOptions options;
  ModelFlags threads;
  threads.threads = flags.threads;
  options.threads = resolved_threads(threads);
  options.cancel = &interrupted();
  options.progress = [](std::string_view what) { show_progress(what, 0); };
  options.tier_directory = flags.tier_directory;
  choose_specs(&options);
  const Result<std::string> model = resolve_model(flags.model.empty() ? "smollm2" : flags.model);
  if (!flags.model.empty()) KV_TRY(model.status());
  if (model.ok()) options.model_path = *model;
  KV_ASSIGN(const CalibrateReport report, calibrate(options));
  show_progress("", 1);
  KV_TRY(store.save(report.calibration));
  print(flags.json ? json_text(json_of(report)) : text_of(report));
  if (options.model_path.empty())
    print_note("note: without a model (-m) the rates of weights, prefill products, evictors and selectors stay typical values");
  print_note("note: the disk of tier=disk: " + report.disk);
  if (report.left_out > 0)
    print_note(
        fmt::format("note: {} of other head sizes left out to stay within the time", counted(report.left_out, "measurement")));
  return {};
}

}  // namespace

void add_calibrate(CLI::App& app, Action* action) {
  auto flags = std::make_shared<CalibrateFlags>();
  CLI::App* command =
      app.add_subcommand("calibrate", "measures this machine once, in under two minutes, so that plans predict its times");
  command->add_option("-m,--model", flags->model, "also its weights (default: smollm2 where set-up left it)");
  command->add_option("--threads", flags->threads, "compute threads (default: physical cores)")->check(whole_number(1, 1024));
  command
      ->add_option("--tier-dir", flags->tier_directory,
                   "the folder of tier=disk, whose disk is measured (default: the temporary one)")
      ->check(CLI::ExistingDirectory);
  command->add_flag("--json", flags->json, "one JSON document on standard output");
  command->callback([flags, action] { *action = [flags] { return calibrate_machine(*flags); }; });
}

}  // namespace kvartet
