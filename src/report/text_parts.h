// What the blocks of the terminal's table share: ASCII only, at most kTextColumns wide.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "report/rows.h"

namespace kvartet {

inline constexpr std::size_t kTextColumns = 120;

// The width that the caches' names take, wrapped.
std::size_t spec_width(std::span<const ReportRow> rows);
// One line of a cache: its name, cut behind commas into as many lines as it takes, and the columns beside the first.
std::string spec_line(std::string_view spec, std::size_t width, std::string_view columns);

std::string text_number(const std::optional<double>& x, int decimals);  // "-" where there is none
std::string text_interval(const Measured& m, int decimals);             // "-1.0..+2.0"; "" for the reference
std::string_view text_verdict(Verdict verdict);

// Sentences broken at spaces so that a terminal need not.
std::string wrap_text(std::string_view text);

// The blocks behind the main tables; "" where there is nothing to say.
std::string answers_text(std::span<const ReportRow> rows, std::size_t width);  // lengths of the answers, where caches acted
std::string alone_text(std::span<const ReportRow> rows, std::size_t width);    // each cache alone
std::string positions_text(const StoredResults& results, std::size_t width);   // question seen, unseen, second

}  // namespace kvartet
