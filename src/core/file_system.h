// Every file operation of the project goes through this object, so that tests can keep files in memory and make the
// n-th operation fail.
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

class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual Status append(std::string_view bytes) = 0;
  virtual Status sync() = 0;
  virtual Status close() = 0;
};

// A file mapped read-only; unmapped when it dies.
class MappedFile {
 public:
  virtual ~MappedFile() = default;
  virtual std::span<const std::byte> bytes() const = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  static FileSystem& real();

  virtual Result<std::string> read_file(const std::string& path) = 0;  // kBadInput: missing; kIo: unreadable
  virtual Result<std::unique_ptr<MappedFile>> map_file(const std::string& path) = 0;
  virtual Result<std::unique_ptr<WritableFile>> create(const std::string& path) = 0;          // truncates
  virtual Result<std::unique_ptr<WritableFile>> open_append(const std::string& path) = 0;     // creates if missing
  virtual Status rename(const std::string& from, const std::string& to) = 0;
  virtual Status remove(const std::string& path) = 0;
  virtual Status make_directories(const std::string& path) = 0;
  virtual bool exists(const std::string& path) = 0;
  virtual Result<std::vector<std::string>> list(const std::string& directory) = 0;  // names, sorted
};

// Writes to `path`.tmp, syncs, renames: readers see the old file or the whole new one.
Status write_file_atomically(FileSystem& fs, const std::string& path, std::string_view bytes);

}  // namespace kvartet
