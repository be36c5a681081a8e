#include "offload/row_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "offload/ram_tier.h"
#include "offload/row_cache.h"

namespace kvartet {
namespace {

constexpr int kSlabRows = 32;  // the row cache grows by so many rows at a time

// The rows of one head that stay near.
struct NearRows {
  RowCache cache;
  std::vector<DeviceBuffer> slabs;

  std::byte* slot(std::int32_t index, std::size_t row_bytes) const {
    return slabs[static_cast<std::size_t>(index / kSlabRows)].data() + static_cast<std::size_t>(index % kSlabRows) * row_bytes;
  }
  Status hold_slots(Device& device, int slots, std::size_t row_bytes) {
    while (static_cast<int>(slabs.size()) * kSlabRows < slots) {
      KV_ASSIGN(DeviceBuffer slab, device.allocate(kSlabRows * row_bytes));
      slabs.push_back(std::move(slab));
    }
    return {};
  }
};

// Rows of one head that a fetch brings near; they enter the row cache when they have arrived.
struct Arrivals {
  int kv_head = 0;
  std::vector<std::int32_t> rows = {};
  std::vector<std::byte*> at = {};  // where in `out` they are
};

}  // namespace

struct FetchTicket::Fetch {
  explicit Fetch(std::shared_ptr<Device> device_in) : device(std::move(device_in)) {}
  Fetch(const Fetch&) = delete;
  Fetch& operator=(const Fetch&) = delete;
  // What was started still writes: to `out`, to `staging`.
  ~Fetch() {
    reads.reset();
    static_cast<void>(device->wait(copy).ok());
  }

  std::shared_ptr<Device> device;
  int layer = 0;
  std::vector<Arrivals> arrivals;  // empty without a row cache
  Buffer staging;                  // host memory that the tier reads into, if `out` cannot be touched
  std::vector<CopyPiece> pieces;   // staging to `out`; started when the tier has read
  CopyTicket copy;
  std::unique_ptr<PendingReads> reads;
};

FetchTicket::FetchTicket(std::unique_ptr<Fetch> fetch) : fetch_(std::move(fetch)) {}
FetchTicket::FetchTicket(FetchTicket&&) noexcept = default;
FetchTicket& FetchTicket::operator=(FetchTicket&&) noexcept = default;
FetchTicket::~FetchTicket() = default;
void FetchTicket::wait_for_reads() const { static_cast<void>(fetch_->reads->wait().ok()); }

struct RowStore::Impl {
  RowStoreOptions options;
  std::unique_ptr<RowTier> tier;
  RowTraffic traffic;                            // medium: of what was lent
  std::mutex counting;                           // of what is lent, by several threads
  std::vector<std::vector<NearRows>> near_rows;  // [layers][kv_heads]; empty without a row cache
  // Of the fetch being begun; kept to save the allocations.
  std::vector<RowRead> reads;
  std::vector<CopyPiece> hits;
  std::vector<std::int32_t> slots;

  void finish_options();
  void make_row_cache();
  const LayerRowShape& shape(int layer) const { return options.layers[static_cast<std::size_t>(layer)]; }
  NearRows& near_head(int layer, int kv_head) {
    return near_rows[static_cast<std::size_t>(layer)][static_cast<std::size_t>(kv_head)];
  }
  Status check_fetch(int layer, const HeadFetch& head) const;
  void split_into_hits_and_reads(const HeadFetch& head, FetchTicket::Fetch* fetch);
  void count_fetched(int layer, std::size_t rows);
  Status stage_on_host(FetchTicket::Fetch* fetch);
  Status start_copy(FetchTicket::Fetch* fetch);
  Status admit(int layer, const Arrivals& arrivals);
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
  if (!(options.cache_share >= 0 && options.cache_share <= 1)) {
    return usage_error(fmt::format("cache={} is not a share of the rows; give a number from 0 to 1", options.cache_share));
  }
  KV_CHECK(options.fast != nullptr && options.slow != nullptr);
  return {};
}

}  // namespace

