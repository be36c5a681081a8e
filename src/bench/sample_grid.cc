#include "bench/sample_grid.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "results/paired.h"

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

TextMeans text_means_of(const std::vector<double>& means) {
  TextMeans out{.texts = static_cast<int>(means.size())};
  if (means.empty()) return out;
  out.mean = std::accumulate(means.begin(), means.end(), 0.0) / out.texts;
  if (out.texts < 2) return out;
  double squares = 0;
  for (const double x : means) squares += (x - out.mean) * (x - out.mean);
  const double deviation = std::sqrt(squares / (out.texts - 1));
  out.half_width = student_t_975(out.texts - 1) * deviation / std::sqrt(static_cast<double>(out.texts));
  return out;
}

Spread spread_of(std::vector<float> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {.mean = mean_of(values), .p5 = quantile_of(values, 0.05), .p95 = quantile_of(values, 0.95)};
}

std::vector<float> SampleGrid::gathered(const std::function<bool(int layer, int head)>& wanted) const {
  std::vector<float> all;
  for (const auto& [place, samples] : cells_)
    if (wanted(place.first, place.second)) all.insert(all.end(), samples.begin(), samples.end());
  return all;
}

void SampleGrid::end_text() {
  if (count_ > 0) text_means_.push_back(sum_ / count_);
  sum_ = 0;
  count_ = 0;
}

bool SampleGrid::has_layer(int layer) const {
  return std::any_of(cells_.begin(), cells_.end(), [&](const auto& cell) { return cell.first.first == layer; });
}

Spread SampleGrid::all() const {
  Spread spread = spread_of(gathered([](int, int) { return true; }));
  spread.by_text = text_means_of(text_means_);
  return spread;
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
