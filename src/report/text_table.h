// The benchmark's table for a terminal: at most 120 columns, ASCII only.
#pragma once

#include <span>
#include <string>

#include "report/rows.h"

namespace kvartet {

// One block per cell, one line per cache (two where the spec is long); then what each cache did alone, with the question unseen
// or asked second, and how long its answers are; then the legend and the caveats.
std::string text_table(const StoredResults& results, std::span<const ReportRow> rows);

}  // namespace kvartet
