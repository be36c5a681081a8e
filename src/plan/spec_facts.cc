#include "plan/spec_facts.h"

#include <algorithm>

#include "cache/format_label.h"
#include "cache/offload_layer.h"
#include "cache/retention.h"
#include "cache/spec_method.h"
#include "quantize/tile_format.h"

namespace kvartet {
namespace {

Result<double> bits_of(const FormatRequest& request, Side side, int head_dim) {
  KV_ASSIGN(const TileFormat format, make_tile_format(request, side, head_dim));
  return 8.0 * static_cast<double>(format.tile_bytes) / (static_cast<double>(format.tile_rows) * format.head_dim);
}

std::string name_of(std::string_view stage) { return std::string(stage.substr(0, stage.find(':'))); }

}  // namespace

Result<SpecFacts> spec_facts(const std::string& text, const ModelShape& shape) {
  KV_ASSIGN(const CacheSpec spec, parse_spec(text));
  return spec_facts(spec, shape);
}

Result<SpecFacts> spec_facts(const CacheSpec& spec, const ModelShape& shape) {
  KV_TRY(check_spec(spec, shape));
  SpecFacts facts;
  facts.spec = spec;
  // Canonical stages are "evict+quantize", or one of them.
  const std::string& canonical = facts.spec.canonical;
  const std::size_t plus = canonical.find('+');
  const std::string first = canonical.substr(0, plus);
  facts.format_stage = "full";
  if (plus != std::string::npos) facts.format_stage = canonical.substr(plus + 1);
  if (find_method(evictor_methods(), name_of(first)) != nullptr || facts.spec.offload) {
    facts.evict_stage = first;
    facts.evict_method = name_of(first);
  } else {
    facts.format_stage = first;
  }
  const int head_dim = shape.layers.front().head_dim;
  facts.key_format = format_label(facts.spec.key);
  facts.value_format = format_label(facts.spec.value);
  KV_ASSIGN(facts.key_bits, bits_of(facts.spec.key, Side::kKey, head_dim));
  KV_ASSIGN(facts.value_bits, bits_of(facts.spec.value, Side::kValue, head_dim));
  return facts;
}

namespace {

double amount(const Amount& a, int tokens) { return a.share ? a.value * tokens : a.value; }

// How a selecting cache divides a prompt; layers that keep everything left out.
Segments segments_of(const SelectOptions& options, int prompt_tokens) {
  return OffloadLayer::segments(options, options.dense_layers, prompt_tokens);
}

}  // namespace

bool selects_from(const SpecFacts& facts, int prompt_tokens) {
  return facts.selects() && !segments_of(*facts.spec.offload, prompt_tokens).dense;
}

double near_generated(const SpecFacts& facts, int prompt_tokens, int generated) {
  if (!facts.selects() || facts.spec.offload->generated == 0) return generated;
  const SelectOptions& options = *facts.spec.offload;
  return generated - OffloadLayer::far_generated(options, options.dense_layers, prompt_tokens, generated);
}

double kept_rows(const SpecFacts& facts, int prompt_tokens, int generated) {
  const double all = static_cast<double>(prompt_tokens) + generated;
  if (facts.selects()) {
    const SelectOptions& options = *facts.spec.offload;
    const Segments s = segments_of(options, prompt_tokens);
    if (s.dense) return all;
    return s.kept_tokens(options.index.chunk) + s.selected * options.index.chunk +
           near_generated(facts, prompt_tokens, generated);
  }
  if (!facts.evicts()) return all;
  constexpr LayerPlace kMiddle = {.index = 0, .count = 1};  // pyramidkv: neither a lower layer nor an upper one
  return std::min<double>(all, rows_after(facts.spec, kMiddle, prompt_tokens, generated));
}

double chosen_rows(const SpecFacts& facts, int prompt_tokens) {
  if (!selects_from(facts, prompt_tokens)) return 0;
  return std::min<double>(prompt_tokens, amount(facts.spec.offload->budget, prompt_tokens));
}

double kept_share(const SpecFacts& facts, int prompt_tokens, int answer_tokens) {
  if (!facts.evicts() || prompt_tokens <= 0) return 1;
  const double of_prompt = std::clamp(kept_rows(facts, prompt_tokens, 0) / prompt_tokens, 1e-6, 1.0);
  if (of_prompt < 1) return of_prompt;
  const auto share_after = [&](int generated) {
    return std::clamp(kept_rows(facts, prompt_tokens, generated) / (static_cast<double>(prompt_tokens) + generated), 1e-6, 1.0);
  };
  return (of_prompt + 4 * share_after(answer_tokens / 2) + share_after(answer_tokens)) / 6;  // Simpson's rule
}

}  // namespace kvartet
