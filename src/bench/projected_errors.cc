#include "bench/projected_errors.h"

#include <cmath>
#include <cstddef>
#include <iterator>

#include "core/check.h"
#include "core/matrix.h"

namespace kvartet {
namespace {

using Outputs = std::vector<double> OutputGrid::*;

// A layer's row of outputs less the exact ones. The difference is projected, not the outputs one by one: an output matrix in few
// bits rounds what it multiplies, and two rounded outputs would differ by more than a small error.
void fill_difference(std::span<const std::vector<double>> exact, std::span<const OutputGrid> heads, Outputs outputs,
                     std::span<float> row) {
  std::size_t at = 0;
  for (std::size_t h = 0; h < exact.size(); ++h)
    for (std::size_t c = 0; c < exact[h].size(); ++c) row[at++] = static_cast<float>((heads[h].*outputs)[c] - exact[h][c]);
}

double length(std::span<const float> row) {
  double sum = 0;
  for (const float x : row) sum += static_cast<double>(x) * x;
  return std::sqrt(sum);
}

}  // namespace

Result<ProjectedErrors> projected_errors(Engine& engine, int layer, std::span<const std::vector<double>> exact,
                                         std::span<const OutputGrid> heads) {
  KV_CHECK(!exact.empty() && exact.size() == heads.size());
  constexpr Outputs kGrid[] = {&OutputGrid::exact_oracle, &OutputGrid::stored_oracle, &OutputGrid::exact_selected,
                               &OutputGrid::stored_selected};
  constexpr std::size_t kRows = 1 + std::size(kGrid);  // the exact outputs, and the four differences
  const std::size_t wide = exact.size() * exact[0].size();
  const auto hidden = static_cast<std::size_t>(engine.shape().hidden);
  std::vector<float> outputs(kRows * wide);
  std::vector<float> projected(kRows * hidden);
  const MatView<float> rows(outputs.data(), kRows, wide);
  const MatView<float> results(projected.data(), kRows, hidden);
  std::size_t at = 0;
  for (const std::vector<double>& head : exact)
    for (const double x : head) outputs[at++] = static_cast<float>(x);
  for (std::size_t i = 0; i < std::size(kGrid); ++i) fill_difference(exact, heads, kGrid[i], rows.row_span(i + 1));
  KV_TRY(engine.project_attention(layer, rows, results));
  const double norm = length(results.row_span(0));
  const auto error = [&](std::size_t i) { return norm > 0 ? length(results.row_span(i + 1)) / norm : 0; };
  return ProjectedErrors{error(0), error(1), error(2), error(3)};
}

}  // namespace kvartet
