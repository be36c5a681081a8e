// The benchmark's table for a terminal: at most 120 columns, ASCII only.
#pragma once

#include <span>
#include <string>

#include "report/rows.h"

namespace kvartet {

// One block per (task, context), one line per cache (two where the spec is long), then the legend and the caveats.
std::string text_table(const StoredResults& results, std::span<const ReportRow> rows);

}  // namespace kvartet
