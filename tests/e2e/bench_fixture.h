// A small benchmark that takes seconds: a tiny model, a haystack of our own, two tasks, two caches.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/file_system.h"
#include "results/store.h"
#include "tiny_models.h"

namespace kvartet::e2e {

class BenchFixture : public testing::Test {
 protected:
  BenchFixture() {
    std::filesystem::create_directory(folder_.path("haystack"));
    folder_.file("haystack/mills.txt", haystack_text());
  }

  static std::string haystack_text() {
    static const char* const months[] = {"March", "April", "June", "July", "August", "October", "November"};
    std::string text;
    for (int i = 0; i < 60; ++i) text += fmt::format("The mill number {} by the river grinds corn in {}. ", i, months[i % 7]);
    return text + "\n";
  }

  std::string out(const std::string& name) const { return folder_.path(name); }
  Arguments bench_arguments(const std::string& name, const Arguments& more,
                            const Arguments& caches = {"--kv", "full", "--kv", "kivi:bits=2,residual=32"}) const {
    return Arguments{"bench",     "-m",  model_,   "--threads",    "1",  "--task", "needle", "--task", "multineedle:k=2",
                     "--context", "900", "--data", folder_.path(), "-o", out(name)} +
           caches + more;
  }
  Finished bench(const std::string& name, const Arguments& more) const { return run(bench_arguments(name, more)); }

  // The table without what the clock decides.
  // A report adds advice to what a benchmark printed.
  static Json without_decisions(const Finished& report) {
    Json json = report.json();
    json.erase("decisions");
    return json;
  }
  static Json rows(const Finished& f) {
    Json list = f.json()["rows"];
    for (Json& row : list) {
      for (const char* key : {"ttft_s", "prefill_s", "compress_s", "decode_tokens_per_s", "token_gap_p50_ms", "token_gap_p95_ms",
                              "token_gap_p99_ms", "token_gap_max_ms"})
        row.erase(key);
    }
    EXPECT_FALSE(list.empty());
    return list;
  }

  int samples_in(const std::string& name) const {
    Result<Store> store = Store::open_for_reading(FileSystem::real(), out(name));
    if (!store.ok()) return 0;
    Result<StoredResults> results = store->load();
    return results.ok() ? static_cast<int>(results->samples.size()) : 0;
  }
  void wait_for_samples(Program& program, const std::string& name, int count) const {
    while (program.running() && samples_in(name) < count) usleep(1000);
    ASSERT_TRUE(program.running()) << "it ended by itself";
  }

  static std::vector<Json> prediction_lines(const std::filesystem::path& path) {
    std::vector<Json> lines;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      lines.push_back(Json::parse(line, nullptr, false));
      EXPECT_FALSE(lines.back().is_discarded()) << path << ": " << line;
    }
    return lines;
  }

  ScratchFolder folder_;
  std::string model_ = tiny_model(folder_, wide_heads());
};

}  // namespace kvartet::e2e
