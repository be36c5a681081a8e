#include "core/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/block_pool.h"

namespace kvartet {
namespace {
constexpr std::size_t kLargest = PTRDIFF_MAX - 2 * BlockPool::kHugePage;  // rounding up may not overflow; no object can be larger
}  // namespace

Buffer::Buffer(std::shared_ptr<Arena> arena, std::byte* data, std::size_t size)
    : arena_(std::move(arena)), data_(data), size_(size) {}

Buffer::Buffer(Buffer&& other) noexcept
    : arena_(std::move(other.arena_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    Buffer gone(std::move(*this));
    arena_ = std::move(other.arena_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) arena_->release(data_, size_);
}

std::shared_ptr<Arena> Arena::create(std::size_t cap_bytes) { return std::shared_ptr<Arena>(new Arena(cap_bytes)); }

Result<Buffer> Arena::allocate(std::size_t size) {
  if (fail_in_.load() > 0 && fail_in_.fetch_sub(1) == 1) return exhausted(fmt::format("no memory for {} bytes (injected)", size));
  const std::size_t limit = std::min(cap_, kLargest);
  std::size_t used = used_.load();
  do {
    if (size > limit || used > limit - size) {
      return exhausted(
          fmt::format("the cache needs {} bytes more, but {} of its {} bytes are in use; "
                      "raise --fast-tier-bytes or choose a smaller cache (kvartet explain)",
                      size, used, limit));
    }
  } while (!used_.compare_exchange_weak(used, used + size));
  std::byte* const data = size == 0 ? nullptr : BlockPool::of_process().take(size);
  if (size != 0 && data == nullptr) {
    used_.fetch_sub(size);
    return exhausted(fmt::format("the machine has no memory for {} bytes more; choose a smaller cache or context", size));
  }
  const std::size_t now = used + size;
  std::size_t peak = peak_.load();
  while (peak < now && !peak_.compare_exchange_weak(peak, now)) {}
  return Buffer(shared_from_this(), data, size);
}

void Arena::release(std::byte* data, std::size_t size) {
  BlockPool::of_process().give(data, size);
  used_.fetch_sub(size);
}

}  // namespace kvartet
