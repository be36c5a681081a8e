// One side (keys or values) of one KV head: its rows in their formats, and the pieces that attention walks.
//
// Rows [first, sealed) are in the sealed format, rows [sealed, rows) in the open one. Most caches write every row once, in
// its final format: then there is no sealed format and all rows are open. KIVI keeps its newest rows in f16 and seals the
// older ones (compression.md 2.3). `first` is 0 except in a layer with a sliding window, where rows leave at the front
// (docs/decisions/0004-sliding-windows.md): their numbers do not change, and a tile goes with its last row.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/tile_run.h"
#include "core/arena.h"
#include "core/bytes.h"
#include "core/matrix.h"
#include "core/status.h"
#include "quantize/tile_format.h"

namespace kvartet {

// How one side's rows are written. Outlives the HeadSide; shared by all heads of a layer and by forks.
struct SideFormats {
  TileFormat open;
  TileFormat sealed;     // tile_rows == 0: rows are never sealed
  int residual = 0;      // KIVI's R, when rows are sealed
  int window = 0;        // only the last `window` rows are kept; 0: all
  bool centers = false;  // rows are written without their mean over the first rows (compression.md 12.4)

  bool seals() const { return sealed.tile_rows > 0; }
  // The first of `rows` rows that is still kept.
  int first_row(int rows) const { return window > 0 && rows > window ? rows - window : 0; }
  bool learns() const { return centers || open.calibration_bytes > 0 || sealed.calibration_bytes > 0; }
  std::size_t learned_bytes() const;
  // How many of `rows` rows are sealed between steps, those counted that have left the window: all but the last R, or whole
  // residuals where codes of several rows share a scale (KIVI's keys).
  int sealed_rows(int rows) const;
  // Where the sealed rows begin that are held after `rows` rows: with the group in which the first row lies.
  int first_sealed_row(int rows) const { return seals() ? first_row(rows) / sealed.row_step * sealed.row_step : 0; }
  // Bytes of a side with these counts: what HeadSide::bytes() reports then.
  ByteAccount bytes(int rows, int sealed) const;
};

// New rows: all of `rows`, or those that `pick` lists, in its order.
struct NewRows {
  MatView<const float> rows;  // [n, head_dim]
  bool picked = false;
  std::span<const std::int32_t> pick;
  int count() const { return static_cast<int>(picked ? pick.size() : rows.rows); }
  const float* row(int i) const {
    const auto index = static_cast<std::size_t>(i);
    return rows.row(picked ? static_cast<std::size_t>(pick[index]) : index);
  }
};

class HeadSide {
 public:
  explicit HeadSide(const SideFormats* formats);

  // A change in two steps, so that all heads of a layer change or none does. stage() makes room, encodes `fresh` after
  // the last row and seals up to row `sealed_after`, out of sight; commit() shows it; rollback() forgets it and gives the
  // memory back. kExhausted: no memory; kBadInput: a row that the format cannot hold. `scratch` is resized as needed.
  Status stage(Arena& arena, const NewRows& fresh, int sealed_after, std::vector<float>* scratch);
  void commit();
  void rollback();

  // Replacing an open row in place, in two steps again: only the first can fail for lack of memory.
  Status own_row(Arena& arena, int row);
  Status overwrite(int row, MatView<const float> value);  // value: [1, head_dim]

  // A row as it is stored, decoded.
  void read_row(int row, std::span<float> out) const;
  // Open rows [first, first + count) leave and those behind them move up, in two steps again.
  Status own_from(Arena& arena, int first);
  void remove(int first, int count);
  // Forgets the last rows, which are open; cannot fail.
  void drop_last(int count);

  int rows() const { return rows_; }  // the end of the rows: those that left a window are counted
  int first() const { return formats_->first_row(rows_); }
  int sealed() const { return sealed_; }
  std::span<const TilePiece> pieces() const { return pieces_; }
  const SideFormats& formats() const { return *formats_; }
  // What rows were written without, [head_dim]; null: nothing.
  const float* mean() const;

  ByteAccount bytes() const;
  void list_state(const std::string& prefix, std::vector<StateBuffer>* out) const;
  Status check_integrity() const;

 private:
  Status stage_sealed(Arena& arena, const NewRows& fresh, int sealed_after, std::vector<float>* scratch);
  Status stage_open(Arena& arena, const NewRows& fresh, int begin, std::vector<float>* scratch);
  void read_exact(int row, const NewRows& fresh, float* out) const;
  void keep_live_tiles();
  Status learn(Arena& arena, const NewRows& fresh);
  void forget();
  void subtract_mean(float* row) const;
  void refresh_pieces(int from_row);
  void drop_front_pieces();

  // What the first rows taught: the mean, then the calibration of the formats, whose copies point into it. Never changes
  // afterwards, so forks share it.
  struct Learned {
    std::shared_ptr<Buffer> buffer;
    SideFormats formats;
  };

  const SideFormats* given_;    // by the layer
  const SideFormats* formats_;  // the same, or learned_'s
  std::shared_ptr<const Learned> learned_;
  TileRun open_;
  TileRun sealed_run_;
  int rows_ = 0;
  int sealed_ = 0;
  int staged_rows_ = 0;
  int staged_sealed_ = 0;
  std::vector<TilePiece> pieces_;
};

}  // namespace kvartet
