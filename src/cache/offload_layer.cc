#include "cache/offload_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "core/bfloat16.h"
#include "core/check.h"
#include "core/parallel_for.h"
#include "offload/svd_low_rank.h"
#include "quantize/row_check.h"

namespace kvartet {
namespace {

constexpr float kF16Overflow = 65520.0F;

std::size_t uz(int n) { return static_cast<std::size_t>(n); }

RowCodec codec_of(RowFormat format, int dim) { return RowCodec::create(format, dim).value(); }

float largest_of(HeadRows<const float> rows) {
  float largest = 0;
  for (std::size_t h = 0; h < rows.heads; ++h)
    for (std::size_t t = 0; t < rows.tokens; ++t)
      for (std::size_t i = 0; i < rows.head_dim; ++i) largest = std::max(largest, std::abs(rows.row(t, h)[i]));
  return largest;
}

// The least cosine of a chunk's keys to their mean (3.3, step 5).
double chunk_quality(MatView<const float> keys, const float* mean) {
  double mean_square = 0;
  for (std::size_t i = 0; i < keys.cols; ++i) mean_square += static_cast<double>(mean[i]) * mean[i];
  double least = 1;
  for (std::size_t t = 0; t < keys.rows; ++t) {
    double dot = 0;
    double square = 0;
    for (std::size_t i = 0; i < keys.cols; ++i) {
      dot += static_cast<double>(keys.row(t)[i]) * mean[i];
      square += static_cast<double>(keys.row(t)[i]) * keys.row(t)[i];
    }
    const double norm = std::sqrt(square * mean_square);
    least = std::min(least, norm > 0 ? dot / norm : 0.0);
  }
  return least;
}

// Chunks of one head that their mean represents worst, ascending.
std::vector<std::int32_t> outlier_chunks(MatView<const float> keys, const Segments& s, int chunk) {
  const std::vector<float> means = chunk_means(keys.row_range(0, uz(s.candidates * chunk)), chunk);
  std::vector<double> quality;
  for (int i = 0; i < s.candidates; ++i) {
    quality.push_back(chunk_quality(keys.row_range(uz(i * chunk), uz((i + 1) * chunk)), means.data() + uz(i) * keys.cols));
  }
  std::vector<std::int32_t> order(uz(s.candidates));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return quality[uz(a)] < quality[uz(b)]; });
  order.resize(uz(s.outlier_chunks));
  std::sort(order.begin(), order.end());
  return order;
}

void append_range(int begin, int end, std::vector<std::int32_t>* out) {
  for (int i = begin; i < end; ++i) out->push_back(i);
}

std::int32_t id_at(const Buffer& ids, int index) {
  std::int32_t id = 0;
  std::memcpy(&id, ids.data() + uz(index) * sizeof(id), sizeof(id));
  return id;
}

float bf16_at(const Buffer& buffer, std::size_t index) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, buffer.data() + 2 * index, sizeof(bits));
  return float_from_bf16(bits);
}

Result<Buffer> as_bf16(Arena& arena, std::span<const float> numbers) {
  KV_ASSIGN(Buffer buffer, arena.allocate(2 * numbers.size()));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::uint16_t bits = bf16_from_float(numbers[i]);
    std::memcpy(buffer.data() + 2 * i, &bits, sizeof(bits));
  }
  return buffer;
}

TileSize size_of(const TileFormat& format) { return {format.tile_rows, format.tile_bytes}; }

std::size_t tiles_for(int rows, const TileFormat& format) { return uz((rows + format.tile_rows - 1) / format.tile_rows); }

}  // namespace

OffloadLayer::OffloadLayer(std::shared_ptr<const SelectOptions> options, int layer, const LayerShape& shape,
                           const TileFormat* staged_key, const TileFormat* staged_value)
    : options_(std::move(options)), layer_(layer), shape_(shape), staged_key_(staged_key), staged_value_(staged_value) {}

