#include "offload/row_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "offload/ram_tier.h"

namespace kvartet {

struct FetchTicket::Fetch {
  std::unique_ptr<PendingReads> reads;
};

FetchTicket::FetchTicket(std::unique_ptr<Fetch> fetch) : fetch_(std::move(fetch)) {}
FetchTicket::FetchTicket(FetchTicket&&) noexcept = default;
FetchTicket& FetchTicket::operator=(FetchTicket&&) noexcept = default;
FetchTicket::~FetchTicket() = default;

struct RowStore::Impl {
  RowStoreOptions options;
  std::unique_ptr<RowTier> tier;
  RowTraffic traffic;
  std::vector<RowRead> reads;  // of the fetch being begun; kept to save the allocation

  const LayerRowShape& shape(int layer) const { return options.layers[static_cast<std::size_t>(layer)]; }
  Status check_fetch(int layer, const HeadFetch& head) const;
};

namespace {

Status check_options(const RowStoreOptions& options) {
  for (std::size_t l = 0; l < options.layers.size(); ++l) {
    const LayerRowShape& shape = options.layers[l];
    if (shape.kv_heads < 1 || shape.row_bytes < 1) {
      return usage_error(fmt::format("layer {} of a row store has {} KV heads and rows of {} bytes; both must be at least 1", l,
                                     shape.kv_heads, shape.row_bytes));
    }
  }
  KV_CHECK(options.fast != nullptr && options.slow != nullptr);
  return {};
}

}  // namespace

RowStore::RowStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RowStore::RowStore(RowStore&&) noexcept = default;
RowStore& RowStore::operator=(RowStore&&) noexcept = default;
RowStore::~RowStore() = default;

Result<RowStore> RowStore::create(RowStoreOptions options) {
  KV_TRY(check_options(options));
  auto impl = std::make_unique<Impl>();
  if (options.tier != Tier::kRam) return usage_error("tier=mmap and tier=disk are not built yet; use tier=ram");
  impl->tier = std::make_unique<RamTier>(options.layers, options.slow);
  impl->options = std::move(options);
  return RowStore(std::move(impl));
}

RowStore RowStore::fork() const {
  auto impl = std::make_unique<Impl>();
  impl->options = impl_->options;
  impl->tier = impl_->tier->fork();
  return RowStore(std::move(impl));
}

Status RowStore::append(int layer, std::span<const std::span<const std::byte>> rows_by_head) {
  KV_CHECK(layer >= 0 && layer < layers());
  const LayerRowShape& shape = impl_->shape(layer);
  KV_CHECK(rows_by_head.size() == static_cast<std::size_t>(shape.kv_heads));
  for (const auto& rows : rows_by_head) KV_CHECK(rows.size() % shape.row_bytes == 0);
  return std::move(impl_->tier->append(layer, rows_by_head)).within(fmt::format("layer {}", layer));
}

Status RowStore::Impl::check_fetch(int layer, const HeadFetch& head) const {
  KV_CHECK(head.kv_head >= 0 && head.kv_head < shape(layer).kv_heads);
  const int have = tier->rows(layer, head.kv_head);
  std::int32_t last = -1;
  for (const std::int32_t row : head.rows) {
    if (row <= last || row >= have) {
      return internal_error(
          fmt::format("layer {} head {}: row {} was asked for after row {}, of {} rows; rows must ascend and exist", layer,
                      head.kv_head, row, last, have));
    }
    last = row;
  }
  return {};
}

Result<FetchTicket> RowStore::begin_fetch(int layer, std::span<const HeadFetch> heads) {
  KV_CHECK(layer >= 0 && layer < layers());
  const std::size_t row_bytes = impl_->shape(layer).row_bytes;
  impl_->reads.clear();
  for (const HeadFetch& head : heads) {
    KV_TRY(impl_->check_fetch(layer, head));
    for (std::size_t i = 0; i < head.rows.size(); ++i) {
      impl_->reads.push_back({head.kv_head, head.rows[i], head.out + i * row_bytes});
    }
  }
  auto fetch = std::make_unique<FetchTicket::Fetch>();
  KV_ASSIGN(fetch->reads, impl_->tier->begin_read(layer, impl_->reads));
  RowTraffic& traffic = impl_->traffic;
  traffic.rows_fetched += impl_->reads.size();
  traffic.bytes_fetched += impl_->reads.size() * row_bytes;
  traffic.bytes_fetched_this_step += impl_->reads.size() * row_bytes;
  return FetchTicket(std::move(fetch));
}

Status RowStore::wait(FetchTicket ticket) {
  KV_CHECK(ticket.fetch_ != nullptr);
  return ticket.fetch_->reads->wait();
}

Status RowStore::fetch(int layer, std::span<const HeadFetch> heads) {
  KV_ASSIGN(FetchTicket ticket, begin_fetch(layer, heads));
  return wait(std::move(ticket));
}

void RowStore::begin_step() { impl_->traffic.bytes_fetched_this_step = 0; }

int RowStore::layers() const { return static_cast<int>(impl_->options.layers.size()); }
int RowStore::kv_heads(int layer) const { return impl_->shape(layer).kv_heads; }
std::size_t RowStore::row_bytes(int layer) const { return impl_->shape(layer).row_bytes; }
int RowStore::rows(int layer, int kv_head) const { return impl_->tier->rows(layer, kv_head); }

TierBytes RowStore::bytes() const { return impl_->tier->bytes(); }

RowTraffic RowStore::traffic() const {
  RowTraffic traffic = impl_->traffic;
  const TierBytes held = bytes();
  traffic.bytes_fast_resident = held.fast.allocated;
  traffic.bytes_slow_resident = held.slow.allocated;
  traffic.medium = impl_->tier->traffic();
  return traffic;
}

void RowStore::list_state(const std::string& prefix, std::vector<StateBuffer>* out) const {
  impl_->tier->list_state(prefix, out);
}

TierBytes predict_tier_bytes(const RowStoreOptions& options, int rows) {
  TierBytes total;
  const auto chunks = static_cast<std::size_t>((rows + RamTier::kChunkRows - 1) / RamTier::kChunkRows);
  for (const LayerRowShape& shape : options.layers) {
    const auto heads = static_cast<std::size_t>(shape.kv_heads);
    total.slow.live += heads * static_cast<std::size_t>(rows) * shape.row_bytes;
    total.slow.allocated += heads * chunks * RamTier::kChunkRows * shape.row_bytes;
  }
  return total;
}

}  // namespace kvartet
