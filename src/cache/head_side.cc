#include "cache/head_side.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "cache/round_f16.h"
#include "core/check.h"

namespace kvartet {
namespace {

TileSize size_of(const TileFormat& format) { return {format.tile_rows, format.tile_bytes}; }

// Tiles with a row in [begin, end).
std::size_t tiles_of(int begin, int end, int tile_rows) {
  return begin >= end ? 0 : static_cast<std::size_t>((end - 1) / tile_rows - begin / tile_rows + 1);
}

}  // namespace

int SideFormats::sealed_rows(int rows) const {
  if (!seals()) return 0;
  return sealed.side == Side::kKey ? rows - rows % residual : std::max(0, rows - residual);
}

ByteAccount SideFormats::bytes(int rows, int sealed_count) const {
  ByteAccount account;
  const int first_open = std::max(sealed_count, first_row(rows));
  account.live = open.live_bytes(rows - first_open);
  account.allocated = tiles_of(first_open, rows, open.tile_rows) * open.tile_bytes;
  const int first_sealed = first_sealed_row(rows);
  if (sealed_count <= first_sealed) return account;
  account.live += sealed.live_bytes(sealed_count - first_sealed);
  account.allocated += tiles_of(first_sealed, sealed_count, sealed.tile_rows) * sealed.tile_bytes;
  return account;
}

HeadSide::HeadSide(const SideFormats* formats)
    : formats_(formats), open_(size_of(formats->open)), sealed_run_(size_of(formats->sealed)) {
  KV_CHECK(formats->open.row_step == 1 && kBlockRows % formats->open.tile_rows == 0);
  if (!formats->seals()) return;
  KV_CHECK(formats->residual > 0 && formats->residual % formats->sealed.row_step == 0);
  KV_CHECK(formats->window == 0 || formats->window > formats->residual);  // so that a row is sealed before it leaves
  KV_CHECK(kBlockRows % formats->sealed.tile_rows == 0 && formats->sealed.tile_rows % formats->sealed.row_step == 0);
}

Status HeadSide::stage(Arena& arena, const NewRows& fresh, int sealed_after, std::vector<float>* scratch) {
  KV_CHECK(sealed_after >= sealed_ && sealed_after <= rows_ + fresh.count());
  staged_rows_ = rows_ + fresh.count();
  staged_sealed_ = sealed_after;
  if (sealed_after > sealed_) KV_TRY(stage_sealed(arena, fresh, sealed_after, scratch));
  const int first_fresh = std::max(rows_, formats_->first_row(staged_rows_));  // the others are gone before they were here
  return stage_open(arena, fresh, std::max(first_fresh, sealed_after), scratch);
}

Status HeadSide::stage_sealed(Arena& arena, const NewRows& fresh, int sealed_after, std::vector<float>* scratch) {
  const TileFormat& format = formats_->sealed;
  const auto cols = static_cast<std::size_t>(format.head_dim);
  const int first = std::max(sealed_, formats_->first_sealed_row(staged_rows_));
  KV_TRY(sealed_run_.own(arena, first, sealed_after));
  for (int row = first; row < sealed_after;) {
    const int begin = row % format.tile_rows;
    const int count = std::min(format.tile_rows - begin, sealed_after - row);
    KV_CHECK(begin % format.row_step == 0 && count % format.row_step == 0);  // groups of the true length (section 2.2)
    scratch->resize(static_cast<std::size_t>(count) * cols);
    for (int i = 0; i < count; ++i) read_exact(row + i, fresh, scratch->data() + static_cast<std::size_t>(i) * cols);
    const MatView<const float> rows(scratch->data(), static_cast<std::size_t>(count), cols);
    KV_TRY(format.kernels.encode(format, sealed_run_.tile_of(row), begin, rows));
    row += count;
  }
  return {};
}

// The row as f16 holds it, whether it waits in an open tile or comes with this call.
void HeadSide::read_exact(int row, const NewRows& fresh, float* out) const {
  const TileFormat& open = formats_->open;
  const auto cols = static_cast<std::size_t>(open.head_dim);
  if (row < rows_) {
    const int at = row % open.tile_rows;
    open.kernels.decode(open, open_.tile_of(row), at, at + 1, MatView<float>(out, 1, cols));
    return;
  }
  const float* from = fresh.row(row - rows_);
  for (std::size_t c = 0; c < cols; ++c) out[c] = round_to_f16(from[c]);
}

Status HeadSide::stage_open(Arena& arena, const NewRows& fresh, int begin, std::vector<float>* scratch) {
  const TileFormat& format = formats_->open;
  const auto cols = static_cast<std::size_t>(format.head_dim);
  KV_TRY(open_.own(arena, begin, staged_rows_));
  for (int row = begin; row < staged_rows_;) {
    const int at = row % format.tile_rows;
    const int count = std::min(format.tile_rows - at, staged_rows_ - row);
    MatView<const float> rows;
    if (fresh.picked) {
      scratch->resize(static_cast<std::size_t>(count) * cols);
      for (int i = 0; i < count; ++i) {
        std::memcpy(scratch->data() + static_cast<std::size_t>(i) * cols, fresh.row(row - rows_ + i), cols * sizeof(float));
      }
      rows = {scratch->data(), static_cast<std::size_t>(count), cols};
    } else {
      const auto first = static_cast<std::size_t>(row - rows_);
      rows = fresh.rows.row_range(first, first + static_cast<std::size_t>(count));
    }
    KV_TRY(format.kernels.encode(format, open_.tile_of(row), at, rows));
    row += count;
  }
  return {};
}

void HeadSide::commit() {
  const int changed = staged_sealed_ > sealed_ ? sealed_ : rows_;
  rows_ = staged_rows_;
  sealed_ = staged_sealed_;
  keep_live_tiles();
  refresh_pieces(changed);
}

void HeadSide::rollback() {
  keep_live_tiles();
  refresh_pieces(sealed_);  // tiles that were shared may have been cloned
}

void HeadSide::keep_live_tiles() {
  open_.keep_only(std::max(sealed_, first()), rows_);
  sealed_run_.keep_only(formats_->first_sealed_row(rows_), sealed_);
}

Status HeadSide::own_row(Arena& arena, int row) {
  KV_CHECK(row >= sealed_ && row < rows_);
  if (open_.owns(row)) return {};
  KV_TRY(open_.own(arena, row, row + 1));
  refresh_pieces(row);
  return {};
}

Status HeadSide::overwrite(int row, MatView<const float> value) {
  KV_CHECK(open_.owns(row));
  const TileFormat& format = formats_->open;
  return format.kernels.encode(format, open_.tile_of(row), row % format.tile_rows, value);
}

// Renews the pieces from the block of `from_row` on. Tiles do not cross blocks, so whatever changed at or after
// `from_row`, a cloned tile included, lies there.
void HeadSide::refresh_pieces(int from_row) {
  int row = from_row / kBlockRows * kBlockRows;
  while (!pieces_.empty() && pieces_.back().row >= row) pieces_.pop_back();
  drop_front_pieces();
  row = std::max(row, first());
  while (row < rows_) {
    const bool is_sealed = row < sealed_;
    const TileFormat& format = is_sealed ? formats_->sealed : formats_->open;
    const int at = row % format.tile_rows;
    const int count = std::min(format.tile_rows - at, (is_sealed ? sealed_ : rows_) - row);
    pieces_.push_back({&format, (is_sealed ? sealed_run_ : open_).tile_of(row), row, at, at + count});
    row += count;
  }
}

// What left the window goes from the front, the last of it in the middle of a piece.
void HeadSide::drop_front_pieces() {
  const auto has_left = [this](const TilePiece& piece) { return piece.row + piece.end - piece.begin <= first(); };
  pieces_.erase(pieces_.begin(), std::find_if_not(pieces_.begin(), pieces_.end(), has_left));
  if (pieces_.empty() || pieces_.front().row >= first()) return;
  pieces_.front().begin += first() - pieces_.front().row;
  pieces_.front().row = first();
}

ByteAccount HeadSide::bytes() const {
  return {formats_->bytes(rows_, sealed_).live, open_.allocated_bytes() + sealed_run_.allocated_bytes()};
}

void HeadSide::list_state(const std::string& prefix, std::vector<StateBuffer>* out) const {
  const auto list = [&](const TileRun& run, const TileFormat& format, int begin, int end) {
    run.for_each_tile([&](int index, const Buffer& tile) {
      const int first = index * format.tile_rows;
      const int live = std::max(0, std::min(end, first + format.tile_rows) - std::max(begin, first));
      out->push_back({fmt::format("{} {} tile {}", prefix, format.name, index),
                      1,
                      Tier::kRam,
                      {format.live_bytes(live), tile.size()},
                      tile.data()});
    });
  };
  list(sealed_run_, formats_->sealed, formats_->first_sealed_row(rows_), sealed_);
  list(open_, formats_->open, std::max(sealed_, first()), rows_);
}

Status HeadSide::check_integrity() const {
  int row = first();
  for (const TilePiece& piece : pieces_) {
    const bool is_sealed = row < sealed_;
    const TileFormat& format = is_sealed ? formats_->sealed : formats_->open;
    const int end_row = piece.row + piece.end - piece.begin;
    if (piece.row != row || piece.end <= piece.begin || piece.format != &format) {
      return internal_error(fmt::format("the piece at row {} starts at row {} in format {}", row, piece.row, piece.format->name));
    }
    if (piece.begin != row % format.tile_rows || piece.end > format.tile_rows || row / kBlockRows != (end_row - 1) / kBlockRows) {
      return internal_error(
          fmt::format("the piece at row {} covers tile rows {}..{} of {}", row, piece.begin, piece.end, format.tile_rows));
    }
    if (piece.tile == nullptr || piece.tile != (is_sealed ? sealed_run_ : open_).tile_of(row)) {
      return internal_error(fmt::format("the piece at row {} points to a tile that is not its own", row));
    }
    row = end_row;
  }
  if (row != rows_) return internal_error(fmt::format("pieces cover {} of {} rows", row, rows_));
  const ByteAccount held = bytes();
  const ByteAccount expected = formats_->bytes(rows_, sealed_);
  if (held != expected) {
    return internal_error(
        fmt::format("{} bytes are allocated for {} rows, the counts say {}", held.allocated, rows_, expected.allocated));
  }
  return {};
}

}  // namespace kvartet
