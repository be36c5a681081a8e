// Classification, counting and retrieval as LongBench scores them (compression.md 13.6).
#pragma once

#include <string>
#include <string_view>

#include "bench/metrics/metric.h"
#include "core/status.h"

namespace kvartet {

// 1 / number of class names found in the prediction if the gold is among them, after LongBench's filter of names that
// are parts of the gold; the filter skips the item behind each one it removes, and so does this.
double classification(std::string_view prediction, Texts references, Texts all_classes);

// kBadInput: no class names.
Status check_classes(std::string_view prediction, Texts references, Texts all_classes);

// Share of the numbers in the prediction that equal the reference, as text.
double count_share(std::string_view prediction, Texts references, Texts all_classes);

// The same against the N of a reference that says `Paragraph N`.
double retrieval_share(std::string_view prediction, Texts references, Texts all_classes);

}  // namespace kvartet
