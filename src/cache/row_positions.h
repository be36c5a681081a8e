// The true position of every row of one KV head, 4 bytes each (compression.md R1): kept by caches that evict.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/tile_run.h"
#include "core/arena.h"
#include "core/bytes.h"
#include "core/status.h"

namespace kvartet {

class RowPositions {
 public:
  static constexpr int kTileRows = 128;

  RowPositions() : run_({kTileRows, kTileRows * sizeof(std::int32_t)}) {}

  // Makes rows [begin, end) writable; the only step that can fail.
  Status own(Arena& arena, int begin, int end) { return run_.own(arena, begin, end); }
  // Writes an owned row; a row after the last one makes the list longer.
  void set(int row, std::int32_t position);
  void trim() { run_.keep_only(0, rows_); }  // gives back what own() made beyond the rows

  int rows() const { return rows_; }
  std::int32_t at(int row) const;
  std::vector<std::int32_t> all() const;

  ByteAccount bytes() const { return {bytes_of(rows_).live, run_.allocated_bytes()}; }
  static ByteAccount bytes_of(int rows);
  void list_state(const std::string& prefix, std::vector<StateBuffer>* out) const;

 private:
  TileRun run_;
  int rows_ = 0;
};

}  // namespace kvartet
