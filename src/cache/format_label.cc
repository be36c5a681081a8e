#include "cache/format_label.h"

#include <fmt/format.h>

namespace kvartet {

std::string format_label(const FormatRequest& request) {
  std::string label = request.name;
  if (request.bits != 0) label += fmt::format("{}", request.bits);
  if (request.quarters != 0) label += fmt::format("+{}", 0.25 * request.quarters);
  if (request.group != 0) label += fmt::format(".{}", request.group);
  if (request.rotation == Rotation::kHadamard) label += ".hadamard";
  if (request.rotation == Rotation::kDense) label += ".dense";
  if (request.residual_signs) label += ".prod";
  if (request.name == "qjl") label += fmt::format(".{}", request.sketch);
  if (request.calibrated) label += ".calibrated";
  return label;
}

}  // namespace kvartet
