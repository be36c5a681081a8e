// What no format encodes: NaN, Inf, and numbers beyond the format's range (compression.md R8).
#pragma once

#include "core/matrix.h"
#include "core/status.h"

namespace kvartet {

// kBadInput naming the first element of rows [rows, channels] that is NaN, Inf, or reaches `limit` in magnitude (the
// default: no limit).
Status check_finite(MatView<const float> rows, const char* format_name, float limit = 0.0F);

// For formats that store a row's length: kBadInput naming the first row that holds NaN or Inf, or is as long as `limit`.
Status check_lengths(MatView<const float> rows, const char* format_name, float limit);

}  // namespace kvartet
