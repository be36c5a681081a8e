#include "core/block_pool.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <iterator>

#include "core/check.h"

namespace kvartet {
namespace {

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

// Under the address sanitizer every block is malloc's, which watches its ends.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kUsesSlabs = false;
#else
constexpr bool kUsesSlabs = true;
#endif

// Large blocks have one each; else what is left at the end, less than a block, is at most an eighth. Pages are taken as they are
// touched, so a slab of several costs nothing before.
std::size_t slab_bytes_for(std::size_t block_bytes) {
  if (block_bytes >= BlockPool::kHugePage) return round_up(block_bytes, BlockPool::kHugePage);
  return round_up(8 * block_bytes, BlockPool::kHugePage);
}

// Aligned to a huge page: only a whole one of address space can become one.
std::byte* map_slab(std::size_t bytes) {
  constexpr std::size_t kPage = BlockPool::kHugePage;
  void* const mapped = ::mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(mapped);
  const std::size_t before = (kPage - reinterpret_cast<std::uintptr_t>(begin) % kPage) % kPage;
  if (before != 0) ::munmap(begin, before);
  if (before != kPage) ::munmap(begin + before + bytes, kPage - before);
  // A system without huge pages refuses; small ones hold as much.
  static_cast<void>(::madvise(begin + before, bytes, MADV_HUGEPAGE));
  return begin + before;
}

std::byte* take_from_malloc(std::size_t bytes) {
  void* const block = std::aligned_alloc(BlockPool::kAlign, bytes);
  if (block != nullptr) std::memset(block, 0, bytes);
  return static_cast<std::byte*>(block);
}

}  // namespace

BlockPool& BlockPool::of_process() {
  static auto* const pool = new BlockPool;  // never destroyed: a static object may hold a buffer
  return *pool;
}

BlockPool::~BlockPool() {
  for (const auto& [start, slab] : slabs_) {
    KV_CHECK(slab.in_use() == 0);
    ::munmap(start, slab.bytes);
  }
}

std::byte* BlockPool::take(std::size_t size) {
  const std::size_t bytes = round_up(size, kAlign);
  bool is_zero = false;
  std::byte* block = nullptr;
  {
    const std::lock_guard lock(mutex_);
    Class& of_size = classes_[bytes];
    const bool many = kUsesSlabs && of_size.bytes_in_use + bytes > kHugePage;
    if (many) block = take_from_slab(of_size, bytes, &is_zero);
    if (block != nullptr) of_size.bytes_in_use += bytes;
  }
  if (block != nullptr) {
    if (!is_zero) std::memset(block, 0, bytes);
    return block;
  }
  block = take_from_malloc(bytes);
  const std::lock_guard lock(mutex_);
  if (block != nullptr) classes_[bytes].bytes_in_use += bytes;
  return block;
}

std::byte* BlockPool::take_from_slab(Class& of_size, std::size_t block_bytes, bool* is_zero) {
  if (of_size.with_room.empty() && !add_slab(of_size, block_bytes)) return nullptr;
  std::byte* const start = *of_size.with_room.begin();
  Slab& slab = slabs_.at(start);
  *is_zero = slab.free.empty();
  std::uint32_t index = 0;
  if (*is_zero) {
    index = slab.untouched++;
  } else {
    index = slab.free.back();
    slab.free.pop_back();
  }
  if (slab.is_full()) of_size.with_room.erase(start);
  return start + std::size_t{index} * block_bytes;
}

bool BlockPool::add_slab(Class& of_size, std::size_t block_bytes) {
  const std::size_t bytes = slab_bytes_for(block_bytes);
  std::byte* const start = map_slab(bytes);
  if (start == nullptr) return false;
  slabs_[start] = {.bytes = bytes, .block_bytes = block_bytes, .blocks = static_cast<std::uint32_t>(bytes / block_bytes)};
  of_size.with_room.insert(start);
  return true;
}

void BlockPool::give(std::byte* block, std::size_t size) {
  const std::size_t bytes = round_up(size, kAlign);
  {
    const std::lock_guard lock(mutex_);
    const auto of_size = classes_.find(bytes);
    of_size->second.bytes_in_use -= bytes;
    const auto after = slabs_.upper_bound(block);
    const auto at = after == slabs_.begin() ? slabs_.end() : std::prev(after);
    if (at != slabs_.end() && block < at->first + at->second.bytes) {
      Slab& slab = at->second;
      KV_CHECK(slab.block_bytes == bytes);
      slab.free.push_back(static_cast<std::uint32_t>(static_cast<std::size_t>(block - at->first) / bytes));
      of_size->second.with_room.insert(at->first);
      if (slab.in_use() == 0) {
        of_size->second.with_room.erase(at->first);
        ::munmap(at->first, slab.bytes);
        slabs_.erase(at);
      }
      block = nullptr;
    }
    if (of_size->second.bytes_in_use == 0) classes_.erase(of_size);
  }
  std::free(block);
}

std::size_t BlockPool::slab_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [start, slab] : slabs_) bytes += slab.bytes;
  return bytes;
}

}  // namespace kvartet
