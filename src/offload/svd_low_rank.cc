#include "offload/svd_low_rank.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"
#include "core/uz.h"

namespace kvartet {
namespace {

// A symmetric matrix turned into tridiagonal form T = Q^T A Q. q: [n, n], its columns are the basis.
struct Tridiagonal {
  std::vector<double> diagonal;
  std::vector<double> below;  // below[i] couples i and i + 1
  std::vector<double> q;
};

// One reflection per column: v makes everything below the subdiagonal of column k zero, A <- H A H with H = I - beta v v^T.
Tridiagonal tridiagonalize(std::vector<double> a, std::size_t n) {
  Tridiagonal t;
  t.q.assign(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i) t.q[i * n + i] = 1;
  std::vector<double> v(n);
  std::vector<double> w(n);
  for (std::size_t k = 0; k + 2 < n; ++k) {
    double norm = 0;
    for (std::size_t i = k + 1; i < n; ++i) norm += a[i * n + k] * a[i * n + k];
    norm = std::sqrt(norm);
    if (norm == 0) continue;
    std::fill(v.begin(), v.end(), 0.0);
    for (std::size_t i = k + 1; i < n; ++i) v[i] = a[i * n + k];
    v[k + 1] += v[k + 1] >= 0 ? norm : -norm;
    double square = 0;
    for (std::size_t i = k + 1; i < n; ++i) square += v[i] * v[i];
    const double beta = 2 / square;
    double vw = 0;
    for (std::size_t i = k; i < n; ++i) {
      double sum = 0;
      for (std::size_t j = k + 1; j < n; ++j) sum += a[i * n + j] * v[j];
      w[i] = beta * sum;
      vw += w[i] * v[i];
    }
    for (std::size_t i = k; i < n; ++i) w[i] -= beta / 2 * vw * v[i];
    for (std::size_t i = k; i < n; ++i) {
      for (std::size_t j = k; j < n; ++j) a[i * n + j] -= v[i] * w[j] + w[i] * v[j];
    }
    for (std::size_t i = 0; i < n; ++i) {
      double sum = 0;
      for (std::size_t j = k + 1; j < n; ++j) sum += t.q[i * n + j] * v[j];
      sum *= beta;
      for (std::size_t j = k + 1; j < n; ++j) t.q[i * n + j] -= sum * v[j];
    }
  }
  for (std::size_t i = 0; i < n; ++i) t.diagonal.push_back(a[i * n + i]);
  for (std::size_t i = 0; i + 1 < n; ++i) t.below.push_back(a[(i + 1) * n + i]);
  t.below.push_back(0);
  return t;
}

// Turns columns i and i + 1 of the basis; `qt` is its transpose, so both are contiguous.
void turn(std::vector<double>* qt, std::size_t n, std::size_t i, double cosine, double sine) {
  double* const x = qt->data() + i * n;
  double* const y = x + n;
  for (std::size_t k = 0; k < n; ++k) {
    const double old = y[k];
    y[k] = sine * x[k] + cosine * old;
    x[k] = cosine * x[k] - sine * old;
  }
}

// Implicit QL with Wilkinson's shift on the block that begins at `first` and ends at `last`.
void ql_sweep(Tridiagonal* t, std::vector<double>* qt, std::size_t n, std::size_t first, std::size_t last) {
  std::vector<double>& d = t->diagonal;
  std::vector<double>& e = t->below;
  const double half_gap = (d[first + 1] - d[first]) / (2 * e[first]);
  const double root = std::hypot(half_gap, 1.0);
  double g = d[last] - d[first] + e[first] / (half_gap + std::copysign(root, half_gap));
  double sine = 1;
  double cosine = 1;
  double p = 0;
  for (std::size_t i = last; i-- > first;) {
    const double f = sine * e[i];
    const double b = cosine * e[i];
    const double r = std::hypot(f, g);
    e[i + 1] = r;
    if (r == 0) {  // the block has split already
      d[i + 1] -= p;
      e[last] = 0;
      return;
    }
    sine = f / r;
    cosine = g / r;
    const double shifted = d[i + 1] - p;
    const double s = (d[i] - shifted) * sine + 2 * cosine * b;
    p = sine * s;
    d[i + 1] = shifted + p;
    g = cosine * s - b;
    turn(qt, n, i, cosine, sine);
  }
  d[first] -= p;
  e[first] = g;
  e[last] = 0;
}

}  // namespace

SymmetricEigen symmetric_eigen(std::span<const double> matrix, int size) {
  const std::size_t n = uz(size);
  KV_CHECK(size > 0 && matrix.size() == n * n);
  Tridiagonal t = tridiagonalize({matrix.begin(), matrix.end()}, n);
  std::vector<double> qt(n * n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) qt[j * n + i] = t.q[i * n + j];
  constexpr int kMostSweeps = 200;
  for (std::size_t first = 0; first < n; ++first) {
    for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
      std::size_t last = first;
      while (last + 1 < n) {
        const double scale = std::abs(t.diagonal[last]) + std::abs(t.diagonal[last + 1]);
        if (std::abs(t.below[last]) <= 1e-16 * scale) break;
        ++last;
      }
      if (last == first) break;
      ql_sweep(&t, &qt, n, first, last);
    }
  }
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return t.diagonal[a] > t.diagonal[b]; });
  SymmetricEigen eigen;
  for (const std::size_t i : order) {
    eigen.values.push_back(t.diagonal[i]);
    eigen.vectors.insert(eigen.vectors.end(), qt.begin() + static_cast<std::ptrdiff_t>(i * n),
                         qt.begin() + static_cast<std::ptrdiff_t>((i + 1) * n));
  }
  return eigen;
}

LowRank factorize(MatView<const float> k, int rank) {
  KV_CHECK(rank > 0 && uz(rank) <= std::min(k.rows, k.cols));
  const std::size_t c = k.cols;
  std::vector<double> gram(c * c, 0.0);
  std::vector<double> row(c);
  for (std::size_t t = 0; t < k.rows; ++t) {
    std::copy_n(k.row(t), c, row.begin());
    for (std::size_t i = 0; i < c; ++i) {
      double* const out = gram.data() + i * c;
      const double x = row[i];
      for (std::size_t j = i; j < c; ++j) out[j] += x * row[j];
    }
  }
  for (std::size_t i = 0; i < c; ++i)
    for (std::size_t j = 0; j < i; ++j) gram[i * c + j] = gram[j * c + i];
  const SymmetricEigen eigen = symmetric_eigen(gram, static_cast<int>(c));
  LowRank low;
  low.rank = rank;
  for (const double value : eigen.values) low.squares.push_back(std::max(0.0, value));
  const std::size_t r = uz(rank);
  low.b.resize(r * c);
  for (std::size_t i = 0; i < r * c; ++i) low.b[i] = static_cast<float>(eigen.vectors[i]);
  // Column by column of the transposed basis, so that the inner loop runs over contiguous ranks.
  std::vector<float> basis(c * r);
  for (std::size_t i = 0; i < r; ++i)
    for (std::size_t j = 0; j < c; ++j) basis[j * r + i] = low.b[i * c + j];
  low.a.assign(k.rows * r, 0.0F);
  for (std::size_t t = 0; t < k.rows; ++t) {
    float* const out = low.a.data() + t * r;
    for (std::size_t j = 0; j < c; ++j) {
      const float x = k.row(t)[j];
      const float* const from = basis.data() + j * r;
      for (std::size_t i = 0; i < r; ++i) out[i] += x * from[i];
    }
  }
  return low;
}

}  // namespace kvartet
