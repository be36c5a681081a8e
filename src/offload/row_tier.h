// The seam between a sequence's rows and where they lie: one class per slow tier (offloading.md 1.2).
//
// A tier keeps, per layer and KV head, a growing list of rows of fixed size. Rows are immutable once appended. A tier
// neither counts hits nor caches: that is RowStore's part (offload/row_store.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/status.h"

namespace kvartet {

// One layer's rows: a row is what one token leaves for one KV head, its keys and values side by side (offloading.md 1.1b).
struct LayerRowShape {
  int kv_heads = 0;
  std::size_t row_bytes = 0;
};

struct RowRead {
  int kv_head = 0;
  std::int32_t row = 0;
  std::byte* out = nullptr;  // [row_bytes of the layer]
};

// Bytes held in each tier. live: bytes that carry rows; allocated: with unfilled rows, page padding and tables.
struct TierBytes {
  ByteAccount fast;
  ByteAccount slow;
  bool operator==(const TierBytes&) const = default;
};

// What the medium was asked for; more than the rows' own bytes where it reads whole pages.
struct MediumTraffic {
  std::uint64_t reads = 0;
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
};

// What a tier says of rows that it lends.
struct LentRows {
  bool lent = false;  // else they have to be read
  // Of a mapped file: rows in it are read guarded (offload/fault_guard.h), others lie in memory.
  std::span<const std::byte> mapped = {};
  MediumTraffic traffic = {};  // of this call; the tier does not count it
};

// Reads under way. Dying waits for them, so that no `out` is written to later.
class PendingReads {
 public:
  virtual ~PendingReads() = default;
  virtual Status wait() = 0;  // after an error some of the `out` may be filled; none of it may be used
};

// Not thread-safe; forks are independent objects and may live on different threads.
class RowTier {
 public:
  virtual ~RowTier() = default;

  // rows_by_head[h]: whole rows for KV head h, possibly none. All or nothing. kExhausted: no memory or space; kIo.
  virtual Status append(int layer, std::span<const std::span<const std::byte>> rows_by_head) = 0;

  // The rows exist and `out` stays valid until the reads are waited for. A tier without latency reads at once.
  virtual Result<std::unique_ptr<PendingReads>> begin_read(int layer, std::span<const RowRead> reads) = 0;

  // Where rows lie, if they can be read there. They stay until this tier and its forks are gone, or until something is appended
  // here. kIo: as begin_read. Several threads may ask, while nothing else is called.
  virtual bool lends() const { return false; }
  virtual Result<LentRows> lend(int layer, int kv_head, std::span<const std::int32_t> rows, const std::byte** where) const {
    (void)layer, (void)kv_head, (void)rows, (void)where;
    return LentRows{};
  }

  // Shares all content; what either side appends later is its own. Cannot fail: takes no memory from the tiers.
  virtual std::unique_ptr<RowTier> fork() const = 0;

  virtual int rows(int layer, int kv_head) const = 0;
  virtual TierBytes bytes() const = 0;
  virtual MediumTraffic traffic() const = 0;
  virtual std::string medium() const = 0;  // how it is reached: "io_uring, past the page cache"
  virtual Status keep() = 0;               // closes the rows under the name they were to be kept by; kUsage: there is none
  virtual void list_state(const std::string& prefix, std::vector<StateBuffer>* out) const = 0;
};

}  // namespace kvartet
