// The methods that decide how a row is written, as a spec names them, alone or as a pair keys/values.
//
// Every side is read for itself: its method says which keys it takes. A key that both sides take may be a pair. In the
// canonical text numbers always stand; switches that are off (rotate, scale, center, keep) do not.
#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "cache/spec_method.h"
#include "quantize/tile_format.h"

namespace kvartet {
namespace {

constexpr int kDefaultResidual = 128;
constexpr int kMostSeed = 1 << 30;
constexpr int kDefaultSketch = 256;
constexpr int kMostSketch = 1024;

// ---- which method takes which keys, in the order of the canonical text

struct Method {
  std::string_view name;
  std::vector<std::string_view> keys;  // "center" and "keep" come on top where rows are quantized
  bool quantizes = true;
};

const std::vector<Method>& method_table() {
  static const std::vector<Method> kTable = {
      {"full", {}, false},
      {"f32", {}, false},
      {"q8_0", {"rotate"}},
      {"q5_0", {"rotate"}},
      {"q4_1", {"rotate"}},
      {"q4_0", {"rotate"}},
      {"q3_0", {"rotate"}},
      {"fp8", {"scale"}},
      {"kivi", {"bits", "group", "residual"}},
      {"turboquant", {"bits", "variant", "rotation", "residual", "seed"}},
      {"polar-angle", {}},
      {"qjl", {"sketch", "residual"}},
  };
  return kTable;
}

const Method& method_of(std::string_view name) {
  const std::vector<Method>& table = method_table();
  return *std::find_if(table.begin(), table.end(), [&](const Method& m) { return m.name == name; });
}

bool takes(std::string_view method, std::string_view key) { return contains(method_of(method).keys, key); }

// Keys of a stage's settings, both sides and the options of all quantizers.
std::vector<std::string_view> allowed_keys(const SpecStage& stage) {
  std::vector<std::string_view> keys = method_of(stage.name.key).keys;
  for (const std::string_view key : method_of(stage.name.value).keys) {
    if (!contains(keys, key)) keys.push_back(key);
  }
  if (method_of(stage.name.key).quantizes) keys.emplace_back("center");
  if (method_of(stage.name.key).quantizes || method_of(stage.name.value).quantizes) keys.emplace_back("keep");
  return keys;
}

// ---- one side

// The stage's text of a key for the sides whose method takes it. kUsage: a pair where only one side does.
Result<SidedText> sided_text(const SpecStage& stage, std::string_view key, std::string_view otherwise) {
  const SpecSetting* setting = stage.find(key);
  if (setting == nullptr) return SidedText{std::string(otherwise), std::string(otherwise)};
  const bool key_side = takes(stage.name.key, key);
  if (setting->value.paired() && !(key_side && takes(stage.name.value, key))) {
    return usage_error(fmt::format("only one side of '{}' is {}, so '{}' takes one value; write {}={}", stage_name(stage),
                                   key_side ? stage.name.key : stage.name.value, key, key,
                                   printable(key_side ? setting->value.key : setting->value.value)));
  }
  return setting->value;
}

Status check_word(std::string_view key, std::string_view text, Names words) {
  if (contains(words, text)) return {};
  return usage_error(fmt::format("{}={} is unknown; {}", key, quoted(text), choice_hint(text, words, fmt::format("{}=", key))));
}

// 2.5, 3.25 and 3.5 are fractions of section 3.5; the rest are whole numbers.
Status read_rate(std::string_view text, FormatRequest* request) {
  constexpr std::array<int, 8> kBits = {4, 1, 2, 3, 5, 6, 7, 8};
  if (text.find('.') == std::string_view::npos) {
    KV_ASSIGN(request->bits, one_of("bits", text, kBits));
    return {};
  }
  double rate = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rate, std::chars_format::fixed);
  const bool read = error == std::errc() && end == text.data() + text.size();
  if (!read || (rate != 2.5 && rate != 3.25 && rate != 3.5)) {
    return usage_error(
        fmt::format("bits={} is not available; the fractions are bits=2.5, bits=3.25 and bits=3.5", quoted(std::string(text))));
  }
  request->bits = static_cast<int>(rate);
  request->quarters = static_cast<int>((rate - request->bits) * 4);
  return {};
}

Status read_kivi_side(const std::string& bits, const std::string& group, FormatRequest* request) {
  constexpr std::array<int, 4> kBits = {4, 2, 3, 8};
  constexpr std::array<int, 3> kGroups = {32, 64, 128};
  KV_ASSIGN(request->bits, one_of("bits", bits, kBits));
  KV_ASSIGN(request->group, one_of("group", group, kGroups));
  return {};
}

// What a stage says about its sides, as text; empty where no side takes the key.
struct StageTexts {
  SidedText bits, group, rotate, scale;
  std::string variant, rotation, center;
  int seed = 1;
  int sketch = 0;
};

Status read_side(const StageTexts& texts, Side side, FormatRequest* request) {
  const auto of = [side](const SidedText& text) { return side == Side::kKey ? text.key : text.value; };
  constexpr std::array<std::string_view, 2> kRotate = {"none", "hadamard"};
  constexpr std::array<std::string_view, 2> kScales = {"1", "calibrated"};
  if (takes(request->name, "rotate")) {
    KV_TRY(check_word("rotate", of(texts.rotate), kRotate));
    if (of(texts.rotate) == "hadamard") request->rotation = Rotation::kHadamard;
  }
  if (takes(request->name, "scale")) {
    KV_TRY(check_word("scale", of(texts.scale), kScales));
    request->calibrated = of(texts.scale) == "calibrated";
  }
  if (request->name == "kivi") KV_TRY(read_kivi_side(of(texts.bits), of(texts.group), request));
  if (request->name == "turboquant") {
    KV_TRY(read_rate(of(texts.bits), request));
    request->rotation = texts.rotation == "dense" ? Rotation::kDense : Rotation::kHadamard;
    request->residual_signs = texts.variant == "prod" && side == Side::kKey;
    request->seed = static_cast<std::uint64_t>(texts.seed);
  }
  if (request->name == "polar-angle") {
    request->rotation = Rotation::kHadamard;
    request->seed = 1;
  }
  if (request->name == "qjl") {
    request->sketch = texts.sketch;
    request->seed = 1;
  }
  return {};
}

// ---- options that the sides share

Result<int> read_residual(const SpecStage& stage, const CacheSpec& spec) {
  const int step = std::max({spec.key.name == "kivi" ? spec.key.group : 0, spec.value.name == "kivi" ? spec.value.group : 0});
  if (step > 0 && spec.evict == Evict::kStreaming) {  // qjl: kivi itself is refused earlier
    return usage_error(
        fmt::format("streamingllm drops single rows at every step, and the values of '{0}' stay exact for a while before they "
                    "are sealed; write "
                    "streamingllm+{0}/full:residual=0",
                    spec.key.name));
  }
  const int otherwise = step > 0 || spec.key.name == "qjl" ? kDefaultResidual : 0;
  KV_ASSIGN(const int residual, single_whole(stage, "residual", otherwise, step, kMostRows));
  if (step > 0 && residual % step != 0) {
    const int below = residual / step * step;
    return usage_error(fmt::format("residual={} is not a multiple of group={}; the nearest are residual={} and residual={}",
                                   residual, step, below, below + step));
  }
  if (residual > 0 && spec.evict == Evict::kStreaming) {
    return usage_error(fmt::format(
        "streamingllm drops single rows at every step, and rows beyond residual={} are sealed; write residual=0", residual));
  }
  return residual;
}

// "0-1.28-29": layers and ranges of layers, ascending.
Result<std::vector<LayerRange>> read_keep(const SpecStage& stage) {
  constexpr int kMostLayers = 4096;
  KV_ASSIGN(const std::string text, single_text(stage, "keep", ""));
  std::vector<LayerRange> ranges;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find('.'));
    rest = item.size() < rest.size() ? rest.substr(item.size() + 1) : std::string_view();
    const std::size_t dash = item.find('-');
    LayerRange range;
    KV_ASSIGN(range.first, parse_whole("keep", item.substr(0, dash), 0, kMostLayers));
    range.last = range.first;
    if (dash != std::string_view::npos) {
      KV_ASSIGN(range.last, parse_whole("keep", item.substr(dash + 1), 0, kMostLayers));
    }
    const int least = ranges.empty() ? 0 : ranges.back().last + 1;
    if (range.first < least || range.last < range.first) {
      return usage_error(
          fmt::format("keep={} is not in ascending order at '{}'; write such as keep=0-1.28-29", quoted(text), item));
    }
    ranges.push_back(range);
  }
  if (text.ends_with('.')) return usage_error(fmt::format("keep={} ends in a point; write such as keep=0-1.28-29", quoted(text)));
  return ranges;
}

