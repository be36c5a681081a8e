// Trains a HIGGS grid: Lloyd's iteration on fresh Gaussian samples (offloading.md 2.3.3). Offline work; the shipped grids
// come from here with a fixed seed.
#pragma once

#include <cstdint>
#include <vector>

#include "quantize/higgs.h"

namespace kvartet {

struct LloydOptions {
  int p = 2;
  int n = 16;
  int samples_per_point = 500;  // of each iteration
  int iterations = 60;
  int restarts = 1;  // the best of so many starts
  std::uint64_t seed = 1;
};

// [n, p], rounded to the grid unit and sorted by first channel, then the others.
std::vector<float> train_higgs_grid(const LloydOptions& options);

// What a grid does to fresh samples.
struct GridFacts {
  double distortion = 0;      // per coordinate: D
  double decoded_square = 0;  // E ||y_hat||^2 per coordinate: 1 - D for centroids
  double largest_mean = 0;    // of |mean coordinate| of the decoded samples
  double least_share = 0;     // of the cells, times n
  double largest_share = 0;   // times n
};
GridFacts measure_grid(const HiggsGrid& grid, std::size_t samples, std::uint64_t seed);

}  // namespace kvartet
