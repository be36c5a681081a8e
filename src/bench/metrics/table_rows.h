// LongProc's HTML-to-TSV score (offloading.md 13.4): rows of a tab-separated table against the gold table's rows.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/metrics/metric.h"

namespace kvartet {

// All in [0, 1]. extraction_rate is 0, and so is everything, where no table can be compared: no rows, another number of
// columns than the gold table, a header that repeats a name.
struct TableScore {
  double precision = 0;
  double recall = 0;
  double f1 = 0;
  double extraction_rate = 0;
};

TableScore score_table(std::string_view prediction, std::string_view gold);

// From the first ```tsv to the last ``` behind it; without an end, all behind ```tsv; without a beginning, everything.
std::string_view tsv_block(std::string_view text);

// Tab-separated with CSV quoting: a double quote at the start of a field opens one that may hold tabs and line ends.
std::vector<std::vector<std::string>> parse_tsv(std::string_view text);

// The metric `tsv_rows`: F1 over the first reference. Its parts: precision, recall, f1, extraction_rate.
double table_rows_f1(std::string_view prediction, Texts references, Texts all_classes);
std::vector<ScorePart> table_rows_parts(std::string_view prediction, Texts references, Texts all_classes);

}  // namespace kvartet
