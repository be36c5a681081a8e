// A copy of a model file whose quantized matrices are BF16: for the oracle that compares weights of one precision.
#pragma once

#include <string>

#include "core/status.h"

namespace kvartet {

// Writes `to`, with the metadata of `from` and its tensors: quantized ones rounded to BF16, as LoadOptions::bf16_copy
// rounds them, the others as they are. kBadInput: `from` is no model file; kIo: `to` cannot be written.
Status write_bf16_copy(const std::string& from, const std::string& to);

}  // namespace kvartet
