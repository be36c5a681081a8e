// LRQK's joint low-rank factors of one query head's queries and keys (offloading.md 6).
#pragma once

#include "core/matrix.h"
#include "offload/projected_index.h"

namespace kvartet {

struct JointFactorOptions {
  int factors = 32;         // r, at most dim
  int sweeps = 2;           // of alternating least squares
  double query_weight = 1;  // lambda_Q
  double key_weight = 1;    // lambda_K
};

// Factors of keys [n, dim] and queries [m > 0, dim] that alternating least squares finds for
//   ||Q K^T - A_Q A_K^T||^2 + lambda_Q ||Q - A_Q B_Q||^2 + lambda_K ||K - A_K B_K||^2,
// from the columns with the largest sum of |Q| + |K|. Both A are linear in what they stand for, A_Q = Q M_Q and A_K = K M_K, so
// everything but A_K itself is computed from the two Gram matrices, in double.
struct JointFactors {
  std::vector<double> m_q, m_k;  // [dim, r]
  std::vector<double> b_q, b_k;  // [r, dim]
  // What a new query q [dim] is in the factors, given all keys: q times this, [dim, r].
  std::vector<double> new_query;
};
JointFactors fit_joint_factors(MatView<const float> keys, MatView<const float> queries, const JointFactorOptions& options);

KeyProjection joint_factors(MatView<const float> keys, MatView<const float> queries, const JointFactorOptions& options);

}  // namespace kvartet
