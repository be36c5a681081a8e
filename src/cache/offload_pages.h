// Quest: every row stays near; per query head only the pages whose bound is best are read (offloading.md 6).
//
// Pages are runs of rows of the layer cache, generated rows included; a page's bound is the least and the largest key per
// channel, in f16 rounded outwards, so that it stays a bound. Views are cut from the layer cache's own tiles: no row is copied.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/tile_run.h"
#include "core/arena.h"
#include "core/bytes.h"
#include "core/matrix.h"
#include "core/model_shape.h"
#include "core/status.h"
#include "offload/presets.h"
#include "offload/select_top.h"
#include "quantize/tile_format.h"

namespace kvartet {

class PageLayer {
 public:
  static constexpr int kLeastPages = 3;

  PageLayer(std::shared_ptr<const SelectOptions> options, int layer, const LayerShape& shape);

  // New rows, one matrix [rows, head_dim] per KV head. kExhausted: no memory; nothing has changed then.
  Status add(Arena& arena, std::span<const MatView<const float>> keys);
  // queries: [heads, head_dim]; `near` are the layer cache's views.
  void select(MatView<const float> queries, std::span<const HeadView> near);

  // Does a step leave pages out?
  bool selects() const;
  // Per query head, after select() and until the next add(); empty otherwise: then every row is seen.
  std::span<const HeadView> views() const { return views_; }
  // Rows that a query head sees while views() holds some; for diagnostics.
  std::vector<std::int32_t> selected_positions(int head) const;
  int rows() const { return rows_; }
  void forget_selection() { views_.clear(); }

  ByteAccount bytes() const;
  static ByteAccount predict(const SelectOptions& options, int layer, const LayerShape& shape, int rows);
  void list_state(const std::string& prefix, std::vector<StateBuffer>* out) const;

 private:
  struct Pieces {
    std::vector<TilePiece> keys;
    std::vector<TilePiece> values;
  };
  int page_rows() const { return options_->index.chunk; }
  int pages() const { return (rows_ + page_rows() - 1) / page_rows(); }
  int selected_pages() const;
  bool dense() const { return layer_ < options_->dense_layers; }
  std::uint16_t* bounds(int head, int page, bool upper) const;
  void include(int head, int row, const float* key);
  void score(int head, const float* q, std::vector<float>* scores) const;
  void cut(std::span<const TilePiece> pieces, std::span<const std::int32_t> pages, std::vector<TilePiece>* out) const;

  std::shared_ptr<const SelectOptions> options_;
  int layer_;
  LayerShape shape_;
  int rows_ = 0;
  int prompt_ = 0;                                 // rows of the first call: what a share of the budget refers to
  std::vector<TileRun> boxes_;                     // per KV head; a "row" is a page: [lower, upper] f16
  std::vector<Pieces> pieces_;                     // per query head
  std::vector<std::vector<std::int32_t>> chosen_;  // per query head: its pages, ascending
  std::vector<HeadView> views_;
};

}  // namespace kvartet
