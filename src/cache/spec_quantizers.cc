// The methods that decide how a row is written, as a spec names them, alone or as a pair keys/values.
#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "cache/spec_method.h"
#include "quantize/tile_format.h"

namespace kvartet {
namespace {

constexpr std::array<std::string_view, 3> kKiviKeys = {"bits", "group", "residual"};

FormatRequest plain_request(std::string_view method) { return {method == "full" ? "f16" : std::string(method), 0, 0}; }

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

// A format without keys.
Result<std::string> read_plain(const SpecStage& stage, CacheSpec* spec) {
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

std::span<const SpecMethod> quantizer_methods() {
  static const std::vector<SpecMethod> kMethods = {
      {{"full", "", "Every row in f16: what the others are measured against."}, read_plain},
      {{"f32", "", "Every row in f32: the reference for exactness."}, read_plain},
      {{"q8_0", "", "Every row in 8 bits with one scale per 32 channels, as llama.cpp's q8_0."}, read_plain},
      {{"kivi", "bits=4|2|8, group=32|64|128, residual=128",
        "Keys quantized per channel over groups of tokens, values per token; the newest rows stay f16."},
       read_kivi},
  };
  return kMethods;
}

Result<std::string> read_quantizer(const SpecStage& stage, CacheSpec* spec) {
  if (stage.name.key == "kivi" || stage.name.value == "kivi") return read_kivi(stage, spec);
  return read_plain(stage, spec);
}

Status check_formats(const CacheSpec& spec, const LayerShape& layer) {
  KV_TRY(check_group(spec.key, layer));
  KV_TRY(check_group(spec.value, layer));
  KV_TRY(make_tile_format(spec.key, Side::kKey, layer.head_dim).status());
  return make_tile_format(spec.value, Side::kValue, layer.head_dim).status();
}

}  // namespace kvartet
