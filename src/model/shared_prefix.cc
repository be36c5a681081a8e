#include "model/shared_prefix.h"

#include <algorithm>

#include "core/uz.h"

namespace kvartet {
namespace {

constexpr int kLeastRowsBehind = 2;

}  // namespace

bool SharedPrefix::serves(std::span<const std::int32_t> prefix, const PrefixParts& wanted) const {
  return whole && parts.include(wanted) && std::ranges::equal(tokens, prefix);
}

std::size_t SharedPrefix::bytes() const {
  std::size_t sum = tokens.size() * sizeof(std::int32_t);
  for (const Layer& layer : layers) {
    sum += (layer.key.size() + layer.key_pre.size() + layer.value.size() + layer.queries.size()) * sizeof(float);
    sum += layer.columns.bytes();
  }
  return sum;
}

std::size_t SharedPrefix::bytes_of(const ModelShape& shape, int tokens, const PrefixParts& parts) {
  std::size_t sum = uz(tokens) * sizeof(std::int32_t);
  for (const LayerShape& layer : shape.layers) {
    const std::size_t row = uz(layer.kv_heads * layer.head_dim) * sizeof(float);
    sum += uz(tokens) * row * (parts.key_pre ? 3 : 2);
    if (layer.window > 0) continue;
    sum += uz(std::min(tokens, parts.queries)) * uz(layer.heads * layer.head_dim) * sizeof(float);
    if (parts.column_sums) sum += ColumnSums::bytes_of(layer.heads, tokens);
  }
  return sum;
}

std::size_t SharedPrefix::most_bytes(const ModelShape& shape, int tokens) {
  return bytes_of(shape, tokens, {.queries = kQueries, .key_pre = true, .column_sums = true});
}

int prefix_tokens(int prompt_tokens, int shared) {
  const int prefix = std::min(shared, prompt_tokens - kLeastRowsBehind);
  return prefix < kLeastPrefixTokens ? 0 : prefix;
}

}  // namespace kvartet
