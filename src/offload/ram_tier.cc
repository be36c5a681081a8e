#include "offload/ram_tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvartet {
namespace {

class DoneReads : public PendingReads {
 public:
  Status wait() override { return {}; }
};

}  // namespace

RamTier::RamTier(std::vector<LayerRowShape> layers, std::shared_ptr<Arena> slow) : slow_(std::move(slow)) {
  for (const LayerRowShape& shape : layers)
    layers_.push_back({shape, std::vector<Head>(static_cast<std::size_t>(shape.kv_heads))});
}

// Chunks for `new_rows` more rows, the last present one no longer shared. Changes nothing that a reader sees.
Status RamTier::make_room(const LayerRowShape& shape, Head& head, int new_rows) {
  const std::size_t chunk_bytes = shape.row_bytes * kChunkRows;
  const auto filling = static_cast<std::size_t>(head.rows / kChunkRows);
  if (new_rows > 0 && head.rows % kChunkRows != 0 && head.chunks[filling].use_count() > 1) {
    KV_ASSIGN(Buffer copy, slow_->allocate(chunk_bytes));
    std::memcpy(copy.data(), head.chunks[filling]->data(), shape.row_bytes * static_cast<std::size_t>(head.rows % kChunkRows));
    head.chunks[filling] = std::make_shared<Buffer>(std::move(copy));
    head.starts[filling] = head.chunks[filling]->data();
  }
  while (head.chunks.size() * kChunkRows < static_cast<std::size_t>(head.rows + new_rows)) {
    KV_ASSIGN(Buffer chunk, slow_->allocate(chunk_bytes));
    head.chunks.push_back(std::make_shared<Buffer>(std::move(chunk)));
    head.starts.push_back(head.chunks.back()->data());
  }
  return {};
}

Status RamTier::append(int layer, std::span<const std::span<const std::byte>> rows_by_head) {
  Layer& target = layers_[static_cast<std::size_t>(layer)];
  const std::size_t row_bytes = target.shape.row_bytes;
  Status status;
  for (std::size_t h = 0; h < rows_by_head.size() && status.ok(); ++h) {
    status = make_room(target.shape, target.heads[h], static_cast<int>(rows_by_head[h].size() / row_bytes));
  }
  if (!status.ok()) {
    for (Head& head : target.heads) {
      head.chunks.resize(static_cast<std::size_t>((head.rows + kChunkRows - 1) / kChunkRows));
      head.starts.resize(head.chunks.size());
    }
    return status;
  }
  for (std::size_t h = 0; h < rows_by_head.size(); ++h) {
    Head& head = target.heads[h];
    std::span<const std::byte> left = rows_by_head[h];
    while (!left.empty()) {
      const auto row = static_cast<std::size_t>(head.rows % kChunkRows);
      const std::size_t bytes = std::min(left.size(), (kChunkRows - row) * row_bytes);
      std::memcpy(head.chunks[static_cast<std::size_t>(head.rows / kChunkRows)]->data() + row * row_bytes, left.data(), bytes);
      head.rows += static_cast<int>(bytes / row_bytes);
      left = left.subspan(bytes);
    }
    traffic_.bytes_written += rows_by_head[h].size();
  }
  return {};
}

Result<std::unique_ptr<PendingReads>> RamTier::begin_read(int layer, std::span<const RowRead> reads) {
  const Layer& source = layers_[static_cast<std::size_t>(layer)];
  const std::size_t row_bytes = source.shape.row_bytes;
  const auto address = [&](const RowRead& read) {
    const Head& head = source.heads[static_cast<std::size_t>(read.kv_head)];
    return head.starts[static_cast<std::size_t>(read.row / kChunkRows)] +
           static_cast<std::size_t>(read.row % kChunkRows) * row_bytes;
  };
  // Chosen rows lie far apart: the loads of the next rows must be under way while one is copied.
  constexpr std::size_t kAhead = 8;
  constexpr std::size_t kLine = 64;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (i + kAhead < reads.size()) {
      const std::byte* next = address(reads[i + kAhead]);
      for (std::size_t line = 0; line < row_bytes; line += kLine) __builtin_prefetch(next + line);
    }
    std::memcpy(reads[i].out, address(reads[i]), row_bytes);
  }
  traffic_.reads += reads.size();
  traffic_.bytes_read += reads.size() * row_bytes;
  return std::unique_ptr<PendingReads>(std::make_unique<DoneReads>());
}

Result<LentRows> RamTier::lend(int layer, int kv_head, std::span<const std::int32_t> rows, const std::byte** where) const {
  const std::size_t row_bytes = layers_[static_cast<std::size_t>(layer)].shape.row_bytes;
  const Head& from = head(layer, kv_head);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    where[i] =
        from.starts[static_cast<std::size_t>(rows[i] / kChunkRows)] + static_cast<std::size_t>(rows[i] % kChunkRows) * row_bytes;
  }
  return LentRows{.lent = true, .traffic = {.reads = rows.size(), .bytes_read = rows.size() * row_bytes}};
}

TierBytes RamTier::bytes() const {
  TierBytes total;
  for (const Layer& layer : layers_) {
    for (const Head& head : layer.heads) {
      total.slow.live += static_cast<std::size_t>(head.rows) * layer.shape.row_bytes;
      for (const auto& chunk : head.chunks) total.slow.allocated += chunk->size();
    }
  }
  return total;
}

void RamTier::list_state(const std::string& prefix, std::vector<StateBuffer>* out) const {
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const std::size_t row_bytes = layers_[l].shape.row_bytes;
    for (std::size_t h = 0; h < layers_[l].heads.size(); ++h) {
      const Head& head = layers_[l].heads[h];
      for (std::size_t c = 0; c < head.chunks.size(); ++c) {
        const auto used = std::min<std::size_t>(kChunkRows, static_cast<std::size_t>(head.rows) - c * kChunkRows);
        out->push_back({.name = fmt::format("{}layer {} head {} slow rows chunk {}", prefix, l, h, c),
                        .tier = Tier::kRam,
                        .bytes = {used * row_bytes, head.chunks[c]->size()},
                        .data = head.chunks[c]->data()});
      }
    }
  }
}

}  // namespace kvartet