Status OffloadLayer::check(const SelectOptions& options, const LayerShape& shape) {
  KV_TRY(LandmarkIndex::check(options.index, shape.head_dim));
  if (!options.low_rank_keys) KV_TRY(RowCodec::create(options.keys, shape.head_dim).status());
  KV_TRY(RowCodec::create(options.values, shape.head_dim).status());
  const int width = shape.kv_heads * shape.head_dim;
  if (options.low_rank_keys && options.rank > width) {
    return usage_error(fmt::format("rank={} is more than the {} channels of all KV heads of this model; the nearest is rank={}",
                                   options.rank, width, width));
  }
  return {};
}

LayerRowShape OffloadLayer::row_shape(const SelectOptions& options, const LayerShape& shape) {
  const std::size_t key = options.low_rank_keys ? 0 : codec_of(options.keys, shape.head_dim).row_bytes();
  return {shape.kv_heads, key + codec_of(options.values, shape.head_dim).row_bytes()};
}

Segments OffloadLayer::segments(const SelectOptions& options, int layer, int prompt) {
  return layer < options.dense_layers ? Segments{} : segment_prompt(options.request(prompt));
}

ByteAccount OffloadLayer::predict(const SelectOptions& options, int layer, const LayerShape& shape, int prompt) {
  const Segments s = segments(options, layer, prompt);
  ByteAccount account;
  if (s.dense) return account;
  const int landmarks = s.candidates - s.outlier_chunks;
  const ByteAccount index = LandmarkIndex::bytes_of(options.index, shape.head_dim, landmarks);
  std::size_t fixed = 0;
  if (s.outlier_chunks > 0) fixed += uz(shape.kv_heads) * uz(landmarks) * sizeof(std::int32_t);
  if (options.low_rank_keys) {
    const int width = shape.kv_heads * shape.head_dim;
    fixed += 2 * uz(std::min({options.rank, width, prompt})) * (uz(prompt) + uz(width));
  }
  const int units = options.share == Share::kGroup ? shape.kv_heads : shape.heads;
  const int slots = s.selected * options.index.chunk;
  const TileFormat key = make_tile_format({"f16"}, Side::kKey, shape.head_dim).value();
  account.live = uz(shape.kv_heads) * index.live + fixed + uz(units) * 2 * key.live_bytes(slots);
  account.allocated = uz(shape.kv_heads) * index.allocated + fixed + uz(units) * 2 * tiles_for(slots, key) * key.tile_bytes;
  return account;
}

// ---- the end of the prompt

Status OffloadLayer::seal(Arena& fast, RowStore* store, const Prompt& prompt, int threads, Arrival* kept) {
  const int tokens = static_cast<int>(prompt.key.tokens);
  KV_CHECK(sealed_ == nullptr && tokens > 0);
  for (std::size_t h = 0; h < prompt.key.heads; ++h) {
    KV_TRY(check_finite(prompt.key.head(h), "f16", kF16Overflow).within(fmt::format("KV head {}, keys", h)));
    KV_TRY(check_finite(prompt.value.head(h), "f16", kF16Overflow).within(fmt::format("KV head {}, values", h)));
  }
  const Segments s = segments(*options_, layer_, tokens);
  *kept = Arrival{};
  if (s.dense) return {};
  const int dim = shape_.head_dim;
  Sealed sealed{.segments = s,
                .prompt = tokens,
                .key_codec = codec_of(options_->low_rank_keys ? RowFormat::kBf16 : options_->keys, dim),
                .value_codec = codec_of(options_->values, dim),
                .index = {},
                .chunk_ids = {},
                .left = {},
                .right = {},
                .rank = 0};
  const HeadRows<const float> stored_keys = options_->rope == KeyRope::kPre ? prompt.key_pre : prompt.key;
  KV_CHECK(stored_keys.data != nullptr);
  sealed.key_codec.fit(largest_of(stored_keys));
  sealed.value_codec.fit(largest_of(prompt.value));
  KV_TRY(choose_kept(prompt, sealed, fast, &sealed, kept));
  if (options_->low_rank_keys) KV_TRY(factorize_keys(fast, prompt, &sealed));

  std::vector<Result<LandmarkIndex>> indexes;
  for (int h = 0; h < kv_heads(); ++h) indexes.emplace_back(internal_error("not built"));
  std::vector<std::vector<std::byte>> rows(uz(kv_heads()));
  std::vector<Status> built(uz(kv_heads()));
  parallel_for(threads, kv_heads(), [&](int h, int) {
    built[uz(h)] = build_head(fast, prompt, sealed, h, &indexes[uz(h)]);
    rows[uz(h)] = encode_head(prompt, sealed, h);
  });
  for (int h = 0; h < kv_heads(); ++h) {
    KV_TRY(std::move(built[uz(h)]).within(fmt::format("KV head {}", h)));
    sealed.index.push_back(std::move(indexes[uz(h)]).value());
  }
  std::vector<Unit> units;
  const int slots = s.selected * options_->index.chunk;
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
  std::vector<std::span<const std::byte>> spans(rows.begin(), rows.end());
  KV_TRY(store->append(layer_, spans));
  units_ = std::move(units);
  sealed_ = std::make_shared<const Sealed>(std::move(sealed));
  return {};
}

