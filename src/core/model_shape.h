// The numbers of a model that cache, attention, planner and bench need, without knowing files or tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/rope_table.h"

namespace kvartet {

struct LayerShape {
  int heads = 0;     // query heads
  int kv_heads = 0;  // divides heads
  int head_dim = 0;
  int window = 0;  // sliding window in tokens; 0: every earlier token is seen

  int group() const { return heads / kv_heads; }  // query heads that share one KV head
  bool operator==(const LayerShape&) const = default;
};

struct ModelShape {
  std::string architecture;  // "llama", "qwen2", ...
  int hidden = 0;
  int ffn = 0;
  int vocab = 0;
  int context = 0;  // tokens the model was trained for
  std::vector<LayerShape> layers;
  RopeShape rope = {};  // factors are known once the weights are

  int layer_count() const { return static_cast<int>(layers.size()); }
  // f16 bytes of the keys and values of one token over all layers.
  std::size_t f16_bytes_per_token() const {
    std::size_t sum = 0;
    for (const LayerShape& l : layers)
      sum += std::size_t{4} * static_cast<std::size_t>(l.kv_heads) * static_cast<std::size_t>(l.head_dim);
    return sum;
  }
};

}  // namespace kvartet
