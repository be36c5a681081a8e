// Every file operation of the project goes through this object, so that tests can keep files in memory
// (core/memory_file_system.h) and make the n-th operation fail (core/faulty_file_system.h).
//
// Errors name the path and the reason. kBadInput: a file or folder to read is missing or of the wrong kind; kExhausted:
// no space left; kIo: the system refused. Paths may be relative to the current folder. Thread-safe; one open file is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace kvartet {

// Unbuffered: what append() took is seen by readers at once. A file that is not closed closes itself, without a report.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual Status append(std::string_view bytes) = 0;  // after an error, part of `bytes` may have been written
  virtual Status sync() = 0;                          // returns when the bytes would survive a power cut
  virtual Status close() = 0;                         // does nothing the second time
};

// A file mapped read-only; unmapped when it dies. Stays valid when the name goes away, but not when somebody else makes
// the file shorter: reading the lost part then ends the process.
class MappedFile {
 public:
  virtual ~MappedFile() = default;
  virtual std::span<const std::byte> bytes() const = 0;
};

// A file that is read and written at given places. Reads may run on several threads at once.
class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  virtual Status read_at(std::uint64_t offset, std::span<std::byte> out) = 0;           // kIo also when the file ends before
  virtual Status write_at(std::uint64_t offset, std::span<const std::byte> bytes) = 0;  // after an error, part may be written
  virtual Status reserve(std::uint64_t offset, std::uint64_t bytes) = 0;  // disk space for them, where the file system can
  virtual Result<std::uint64_t> size() = 0;
  virtual Status sync() = 0;

  // Whether offsets, sizes and addresses of reads and writes must be multiples of kDirectAlignment.
  virtual bool direct() const = 0;
  static constexpr std::size_t kDirectAlignment = 4096;

  // For readers that use the descriptor themselves (io_uring, mmap); -1 where there is none. Such a reader shows each
  // completion here, `got` as read(2) would return it or -errno, and learns how many bytes of `wanted` are good.
  virtual int descriptor() const = 0;
  virtual Result<std::size_t> finish_read(std::uint64_t offset, std::size_t wanted, std::int64_t got) = 0;
};

struct RandomAccessOptions {
  bool create = true;       // empty, read and write; otherwise the file must exist and is opened for reading
  bool nameless = false;    // when creating: the name goes away at once, and the bytes with the last user, however it ends
  bool try_direct = false;  // past the page cache where the file system can
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  static FileSystem& real();

  virtual Result<std::string> read_file(const std::string& path) = 0;                      // also pipes
  virtual Result<std::unique_ptr<MappedFile>> map_file(const std::string& path) = 0;       // regular files
  virtual Result<std::unique_ptr<WritableFile>> create(const std::string& path) = 0;       // truncates
  virtual Result<std::unique_ptr<WritableFile>> open_append(const std::string& path) = 0;  // creates if missing
  virtual Result<std::unique_ptr<RandomAccessFile>> open_random(const std::string& path, const RandomAccessOptions& options) = 0;
  virtual Status rename(const std::string& from, const std::string& to) = 0;  // replaces `to`
  virtual Status remove(const std::string& path) = 0;                         // a file or an empty folder
  virtual Status make_directories(const std::string& path) = 0;               // ok when it is there already
  virtual bool exists(const std::string& path) = 0;
  virtual Result<std::vector<std::string>> list(const std::string& directory) = 0;  // names, sorted
  // What may still be written where `path` is, or would be: its nearest folder that is there decides.
  virtual Result<std::uint64_t> free_bytes(const std::string& path) = 0;
};

// The folder that was named, else the system's temporary one. kIo: there is none.
Result<std::string> folder_or_temporary(const std::string& named);

// Writes to `path`.tmp and the process, syncs, renames: whatever fails or whenever the power goes, readers see the old file or
// the whole new one. Of two processes that write one path at once the later one's stays; not for two threads.
Status write_file_atomically(FileSystem& fs, const std::string& path, std::string_view bytes);

}  // namespace kvartet
