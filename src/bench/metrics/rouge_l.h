// ROUGE-L of the Python package `rouge` 1.0.1, which LongBench uses (compression.md 13.4). It is not rouge-score's
// ROUGE-L (13.5): never compare the two.
//
// One deviation: the package's traceback recurses, so two sentences of together about 1,000 words exceed Python's limit
// and LongBench's catch-all scores 0; here they get their score.
#pragma once

#include <string>
#include <string_view>

#include "bench/metrics/metric.h"

namespace kvartet {

// F of one hypothesis and one reference, 0 when either has no sentence.
double rouge_l_f(std::string_view hypothesis, std::string_view reference);

double rouge_l(std::string_view prediction, Texts references, Texts all_classes);

}  // namespace kvartet
