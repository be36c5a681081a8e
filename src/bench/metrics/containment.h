// Plain metrics for tasks of our own and for users' files: is the answer in the text, is it the same JSON.
#pragma once

#include <string>
#include <string_view>

#include "bench/metrics/metric.h"
#include "core/status.h"

namespace kvartet {

// 1 if any reference is a part of the prediction, letter for letter; empty references never count.
double contains_any(std::string_view prediction, Texts references, Texts all_classes);

// Share of the references that are parts of the prediction, letter for letter (offloading.md 13.3).
double keyword_share(std::string_view prediction, Texts references, Texts all_classes);

// RULER's string match: share of the references that are parts of the prediction, letter case aside.
double string_match(std::string_view prediction, Texts references, Texts all_classes);

// 1 if the answer holds JSON (json_in_text.h) that equals a reference as a value: key order, spacing and 1 against 1.0 do
// not matter.
double json_equal(std::string_view prediction, Texts references, Texts all_classes);
// kBadInput: a reference is no JSON, so nothing could equal it.
Status check_json(std::string_view prediction, Texts references, Texts all_classes);

}  // namespace kvartet
