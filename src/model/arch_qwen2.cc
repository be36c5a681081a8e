#include "model/arch.h"

namespace kvartet {

// Qwen2 and Qwen2.5.
const Architecture kArchQwen2 = {
    .name = "qwen2",
    .rope_pairs = RopePairs::kHalves,
    .query_key_value_bias = Presence::kRequired,
    .output_bias = Presence::kOptional,
};

}  // namespace kvartet