std::string print_keep(const std::vector<LayerRange>& ranges) {
  std::string text;
  for (const LayerRange& r : ranges) {
    if (!text.empty()) text += '.';
    text += r.first == r.last ? fmt::format("{}", r.first) : fmt::format("{}-{}", r.first, r.last);
  }
  return text;
}

Result<StageTexts> read_texts(const SpecStage& stage) {
  constexpr std::array<std::string_view, 2> kVariants = {"mse", "prod"};
  constexpr std::array<std::string_view, 2> kRotations = {"hadamard", "dense"};
  constexpr std::array<std::string_view, 2> kCenters = {"none", "mean"};
  StageTexts texts;
  KV_ASSIGN(texts.bits, sided_text(stage, "bits", "4"));
  KV_ASSIGN(texts.group, sided_text(stage, "group", "32"));
  KV_ASSIGN(texts.rotate, sided_text(stage, "rotate", "none"));
  KV_ASSIGN(texts.scale, sided_text(stage, "scale", "1"));
  KV_ASSIGN(texts.variant, single_word(stage, "variant", kVariants));
  KV_ASSIGN(texts.rotation, single_word(stage, "rotation", kRotations));
  KV_ASSIGN(texts.center, single_word(stage, "center", kCenters));
  KV_ASSIGN(texts.seed, single_whole(stage, "seed", 1, 1, kMostSeed));
  KV_ASSIGN(texts.sketch, single_whole(stage, "sketch", kDefaultSketch, 32, kMostSketch));
  if (texts.sketch % 32 != 0) {
    return usage_error(
        fmt::format("sketch={} is not a multiple of 32; the nearest is sketch={}", texts.sketch, (texts.sketch + 16) / 32 * 32));
  }
  return texts;
}

