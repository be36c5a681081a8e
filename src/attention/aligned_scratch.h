// Scratch memory of a kernel's caller: 64-byte aligned, grows and never shrinks, so that steady state allocates nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace kvartet {

class AlignedScratch {
 public:
  // At least `count` floats. What was there before is lost when it has to grow; the contents are undefined.
  float* ensure(std::size_t count) {
    if (count > capacity_) {
      floats_.reset();
      floats_.reset(static_cast<float*>(::operator new(count * sizeof(float), kAlignment)));
      capacity_ = count;
    }
    return floats_.get();
  }

  float* data() { return floats_.get(); }

  std::byte* ensure_bytes(std::size_t count) {
    ensure((count + sizeof(float) - 1) / sizeof(float));
    return bytes();
  }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(floats_.get()); }

  // Floats rounded up so that the next piece of the same scratch starts on a cache line again.
  static constexpr std::size_t padded(std::size_t count) { return (count + 15) / 16 * 16; }
  static constexpr std::size_t padded_bytes(std::size_t count) { return (count + 63) / 64 * 64; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Release {
    void operator()(float* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<float, Release> floats_;
  std::size_t capacity_ = 0;
};

}  // namespace kvartet
