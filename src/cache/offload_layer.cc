#include "cache/offload_layer.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "core/check.h"
#include "core/parallel_for.h"
#include "quantize/f16_numbers.h"
#include "quantize/float_format.h"
#include "quantize/row_check.h"

namespace kvartet {
namespace {

constexpr float kF16Overflow = 65520.0F;

std::size_t uz(int n) { return static_cast<std::size_t>(n); }

void append_range(int begin, int end, std::vector<std::int32_t>* out) {
  for (int i = begin; i < end; ++i) out->push_back(i);
}

TileSize size_of(const TileFormat& format) { return {format.tile_rows, format.tile_bytes}; }

std::size_t tiles_for(int rows, const TileFormat& format) { return uz((rows + format.tile_rows - 1) / format.tile_rows); }

}  // namespace

OffloadLayer::OffloadLayer(std::shared_ptr<const SelectOptions> options, int layer, const LayerShape& shape,
                           const TileFormat* staged_key, const TileFormat* staged_value)
    : options_(std::move(options)), layer_(layer), shape_(shape), staged_key_(staged_key), staged_value_(staged_value) {}

Status OffloadLayer::check(const SelectOptions& options, const LayerShape& shape) {
  KV_TRY(is_projected(options.index.kind) ? ProjectedIndex::check(options.index, shape.head_dim)
                                          : LandmarkIndex::check(options.index, shape.head_dim));
  const int width = shape.kv_heads * shape.head_dim;
  const bool joint = options.groups == RowGroup::kJoint;
  if (joint && (width > kMostJointWidth || !std::has_single_bit(uz(width)))) {
    return usage_error(fmt::format(
        "groups=joint writes the {} channels of all KV heads of this model as one group, which must be a power of two "
        "up to {}; write groups=head",
        width, kMostJointWidth));
  }
  if (!options.low_rank_keys) KV_TRY(RowCodec::create(options.keys, joint ? width : shape.head_dim).status());
  KV_TRY(RowCodec::create(options.values, joint ? width : shape.head_dim).status());
  if (options.low_rank_keys && options.rank > width) {
    return usage_error(fmt::format("rank={} is more than the {} channels of all KV heads of this model; the nearest is rank={}",
                                   options.rank, width, width));
  }
  return {};
}

LayerRowShape OffloadLayer::row_shape(const SelectOptions& options, const LayerShape& shape) {
  return {options.groups == RowGroup::kJoint ? 1 : shape.kv_heads, SealedPrompt::row_bytes(options, shape)};
}

Segments OffloadLayer::segments(const SelectOptions& options, int layer, int prompt) {
  return layer < options.dense_layers ? Segments{} : segment_prompt(options.request(prompt));
}

int OffloadLayer::far_generated(const SelectOptions& options, int layer, int prompt, int generated) {
  return segments(options, layer, prompt).dense ? 0 : options.far_generated(generated);
}

ByteAccount OffloadLayer::predict(const SelectOptions& options, int layer, const LayerShape& shape, int prompt, int generated) {
  const Segments s = segments(options, layer, prompt);
  if (s.dense) return {};
  ByteAccount account = SealedPrompt::predict({options, shape, s}, prompt);
  if (const int far = options.far_generated(generated); far > 0) {
    const ByteAccount index = LandmarkIndex::bytes_of(options.index, shape.head_dim, far / options.index.chunk);
    for (int h = 0; h < shape.kv_heads; ++h) account += index;
  }
  const int units = options.share == Share::kGroup ? shape.kv_heads : shape.heads;
  const int slots = s.selected * options.index.chunk;
  const TileFormat key = make_tile_format({"f16"}, Side::kKey, shape.head_dim).value();
  account.live += uz(units) * 2 * key.live_bytes(slots);
  account.allocated += uz(units) * 2 * tiles_for(slots, key) * key.tile_bytes;
  return account;
}

// ---- the end of the prompt

Status OffloadLayer::seal(Arena& fast, RowStore* store, const PromptRows& prompt, int threads, Arrival* kept) {
  const int tokens = static_cast<int>(prompt.key.tokens);
  KV_CHECK(sealed_ == nullptr && tokens > 0);
  for (std::size_t h = 0; h < prompt.key.heads; ++h) {
    KV_TRY(check_finite(prompt.key.head(h), "f16", kF16Overflow).within(fmt::format("KV head {}, keys", h)));
    KV_TRY(check_finite(prompt.value.head(h), "f16", kF16Overflow).within(fmt::format("KV head {}, values", h)));
  }
  const Segments s = segments(*options_, layer_, tokens);
  *kept = Arrival{};
  if (s.dense) return {};
  std::vector<std::vector<std::byte>> rows;
  KV_ASSIGN(SealedPrompt sealed, SealedPrompt::build(fast, {*options_, shape_, s}, prompt, threads, &rows, kept));
  KV_ASSIGN(std::vector<Unit> units, empty_units(fast, sealed.selected_rows()));
  const std::vector<std::span<const std::byte>> spans(rows.begin(), rows.end());
  KV_TRY(store->append(layer_, spans));
  units_ = std::move(units);
  sealed_ = std::make_shared<const SealedPrompt>(std::move(sealed));
  return {};
}

Result<std::vector<OffloadLayer::Unit>> OffloadLayer::empty_units(Arena& fast, int slots) const {
  std::vector<Unit> units;
  for (int u = 0; u < kv_heads() * units_per_head(); ++u) {
    Unit unit{.keys = TileRun(size_of(*staged_key_)),
              .values = TileRun(size_of(*staged_value_)),
              .slots = {},
              .chosen = {},
              .missing = {},
              .free = {},
              .key_pieces = {},
              .value_pieces = {}};
    unit.slots.assign(uz(slots), -1);
    KV_TRY(unit.keys.own(fast, 0, slots));
    KV_TRY(unit.values.own(fast, 0, slots));
    units.push_back(std::move(unit));
  }
  return units;
}

// ---- generated rows that go far

OffloadLayer::Leaving OffloadLayer::leaving(int kept) const {
  if (!selects() || options_->generated == 0) return {};
  const int first = sealed_->segments().kept_tokens(options_->index.chunk);
  return {.first = first, .count = kept - first >= options_->generated ? options_->block_rows() : 0};
}

// Keys that are to lie unrotated are turned back, from the f16 that the near rows held.
Status OffloadLayer::take(Arena& fast, RowStore* store, const RopeShape& rope, HeadRows<const float> keys,
                          HeadRows<const float> values, int threads) {
  KV_CHECK(selects() && keys.tokens % uz(options_->index.chunk) == 0 && keys.token_stride == keys.heads * keys.head_dim);
  auto longer = std::make_shared<std::vector<LandmarkIndex>>();
  for (int h = 0; h < kv_heads(); ++h) {
    const LandmarkIndex& prompt = sealed_->index(h);
    KV_ASSIGN(LandmarkIndex index, generated_ != nullptr ? (*generated_)[uz(h)].extended(fast, keys.head(uz(h)))
                                                         : prompt.emptied().extended(fast, keys.head(uz(h))));
    longer->push_back(std::move(index));
  }
  std::vector<float> turned_back;
  HeadRows<const float> stored = keys;
  if (options_->rope == KeyRope::kPre) {
    turned_back.assign(keys.data, keys.data + keys.tokens * keys.token_stride);
    for (std::size_t t = 0; t < keys.tokens; ++t) {
      const RopeTurn back(rope, -(far_tokens() + static_cast<int>(t)));
      for (std::size_t h = 0; h < keys.heads; ++h) back.apply(turned_back.data() + t * keys.token_stride + h * keys.head_dim);
    }
    stored.data = turned_back.data();
  }
  const std::vector<std::vector<std::byte>> rows = sealed_->encode(stored, values, threads);
  const std::vector<std::span<const std::byte>> spans(rows.begin(), rows.end());
  KV_TRY(store->append(layer_, spans));
  generated_ = std::move(longer);
  far_generated_ += static_cast<int>(keys.tokens);
  return {};
}

int OffloadLayer::first_position(int kv_head, int candidate) const {
  const int later = candidate - sealed_->candidates();
  return later < 0 ? sealed_->first_position(kv_head, candidate) : sealed_->tokens() + later * options_->index.chunk;
}

std::vector<std::int32_t> OffloadLayer::candidate_positions(int kv_head) const {
  std::vector<std::int32_t> positions = sealed_->candidate_positions(kv_head);
  append_range(sealed_->tokens(), far_tokens(), &positions);
  return positions;
}

// ---- a decode step

void OffloadLayer::begin(const Step& step) { choose_rows(step, {}); }

void OffloadLayer::choose_rows(const Step& step, std::span<Status> staged) {
  OffloadScratch& scratch = *step.scratch;
  OffloadFetches& fetches = *step.fetches;
  fetches.tickets.clear();  // of a step that was given up: waits
  const std::size_t count = uz(this->fetches());
  fetches.rows.resize(std::max(fetches.rows.size(), count));
  fetches.bytes.resize(fetches.rows.size());
  fetches.at.resize(fetches.rows.size());
  fetches.tickets.resize(count);
  fetches.status.assign(count, {});
  fetches.layer = layer_;
  if (scratch.workers.size() < uz(step.threads)) scratch.workers.resize(uz(step.threads));
  // Where units cannot be dealt out evenly, several workers score the landmarks of each.
  const int units = static_cast<int>(units_.size());
  const int parts = units % step.threads == 0 || sealed_->indexes_query_heads() ? 1 : step.threads;
  if (parts > 1) {  // scores are then a unit's and not a worker's
    if (scratch.workers.size() < uz(units)) scratch.workers.resize(uz(units));
    for (int u = 0; u < units; ++u) make_room(&scratch.workers[uz(u)]);
  }
  std::vector<std::atomic<int>> scoring(uz(units));
  for (std::atomic<int>& left : scoring) left = parts;
  // A fetch's rows are on their way while units of others still choose; the store takes one call at a time.
  std::mutex store;
  std::vector<int> choosing(count, units_per_fetch());
  parallel_for(step.threads, units * parts, [&](int i, int w) {
    const int u = i / parts;
    OffloadScratch::Worker& worker = scratch.workers[uz(w)];
    OffloadScratch::Worker& scores = scratch.workers[uz(parts > 1 ? u : w)];
    if (parts == 1) make_room(&scores);
    score(step, u, {i % parts, parts}, worker, scores);
    if (scoring[uz(u)].fetch_sub(1) != 1) return;
    choose(u, worker, scores);
    compare(units_[uz(u)], worker);
    const int fetch = u / units_per_fetch();
    {
      const std::lock_guard lock(store);
      if (--choosing[uz(fetch)] == 0)
        fetches.status[uz(fetch)] = begin_fetch(step, fetch, !staged.empty(), &fetches.tickets[uz(fetch)]);
    }
    if (!staged.empty() && fetches.status[uz(fetch)].ok()) staged[uz(u)] = stage(step, u, worker);
  });
}

Status OffloadLayer::select(const Step& step, std::span<const HeadView> kept) {
  if (!selects()) return {};
  OffloadFetches& fetches = *step.fetches;
  const int units = static_cast<int>(units_.size());
  std::vector<Status> staged(uz(units));
  if (fetches.layer != layer_ && units_per_fetch() == 1 && step.store->lends()) {
    choose_rows(step, staged);
  } else {
    if (fetches.layer != layer_) begin(step);
    std::mutex store;
    parallel_for(step.threads, units, [&](int u, int worker) {
      const auto fetch = uz(u / units_per_fetch());
      // The store takes one call at a time: waiting for the disk, which all threads take part in, comes before it.
      if (units_per_fetch() == 1 && fetches.tickets[fetch]) fetches.tickets[fetch]->wait_for_reads();
      {
        const std::lock_guard lock(store);
        if (fetches.tickets[fetch]) {
          fetches.status[fetch] = step.store->wait(*std::exchange(fetches.tickets[fetch], std::nullopt));
        }
        if (!fetches.status[fetch].ok()) return;
      }
      staged[uz(u)] = stage(step, u, step.scratch->workers[uz(worker)]);
    });
  }
  fetches.layer = OffloadFetches::kNone;
  for (Status& status : fetches.status) KV_TRY(std::move(status));
  for (int u = 0; u < units; ++u) KV_TRY(std::move(staged[uz(u)]).within(fmt::format("selection {}", u)));
  refresh_views(kept);
  return {};
}

std::size_t OffloadLayer::queries_asking() const {
  const bool linear = options_->index.kind == IndexKind::kMean || options_->index.kind == IndexKind::kResidual;
  const bool mean = options_->aggregate == Aggregate::kMeanQuery && linear;
  return mean || options_->share != Share::kGroup ? 1 : uz(shape_.group());
}

MatView<const float> OffloadLayer::asking(const Step& step, int unit, OffloadScratch::Worker& worker) const {
  if (options_->share != Share::kGroup) return step.queries.row_range(uz(unit), uz(unit) + 1);
  const MatView<const float> q = step.queries.row_range(uz(unit * shape_.group()), uz((unit + 1) * shape_.group()));
  if (queries_asking() == q.rows) return q;
  // The mean of the logits is the logit of the mean query: one scan instead of one per head. Boxes are not linear.
  worker.queries.assign(q.cols, 0.0F);
  for (std::size_t h = 0; h < q.rows; ++h)
    for (std::size_t i = 0; i < q.cols; ++i) worker.queries[i] += q.row(h)[i] / static_cast<float>(q.rows);
  return {worker.queries.data(), 1, q.cols};
}

bool OffloadLayer::scores_at_once() const {
  const std::size_t queries = queries_asking();
  return !sealed_->indexes_query_heads() && (options_->aggregate == Aggregate::kMaxLogit || queries == 1) &&
         sealed_->index(0).finds_largest(queries);
}

void OffloadLayer::make_room(OffloadScratch::Worker* scores) const {
  const auto landmarks = uz(candidates());
  scores->scores.resize(landmarks);
  if (!scores_at_once()) scores->logits.resize(queries_asking() * landmarks);
}

// A part of a unit's landmarks: their scores, or the logits that these need first. Generated rows stand behind those of the
// prompt, and go with its last part.
void OffloadLayer::score(const Step& step, int unit, Part part, OffloadScratch::Worker& worker,
                         OffloadScratch::Worker& into) const {
  const MatView<const float> q = asking(step, unit, worker);
  const float scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
  const auto landmarks = uz(candidates());
  if (sealed_->indexes_query_heads()) {
    const int head = options_->share == Share::kGroup ? unit * shape_.group() : unit;
    for (std::size_t h = 0; h < q.rows; ++h)
      sealed_->projected(head + static_cast<int>(h)).score(q.row(h), scale, {into.logits.data() + h * landmarks, landmarks});
    return;
  }
  const auto score_rows = [&](const LandmarkIndex& index, std::size_t first, std::size_t count, std::size_t place) {
    if (scores_at_once()) {
      index.score_largest(q, scale, {into.scores.data() + place, count}, &worker.lut, first);
    } else {
      index.score(q, scale, {into.logits.data() + place, q.rows, count, landmarks}, &worker.lut, first);
    }
  };
  const auto head = uz(unit / units_per_head());
  const auto of_prompt = uz(sealed_->candidates());
  const std::size_t step_rows = of_prompt / uz(part.count) / LandmarkIndex::kPart * LandmarkIndex::kPart;
  const std::size_t first = uz(part.index) * step_rows;
  const bool is_last = part.index + 1 == part.count;
  score_rows(sealed_->index(static_cast<int>(head)), first, is_last ? of_prompt - first : step_rows, first);
  if (is_last && generated_ != nullptr) score_rows((*generated_)[head], 0, landmarks - of_prompt, of_prompt);
}

void OffloadLayer::choose(int unit_index, OffloadScratch::Worker& worker, OffloadScratch::Worker& from) {
  if (!scores_at_once()) {
    aggregate_scores(options_->aggregate, {from.logits.data(), queries_asking(), from.scores.size()}, from.scores);
  }
  worker.top.select(from.scores, sealed_->segments().selected, &worker.chunks);

  Unit& unit = units_[uz(unit_index)];
  const int head = unit_index / units_per_head();
  const int chunk = options_->index.chunk;
  unit.chosen.clear();
  for (const std::int32_t candidate : worker.chunks) {
    const int first_token = first_position(head, candidate);
    append_range(first_token, first_token + chunk, &unit.chosen);
  }
}

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
    KV_ASSIGN(const bool lent, step.store->lend(layer_, index, rows, at.data()));
    if (lent) return {};
  }
  std::vector<std::byte>& bytes = step.fetches->bytes[uz(index)];
  bytes.resize(rows.size() * step.store->row_bytes(layer_));
  for (std::size_t i = 0; i < rows.size(); ++i) at[i] = bytes.data() + i * step.store->row_bytes(layer_);
  const HeadFetch fetch{.kv_head = index, .rows = rows, .out = bytes.data()};
  KV_ASSIGN(FetchTicket begun, step.store->begin_fetch(layer_, {&fetch, 1}));
  ticket->emplace(std::move(begun));
  return {};
}

