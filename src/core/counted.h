// Counts in sentences: "1 run", "2 runs".
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace kvartet {

// `one` is what a single one is called; several get an 's', or are called `many`.
template <typename Count>
std::string counted(Count count, std::string_view one, std::string_view many = {}) {
  if (count == 1) return fmt::format("1 {}", one);
  return many.empty() ? fmt::format("{} {}s", count, one) : fmt::format("{} {}", count, many);
}

}  // namespace kvartet
