#include "model/memory_limit.h"

#include <string>

#include <gtest/gtest.h>

#include "core/memory_file_system.h"

namespace kvartet {
namespace {

void put(FileSystem& fs, const std::string& path, const std::string& text) {
  ASSERT_TRUE(fs.make_directories(path.substr(0, path.rfind('/'))).ok());
  auto file = fs.create(path);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->append(text).ok());
  ASSERT_TRUE((*file)->close().ok());
}

TEST(MemoryLimit, UnknownMachineIsUnlimited) {
  MemoryFileSystem fs;
  EXPECT_EQ(available_memory(fs), UINT64_MAX);
}

TEST(MemoryLimit, MachineMemory) {
  MemoryFileSystem fs;
  put(fs, "/proc/meminfo", "MemTotal:       24000000 kB\nMemFree:         1000000 kB\nMemAvailable:    5000000 kB\n");
  EXPECT_EQ(available_memory(fs), 5000000ULL * 1024);
}

TEST(MemoryLimit, ControlGroupVersion2CountsPageCacheAsFree) {
  MemoryFileSystem fs;
  put(fs, "/proc/meminfo", "MemAvailable:    5000000 kB\n");
  put(fs, "/sys/fs/cgroup/memory.max", "1000000000\n");
  put(fs, "/sys/fs/cgroup/memory.current", "700000000\n");
  put(fs, "/sys/fs/cgroup/memory.stat", "anon 300000000\nfile 400000000\nfile_mapped 5\n");
  EXPECT_EQ(available_memory(fs), 700000000U);
}

TEST(MemoryLimit, ControlGroupWithoutLimit) {
  MemoryFileSystem fs;
  put(fs, "/proc/meminfo", "MemAvailable:    1000 kB\n");
  put(fs, "/sys/fs/cgroup/memory.max", "max\n");
  put(fs, "/sys/fs/cgroup/memory.current", "700000000\n");
  EXPECT_EQ(available_memory(fs), 1024000U);
}

TEST(MemoryLimit, ControlGroupVersion1) {
  MemoryFileSystem fs;
  put(fs, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "500\n");
  put(fs, "/sys/fs/cgroup/memory/memory.usage_in_bytes", "600\n");
  put(fs, "/sys/fs/cgroup/memory/memory.stat", "cache 1\ntotal_cache 50\n");
  EXPECT_EQ(available_memory(fs), 0U);
}

}  // namespace
}  // namespace kvartet
