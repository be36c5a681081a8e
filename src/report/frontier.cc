#include "report/frontier.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace kvartet {

std::vector<std::size_t> frontier(std::span<const Tradeoff> points) {
  std::vector<std::size_t> order(points.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    if (points[a].cheap != points[b].cheap) return points[a].cheap > points[b].cheap;
    return points[a].good > points[b].good;
  });
  std::vector<std::size_t> out;
  double best = -std::numeric_limits<double>::infinity();
  for (const std::size_t i : order) {
    if (points[i].good <= best) continue;
    best = points[i].good;
    out.push_back(i);
  }
  return out;
}

}  // namespace kvartet
