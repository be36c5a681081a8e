#include "quantize/higgs_lloyd.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "core/rng.h"
#include "core/uz.h"
#include "quantize/higgs_grid_data.h"

namespace kvartet {
namespace {

void draw(Rng& rng, std::vector<float>* samples) {
  for (float& x : *samples) x = static_cast<float>(rng.normal());
}

// One iteration; the squared error per coordinate before the points moved.
double improve(Rng& rng, int p, std::vector<float>* points, std::vector<float>* samples) {
  const std::size_t n = points->size() / uz(p);
  const HiggsGrid grid(p, {points->data(), n, uz(p)});
  draw(rng, samples);
  std::vector<std::uint8_t> codes(samples->size() / uz(p));
  grid.snap(samples->data(), codes.size(), codes.data());
  std::vector<double> sums(points->size(), 0.0);
  std::vector<double> counts(n, 0.0);
  double error = 0;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    counts[codes[i]] += 1;
    for (std::size_t k = 0; k < uz(p); ++k) {
      const double x = (*samples)[i * uz(p) + k];
      const double off = x - (*points)[codes[i] * uz(p) + k];
      sums[codes[i] * uz(p) + k] += x;
      error += off * off;
    }
  }
  for (std::size_t c = 0; c < n; ++c) {
    for (std::size_t k = 0; k < uz(p); ++k) {
      // An empty cell starts again at a sample.
      (*points)[c * uz(p) + k] = counts[c] > 0 ? static_cast<float>(sums[c * uz(p) + k] / counts[c]) : (*samples)[c * uz(p) + k];
    }
  }
  return error / static_cast<double>(samples->size());
}

void round_and_sort(int p, std::vector<float>* points) {
  std::vector<std::vector<float>> rows;
  for (std::size_t i = 0; i < points->size(); i += uz(p)) {
    std::vector<float> row(points->begin() + static_cast<std::ptrdiff_t>(i),
                           points->begin() + static_cast<std::ptrdiff_t>(i) + p);
    for (float& x : row) x = std::round(x * kHiggsGridUnit) / kHiggsGridUnit;
    rows.push_back(std::move(row));
  }
  std::sort(rows.begin(), rows.end());
  points->clear();
  for (const std::vector<float>& row : rows) points->insert(points->end(), row.begin(), row.end());
}

}  // namespace

std::vector<float> train_higgs_grid(const LloydOptions& options) {
  std::vector<float> best;
  double best_error = 1e30;
  std::vector<float> samples(uz(options.samples_per_point) * uz(options.n) * uz(options.p));
  for (int restart = 0; restart < options.restarts; ++restart) {
    Rng rng(options.seed, static_cast<std::uint64_t>(restart));
    std::vector<float> points(uz(options.n) * uz(options.p));
    draw(rng, &points);
    for (int i = 0; i < options.iterations; ++i) improve(rng, options.p, &points, &samples);
    std::vector<float> final_points = points;
    const double error = improve(rng, options.p, &final_points, &samples);
    if (error < best_error) {
      best_error = error;
      best = points;
    }
  }
  round_and_sort(options.p, &best);
  return best;
}

GridFacts measure_grid(const HiggsGrid& grid, std::size_t samples, std::uint64_t seed) {
  const auto p = uz(grid.p());
  Rng rng(seed);
  std::vector<float> y(samples * p);
  draw(rng, &y);
  std::vector<std::uint8_t> codes(samples);
  grid.snap(y.data(), samples, codes.data());
  GridFacts facts;
  std::vector<double> means(p, 0.0);
  std::vector<double> counts(uz(grid.n()), 0.0);
  for (std::size_t i = 0; i < samples; ++i) {
    counts[codes[i]] += 1;
    for (std::size_t k = 0; k < p; ++k) {
      const double point = grid.point(codes[i], static_cast<int>(k));
      const double off = y[i * p + k] - point;
      facts.distortion += off * off;
      facts.decoded_square += point * point;
      means[k] += point;
    }
  }
  const auto numbers = static_cast<double>(samples * p);
  facts.distortion /= numbers;
  facts.decoded_square /= numbers;
  for (const double mean : means)
    facts.largest_mean = std::max(facts.largest_mean, std::abs(mean) / static_cast<double>(samples));
  const auto [least, largest] = std::minmax_element(counts.begin(), counts.end());
  facts.least_share = *least / static_cast<double>(samples) * grid.n();
  facts.largest_share = *largest / static_cast<double>(samples) * grid.n();
  return facts;
}

}  // namespace kvartet
