// Parts of a selection that AVX-512 does in another way (offload/select_top.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvartet {

// Scores as whole numbers in their order, 0 and -0 alike, are called their keys.
inline constexpr std::size_t kFoundSlack = 16;  // what not_below may write behind the last one it finds

struct SelectKernels {
  // Indices and keys of the scores that are not below `threshold`, ascending by index; room for all and kFoundSlack more.
  std::size_t (*not_below)(const float* scores, std::size_t count, float threshold, std::int32_t* found,
                           std::int32_t* keys) = nullptr;
  // The maximum and the sum of e^(x - maximum).
  void (*max_and_sum)(const float* x, std::size_t count, float* max, float* sum) = nullptr;
};

SelectKernels select_kernels_avx512();  // null: not this CPU

}  // namespace kvartet
