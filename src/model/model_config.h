// What the graphs need to know of a model, read from GGUF metadata and checked: shape, norm, RoPE.
#pragma once

#include <optional>
#include <vector>

#include "core/model_shape.h"
#include "core/status.h"
#include "model/arch.h"
#include "model/gguf_file.h"

namespace kvartet {

struct RopeSettings {
  int dims = 0;  // channels of a head that turn
  double base = 10000;
  double scale = 1;  // of positions: 1 / the scaling factor
  bool has_factors = false;
  float yarn = 0;       // how much of YaRN's mix of scaled and unscaled angles: 0 (linear) or 1
  float magnitude = 1;  // as ggml's RoPE takes it
  float beta_fast = 32;
  float beta_slow = 1;
  int original_context = 0;
};

// A mixture of experts in every layer's feed-forward block.
struct ExpertSettings {
  int count = 0;
  int used = 0;  // per token
};

struct ModelConfig {
  const Architecture* architecture = nullptr;
  ModelShape shape;
  float rms_epsilon = 0;
  RopeSettings rope;
  std::optional<RopeSettings> window_rope;  // of layers with a window, where they have one of their own
  std::optional<ExpertSettings> experts;    // shape.ffn is then the width of one expert
  float query_scale = 1;                    // of Q, on top of attention's 1 / sqrt(head_dim)
  float embedding_scale = 1;

  // Not the same as having a window in `shape`: one that holds the whole context is left out there.
  bool uses_window_rope(int layer) const {
    return window_rope.has_value() && !windowed.empty() && windowed[static_cast<std::size_t>(layer)];
  }
  std::vector<bool> windowed;  // per layer, as the file has it; empty: no windows
};

// kBadInput: unknown architecture, a key missing or of the wrong type, numbers that make no model, RoPE scaling that is not
// supported, no vocabulary.
Result<ModelConfig> read_model_config(const GgufFile& file);

}  // namespace kvartet
