// Answers that are a JSON structure whose order means nothing: Loong's clusters and citation lists, which need no judge.
#pragma once

#include <string_view>
#include <vector>

#include "bench/metrics/metric.h"
#include "core/status.h"

namespace kvartet {

// Can `text` be scored here: a JSON object or array?
bool is_structured(std::string_view text);

// The metric `structured`: 1 if the JSON in the answer holds the same items under the same keys as the first reference,
// whatever their order; letter case and white space around texts do not count. Its parts: item_f1, format_failures.
double structured_match(std::string_view prediction, Texts references, Texts all_classes);
std::vector<ScorePart> structured_parts(std::string_view prediction, Texts references, Texts all_classes);
Status check_structured(std::string_view prediction, Texts references, Texts all_classes);

}  // namespace kvartet
