#include "core/rng.h"

#include <cmath>
#include <numbers>

namespace kvartet {

double Rng::normal() {
  const double u = 1.0 - uniform();  // in (0, 1]
  const double v = uniform();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

}  // namespace kvartet
