// Reads pages of a row file, checks them, and copies the rows asked for out of them.
//
// Three ways: io_uring, driven by the threads that ask and wait, pread on a few threads of its own (where io_uring is not allowed
// or the file has no descriptor), and a memory map. Whatever the way, a page whose checksum is wrong gives an error and no row.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/file_system.h"
#include "core/status.h"

namespace kvartet {

// A row within an extent.
struct PagePiece {
  std::uint32_t at = 0;  // bytes from the start of the extent
  std::byte* out = nullptr;
};

// Pages that are read with one request; some of them only because they lie between others.
struct PageExtent {
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  std::uint32_t first_piece = 0;
  std::uint32_t pieces = 0;
  std::uint32_t first_sum = 0;  // one checksum per page
};

std::uint32_t page_checksum(std::span<const std::byte> page);

// Which pages of a run were found undamaged by the map that reads them. They are written before anyone reads and never again, so
// whoever reads the run, forks on other threads too, need not check them a second time.
class PageMarks {
 public:
  explicit PageMarks(std::size_t pages) : words_((pages + 63) / 64) {}
  bool has(std::size_t page) const { return (words_[page / 64].load(std::memory_order_relaxed) & bit(page)) != 0; }
  void set(std::size_t page) { words_[page / 64].fetch_or(bit(page), std::memory_order_relaxed); }

 private:
  static std::uint64_t bit(std::size_t page) { return std::uint64_t{1} << (page % 64); }
  std::vector<std::atomic<std::uint64_t>> words_;
};

struct PageMark {
  PageMarks* of_run = nullptr;
  std::uint32_t page = 0;
};

// What one fetch of one layer needs of a file.
class ReadJob {
 public:
  std::size_t page_bytes = 0;
  std::size_t row_bytes = 0;
  std::string path;   // for messages
  std::string place;  // "layer 3"
  std::vector<PageExtent> extents;
  std::vector<PagePiece> pieces;
  std::vector<std::uint32_t> sums;
  std::vector<PageMark> marks;  // one per page, for a map; else empty

  // Checks the pages of extent `i` that hold rows, read to `data`, and copies these out.
  Status deliver(std::size_t i, std::span<const std::byte> data) const;
  Status damaged(std::uint64_t page_offset) const;
  std::uint64_t bytes() const;

  void finish_extent(std::size_t i, Status status);
  void finish_all(Status status);  // for readers that do the whole job at once
  bool done();
  Status wait();  // until others are done; the error of the first extent that has one

 private:
  std::mutex mutex_;
  std::condition_variable all_done_;
  std::size_t done_ = 0;
  std::size_t failed_extent_ = 0;
  Status status_;
};

Status cut_short(const std::string& path, std::uint64_t size, std::uint64_t end);

class PageReader {
 public:
  virtual ~PageReader() = default;                       // no job may be under way
  virtual void start(std::shared_ptr<ReadJob> job) = 0;  // from any thread
  // Until a job that was started is done. May do the work of this and other jobs; so wait here, not at the job.
  virtual Status wait(ReadJob& job) { return job.wait(); }
  virtual std::size_t allocated_bytes() const = 0;  // from the fast arena
  // The file where it is mapped, as long as it is now; stays as long as the reader. Empty: there is no map. From any thread.
  virtual Result<std::span<const std::byte>> mapped() { return std::span<const std::byte>{}; }
  // Checks the job's pages in the map, and marks those that are as written. From any thread.
  virtual Status check(const ReadJob& job) {
    (void)job;
    return {};
  }
};

struct PageReaderOptions {
  std::size_t extent_bytes = 32768;  // the longest request; at least a page
  int queue_depth = 64;              // io_uring: requests under way
  int threads = 4;                   // pread
};

// kIo: the system does not offer io_uring (too old, forbidden); kExhausted: no memory.
Result<std::unique_ptr<PageReader>> make_uring_reader(RandomAccessFile& file, Arena& arena, const PageReaderOptions& options);
Result<std::unique_ptr<PageReader>> make_pread_reader(RandomAccessFile& file, Arena& arena, const PageReaderOptions& options);
Result<std::unique_ptr<PageReader>> make_mmap_reader(RandomAccessFile& file);

}  // namespace kvartet
