#include "offload/joint_factors.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/uz.h"

namespace kvartet {
namespace {

// Small dense matrices in double, row-major.
struct Dense {
  std::size_t rows = 0;
  std::size_t cols = 0;
  std::vector<double> data;
  Dense(std::size_t r, std::size_t c) : rows(r), cols(c), data(r * c, 0.0) {}
  double* row(std::size_t i) { return data.data() + i * cols; }
  const double* row(std::size_t i) const { return data.data() + i * cols; }
};

Dense product(const Dense& a, const Dense& b) {
  KV_CHECK(a.cols == b.rows);
  Dense out(a.rows, b.cols);
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t k = 0; k < a.cols; ++k) {
      const double x = a.row(i)[k];
      for (std::size_t j = 0; j < b.cols; ++j) out.row(i)[j] += x * b.row(k)[j];
    }
  return out;
}

Dense transposed(const Dense& a) {
  Dense out(a.cols, a.rows);
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t j = 0; j < a.cols; ++j) out.row(j)[i] = a.row(i)[j];
  return out;
}

Dense sum(const Dense& a, const Dense& b, double weight) {
  KV_CHECK(a.rows == b.rows && a.cols == b.cols);
  Dense out = a;
  for (std::size_t i = 0; i < out.data.size(); ++i) out.data[i] += weight * b.data[i];
  return out;
}

Dense gram(MatView<const float> x) {
  Dense out(x.cols, x.cols);
  for (std::size_t t = 0; t < x.rows; ++t) {
    const float* const row = x.row(t);
    for (std::size_t i = 0; i < x.cols; ++i) {
      const double factor = row[i];
      double* const to = out.row(i);
      for (std::size_t j = 0; j < x.cols; ++j) to[j] += factor * row[j];
    }
  }
  return out;
}

// A pivot that is this much smaller than the largest diagonal element is rounding.
constexpr double kLeastPivot = 1e-10;

// A symmetric matrix without negative eigenvalues as L L^T. It may have no inverse (fewer queries than factors, keys that lie in
// a plane): unknowns whose row follows from the rows before are left out.
class Cholesky {
 public:
  explicit Cholesky(Dense s) : l_(std::move(s)), used_(l_.rows) {
    double largest = 0;
    for (std::size_t i = 0; i < l_.rows; ++i) largest = std::max(largest, l_.row(i)[i]);
    for (std::size_t i = 0; i < l_.rows; ++i) {
      double* const row = l_.row(i);
      for (std::size_t j = 0; j < i; ++j) row[j] = used_[j] ? (row[j] - product_of_rows(i, j)) / l_.row(j)[j] : 0;
      const double pivot = row[i] - product_of_rows(i, i);
      used_[i] = pivot > kLeastPivot * largest;
      row[i] = used_[i] ? std::sqrt(pivot) : 1;
    }
  }

  // S X = B, with zeros for what is left out.
  Dense solve(Dense b) const {
    const std::size_t n = l_.rows;
    for (std::size_t i = 0; i < n; ++i) {  // L Y = B
      for (std::size_t k = 0; k < i; ++k) subtract(l_.row(i)[k], b.row(k), b.row(i), b.cols);
      finish(i, &b);
    }
    for (std::size_t i = n; i-- > 0;) {  // L^T X = Y
      for (std::size_t k = i + 1; k < n; ++k)
        if (used_[k]) subtract(l_.row(k)[i], b.row(k), b.row(i), b.cols);
      finish(i, &b);
    }
    return b;
  }

 private:
  // Of what stands in front of the diagonal of row j.
  double product_of_rows(std::size_t i, std::size_t j) const {
    double sum = 0;
    for (std::size_t k = 0; k < j; ++k) sum += l_.row(i)[k] * l_.row(j)[k];
    return sum;
  }
  static void subtract(double factor, const double* from, double* row, std::size_t count) {
    for (std::size_t j = 0; j < count; ++j) row[j] -= factor * from[j];
  }
  void finish(std::size_t i, Dense* b) const {
    for (std::size_t j = 0; j < b->cols; ++j) b->row(i)[j] = used_[i] ? b->row(i)[j] / l_.row(i)[i] : 0;
  }

