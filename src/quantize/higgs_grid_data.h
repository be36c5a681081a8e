// The shipped HIGGS grids as scripts/make_higgs_grids.cc wrote them: whole multiples of 1 / kHiggsGridUnit.
#pragma once

#include <cstdint>
#include <span>

namespace kvartet {

inline constexpr float kHiggsGridUnit = 4096.0F;

struct HiggsGridData {
  int p = 0;
  std::span<const std::int16_t> points;  // [n, p]
};
std::span<const HiggsGridData> higgs_grid_data();

}  // namespace kvartet
