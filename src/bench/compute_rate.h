// The arithmetic beside read_bandwidth(): how fast this machine multiplies and adds right now, in a few milliseconds.
#pragma once

namespace kvartet {

// GFLOP/s of fused multiply-adds in f32 on registers, with the widest vectors there are, on `threads` threads.
double compute_rate(int threads);

}  // namespace kvartet
