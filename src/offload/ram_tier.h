// tier=ram: rows in chunks of memory, shared between forks until one side writes.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/arena.h"
#include "offload/row_tier.h"

namespace kvartet {

class RamTier : public RowTier {
 public:
  static constexpr int kChunkRows = 128;  // allocation unit: bounds the padding to one chunk per layer and head

  RamTier(std::vector<LayerRowShape> layers, std::shared_ptr<Arena> slow);

  Status append(int layer, std::span<const std::span<const std::byte>> rows_by_head) override;
  Result<std::unique_ptr<PendingReads>> begin_read(int layer, std::span<const RowRead> reads) override;
  bool lends() const override { return true; }
  Result<LentRows> lend(int layer, int kv_head, std::span<const std::int32_t> rows, const std::byte** where) const override;
  std::unique_ptr<RowTier> fork() const override { return std::make_unique<RamTier>(*this); }
  int rows(int layer, int kv_head) const override { return head(layer, kv_head).rows; }
  TierBytes bytes() const override;
  MediumTraffic traffic() const override { return traffic_; }
  std::string medium() const override { return "memory"; }
  Status keep() override { return usage_error("rows in memory cannot be kept; use tier=disk or tier=mmap"); }
  void list_state(const std::string& prefix, std::vector<StateBuffer>* out) const override;

 private:
  struct Head {
    std::vector<std::shared_ptr<Buffer>> chunks;
    std::vector<const std::byte*> starts;  // of the chunks: side by side, for reads of single rows
    int rows = 0;
  };
  struct Layer {
    LayerRowShape shape;
    std::vector<Head> heads;
  };
  const Head& head(int layer, int kv_head) const {
    return layers_[static_cast<std::size_t>(layer)].heads[static_cast<std::size_t>(kv_head)];
  }
  Status make_room(const LayerRowShape& shape, Head& head, int new_rows);

  std::vector<Layer> layers_;
  std::shared_ptr<Arena> slow_;
  MediumTraffic traffic_;
};

}  // namespace kvartet
