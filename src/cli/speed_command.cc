// kvartet speed: tokens per second by cache and depth, beside llama.cpp if asked.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "bench/speed.h"
#include "cli/command.h"
#include "cli/json_output.h"
#include "core/file_system.h"
#include "model/random_shapes.h"
#include "report/names.h"
#include "results/machine.h"

namespace kvartet {
namespace {

constexpr int kMostRounds = 10'000;

struct SpeedFlags {
  ModelFlags model;
  std::vector<std::string> kv;
  std::vector<int> depths;
  std::string shape;
  std::string fill = "prefill";
  std::string peer;
  bool breakdown = false;
  SpeedOptions options;
  bool json = false;
};

// What the tables call the caches, and how wide that is.
struct CacheNames {
  explicit CacheNames(const SpeedReport& report) {
    std::vector<std::string> specs;
    for (const SpeedRow& row : report.rows)
      if (row.engine == kOwnEngine && std::ranges::find(specs, row.spec) == specs.end()) specs.push_back(row.spec);
    of_spec = short_names(specs);
    for (const SpeedRow& row : report.rows) width = std::max(width, of(row).size());
  }
  std::string of(const SpeedRow& row) const { return row.engine == kOwnEngine ? of_spec.at(row.spec) : row.spec; }

  std::map<std::string, std::string> of_spec;
  std::size_t width = 20;
};

// Where a decode step's time goes, and how near its reading comes to the plain bandwidth.
void print_breakdown(const SpeedReport& report, const CacheNames& names) {
  std::string text = fmt::format(
      "\none decode step in ms, medians of the rounds (MiB read, share of {:.1f} GB/s)\n{:{}} {:>7} {:>20} {:>20} {:>8} {:>20}\n",
      report.read_gb_per_s, "cache", names.width, "depth", "linear layers", "attention", "policy", "logits");
  const auto reading = [&](double seconds, std::int64_t bytes) {
    const double gb_per_s = seconds > 0 ? static_cast<double>(bytes) / seconds * 1e-9 : 0;
    return fmt::format("{:.2f} ({:.0f}, {:.0f} %)", seconds * 1e3, static_cast<double>(bytes) / (1024.0 * 1024.0),
                       100 * gb_per_s / report.read_gb_per_s);
  };
  for (const SpeedRow& row : report.rows) {
    if (!row.breakdown) continue;
    const StepBreakdown& b = *row.breakdown;
    text += fmt::format("{:{}} {:>7} {:>20} {:>20} {:>8.2f} {:>20}\n", names.of(row), names.width, row.depth,
                        reading(b.times.linear, b.layer_bytes), reading(b.times.attention, b.cache_bytes), b.times.cache * 1e3,
                        reading(b.times.head, b.head_bytes));
  }
  print(text);
}

// What lies where, and what a step moves between the tiers; only if a cache has a slow tier.
void print_tiers(const SpeedReport& report, const CacheNames& names) {
  constexpr double kMib = 1024.0 * 1024.0;
  std::string text = fmt::format(
      "\nMiB held and moved per step; this process holds {:.0f} MiB\n{:{}} {:>7} {:>9} {:>9} {:>8} {:>8} {:>9} {:>9} {:>7}\n",
      static_cast<double>(report.resident_bytes) / kMib, "cache", names.width, "depth", "fast tier", "slow tier", "rows", "hits",
      "requests", "MiB read", "÷ used");
  bool has_far_rows = false;
  for (const SpeedRow& row : report.rows) {
    if (!row.breakdown) continue;
    const StepBreakdown& b = *row.breakdown;
    has_far_rows = has_far_rows || b.held.slow_allocated > 0;
    const double steps = std::max(1, b.steps);
    const double rows = static_cast<double>(b.traffic.rows_fetched + b.traffic.rows_hit) / steps;
    const double read = static_cast<double>(b.traffic.medium.bytes_read);
    const double used = static_cast<double>(b.traffic.bytes_fetched);
    text += fmt::format("{:{}} {:>7} {:>9.1f} {:>9.1f} {:>8.0f} {:>6.1f} % {:>9.0f} {:>9.2f} {:>7.2f}\n", names.of(row),
                        names.width, row.depth, static_cast<double>(b.held.fast_allocated()) / kMib,
                        static_cast<double>(b.held.slow_allocated) / kMib, rows,
                        rows > 0 ? 100 * static_cast<double>(b.traffic.rows_hit) / steps / rows : 0.0,
                        static_cast<double>(b.traffic.medium.reads) / steps, read / steps / kMib, used > 0 ? read / used : 0.0);
  }
  if (has_far_rows) print(text);
}

// How each slow tier was reached, since a slower way may have been taken, and what the disk gives at most.
void print_media(const SpeedReport& report, const CacheNames& names) {
  std::string text;
  std::set<std::pair<std::string, std::string>> named;
  for (const SpeedRow& row : report.rows) {
    if (!row.breakdown || row.breakdown->slow_medium.empty()) continue;
    const std::string& medium = row.breakdown->slow_medium;
    if (named.emplace(row.spec, medium).second) text += fmt::format("slow tier of {}: {}\n", names.of(row), medium);
  }
  if (report.disk) {
    text += fmt::format("random reads of 4 KiB before the first round ({}): {:.0f} per second, ± {:.0f} %\n", report.disk->medium,
                        report.disk->reads_per_s.value, 100 * report.disk->reads_per_s.spread);
  }
  if (!text.empty()) print("\n" + text);
}

void print_table(const SpeedReport& report, const CacheNames& names) {
  std::string text = fmt::format(
      "in the same rounds: plain reading {:.1f} GB/s, multiply-adds {:.0f} GFLOP/s\n\n"
      "{:10} {:{}} {:8} {:>7} {:>10}  {}\n",
      report.read_gb_per_s, report.compute_gflop_per_s, "engine", "cache", names.width, "phase", "depth", "tokens/s", "rounds");
  for (const SpeedRow& row : report.rows) {
    std::string runs;
    for (double r : row.runs) runs += rate_text(r) + " ";
    text += fmt::format("{:10} {:{}} {:8} {:>7} {:>10}  {}\n", row.engine, names.of(row), names.width, row.phase, row.depth,
                        rate_text(row.tokens_per_s), runs);
  }
  print(text);
}

// What was left out of the names.
void print_specs(const CacheNames& names) {
  std::string text;
  for (const auto& [spec, name] : names.of_spec)
    if (name != spec) text += wrapped(fmt::format("{} is {}", name, spec), 2);
  if (!text.empty()) print("\n" + text);
}

void print_json(const SpeedReport& report, const SpeedFlags& flags) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const SpeedRow& row : report.rows) {
    nlohmann::ordered_json object = {{"engine", row.engine},
                                     {"spec", row.spec},
                                     {"phase", row.phase},
                                     {"depth", row.depth},
                                     {"tokens_per_s", row.tokens_per_s},
                                     {"runs", row.runs}};
    if (row.breakdown) {
      const StepBreakdown& b = *row.breakdown;
      object["step"] = {{"linear_s", b.times.linear},  {"attention_s", b.times.attention}, {"policy_s", b.times.cache},
                        {"logits_s", b.times.head},    {"layer_bytes", b.layer_bytes},     {"head_bytes", b.head_bytes},
                        {"cache_bytes", b.cache_bytes}};
      object["held"] = {{"fast_allocated_bytes", b.held.fast_allocated()},
                        {"slow_allocated_bytes", b.held.slow_allocated},
                        {"live_bytes", b.held.live}};
      if (!b.slow_medium.empty()) {
        object["traffic"] = {{"medium", b.slow_medium},
                             {"steps", b.steps},
                             {"rows_fetched", b.traffic.rows_fetched},
                             {"rows_hit", b.traffic.rows_hit},
                             {"bytes_fetched", b.traffic.bytes_fetched},
                             {"requests", b.traffic.medium.reads},
                             {"bytes_read", b.traffic.medium.bytes_read}};
      }
    }
    rows.push_back(std::move(object));
  }
  const Machine machine = this_machine();
  nlohmann::ordered_json document = {{"model", std::filesystem::path(flags.options.model_path).stem().string()},
                                     {"fill", flags.fill},
                                     {"machine",
                                      {{"cpu", machine.cpu},
                                       {"threads", flags.options.threads},
                                       {"read_gb_per_s", report.read_gb_per_s},
                                       {"read_runs", report.read_runs},
                                       {"compute_gflop_per_s", report.compute_gflop_per_s},
                                       {"compute_runs", report.compute_runs}}},
                                     {"resident_bytes", report.resident_bytes},
                                     {"rows", rows}};
  if (report.disk) {
    document["disk"] = {{"medium", report.disk->medium},
                        {"reads_per_s", report.disk->reads_per_s.value},
                        {"reads_spread", report.disk->reads_per_s.spread},
                        {"bytes_per_s", report.disk->bytes_per_s.value}};
  }
  print(json_text(document));
}

