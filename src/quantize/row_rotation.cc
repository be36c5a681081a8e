#include "quantize/row_rotation.h"

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "core/check.h"
#include "core/rng.h"
#include "quantize/walsh_hadamard.h"

namespace kvartet {
namespace {

constexpr std::size_t kMaxDim = 1024;
constexpr std::size_t kPartials = 8;

std::size_t hadamard_block(std::size_t dim) { return dim & (~dim + 1); }

void hadamard_blocks(std::size_t dim, float* x) {
  const std::size_t block = hadamard_block(dim);
  const float scale = 1.0F / std::sqrt(static_cast<float>(block));
  for (std::size_t first = 0; first < dim; first += block) walsh_hadamard(x + first, block);
  for (std::size_t c = 0; c < dim; ++c) x[c] *= scale;
}

float total(const float* partial) {
  return ((partial[0] + partial[4]) + (partial[2] + partial[6])) + ((partial[1] + partial[5]) + (partial[3] + partial[7]));
}

// Rows of a Gaussian matrix, made orthonormal one after the other; twice, so that rounding does not add up.
void fill_dense(std::size_t dim, Rng rng, float* table) {
  std::vector<double> rows(dim * dim);
  for (double& x : rows) x = rng.normal();
  const auto dot = [&](std::size_t a, std::size_t b) {
    double sum = 0;
    for (std::size_t c = 0; c < dim; ++c) sum += rows[a * dim + c] * rows[b * dim + c];
    return sum;
  };
  for (std::size_t r = 0; r < dim; ++r) {
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t other = 0; other < r; ++other) {
        const double overlap = dot(r, other);
        for (std::size_t c = 0; c < dim; ++c) rows[r * dim + c] -= overlap * rows[other * dim + c];
      }
      const double length = std::sqrt(dot(r, r));
      for (std::size_t c = 0; c < dim; ++c) rows[r * dim + c] /= length;
    }
  }
  for (std::size_t i = 0; i < rows.size(); ++i) table[i] = static_cast<float>(rows[i]);
}

// Byte predictions ask for the same matrix thousands of times, and making one takes a millisecond: each is made once.
const std::vector<float>& dense_matrix(std::size_t dim, std::uint64_t seed, std::uint64_t stream) {
  static std::mutex mutex;
  static std::map<std::tuple<std::size_t, std::uint64_t, std::uint64_t>, std::vector<float>> made;  // nodes never move
  const std::lock_guard lock(mutex);
  std::vector<float>& matrix = made[{dim, seed, stream}];
  if (matrix.empty()) {
    matrix.resize(dim * dim);
    fill_dense(dim, Rng(seed, stream), matrix.data());
  }
  return matrix;
}

}  // namespace

std::size_t rotation_floats(Rotation rotation, int dim) {
  const std::size_t n = static_cast<std::size_t>(dim);
  return rotation == Rotation::kNone ? 0 : rotation == Rotation::kHadamard ? n : n * n;
}

void fill_rotation(Rotation rotation, int dim, std::uint64_t seed, std::uint64_t stream, float* table) {
  const std::size_t n = static_cast<std::size_t>(dim);
  if (rotation == Rotation::kDense) std::memcpy(table, dense_matrix(n, seed, stream).data(), n * n * sizeof(float));
  if (rotation != Rotation::kHadamard) return;
  const Rng rng(seed, stream);
  for (std::size_t c = 0; c < n; ++c) table[c] = seed != 0 && (rng.at(c) >> 63) != 0 ? -1.0F : 1.0F;
}

void rotate(Rotation rotation, int dim, const float* table, float* x) {
  const std::size_t n = static_cast<std::size_t>(dim);
  KV_DCHECK(n <= kMaxDim);
  if (rotation == Rotation::kHadamard) {
    for (std::size_t c = 0; c < n; ++c) x[c] *= table[c];
    hadamard_blocks(n, x);
  }
  if (rotation == Rotation::kDense) {
    float y[kMaxDim];
    for (std::size_t r = 0; r < n; ++r) y[r] = dot_product(table + r * n, x, n);
    std::memcpy(x, y, n * sizeof(float));
  }
}

void rotate_back(Rotation rotation, int dim, const float* table, float* x) {
  const std::size_t n = static_cast<std::size_t>(dim);
  KV_DCHECK(n <= kMaxDim);
  if (rotation == Rotation::kHadamard) {
    hadamard_blocks(n, x);
    for (std::size_t c = 0; c < n; ++c) x[c] *= table[c];
  }
  if (rotation == Rotation::kDense) {
    float y[kMaxDim] = {};
    for (std::size_t r = 0; r < n; ++r) {
      const float weight = x[r];
      const float* const row = table + r * n;
      for (std::size_t c = 0; c < n; ++c) y[c] += weight * row[c];
    }
    std::memcpy(x, y, n * sizeof(float));
  }
}

float sum_of_squares(const float* x, std::size_t count) { return dot_product(x, x, count); }

float dot_product(const float* x, const float* y, std::size_t count) {
  float partial[kPartials] = {};
  std::size_t c = 0;
  for (; c + kPartials <= count; c += kPartials) {
    for (std::size_t j = 0; j < kPartials; ++j) partial[j] += x[c + j] * y[c + j];
  }
  for (std::size_t j = 0; c + j < count; ++j) partial[j] += x[c + j] * y[c + j];
  return total(partial);
}

}  // namespace kvartet
