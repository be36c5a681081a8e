// The keys of a sequence's first tokens, exactly as they came: what a cache needs to give them new angles again and again
// without the drift of turning what was turned before (compression.md 6.1).
//
// They carry the angle of their own position; a turn by d more makes it that of position + d. f32, shared between forks.
#pragma once

#include <string>
#include <vector>

#include "cache/tile_run.h"
#include "core/arena.h"
#include "core/bytes.h"
#include "core/status.h"

namespace kvartet {

class SinkKeys {
 public:
  static constexpr int kTileRows = 4;
  explicit SinkKeys(int head_dim);

  // Makes rows [begin, end) writable; the only step that can fail.
  Status own(Arena& arena, int begin, int end) { return run_.own(arena, begin, end); }
  void append(const float* key);             // an owned row behind the last one
  void trim() { run_.keep_only(0, rows_); }  // gives back what own() made beyond the rows

  int rows() const { return rows_; }
  const float* at(int row) const;  // [head_dim]

  ByteAccount bytes() const { return {bytes_of(rows_, head_dim_).live, run_.allocated_bytes()}; }
  static ByteAccount bytes_of(int rows, int head_dim);
  void list_state(const std::string& prefix, std::vector<StateBuffer>* out) const;

 private:
  std::byte* place(int row) const;
  int head_dim_;
  TileRun run_;
  int rows_ = 0;
};

}  // namespace kvartet
