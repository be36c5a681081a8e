#include "cache/sequence_cache.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "cache/layer_cache.h"
#include "cache/offload_cache.h"
#include "cache/retention.h"
#include "core/check.h"

namespace kvartet {
namespace {

using FormatsList = std::vector<std::shared_ptr<const LayerFormats>>;

// One entry per layer; layers of equal shape and spec share theirs.
Result<FormatsList> formats_of_layers(const CacheSpec& spec, const ModelShape& shape, Arena* arena) {
  struct Made {
    FormatPlace place;
    bool kept;
    std::shared_ptr<const LayerFormats> formats;
  };
  std::vector<Made> made;
  FormatsList formats;
  for (int l = 0; l < shape.layer_count(); ++l) {
    const bool kept = !spec.keep.empty() && spec.for_layer(l) != spec;
    const LayerShape& layer = shape.layers[static_cast<std::size_t>(l)];
    const FormatPlace place = {layer.head_dim, layer.window};
    auto known = std::find_if(made.begin(), made.end(), [&](const Made& m) { return m.place == place && m.kept == kept; });
    if (known == made.end()) {
      KV_ASSIGN(std::shared_ptr<const LayerFormats> fresh, LayerFormats::create(spec.for_layer(l), place, arena));
      known = made.insert(made.end(), {place, kept, std::move(fresh)});
    }
    formats.push_back(known->formats);
  }
  return formats;
}

FormatsList distinct(FormatsList formats) {
  std::sort(formats.begin(), formats.end());
  formats.erase(std::unique(formats.begin(), formats.end()), formats.end());
  return formats;
}

ByteAccount table_bytes(const FormatsList& formats) {
  ByteAccount sum;
  for (const auto& layer : distinct(formats)) sum += {layer->table_bytes, layer->table_bytes};
  return sum;
}

}  // namespace

struct SequenceCache::Impl {
  std::shared_ptr<const CacheSpec> spec;
  std::shared_ptr<Arena> arena;
  CacheOptions options;
  FormatsList formats;  // one per layer
  std::vector<LayerCache> layers;
  std::optional<OffloadCache> offload;
  int next_position = 0;
  Status broken;  // the failure that left layers out of step; ok: none
  // The rows of the running call, one matrix per KV head.
  std::vector<MatView<const float>> keys;
  std::vector<MatView<const float>> values;

