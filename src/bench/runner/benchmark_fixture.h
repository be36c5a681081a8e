// A folder with a haystack, a vocabulary of bytes and the shape of a small model: what planning and running a benchmark takes.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "bench/runner/benchmark.h"
#include "core/memory_file_system.h"
#include "engine/byte_vocabulary.h"

namespace kvartet {

class BenchmarkFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvartet_bench_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    ASSERT_TRUE(files_.make_directories("models/haystack").ok());
    std::string essay;
    for (int i = 0; i < 200; ++i) essay += "This is sentence number " + std::to_string(i) + ". ";
    put("models/haystack/a.txt", essay);
    shape_.context = 4096;
    shape_.layers.assign(2, LayerShape{.heads = 2, .kv_heads = 1, .head_dim = 8, .window = 0});
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void put(const std::string& path, std::string_view text) {
    auto file = files_.create(path);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->append(text).ok());
    ASSERT_TRUE((*file)->close().ok());
  }
  Store store(std::uint64_t seed = 1) {
    RunRecord run;
    run.identity = {.model_hash = "h", .model_name = "tiny", .model_shape = "", .seed = seed, .parameters = "", .version = "0"};
    run.machine.cpu = "cpu";
    run.started = "2025-01-01T00:00:00Z";
    return Store::open(FileSystem::real(), root_, run).value();
  }

  std::string root_;
  MemoryFileSystem files_;
  ByteVocabulary vocabulary_;
  ModelShape shape_;
};

}  // namespace kvartet