  Dense l_;
  std::vector<bool> used_;
};

Dense solve(Dense s, Dense b) { return Cholesky(std::move(s)).solve(std::move(b)); }

// The selector of the columns with the largest sum of |Q| + |K|; ties to the lower one.
Dense largest_columns(MatView<const float> keys, MatView<const float> queries, std::size_t r) {
  const std::size_t dim = keys.cols;
  std::vector<double> sums(dim, 0.0);
  for (const MatView<const float>& x : {keys, queries})
    for (std::size_t t = 0; t < x.rows; ++t)
      for (std::size_t c = 0; c < dim; ++c) sums[c] += std::abs(x.row(t)[c]);
  std::vector<std::size_t> order(dim);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return sums[a] > sums[b]; });
  order.resize(r);
  std::sort(order.begin(), order.end());
  Dense selector(dim, r);
  for (std::size_t i = 0; i < r; ++i) selector.row(order[i])[i] = 1;
  return selector;
}

// One side: A = X M with the Gram matrix G of X.
// B = (A^T A)^-1 A^T X.
Dense basis_of(const Dense& g, const Dense& m) {
  const Dense gm = product(g, m);
  return solve(product(transposed(m), gm), transposed(gm));
}

// The other side's A = Y M' follows from this side's: M' = (G M + w B'^T) (M^T G M + w B' B'^T)^-1, with its own B' and weight w.
Dense map_given(const Dense& g, const Dense& m, const Dense& b, double weight) {
  const Dense gm = product(g, m);
  const Dense bt = transposed(b);
  const Dense left = sum(gm, bt, weight);
  const Dense square = sum(product(transposed(m), gm), product(b, bt), weight);
  return transposed(solve(square, transposed(left)));
}

}  // namespace

JointFactors fit_joint_factors(MatView<const float> keys, MatView<const float> queries, const JointFactorOptions& options) {
  KV_CHECK(options.factors > 0 && uz(options.factors) <= keys.cols && queries.rows > 0 && queries.cols == keys.cols);
  const Dense gram_q = gram(queries);
  const Dense gram_k = gram(keys);
  Dense m_q = largest_columns(keys, queries, uz(options.factors));
  Dense m_k = m_q;
  Dense b_q(0, 0);
  Dense b_k(0, 0);
  for (int sweep = 0; sweep < options.sweeps; ++sweep) {
    b_q = basis_of(gram_q, m_q);
    b_k = basis_of(gram_k, m_k);
    m_q = map_given(gram_k, m_k, b_q, options.query_weight);
    m_k = map_given(gram_q, m_q, b_k, options.key_weight);
  }
  const Dense new_query = map_given(gram_k, m_k, b_q, options.query_weight);
  return {m_q.data, m_k.data, b_q.data, b_k.data, new_query.data};
}

KeyProjection joint_factors(MatView<const float> keys, MatView<const float> queries, const JointFactorOptions& options) {
  const JointFactors fitted = fit_joint_factors(keys, queries, options);
  const std::size_t dim = keys.cols;
  const auto r = uz(options.factors);
  KeyProjection projection;
  projection.query.resize(r * dim);
  for (std::size_t c = 0; c < dim; ++c)
    for (std::size_t i = 0; i < r; ++i) projection.query[i * dim + c] = static_cast<float>(fitted.new_query[c * r + i]);
  projection.keys.resize(keys.rows * r);
  std::vector<double> row(r);
  for (std::size_t t = 0; t < keys.rows; ++t) {
    std::fill(row.begin(), row.end(), 0.0);
    for (std::size_t c = 0; c < dim; ++c) {
      const double x = keys.row(t)[c];
      for (std::size_t i = 0; i < r; ++i) row[i] += x * fitted.m_k[c * r + i];
    }
    std::transform(row.begin(), row.end(), projection.keys.begin() + static_cast<std::ptrdiff_t>(t * r),
                   [](double x) { return static_cast<float>(x); });
  }
  return projection;
}

}  // namespace kvartet
