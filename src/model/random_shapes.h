// Random-weight models of well-known shapes: speed and memory at real sizes without anybody's weights.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/status.h"
#include "model/tiny_model.h"

namespace kvartet {

// "llama-3.2-1b", "llama-3.2-1b,layers=4,weights=q8_0": the options of a model of that shape. Weights are q4_1 unless said.
// kUsage: an unknown shape, key or value, naming what there is.
Result<TinyModelOptions> random_shape(std::string_view text);

std::span<const std::string_view> random_shape_names();

// A file name for it: "llama-3.2-1b-16-layers-q4_1".
std::string random_shape_name(std::string_view text);

}  // namespace kvartet
