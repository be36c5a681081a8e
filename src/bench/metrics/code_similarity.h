// Code completion as LongBench scores it (compression.md 13.6): similarity of the first line that looks like code.
#pragma once

#include <string>
#include <string_view>

#include "bench/metrics/metric.h"

namespace kvartet {

// Leading newlines stripped, then the first line without a backtick, `#` or `//`; empty when there is none.
std::string_view first_code_line(std::string_view text);

// fuzzywuzzy's ratio() in percent, over the insert/delete distance that python-Levenshtein gives it: 0 to 100, rounded
// half to even. Without that package fuzzywuzzy falls back to difflib, whose figures can differ.
int fuzzy_ratio(std::string_view a, std::string_view b);

double code_similarity(std::string_view prediction, Texts references, Texts all_classes);

}  // namespace kvartet
