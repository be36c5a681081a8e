// A FileSystem whose n-th operation fails: the test loop "for every n: fail there, then look at what is left".
//
// Wraps another file system. Every operation that can fail counts, in the order it is called, also those on open files;
// exists() does not. A failing append writes the first half of its bytes: what a full disk or a kill leaves behind.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/file_system.h"

namespace kvartet {

struct FileFault {
  long nth = 0;          // counted from 1 since arm(); 0: nothing fails
  bool lasting = false;  // every operation after the n-th fails too
  Code code = Code::kIo;
  bool short_reads = false;  // of files read at given places, no operation fails: every n-th read returns half of its bytes
};

class FaultyFileSystem : public FileSystem {
 public:
  explicit FaultyFileSystem(FileSystem& base);  // `base` must outlive this object and every file opened through it

  void arm(const FileFault& fault);  // starts counting anew; not to be called while other threads use the object
  long operations() const;           // since arm()
  bool failed() const;               // whether any operation since arm() was made to fail

  Result<std::string> read_file(const std::string& path) override;
  Result<std::unique_ptr<MappedFile>> map_file(const std::string& path) override;
  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  Result<std::unique_ptr<WritableFile>> open_append(const std::string& path) override;
  Result<std::unique_ptr<RandomAccessFile>> open_random(const std::string& path, const RandomAccessOptions& options) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove(const std::string& path) override;
  Status make_directories(const std::string& path) override;
  bool exists(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& directory) override;
  Result<std::uint64_t> free_bytes(const std::string& path) override;

  // Counts operations and says which one fails; shared with the open files.
  struct Counter {
    std::atomic<long> operations{0};
    std::atomic<bool> failed{false};
    FileFault fault;
    Status next(std::string_view operation, const std::string& path);
    bool next_read_is_short();
  };

 private:
  FileSystem& base_;
  std::shared_ptr<Counter> counter_;
};

}  // namespace kvartet
