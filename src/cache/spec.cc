#include "cache/spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <span>

#include <fmt/format.h>

#include "cache/spec_grammar.h"

namespace kvartet {
namespace {

using Names = std::span<const std::string_view>;

constexpr std::array<std::string_view, 2> kEvictors = {"streamingllm", "snapkv"};
constexpr std::array<std::string_view, 4> kQuantizers = {"full", "f32", "q8_0", "kivi"};
constexpr std::array<std::string_view, 6> kBuilt = {"full", "f32", "q8_0", "kivi", "streamingllm", "snapkv"};
constexpr std::array<std::string_view, 23> kPlanned = {
    "q5_0",        "q4_1",  "q4_0",    "fp8",       "nvfp4", "turboquant", "higgs",    "polar-angle",
    "qjl",         "h2o",   "tova",    "pyramidkv", "adakv", "cam",        "shadowkv", "yakv",
    "yakv-engine", "quest", "arkvale", "infinigen", "lrqk",  "oracle",     "select"};

constexpr std::array<std::string_view, 3> kKiviKeys = {"bits", "group", "residual"};
constexpr std::array<std::string_view, 4> kStreamingKeys = {"sinks", "window", "budget", "rope"};
constexpr std::array<std::string_view, 4> kSnapKeys = {"budget", "window", "kernel", "pool"};
constexpr std::array<std::string_view, 3> kPlannedQuantizerKeys = {"rotate", "center", "keep"};

constexpr int kMostRows = 1 << 24;  // far above any context; keeps row arithmetic inside int

bool contains(Names names, std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); }

bool is_evictor(const SpecStage& stage) { return contains(kEvictors, stage.name.key); }

std::string stage_name(const SpecStage& stage) {
  return stage.name.paired() ? stage.name.key + "/" + stage.name.value : stage.name.key;
}

// ---- names and their order

Status check_name(std::string_view name) {
  if (contains(kBuilt, name)) return {};
  if (contains(kPlanned, name)) {
    return usage_error(fmt::format("{} is not built yet; built are {}", quoted(name), list_names(kBuilt)));
  }
  std::vector<std::string_view> all(kBuilt.begin(), kBuilt.end());
  all.insert(all.end(), kPlanned.begin(), kPlanned.end());
  const std::string_view nearest = nearest_name(name, all);
  return usage_error(fmt::format("unknown cache method {}; the nearest is '{}'{}; built are {}", quoted(name), nearest,
                                 contains(kBuilt, nearest) ? "" : ", which is not built yet", list_names(kBuilt)));
}

Status check_names(const SpecStage& stage) {
  KV_TRY(check_name(stage.name.key));
  KV_TRY(check_name(stage.name.value));
  if (!stage.name.paired()) return {};
  for (const std::string& name : {stage.name.key, stage.name.value}) {
    if (contains(kQuantizers, name)) continue;
    return usage_error(
        fmt::format("'{}' decides for keys and values together and cannot be half of the pair {}; pairs are made of {}", name,
                    quoted(stage_name(stage)), list_names(kQuantizers)));
  }
  return {};
}

// Allowed: one evict stage, one quantize stage, or evict+quantize.
Status check_order(const std::vector<SpecStage>& stages) {
  const SpecStage* evict = nullptr;
  const SpecStage* quantize = nullptr;
  for (const SpecStage& stage : stages) {
    const SpecStage*& slot = is_evictor(stage) ? evict : quantize;
    if (slot != nullptr) {
      return usage_error(fmt::format("'{}' and '{}' both {}; keep one, in the order evict+quantize, such as snapkv+kivi",
                                     stage_name(*slot), stage_name(stage), is_evictor(stage) ? "evict" : "quantize"));
    }
    slot = &stage;
  }
  if (evict == nullptr || quantize == nullptr) return {};
  if (is_evictor(stages.back())) {
    return usage_error(fmt::format("'{0}+{1}' quantizes before it evicts, but rows are chosen by exact scores; write {1}+{0}",
                                   stage_name(*quantize), stage_name(*evict)));
  }
  if (quantize->name.key == "full" && !quantize->name.paired()) {
    return usage_error(
        fmt::format("'+full' adds nothing: {0} keeps its rows in f16 anyway; write {0} alone", stage_name(*evict)));
  }
  if (evict->name.key == "streamingllm" && (quantize->name.key == "kivi" || quantize->name.value == "kivi")) {
    return usage_error(
        "'streamingllm+kivi' cannot work: streamingllm drops single rows at every step, and KIVI's key groups hold several rows "
        "that share one scale; write streamingllm+q8_0 or snapkv+kivi");
  }
  return {};
}

// ---- values of keys

Status check_keys(const SpecStage& stage, Names allowed) {
  for (const SpecSetting& setting : stage.settings) {
    if (contains(allowed, setting.name)) continue;
    const std::string name = stage_name(stage);
    if (!is_evictor(stage) && contains(kPlannedQuantizerKeys, setting.name)) {
      return usage_error(fmt::format("'{}=' of '{}' is not built yet; leave it out", setting.name, name));
    }
    if (allowed.empty())
      return usage_error(fmt::format("'{}' takes no keys, not {}; write {} alone", name, quoted(setting.name), name));
    return usage_error(fmt::format("'{}' has no key {}; the nearest is '{}' (it takes {})", name, quoted(setting.name),
                                   nearest_name(setting.name, allowed), list_names(allowed)));
  }
  return {};
}

// The text of a key that takes one value, or the default.
Result<std::string> single_text(const SpecStage& stage, std::string_view key, std::string_view otherwise) {
  const SpecSetting* setting = stage.find(key);
  if (setting == nullptr) return std::string(otherwise);
  if (setting->value.paired()) {
    return usage_error(fmt::format("'{}' of '{}' takes one value, not the pair '{}/{}'; write {}={}", key, stage_name(stage),
                                   setting->value.key, setting->value.value, key, setting->value.key));
  }
  return setting->value.key;
}

Result<int> single_whole(const SpecStage& stage, std::string_view key, int otherwise, int least, int most) {
  KV_ASSIGN(const std::string text, single_text(stage, key, std::to_string(otherwise)));
  return parse_whole(key, text, least, most);
}

Result<std::string> single_word(const SpecStage& stage, std::string_view key, Names words) {
  KV_ASSIGN(std::string text, single_text(stage, key, words.front()));
  if (!contains(words, text)) {
    return usage_error(fmt::format("{}={} is unknown; the nearest is {}={} (choose {})", key, quoted(text), key,
                                   nearest_name(text, words), list_names(words)));
  }
  return text;
}

Result<int> one_of(std::string_view key, std::string_view text, std::span<const int> choices) {
  KV_ASSIGN(const int number, parse_whole(key, text, 0, kMostRows));
  const int nearest = *std::min_element(choices.begin(), choices.end(),
                                        [&](int a, int b) { return std::abs(a - number) < std::abs(b - number); });
  if (nearest == number) return number;
  return usage_error(
      fmt::format("{}={} is not one of {}; the nearest is {}={}", key, number, fmt::join(choices, ", "), key, nearest));
}

Result<Budget> parse_budget(std::string_view text) {
  if (text.find_first_not_of("-0123456789") == std::string_view::npos) {
    KV_ASSIGN(const int rows, parse_whole("budget", text, 1, kMostRows));
    return Budget{static_cast<double>(rows)};
  }
  double share = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share, std::chars_format::general);
  const bool read = error == std::errc() && end == text.data() + text.size();
  if (read && share > 0 && share < 1) return Budget{share};
  const std::string_view hint = read && share >= 1 && std::isfinite(share) ? "0.99, or 'full' to keep every row" : "0.25";
  return usage_error(
      fmt::format("budget={} is neither a whole number of rows nor a share between 0 and 1; write rows such as 1024, or a share "
                  "such as {}",
                  quoted(text), hint));
}

