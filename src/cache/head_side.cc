#include "cache/head_side.h"

#include <algorithm>
#include <cstring>
#include <utility>

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
  return sealed.row_step > 1 ? rows - rows % residual : std::max(0, rows - residual);
}

std::size_t SideFormats::learned_bytes() const {
  const std::size_t mean = centers ? static_cast<std::size_t>(open.head_dim) * sizeof(float) : 0;
  return mean + open.calibration_bytes + sealed.calibration_bytes;
}

ByteAccount SideFormats::bytes(int rows, int sealed_count) const {
  ByteAccount account;
  const int first_open = std::max(sealed_count, first_row(rows));
  account.live = open.live_bytes(rows - first_open);
  account.allocated = tiles_of(first_open, rows, open.tile_rows) * open.tile_bytes;
  if (rows > 0) account += {learned_bytes(), learned_bytes()};
  const int first_sealed = first_sealed_row(rows);
  if (sealed_count <= first_sealed) return account;
  account.live += sealed.live_bytes(sealed_count - first_sealed);
  account.allocated += tiles_of(first_sealed, sealed_count, sealed.tile_rows) * sealed.tile_bytes;
  return account;
}

HeadSide::HeadSide(const SideFormats* formats)
    : given_(formats), formats_(formats), open_(size_of(formats->open)), sealed_run_(size_of(formats->sealed)) {
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
  if (rows_ == 0 && fresh.count() > 0 && given_->learns()) KV_TRY(learn(arena, fresh));
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

// The first rows fix mean and calibration; all that arrive together, dropped ones too.
Status HeadSide::learn(Arena& arena, const NewRows& fresh) {
  KV_ASSIGN(Buffer buffer, arena.allocate(given_->learned_bytes()));
  auto learned = std::make_shared<Learned>(Learned{std::make_shared<Buffer>(std::move(buffer)), *given_});
  std::byte* at = learned->buffer->data();
  const std::size_t cols = fresh.rows.cols;
  std::vector<float> centered;
  MatView<const float> rows = fresh.rows;
  if (given_->centers) {
    float* const mean = reinterpret_cast<float*>(at);
    std::vector<double> sum(cols, 0.0);
    for (std::size_t r = 0; r < rows.rows; ++r) {
      for (std::size_t c = 0; c < cols; ++c) sum[c] += static_cast<double>(rows.row(r)[c]);
    }
    for (std::size_t c = 0; c < cols; ++c) mean[c] = static_cast<float>(sum[c] / static_cast<double>(rows.rows));
    centered.resize(rows.rows * cols);
    for (std::size_t r = 0; r < rows.rows; ++r) {
      for (std::size_t c = 0; c < cols; ++c) centered[r * cols + c] = rows.row(r)[c] - mean[c];
    }
    rows = {centered.data(), rows.rows, cols};
    at += cols * sizeof(float);
  }
  for (TileFormat* format : {&learned->formats.open, &learned->formats.sealed}) {
    if (format->calibration_bytes == 0) continue;
    format->kernels.calibrate(*format, rows, at);
    format->calibration = std::shared_ptr<const std::byte>(learned->buffer, at);
    at += format->calibration_bytes;
  }
  learned_ = std::move(learned);
  formats_ = &learned_->formats;
  return {};
}

void HeadSide::forget() {
  learned_.reset();
  formats_ = given_;
}

const float* HeadSide::mean() const {
  return learned_ != nullptr && given_->centers ? reinterpret_cast<const float*>(learned_->buffer->data()) : nullptr;
}

void HeadSide::subtract_mean(float* row) const {
  const float* const mean = this->mean();
  if (mean == nullptr) return;
  for (int c = 0; c < formats_->open.head_dim; ++c) row[c] -= mean[c];
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
  std::memcpy(out, fresh.row(row - rows_), cols * sizeof(float));
  subtract_mean(out);
  for (std::size_t c = 0; c < cols; ++c) out[c] = round_to_f16(out[c]);
}

Status HeadSide::stage_open(Arena& arena, const NewRows& fresh, int begin, std::vector<float>* scratch) {
  const TileFormat& format = formats_->open;
  const auto cols = static_cast<std::size_t>(format.head_dim);
  KV_TRY(open_.own(arena, begin, staged_rows_));
  for (int row = begin; row < staged_rows_;) {
    const int at = row % format.tile_rows;
    const int count = std::min(format.tile_rows - at, staged_rows_ - row);
    MatView<const float> rows;
    if (fresh.picked || mean() != nullptr) {
      scratch->resize(static_cast<std::size_t>(count) * cols);
      for (int i = 0; i < count; ++i) {
        float* const copy = scratch->data() + static_cast<std::size_t>(i) * cols;
        std::memcpy(copy, fresh.row(row - rows_ + i), cols * sizeof(float));
        subtract_mean(copy);
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
  if (rows_ == 0) forget();
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
  if (mean() == nullptr) return format.kernels.encode(format, open_.tile_of(row), row % format.tile_rows, value);
  std::vector<float> centered(value.row(0), value.row(0) + value.cols);
  subtract_mean(centered.data());
  return format.kernels.encode(format, open_.tile_of(row), row % format.tile_rows, {centered.data(), 1, value.cols});
}

void HeadSide::read_row(int row, std::span<float> out) const {
  KV_CHECK(row >= sealed_ && row < rows_);
  const int at = row % formats_->open.tile_rows;
  formats_->open.kernels.decode(formats_->open, open_.tile_of(row), at, at + 1, {out.data(), 1, out.size()});
}

Status HeadSide::own_from(Arena& arena, int first) {
  KV_CHECK(first >= sealed_ && first <= rows_);
  KV_TRY(open_.own(arena, first, rows_));
  refresh_pieces(first);
  return {};
}

void HeadSide::remove(int first, int count) {
  std::vector<float> row(static_cast<std::size_t>(formats_->open.head_dim));
  for (int at = first; at + count < rows_; ++at) {
    read_row(at + count, row);
    KV_CHECK(overwrite(at, {row.data(), 1, row.size()}).ok());  // it has been written before
  }
  drop_last(count);
}

void HeadSide::drop_last(int count) {
  KV_CHECK(count >= 0 && rows_ - count >= sealed_);
  rows_ -= count;
  open_.keep_only(sealed_, rows_);
  refresh_pieces(rows_);
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
  const std::size_t learned = learned_ == nullptr ? 0 : learned_->buffer->size();
  return {formats_->bytes(rows_, sealed_).live, open_.allocated_bytes() + sealed_run_.allocated_bytes() + learned};
}

void HeadSide::list_state(const std::string& prefix, std::vector<StateBuffer>* out) const {
  if (learned_ != nullptr) {
    const Buffer& buffer = *learned_->buffer;
    out->push_back({prefix + " learned", 1, Tier::kRam, {buffer.size(), buffer.size()}, buffer.data()});
  }
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
