// The methods that decide which rows stay, as a spec names them.
#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "cache/spec_method.h"

namespace kvartet {
namespace {

constexpr std::array<std::string_view, 4> kStreamingKeys = {"sinks", "window", "budget", "rope"};
constexpr std::array<std::string_view, 4> kSnapKeys = {"budget", "window", "kernel", "pool"};

Result<std::string> read_snapkv(const SpecStage& stage, CacheSpec* spec) {
  constexpr std::array<std::string_view, 2> kPools = {"max", "avg"};
  constexpr int kDefaultWindow = 32;
  constexpr int kWidestKernel = 1023;
  KV_TRY(check_keys(stage, kSnapKeys));
  KV_ASSIGN(const std::string budget_text, single_text(stage, "budget", "0.25"));
  KV_ASSIGN(spec->budget, parse_budget(budget_text));
  // A budget of few rows takes a shorter default window, so that it stays a bound (R4) and even one row works (R12).
  const int most_window = is_share(spec->budget) ? kMostRows : std::max(1, static_cast<int>(spec->budget.value) - 1);
  KV_ASSIGN(spec->window, single_whole(stage, "window", std::min(kDefaultWindow, most_window), 1, kMostRows));
  if (spec->window > most_window) {
    return usage_error(
        fmt::format("window={} leaves no row of budget={} for the rest of the prompt; the nearest are window={} or budget={}",
                    spec->window, budget_text, most_window, spec->window + 1));
  }
  KV_ASSIGN(spec->kernel, single_whole(stage, "kernel", 7, 1, kWidestKernel));
  if (spec->kernel % 2 == 0) {
    return usage_error(fmt::format("kernel={} is even, and pooling is centred on a row; the nearest are kernel={} and kernel={}",
                                   spec->kernel, spec->kernel - 1, spec->kernel + 1));
  }
  KV_ASSIGN(const std::string pool, single_word(stage, "pool", kPools));
  spec->pool = pool == "max" ? Pool::kMax : Pool::kAverage;
  spec->evict = Evict::kSnap;
  return fmt::format("snapkv:budget={},window={},kernel={},pool={}", print_budget(spec->budget), spec->window, spec->kernel,
                     pool);
}

Status check_rope(const SpecStage& stage) {
  constexpr std::array<std::string_view, 2> kRopes = {"absolute", "rerotate"};
  KV_ASSIGN(const std::string rope, single_word(stage, "rope", kRopes));
  if (rope == "rerotate") return usage_error("'rope=rerotate' of 'streamingllm' is not built yet; use rope=absolute");
  return {};
}

Result<std::string> read_streaming(const SpecStage& stage, CacheSpec* spec) {
  constexpr int kDefaultSinks = 4;
  constexpr int kDefaultWindow = 512;
  KV_TRY(check_keys(stage, kStreamingKeys));
  KV_TRY(check_rope(stage));
  spec->evict = Evict::kStreaming;
  if (stage.find("budget") == nullptr) {
    KV_ASSIGN(spec->sinks, single_whole(stage, "sinks", kDefaultSinks, 0, kMostRows));
    KV_ASSIGN(spec->window, single_whole(stage, "window", kDefaultWindow, 1, kMostRows));
    return fmt::format("streamingllm:sinks={},window={},rope=absolute", spec->sinks, spec->window);
  }
  if (stage.find("window") != nullptr) {
    return usage_error("'streamingllm' has both window and budget, but window = budget - sinks; keep one of them");
  }
  KV_ASSIGN(const std::string budget_text, single_text(stage, "budget", ""));
  KV_ASSIGN(spec->budget, parse_budget(budget_text));
  const int most_sinks = is_share(spec->budget) ? kMostRows : static_cast<int>(spec->budget.value) - 1;
  KV_ASSIGN(spec->sinks, single_whole(stage, "sinks", std::min(kDefaultSinks, most_sinks), 0, kMostRows));
  if (spec->sinks > most_sinks) {
    return usage_error(fmt::format("sinks={} leaves no row of budget={} for recent tokens; the nearest are sinks={} or budget={}",
                                   spec->sinks, budget_text, most_sinks, spec->sinks + 1));
  }
  spec->window = 0;
  return fmt::format("streamingllm:sinks={},budget={},rope=absolute", spec->sinks, print_budget(spec->budget));
}

}  // namespace

std::span<const SpecMethod> evictor_methods() {
  static const std::vector<SpecMethod> kMethods = {
      {{"streamingllm", "sinks=4, window=512 (or budget), rope=absolute",
        "Keeps the first tokens and a window of the last ones, nothing between."},
       read_streaming},
      {{"snapkv", "budget=0.25, window=32, kernel=7, pool=max|avg",
        "At the end of the prompt keeps the rows that its last queries attend to, and the last rows."},
       read_snapkv},
  };
  return kMethods;
}

}  // namespace kvartet
