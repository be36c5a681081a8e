#include "cache/offload_layer.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "core/check.h"
#include "core/parallel_for.h"
#include "core/uz.h"
#include "quantize/float_format.h"
#include "quantize/row_check.h"

namespace kvartet {
namespace {

constexpr float kF16Overflow = 65520.0F;

TileSize size_of(const TileFormat& format) { return {format.tile_rows, format.tile_bytes}; }

std::size_t tiles_for(int rows, const TileFormat& format) { return uz((rows + format.tile_rows - 1) / format.tile_rows); }

}  // namespace

OffloadLayer::OffloadLayer(std::shared_ptr<const SelectOptions> options, int layer, const LayerShape& shape,
                           const TileFormat* shown_key, const TileFormat* shown_value)
    : options_(std::move(options)),
      layer_(layer),
      shape_(shape),
      in_place_(in_place(*options_)),
      lends_(lends(*options_)),
      shown_key_(shown_key),
      shown_value_(shown_value) {}

// Not where all heads' numbers of a token are coded together, or exist as factors only: there decoding costs more than a place in
// a tile that the next steps use again.
bool OffloadLayer::in_place(const SelectOptions& options) {
  return options.place == Place::kFar && options.groups == RowGroup::kHead && !options.low_rank_keys &&
         can_read_in_place(options.keys) && can_read_in_place(options.values);
}

bool OffloadLayer::lends(const SelectOptions& options) {
  return in_place(options) && options.tier != Tier::kDisk && options.cache_share == 0;
}

Result<TileFormat> OffloadLayer::shown_format(const SelectOptions& options, const LayerShape& shape, Side side) {
  if (!in_place(options)) return make_tile_format({"f16"}, side, shape.head_dim);
  KV_ASSIGN(const RowCodec keys, RowCodec::create(options.keys, shape.head_dim));
  RowSide written{.format = options.keys,
                  .head_dim = shape.head_dim,
                  .row_bytes = SealedPrompt::row_bytes(options, shape),
                  .unrotated = options.rope == KeyRope::kPre};
  if (side == Side::kValue) {
    written.format = options.values;
    written.at = keys.row_bytes();
    written.unrotated = false;
  }
  return make_places_format(written, side);
}

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
  const TileFormat key = shown_format(options, shape, Side::kKey).value();
  const std::size_t tiles = uz(units) * tiles_for(slots, key);
  if (!in_place(options)) {
    account.live += uz(units) * 2 * key.live_bytes(slots);
    account.allocated += 2 * tiles * key.tile_bytes;
    return account;
  }
  const std::size_t row = lends(options) ? 0 : SealedPrompt::row_bytes(options, shape);
  account.live += uz(units) * uz(slots) * (kPlaceBytes + row);
  account.allocated += tiles * (key.tile_bytes + uz(key.tile_rows) * row);
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
    const TileSize rows{kBlockRows, uz(kBlockRows) * SealedPrompt::row_bytes(*options_, shape_)};
    Unit unit{.keys = TileRun(size_of(*shown_key_)),
              .values = TileRun(in_place_ ? rows : size_of(*shown_value_)),
              .slots = {},
              .chosen = {},
              .missing = {},
              .free = {},
              .key_pieces = {},
              .value_pieces = {}};
    unit.slots.assign(uz(slots), -1);
    KV_TRY(unit.keys.own(fast, 0, slots));
    if (!lends_) KV_TRY(unit.values.own(fast, 0, slots));
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
  // Rows may have moved: until the next step chooses, attention would see the near ones only.
  for (Unit& unit : units_) {
    unit.placed = false;
    unit.rope.reset();
  }
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

void OffloadFetches::reset(int of_layer, std::size_t count) {
  tickets.clear();  // of a step that was given up: waits
  rows.resize(std::max(rows.size(), count));
  bytes.resize(rows.size());
  at.resize(rows.size());
  tickets.resize(count);
  status.assign(count, {});
  layer = of_layer;
}

void OffloadLayer::begin(const Step& step) { choose_rows(step, {}); }

namespace {

// Units in items of work: each of the first `whole` is one, and those that could not be dealt out evenly come last, in `parts`
// parts each. What several workers score is the unit's and not a worker's.
struct Deal {
  int whole = 0;
  int parts = 1;
  int items(int units) const { return whole + (units - whole) * parts; }
  int unit(int item) const { return item < whole ? item : whole + (item - whole) / parts; }
  int part(int item) const { return item < whole ? 0 : (item - whole) % parts; }
  int parts_of(int unit) const { return unit < whole ? 1 : parts; }
};

}  // namespace

void OffloadLayer::choose_rows(const Step& step, std::span<Status> staged) {
  OffloadScratch& scratch = *step.scratch;
  OffloadFetches& fetches = *step.fetches;
  fetches.reset(layer_, uz(this->fetches()));
  if (scratch.workers.size() < uz(step.threads)) scratch.workers.resize(uz(step.threads));
  const int units = static_cast<int>(units_.size());
  const Deal deal{.whole = sealed_->indexes_query_heads() ? units : units / step.threads * step.threads, .parts = step.threads};
  const int shared = units - deal.whole;
  if (scratch.shared.size() < uz(shared)) scratch.shared.resize(uz(shared));
  for (int s = 0; s < shared; ++s) make_room(&scratch.shared[uz(s)]);
  std::vector<std::atomic<int>> scored(uz(units));
  // A fetch's rows are on their way while units of others still choose; the store takes one call at a time.
  std::mutex store;
  std::vector<int> choosing(uz(this->fetches()), units_per_fetch());
  parallel_for(step.threads, deal.items(units), [&](int i, int w) {
    const int u = deal.unit(i);
    const Part part{deal.part(i), deal.parts_of(u)};
    OffloadScratch::Worker& worker = scratch.workers[uz(w)];
    OffloadScratch::Worker& scores = u < deal.whole ? worker : scratch.shared[uz(u - deal.whole)];
    if (u < deal.whole) make_room(&scores);
    score(step, u, part, worker, scores);
    if (scored[uz(u)].fetch_add(1) + 1 != part.count) return;
    choose(u, worker, scores);
    if (lends_) {
      Status placed = place_lent(step, u, worker);
      const std::lock_guard lock(store);
      Status& status = fetches.status[uz(u / units_per_fetch())];
      if (status.ok()) status = std::move(placed);
      return;
    }
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
  if (lends_) {
    if (fetches.layer != layer_) begin(step);
  } else if (!in_place_ && fetches.layer != layer_ && units_per_fetch() == 1 && options_->tier == Tier::kRam &&
             step.store->lends()) {
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

void OffloadLayer::read_key(const Step& step, int head, std::int32_t position, const std::byte* row, float* out) const {
  sealed_->decode_key(head, position, row, out);
  if (options_->rope != KeyRope::kPre) return;
  step.rope->rotate(out, position);
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
    const bool staged = in_place_ ? unit.placed : !unit.slots.empty() && unit.slots.front() >= 0;
    const int count = staged ? selected_rows() : 0;
    for (int slot = 0; slot < count;) {
      const int row = near.rows + slot;
      const int at = slot % shown_key_->tile_rows;
      const int length = std::min({shown_key_->tile_rows - at, count - slot, kBlockRows - row % kBlockRows});
      unit.key_pieces.push_back({shown_key_, unit.keys.tile_of(slot), row, at, at + length});
      unit.value_pieces.push_back({shown_value_, (in_place_ ? unit.keys : unit.values).tile_of(slot), row, at, at + length});
      slot += length;
    }
    views_[u] = {unit.key_pieces, unit.value_pieces, near.rows + count};
  }
}

std::vector<std::int32_t> OffloadLayer::shown_positions(int unit) const {
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
  const std::size_t rows = uz(selected_rows());
  const std::size_t row = lends_ ? 0 : SealedPrompt::row_bytes(*options_, shape_);
  for (const Unit& unit : units_) {
    const std::size_t live = in_place_ ? rows * (kPlaceBytes + row) : 2 * shown_key_->live_bytes(selected_rows());
    sum += ByteAccount{live, unit.keys.allocated_bytes() + unit.values.allocated_bytes()};
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
    const auto tiles = [&](const TileRun& run, std::size_t row_bytes, const char* what) {
      run.for_each_tile([&](int index, const Buffer& tile) {
        const int live = std::min(run.size().rows, selected_rows() - index * run.size().rows);
        out->push_back({fmt::format("{} selection {} {} tile {}", prefix, u, what, index),
                        1,
                        Tier::kRam,
                        {uz(live) * row_bytes, tile.size()},
                        tile.data()});
      });
    };
    const Unit& unit = units_[u];
    tiles(unit.keys, in_place_ ? kPlaceBytes : shown_key_->live_bytes(1), in_place_ ? "places" : "staged key");
    tiles(unit.values, in_place_ ? SealedPrompt::row_bytes(*options_, shape_) : shown_value_->live_bytes(1),
          in_place_ ? "row" : "staged value");
  }
}

}  // namespace kvartet
