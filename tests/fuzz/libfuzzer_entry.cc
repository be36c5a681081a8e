// What libFuzzer calls: the target that the build names.
#include <cstddef>
#include <cstdint>

#include "targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvartet::fuzz::KVARTET_FUZZ_FUNCTION({reinterpret_cast<const char*>(data), size});
  return 0;
}
