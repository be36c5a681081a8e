// The file behind tier=mmap and tier=disk: a header page, then pages of rows in any order, and in a kept file an index.
//
// The layout is docs/formats/row-file.md. Unless it is to be kept the file has no name: it vanishes with its last user,
// however that ends. A file to be kept is called NAME.unfinished, and its header says how large it may be, until finish().
// Thread-safe: forks of a store share it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "core/file_system.h"
#include "core/status.h"
#include "offload/byte_budget.h"

namespace kvartet {

struct RowFileOptions {
  FileSystem* fs = nullptr;
  std::string directory = {};               // where a file without a name lies
  std::string keep_as = {};                 // "": not kept
  std::shared_ptr<ByteBudget> budget = {};  // never null
  bool try_direct = false;
};

class RowFile;

// Pages of a file, given back when it dies.
class PageRun {
 public:
  PageRun(std::shared_ptr<RowFile> file, std::uint64_t offset, std::uint64_t bytes)
      : file_(std::move(file)), offset_(offset), bytes_(bytes) {}
  PageRun(const PageRun&) = delete;
  PageRun& operator=(const PageRun&) = delete;
  ~PageRun();
  std::uint64_t offset() const { return offset_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<RowFile> file_;  // null: of a file opened for reading, which gives nothing back
  std::uint64_t offset_;
  std::uint64_t bytes_;
};

class RowFile : public std::enable_shared_from_this<RowFile> {
 public:
  static constexpr std::uint64_t kUnit = RandomAccessFile::kDirectAlignment;
  static constexpr std::uint32_t kVersion = 1;

  static Result<std::shared_ptr<RowFile>> create(const RowFileOptions& options);
  // A kept file. kBadInput: not such a file, of another version, unfinished, damaged. `index`: as given to finish().
  static Result<std::shared_ptr<RowFile>> open(const RowFileOptions& options, const std::string& path, std::string* index);
  ~RowFile();

  // `bytes` is a multiple of kUnit. kExhausted: the budget; kIo: the disk is full, or refuses; nothing has changed then.
  Result<std::shared_ptr<PageRun>> allocate(std::uint64_t bytes);
  Status write(std::uint64_t offset, std::span<const std::byte> pages);  // whole units

  // Writes the index, makes all of it durable and gives the file its name. `index` says what the pages hold.
  Status finish(std::string_view index);

  RandomAccessFile& file() { return *file_; }
  const std::string& path() const { return path_; }  // for messages
  bool read_only() const { return read_only_; }
  bool to_keep() const { return !options_.keep_as.empty(); }

 private:
  friend class PageRun;
  struct Header;
  RowFile(RowFileOptions options, std::string path) : options_(std::move(options)), path_(std::move(path)) {}
  void release(std::uint64_t offset, std::uint64_t bytes);
  std::uint64_t take_space(std::uint64_t bytes, bool* at_end);
  Status announce(std::uint64_t end);
  Status write_header(const Header& header);
  Status write_unaligned(std::uint64_t offset, std::string_view bytes);

  RowFileOptions options_;
  std::string path_;
  std::unique_ptr<RandomAccessFile> file_;
  bool read_only_ = false;
  bool finished_ = false;
  std::mutex mutex_;
  std::uint64_t end_ = 0;        // first byte never allocated
  std::uint64_t announced_ = 0;  // what the header says the file may grow to
  std::uint64_t charged_ = 0;
  std::map<std::uint64_t, std::uint64_t> free_;  // offset -> bytes
};

}  // namespace kvartet
