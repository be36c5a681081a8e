#include "merge/cam.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "core/check.h"
#include "core/rng.h"
#include "core/uz.h"

namespace kvartet {
namespace {

// The staying rows by position: a source's targets are a run of this list.
struct Stayers {
  std::vector<std::int32_t> rows;
  std::vector<std::int32_t> positions;
};

Stayers stayers_in_order(std::span<const std::int32_t> positions, std::span<const std::int32_t> leaving) {
  std::vector<char> leaves(positions.size(), 0);
  for (const std::int32_t row : leaving) leaves[uz(row)] = 1;
  Stayers stay;
  for (std::size_t row = 0; row < positions.size(); ++row) {
    if (leaves[row] == 0) stay.rows.push_back(static_cast<std::int32_t>(row));
  }
  std::sort(stay.rows.begin(), stay.rows.end(), [&](auto a, auto b) { return positions[uz(a)] < positions[uz(b)]; });
  for (const std::int32_t row : stay.rows) stay.positions.push_back(positions[uz(row)]);
  return stay;
}

bool is_drawn(const CamOptions& options, std::int32_t position, double probability) {
  const Rng rng(options.seed, (static_cast<std::uint64_t>(options.layer) << 20) + static_cast<std::uint64_t>(options.kv_head));
  return static_cast<double>(rng.at(static_cast<std::uint64_t>(position)) >> 11) * 0x1.0p-53 < probability;
}

}  // namespace

double cam_probability(double own, double mean) {
  if (!(own > 0)) return 0;  // also NaN
  if (!(mean > 0)) return 1;
  return std::min(1.0, own / mean);
}

std::vector<Merge> cam_plan(std::span<const float> sums, std::span<const std::int32_t> positions,
                            std::span<const std::int32_t> leaving, const CamOptions& options) {
  KV_CHECK(sums.size() == positions.size());
  if (options.merge == 0 || leaving.empty()) return {};
  const Stayers stay = stayers_in_order(positions, leaving);
  std::vector<std::int32_t> sources(leaving.begin(), leaving.end());
  std::sort(sources.begin(), sources.end(), [&](auto a, auto b) {
    return sums[uz(a)] != sums[uz(b)] ? sums[uz(a)] > sums[uz(b)] : positions[uz(a)] < positions[uz(b)];
  });
  std::vector<int> taken(stay.rows.size(), 0);
  std::vector<Merge> merges;
  for (const std::int32_t source : sources) {
    const auto begin =
        std::upper_bound(stay.positions.begin(), stay.positions.end(), positions[uz(source)]) - stay.positions.begin();
    const auto end = std::min<std::ptrdiff_t>(std::ssize(stay.rows), begin + options.merge);
    if (begin == end) continue;
    double mean = 0;
    bool full = false;
    for (std::ptrdiff_t i = begin; i < end; ++i) {
      mean += static_cast<double>(sums[uz(stay.rows[uz(i)])]) / static_cast<double>(end - begin);
      full = full || taken[uz(i)] == options.merge;
    }
    if (full || !is_drawn(options, positions[uz(source)], cam_probability(static_cast<double>(sums[uz(source)]), mean))) continue;
    for (std::ptrdiff_t i = begin; i < end; ++i) {
      ++taken[uz(i)];
      merges.push_back({stay.rows[uz(i)], source, 1.0F / static_cast<float>(end - begin)});
    }
  }
  std::stable_sort(merges.begin(), merges.end(),
                   [&](const Merge& a, const Merge& b) { return positions[uz(a.source)] < positions[uz(b.source)]; });
  return merges;
}

}  // namespace kvartet
