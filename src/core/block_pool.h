// Where tiles and rows get their memory: blocks of one size side by side in huge pages.
//
// A cache is thousands of blocks of a few sizes, and a decode step reads all of them, or some in any order. In pages of 4 KiB
// it waits for address translations as well as for memory: in 2 MiB pages attention of `full` takes a tenth less
// (docs/decisions/0021-huge-pages.md). malloc deals in many sizes and gives pages back late, so what many blocks of one size
// need is taken from the system directly. A size of which little is held stays with malloc: what a pool holds in vain is never
// more than what it holds in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

namespace kvartet {

// Thread-safe. Blocks are aligned to 64 bytes and zero-filled.
class BlockPool {
 public:
  static constexpr std::size_t kAlign = 64;
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;

  BlockPool() = default;
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;
  ~BlockPool();  // no block is in use any more

  // The pool of all arenas. It outlives every block: it is never destroyed.
  static BlockPool& of_process();

  // Null: the system has no memory. size: at least 1, at most PTRDIFF_MAX - kHugePage.
  std::byte* take(std::size_t size);
  void give(std::byte* block, std::size_t size);  // what take(size) returned

  std::size_t slab_bytes() const;  // taken from the system, without what malloc gave

 private:
  struct Slab {
    std::size_t bytes = 0;
    std::size_t block_bytes = 0;
    std::uint32_t blocks = 0;
    std::uint32_t untouched = 0;           // the first block that was never in use, and so is zero still
    std::vector<std::uint32_t> free = {};  // that were in use
    std::uint32_t in_use() const { return untouched - static_cast<std::uint32_t>(free.size()); }
    bool is_full() const { return in_use() == blocks; }
  };
  struct Class {
    std::size_t bytes_in_use = 0;
    std::set<std::byte*> with_room = {};  // slabs, lowest first: the others become empty and go
  };

  std::byte* take_from_slab(Class& of_size, std::size_t block_bytes, bool* is_zero);
  bool add_slab(Class& of_size, std::size_t block_bytes);

  mutable std::mutex mutex_;
  std::map<std::byte*, Slab> slabs_;                // by where they start
  std::unordered_map<std::size_t, Class> classes_;  // by block_bytes
};

}  // namespace kvartet