// The always-kept rows of each head, and which chunk each candidate is.
Status OffloadLayer::choose_kept(const Prompt& prompt, const Sealed& sealed, Arena& fast, Sealed* out, Arrival* kept) const {
  const Segments& s = sealed.segments;
  const int chunk = options_->index.chunk;
  kept->all = false;
  for (int h = 0; h < kv_heads(); ++h) {
    std::vector<std::int32_t> rows;
    append_range(0, s.front, &rows);
    if (s.outlier_chunks > 0) {
      const std::vector<std::int32_t> outliers = outlier_chunks(prompt.key.head(uz(h)), s, chunk);
      KV_ASSIGN(Buffer ids, fast.allocate(uz(s.candidates - s.outlier_chunks) * sizeof(std::int32_t)));
      std::size_t at = 0;
      std::size_t next = 0;
      for (std::int32_t id = 0; id < s.candidates; ++id) {
        if (next < outliers.size() && outliers[next] == id) {
          append_range(id * chunk, (id + 1) * chunk, &rows);
          ++next;
          continue;
        }
        std::memcpy(ids.data() + at, &id, sizeof(id));
        at += sizeof(id);
      }
      out->chunk_ids.push_back(std::move(ids));
    }
    append_range(sealed.prompt - s.local, sealed.prompt, &rows);
    kept->pick.push_back(std::move(rows));
  }
  return {};
}

Status OffloadLayer::build_head(Arena& fast, const Prompt& prompt, const Sealed& sealed, int head,
                                Result<LandmarkIndex>* index) const {
  const Segments& s = sealed.segments;
  const int chunk = options_->index.chunk;
  const MatView<const float> all = prompt.key.head(uz(head));
  if (s.outlier_chunks == 0) {
    *index = LandmarkIndex::build(fast, options_->index, all.row_range(uz(s.front), uz(s.front + s.candidates * chunk)));
    return index->status();
  }
  const int landmarks = s.candidates - s.outlier_chunks;
  std::vector<float> keys(uz(landmarks * chunk) * all.cols);
  for (int i = 0; i < landmarks; ++i) {
    const int first = id_at(sealed.chunk_ids[uz(head)], i) * chunk;
    for (int t = 0; t < chunk; ++t) std::copy_n(all.row(uz(first + t)), all.cols, keys.data() + uz(i * chunk + t) * all.cols);
  }
  *index = LandmarkIndex::build(fast, options_->index, {keys.data(), uz(landmarks * chunk), all.cols});
  return index->status();
}

Status OffloadLayer::factorize_keys(Arena& fast, const Prompt& prompt, Sealed* sealed) const {
  // All heads' keys of a token lie side by side: one joint factorization.
  const std::size_t width = uz(kv_heads() * shape_.head_dim);
  const MatView<const float> joint(prompt.key_pre.data, prompt.key_pre.tokens, width, prompt.key_pre.token_stride);
  sealed->rank = std::min({options_->rank, static_cast<int>(width), sealed->prompt});
  const LowRank low = factorize(joint, sealed->rank);
  KV_ASSIGN(sealed->left, as_bf16(fast, low.a));
  KV_ASSIGN(sealed->right, as_bf16(fast, low.b));
  return {};
}

