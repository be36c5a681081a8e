// A memory map: rows are copied straight out of the page cache. A page is checked when its first row is read.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "offload/fault_guard.h"
#include "offload/page_reader.h"

namespace kvartet {
namespace {

class MmapReader : public PageReader {
 public:
  explicit MmapReader(RandomAccessFile& file) : file_(file) {}
  ~MmapReader() override { unmap(); }

  void start(std::shared_ptr<ReadJob> job) override { job->finish_all(read(*job)); }

  std::size_t allocated_bytes() const override { return 0; }

 private:
  Status read(const ReadJob& job) {
    std::uint64_t end = 0;
    for (const PageExtent& extent : job.extents) end = std::max(end, extent.offset + extent.bytes);
    // Asked every time: a file that became shorter should say so, and not only fail.
    KV_ASSIGN(const std::uint64_t size, file_.size());
    if (size < end) return cut_short(job, size, end);
    KV_TRY(map(end));
    std::uint64_t damaged = 0;
    if (!read_guarded({base_, mapped_}, [&] { damaged = copy_rows(job); })) {
      KV_ASSIGN(const std::uint64_t now, file_.size());
      if (now < end) return cut_short(job, now, end);
      return io_error(fmt::format("cannot read '{}': the system could not load a page of it", job.path));
    }
    return damaged == 0 ? Status() : job.damaged(damaged);
  }

  static Status cut_short(const ReadJob& job, std::uint64_t size, std::uint64_t end) {
    return io_error(
        fmt::format("cannot read '{}': it has {} bytes, but {} are needed; was it cut short while in use?", job.path, size, end));
  }

  // Where the first damaged page is; 0 (never a page of rows): nowhere. Runs guarded: owns nothing.
  std::uint64_t copy_rows(const ReadJob& job) {
    constexpr std::size_t kAhead = 8;
    constexpr std::size_t kLine = 64;
    for (std::size_t i = 0; i < job.extents.size(); ++i) {
      if (i + kAhead < job.extents.size()) {
        const PageExtent& later = job.extents[i + kAhead];
        const std::byte* row = base_ + later.offset + job.pieces[later.first_piece].at;
        for (std::size_t line = 0; line < job.row_bytes; line += kLine) __builtin_prefetch(row + line);
      }
      const PageExtent& extent = job.extents[i];
      if (const std::uint64_t damaged = check_once(job, extent); damaged != 0) return damaged;
      for (std::size_t p = extent.first_piece; p < extent.first_piece + extent.pieces; ++p) {
        std::memcpy(job.pieces[p].out, base_ + extent.offset + job.pieces[p].at, job.row_bytes);
      }
    }
    return 0;
  }

  std::uint64_t check_once(const ReadJob& job, const PageExtent& extent) {
    for (std::size_t page = 0; page * job.page_bytes < extent.bytes; ++page) {
      const std::uint64_t offset = extent.offset + page * job.page_bytes;
      const std::uint64_t unit = offset / RandomAccessFile::kDirectAlignment;
      std::uint64_t& word = checked_[unit / 64];
      const std::uint64_t bit = std::uint64_t{1} << (unit % 64);
      if ((word & bit) != 0) continue;
      if (page_checksum({base_ + offset, job.page_bytes}) != job.sums[extent.first_sum + page]) return offset;
      word |= bit;
    }
    return 0;
  }

  // A map may reach past the end of its file, and shows what is written there later: so it is made in large steps.
  Status map(std::uint64_t end) {
    if (end <= mapped_) return {};
    constexpr std::uint64_t kLeast = std::uint64_t{64} << 20;
    std::uint64_t bytes = std::max(kLeast, mapped_);
    while (bytes < end) bytes *= 2;
    unmap();
    void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file_.descriptor(), 0);
    if (data == MAP_FAILED) {
      return exhausted(
          fmt::format("cannot map {} bytes of a file: {}; use tier=disk", bytes, std::generic_category().message(errno)));
    }
    base_ = static_cast<const std::byte*>(data);
    mapped_ = bytes;
    checked_.resize(bytes / RandomAccessFile::kDirectAlignment / 64);
    return {};
  }

  void unmap() {
    if (mapped_ != 0) ::munmap(const_cast<std::byte*>(base_), mapped_);
    base_ = nullptr;
    mapped_ = 0;
  }

  RandomAccessFile& file_;
  const std::byte* base_ = nullptr;
  std::uint64_t mapped_ = 0;
  std::vector<std::uint64_t> checked_;  // one bit per 4 KiB: its page's checksum was right
};

}  // namespace

Result<std::unique_ptr<PageReader>> make_mmap_reader(RandomAccessFile& file) {
  if (file.descriptor() < 0) return io_error("the file has no descriptor and cannot be mapped");
  return std::unique_ptr<PageReader>(std::make_unique<MmapReader>(file));
}

}  // namespace kvartet
