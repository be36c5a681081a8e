// Rows per second of each tier, and what a row cache saves, on a selection trace made up from a seed: per layer and head a
// 32nd of the rows, of which a share is chosen again in the next step (the rest anew, uniformly).
//
// The folder of the files is the current one, or KVARTET_BENCH_FOLDER.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "core/check.h"
#include "core/clock.h"
#include "offload/row_store.h"

namespace kvartet {
namespace {

constexpr int kLayers = 30;  // SmolLM2's shape: 30 layers of 3 KV heads, f16 keys and values of 64 channels
constexpr int kHeads = 3;
constexpr int kRows = 8192;
constexpr std::size_t kRowBytes = 256;
constexpr int kChosen = kRows / 32;

class Trace {
 public:
  explicit Trace(double repeat) : repeat_(repeat), chosen_(kLayers * kHeads) {
    for (auto& rows : chosen_) fill(rows);
  }
  const std::vector<std::int32_t>& rows(int layer, int head) const {
    return chosen_[static_cast<std::size_t>(layer * kHeads + head)];
  }
  void next_step() {
    for (auto& rows : chosen_) {
      std::erase_if(rows, [&](std::int32_t) { return uniform() >= repeat_; });
      fill(rows);
    }
  }

 private:
  double uniform() {
    state_ += 0x9E3779B97F4A7C15ull;
    std::uint64_t x = state_;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
  }
  void fill(std::vector<std::int32_t>& rows) {
    while (static_cast<int>(rows.size()) < kChosen) {
      const auto row = static_cast<std::int32_t>(uniform() * kRows);
      const auto at = std::lower_bound(rows.begin(), rows.end(), row);
      if (at == rows.end() || *at != row) rows.insert(at, row);
    }
  }
  double repeat_;
  std::uint64_t state_ = 1;
  std::vector<std::vector<std::int32_t>> chosen_;
};

struct Bench {
  RowStore store;
  std::vector<std::byte> out = std::vector<std::byte>(2 * kHeads * kChosen * kRowBytes);

  std::vector<HeadFetch> fetches(const Trace& trace, int layer) {
    std::vector<HeadFetch> heads;
    for (int h = 0; h < kHeads; ++h) {
      const std::size_t place = static_cast<std::size_t>((layer % 2) * kHeads + h) * kChosen * kRowBytes;
      heads.push_back({h, trace.rows(layer, h), out.data() + place});
    }
    return heads;
  }
};

const char* folder() {
  const char* set = std::getenv("KVARTET_BENCH_FOLDER");
  return set == nullptr ? "." : set;
}

Bench make_bench(Tier tier, double cache_share, DiskReader reader, bool direct, int depth, int threads) {
  RowStoreOptions options = {.tier = tier,
                             .layers = std::vector<LayerRowShape>(kLayers, {kHeads, kRowBytes}),
                             .fast = Arena::create(),
                             .slow = Arena::create(),
                             .cache_share = cache_share};
  options.file.directory = folder();
  options.file.reader = reader;
  options.file.try_direct = direct;
  options.file.reading.queue_depth = depth;
  options.file.reading.threads = threads;
  auto store = RowStore::create(options);
  KV_CHECK(store.ok());
  const std::vector<std::byte> rows(kRows * kRowBytes, std::byte{1});
  const std::vector<std::span<const std::byte>> heads(kHeads, rows);
  for (int layer = 0; layer < kLayers; ++layer) {
    KV_CHECK(store->append(layer, heads).ok());
  }
  return {std::move(store).value()};
}

// Steps before the clock runs: the row cache fills, pages of a map are checked for the first time.
void warm_up(Bench& bench, Trace& trace) {
  constexpr int kSteps = 4;
  for (int step = 0; step < kSteps; ++step) {
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto heads = bench.fetches(trace, layer);
      KV_CHECK(bench.store.fetch(layer, heads).ok());
    }
    trace.next_step();
  }
}

void report(benchmark::State& state, const Bench& bench, const RowTraffic& before) {
  RowTraffic traffic = bench.store.traffic();
  traffic.rows_fetched -= before.rows_fetched;
  traffic.rows_hit -= before.rows_hit;
  traffic.medium.reads -= before.medium.reads;
  traffic.medium.bytes_read -= before.medium.bytes_read;
  const double asked = static_cast<double>(traffic.rows_fetched + traffic.rows_hit);
  state.counters["rows/s"] = benchmark::Counter(asked, benchmark::Counter::kIsRate);
  state.counters["hit"] = static_cast<double>(traffic.rows_hit) / asked;
  state.counters["reads/step"] = static_cast<double>(traffic.medium.reads) / static_cast<double>(state.iterations());
  state.counters["reads/s"] = benchmark::Counter(static_cast<double>(traffic.medium.reads), benchmark::Counter::kIsRate);
  constexpr double kMib = 1024.0 * 1024.0;
  state.counters["MiB/step"] = static_cast<double>(traffic.medium.bytes_read) / kMib / static_cast<double>(state.iterations());
  // Bytes the medium was asked for, by bytes that the selection needed.
  state.counters["amplif"] = static_cast<double>(traffic.medium.bytes_read) / (asked * static_cast<double>(kRowBytes));
  state.SetLabel(bench.store.medium());
}

// One step: every layer's rows, one layer after the other.
void fetch_steps(benchmark::State& state, Bench bench, double repeat) {
  Trace trace(repeat);
  warm_up(bench, trace);
  const RowTraffic before = bench.store.traffic();
  for (auto _ : state) {
    state.PauseTiming();
    trace.next_step();
    state.ResumeTiming();
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto heads = bench.fetches(trace, layer);
      KV_CHECK(bench.store.fetch(layer, heads).ok());
    }
  }
  report(state, bench, before);
}

