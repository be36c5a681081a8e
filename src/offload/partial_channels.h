// InfiniGen's partial keys and queries (offloading.md 6): the directions in which queries are large are the ones that decide
// logits.
#pragma once

#include "core/matrix.h"
#include "offload/projected_index.h"

namespace kvartet {

// Channels kept of `dim`: ceil(share * dim) by the queries, and as many again by the keys, at most all.
int partial_width(double share, int dim);

// Turns keys [n, dim] and queries [m > 0, dim] into the right singular vectors of the queries (Skew::kNone: leaves them), counts
// how large both are in each direction (sum of magnitudes), and keeps the first directions by queries, then by keys among the
// rest. The map's rows are these directions, in the order of the singular values; ties go to the earlier one.
KeyProjection partial_channels(MatView<const float> keys, MatView<const float> queries, double share, Skew skew);

}  // namespace kvartet
