// The offloaded part of one sequence's cache: its row store, and per layer the index and the staged rows.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/offload_layer.h"
#include "cache/offload_pages.h"
#include "core/arena.h"
#include "core/bytes.h"
#include "core/model_shape.h"
#include "core/status.h"

namespace kvartet {

// Where the slow tier's rows go.
struct OffloadPlace {
  std::shared_ptr<Arena> slow = nullptr;  // tier=ram; null: an arena of the cache's own
  std::string directory = {};             // tier=mmap, tier=disk; "": the system's temporary folder
  FileSystem* files = nullptr;            // null: the real one
};

class OffloadCache {
 public:
  // kUsage: the options do not fit the model.
  static Status check(const SelectOptions& options, const ModelShape& shape);
  static Result<OffloadCache> create(const SelectOptions& options, const ModelShape& shape, std::shared_ptr<Arena> fast,
                                     const OffloadPlace& place);
  OffloadCache(const OffloadCache& other);  // a fork
  OffloadCache(OffloadCache&&) noexcept = default;
  OffloadCache& operator=(const OffloadCache&) = delete;
  OffloadCache& operator=(OffloadCache&&) = delete;
  ~OffloadCache() = default;

  int observed_queries() const { return is_projected(options_->index.kind) ? options_->index.window : 0; }
  bool wants_guessed_queries() const { return options_->queries == QuerySource::kGuessed; }
  bool wants_pre_rope_keys() const { return options_->rope == KeyRope::kPre; }

  Status seal(int layer, const PromptRows& prompt, int threads, Arrival* kept);
  // [heads, head_dim] each; `guessed` may be empty where nobody wants it.
  struct Queries {
    MatView<const float> own;
    MatView<const float> guessed = {};
  };
  // Before the layer in front of `layer` runs: begins to fetch what these queries choose. select() then ends it, and says what
  // went wrong; without this call it does both. Only where wants_guessed_queries().
  void expect(int layer, MatView<const float> guessed, int threads);
  Status select(int layer, const Queries& queries, int threads, std::span<const HeadView> kept);
  // After the layer cache took new rows: keys has one matrix per KV head.
  Status rows_added(int layer, std::span<const MatView<const float>> keys, std::span<const HeadView> kept);
  // After attention: could it read all rows? kIo.
  Status attended(int layer);
  // After a step: what has to leave the layer cache's rows, and where it goes (offload_layer.h).
  OffloadLayer::Leaving leaving(int layer, int kept) const;
  Status take(int layer, HeadRows<const float> keys, HeadRows<const float> values, int threads);
  void refresh_views(int layer, std::span<const HeadView> kept);
  // What attention walks, given the layer cache's own views.
  std::span<const HeadView> views(int layer, std::span<const HeadView> kept) const;
  const OffloadLayer& layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }  // not with everything near
  // The pages that a layer's query heads see for now; null: it has none, or every row is seen.
  const PageLayer* seen_pages(int layer) const;
  bool selects() const;
  bool has_far_rows(int layer) const { return pages_.empty() && layers_[static_cast<std::size_t>(layer)].selects(); }
  Status read_rows(int layer, int kv_head, std::span<const std::int32_t> positions, MatView<float> keys, MatView<float> values);

  // The counters of offloading.md 1.2; rows that were still staged from the step before count as hits.
  RowTraffic traffic() const;
  std::string slow_medium() const { return store_ ? store_->medium() : ""; }
  ByteAccount bytes() const;
  void list_state(std::vector<StateBuffer>* out) const;
  static ByteAccount predict(const SelectOptions& options, const ModelShape& shape, int prompt, int generated);
  // Rows per head that the layer cache keeps.
  static int kept_rows(const SelectOptions& options, int layer, int prompt, int generated);

 private:
  OffloadCache() = default;
  static RowStoreOptions store_options(const SelectOptions& options);
  Status make_rope(int positions);
  OffloadLayer::Step step_of(int layer, MatView<const float> queries, int threads);
  std::shared_ptr<const SelectOptions> options_;
  std::shared_ptr<const ModelShape> shape_;
  std::shared_ptr<Arena> fast_;
  std::shared_ptr<const std::vector<TileFormat>> formats_;  // per layer: key, value
  std::shared_ptr<const RopeTable> rope_;                   // null until rows have to be rotated
  RowStoreOptions far_;                                     // of the store to be made
  std::optional<RowStore> store_;                           // from the first prompt on that is long enough to leave rows far
  std::vector<OffloadLayer> layers_;                        // rows far
  std::vector<PageLayer> pages_;                            // or everything near
  OffloadScratch scratch_;
  OffloadFetches fetches_[2];  // of even and odd layers: one may be on its way while the one before is waited for. After store_.
};

}  // namespace kvartet