std::vector<std::byte> OffloadLayer::encode_head(const Prompt& prompt, const Sealed& sealed, int head) const {
  const std::size_t row_bytes = row_shape(*options_, shape_).row_bytes;
  const std::size_t key_bytes = options_->low_rank_keys ? 0 : sealed.key_codec.row_bytes();
  const HeadRows<const float> keys = options_->rope == KeyRope::kPre ? prompt.key_pre : prompt.key;
  std::vector<std::byte> rows(uz(sealed.prompt) * row_bytes);
  for (std::size_t t = 0; t < uz(sealed.prompt); ++t) {
    std::byte* const row = rows.data() + t * row_bytes;
    if (!options_->low_rank_keys) sealed.key_codec.encode(keys.row(t, uz(head)), row);
    sealed.value_codec.encode(prompt.value.row(t, uz(head)), row + key_bytes);
  }
  return rows;
}

// ---- a decode step

Status OffloadLayer::select(const Step& step, std::span<const HeadView> kept) {
  if (!selects()) return {};
  OffloadScratch& scratch = *step.scratch;
  if (scratch.workers.size() < uz(step.threads)) scratch.workers.resize(uz(step.threads));
  scratch.fetch_rows.resize(std::max(scratch.fetch_rows.size(), uz(kv_heads())));
  scratch.fetched.resize(scratch.fetch_rows.size());
  const int units = static_cast<int>(units_.size());
  // A head's rows are on their way while other heads still choose; the store takes one call at a time.
  std::mutex store;
  std::vector<int> choosing(uz(kv_heads()), units_per_head());
  std::vector<std::optional<FetchTicket>> tickets(uz(kv_heads()));
  std::vector<Status> fetched(uz(kv_heads()));
  parallel_for(step.threads, units, [&](int u, int worker) {
    choose(step, u, scratch.workers[uz(worker)]);
    compare(units_[uz(u)], scratch.workers[uz(worker)]);
    const int head = u / units_per_head();
    const std::lock_guard lock(store);
    if (--choosing[uz(head)] == 0) fetched[uz(head)] = begin_fetch(step, head, &tickets[uz(head)]);
  });
  std::vector<Status> staged(uz(units));
  parallel_for(step.threads, units, [&](int u, int worker) {
    const int head = u / units_per_head();
    {
      const std::lock_guard lock(store);
      if (tickets[uz(head)]) fetched[uz(head)] = step.store->wait(*std::exchange(tickets[uz(head)], std::nullopt));
      if (!fetched[uz(head)].ok()) return;
    }
    staged[uz(u)] = stage(step, u, scratch.workers[uz(worker)]);
  });
  for (Status& status : fetched) KV_TRY(std::move(status));
  for (int u = 0; u < units; ++u) KV_TRY(std::move(staged[uz(u)]).within(fmt::format("selection {}", u)));
  refresh_views(kept);
  return {};
}

void OffloadLayer::choose(const Step& step, int unit_index, OffloadScratch::Worker& worker) {
  const int head = unit_index / units_per_head();
  const LandmarkIndex& index = sealed_->index[uz(head)];
  const auto landmarks = uz(index.landmarks());
  const std::size_t queries = options_->share == Share::kGroup ? uz(shape_.group()) : 1;
  const std::size_t first = options_->share == Share::kGroup ? uz(head * shape_.group()) : uz(unit_index);
  MatView<const float> q = step.queries.row_range(first, first + queries);
  // The mean of the logits is the logit of the mean query: one scan instead of one per head. Boxes are not linear.
  const bool linear = options_->index.kind == IndexKind::kMean || options_->index.kind == IndexKind::kResidual;
  if (options_->aggregate == Aggregate::kMeanQuery && linear && queries > 1) {
    worker.queries.assign(q.cols, 0.0F);
    for (std::size_t h = 0; h < queries; ++h)
      for (std::size_t i = 0; i < q.cols; ++i) worker.queries[i] += q.row(h)[i] / static_cast<float>(queries);
    q = {worker.queries.data(), 1, q.cols};
  }
  worker.logits.resize(q.rows * landmarks);
  worker.scores.resize(landmarks);
  const MatView<float> logits(worker.logits.data(), q.rows, landmarks);
  index.score(q, 1.0F / std::sqrt(static_cast<float>(shape_.head_dim)), logits, &worker.lut);
  aggregate_scores(options_->aggregate, logits, worker.scores);
  worker.top.select(worker.scores, sealed_->segments.selected, &worker.chunks);

  Unit& unit = units_[uz(unit_index)];
  const int chunk = options_->index.chunk;
  unit.chosen.clear();
  for (const std::int32_t candidate : worker.chunks) {
    const int first_token = sealed_->segments.outlier_chunks > 0 ? id_at(sealed_->chunk_ids[uz(head)], candidate) * chunk
                                                                 : sealed_->segments.front + candidate * chunk;
    append_range(first_token, first_token + chunk, &unit.chosen);
  }
}

