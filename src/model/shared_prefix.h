// The exact rows of a text that several prompts begin with, held in memory: the first prompt computes them, the others only what
// follows. The bits are those of whole prefills (docs/decisions/0012-shared-documents.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/column_sums.h"
#include "core/model_shape.h"

namespace kvartet {

// Below this a prefix saves less than holding it costs.
inline constexpr int kLeastPrefixTokens = 64;

// What caches may ask for beside keys and values.
struct PrefixParts {
  int queries = 0;  // softmax windows: the last queries of the prompt, some of which may be the prefix's
  bool key_pre = false;
  bool column_sums = false;

  bool include(const PrefixParts& o) const {
    return queries >= o.queries && (key_pre || !o.key_pre) && (column_sums || !o.column_sums);
  }
};

struct SharedPrefix {
  // Windows of the next prompts may be wider than this prompt's: as many queries are held at least.
  static constexpr int kQueries = 128;

  struct Layer {
    std::vector<float> key;      // [tokens, kv_heads, head_dim], after RoPE
    std::vector<float> key_pre;  // before RoPE; empty unless held
    std::vector<float> value;
    std::vector<float> queries;  // [the last ones, heads, head_dim], after RoPE; none in a layer with a sliding window
    ColumnSums columns;          // that the prefix's own queries gave; nothing with a sliding window, or unless held
  };

  std::vector<std::int32_t> tokens;
  PrefixParts parts;
  std::vector<Layer> layers;  // one after the other while they are computed
  double seconds = 0;         // that computing them took
  bool whole = false;         // all layers are there

  // Does it hold exactly these tokens, with these parts?
  bool serves(std::span<const std::int32_t> prefix, const PrefixParts& wanted) const;
  std::size_t bytes() const;
  // The same before there is anything.
  static std::size_t bytes_of(const ModelShape& shape, int tokens, const PrefixParts& parts);
  // With everything that any cache may ask for.
  static std::size_t most_bytes(const ModelShape& shape, int tokens);
};

// Of a prompt of so many tokens, that has its first `shared` in common with others: how many are computed as its prefix; 0: it is
// not worth it. At least two rows follow, since a lone row is multiplied by another kernel.
int prefix_tokens(int prompt_tokens, int shared);

}  // namespace kvartet
