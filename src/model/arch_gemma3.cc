#include "model/arch.h"

namespace kvartet {

// Gemma 3, text. Five layers with a sliding window to one that sees everything; norms before and after both blocks, in
// which the converter has already added the 1 that Gemma's norm weights lack.
const Architecture kArchGemma3 = {
    .name = "gemma3",
    .rope_pairs = RopePairs::kHalves,
    .query_key_norm = Presence::kRequired,
    .post_norms = Presence::kRequired,
    .activation = Activation::kGelu,
    .windowed_layers = WindowedLayers::kPattern,
    .scales_embedding = true,
    .has_window_rope = true,
};

}  // namespace kvartet
