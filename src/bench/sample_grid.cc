#include "bench/sample_grid.h"

#include <algorithm>
#include <limits>

namespace kvartet {
namespace {

double mean_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float x : values) sum += x;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double quantile_of(const std::vector<float>& sorted, double share) {
  return sorted.empty() ? 0 : sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
}

}  // namespace

Spread spread_of(std::vector<float> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {mean_of(values), quantile_of(values, 0.05), quantile_of(values, 0.95)};
}

std::vector<float> SampleGrid::gathered(const std::function<bool(int layer, int head)>& wanted) const {
  std::vector<float> all;
  for (const auto& [place, samples] : cells_)
    if (wanted(place.first, place.second)) all.insert(all.end(), samples.begin(), samples.end());
  return all;
}

bool SampleGrid::has_layer(int layer) const {
  return std::any_of(cells_.begin(), cells_.end(), [&](const auto& cell) { return cell.first.first == layer; });
}

Spread SampleGrid::all() const {
  return spread_of(gathered([](int, int) { return true; }));
}
Spread SampleGrid::of_layer(int layer) const {
  return spread_of(gathered([&](int l, int) { return l == layer; }));
}
Spread SampleGrid::of_head(int head) const {
  return spread_of(gathered([&](int, int h) { return h == head; }));
}

double SampleGrid::quantile(double share) const {
  std::vector<float> sorted = gathered([](int, int) { return true; });
  std::sort(sorted.begin(), sorted.end());
  return quantile_of(sorted, share);
}

std::vector<double> SampleGrid::means(int layers, int heads) const {
  std::vector<double> means;
  for (int l = 0; l < layers; ++l) {
    for (int h = 0; h < heads; ++h) {
      const auto cell = cells_.find({l, h});
      means.push_back(cell == cells_.end() ? std::numeric_limits<double>::quiet_NaN() : mean_of(cell->second));
    }
  }
  return means;
}

}  // namespace kvartet