// The file of a random model, made unless it is there: writing one of the larger shapes takes minutes.
Result<std::string> random_model(const std::string& shape) {
  KV_ASSIGN(const TinyModelOptions options, random_shape(shape));
  FileSystem& files = FileSystem::real();
  const std::string directory = models_directory();
  KV_TRY(files.make_directories(directory));
  const std::string path = directory + "/" + random_shape_name(shape) + ".gguf";
  if (files.exists(path)) return path;
  print_note(fmt::format("writing {}, a model of random weights", path));
  const std::string unfinished = fmt::format("{}.{}.tmp", path, getpid());  // two programs may want the same model
  KV_TRY(write_tiny_model(unfinished, options));
  KV_TRY(files.rename(unfinished, path));
  return path;
}

Result<std::string> model_path(const SpeedFlags& flags) {
  if (flags.shape.empty() == flags.model.model.empty()) return usage_error("give either --model or --shape");
  if (flags.shape.empty()) return resolve_model(flags.model.model);
  return random_model(flags.shape);
}

Status speed(SpeedFlags& flags) {
  if (!flags.peer.empty() && flags.peer != "llama.cpp") {
    return usage_error(fmt::format("--peer {}: the only peer is llama.cpp", flags.peer));
  }
  KV_ASSIGN(flags.options.specs, parse_specs(flags.kv));
  KV_ASSIGN(flags.options.model_path, model_path(flags));
  flags.options.fill = flags.fill == "direct" ? Fill::kDirect : Fill::kPrefill;
  flags.options.threads = resolved_threads(flags.model);
  flags.options.fast_tier_bytes = flags.model.fast_tier_bytes;
  flags.options.tier_directory = flags.model.tier_directory;
  flags.options.depths = flags.depths;
  flags.options.peer = !flags.peer.empty();
  flags.options.cancel = &interrupted();
  flags.options.progress = [](std::string_view what) { show_progress(what, 0); };
  KV_ASSIGN(SpeedReport report, measure_speed(flags.options));
  show_progress("", 1);
  if (flags.json) {
    print_json(report, flags);
    return {};
  }
  const CacheNames names(report);
  print_table(report, names);
  print_media(report, names);
  if (flags.breakdown) print_breakdown(report, names);
  if (flags.breakdown) print_tiers(report, names);
  print_specs(names);
  return {};
}

}  // namespace

