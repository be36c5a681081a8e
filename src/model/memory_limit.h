// How much memory this process may still take, so that a model that cannot fit is refused before it is loaded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/file_system.h"

namespace kvartet {

// The smaller of the machine's available memory and what the control group (version 1 or 2) still allows; page cache
// counts as available in both. SIZE_MAX when the system does not say.
std::uint64_t available_memory(FileSystem& fs);

}  // namespace kvartet
