// kvartet explain: bytes per tier and per token, before anything runs.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "bench/runner/measure_sample.h"
#include "cache/sequence_cache.h"
#include "cli/command.h"
#include "cli/json_output.h"
#include "model/model_facts.h"

namespace kvartet {
namespace {

struct ExplainFlags {
  std::string model;
  std::vector<std::string> kv;
  int prompt_tokens = 0;
  int output_tokens = 0;
  bool json = false;
};

Status explain(const ExplainFlags& flags) {
  KV_ASSIGN(std::vector<CacheSpec> specs, parse_specs(flags.kv));
  KV_ASSIGN(const std::string path, resolve_model(flags.model));
  KV_ASSIGN(ModelShape shape, read_model_shape(path));
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::string table = fmt::format("{:44} {:>14} {:>14} {:>14} {:>12} {:>8} {:>8}\n", "spec", "live bytes", "allocated",
                                  "in fast tier", "per token", "ratio", "fast");
  constexpr std::size_t kSpecWidth = 44;
  for (const CacheSpec& spec : specs) {
    KV_TRY(check_spec(spec, shape));
    KV_ASSIGN(ByteAccount bytes, predict_bytes(spec, shape, flags.prompt_tokens, flags.output_tokens));
    const int tokens = flags.prompt_tokens + flags.output_tokens;
    const double per_token = static_cast<double>(bytes.allocated) / tokens;
    const auto full = static_cast<double>(f16_bytes(shape, tokens));
    const double ratio = full / static_cast<double>(bytes.allocated);
    rows.push_back({{"spec", spec.canonical},
                    {"bytes_total", bytes.allocated},
                    {"live_bytes", bytes.live},
                    {"bytes_by_tier", bytes_by_tier_json(spec, bytes)},
                    {"bytes_per_token", per_token},
                    {"compression_ratio", ratio},
                    {"fast_ratio", full / static_cast<double>(bytes.fast_allocated())}});
    const bool long_spec = spec.canonical.size() > kSpecWidth;  // on lines of its own
    if (long_spec) table += wrapped(spec.canonical, 2);
    table += fmt::format("{:44} {:>14} {:>14} {:>14} {:>12.1f} {:>7.2f}x {:>7.2f}x\n", long_spec ? "" : spec.canonical,
                         bytes.live, bytes.allocated, bytes.fast_allocated(), per_token, ratio,
                         full / static_cast<double>(bytes.fast_allocated()));
  }
  table +=
      "\n" + wrapped(
                 "live: what the rows need. allocated: what is taken from the machine, in whole tiles. in fast tier: the part "
                 "that has to be near. ratio: an f16 cache of the same tokens / allocated; fast: / in fast tier.",
                 0);
  print(flags.json ? json_text(rows.size() == 1 ? rows[0] : nlohmann::ordered_json{{"rows", rows}}) : table);
  return {};
}

}  // namespace

void add_explain(CLI::App& app, Action* action) {
  auto flags = std::make_shared<ExplainFlags>();
  CLI::App* command = app.add_subcommand("explain", "what a cache will hold, in bytes, before running anything");
  command->add_option("-m,--model", flags->model, "a GGUF file, or the name of one in models/")->required();
  command->add_option("--kv", flags->kv, "the cache; repeatable")->required();
  command->add_option("--prompt-tokens", flags->prompt_tokens, "tokens of the prompt")->required()->check(at_least(1));
  command->add_option("--output-tokens", flags->output_tokens, "tokens generated after it")
      ->capture_default_str()
      ->check(at_least(0));
  command->add_flag("--json", flags->json, "one JSON document on standard output");
  command->callback([flags, action] { *action = [flags] { return explain(*flags); }; });
}

}  // namespace kvartet
