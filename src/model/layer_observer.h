// A look at a decode step from inside: for diagnostics that ask other caches what the model asks its own.
#pragma once

#include <functional>

#include "core/matrix.h"
#include "core/status.h"

namespace kvartet {

// What a layer's attention is about to be asked: q [heads, head_dim], after RoPE, and the new row k, v [kv_heads, head_dim].
struct LayerQuestion {
  int layer = 0;
  MatView<const float> q;
  MatView<const float> k;
  MatView<const float> v;
  MatView<const float> guessed_q;  // q as guessed from the input of the layer before (offloading.md 6); empty in the first layer
};
using LayerObserver = std::function<Status(const LayerQuestion& question)>;

}  // namespace kvartet
