// A format whose rows are rotated before they are coded (compression.md 3.4, 7.2): queries are rotated once instead of rows
// being rotated back, and what values add up to is rotated back once.
#pragma once

#include "quantize/row_rotation.h"
#include "quantize/tile_format.h"

namespace kvartet {

// Runs of channels, each with its own rotation. With two of them, the channels are sorted first (calibrate() decides how).
struct RotatedRows {
  Rotation rotation = Rotation::kNone;
  int parts[2] = {0, 0};  // channels of each
  int part_count = 1;
  TileKernels plain;  // of the format inside

  std::size_t table_floats() const;
};

// Wraps `plain`, which then sees rotated rows. Its tables, if it has any, stay behind the rotation's: plain formats find
// theirs at tables + rotated->table_floats(). Rows must be shorter than 45,000: their length survives the
// rotation, and no scale then overflows f16.
TileFormat with_rotation(TileFormat plain, RotatedRows rows, std::uint64_t seed);

// The tables of an f32-aligned format as floats.
inline const float* float_tables(const TileFormat& format) { return reinterpret_cast<const float*>(format.tables.get()); }

// Order of channels by calibration: sorted[c] = row[order[c]]. Identity before calibration.
void sort_channels(const TileFormat& format, float* row);
void unsort_channels(const TileFormat& format, float* row);

}  // namespace kvartet
