// Biases of a model's keys, read from its file: large ones are the usual reason why low-bit keys fail (compression.md 12.4).
#pragma once

#include <string>
#include <vector>

#include "core/status.h"

namespace kvartet {

// Euclidean norm of each layer's key bias, over all KV heads; empty: the architecture has none.
// kBadInput: the file is missing or damaged.
Result<std::vector<double>> key_bias_norms(const std::string& path);

}  // namespace kvartet
