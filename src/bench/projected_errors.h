// What a layer's attention loses behind its output matrix: there the heads' errors meet, and may cancel or add up
// (offloading.md 10, item 5).
#pragma once

#include <span>
#include <vector>

#include "bench/diagnose_view.h"
#include "core/status.h"
#include "engine/engine.h"

namespace kvartet {

// ||Wo (o~ - o)|| / ||Wo o|| of one layer at one step, by the grid of 5.7.
struct ProjectedErrors {
  double exact_oracle = 0, stored_oracle = 0, exact_selected = 0, stored_selected = 0;
};

// Of all query heads in their order: the dense run's outputs [heads][head_dim], and what the cache under test gives.
Result<ProjectedErrors> projected_errors(Engine& engine, int layer, std::span<const std::vector<double>> exact,
                                         std::span<const OutputGrid> heads);

}  // namespace kvartet
