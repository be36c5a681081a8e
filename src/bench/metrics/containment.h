// Plain metrics for tasks of our own and for users' files: is the answer in the text, is it the same JSON.
#pragma once

#include <string>
#include <string_view>

#include "bench/metrics/metric.h"

namespace kvartet {

// 1 if any reference is a part of the prediction, letter for letter; empty references never count.
double contains_any(std::string_view prediction, Texts references, Texts all_classes);

// Share of the references that are parts of the prediction, letter for letter (offloading.md 13.3).
double keyword_share(std::string_view prediction, Texts references, Texts all_classes);

// 1 if the prediction is valid JSON and equals a reference as a value: key order, spacing and 1 against 1.0 do not
// matter. One Markdown fence around the prediction is taken off.
double json_equal(std::string_view prediction, Texts references, Texts all_classes);

}  // namespace kvartet