void OffloadLayer::read_key(const Step& step, int head, std::int32_t position, const std::byte* row, float* out) const {
  sealed_->decode_key(head, position, row, out);
  if (options_->rope == KeyRope::kPre) step.rope->rotate(out, position);
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
  Unit& unit = units_[uz(unit_index)];
  if (unit.missing.empty()) return {};
  const int head = unit_index / units_per_head();
  const std::size_t row_bytes = step.store->row_bytes(layer_);
  const std::vector<std::int32_t>& rows = step.fetches->rows[uz(unit_index / units_per_fetch())];
  const std::vector<const std::byte*>& fetched = step.fetches->at[uz(unit_index / units_per_fetch())];
  const int tile_rows = staged_key_->tile_rows;
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
    put_f16_rows(*staged_key_, key_tile, worker.keys);
    put_f16_rows(*staged_value_, value_tile, worker.values);
    for (; done < end; ++done) unit.slots[uz(unit.free[done])] = unit.missing[done];
  }
  return {};
}

// Kept rows first, then the staged ones: attention does not mind the order, and the kept rows' tiles stay at their borders.
void OffloadLayer::refresh_views(std::span<const HeadView> kept) {
  if (!selects()) return;
  views_.resize(units_.size());
  for (std::size_t u = 0; u < units_.size(); ++u) {
    Unit& unit = units_[u];
    const HeadView& near = kept[u / uz(units_per_head())];
    unit.key_pieces.assign(near.keys.begin(), near.keys.end());
    unit.value_pieces.assign(near.values.begin(), near.values.end());
    const bool staged = !unit.slots.empty() && unit.slots.front() >= 0;
    const int count = staged ? selected_rows() : 0;
    for (int slot = 0; slot < count;) {
      const int row = near.rows + slot;
      const int at = slot % staged_key_->tile_rows;
      const int length = std::min({staged_key_->tile_rows - at, count - slot, kBlockRows - row % kBlockRows});
      unit.key_pieces.push_back({staged_key_, unit.keys.tile_of(slot), row, at, at + length});
      unit.value_pieces.push_back({staged_value_, unit.values.tile_of(slot), row, at, at + length});
      slot += length;
    }
    views_[u] = {unit.key_pieces, unit.value_pieces, near.rows + count};
  }
}

