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

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  static FileSystem& real();

  virtual Result<std::string> read_file(const std::string& path) = 0;                      // also pipes
  virtual Result<std::unique_ptr<MappedFile>> map_file(const std::string& path) = 0;       // regular files
  virtual Result<std::unique_ptr<WritableFile>> create(const std::string& path) = 0;       // truncates
  virtual Result<std::unique_ptr<WritableFile>> open_append(const std::string& path) = 0;  // creates if missing
  virtual Status rename(const std::string& from, const std::string& to) = 0;               // replaces `to`
  virtual Status remove(const std::string& path) = 0;                                      // a file or an empty folder
  virtual Status make_directories(const std::string& path) = 0;                            // ok when it is there already
  virtual bool exists(const std::string& path) = 0;
  virtual Result<std::vector<std::string>> list(const std::string& directory) = 0;  // names, sorted
};

// Writes to `path`.tmp, syncs, renames: whatever fails or whenever the power goes, readers see the old file or the whole
// new one. Not for two writers of one path at a time.
Status write_file_atomically(FileSystem& fs, const std::string& path, std::string_view bytes);

}  // namespace kvartet
