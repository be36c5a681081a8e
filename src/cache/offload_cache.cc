#include "cache/offload_cache.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/check.h"
#include "core/uz.h"

namespace kvartet {
namespace {

ByteAccount joined(const TierBytes& tiers) {
  return {tiers.fast.live + tiers.slow.live, tiers.fast.allocated + tiers.slow.allocated, tiers.slow.live, tiers.slow.allocated};
}

}  // namespace

Status OffloadCache::check(const SelectOptions& options, const ModelShape& shape) {
  for (const LayerShape& layer : shape.layers) {
    if (layer.window == 0) continue;
    return usage_error(
        fmt::format("this model has layers with a sliding window of {} tokens, from which no rows can be selected yet; use a "
                    "quantizer such as kivi",
                    layer.window));
  }
  if (options.place == Place::kNear) return {};
  for (const LayerShape& layer : shape.layers) KV_TRY(OffloadLayer::check(options, layer));
  if (options.rope == KeyRope::kPre && shape.rope.dims == 0) {
    return usage_error("keys are to lie unrotated (rope=pre), but this model's rotation is not known; use rope=post");
  }
  return {};
}

Result<OffloadCache> OffloadCache::create(const SelectOptions& options, const ModelShape& shape, std::shared_ptr<Arena> fast,
                                          const OffloadPlace& place) {
  KV_TRY(check(options, shape));
  OffloadCache cache;
  cache.options_ = std::make_shared<const SelectOptions>(options);
  cache.shape_ = std::make_shared<const ModelShape>(shape);
  cache.fast_ = fast;
  if (options.place == Place::kNear) {
    for (int l = 0; l < shape.layer_count(); ++l) cache.pages_.emplace_back(cache.options_, l, shape.layers[uz(l)]);
    return cache;
  }
  auto formats = std::make_shared<std::vector<TileFormat>>();
  std::vector<LayerRowShape> rows;
  for (const LayerShape& layer : shape.layers) {
    KV_ASSIGN(TileFormat key, OffloadLayer::shown_format(options, layer, Side::kKey));
    KV_ASSIGN(TileFormat value, OffloadLayer::shown_format(options, layer, Side::kValue));
    formats->push_back(std::move(key));
    formats->push_back(std::move(value));
    rows.push_back(OffloadLayer::row_shape(options, layer));
  }
  cache.formats_ = formats;
  for (int l = 0; l < shape.layer_count(); ++l) {
    cache.layers_.emplace_back(cache.options_, l, shape.layers[uz(l)], &(*formats)[uz(2 * l)], &(*formats)[uz(2 * l + 1)]);
  }
  cache.far_ = store_options(options);
  cache.far_.layers = std::move(rows);
  cache.far_.fast = std::move(fast);
  cache.far_.slow = place.slow != nullptr ? place.slow : Arena::create();
  cache.far_.file.fs = place.files;
  if (options.tier != Tier::kRam) {
    KV_ASSIGN(cache.far_.file.directory, folder_or_temporary(place.directory));
  }
  return cache;
}

RowStoreOptions OffloadCache::store_options(const SelectOptions& options) {
  RowStoreOptions store;
  store.tier = options.tier;
  store.cache_share = options.cache_share;
  return store;
}

OffloadCache::OffloadCache(const OffloadCache& other)
    : options_(other.options_),
      shape_(other.shape_),
      fast_(other.fast_),
      formats_(other.formats_),
      rope_(other.rope_),
      far_(other.far_),
      layers_(other.layers_),
      pages_(other.pages_) {
  if (other.store_) store_.emplace(other.store_->fork());
  for (PageLayer& layer : pages_) layer.forget_selection();
}

Status OffloadCache::seal(int layer, const PromptRows& prompt, int threads, Arrival* kept) {
  if (!pages_.empty()) {
    *kept = Arrival{};
    return {};
  }
  const int tokens = static_cast<int>(prompt.key.tokens);
  if (!store_ && !OffloadLayer::segments(*options_, layer, tokens).dense) {
    KV_ASSIGN(RowStore made, RowStore::create(far_));
    store_.emplace(std::move(made));
  }
  if (!OffloadLayer::segments(*options_, layer, tokens).dense) KV_TRY(make_rope(tokens));
  return layers_[uz(layer)].seal(*fast_, store_ ? &*store_ : nullptr, prompt, threads, kept);
}

// For so many positions at least, if rows that come back have to be rotated.
Status OffloadCache::make_rope(int positions) {
  if (!wants_pre_rope_keys()) return {};
  if (rope_ != nullptr && rope_->positions() >= positions) return {};
  KV_ASSIGN(RopeTable made,
            rope_ == nullptr ? RopeTable::create(shape_->rope, positions, *fast_) : rope_->extended(positions, *fast_));
  rope_ = std::make_shared<const RopeTable>(std::move(made));
  return {};
}

OffloadLayer::Step OffloadCache::step_of(int layer, MatView<const float> queries, int threads) {
  return {.queries = queries,
          .rope = rope_,
          .fast = fast_.get(),
          .store = &*store_,
          .scratch = &scratch_,
          .fetches = &fetches_[layer % 2],
          .threads = threads};
}

void OffloadCache::expect(int layer, MatView<const float> guessed, int threads) {
  KV_CHECK(wants_guessed_queries());
  if (!pages_.empty() || !layers_[uz(layer)].selects()) return;
  if (layer == options_->dense_layers) store_->begin_step();
  layers_[uz(layer)].begin(step_of(layer, guessed, threads));
}

Status OffloadCache::select(int layer, const Queries& queries, int threads, std::span<const HeadView> kept) {
  if (!pages_.empty()) {
    pages_[uz(layer)].select(queries.own, kept);
    return {};
  }
  if (!layers_[uz(layer)].selects()) return {};
  const bool expected = fetches_[layer % 2].layer == layer;
  if (layer == options_->dense_layers && !expected) store_->begin_step();
  const MatView<const float> asked = wants_guessed_queries() ? queries.guessed : queries.own;
  KV_CHECK(asked.data != nullptr);
  return layers_[uz(layer)].select(step_of(layer, asked, threads), kept);
}

Status OffloadCache::rows_added(int layer, std::span<const MatView<const float>> keys, std::span<const HeadView> kept) {
  if (!pages_.empty()) return pages_[uz(layer)].add(*fast_, keys);
  refresh_views(layer, kept);
  return {};
}

OffloadLayer::Leaving OffloadCache::leaving(int layer, int kept) const {
  return pages_.empty() ? layers_[uz(layer)].leaving(kept) : OffloadLayer::Leaving{};
}

Status OffloadCache::take(int layer, HeadRows<const float> keys, HeadRows<const float> values, int threads) {
  OffloadLayer& taking = layers_[uz(layer)];
  KV_TRY(make_rope(taking.far_tokens() + static_cast<int>(keys.tokens)));
  return taking.take(*fast_, &*store_, shape_->rope, keys, values, threads);
}

Status OffloadCache::attended(int layer) { return pages_.empty() && store_ ? layers_[uz(layer)].attended(&*store_) : Status(); }

void OffloadCache::refresh_views(int layer, std::span<const HeadView> kept) {
  if (pages_.empty()) layers_[uz(layer)].refresh_views(kept);
}

std::span<const HeadView> OffloadCache::views(int layer, std::span<const HeadView> kept) const {
  if (pages_.empty()) return layers_[uz(layer)].selects() ? layers_[uz(layer)].views() : kept;
  return pages_[uz(layer)].views().empty() ? kept : pages_[uz(layer)].views();
}

int OffloadCache::kept_rows(const SelectOptions& options, int layer, int prompt, int generated) {
  if (options.place == Place::kNear) return prompt + generated;
  const Segments s = OffloadLayer::segments(options, layer, prompt);
  if (s.dense) return generated + prompt;
  return generated - options.far_generated(generated) + s.kept_tokens(options.index.chunk);
}

const PageLayer* OffloadCache::seen_pages(int layer) const {
  return pages_.empty() || pages_[uz(layer)].views().empty() ? nullptr : &pages_[uz(layer)];
}

bool OffloadCache::selects() const {
  if (std::any_of(pages_.begin(), pages_.end(), [](const PageLayer& layer) { return layer.selects(); })) return true;
  return std::any_of(layers_.begin(), layers_.end(), [](const OffloadLayer& layer) { return layer.selects(); });
}

Status OffloadCache::read_rows(int layer, int kv_head, std::span<const std::int32_t> positions, MatView<float> keys,
                               MatView<float> values) {
  OffloadLayer::Step step;
  step.rope = rope_;
  step.store = &*store_;
  return layers_[uz(layer)].read_rows(step, kv_head, positions, keys, values);
}

RowTraffic OffloadCache::traffic() const {
  if (!store_) return {};
  RowTraffic traffic = store_->traffic();
  for (const OffloadLayer& layer : layers_) traffic.rows_hit += layer.rows_reused();
  return traffic;
}

ByteAccount OffloadCache::bytes() const {
  ByteAccount sum;
  if (store_) sum += joined(store_->bytes());
  for (const PageLayer& layer : pages_) sum += layer.bytes();
  for (const OffloadLayer& layer : layers_) sum += layer.bytes();
  if (rope_) sum.allocated += RopeTable::bytes(shape_->rope, rope_->positions());
  return sum;
}

void OffloadCache::list_state(std::vector<StateBuffer>* out) const {
  if (store_) store_->list_state("rows", out);
  for (std::size_t l = 0; l < pages_.size(); ++l) pages_[l].list_state(fmt::format("layer {}", l), out);
  for (std::size_t l = 0; l < layers_.size(); ++l) layers_[l].list_state(fmt::format("layer {} offload", l), out);
  if (!rope_) return;
  for (const Buffer* angles : rope_->buffers())
    out->push_back({.name = "cosines and sines of positions", .bytes = {0, angles->size()}, .data = angles->data()});
}

ByteAccount OffloadCache::predict(const SelectOptions& options, const ModelShape& shape, int prompt, int generated) {
  ByteAccount sum;
  if (options.place == Place::kNear) {
    for (int l = 0; l < shape.layer_count(); ++l) sum += PageLayer::predict(options, l, shape.layers[uz(l)], prompt + generated);
    return sum;
  }
  RowStoreOptions store = store_options(options);
  for (int l = 0; l < shape.layer_count(); ++l) {
    const LayerShape& layer = shape.layers[uz(l)];
    sum += OffloadLayer::predict(options, l, layer, prompt, generated);
    if (!OffloadLayer::segments(options, l, prompt).dense) store.layers.push_back(OffloadLayer::row_shape(options, layer));
  }
  if (store.layers.empty()) return sum;
  const int far = prompt + options.far_generated(generated);  // of layers that select at all
  sum += joined(predict_tier_bytes(store, far));
  if (generated > 0) sum += full_row_cache_bytes(store, far);
  if (options.rope == KeyRope::kPre) sum.allocated += RopeTable::bytes(shape.rope, far);
  return sum;
}

}  // namespace kvartet