RowStore::RowStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RowStore::RowStore(RowStore&&) noexcept = default;
RowStore& RowStore::operator=(RowStore&&) noexcept = default;
RowStore::~RowStore() = default;

void RowStore::Impl::finish_options() {
  options.file.tier = options.tier;
  if (options.device == nullptr) options.device = Device::host(options.fast);
}

void RowStore::Impl::make_row_cache() {
  if (options.cache_share == 0) return;
  for (const LayerRowShape& layer : options.layers) near_rows.emplace_back(static_cast<std::size_t>(layer.kv_heads));
}

Result<RowStore> RowStore::create(RowStoreOptions options) {
  KV_TRY(check_options(options));
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  impl->finish_options();
  const RowStoreOptions& final = impl->options;
  if (final.tier == Tier::kRam) {
    impl->tier = std::make_unique<RamTier>(final.layers, final.slow);
  } else {
    KV_ASSIGN(impl->tier, FileTier::create(final.layers, final.fast, final.file));
  }
  impl->make_row_cache();
  return RowStore(std::move(impl));
}

Result<RowStore> RowStore::open_kept(const std::string& path, RowStoreOptions options) {
  if (options.tier == Tier::kRam)
    return usage_error(fmt::format("'{}' cannot be opened with tier=ram; use tier=disk or tier=mmap", path));
  options.layers.clear();
  KV_TRY(check_options(options));
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  impl->finish_options();
  KV_ASSIGN(auto tier, FileTier::open_kept(path, impl->options.fast, impl->options.file));
  impl->options.layers = tier->shapes();
  impl->tier = std::move(tier);
  impl->make_row_cache();
  return RowStore(std::move(impl));
}

RowStore RowStore::fork() const {
  auto impl = std::make_unique<Impl>();
  impl->options = impl_->options;
  impl->tier = impl_->tier->fork();
  impl->make_row_cache();
  return RowStore(std::move(impl));
}

