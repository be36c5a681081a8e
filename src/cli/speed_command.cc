// kvartet speed: tokens per second by cache and depth, beside llama.cpp if asked.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "bench/speed.h"
#include "cli/command.h"
#include "results/machine.h"

namespace kvartet {
namespace {

struct SpeedFlags {
  ModelFlags model;
  std::vector<std::string> kv;
  std::vector<int> depths;
  std::string peer;
  SpeedOptions options;
  bool json = false;
};

void print_table(const SpeedReport& report) {
  std::string text = fmt::format("plain read bandwidth in the same rounds: {:.1f} GB/s\n\n{:10} {:44} {:8} {:>7} {:>10}  {}\n",
                                 report.read_gb_per_s, "engine", "cache", "phase", "depth", "tokens/s", "rounds");
  for (const SpeedRow& row : report.rows) {
    std::string runs;
    for (double r : row.runs) runs += fmt::format("{:.1f} ", r);
    text +=
        fmt::format("{:10} {:44} {:8} {:>7} {:>10.1f}  {}\n", row.engine, row.spec, row.phase, row.depth, row.tokens_per_s, runs);
  }
  print(text);
}

void print_json(const SpeedReport& report, int threads) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const SpeedRow& row : report.rows) {
    rows.push_back({{"engine", row.engine},
                    {"spec", row.spec},
                    {"phase", row.phase},
                    {"depth", row.depth},
                    {"tokens_per_s", row.tokens_per_s},
                    {"runs", row.runs}});
  }
  const Machine machine = this_machine();
  nlohmann::ordered_json document = {
      {"machine",
       {{"cpu", machine.cpu}, {"threads", threads}, {"read_gb_per_s", report.read_gb_per_s}, {"read_runs", report.read_runs}}},
      {"rows", rows}};
  print(document.dump(1) + "\n");
}

Status speed(SpeedFlags& flags) {
  if (!flags.peer.empty() && flags.peer != "llama.cpp") {
    return usage_error(fmt::format("--peer {}: the only peer is llama.cpp", flags.peer));
  }
  KV_ASSIGN(flags.options.specs, parse_specs(flags.kv));
  flags.options.model_path = resolve_model(flags.model.model);
  flags.options.threads = resolved_threads(flags.model);
  flags.options.fast_tier_bytes = flags.model.fast_tier_bytes;
  flags.options.depths = flags.depths;
  flags.options.peer = !flags.peer.empty();
  flags.options.cancel = &interrupted();
  flags.options.progress = [](std::string_view what) { show_progress(what, 0); };
  KV_ASSIGN(SpeedReport report, measure_speed(flags.options));
  show_progress("", 1);
  if (flags.json) {
    print_json(report, flags.options.threads);
  } else {
    print_table(report);
  }
  return {};
}

}  // namespace

void add_speed(CLI::App& app, Action* action) {
  auto flags = std::make_shared<SpeedFlags>();
  CLI::App* command = app.add_subcommand("speed", "prefill and decode rates by cache and depth");
  add_model_flags(command, &flags->model);
  command->add_option("--kv", flags->kv, "the cache; repeatable")->required();
  command->add_option("--depth", flags->depths, "tokens in the cache; repeatable. Prefill at depth N is N tokens from empty")
      ->required()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--gen", flags->options.gen, "tokens decoded per measurement")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--rounds", flags->options.decode_rounds, "decode rounds, in which all caches and the peer take turns")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--prefill-rounds", flags->options.prefill_rounds, "prefill rounds")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--peer", flags->peer, "llama.cpp: measure it in the same rounds");
  command->add_flag("--json", flags->json, "one JSON document on standard output");
  command->callback([flags, action] { *action = [flags] { return speed(*flags); }; });
}

}  // namespace kvartet
