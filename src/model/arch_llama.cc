#include "model/arch.h"

namespace kvartet {

// Llama 1 to 3.x, Mistral, SmolLM2 and what else is converted under this name. The converter permutes the rows of Wq and
// Wk so that RoPE turns neighbours. Mistral's first models attend to a window of 4,096 tokens in every layer: a file that
// says so (attention.sliding_window) gets it, while libllama reads that key for other architectures only.
const Architecture kArchLlama = {
    .name = "llama",
    .rope_pairs = RopePairs::kNeighbours,
    .query_key_value_bias = Presence::kOptional,
    .output_bias = Presence::kOptional,
    .rope_factors = Presence::kOptional,
    .whole_head_rotates = true,
};

}  // namespace kvartet
