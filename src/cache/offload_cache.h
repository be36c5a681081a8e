// The offloaded part of one sequence's cache: its row store, and per layer the index and the staged rows.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/offload_layer.h"
#include "core/arena.h"
#include "core/bytes.h"
#include "core/model_shape.h"
#include "core/status.h"

namespace kvartet {

class OffloadCache {
 public:
  // kUsage: the options do not fit the model.
  static Status check(const SelectOptions& options, const ModelShape& shape);
  static Result<OffloadCache> create(const SelectOptions& options, const ModelShape& shape, std::shared_ptr<Arena> fast,
                                     std::shared_ptr<Arena> slow);
  OffloadCache(const OffloadCache& other);  // a fork
  OffloadCache(OffloadCache&&) noexcept = default;
  OffloadCache& operator=(const OffloadCache&) = delete;
  OffloadCache& operator=(OffloadCache&&) noexcept = default;
  ~OffloadCache() = default;

  bool wants_pre_rope_keys() const { return options_->rope == KeyRope::kPre; }

  Status seal(int layer, const OffloadLayer::Prompt& prompt, int threads, Arrival* kept);
  // `step` needs queries and threads only.
  Status select(int layer, MatView<const float> queries, int threads, std::span<const HeadView> kept);
  void refresh_views(int layer, std::span<const HeadView> kept) { layers_[static_cast<std::size_t>(layer)].refresh_views(kept); }
  const OffloadLayer& layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }
  bool selects() const;

  // The counters of offloading.md 1.2; rows that were still staged from the step before count as hits.
  RowTraffic traffic() const;
  ByteAccount bytes() const;
  void list_state(std::vector<StateBuffer>* out) const;
  static ByteAccount predict(const SelectOptions& options, const ModelShape& shape, int prompt);

 private:
  OffloadCache() = default;
  std::shared_ptr<const SelectOptions> options_;
  std::shared_ptr<const ModelShape> shape_;
  std::shared_ptr<Arena> fast_;
  std::shared_ptr<const std::vector<TileFormat>> formats_;  // per layer: key, value
  std::shared_ptr<const RopeTable> rope_;                   // null until rows have to be rotated
  std::optional<RowStore> store_;
  std::vector<OffloadLayer> layers_;
  OffloadScratch scratch_;
};

}  // namespace kvartet