Status RowStore::append(int layer, std::span<const std::span<const std::byte>> rows_by_head) {
  KV_CHECK(layer >= 0 && layer < layers());
  const LayerRowShape& shape = impl_->shape(layer);
  KV_CHECK(rows_by_head.size() == static_cast<std::size_t>(shape.kv_heads));
  for (const auto& rows : rows_by_head) KV_CHECK(rows.size() % shape.row_bytes == 0);
  return impl_->tier->append(layer, rows_by_head);
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

void RowStore::Impl::split_into_hits_and_reads(const HeadFetch& head, FetchTicket::Fetch* fetch) {
  const std::size_t row_bytes = shape(fetch->layer).row_bytes;
  if (near_rows.empty()) {
    for (std::size_t i = 0; i < head.rows.size(); ++i) reads.push_back({head.kv_head, head.rows[i], head.out + i * row_bytes});
    return;
  }
  NearRows& near = near_head(fetch->layer, head.kv_head);
  near.cache.look_up(head.rows, &slots);
  Arrivals arrivals = {.kv_head = head.kv_head};
  for (std::size_t i = 0; i < head.rows.size(); ++i) {
    std::byte* out = head.out + i * row_bytes;
    if (slots[i] != RowCache::kNone) {
      hits.push_back({out, near.slot(slots[i], row_bytes), row_bytes});
      continue;
    }
    reads.push_back({head.kv_head, head.rows[i], out});
    arrivals.rows.push_back(head.rows[i]);
    arrivals.at.push_back(out);
  }
  fetch->arrivals.push_back(std::move(arrivals));
}

// A tier writes only to host memory: rows for an accelerator pass through a host buffer, which one copy then empties.
Status RowStore::Impl::stage_on_host(FetchTicket::Fetch* fetch) {
  if (options.device->host_can_touch() || reads.empty()) return {};
  const std::size_t row_bytes = shape(fetch->layer).row_bytes;
  KV_ASSIGN(fetch->staging, options.slow->allocate(reads.size() * row_bytes));
  for (std::size_t i = 0; i < reads.size(); ++i) {
    std::byte* staged = fetch->staging.data() + i * row_bytes;
    fetch->pieces.push_back({reads[i].out, staged, row_bytes});
    reads[i].out = staged;
  }
  return {};
}

Status RowStore::Impl::start_copy(FetchTicket::Fetch* fetch) {
  KV_TRY(fetch->reads->wait());
  if (fetch->pieces.empty()) return {};
  KV_ASSIGN(fetch->copy, options.device->begin_copy(fetch->pieces));
  fetch->pieces.clear();
  return {};
}

Result<FetchTicket> RowStore::begin_fetch(int layer, std::span<const HeadFetch> heads) {
  KV_CHECK(layer >= 0 && layer < layers());
  Impl& impl = *impl_;
  impl.reads.clear();
  impl.hits.clear();
  for (const HeadFetch& head : heads) KV_TRY(impl.check_fetch(layer, head));
  auto fetch = std::make_unique<FetchTicket::Fetch>(impl.options.device);
  fetch->layer = layer;
  for (const HeadFetch& head : heads) impl.split_into_hits_and_reads(head, fetch.get());
  KV_TRY(impl.stage_on_host(fetch.get()));
  KV_ASSIGN(fetch->reads, impl.tier->begin_read(layer, impl.reads));
  KV_ASSIGN(fetch->copy, impl.options.device->begin_copy(impl.hits));
  if (impl.options.tier == Tier::kRam) KV_TRY(impl.start_copy(fetch.get()));  // read already: the link need not wait for wait()

  impl.traffic.rows_hit += impl.hits.size();
  impl.count_fetched(layer, impl.reads.size());
  return FetchTicket(std::move(fetch));
}

void RowStore::Impl::count_fetched(int layer, std::size_t rows) {
  const std::uint64_t bytes = rows * shape(layer).row_bytes;
  traffic.rows_fetched += rows;
  traffic.bytes_fetched += bytes;
  traffic.bytes_fetched_this_step += bytes;
}

bool RowStore::lends() const {
  return impl_->tier->lends() && impl_->near_rows.empty() && impl_->options.device->host_can_touch();
}

Result<LentRows> RowStore::lend(int layer, int kv_head, std::span<const std::int32_t> rows, const std::byte** where) {
  KV_CHECK(layer >= 0 && layer < layers());
  if (!lends()) return LentRows{};
  KV_TRY(impl_->check_fetch(layer, {.kv_head = kv_head, .rows = rows}));
  KV_ASSIGN(const LentRows lent, impl_->tier->lend(layer, kv_head, rows, where));
  if (!lent.lent) return lent;
  const std::lock_guard lock(impl_->counting);
  impl_->count_fetched(layer, rows.size());
  impl_->traffic.medium.reads += lent.traffic.reads;
  impl_->traffic.medium.bytes_read += lent.traffic.bytes_read;
  return lent;
}

Status RowStore::wait(FetchTicket ticket) {
  KV_CHECK(ticket.fetch_ != nullptr);
  FetchTicket::Fetch& fetch = *ticket.fetch_;
  KV_TRY(impl_->start_copy(&fetch));
  KV_TRY(impl_->options.device->wait(fetch.copy));
  for (const Arrivals& arrivals : fetch.arrivals) KV_TRY(impl_->admit(fetch.layer, arrivals));
  return {};
}

Status RowStore::Impl::admit(int layer, const Arrivals& arrivals) {
  NearRows& near = near_head(layer, arrivals.kv_head);
  const std::size_t row_bytes = shape(layer).row_bytes;
  const int capacity = static_cast<int>(options.cache_share * tier->rows(layer, arrivals.kv_head));
  near.cache.admit(arrivals.rows, capacity, &slots);
  hits.clear();
  Status status = near.hold_slots(*options.device, near.cache.slots(), row_bytes);
  if (status.ok()) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i] != RowCache::kNone) hits.push_back({near.slot(slots[i], row_bytes), arrivals.at[i], row_bytes});
    }
    auto copy = options.device->begin_copy(hits);
    status = copy.ok() ? options.device->wait(*copy) : copy.status();
  }
  if (status.ok()) return {};
  near.cache.forget(slots);
  return std::move(status).within(fmt::format("row cache of layer {} head {}", layer, arrivals.kv_head));
}

