// What the model asks of prefill attention: the same numbers everywhere, or the fastest of this CPU.
#pragma once

#include <cstdint>

namespace kvartet {

// What prefill attention may round to. Window scores, second prompts' attention to sealed rows, and decode are always f32.
enum class Precision : std::uint8_t {
  kExact,   // f32: the same everywhere up to the order of sums
  kNative,  // queries, keys, values and weights in what this CPU multiplies fastest (BF16 or f32), sums in f32
};

}  // namespace kvartet
