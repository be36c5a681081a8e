#include "offload/partial_channels.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/check.h"
#include "core/uz.h"
#include "offload/svd_low_rank.h"

namespace kvartet {
namespace {

// Orthonormal directions, one per row: [dim, dim].
std::vector<float> directions(MatView<const float> queries, Skew skew) {
  const std::size_t dim = queries.cols;
  std::vector<float> rows(dim * dim, 0.0F);
  if (skew == Skew::kNone) {
    for (std::size_t i = 0; i < dim; ++i) rows[i * dim + i] = 1;
    return rows;
  }
  std::vector<double> gram(dim * dim, 0.0);
  for (std::size_t t = 0; t < queries.rows; ++t) {
    const float* const q = queries.row(t);
    for (std::size_t i = 0; i < dim; ++i)
      for (std::size_t j = 0; j < dim; ++j) gram[i * dim + j] += static_cast<double>(q[i]) * q[j];
  }
  const SymmetricEigen eigen = symmetric_eigen(gram, static_cast<int>(dim));
  std::transform(eigen.vectors.begin(), eigen.vectors.end(), rows.begin(), [](double x) { return static_cast<float>(x); });
  return rows;
}

// x * directions^T: [rows, dim], column i along direction i.
std::vector<float> turned(MatView<const float> x, const std::vector<float>& directions) {
  const std::size_t dim = x.cols;
  std::vector<float> columns(dim * dim);  // transposed, so that the inner loop has no sum
  for (std::size_t i = 0; i < dim; ++i)
    for (std::size_t c = 0; c < dim; ++c) columns[c * dim + i] = directions[i * dim + c];
  std::vector<float> out(x.rows * dim, 0.0F);
  for (std::size_t t = 0; t < x.rows; ++t) {
    float* const row = out.data() + t * dim;
    for (std::size_t c = 0; c < dim; ++c) {
      const float factor = x.row(t)[c];
      const float* const column = columns.data() + c * dim;
      for (std::size_t i = 0; i < dim; ++i) row[i] += factor * column[i];
    }
  }
  return out;
}

std::vector<double> magnitudes(const std::vector<float>& rows, std::size_t dim) {
  std::vector<double> sums(dim, 0.0);
  for (std::size_t i = 0; i < rows.size(); ++i) sums[i % dim] += std::abs(rows[i]);
  return sums;
}

// Moves the `count` candidates with the largest sums to `chosen`; ties to the lower index.
void choose_largest(const std::vector<double>& sums, std::size_t count, std::vector<std::size_t>* candidates,
                    std::vector<std::size_t>* chosen) {
  std::stable_sort(candidates->begin(), candidates->end(), [&](std::size_t a, std::size_t b) { return sums[a] > sums[b]; });
  const auto end = candidates->begin() + static_cast<std::ptrdiff_t>(count);
  chosen->insert(chosen->end(), candidates->begin(), end);
  candidates->erase(candidates->begin(), end);
  std::sort(candidates->begin(), candidates->end());
}

int channels_by_queries(double share, int dim) { return std::clamp(static_cast<int>(std::ceil(share * dim - 1e-9)), 1, dim); }

}  // namespace

int partial_width(double share, int dim) { return std::min(dim, 2 * channels_by_queries(share, dim)); }

KeyProjection partial_channels(MatView<const float> keys, MatView<const float> queries, double share, Skew skew) {
  KV_CHECK(queries.rows > 0 && queries.cols == keys.cols);
  const std::size_t dim = keys.cols;
  const std::vector<float> basis = directions(queries, skew);
  const std::vector<float> turned_keys = turned(keys, basis);
  std::vector<std::size_t> left(dim);
  std::iota(left.begin(), left.end(), std::size_t{0});
  std::vector<std::size_t> chosen;
  const std::size_t width = uz(partial_width(share, static_cast<int>(dim)));
  choose_largest(magnitudes(turned(queries, basis), dim), uz(channels_by_queries(share, static_cast<int>(dim))), &left, &chosen);
  choose_largest(magnitudes(turned_keys, dim), width - chosen.size(), &left, &chosen);
  std::sort(chosen.begin(), chosen.end());

  KeyProjection projection;
  for (const std::size_t i : chosen) {
    projection.query.insert(projection.query.end(), basis.begin() + static_cast<std::ptrdiff_t>(i * dim),
                            basis.begin() + static_cast<std::ptrdiff_t>((i + 1) * dim));
  }
  for (std::size_t t = 0; t < keys.rows; ++t)
    for (const std::size_t i : chosen) projection.keys.push_back(turned_keys[t * dim + i]);
  return projection;
}

}  // namespace kvartet
