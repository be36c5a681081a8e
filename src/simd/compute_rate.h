// The arithmetic beside read_bandwidth() (bench/speed.h): how fast this machine multiplies and adds right now, in a few
// milliseconds.
#pragma once

#include <cstddef>

namespace kvartet {

// `rounds` rounds of twelve independent multiply-adds with the widest vectors there are; returns the floating-point operations.
using MultiplyAdds = double (*)(std::size_t rounds, float* sum);
MultiplyAdds multiply_adds();

// GFLOP/s of fused multiply-adds in f32 on registers, with the widest vectors there are, on `threads` threads.
double compute_rate(int threads);

}  // namespace kvartet
