// What besides the model's file decides the bits of a prefill.
#pragma once

#include <string>

namespace kvartet {

// "prefill 1, ggml 0.9.4 3f2a avx2 fma f16c, kernels AVX2, weights f16": equal texts mean equal bits for equal prompts, whatever
// the number of threads. Rows that a machine or a build computed may be used by another only where the texts are equal.
std::string prefill_arithmetic();

}  // namespace kvartet
