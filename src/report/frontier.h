// Which caches no other beats in both measures.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kvartet {

struct Tradeoff {
  double cheap = 0;  // larger is cheaper: compression ratio, decode rate
  double good = 0;   // larger is better: score, log-likelihood
};

// Indices of the points that no other point equals or exceeds in both values (and exceeds in one), by falling `cheap`.
// Of equal points the first stands for all.
std::vector<std::size_t> frontier(std::span<const Tradeoff> points);

}  // namespace kvartet
