// Memory for tiles: every byte of a cache is allocated here, so the byte accounts are counts and not formulas.
//
// An Arena counts, keeps a cap, and can be told to fail (tests). A Buffer is a move-only, 64-byte aligned,
// zero-filled block that gives its bytes back when it dies. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>

#include "core/status.h"

namespace kvartet {

class Arena;

class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> bytes() { return {data_, size_}; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  friend class Arena;
  Buffer(std::shared_ptr<Arena> arena, std::byte* data, std::size_t size);
  std::shared_ptr<Arena> arena_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  static constexpr std::size_t kNoCap = ~std::size_t{0};
  static std::shared_ptr<Arena> create(std::size_t cap_bytes = kNoCap);

  // Exhausted when the cap or the machine does not allow `size` bytes more.
  Result<Buffer> allocate(std::size_t size);

  std::size_t allocated_bytes() const { return used_.load(); }
  std::size_t peak_bytes() const { return peak_.load(); }
  std::size_t cap_bytes() const { return cap_; }

  // Tests: the n-th allocation from now (1 = the next) fails once; 0 switches this off.
  void fail_nth_allocation(long n) { fail_in_.store(n); }

 private:
  friend class Buffer;
  explicit Arena(std::size_t cap) : cap_(cap) {}
  void release(std::byte* data, std::size_t size);

  std::size_t cap_;
  std::atomic<std::size_t> used_{0};
  std::atomic<std::size_t> peak_{0};
  std::atomic<long> fail_in_{0};
};

}  // namespace kvartet
