#include "core/faulty_file_system.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/memory_file_system.h"

namespace kvartet {
namespace {

const std::string kOld = "the old contents";
const std::string kNew = "the new contents, which are longer";

long operations_of_an_atomic_write() {
  MemoryFileSystem memory;
  FaultyFileSystem fs(memory);
  fs.arm({});
  EXPECT_TRUE(write_file_atomically(fs, "a", kNew).ok());
  return fs.operations();
}

TEST(FaultyFileSystem, CountsAndPassesOnWhenNotArmed) {
  EXPECT_EQ(operations_of_an_atomic_write(), 5);  // create, append, sync, close, rename
}

// For every n: the n-th file operation fails, once or from then on, and the machine may lose power right after. Readers
// see the old file or the whole new one, the caller is told the truth, and a fault that passes leaves no unfinished file.
TEST(FaultyFileSystem, AnAtomicWriteLeavesTheOldFileOrTheWholeNewOne) {
  const long all = operations_of_an_atomic_write();
  for (long n = 1; n <= all + 1; ++n) {
    for (const bool lasting : {false, true}) {
      for (const Code code : {Code::kIo, Code::kExhausted}) {
        MemoryFileSystem memory;
        ASSERT_TRUE(write_file_atomically(memory, "a", kOld).ok());
        FaultyFileSystem fs(memory);
        fs.arm({.nth = n, .lasting = lasting, .code = code});
        const Status status = write_file_atomically(fs, "a", kNew);
        EXPECT_EQ(status.ok(), n > all) << "operation " << n;
        EXPECT_EQ(fs.failed(), n <= all);
        if (!status.ok()) {
          EXPECT_EQ(status.code(), code);
        }
        if (!lasting) {
          EXPECT_EQ(memory.list("").value(), std::vector<std::string>{"a"}) << "operation " << n;
        }
        for (int look = 0; look < 2; ++look) {
          EXPECT_EQ(memory.read_file("a").value(), n > all ? kNew : kOld)
              << "operation " << n << (look == 0 ? "" : ", after a crash");
          memory.crash();
        }
        EXPECT_TRUE(write_file_atomically(memory, "a", kNew).ok());  // what is left over is in nobody's way
        EXPECT_EQ(memory.read_file("a").value(), kNew);
      }
    }
  }
}

// The test above can fail: without the sync, a crash after the rename leaves an empty file under the final name.
TEST(FaultyFileSystem, AWriteWithoutSyncWouldBeCaught) {
  MemoryFileSystem memory;
  auto file = memory.create("a.tmp");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->append(kNew).ok());
  ASSERT_TRUE((*file)->close().ok());
  ASSERT_TRUE(memory.rename("a.tmp", "a").ok());
  memory.crash();
  EXPECT_EQ(memory.read_file("a").value(), "");
}

TEST(FaultyFileSystem, AFailingAppendIsTorn) {
  MemoryFileSystem memory;
  FaultyFileSystem fs(memory);
  auto file = fs.open_append("a");
  ASSERT_TRUE(file.ok());
  fs.arm({.nth = 2, .code = Code::kExhausted});
  EXPECT_TRUE((*file)->append("1234").ok());
  EXPECT_EQ((*file)->append("5678").code(), Code::kExhausted);
  EXPECT_TRUE((*file)->append("9").ok());
  EXPECT_EQ(memory.read_file("a").value(), "1234569");
}

TEST(FaultyFileSystem, EveryOperationOfARandomAccessFileCanFail) {
  MemoryFileSystem memory;
  FaultyFileSystem fs(memory);
  auto file = fs.open_random("a", {});
  ASSERT_TRUE(file.ok());
  fs.arm({.nth = 1, .lasting = true, .code = Code::kExhausted});
  std::byte bytes[8] = {};
  EXPECT_EQ((*file)->write_at(0, bytes).code(), Code::kExhausted);
  EXPECT_EQ((*file)->read_at(0, bytes).code(), Code::kExhausted);
  EXPECT_EQ((*file)->reserve(0, 8).code(), Code::kExhausted);
  EXPECT_EQ((*file)->size().status().code(), Code::kExhausted);
  EXPECT_EQ((*file)->sync().code(), Code::kExhausted);
  EXPECT_EQ((*file)->finish_read(0, 8, 8).status().code(), Code::kExhausted);
  EXPECT_EQ(memory.read_file("a").value().size(), 4u);  // the failing write was torn
}

TEST(FaultyFileSystem, EveryOperationCanFail) {
  MemoryFileSystem memory;
  FaultyFileSystem fs(memory);
  fs.arm({.nth = 1, .lasting = true});
  EXPECT_EQ(fs.read_file("a").status().code(), Code::kIo);
  EXPECT_EQ(fs.map_file("a").status().code(), Code::kIo);
  EXPECT_EQ(fs.create("a").status().code(), Code::kIo);
  EXPECT_EQ(fs.open_append("a").status().code(), Code::kIo);
  EXPECT_EQ(fs.open_random("a", {}).status().code(), Code::kIo);
  EXPECT_EQ(fs.rename("a", "b").code(), Code::kIo);
  EXPECT_EQ(fs.remove("a").code(), Code::kIo);
  EXPECT_EQ(fs.make_directories("d").code(), Code::kIo);
  EXPECT_EQ(fs.list("").status().code(), Code::kIo);
  EXPECT_EQ(fs.free_bytes("").status().code(), Code::kIo);
  EXPECT_EQ(fs.operations(), 10);
  EXPECT_FALSE(fs.exists("a"));
  EXPECT_TRUE(memory.list("").value().empty());
}

}  // namespace
}  // namespace kvartet
