// Attention over a part of the rows, and the exact merge of parts (compression.md section 0).
#pragma once

#include <span>

#include "core/matrix.h"

namespace kvartet {

// For each of `queries` queries: the largest logit, sum exp(logit - max), and sum exp(logit - max) * value.
// An empty part has max = -inf, sum = 0 and contributes nothing.
struct SoftmaxPartial {
  float* max = nullptr;  // [queries]
  float* sum = nullptr;  // [queries]
  float* acc = nullptr;  // [queries, head_dim], dense
  int queries = 0;
  int head_dim = 0;
};

void clear_partial(const SoftmaxPartial& partial);
// into <- into (+) part. Merge in a fixed order: the order fixes the bits.
void merge_partial(const SoftmaxPartial& into, const SoftmaxPartial& part);
// out[query, :] = acc / sum. A query that saw no row gets zeros.
void finish_partial(const SoftmaxPartial& partial, MatView<float> out);

}  // namespace kvartet
