// Orthogonal rotations of a row's channels (compression.md 3.2, 3.4, 7.2). Plain arithmetic in a fixed order, so that a row is
// the same to the bit on every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvartet {

enum class Rotation : std::uint8_t {
  kNone,
  kHadamard,  // random signs, then Walsh-Hadamard in blocks of the largest power of two that divides the dimension
  kDense,     // a Haar matrix: Gaussian entries, orthonormalized
};

// Floats of the table that a rotation of `dim` channels needs: signs, or the matrix.
std::size_t rotation_floats(Rotation rotation, int dim);
// The table drawn from (seed, stream). Seed 0 with kHadamard: all signs are +1 (llama.cpp's rotation, 7.2).
void fill_rotation(Rotation rotation, int dim, std::uint64_t seed, std::uint64_t stream, float* table);

// In place: x becomes P x; back: P^T x. `dim` is at most 1,024.
void rotate(Rotation rotation, int dim, const float* table, float* x);
void rotate_back(Rotation rotation, int dim, const float* table, float* x);

// Sum of squares and of products, eight partial sums in a fixed order.
float sum_of_squares(const float* x, std::size_t count);
float dot_product(const float* x, const float* y, std::size_t count);

}  // namespace kvartet