bool is_share(const Budget& budget) { return budget.value < 1; }
std::string print_budget(const Budget& budget) {
  return is_share(budget) ? fmt::format("{}", budget.value) : fmt::format("{}", static_cast<int>(budget.value));
}

// ---- methods; each completes `spec` and returns its canonical stage

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

FormatRequest plain_request(std::string_view method) { return {method == "full" ? "f16" : std::string(method), 0, 0}; }

Result<SidedText> sided_text(const SpecStage& stage, std::string_view key, std::string_view otherwise) {
  const SpecSetting* setting = stage.find(key);
  if (setting == nullptr) return SidedText{std::string(otherwise), std::string(otherwise)};
  if (stage.name.paired() && setting->value.paired()) {  // only one side of such a pair of names is KIVI
    return usage_error(fmt::format("only one side of '{}' is kivi, so '{}' takes one value; write {}={}", stage_name(stage), key,
                                   key, stage.name.key == "kivi" ? setting->value.key : setting->value.value));
  }
  return setting->value;
}

std::string print_sided(int key, int value) { return key == value ? fmt::format("{}", key) : fmt::format("{}/{}", key, value); }

Result<std::string> read_kivi(const SpecStage& stage, CacheSpec* spec) {
  constexpr std::array<int, 3> kBits = {4, 2, 8};  // 3 needs a tile layout of its own: not built yet
  constexpr std::array<int, 3> kGroups = {32, 64, 128};
  constexpr int kDefaultResidual = 128;
  KV_TRY(check_keys(stage, kKiviKeys));
  KV_ASSIGN(const SidedText bits, sided_text(stage, "bits", "4"));
  KV_ASSIGN(const SidedText group, sided_text(stage, "group", "32"));
  FormatRequest key{"kivi", 0, 0};
  FormatRequest value{"kivi", 0, 0};
  KV_ASSIGN(key.bits, one_of("bits", bits.key, kBits));
  KV_ASSIGN(value.bits, one_of("bits", bits.value, kBits));
  KV_ASSIGN(key.group, one_of("group", group.key, kGroups));
  KV_ASSIGN(value.group, one_of("group", group.value, kGroups));
  const int step = std::max(key.group, value.group);  // powers of two: both divide the larger
  KV_ASSIGN(spec->residual, single_whole(stage, "residual", kDefaultResidual, step, kMostRows));
  if (spec->residual % step != 0) {
    const int below = spec->residual / step * step;
    return usage_error(fmt::format("residual={} is not a multiple of group={}; the nearest are residual={} and residual={}",
                                   spec->residual, step, below, below + step));
  }
  spec->key = stage.name.key == "kivi" ? key : plain_request(stage.name.key);
  spec->value = stage.name.value == "kivi" ? value : plain_request(stage.name.value);
  return fmt::format("{}:bits={},group={},residual={}", stage_name(stage), print_sided(key.bits, value.bits),
                     print_sided(key.group, value.group), spec->residual);
}