void add_speed(CLI::App& app, Action* action) {
  auto flags = std::make_shared<SpeedFlags>();
  CLI::App* command = app.add_subcommand("speed", "prefill and decode rates by cache and depth");
  add_model_flags(command, &flags->model);
  command->get_option("--model")->required(false);  // --shape stands in for it
  command->add_option("--kv", flags->kv, "the cache; repeatable")->required();
  command->add_option("--depth", flags->depths, "tokens in the cache; repeatable. Prefill at depth N is N tokens from empty")
      ->required()
      ->check(at_least(0));
  command->add_option(
      "--shape", flags->shape,
      fmt::format("instead of --model: a model of random weights with the shape of {}; layers= and weights= may follow, "
                  "as in llama-3.2-1b,layers=4,weights=q8_0",
                  fmt::join(random_shape_names(), ", ")));
  command
      ->add_option("--fill", flags->fill,
                   "how a cache reaches its depth: by a real prefill, or direct, with random rows (prefill is then not measured)")
      ->capture_default_str()
      ->check(CLI::IsMember({"prefill", "direct"}));
  command->add_flag("--breakdown", flags->breakdown, "also where a decode step's time goes, with the bytes it reads");
  command->add_option("--gen", flags->options.gen, "tokens decoded per measurement")->capture_default_str()->check(at_least(1));
  command->add_option("--rounds", flags->options.decode_rounds, "decode rounds, in which all caches and the peer take turns")
      ->capture_default_str()
      ->check(whole_number(1, kMostRounds));
  command->add_option("--prefill-rounds", flags->options.prefill_rounds, "prefill rounds")
      ->capture_default_str()
      ->check(whole_number(1, kMostRounds));
  command->add_option("--peer", flags->peer, "llama.cpp: measure it in the same rounds");
  command->add_flag("--json", flags->json, "one JSON document on standard output");
  command->callback([flags, action] { *action = [flags] { return speed(*flags); }; });
}

}  // namespace kvartet
