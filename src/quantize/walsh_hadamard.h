// The fast Walsh-Hadamard transform, vectorized.
#pragma once

#include <cstddef>

namespace kvartet {

// x becomes H x, unnormalized, in natural order; n is a power of two. The same to the bit on every instruction set: stage
// after stage, each number is one sum or one difference of two.
void walsh_hadamard(float* x, std::size_t n);

}  // namespace kvartet
