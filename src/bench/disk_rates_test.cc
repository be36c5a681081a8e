#include "bench/disk_rates.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/faulty_file_system.h"
#include "core/memory_file_system.h"

namespace kvartet {
namespace {

DiskRequest small_request(const std::string& directory) {
  DiskRequest r;
  r.directory = directory;
  r.file_bytes = 1 << 20;
  r.seconds = 0.01;
  return r;
}

TEST(DiskRates, AreMeasuredOnTheRealDiskAndTheFileIsGone) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "kvartet_disk_rates";
  std::filesystem::create_directories(folder);
  const Result<DiskRates> rates = measure_disk(small_request(folder.string()));
  ASSERT_TRUE(rates.ok()) << rates.status().message();
  EXPECT_EQ(rates->directory, folder.string());
  EXPECT_GT(rates->reads_per_s.value, 0);
  EXPECT_GT(rates->bytes_per_s.value, 0);
  EXPECT_NE(rates->medium.find(rates->direct ? "past" : "through"), std::string::npos) << rates->medium;
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

TEST(DiskRates, WithoutADescriptorThreadsRead) {
  MemoryFileSystem files;
  ASSERT_TRUE(files.make_directories("/tier").ok());
  DiskRequest r = small_request("/tier");
  r.files = &files;
  const Result<DiskRates> rates = measure_disk(r);
  ASSERT_TRUE(rates.ok()) << rates.status().message();
  EXPECT_NE(rates->medium.find("pread"), std::string::npos) << rates->medium;
}

// Whatever operation fails, it is one error and no crash.
TEST(DiskRates, EveryFailureOfAFileOperationIsAnError) {
  for (long n = 1;; n += n < 20 ? 1 : 97) {
    MemoryFileSystem memory;
    ASSERT_TRUE(memory.make_directories("/tier").ok());
    FaultyFileSystem files(memory);
    files.arm({.nth = n});
    DiskRequest r = small_request("/tier");
    r.files = &files;
    r.seconds = 1e-9;  // one batch
    const Result<DiskRates> rates = measure_disk(r);
    if (!files.failed()) break;
    ASSERT_FALSE(rates.ok()) << n;
    EXPECT_FALSE(rates.status().message().empty());
  }
}

TEST(DiskRates, AFolderThatIsNotThereOrAnInterruptionIsSaid) {
  EXPECT_FALSE(measure_disk(small_request("/there/is/no/such/folder")).ok());
  MemoryFileSystem files;
  ASSERT_TRUE(files.make_directories("/tier").ok());
  const std::atomic<bool> stop = true;
  DiskRequest r = small_request("/tier");
  r.files = &files;
  r.cancel = &stop;
  EXPECT_EQ(measure_disk(r).status().code(), Code::kCancelled);
}

}  // namespace
}  // namespace kvartet
