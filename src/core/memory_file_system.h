// A FileSystem that lives in memory: for tests, fast and without traces.
//
// Behaves as the real one does where callers can tell: a file needs its folder, names are listed sorted, missing files
// are kBadInput. It also knows what a power cut would take: crash() throws away whatever was not synced.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/file_system.h"

namespace kvartet {

class MemoryFileSystem : public FileSystem {
 public:
  MemoryFileSystem() = default;

  Result<std::string> read_file(const std::string& path) override;
  Result<std::unique_ptr<MappedFile>> map_file(const std::string& path) override;  // a snapshot of the file as it is now
  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  Result<std::unique_ptr<WritableFile>> open_append(const std::string& path) override;
  Result<std::unique_ptr<RandomAccessFile>> open_random(const std::string& path, const RandomAccessOptions& options) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove(const std::string& path) override;
  Status make_directories(const std::string& path) override;
  bool exists(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& directory) override;
  Result<std::uint64_t> free_bytes(const std::string& path) override;

  void set_free_bytes(std::uint64_t bytes);  // only what free_bytes says: nothing runs full

  // Every file falls back to its bytes at its last sync (none: empty). Names survive, as on a file system that journals
  // names but not contents: the harshest case for "write, rename" without a sync.
  void crash();

  struct File;

 private:
  Result<std::shared_ptr<File>> file_to_write(const std::string& path, bool truncate);
  Result<std::unique_ptr<WritableFile>> open_for_writing(const std::string& path, bool truncate);
  Result<std::string> contents(const std::string& path);

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<File>> files_;  // by normalized path
  std::set<std::string> directories_;                   // "" (the current folder) and "/" always exist
  std::uint64_t free_bytes_ = std::uint64_t{1} << 40;
};

}  // namespace kvartet
