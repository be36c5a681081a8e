// Memory from an arena at a page border, as reads and writes past the page cache want it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "core/arena.h"
#include "core/file_system.h"
#include "core/status.h"

namespace kvartet {

class PageBuffer {
 public:
  static constexpr std::size_t kAlignment = RandomAccessFile::kDirectAlignment;
  // What the arena is asked for: room to move the start to a page border.
  static constexpr std::size_t allocation(std::size_t bytes) { return bytes + kAlignment; }

  PageBuffer() = default;
  static Result<PageBuffer> create(Arena& arena, std::size_t bytes) {
    PageBuffer buffer;
    KV_ASSIGN(buffer.memory_, arena.allocate(allocation(bytes)));
    const auto address = reinterpret_cast<std::uintptr_t>(buffer.memory_.data());
    buffer.pages_ = {buffer.memory_.data() + (kAlignment - address % kAlignment) % kAlignment, bytes};
    return buffer;
  }
  std::span<std::byte> bytes() const { return pages_; }
  std::size_t allocated() const { return memory_.size(); }

 private:
  Buffer memory_;
  std::span<std::byte> pages_;
};

}  // namespace kvartet
