// Of a layer with far rows: chosen rows become tiles that attention walks, or the places where they lie.
#include "cache/offload_layer.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/uz.h"
#include "quantize/f16_numbers.h"
#include "quantize/float_format.h"

namespace kvartet {
// ---- in place

void OffloadLayer::fill_places(const Step& step, Unit& unit, std::span<const std::byte* const> at,
                               std::span<const std::byte> mapped) const {
  unit.rope = step.rope;
  for (int first = 0; first < selected_rows(); first += kBlockRows) {
    const int count = std::min(kBlockRows, selected_rows() - first);
    auto& places = *reinterpret_cast<RowPlaces*>(unit.keys.tile_of(first));
    std::copy_n(at.data() + first, count, places.rows);
    std::copy_n(unit.chosen.data() + first, count, places.positions);
    places.count = count;
    places.failed = 0;
    places.rope = unit.rope.get();
    places.mapped = mapped.empty() ? nullptr : mapped.data();
    places.mapped_bytes = mapped.size();
  }
  unit.placed = true;
}

Status OffloadLayer::place_lent(const Step& step, int unit_index, OffloadScratch::Worker& worker) {
  Unit& unit = units_[uz(unit_index)];
  KV_CHECK(unit.chosen.size() == unit.slots.size());
  worker.at.resize(unit.chosen.size());
  KV_TRY(unit.keys.own(*step.fast, 0, selected_rows()));
  unit.placed = false;
  KV_ASSIGN(const LentRows lent, step.store->lend(layer_, unit_index / units_per_head(), unit.chosen, worker.at.data()));
  KV_CHECK(lent.lent);
  fill_places(step, unit, worker.at, lent.mapped);
  unit.slots = unit.chosen;
  return {};
}

// What was fetched goes where rows leave; attention walks positions in order, whatever their slots.
Status OffloadLayer::place_fetched(const Step& step, int unit_index, OffloadScratch::Worker& worker) {
  Unit& unit = units_[uz(unit_index)];
  const std::size_t row_bytes = step.store->row_bytes(layer_);
  KV_TRY(unit.keys.own(*step.fast, 0, selected_rows()));
  KV_TRY(unit.values.own(*step.fast, 0, selected_rows()));
  unit.placed = false;
  const auto row_at = [&](std::int32_t slot) { return unit.values.tile_of(slot) + uz(slot % kBlockRows) * row_bytes; };
  const std::vector<std::int32_t>& rows = step.fetches->rows[uz(unit_index / units_per_fetch())];
  const std::vector<const std::byte*>& fetched = step.fetches->at[uz(unit_index / units_per_fetch())];
  std::size_t at = 0;  // in rows: both lists are ascending
  for (std::size_t i = 0; i < unit.missing.size(); ++i) {
    while (rows[at] != unit.missing[i]) ++at;
    std::copy_n(fetched[at], row_bytes, row_at(unit.free[i]));
    unit.slots[uz(unit.free[i])] = unit.missing[i];
  }
  worker.order.clear();
  for (std::size_t slot = 0; slot < unit.slots.size(); ++slot) {
    worker.order.emplace_back(unit.slots[slot], static_cast<std::int32_t>(slot));
  }
  std::sort(worker.order.begin(), worker.order.end());
  worker.at.clear();
  for (const auto& [position, slot] : worker.order) worker.at.push_back(row_at(slot));
  fill_places(step, unit, worker.at, {});
  return {};
}

// A row that could not be read while attention ran: to ask for it again says why, as long as that lasts.
Status OffloadLayer::attended(RowStore* store) const {
  if (!lends_ || !selects()) return {};
  for (std::size_t u = 0; u < units_.size(); ++u) {
    bool failed = false;
    units_[u].keys.for_each_tile([&](int, const Buffer& tile) {
      const auto& places = *reinterpret_cast<const RowPlaces*>(tile.data());
      failed = failed || places.failed != 0;
    });
    if (!failed) continue;
    std::vector<const std::byte*> at(units_[u].chosen.size());
    KV_TRY(store->lend(layer_, static_cast<int>(u) / units_per_head(), units_[u].chosen, at.data()).status());
    return io_error("the system could not load a row of the slow tier's file while attention read it");
  }
  return {};
}

// ---- staged

// Rows that are staged already stay in their slots; the others go where rows leave.
void OffloadLayer::compare(Unit& unit, OffloadScratch::Worker& worker) {
  constexpr std::uint8_t kWanted = 1;
  constexpr std::uint8_t kHere = 2;
  worker.wanted.assign(uz(far_tokens()), 0);
  for (const std::int32_t position : unit.chosen) worker.wanted[uz(position)] = kWanted;
  unit.free.clear();
  unit.missing.clear();
  for (std::size_t slot = 0; slot < unit.slots.size(); ++slot) {
    const std::int32_t position = unit.slots[slot];
    if (position >= 0 && worker.wanted[uz(position)] == kWanted) {
      worker.wanted[uz(position)] = kHere;
    } else {
      unit.free.push_back(static_cast<std::int32_t>(slot));
    }
  }
  for (const std::int32_t position : unit.chosen) {
    if (worker.wanted[uz(position)] == kWanted) unit.missing.push_back(position);
  }
  KV_CHECK(unit.missing.size() == unit.free.size());
}

// One fetch brings what all its units miss: those of a KV head, or of all where rows are joint.
Status OffloadLayer::begin_fetch(const Step& step, int index, bool may_lend, std::optional<FetchTicket>* ticket) {
  std::vector<std::int32_t>& rows = step.fetches->rows[uz(index)];
  rows.clear();
  for (int u = index * units_per_fetch(); u < (index + 1) * units_per_fetch(); ++u) {
    const Unit& unit = units_[uz(u)];
    rows.insert(rows.end(), unit.missing.begin(), unit.missing.end());
    rows_reused_ += unit.chosen.size() - unit.missing.size();
  }
  if (units_per_fetch() > 1) {
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  }
  if (rows.empty()) return {};
  std::vector<const std::byte*>& at = step.fetches->at[uz(index)];
  at.resize(rows.size());
  if (may_lend) {
    KV_ASSIGN(const LentRows lent, step.store->lend(layer_, index, rows, at.data()));
    if (lent.lent) return {};
  }
  std::vector<std::byte>& bytes = step.fetches->bytes[uz(index)];
  bytes.resize(rows.size() * step.store->row_bytes(layer_));
  for (std::size_t i = 0; i < rows.size(); ++i) at[i] = bytes.data() + i * step.store->row_bytes(layer_);
  const HeadFetch fetch{.kv_head = index, .rows = rows, .out = bytes.data()};
  KV_ASSIGN(FetchTicket begun, step.store->begin_fetch(layer_, {&fetch, 1}));
  ticket->emplace(std::move(begun));
  return {};
}

// Where a fetched row's numbers are as a tile holds them: in the row itself if it lies so, else decoded into `room`.
Result<const std::byte*> OffloadLayer::staged_key(const Step& step, int head, std::int32_t position, const std::byte* row,
                                                  std::span<float> numbers, std::byte* room) const {
  if (options_->rope == KeyRope::kPost) {
    if (const std::byte* const plain = sealed_->f16_key(head, row)) return plain;
  }
  read_key(step, head, position, row, numbers.data());
  if (!narrow_finite_f16(numbers, room)) KV_TRY(as_f16_row(numbers, room));
  return room;
}

Result<const std::byte*> OffloadLayer::staged_value(int head, const std::byte* row, std::span<float> numbers,
                                                    std::byte* room) const {
  if (const std::byte* const plain = sealed_->f16_value(head, row)) return plain;
  sealed_->decode_value(head, row, numbers.data());
  if (!narrow_finite_f16(numbers, room)) KV_TRY(as_f16_row(numbers, room));
  return room;
}

// Tile by tile, so that what is decoded is still in the nearest cache when it is put in its place.
Status OffloadLayer::stage(const Step& step, int unit_index, OffloadScratch::Worker& worker) {
  if (in_place_) return place_fetched(step, unit_index, worker);
  Unit& unit = units_[uz(unit_index)];
  if (unit.missing.empty()) return {};
  const int head = unit_index / units_per_head();
  const std::size_t row_bytes = step.store->row_bytes(layer_);
  const std::vector<std::int32_t>& rows = step.fetches->rows[uz(unit_index / units_per_fetch())];
  const std::vector<const std::byte*>& fetched = step.fetches->at[uz(unit_index / units_per_fetch())];
  const int tile_rows = shown_key_->tile_rows;
  const std::size_t f16_bytes = 2 * uz(shape_.head_dim);
  worker.row.resize(uz(shape_.head_dim));
  worker.f16_rows.resize(2 * uz(tile_rows) * f16_bytes);
  KV_TRY(unit.keys.own(*step.fast, 0, selected_rows()));
  KV_TRY(unit.values.own(*step.fast, 0, selected_rows()));
  for (const std::int32_t slot : unit.free) unit.slots[uz(slot)] = -1;
  // Rows that are lent lie far apart, as angles do: their loads must be under way while others are put in place.
  constexpr std::size_t kAhead = 8;
  constexpr std::size_t kRowsAhead = 32;
  const auto prefetch_row = [&](std::size_t i) {
    constexpr std::size_t kLine = 64;
    const std::byte* const row = fetched[i];
    // To the second-level cache: as many loads are under way at once as its queue holds.
    for (std::size_t line = 0; line < row_bytes; line += kLine) __builtin_prefetch(row + line, 0, 2);
    __builtin_prefetch(row + row_bytes - 1, 0, 2);
  };
  for (std::size_t i = 0; i < std::min(kRowsAhead, rows.size()); ++i) prefetch_row(i);
  const bool rotates = options_->rope == KeyRope::kPre;
  std::size_t at = 0;  // in rows: both lists are ascending
  for (std::size_t done = 0; done < unit.missing.size();) {
    worker.keys.clear();
    worker.values.clear();
    const int tile = unit.free[done] / tile_rows;
    std::byte* const key_tile = unit.keys.tile_of(unit.free[done]);
    std::byte* const value_tile = unit.values.tile_of(unit.free[done]);
    std::size_t end = done;
    for (; end < unit.missing.size() && unit.free[end] / tile_rows == tile; ++end) {
      const std::int32_t position = unit.missing[end];
      if (rotates && end + kAhead < unit.missing.size()) step.rope->prefetch(unit.missing[end + kAhead]);
      while (rows[at] != position) ++at;
      if (at + kRowsAhead < rows.size()) prefetch_row(at + kRowsAhead);
      for (std::size_t line = 0; line < f16_bytes; line += 64) {  // the tiles were last seen a step ago
        const std::size_t place = uz(unit.free[end] % tile_rows) * f16_bytes + line;
        __builtin_prefetch(key_tile + place, 1);
        __builtin_prefetch(value_tile + place, 1);
      }
      const std::byte* const row = fetched[at];
      std::byte* const room = worker.f16_rows.data() + 2 * (end - done) * f16_bytes;
      KV_ASSIGN(const std::byte* key, staged_key(step, head, position, row, worker.row, room));
      KV_ASSIGN(const std::byte* value, staged_value(head, row, worker.row, room + f16_bytes));
      worker.keys.push_back({key, unit.free[end] % tile_rows});
      worker.values.push_back({value, unit.free[end] % tile_rows});
    }
    put_f16_rows(*shown_key_, key_tile, worker.keys);
    put_f16_rows(*shown_value_, value_tile, worker.values);
    for (; done < end; ++done) unit.slots[uz(unit.free[done])] = unit.missing[done];
  }
  return {};
}

}  // namespace kvartet
