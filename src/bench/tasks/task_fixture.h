// What tests of tasks share: files in memory with a haystack, and a tokenizer of one token per word.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/tasks/generated_document.h"
#include "bench/tasks/task.h"
#include "core/memory_file_system.h"

namespace kvartet {

class TaskFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string essay;
    for (int i = 0; i < 400; ++i) essay += "Sentence " + std::to_string(i) + " of the essay talks of nothing at all, e.g. this. ";
    put("data/haystack/a.txt", essay);
  }
  void put(const std::string& path, std::string_view text) {
    ASSERT_TRUE(files_.make_directories(path.substr(0, path.rfind('/'))).ok());
    ASSERT_TRUE(write_file_atomically(files_, path, text).ok());
  }
  TaskRequest request(int context, int samples = 4, std::uint64_t seed = 1) {
    TaskRequest r;
    r.context_tokens = context;
    r.samples = samples;
    r.seed = seed;
    r.data_dir = "data";
    r.files = &files_;
    r.count_tokens = [](std::string_view text) -> Result<int> { return word_count(text); };
    return r;
  }
  Result<SampleSet> load(std::string_view spec, int context, int samples = 4, std::uint64_t seed = 1) {
    KV_ASSIGN(const std::unique_ptr<Task> task, make_task(spec));
    return task->samples(request(context, samples, seed));
  }
  std::vector<Sample> samples(std::string_view spec, int context, int count = 4, std::uint64_t seed = 1) {
    return load(spec, context, count, seed).value().samples;
  }
  std::string message(std::string_view spec, int context = 1000) { return load(spec, context).status().message(); }

  static std::string gold_text(const Sample& s, std::size_t i) {
    return s.document.substr(s.gold_spans[i].begin, s.gold_spans[i].end - s.gold_spans[i].begin);
  }
  static std::size_t occurrences(const std::string& text, const std::string& part) {
    std::size_t count = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
    return count;
  }

  MemoryFileSystem files_;
};

}  // namespace kvartet
