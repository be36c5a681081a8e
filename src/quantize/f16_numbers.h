// Numbers of a decoded row as f16, with the question whether all of them can be: one pass over what lies in registers anyway.
#pragma once

#include <cstddef>
#include <span>

namespace kvartet {

// Rounds to the nearest. False, and `out` may be anything, if a number is not finite or rounds beyond the largest f16; as_f16_row
// (quantize/float_format.h) then says which. A multiple of 8 numbers.
bool narrow_finite_f16(std::span<const float> numbers, std::byte* out);

}  // namespace kvartet