Status RowStore::fetch(int layer, std::span<const HeadFetch> heads) {
  KV_ASSIGN(FetchTicket ticket, begin_fetch(layer, heads));
  return wait(std::move(ticket));
}

Status RowStore::keep() { return impl_->tier->keep(); }

void RowStore::begin_step() { impl_->traffic.bytes_fetched_this_step = 0; }

int RowStore::layers() const { return static_cast<int>(impl_->options.layers.size()); }
int RowStore::kv_heads(int layer) const { return impl_->shape(layer).kv_heads; }
std::size_t RowStore::row_bytes(int layer) const { return impl_->shape(layer).row_bytes; }
int RowStore::rows(int layer, int kv_head) const { return impl_->tier->rows(layer, kv_head); }
std::string RowStore::medium() const { return impl_->tier->medium(); }

TierBytes RowStore::bytes() const {
  TierBytes total = impl_->tier->bytes();
  for (std::size_t l = 0; l < impl_->near_rows.size(); ++l) {
    for (const NearRows& near : impl_->near_rows[l]) {
      total.fast.live += static_cast<std::size_t>(near.cache.rows()) * impl_->options.layers[l].row_bytes;
      for (const DeviceBuffer& slab : near.slabs) total.fast.allocated += slab.size();
    }
  }
  return total;
}

RowTraffic RowStore::traffic() const {
  RowTraffic traffic = impl_->traffic;
  const TierBytes held = bytes();
  traffic.bytes_fast_resident = held.fast.allocated;
  traffic.bytes_slow_resident = held.slow.allocated;
  const MediumTraffic of_tier = impl_->tier->traffic();
  traffic.medium.reads += of_tier.reads;
  traffic.medium.bytes_read += of_tier.bytes_read;
  traffic.medium.bytes_written = of_tier.bytes_written;
  return traffic;
}

void RowStore::list_state(const std::string& prefix, std::vector<StateBuffer>* out) const {
  impl_->tier->list_state(prefix, out);
  for (std::size_t l = 0; l < impl_->near_rows.size(); ++l) {
    const std::size_t row_bytes = impl_->options.layers[l].row_bytes;
    for (std::size_t h = 0; h < impl_->near_rows[l].size(); ++h) {
      const NearRows& near = impl_->near_rows[l][h];
      ByteAccount bytes = {.live = static_cast<std::size_t>(near.cache.rows()) * row_bytes};
      for (const DeviceBuffer& slab : near.slabs) bytes.allocated += slab.size();
      if (bytes.allocated != 0) {
        out->push_back({.name = fmt::format("{}layer {} head {} row cache", prefix, l, h), .tier = Tier::kRam, .bytes = bytes});
      }
    }
  }
}

TierBytes predict_tier_bytes(const RowStoreOptions& options, int rows) {
  if (options.tier != Tier::kRam) {
    FileTierOptions file = options.file;
    file.tier = options.tier;
    return FileTier::predict(options.layers, file, rows);
  }
  TierBytes total;
  const auto chunks = static_cast<std::size_t>((rows + RamTier::kChunkRows - 1) / RamTier::kChunkRows);
  for (const LayerRowShape& shape : options.layers) {
    const auto heads = static_cast<std::size_t>(shape.kv_heads);
    total.slow.live += heads * static_cast<std::size_t>(rows) * shape.row_bytes;
    total.slow.allocated += heads * chunks * RamTier::kChunkRows * shape.row_bytes;
  }
  return total;
}

ByteAccount full_row_cache_bytes(const RowStoreOptions& options, int rows) {
  const int slots = static_cast<int>(options.cache_share * rows);
  const int slab_slots = (slots + kSlabRows - 1) / kSlabRows * kSlabRows;
  ByteAccount total;
  for (const LayerRowShape& shape : options.layers) {
    const std::size_t bytes = static_cast<std::size_t>(shape.kv_heads) * shape.row_bytes;
    total.live += bytes * static_cast<std::size_t>(slots);
    total.allocated += bytes * static_cast<std::size_t>(slab_slots);
  }
  return total;
}

}  // namespace kvartet