  LayerCache& layer(int index) {
    KV_CHECK(index >= 0 && index < std::ssize(layers));
    return layers[static_cast<std::size_t>(index)];
  }
  // Runs a change of one layer; its failure breaks the cache.
  template <typename Change>
  Status change(int index, const Change& apply) {
    LayerCache& changed = layer(index);
    if (!broken.ok()) return Status(broken.code(), "this cache stopped at an earlier failure: " + broken.message());
    Status status = apply(changed);
    if (!status.ok()) broken = status = std::move(status).within(fmt::format("cache {}, layer {}", spec->canonical, index));
    return status;
  }
  // The oldest generated rows, once there are as many near as the spec allows.
  Status move_far(int index, LayerCache& near) {
    const OffloadLayer::Leaving leaving = offload->leaving(index, near.rows(0));
    if (leaving.count == 0) return {};
    std::vector<float> key_rows;
    std::vector<float> value_rows;
    KV_TRY(near.own_from(*arena, leaving.first));
    near.read_rows(leaving.first, leaving.count, &key_rows, &value_rows);
    const auto heads = static_cast<std::size_t>(near.kv_heads());
    const auto tokens = static_cast<std::size_t>(leaving.count);
    const std::size_t width = key_rows.size() / tokens;
    KV_TRY(offload->take(index, {key_rows.data(), tokens, heads, width / heads, width},
                         {value_rows.data(), tokens, heads, width / heads, width}, options.threads));
    near.remove_rows(leaving.first, leaving.count);
    offload->refresh_views(index, near.views());
    return {};
  }
  LayerCache::NewTokens new_tokens(const LayerScores* scores) const { return {keys, values, scores}; }
};

SequenceCache::SequenceCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SequenceCache::SequenceCache(SequenceCache&&) noexcept = default;
SequenceCache& SequenceCache::operator=(SequenceCache&&) noexcept = default;
SequenceCache::~SequenceCache() = default;

Result<SequenceCache> SequenceCache::create(const CacheSpec& spec, const ModelShape& shape, std::shared_ptr<Arena> arena,
                                            const CacheOptions& options) {
  KV_TRY(check_spec(spec, shape));
  KV_ASSIGN(FormatsList formats, formats_of_layers(spec, shape, arena.get()));
  auto impl = std::make_unique<Impl>();
  impl->spec = std::make_shared<const CacheSpec>(spec);
  impl->arena = std::move(arena);
  impl->options = options;
  impl->layers.reserve(shape.layers.size());
  const auto windowed = std::make_shared<const CacheSpec>(windowed_layer_spec(spec));
  const auto rope = spec.rerotate ? std::make_shared<const RopeShape>(shape.rope) : nullptr;
  for (std::size_t l = 0; l < shape.layers.size(); ++l) {
    const bool has_window = shape.layers[l].window > 0;
    impl->layers.emplace_back(has_window ? windowed : impl->spec, shape.layers[l], formats[l],
                              LayerPlace{static_cast<int>(l), shape.layer_count()}, has_window ? nullptr : rope);
  }
  impl->formats = std::move(formats);
  if (spec.offload) {
    KV_ASSIGN(OffloadCache offload,
              OffloadCache::create(*spec.offload, shape, impl->arena, {options.slow, options.tier_directory, options.files}));
    impl->offload.emplace(std::move(offload));
  }
  return SequenceCache(std::move(impl));
}

SequenceCache SequenceCache::fork() const {
  auto forked = std::make_unique<Impl>(*impl_);
  for (int l = 0; forked->offload && l < std::ssize(forked->layers); ++l) {
    forked->offload->refresh_views(l, forked->layer(l).views());
  }
  return SequenceCache(std::move(forked));
}

const CacheSpec& SequenceCache::spec() const { return *impl_->spec; }

ScoreNeed SequenceCache::score_need() const {
  const CacheSpec& spec = *impl_->spec;
  ScoreNeed need;
  if (spec.observes_window() && impl_->next_position == 0) need.window = spec.window;
  if (spec.evict == Evict::kTova) need.window = 1;
  if (spec.evict == Evict::kCam && impl_->next_position == 0) {
    if (spec.base == CamBase::kTova) need.window = 1;
    if (spec.base == CamBase::kSnap) need.window = spec.window;
  }
  need.column_sums = spec.keeps_sums();
  if (impl_->offload && impl_->next_position == 0) need.queries = impl_->offload->observed_queries();
  return need;
}

bool SequenceCache::wants_pre_rope_keys() const {
  return impl_->offload && impl_->next_position == 0 && impl_->offload->wants_pre_rope_keys();
}
bool SequenceCache::is_endless() const { return impl_->spec->rerotate; }
bool SequenceCache::selects() const { return impl_->offload && impl_->offload->selects(); }
bool SequenceCache::wants_guessed_queries() const { return impl_->offload && impl_->offload->wants_guessed_queries(); }
bool SequenceCache::wants_weights() const { return impl_->spec->drops_after_steps(); }

Status SequenceCache::seal_prompt(int layer, const LayerRows& rows) {
  return impl_->change(layer, [&](LayerCache& changed) -> Status {
    KV_CHECK(rows.key.tokens == rows.value.tokens);
    KV_CHECK(rows.key.heads == static_cast<std::size_t>(changed.kv_heads()) && rows.value.heads == rows.key.heads);
    impl_->keys.clear();
    impl_->values.clear();
    for (std::size_t h = 0; h < rows.key.heads; ++h) {
      impl_->keys.push_back(rows.key.head(h));
      impl_->values.push_back(rows.value.head(h));
    }
    LayerCache::NewTokens fresh = impl_->new_tokens(rows.scores);
    Arrival kept;
    const bool offloads = impl_->offload && impl_->next_position == 0 && rows.key.tokens > 0;
    if (offloads) {
      KV_TRY(impl_->offload->seal(layer, {rows.key, rows.key_pre, rows.value, rows.queries}, impl_->options.threads, &kept));
      fresh.arrival = &kept;
    }
    KV_TRY(changed.seal(*impl_->arena, fresh, impl_->options.threads));
    return impl_->offload ? impl_->offload->rows_added(layer, impl_->keys, changed.views()) : Status();
  });
}

void SequenceCache::finish_prompt(int tokens) {
  impl_->next_position += tokens;
  for (const LayerCache& layer : impl_->layers) KV_CHECK(!impl_->broken.ok() || layer.seen() == impl_->next_position);
}

Status SequenceCache::append_row(int layer, MatView<const float> key, MatView<const float> value) {
  return impl_->change(layer, [&](LayerCache& changed) -> Status {
    KV_CHECK(key.rows == static_cast<std::size_t>(changed.kv_heads()) && value.rows == key.rows);
    impl_->keys.clear();
    impl_->values.clear();
    for (std::size_t h = 0; h < key.rows; ++h) {
      impl_->keys.push_back({key.row(h), 1, key.cols});
      impl_->values.push_back({value.row(h), 1, value.cols});
    }
    KV_TRY(changed.append(*impl_->arena, impl_->new_tokens(nullptr)));
    return impl_->offload ? impl_->offload->rows_added(layer, impl_->keys, changed.views()) : Status();
  });
}

void SequenceCache::expect_queries(int layer, MatView<const float> guessed) {
  if (wants_guessed_queries() && impl_->broken.ok()) impl_->offload->expect(layer, guessed, impl_->options.threads);
}

Status SequenceCache::before_attention(int layer, MatView<const float> queries, MatView<const float> guessed) {
  if (!impl_->offload) return {};
  return impl_->change(layer, [&](LayerCache& changed) {
    return impl_->offload->select(layer, {queries, guessed}, impl_->options.threads, changed.views());
  });
}

Status SequenceCache::after_attention(int layer, MatView<const float> weights) {
  return impl_->change(layer, [&](LayerCache& changed) -> Status {
    if (impl_->offload) KV_TRY(impl_->offload->attended(layer));
    KV_TRY(changed.settle(*impl_->arena, weights));
    return impl_->offload ? impl_->move_far(layer, changed) : Status();
  });
}

void SequenceCache::finish_step() { finish_prompt(1); }

std::span<const HeadView> SequenceCache::views(int layer) const {
  const std::span<const HeadView> kept = impl_->layer(layer).views();
  return impl_->offload ? impl_->offload->views(layer, kept) : kept;
}

int SequenceCache::next_position() const { return impl_->next_position; }

int SequenceCache::rows(int layer, int kv_head) const {
  return impl_->offload ? impl_->layer(layer).seen() : impl_->layer(layer).rows(kv_head);
}

std::vector<std::int32_t> SequenceCache::positions(int layer, int kv_head) const {
  if (!impl_->offload) return impl_->layer(layer).positions(kv_head);
  std::vector<std::int32_t> all(static_cast<std::size_t>(rows(layer, kv_head)));  // near or far, nothing is dropped
  std::iota(all.begin(), all.end(), 0);
  return all;
}

double SequenceCache::mean_rows() const {
  double rows = 0;
  double heads = 0;
  for (const LayerCache& layer : impl_->layers) {
    for (int h = 0; h < layer.kv_heads(); ++h) rows += impl_->offload ? layer.seen() : layer.rows(h);
    heads += layer.kv_heads();
  }
  return heads == 0 ? 0 : rows / heads;
}

bool SequenceCache::acted() const {
  if (selects()) return true;
  return std::any_of(impl_->layers.begin(), impl_->layers.end(), [](const LayerCache& layer) { return layer.acted(); });
}

RowSelection SequenceCache::selection(int layer, int view) const {
  if (!impl_->offload) return {};
  if (const PageLayer* const pages = impl_->offload->seen_pages(layer)) {
    RowSelection all{.kept = {}, .selected = pages->selected_positions(view), .candidates = {}, .far = false};
    all.candidates.resize(static_cast<std::size_t>(pages->rows()));
    std::iota(all.candidates.begin(), all.candidates.end(), 0);
    return all;
  }
  if (!impl_->offload->has_far_rows(layer)) return {};
  const OffloadLayer& far = impl_->offload->layer(layer);
  const int kv_head = view * impl_->layer(layer).kv_heads() / static_cast<int>(far.views().size());
  return {far.kept_positions(kv_head), far.shown_positions(view), far.candidate_positions(kv_head), true};
}

Status SequenceCache::read_far_rows(int layer, int kv_head, std::span<const std::int32_t> positions, MatView<float> keys,
                                    MatView<float> values) {
  KV_CHECK(impl_->offload && impl_->offload->has_far_rows(layer));
  return impl_->offload->read_rows(layer, kv_head, positions, keys, values);
}

std::string SequenceCache::slow_medium() const { return impl_->offload ? impl_->offload->slow_medium() : ""; }

RowTraffic SequenceCache::traffic() const { return impl_->offload ? impl_->offload->traffic() : RowTraffic{}; }

ByteAccount SequenceCache::bytes() const {
  ByteAccount sum = table_bytes(impl_->formats);
  if (impl_->offload) sum += impl_->offload->bytes();
  for (const LayerCache& layer : impl_->layers) sum += layer.bytes();
  return sum;
}

std::vector<StateBuffer> SequenceCache::state() const {
  std::vector<StateBuffer> buffers;
  std::vector<const Buffer*> tables;
  for (const auto& layer : impl_->formats) {  // in the order of layers, not of addresses
    for (const auto& table : layer->tables) {
      if (std::find(tables.begin(), tables.end(), table.get()) != tables.end()) continue;
      tables.push_back(table.get());
      buffers.push_back(
          {fmt::format("tables {}", tables.size() - 1), 1, Tier::kRam, {table->size(), table->size()}, table->data()});
    }
  }
  for (std::size_t l = 0; l < impl_->layers.size(); ++l) impl_->layers[l].list_state(fmt::format("layer {}", l), &buffers);
  if (impl_->offload) impl_->offload->list_state(&buffers);
  return buffers;
}

Status SequenceCache::check_integrity() const {
  for (std::size_t l = 0; l < impl_->layers.size(); ++l) {
    KV_TRY(impl_->layers[l].check_integrity().within(fmt::format("cache {}, layer {}", impl_->spec->canonical, l)));
  }
  ByteAccount listed;
  for (const StateBuffer& buffer : state()) listed += buffer.bytes;
  const ByteAccount counted = bytes();
  if (listed.live == counted.live && listed.allocated == counted.allocated) return {};
  return internal_error(fmt::format("the state lists {}/{} live/allocated bytes, the counts say {}/{}", listed.live,
                                    listed.allocated, counted.live, counted.allocated));
}

namespace {

ByteAccount bytes_at(const CacheSpec& spec, const ModelShape& shape, const FormatsList& formats, int prompt_tokens,
                     int generated) {
  const CacheSpec windowed = windowed_layer_spec(spec);
  ByteAccount sum = table_bytes(formats);
  if (spec.offload) sum += OffloadCache::predict(*spec.offload, shape, prompt_tokens, generated);
  for (std::size_t l = 0; l < shape.layers.size(); ++l) {
    const CacheSpec& layer_spec = shape.layers[l].window > 0 ? windowed : spec;
    int rows = rows_after(layer_spec, {static_cast<int>(l), shape.layer_count()}, prompt_tokens, generated);
    if (spec.offload) rows = OffloadCache::kept_rows(*spec.offload, static_cast<int>(l), prompt_tokens, generated);
    ByteAccount head;
    for (const SideFormats* side : {&formats[l]->key, &formats[l]->value}) head += side->bytes(rows, side->sealed_rows(rows));
    if (layer_spec.evict != Evict::kNone) head += RowPositions::bytes_of(rows);
    if (layer_spec.keeps_sums()) head += RowSums::bytes_of(rows);
    if (layer_spec.keeps_window_sums()) head += RowSums::bytes_of(rows);
    if (layer_spec.rerotate) head += SinkKeys::bytes_of(std::min(layer_spec.sinks, rows), shape.layers[l].head_dim);
    for (int h = 0; h < shape.layers[l].kv_heads; ++h) sum += head;
  }
  return sum;
}

}  // namespace

Result<ByteAccount> predict_bytes(const CacheSpec& spec, const ModelShape& shape, int prompt_tokens, int generated) {
  KV_ASSIGN(const std::vector<ByteAccount> moments, predict_bytes(spec, shape, prompt_tokens, std::span(&generated, 1)));
  return moments.front();
}

Result<std::vector<ByteAccount>> predict_bytes(const CacheSpec& spec, const ModelShape& shape, int prompt_tokens,
                                               std::span<const int> generated) {
  constexpr int kMostTokens = 1 << 29;
  for (const int steps : generated) {
    if (prompt_tokens >= 0 && steps >= 0 && prompt_tokens <= kMostTokens && steps <= kMostTokens) continue;
    return usage_error(fmt::format("cannot predict {} prompt tokens and {} generated ones; each must be from 0 to {}",
                                   prompt_tokens, steps, kMostTokens));
  }
  KV_TRY(check_spec(spec, shape));
  KV_ASSIGN(const FormatsList formats, formats_of_layers(spec, shape, nullptr));
  std::vector<ByteAccount> moments;
  for (const int steps : generated) moments.push_back(bytes_at(spec, shape, formats, prompt_tokens, steps));
  return moments;
}

}  // namespace kvartet
