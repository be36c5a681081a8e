// Log-softmax of one row of logits, in double: likelihoods are compared at 1e-2 nats and summed over hundreds of tokens.
#pragma once

#include <span>

namespace kvartet {

// log(sum exp(logits)); -inf for an empty row.
double log_sum_exp(std::span<const float> logits);

// Natural-log probability of `token`, an index into logits.
double log_probability(std::span<const float> logits, int token);

}  // namespace kvartet
