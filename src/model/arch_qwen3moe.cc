#include "model/arch.h"

namespace kvartet {

// Qwen3 with experts: a router's softmax picks a few of them per token, whose weights are scaled to sum to 1.
const Architecture kArchQwen3Moe = {
    .name = "qwen3moe",
    .rope_pairs = RopePairs::kHalves,
    .output_bias = Presence::kOptional,
    .query_key_norm = Presence::kRequired,
    .feed_forward = FeedForward::kExperts,
    .whole_head_rotates = true,
};

}  // namespace kvartet