// The text of a key that each side may have its own value of: only those of the sides that take it.
std::string print_side_key(const SpecStage& stage, std::string_view key, const SidedText& text) {
  if (!takes(stage.name.value, key)) return text.key;
  if (!takes(stage.name.key, key)) return text.value;
  return print_sided(text);
}

std::string canonical_text(const SpecStage& stage, const StageTexts& texts, const CacheSpec& spec) {
  std::string text;
  const auto add = [&text](std::string_view key, const std::string& value) {
    text += fmt::format("{}{}={}", text.empty() ? ":" : ",", key, value);
  };
  for (const std::string_view key : allowed_keys(stage)) {
    if (key == "bits") add(key, print_side_key(stage, key, texts.bits));
    if (key == "group") add(key, print_side_key(stage, key, texts.group));
    if (key == "variant") add(key, texts.variant);
    if (key == "rotation") add(key, texts.rotation);
    if (key == "sketch") add(key, fmt::format("{}", texts.sketch));
    if (key == "residual") add(key, fmt::format("{}", spec.residual));
    if (key == "seed") add(key, fmt::format("{}", texts.seed));
    if (key == "rotate" && print_side_key(stage, key, texts.rotate) != "none") add(key, print_side_key(stage, key, texts.rotate));
    if (key == "scale" && print_side_key(stage, key, texts.scale) != "1") add(key, print_side_key(stage, key, texts.scale));
    if (key == "center" && spec.center_keys) add(key, "mean");
    if (key == "keep" && !spec.keep.empty()) add(key, print_keep(spec.keep));
  }
  return stage_name(stage) + text;
}

