// uz(n): a count or an index that is an int, as the std::size_t that containers and pointers take; named after C++23's suffix.
// n is not negative.
#pragma once

#include <concepts>
#include <cstddef>

namespace kvartet {

// Always inline, so that kernels compiled for one instruction set call nothing outside of it.
template <std::integral T>
[[gnu::always_inline]] constexpr std::size_t uz(T n) {
  return static_cast<std::size_t>(n);
}

}  // namespace kvartet
