// Answers that are a list of "thing: value" lines.
#pragma once

#include <string_view>

#include "bench/metrics/metric.h"

namespace kvartet {

// Share of the references "thing: value" for which some line of the prediction has the thing and, behind it, the value
// as a whole word. Letter for letter.
double line_pairs(std::string_view prediction, Texts references, Texts all_classes);

}  // namespace kvartet
