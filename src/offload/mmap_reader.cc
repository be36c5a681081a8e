// A memory map: rows are copied straight out of the page cache, or read there. A page is checked when its first row is read, by
// whichever fork comes first.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "offload/fault_guard.h"
#include "offload/page_reader.h"

namespace kvartet {
namespace {

class Mapping {
 public:
  Mapping(const std::byte* base, std::uint64_t bytes) : base_(base), bytes_(bytes) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(const_cast<std::byte*>(base_), bytes_); }
  const std::byte* base() const { return base_; }
  std::uint64_t size() const { return bytes_; }

 private:
  const std::byte* base_;
  std::uint64_t bytes_;
};

constexpr std::size_t kLine = 64;

// Where the first damaged page is; 0 (never a page of rows): nowhere.
std::uint64_t check_once(const ReadJob& job, const PageExtent& extent, const std::byte* base) {
  for (std::size_t page = 0; page * job.page_bytes < extent.bytes; ++page) {
    const PageMark& mark = job.marks[extent.first_sum + page];
    if (mark.of_run->has(mark.page)) continue;
    const std::uint64_t offset = extent.offset + page * job.page_bytes;
    if (page_checksum({base + offset, job.page_bytes}) != job.sums[extent.first_sum + page]) return offset;
    mark.of_run->set(mark.page);
  }
  return 0;
}

// Runs guarded: owns nothing. A page is fetched whole while the one before is checked.
std::uint64_t check_all(const ReadJob& job, const std::byte* base) {
  for (std::size_t i = 0; i < job.extents.size(); ++i) {
    if (i + 1 < job.extents.size()) {
      const std::byte* const later = base + job.extents[i + 1].offset;
      for (std::size_t line = 0; line < job.extents[i + 1].bytes; line += kLine) __builtin_prefetch(later + line);
    }
    if (const std::uint64_t damaged = check_once(job, job.extents[i], base); damaged != 0) return damaged;
  }
  return 0;
}

// The same of all that the job needs, while it copies. Runs guarded: owns nothing.
std::uint64_t copy_rows(const ReadJob& job, const std::byte* base) {
  constexpr std::size_t kAhead = 8;
  for (std::size_t i = 0; i < job.extents.size(); ++i) {
    if (i + kAhead < job.extents.size()) {
      const PageExtent& later = job.extents[i + kAhead];
      const std::byte* row = base + later.offset + job.pieces[later.first_piece].at;
      for (std::size_t line = 0; line < job.row_bytes; line += kLine) __builtin_prefetch(row + line);
    }
    const PageExtent& extent = job.extents[i];
    if (const std::uint64_t damaged = check_once(job, extent, base); damaged != 0) return damaged;
    for (std::size_t p = extent.first_piece; p < extent.first_piece + extent.pieces; ++p) {
      std::memcpy(job.pieces[p].out, base + extent.offset + job.pieces[p].at, job.row_bytes);
    }
  }
  return 0;
}

class MmapReader : public PageReader {
 public:
  explicit MmapReader(RandomAccessFile& file) : file_(file) {}

  void start(std::shared_ptr<ReadJob> job) override { job->finish_all(read_from_map(*job, copy_rows)); }

  std::size_t allocated_bytes() const override { return 0; }

  // Asked every time: a file that became shorter should say so, and not only fail.
  Result<std::span<const std::byte>> mapped() override {
    KV_ASSIGN(const std::uint64_t size, file_.size());
    KV_ASSIGN(const Mapping* mapping, mapping_of(size));
    return std::span<const std::byte>(mapping->base(), size);
  }

  Status check(const ReadJob& job) override { return read_from_map(job, check_all); }

 private:
  // Lets `work` read the map, and return where a damaged page is.
  Status read_from_map(const ReadJob& job, std::uint64_t (*work)(const ReadJob&, const std::byte*)) {
    std::uint64_t end = 0;
    for (const PageExtent& extent : job.extents) end = std::max(end, extent.offset + extent.bytes);
    KV_ASSIGN(const std::span<const std::byte> map, mapped());
    if (map.size() < end) return cut_short(job.path, map.size(), end);
    if (job.extents.empty()) return {};
    std::uint64_t damaged = 0;
    if (!read_guarded(map, [&] { damaged = work(job, map.data()); })) {
      KV_ASSIGN(const std::uint64_t now, file_.size());
      if (now < end) return cut_short(job.path, now, end);
      return io_error(fmt::format("cannot read '{}': the system could not load a page of it", job.path));
    }
    return damaged != 0 ? job.damaged(damaged) : Status();
  }

  // A map may reach past the end of its file, and shows what is written there later: so it is made in large steps. One that has
  // become too short stays, since others still read through it; each takes addresses, not memory.
  Result<const Mapping*> mapping_of(std::uint64_t size) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t mapped = mappings_.empty() ? 0 : mappings_.back()->size();
    if (!mappings_.empty() && size <= mapped) return mappings_.back().get();
    constexpr std::uint64_t kLeast = std::uint64_t{64} << 20;
    std::uint64_t bytes = std::max(kLeast, mapped);
    while (bytes < size) bytes *= 2;
    void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file_.descriptor(), 0);
    if (data == MAP_FAILED) {
      return exhausted(
          fmt::format("cannot map {} bytes of a file: {}; use tier=disk", bytes, std::generic_category().message(errno)));
    }
    mappings_.push_back(std::make_unique<const Mapping>(static_cast<const std::byte*>(data), bytes));
    return mappings_.back().get();
  }

  RandomAccessFile& file_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<const Mapping>> mappings_;  // each twice as long as the one before, or more
};

}  // namespace

Result<std::unique_ptr<PageReader>> make_mmap_reader(RandomAccessFile& file) {
  if (file.descriptor() < 0) return io_error("the file has no descriptor and cannot be mapped");
  return std::unique_ptr<PageReader>(std::make_unique<MmapReader>(file));
}

}  // namespace kvartet
