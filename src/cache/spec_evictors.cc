// The methods that decide which rows stay, as a spec names them.
#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "cache/spec_method.h"

namespace kvartet {
namespace {

constexpr std::array<std::string_view, 4> kStreamingKeys = {"sinks", "window", "budget", "rope"};
constexpr std::array<std::string_view, 4> kSnapKeys = {"budget", "window", "kernel", "pool"};
constexpr std::array<std::string_view, 5> kPyramidKeys = {"budget", "window", "kernel", "pool", "beta"};
constexpr std::array<std::string_view, 5> kAdaKeys = {"budget", "window", "kernel", "pool", "alpha"};
constexpr std::array<std::string_view, 2> kH2oKeys = {"budget", "recent"};
constexpr std::array<std::string_view, 1> kTovaKeys = {"budget"};
constexpr std::array<std::string_view, 8> kCamKeys = {"target", "interval", "merge", "base", "seed", "window", "kernel", "pool"};

// Observation window and pooling of a budget that is known already, and their canonical text. `budget_key`: how it is called.
Result<std::string> read_window(const SpecStage& stage, std::string_view budget_key, CacheSpec* spec) {
  constexpr std::array<std::string_view, 2> kPools = {"max", "avg"};
  constexpr int kDefaultWindow = 32;
  constexpr int kWidestKernel = 1023;
  // A budget of few rows takes a shorter default window, so that it stays a bound (R4) and even one row works (R12).
  const int most_window = is_share(spec->budget) ? kMostRows : std::max(1, static_cast<int>(spec->budget.value) - 1);
  KV_ASSIGN(spec->window, single_whole(stage, "window", std::min(kDefaultWindow, most_window), 1, kMostRows));
  if (spec->window > most_window) {
    return usage_error(
        fmt::format("window={} leaves no row of {}={} for the rest of the prompt; the nearest are window={} or {}={}",
                    spec->window, budget_key, print_budget(spec->budget), most_window, budget_key, spec->window + 1));
  }
  KV_ASSIGN(spec->kernel, single_whole(stage, "kernel", 7, 1, kWidestKernel));
  if (spec->kernel % 2 == 0) {
    return usage_error(fmt::format("kernel={} is even, and pooling is centred on a row; the nearest are kernel={} and kernel={}",
                                   spec->kernel, spec->kernel - 1, spec->kernel + 1));
  }
  KV_ASSIGN(const std::string pool, single_word(stage, "pool", kPools));
  spec->pool = pool == "max" ? Pool::kMax : Pool::kAverage;
  return fmt::format("window={},kernel={},pool={}", spec->window, spec->kernel, pool);
}

// The keys that snapkv, pyramidkv and adakv share, and their canonical text.
Result<std::string> read_observation(const SpecStage& stage, CacheSpec* spec) {
  KV_ASSIGN(const std::string budget_text, single_text(stage, "budget", "0.25"));
  KV_ASSIGN(spec->budget, parse_budget(budget_text));
  KV_ASSIGN(const std::string window, read_window(stage, "budget", spec));
  return fmt::format("{}:budget={},{}", stage.name.key, print_budget(spec->budget), window);
}

Result<std::string> read_snapkv(const SpecStage& stage, CacheSpec* spec) {
  KV_TRY(check_keys(stage, kSnapKeys));
  spec->evict = Evict::kSnap;
  return read_observation(stage, spec);
}

Result<std::string> read_pyramidkv(const SpecStage& stage, CacheSpec* spec) {
  constexpr int kSteepest = 1000;
  KV_TRY(check_keys(stage, kPyramidKeys));
  spec->evict = Evict::kPyramid;
  KV_ASSIGN(const std::string text, read_observation(stage, spec));
  KV_ASSIGN(spec->beta, single_whole(stage, "beta", 20, 1, kSteepest));
  return fmt::format("{},beta={}", text, spec->beta);
}

Result<std::string> read_adakv(const SpecStage& stage, CacheSpec* spec) {
  KV_TRY(check_keys(stage, kAdaKeys));
  spec->evict = Evict::kAda;
  KV_ASSIGN(const std::string text, read_observation(stage, spec));
  KV_ASSIGN(spec->alpha, single_share(stage, "alpha", 0.2));
  return fmt::format("{},alpha={}", text, spec->alpha);
}

Result<std::string> read_h2o(const SpecStage& stage, CacheSpec* spec) {
  KV_TRY(check_keys(stage, kH2oKeys));
  spec->evict = Evict::kH2o;
  KV_ASSIGN(const std::string budget, single_text(stage, "budget", "0.25"));
  KV_ASSIGN(spec->budget, parse_budget(budget));
  KV_ASSIGN(spec->recent, single_share(stage, "recent", 0.5));
  return fmt::format("h2o:budget={},recent={}", print_budget(spec->budget), spec->recent);
}

Result<std::string> read_tova(const SpecStage& stage, CacheSpec* spec) {
  KV_TRY(check_keys(stage, kTovaKeys));
  spec->evict = Evict::kTova;
  KV_ASSIGN(const std::string budget, single_text(stage, "budget", "0.25"));
  KV_ASSIGN(spec->budget, parse_budget(budget));
  return fmt::format("tova:budget={}", print_budget(spec->budget));
}

Result<std::string> read_cam(const SpecStage& stage, CacheSpec* spec) {
  constexpr std::array<std::string_view, 4> kBases = {"streamingllm", "h2o", "tova", "snapkv"};
  constexpr CamBase kBaseOf[] = {CamBase::kStreaming, CamBase::kH2o, CamBase::kTova, CamBase::kSnap};
  constexpr int kMostMerges = 1024;
  KV_TRY(check_keys(stage, kCamKeys));
  spec->evict = Evict::kCam;
  KV_ASSIGN(const int target, single_whole(stage, "target", 1024, 2, kMostRows));
  spec->budget = {static_cast<double>(target)};
  KV_ASSIGN(spec->interval, single_whole(stage, "interval", 1, 1, kMostRows));
  KV_ASSIGN(spec->merge, single_whole(stage, "merge", 32, 0, kMostMerges));
  KV_ASSIGN(const std::string base, single_word(stage, "base", kBases));
  spec->base = kBaseOf[std::find(kBases.begin(), kBases.end(), base) - kBases.begin()];
  spec->sinks = spec->base == CamBase::kStreaming ? std::min(4, target - 1) : 0;
  KV_ASSIGN(spec->seed, single_whole(stage, "seed", 1, 0, std::numeric_limits<int>::max()));
  std::string text =
      fmt::format("cam:target={},interval={},merge={},base={},seed={}", target, spec->interval, spec->merge, base, spec->seed);
  if (spec->base != CamBase::kSnap) {
    for (const std::string_view key : {"window", "kernel", "pool"}) {
      if (stage.find(key) == nullptr) continue;
      return usage_error(fmt::format(
          "'{}' belongs to an observation window, which base={} has not; write base=snapkv or leave it out", key, base));
    }
    return text;
  }
  KV_ASSIGN(const std::string window, read_window(stage, "target", spec));
  return text + "," + window;
}

Result<std::string> read_streaming(const SpecStage& stage, CacheSpec* spec) {
  constexpr std::array<std::string_view, 2> kRopes = {"absolute", "rerotate"};
  constexpr int kDefaultSinks = 4;
  constexpr int kDefaultWindow = 512;
  KV_TRY(check_keys(stage, kStreamingKeys));
  KV_ASSIGN(const std::string rope, single_word(stage, "rope", kRopes));
  spec->rerotate = rope == kRopes.back();
  spec->evict = Evict::kStreaming;
  if (stage.find("budget") == nullptr) {
    KV_ASSIGN(spec->sinks, single_whole(stage, "sinks", kDefaultSinks, 0, kMostRows));
    KV_ASSIGN(spec->window, single_whole(stage, "window", kDefaultWindow, 1, kMostRows));
    return fmt::format("streamingllm:sinks={},window={},rope={}", spec->sinks, spec->window, rope);
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
  return fmt::format("streamingllm:sinks={},budget={},rope={}", spec->sinks, print_budget(spec->budget), rope);
}

}  // namespace

std::span<const SpecMethod> evictor_methods() {
  static const std::vector<SpecMethod> kMethods = {
      {{"streamingllm", "sinks=4, window=512 (or budget), rope=absolute|rerotate",
        "Keeps the first tokens and a window of the last ones, nothing between."},
       read_streaming},
      {{"snapkv", "budget=0.25, window=32, kernel=7, pool=max|avg",
        "At the end of the prompt keeps the rows that its last queries attend to, and the last rows."},
       read_snapkv},
      {{"pyramidkv", "budget=0.25, window=32, kernel=7, pool=max|avg, beta=20",
        "snapkv with more rows in the first layers and fewer in the last; the budget is their mean."},
       read_pyramidkv},
      {{"adakv", "budget=0.25, window=32, kernel=7, pool=max|avg, alpha=0.2",
        "snapkv with one budget per layer, shared out over its heads by need."},
       read_adakv},
      {{"h2o", "budget=0.25, recent=0.5 (share of the budget)",
        "Keeps the rows that all queries so far attended to most, and the newest; the bound holds after every step."},
       read_h2o},
      {{"tova", "budget=0.25", "Keeps the rows that the last query attends to most; the bound holds after every step."},
       read_tova},
      {{"cam",
        "target=1024, interval=1, merge=32, base=streamingllm|h2o|tova|snapkv, seed=1; over snapkv window=32, kernel=7, "
        "pool=max|avg",
        "Adds the values of rows that leave to the rows after them, at random where that helps; keys are never touched."},
       read_cam},
  };
  return kMethods;
}

}  // namespace kvartet