Result<std::string> read_stage(const SpecStage& stage, CacheSpec* spec) {
  if (stage.name.key == "snapkv") return read_snapkv(stage, spec);
  if (stage.name.key == "streamingllm") return read_streaming(stage, spec);
  if (stage.name.key == "kivi" || stage.name.value == "kivi") return read_kivi(stage, spec);
  KV_TRY(check_keys(stage, {}));
  spec->key = plain_request(stage.name.key);
  spec->value = plain_request(stage.name.value);
  return stage_name(stage);
}

// KIVI's groups run along the channels of a value; the spec asks D % G == 0 of both sides (compression.md 2.2).
Status check_group(const FormatRequest& request, const LayerShape& layer) {
  if (request.group == 0 || layer.head_dim % request.group == 0) return {};
  for (const int group : {128, 64, 32}) {
    if (group < request.group && layer.head_dim % group == 0) {
      return usage_error(fmt::format("group={} does not divide this model's head dimension {}; the nearest is group={}",
                                     request.group, layer.head_dim, group));
    }
  }
  return usage_error(fmt::format("no KIVI group divides this model's head dimension {}; use full", layer.head_dim));
}

}  // namespace

int Budget::rows(int tokens, int least) const {
  if (value >= 1) return static_cast<int>(value);
  // The slack keeps 0.07 * 100 at 7, where the product in floating point is a little more.
  const double exact = value * tokens;
  return std::max(least, static_cast<int>(std::ceil(exact - 1e-9 * (1 + exact))));
}

Result<CacheSpec> parse_spec(std::string_view text) {
  KV_ASSIGN(const std::vector<SpecStage> stages, parse_stages(text));
  for (const SpecStage& stage : stages) KV_TRY(check_names(stage));
  KV_TRY(check_order(stages));
  CacheSpec spec;
  for (const SpecStage& stage : stages) {
    KV_ASSIGN(const std::string canonical, read_stage(stage, &spec));
    spec.canonical += (spec.canonical.empty() ? "" : "+") + canonical;
  }
  return spec;
}

Status check_spec(const CacheSpec& spec, const ModelShape& shape) {
  for (const LayerShape& layer : shape.layers) {
    if (layer.window > 0 && layer.window < shape.context) {
      return usage_error(
          fmt::format("this model attends over a sliding window of {} tokens, which no cache here supports yet", layer.window));
    }
    KV_TRY(check_group(spec.key, layer));
    KV_TRY(check_group(spec.value, layer));
    KV_TRY(make_tile_format(spec.key, Side::kKey, layer.head_dim).status());
    KV_TRY(make_tile_format(spec.value, Side::kValue, layer.head_dim).status());
  }
  return {};
}

const std::vector<MethodInfo>& methods() {
  static const std::vector<MethodInfo> kMethods = {
      {"full", "", "Every row in f16: what the others are measured against."},
      {"f32", "", "Every row in f32: the reference for exactness."},
      {"q8_0", "", "Every row in 8 bits with one scale per 32 channels, as llama.cpp's q8_0."},
      {"kivi", "bits=4|2|8, group=32|64|128, residual=128",
       "Keys quantized per channel over groups of tokens, values per token; the newest rows stay f16."},
      {"streamingllm", "sinks=4, window=512 (or budget), rope=absolute",
       "Keeps the first tokens and a window of the last ones, nothing between."},
      {"snapkv", "budget=0.25, window=32, kernel=7, pool=max|avg",
       "At the end of the prompt keeps the rows that its last queries attend to, and the last rows."},
  };
  return kMethods;
}

}  // namespace kvartet
