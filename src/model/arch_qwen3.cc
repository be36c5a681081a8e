#include "model/arch.h"

namespace kvartet {

// Qwen3, dense. Every head of Q and K is normed before RoPE, which took the place of Qwen2's biases.
const Architecture kArchQwen3 = {
    .name = "qwen3",
    .rope_pairs = RopePairs::kHalves,
    .output_bias = Presence::kOptional,
    .query_key_norm = Presence::kRequired,
    .whole_head_rotates = true,
};

}  // namespace kvartet
