// The haystack that says nothing, for RULER's simplest needles and for variable tracking.
#pragma once

#include "bench/tasks/generated_document.h"

namespace kvartet {

// The same few sentences over and over.
Filler noise_filler();

}  // namespace kvartet