std::vector<std::int32_t> OffloadLayer::staged_positions(int unit) const {
  std::vector<std::int32_t> positions = units_[uz(unit)].slots;
  std::sort(positions.begin(), positions.end());
  return positions;
}

Status OffloadLayer::read_rows(const Step& step, int kv_head, std::span<const std::int32_t> positions, MatView<float> keys,
                               MatView<float> values) const {
  const std::size_t row_bytes = step.store->row_bytes(layer_);
  std::vector<std::byte> rows(positions.size() * row_bytes);
  const int stored_head = options_->groups == RowGroup::kJoint ? 0 : kv_head;
  const HeadFetch fetch{.kv_head = stored_head, .rows = positions, .out = rows.data()};
  KV_TRY(step.store->fetch(layer_, {&fetch, 1}));
  for (std::size_t i = 0; i < positions.size(); ++i) {
    read_key(step, kv_head, positions[i], rows.data() + i * row_bytes, keys.row(i));
    sealed_->decode_value(kv_head, rows.data() + i * row_bytes, values.row(i));
  }
  return {};
}

// ---- counts

ByteAccount OffloadLayer::bytes() const {
  if (!selects()) return {};
  ByteAccount sum = sealed_->bytes();
  if (generated_ != nullptr)
    for (const LandmarkIndex& index : *generated_) sum += index.bytes();
  for (const Unit& unit : units_) {
    sum += ByteAccount{staged_key_->live_bytes(selected_rows()), unit.keys.allocated_bytes()};
    sum += ByteAccount{staged_value_->live_bytes(selected_rows()), unit.values.allocated_bytes()};
  }
  return sum;
}

void OffloadLayer::list_state(const std::string& prefix, std::vector<StateBuffer>* out) const {
  if (!selects()) return;
  sealed_->list_state(prefix, out);
  for (std::size_t h = 0; generated_ != nullptr && h < generated_->size(); ++h) {
    const LandmarkIndex& index = (*generated_)[h];
    out->push_back(
        {fmt::format("{} head {} index of generated rows", prefix, h), 1, Tier::kRam, index.bytes(), index.buffer().data()});
  }
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const auto tiles = [&](const TileRun& run, const TileFormat& format, const char* side) {
      run.for_each_tile([&](int index, const Buffer& tile) {
        const int live = std::min(format.tile_rows, selected_rows() - index * format.tile_rows);
        out->push_back({fmt::format("{} selection {} staged {} tile {}", prefix, u, side, index),
                        1,
                        Tier::kRam,
                        {format.live_bytes(live), tile.size()},
                        tile.data()});
      });
    };
    tiles(units_[u].keys, *staged_key_, "key");
    tiles(units_[u].values, *staged_value_, "value");
  }
}

}  // namespace kvartet
