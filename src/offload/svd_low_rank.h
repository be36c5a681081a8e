// Low-rank keys: one factorization K ~ A B of all KV heads' keys of a layer (offloading.md 3.3).
#pragma once

#include <span>
#include <vector>

#include "core/matrix.h"

namespace kvartet {

// Eigenvalues (descending) and orthonormal eigenvectors of a symmetric matrix [n, n] in double: Householder
// tridiagonalization, then implicit QL. vectors[i * n ..]: the eigenvector of values[i].
struct SymmetricEigen {
  std::vector<double> values;
  std::vector<double> vectors;  // [n, n], by rows
};
SymmetricEigen symmetric_eigen(std::span<const double> matrix, int n);

// A = K V_r [rows, rank] and B = V_r^T [rank, cols], the best approximation of this rank; V_r from the Gram matrix K^T K in
// double. rank <= min(rows, cols).
struct LowRank {
  int rank = 0;
  std::vector<float> a;
  std::vector<float> b;
  std::vector<double> squares;  // all squared singular values, descending: their tail is the error (3.5)
};
LowRank factorize(MatView<const float> k, int rank);

}  // namespace kvartet
