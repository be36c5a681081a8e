// What the graphs need to know of a model, read from GGUF metadata and checked: shape, norm, RoPE.
#pragma once

#include "core/model_shape.h"
#include "core/status.h"
#include "model/arch.h"
#include "model/gguf_file.h"

namespace kvartet {

struct RopeSettings {
  int dims = 0;  // channels of a head that turn
  double base = 10000;
  double scale = 1;  // of positions: 1 / the linear scaling factor
  bool has_factors = false;
};

struct ModelConfig {
  const Architecture* architecture = nullptr;
  ModelShape shape;
  float rms_epsilon = 0;
  RopeSettings rope;
};

// kBadInput: unknown architecture, a key missing or of the wrong type, numbers that make no model, RoPE scaling that is not
// supported, no vocabulary.
Result<ModelConfig> read_model_config(const GgufFile& file);

}  // namespace kvartet
