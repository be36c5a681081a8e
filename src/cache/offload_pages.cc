#include "cache/offload_pages.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/check.h"
#include "core/float16.h"
#include "core/uz.h"

namespace kvartet {
namespace {

constexpr int kPagesPerTile = 32;

std::size_t page_bytes(int dim) { return uz(dim) * 4; }
TileSize tile_size(int dim) { return {kPagesPerTile, uz(kPagesPerTile) * page_bytes(dim)}; }

// The nearest f16 that is not above x, or not below it.
std::uint16_t next_f16(std::uint16_t bits, bool up) {
  if ((bits & 0x7fffU) == 0) return up ? 0x0001U : 0x8001U;
  const bool grows = ((bits & 0x8000U) == 0) == up;
  return static_cast<std::uint16_t>(grows ? bits + 1 : bits - 1);
}
std::uint16_t f16_at_most(float x) {
  const std::uint16_t bits = f16_from_float(x);
  return float_from_f16(bits) > x ? next_f16(bits, false) : bits;
}
std::uint16_t f16_at_least(float x) {
  const std::uint16_t bits = f16_from_float(x);
  return float_from_f16(bits) < x ? next_f16(bits, true) : bits;
}

}  // namespace

PageLayer::PageLayer(std::shared_ptr<const SelectOptions> options, int layer, const LayerShape& shape)
    : options_(std::move(options)), layer_(layer), shape_(shape) {
  if (dense()) return;
  for (int h = 0; h < shape.kv_heads; ++h) boxes_.emplace_back(tile_size(shape.head_dim));
}

std::uint16_t* PageLayer::bounds(int head, int page, bool upper) const {
  std::byte* const tile = boxes_[uz(head)].tile_of(page);
  const std::size_t at = uz(page % kPagesPerTile) * page_bytes(shape_.head_dim) + (upper ? 2 * uz(shape_.head_dim) : 0);
  return reinterpret_cast<std::uint16_t*>(tile + at);
}

Status PageLayer::add(Arena& arena, std::span<const MatView<const float>> keys) {
  views_.clear();
  const int fresh = static_cast<int>(keys.front().rows);
  if (fresh == 0) return {};
  if (!dense()) {
    const int first = rows_ / page_rows();
    const int end = (rows_ + fresh + page_rows() - 1) / page_rows();
    for (TileRun& run : boxes_) {
      const Status status = run.own(arena, first, end);
      if (status.ok()) continue;
      for (TileRun& grown : boxes_) grown.keep_only(0, pages());
      return status;
    }
    for (int h = 0; h < shape_.kv_heads; ++h)
      for (int r = 0; r < fresh; ++r) include(h, rows_ + r, keys[uz(h)].row(uz(r)));
  }
  if (rows_ == 0) prompt_ = fresh;
  rows_ += fresh;
  return {};
}

void PageLayer::include(int head, int row, const float* key) {
  std::uint16_t* const lower = bounds(head, row / page_rows(), false);
  std::uint16_t* const upper = bounds(head, row / page_rows(), true);
  const bool first = row % page_rows() == 0;
  for (std::size_t c = 0; c < uz(shape_.head_dim); ++c) {
    if (first || key[c] < float_from_f16(lower[c])) lower[c] = f16_at_most(key[c]);
    if (first || key[c] > float_from_f16(upper[c])) upper[c] = f16_at_least(key[c]);
  }
}

int PageLayer::selected_pages() const {
  const Amount& budget = options_->budget;
  const int tokens = static_cast<int>(budget.share ? std::floor(budget.value * prompt_) : budget.value);
  return std::max(kLeastPages, tokens / page_rows());
}

bool PageLayer::selects() const { return !dense() && selected_pages() < pages(); }

void PageLayer::score(int head, const float* q, std::vector<float>* scores) const {
  const std::size_t dim = uz(shape_.head_dim);
  scores->resize(uz(pages()));
  for (int page = 0; page < pages(); ++page) {
    const std::uint16_t* const lower = bounds(head, page, false);
    const std::uint16_t* const upper = bounds(head, page, true);
    float sum = 0;
    for (std::size_t c = 0; c < dim; ++c) sum += q[c] * float_from_f16(q[c] < 0 ? lower[c] : upper[c]);
    (*scores)[uz(page)] = sum;
  }
}

// The rows of some pages, renumbered without gaps; pieces are cut at the view's own block borders too.
void PageLayer::cut(std::span<const TilePiece> pieces, std::span<const std::int32_t> pages, std::vector<TilePiece>* out) const {
  out->clear();
  std::size_t piece = 0;
  int row = 0;
  for (const std::int32_t page : pages) {
    const int end = std::min((page + 1) * page_rows(), rows_);
    for (int at = page * page_rows(); at < end;) {
      while (pieces[piece].row + pieces[piece].end - pieces[piece].begin <= at) ++piece;
      const TilePiece& from = pieces[piece];
      const int begin = from.begin + at - from.row;
      const int length = std::min({from.end - begin, end - at, kBlockRows - row % kBlockRows});
      const bool joins = !out->empty() && out->back().tile == from.tile && out->back().end == begin && row % kBlockRows != 0;
      if (joins) {
        out->back().end += length;
      } else {
        out->push_back({from.format, from.tile, row, begin, begin + length});
      }
      at += length;
      row += length;
    }
  }
}

void PageLayer::select(MatView<const float> queries, std::span<const HeadView> near) {
  views_.clear();
  if (!selects()) return;
  pieces_.resize(uz(shape_.heads));
  chosen_.resize(uz(shape_.heads));
  TopSelector top;
  std::vector<float> scores;
  for (int h = 0; h < shape_.heads; ++h) {
    const int kv_head = h / shape_.group();
    KV_CHECK(near[uz(kv_head)].rows == rows_);
    score(kv_head, queries.row(uz(h)), &scores);
    std::vector<std::int32_t>& pages = chosen_[uz(h)];
    top.select(scores, selected_pages(), &pages);
    Pieces& pieces = pieces_[uz(h)];
    cut(near[uz(kv_head)].keys, pages, &pieces.keys);
    cut(near[uz(kv_head)].values, pages, &pieces.values);
    const TilePiece& last = pieces.keys.back();
    views_.push_back({pieces.keys, pieces.values, last.row + last.end - last.begin});
  }
}

std::vector<std::int32_t> PageLayer::selected_positions(int head) const {
  std::vector<std::int32_t> rows;
  for (const std::int32_t page : chosen_[uz(head)])
    for (int row = page * page_rows(); row < std::min((page + 1) * page_rows(), rows_); ++row) rows.push_back(row);
  return rows;
}

ByteAccount PageLayer::bytes() const {
  ByteAccount sum;
  for (const TileRun& run : boxes_) sum += ByteAccount{uz(pages()) * page_bytes(shape_.head_dim), run.allocated_bytes()};
  return sum;
}

ByteAccount PageLayer::predict(const SelectOptions& options, int layer, const LayerShape& shape, int rows) {
  if (layer < options.dense_layers) return {};
  const int pages = (rows + options.index.chunk - 1) / options.index.chunk;
  const std::size_t tiles = uz((pages + kPagesPerTile - 1) / kPagesPerTile);
  return {uz(shape.kv_heads) * uz(pages) * page_bytes(shape.head_dim),
          uz(shape.kv_heads) * tiles * tile_size(shape.head_dim).bytes};
}

void PageLayer::list_state(const std::string& prefix, std::vector<StateBuffer>* out) const {
  for (std::size_t h = 0; h < boxes_.size(); ++h) {
    boxes_[h].for_each_tile([&](int index, const Buffer& tile) {
      const int live = std::clamp(pages() - index * kPagesPerTile, 0, kPagesPerTile);
      out->push_back({fmt::format("{} head {} page bounds {}", prefix, h, index),
                      1,
                      Tier::kRam,
                      {uz(live) * page_bytes(shape_.head_dim), tile.size()},
                      tile.data()});
    });
  }
}

}  // namespace kvartet