FormatRequest request_of(const std::string& method) { return {.name = method == "full" ? "f16" : method}; }

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

std::span<const SpecMethod> quantizer_methods() {
  static const std::vector<SpecMethod> kMethods = {
      {{"full", "", "Every row in f16: what the others are measured against."}},
      {{"f32", "", "Every row in f32: the reference for exactness."}},
      {{"q8_0", "rotate=none|hadamard", "8 bits with one scale per 32 channels of a row, as llama.cpp's q8_0."}},
      {{"q5_0", "rotate=none|hadamard", "5 bits with one scale per 32 channels of a row, as llama.cpp's q5_0."}},
      {{"q4_1", "rotate=none|hadamard", "4 bits with scale and minimum per 32 channels of a row, as llama.cpp's q4_1."}},
      {{"q4_0", "rotate=none|hadamard", "4 bits with one scale per 32 channels of a row, as llama.cpp's q4_0."}},
      {{"q3_0", "rotate=none|hadamard", "3 bits with one scale per 32 channels of a row, by q4_0's rule."}},
      {{"fp8", "scale=1|calibrated", "Every number as an 8-bit float (E4M3)."}},
      {{"kivi", "bits=4|2|3|8, group=32|64|128, residual=128",
        "Keys quantized per channel over groups of tokens, values per token; the newest rows stay f16."}},
      {{"turboquant", "bits=4 (1 to 8, 2.5, 3.25, 3.5), variant=mse|prod, rotation=hadamard|dense, residual=0, seed=1",
        "Rows rotated at random, then one optimal codebook for all their coordinates; only the norm is stored beside the "
        "codes."}},
      {{"polar-angle", "", "Rows rotated, then blocks of 16 channels as one radius and 15 angles of 4 and 2 bits."}},
      {{"qjl", "sketch=256, residual=128", "Keys as the signs of a random sketch and their length; values as kivi with 2 bits."}},
  };
  return kMethods;
}

Result<std::string> read_quantizer(const SpecStage& stage, CacheSpec* spec) {
  KV_TRY(check_keys(stage, allowed_keys(stage)));
  KV_ASSIGN(const StageTexts texts, read_texts(stage));
  spec->key = request_of(stage.name.key);
  spec->value = request_of(stage.name.value);
  if (stage.name.value == "qjl") {
    if (stage.name.paired()) {
      return usage_error(fmt::format("qjl estimates logits and cannot write the values of '{}'; write qjl/{}", stage_name(stage),
                                     stage.name.key));
    }
    spec->value = {"kivi", 2, 32};  // as the authors' code has it (compression.md 3.9)
  }
  if (method_of(stage.name.key).quantizes) KV_TRY(read_side(texts, Side::kKey, &spec->key));
  if (method_of(stage.name.value).quantizes && stage.name.value != "qjl") KV_TRY(read_side(texts, Side::kValue, &spec->value));
  if (texts.variant == "prod" && stage.name.key != "turboquant") {
    return usage_error(fmt::format("variant=prod is for turboquant keys, and the keys of '{}' are {}; write variant=mse",
                                   stage_name(stage), stage.name.key));
  }
  if (takes(stage.name.key, "residual") || takes(stage.name.value, "residual")) {
    KV_ASSIGN(spec->residual, read_residual(stage, *spec));
  }
  spec->center_keys = texts.center == "mean";
  KV_ASSIGN(spec->keep, read_keep(stage));
  return canonical_text(stage, texts, *spec);
}

Status check_formats(const CacheSpec& spec, const LayerShape& layer) {
  KV_TRY(check_group(spec.key, layer));
  KV_TRY(check_group(spec.value, layer));
  KV_TRY(make_tile_format(spec.key, Side::kKey, layer.head_dim).status());
  return make_tile_format(spec.value, Side::kValue, layer.head_dim).status();
}

}  // namespace kvartet
