#include "core/bytes_text.h"

#include <fmt/format.h>

#include <array>

namespace kvartet {

std::string bytes_text(double bytes) {
  constexpr std::array<const char*, 4> kUnits = {"KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  double x = bytes / 1024;
  while (x >= 1000 && unit + 1 < kUnits.size()) {
    x /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", x, x < 10 ? 2 : 1, kUnits[unit]);
}

}  // namespace kvartet