// Rows that are staged already stay in their slots; the others go where rows leave.
void OffloadLayer::compare(Unit& unit, OffloadScratch::Worker& worker) {
  constexpr std::uint8_t kWanted = 1;
  constexpr std::uint8_t kHere = 2;
  worker.wanted.assign(uz(sealed_->prompt), 0);
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

Status OffloadLayer::begin_fetch(const Step& step, int head, std::optional<FetchTicket>* ticket) {
  OffloadScratch& scratch = *step.scratch;
  std::vector<std::int32_t>& rows = scratch.fetch_rows[uz(head)];
  rows.clear();
  for (int u = head * units_per_head(); u < (head + 1) * units_per_head(); ++u) {
    const Unit& unit = units_[uz(u)];
    rows.insert(rows.end(), unit.missing.begin(), unit.missing.end());
    rows_reused_ += unit.chosen.size() - unit.missing.size();
  }
  if (units_per_head() > 1) {
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  }
  if (rows.empty()) return {};
  scratch.fetched[uz(head)].resize(rows.size() * step.store->row_bytes(layer_));
  const HeadFetch fetch{.kv_head = head, .rows = rows, .out = scratch.fetched[uz(head)].data()};
  KV_ASSIGN(FetchTicket begun, step.store->begin_fetch(layer_, {&fetch, 1}));
  ticket->emplace(std::move(begun));
  return {};
}

void OffloadLayer::read_key(const Step& step, int head, std::int32_t position, const std::byte* row, float* out) const {
  const std::size_t dim = uz(shape_.head_dim);
  if (!options_->low_rank_keys) {
    sealed_->key_codec.decode(row, out);
  } else {
    const std::size_t width = uz(kv_heads()) * dim;
    const auto rank = uz(sealed_->rank);
    std::fill_n(out, dim, 0.0F);
    for (std::size_t i = 0; i < rank; ++i) {
      const float a = bf16_at(sealed_->left, uz(position) * rank + i);
      const std::size_t from = i * width + uz(head) * dim;
      for (std::size_t c = 0; c < dim; ++c) out[c] += a * bf16_at(sealed_->right, from + c);
    }
  }
  if (options_->rope == KeyRope::kPre) step.rope->rotate(out, position);
}

Status OffloadLayer::stage(const Step& step, int unit_index, OffloadScratch::Worker& worker) {
  Unit& unit = units_[uz(unit_index)];
  if (unit.missing.empty()) return {};
  const int head = unit_index / units_per_head();
  const std::size_t dim = uz(shape_.head_dim);
  const std::size_t row_bytes = step.store->row_bytes(layer_);
  const std::size_t key_bytes = options_->low_rank_keys ? 0 : sealed_->key_codec.row_bytes();
  const std::vector<std::int32_t>& rows = step.scratch->fetch_rows[uz(head)];
  worker.row.resize(dim);
  KV_TRY(unit.keys.own(*step.fast, 0, slot_count()));
  KV_TRY(unit.values.own(*step.fast, 0, slot_count()));
  std::size_t at = 0;  // in rows: both lists are ascending
  for (std::size_t i = 0; i < unit.missing.size(); ++i) {
    const std::int32_t position = unit.missing[i];
    const std::int32_t slot = unit.free[i];
    while (rows[at] != position) ++at;
    const std::byte* const row = step.scratch->fetched[uz(head)].data() + at * row_bytes;
    const MatView<const float> one(worker.row.data(), 1, dim);
    unit.slots[uz(slot)] = -1;
    read_key(step, head, position, row, worker.row.data());
    KV_TRY(staged_key_->kernels.encode(*staged_key_, unit.keys.tile_of(slot), slot % staged_key_->tile_rows, one));
    sealed_->value_codec.decode(row + key_bytes, worker.row.data());
    KV_TRY(staged_value_->kernels.encode(*staged_value_, unit.values.tile_of(slot), slot % staged_value_->tile_rows, one));
    unit.slots[uz(slot)] = position;
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
    const int count = staged ? slot_count() : 0;
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

std::vector<std::int32_t> OffloadLayer::candidate_positions(int kv_head) const {
  const Segments& s = sealed_->segments;
  const int chunk = options_->index.chunk;
  std::vector<std::int32_t> positions;
  for (int i = 0; i < s.candidates - s.outlier_chunks; ++i) {
    const int first = s.outlier_chunks > 0 ? id_at(sealed_->chunk_ids[uz(kv_head)], i) * chunk : s.front + i * chunk;
    append_range(first, first + chunk, &positions);
  }
  return positions;
}

std::vector<std::int32_t> OffloadLayer::kept_positions(int kv_head) const {
  const std::vector<std::int32_t> candidates = candidate_positions(kv_head);
  std::vector<std::int32_t> kept;
  for (int position = 0; position < sealed_->prompt; ++position) {
    if (!std::binary_search(candidates.begin(), candidates.end(), position)) kept.push_back(position);
  }
  return kept;
}

Status OffloadLayer::read_rows(const Step& step, int kv_head, std::span<const std::int32_t> positions, MatView<float> keys,
                               MatView<float> values) const {
  const std::size_t row_bytes = step.store->row_bytes(layer_);
  const std::size_t key_bytes = options_->low_rank_keys ? 0 : sealed_->key_codec.row_bytes();
  std::vector<std::byte> rows(positions.size() * row_bytes);
  const HeadFetch fetch{.kv_head = kv_head, .rows = positions, .out = rows.data()};
  KV_TRY(step.store->fetch(layer_, {&fetch, 1}));
  for (std::size_t i = 0; i < positions.size(); ++i) {
    read_key(step, kv_head, positions[i], rows.data() + i * row_bytes, keys.row(i));
    sealed_->value_codec.decode(rows.data() + i * row_bytes + key_bytes, values.row(i));
  }
  return {};
}

// ---- counts

ByteAccount OffloadLayer::bytes() const {
  ByteAccount sum;
  if (!selects()) return sum;
  const auto add = [&](std::size_t bytes) { sum += ByteAccount{bytes, bytes}; };
  for (const LandmarkIndex& index : sealed_->index) sum += index.bytes();
  for (const Buffer& ids : sealed_->chunk_ids) add(ids.size());
  add(sealed_->left.size());
  add(sealed_->right.size());
  for (const Unit& unit : units_) {
    sum += ByteAccount{staged_key_->live_bytes(slot_count()), unit.keys.allocated_bytes()};
    sum += ByteAccount{staged_value_->live_bytes(slot_count()), unit.values.allocated_bytes()};
  }
  return sum;
}

void OffloadLayer::list_state(const std::string& prefix, std::vector<StateBuffer>* out) const {
  if (!selects()) return;
  const auto list = [&](const std::string& name, const Buffer& buffer) {
    if (buffer.size() > 0) out->push_back({name, 1, Tier::kRam, {buffer.size(), buffer.size()}, buffer.data()});
  };
  for (int h = 0; h < kv_heads(); ++h) {
    const LandmarkIndex& index = sealed_->index[uz(h)];
    out->push_back({fmt::format("{} head {} index", prefix, h), 1, Tier::kRam, index.bytes(), index.buffer().data()});
    if (!sealed_->chunk_ids.empty()) list(fmt::format("{} head {} chunk ids", prefix, h), sealed_->chunk_ids[uz(h)]);
  }
  list(prefix + " low-rank left", sealed_->left);
  list(prefix + " low-rank right", sealed_->right);
  for (std::size_t u = 0; u < units_.size(); ++u) {
    const auto tiles = [&](const TileRun& run, const TileFormat& format, const char* side) {
      run.for_each_tile([&](int index, const Buffer& tile) {
        const int live = std::min(format.tile_rows, slot_count() - index * format.tile_rows);
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