void BM_Ram(benchmark::State& state) { fetch_steps(state, make_bench(Tier::kRam, 0, {}, false, 1, 1), 0); }
void BM_Mmap(benchmark::State& state) { fetch_steps(state, make_bench(Tier::kMmap, 0, {}, false, 1, 1), 0); }
void BM_DiskUring(benchmark::State& state) {
  fetch_steps(state, make_bench(Tier::kDisk, 0, DiskReader::kUring, state.range(1) != 0, static_cast<int>(state.range(0)), 1), 0);
}
void BM_DiskPread(benchmark::State& state) {
  fetch_steps(state, make_bench(Tier::kDisk, 0, DiskReader::kPread, state.range(1) != 0, 1, static_cast<int>(state.range(0))), 0);
}
// Argument: the row cache holds a 1/n of the rows (0: none).
void BM_DiskRowCache(benchmark::State& state) {
  const double share = state.range(0) == 0 ? 0 : 1.0 / static_cast<double>(state.range(0));
  fetch_steps(state, make_bench(Tier::kDisk, share, DiskReader::kUring, true, 128, 1), 0.8);
}
void BM_RamRowCache(benchmark::State& state) {
  fetch_steps(state, make_bench(Tier::kRam, 1.0 / static_cast<double>(state.range(0)), {}, false, 1, 1), 0.8);
}

// Argument: microseconds of compute per layer. The rows of the next layer are fetched during it, or after it.
void BM_DiskOverlap(benchmark::State& state) {
  Bench bench = make_bench(Tier::kDisk, 1.0 / 16, DiskReader::kUring, true, 128, 1);
  const double compute = static_cast<double>(state.range(0)) * 1e-6;
  const bool ahead = state.range(1) != 0;
  const auto computed = [&] {
    const double until = Clock::real().seconds() + compute;
    while (Clock::real().seconds() < until) {}
  };
  Trace trace(0.8);
  warm_up(bench, trace);
  const RowTraffic before = bench.store.traffic();
  for (auto _ : state) {
    state.PauseTiming();
    trace.next_step();
    state.ResumeTiming();
    auto ticket = bench.store.begin_fetch(0, bench.fetches(trace, 0));
    for (int layer = 0; layer < kLayers; ++layer) {
      KV_CHECK(ticket.ok() && bench.store.wait(std::move(ticket).value()).ok());
      if (!ahead) computed();
      if (layer + 1 < kLayers) ticket = bench.store.begin_fetch(layer + 1, bench.fetches(trace, layer + 1));
      if (ahead) computed();
    }
  }
  report(state, bench, before);
}

BENCHMARK(BM_Ram)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Mmap)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_DiskUring)
    ->Unit(benchmark::kMillisecond)
    ->ArgNames({"depth", "direct"})
    ->ArgsProduct({{32, 128, 256}, {1}})
    ->Args({128, 0})
    ->UseRealTime();
BENCHMARK(BM_DiskPread)
    ->Unit(benchmark::kMillisecond)
    ->ArgNames({"threads", "direct"})
    ->ArgsProduct({{1, 4, 8}, {1}})
    ->Args({1, 0})
    ->UseRealTime();
BENCHMARK(BM_DiskRowCache)
    ->Unit(benchmark::kMillisecond)
    ->ArgName("1/share")
    ->Arg(0)
    ->Arg(32)
    ->Arg(21)
    ->Arg(16)
    ->Arg(8)
    ->Arg(4)
    ->UseRealTime();
BENCHMARK(BM_RamRowCache)->Unit(benchmark::kMillisecond)->ArgName("1/share")->Arg(16)->UseRealTime();
BENCHMARK(BM_DiskOverlap)
    ->Unit(benchmark::kMillisecond)
    ->ArgNames({"us", "ahead"})
    ->ArgsProduct({{200, 1000}, {0, 1}})
    ->UseRealTime();

}  // namespace
}  // namespace kvartet
