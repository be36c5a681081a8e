// For tests of tiers in files: a folder of their own, and stores of every kind.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "offload/row_store.h"
#include "offload/row_store_fixture.h"

namespace kvartet {

// A new folder under `base` (by default the system's place for such), removed with all that is in it.
class TestFolder {
 public:
  explicit TestFolder(const std::string& base = std::filesystem::temp_directory_path().string())
      : path_(base + "/kvartet-test-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "cannot make a folder in " << base;
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  int entries() const {
    int count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++count;
    return count;
  }

 private:
  std::string path_;
};

struct TierKind {
  const char* name;
  Tier tier;
  DiskReader reader = DiskReader::kUring;
  bool try_direct = true;
};

inline const TierKind kRamKind = {"ram", Tier::kRam};
inline const TierKind kFileKinds[] = {{"mmap", Tier::kMmap},
                                      {"uring_direct", Tier::kDisk},
                                      {"uring_cached", Tier::kDisk, DiskReader::kUring, false},
                                      {"pread_direct", Tier::kDisk, DiskReader::kPread},
                                      {"pread_cached", Tier::kDisk, DiskReader::kPread, false}};

// Three layers of different shapes; one with rows longer than a page.
inline RowStoreOptions options_for(const TierKind& kind, const std::string& folder) {
  RowStoreOptions options = {
      .tier = kind.tier,
      .layers = {{.kv_heads = 3, .row_bytes = 66}, {.kv_heads = 2, .row_bytes = 256}, {.kv_heads = 1, .row_bytes = 5000}},
      .fast = Arena::create(),
      .slow = Arena::create()};
  options.file.directory = folder;
  options.file.try_direct = kind.try_direct;
  options.file.reader = kind.reader;
  options.file.reading = {.extent_bytes = 16384, .queue_depth = 8, .threads = 3};
  return options;
}

inline RowStore made(const RowStoreOptions& options) {
  auto store = RowStore::create(options);
  EXPECT_TRUE(store.ok()) << store.status().message();
  return std::move(store).value();
}

// "" when every row of every layer comes back right.
inline std::string wrong_row(RowStore& store) {
  for (int layer = 0; layer < store.layers(); ++layer) {
    Selection all = random_selection(store, layer, 1.0, 1);
    if (Status status = store.fetch(layer, all.fetches); !status.ok()) return status.message();
    if (std::string wrong = wrong_byte(store, layer, all); !wrong.empty()) return wrong;
  }
  return "";
}

inline void flip_bit(const std::string& path, std::uint64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  char byte = 0;
  file.get(byte);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ 4));
}

}  // namespace kvartet
