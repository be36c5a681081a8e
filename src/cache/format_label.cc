#include "cache/format_label.h"

#include <fmt/format.h>

namespace kvartet {

std::string format_label(const FormatRequest& request) {
  std::string label = request.name;
  if (request.bits != 0) label += fmt::format("{}", request.bits);
  if (request.group != 0) label += fmt::format(".{}", request.group);
  return label;
}

}  // namespace kvartet
