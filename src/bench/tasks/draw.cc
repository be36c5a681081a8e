#include "bench/tasks/draw.h"

#include <cmath>
#include <utility>

#include "core/check.h"

namespace kvartet {
namespace {

double van_der_corput(std::uint64_t i) {
  double x = 0;
  for (double digit = 0.5; i != 0; i >>= 1, digit /= 2) x += (i & 1U) != 0 ? digit : 0;
  return x;
}

}  // namespace

std::vector<std::size_t> draw_distinct(Rng& rng, std::size_t n, std::size_t count) {
  KV_CHECK(count <= n);
  std::vector<std::size_t> order(n);
  for (std::size_t i = 0; i < n; ++i) order[i] = i;
  for (std::size_t i = 0; i < count; ++i) std::swap(order[i], order[i + rng.below(n - i)]);
  order.resize(count);
  return order;
}

std::vector<double> even_depths(std::uint64_t seed, DrawStream stream, int sample, int count) {
  const double shift = draw_rng(seed, stream, 0).uniform();
  double whole = 0;
  const double within = std::modf(van_der_corput(static_cast<std::uint64_t>(sample)) + shift, &whole);
  std::vector<double> depths;
  for (int j = 0; j < count; ++j) depths.push_back((j + within) / count);
  return depths;
}

}  // namespace kvartet
