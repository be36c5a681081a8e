#include "offload/page_reader.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>
#include <utility>

namespace kvartet {

std::uint32_t page_checksum(std::span<const std::byte> page) {
  return static_cast<std::uint32_t>(XXH3_64bits(page.data(), page.size()));
}

Status cut_short(const std::string& path, std::uint64_t size, std::uint64_t end) {
  return io_error(
      fmt::format("cannot read '{}': it has {} bytes, but {} are needed; was it cut short while in use?", path, size, end));
}

Status ReadJob::deliver(std::size_t i, std::span<const std::byte> data) const {
  const PageExtent& extent = extents[i];
  std::size_t checked = extent.bytes;  // the page of the row before; pages between rows concern nobody
  for (const PagePiece& piece : std::span(pieces).subspan(extent.first_piece, extent.pieces)) {
    const std::size_t page = piece.at / page_bytes * page_bytes;
    if (page != checked && page_checksum(data.subspan(page, page_bytes)) != sums[extent.first_sum + page / page_bytes]) {
      return damaged(extent.offset + page);
    }
    checked = page;
    std::memcpy(piece.out, data.data() + piece.at, row_bytes);
  }
  return {};
}

Status ReadJob::damaged(std::uint64_t page_offset) const {
  return io_error(fmt::format("'{}' is damaged: the checksum of the page at byte {} does not match", path, page_offset));
}

std::uint64_t ReadJob::bytes() const {
  std::uint64_t sum = 0;
  for (const PageExtent& extent : extents) sum += extent.bytes;
  return sum;
}

void ReadJob::finish_extent(std::size_t i, Status status) {
  const std::lock_guard lock(mutex_);
  if (!status.ok() && (status_.ok() || i < failed_extent_)) {
    failed_extent_ = i;
    status_ = std::move(status).within(place);
  }
  if (++done_ == extents.size()) all_done_.notify_all();
}

void ReadJob::finish_all(Status status) {
  const std::lock_guard lock(mutex_);
  status_ = std::move(status).within(place);
  done_ = extents.size();
  all_done_.notify_all();
}

bool ReadJob::done() {
  const std::lock_guard lock(mutex_);
  return done_ == extents.size();
}

Status ReadJob::wait() {
  std::unique_lock lock(mutex_);
  all_done_.wait(lock, [&] { return done_ == extents.size(); });
  return status_;
}

}  // namespace kvartet
