// One sequence's rows in the slow tier, and the way to bring chosen rows of them near.
//
// A row is addressed by (layer, KV head, row) and has a fixed size per layer. It holds keys and values together, because a
// fetch needs both: one random read instead of two. A method that offloads only one side (ShadowKV: values) has shorter rows;
// one whose codes need all heads at once (joint groups) has one "KV head" with long rows.
//
// begin_fetch starts, wait ends: between them other work runs, the compute of another layer for instance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/bytes.h"
#include "core/status.h"
#include "offload/device.h"
#include "offload/file_tier.h"
#include "offload/row_tier.h"

namespace kvartet {

struct RowStoreOptions {
  Tier tier = Tier::kRam;
  std::vector<LayerRowShape> layers = {};
  std::shared_ptr<Arena> fast = {};     // row cache, buffers, tables; its cap is the fast tier's cap
  std::shared_ptr<Arena> slow = {};     // the rows of tier=ram; its cap is the slow tier's cap
  FileTierOptions file = {};            // tier=mmap, tier=disk; file.tier is set from `tier`, file.budget is the slow tier's cap
  double cache_share = 0;               // row cache: the share of a head's rows that may stay near between fetches, 0 to 1
  std::shared_ptr<Device> device = {};  // where `out` and the row cache lie; null: host memory of `fast`
};

// Rows of one KV head to fetch.
struct HeadFetch {
  int kv_head = 0;
  std::span<const std::int32_t> rows = {};  // ascending, without repetition
  std::byte* out = nullptr;                 // on the device: [rows.size(), row_bytes]: row i of the list at out + i * row_bytes
};

// offloading.md 1.2. rows_fetched + rows_hit: rows asked for since the beginning; fetched bytes are rows_fetched * row size.
struct RowTraffic {
  std::size_t bytes_fast_resident = 0;
  std::size_t bytes_slow_resident = 0;
  std::uint64_t bytes_fetched_this_step = 0;
  std::uint64_t bytes_fetched = 0;
  std::uint64_t rows_fetched = 0;  // crossed the link
  std::uint64_t rows_hit = 0;      // were near already
  MediumTraffic medium;            // read amplification: medium.bytes_read / bytes_fetched
};

class RowStore;

// A fetch under way. Dying waits for it. Must not outlive its store.
class [[nodiscard]] FetchTicket {
 public:
  FetchTicket(FetchTicket&&) noexcept;
  FetchTicket& operator=(FetchTicket&&) noexcept;
  ~FetchTicket();

  // Until the tier has read what was asked for; whether it could, RowStore::wait() says. The one thing that several threads may
  // do at once, each with a ticket of its own.
  void wait_for_reads() const;

 private:
  friend class RowStore;
  struct Fetch;
  explicit FetchTicket(std::unique_ptr<Fetch> fetch);
  std::unique_ptr<Fetch> fetch_;
};

// Not thread-safe, but forks may be used by different threads at the same time.
class RowStore {
 public:
  // kUsage: a layer without heads or with rows of no bytes; kExhausted, kIo: what the tier needs at the start is not there.
  static Result<RowStore> create(RowStoreOptions options);
  // A file that keep() left behind, with tier=mmap or tier=disk; options.layers come from the file. It takes no more rows.
  // kBadInput: not such a file, damaged, of another version or not finished.
  static Result<RowStore> open_kept(const std::string& path, RowStoreOptions options);
  RowStore(RowStore&&) noexcept;
  RowStore& operator=(RowStore&&) noexcept;
  ~RowStore();

  // Shares all rows so far; later rows are each side's own. The fork starts with counters at zero and nothing cached.
  RowStore fork() const;

  // rows_by_head[h]: whole rows for KV head h of the layer, one behind the other, possibly none; counts may differ.
  // All or nothing: on failure the layer has the rows it had. kExhausted: a cap or memory; kIo: the disk.
  Status append(int layer, std::span<const std::span<const std::byte>> rows_by_head);

  // Heads in any order, each at most once. `out` may be read after wait() returned ok, and must stay valid until then.
  // Several fetches may be under way and be waited for in any order. kInternal: rows that are not there or not ascending;
  // kIo: a read failed, or a page is damaged; kExhausted: the row cache may not grow. After an error use nothing of `out`.
  Result<FetchTicket> begin_fetch(int layer, std::span<const HeadFetch> heads);
  Status wait(FetchTicket ticket);
  Status fetch(int layer, std::span<const HeadFetch> heads);  // both

  // The same where rows need no copy to be read, in host memory or a mapped file and without a row cache: where each of them
  // lies, for as long as the store lives and nothing is appended. Not lent: fetch them. Counts as a fetch. Errors: as above.
  // Several threads may ask, while nothing else is called.
  bool lends() const;
  Result<LentRows> lend(int layer, int kv_head, std::span<const std::int32_t> rows, const std::byte** where);

  // Writes what is still in memory, closes the file and gives it its name (options.file.keep_as). No append after it.
  Status keep();

  void begin_step();  // a decode step begins: bytes_fetched_this_step is zero again

  int layers() const;
  int kv_heads(int layer) const;
  std::size_t row_bytes(int layer) const;
  int rows(int layer, int kv_head) const;

  std::string medium() const;  // how the slow tier is reached: "io_uring, past the page cache"
  RowTraffic traffic() const;
  TierBytes bytes() const;
  void list_state(const std::string& prefix, std::vector<StateBuffer>* out) const;

  struct Impl;

 private:
  explicit RowStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Exactly the bytes that a store holds after `rows` rows were appended to every layer and head and nothing was fetched.
TierBytes predict_tier_bytes(const RowStoreOptions& options, int rows);

// What a row cache holds at most then, in whole slabs.
ByteAccount full_row_cache_bytes(const RowStoreOptions& options, int rows);

}  // namespace kvartet
