// Sizes in sentences and tables. One convention everywhere: powers of 1024, as K, M and G of the command line are; rates
// (GB/s) are powers of 1000.
#pragma once

#include <concepts>
#include <string>

namespace kvartet {

std::string bytes_text(double bytes);  // "1.50 KiB", "12.3 MiB": at most 9 characters below 1000 TiB

template <std::integral Count>
std::string bytes_text(Count bytes) {
  return bytes_text(static_cast<double>(bytes));
}

}  // namespace kvartet
