// Prefill attention as a share of this machine's multiply-add peak (f32, and BF16 where the CPU multiplies that), and decode
// attention in bytes per second. Shape S: 9 query heads, 3 KV heads, head_dim 64 (SmolLM2-135M).
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>

#include <benchmark/benchmark.h>

#include "attention/attention_kernels.h"
#include "attention/decode_attention.h"
#include "attention/prefill_attention.h"
#include "core/clock.h"
#include "core/parallel_for.h"
#include "core/rng.h"
#include "core/uz.h"
#include "quantize/tile_format.h"
#include "simd/avx512.h"
#include "simd/compute_rate.h"

#if KVARTET_HAS_AVX512
KVARTET_BEGIN_BF16
namespace kvartet {
double bf16_multiply_adds(std::size_t rounds, float* sink) {
  __m512 sums[24];
  for (int i = 0; i < 24; ++i) sums[i] = _mm512_set1_ps(*sink + static_cast<float>(i));
  const __m512bh x = (__m512bh)_mm512_set1_epi16(0x3f00);
  for (std::size_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 24
    for (int i = 0; i < 24; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], x, x);
  }
  for (int i = 1; i < 24; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  *sink = _mm512_cvtss_f32(sums[0]);
  return 2.0 * 24.0 * 32.0 * static_cast<double>(rounds);
}
}  // namespace kvartet
KVARTET_END_AVX512
#endif
namespace kvartet {
namespace {

constexpr int kHeads = 9;
constexpr int kKvHeads = 3;
constexpr int kHeadDim = 64;

std::vector<float> random_floats(std::size_t count, std::uint64_t stream) {
  Rng rng(1, stream);
  std::vector<float> x(count);
  for (float& v : x) v = static_cast<float>(rng.uniform() * 2 - 1);
  return x;
}

struct Rate {
  double per_second = 0;      // floating-point operations, all threads together
  double per_cpu_second = 0;  // of one core: does not suffer from neighbours on a shared machine
  void keep_best(double operations, double seconds, double cpu_seconds) {
    per_second = std::max(per_second, operations / seconds);
    per_cpu_second = std::max(per_cpu_second, operations / cpu_seconds);
  }
};

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Best of a few short runs: the peak is a ceiling, and neighbours only ever lower it.
void measure_peak(int threads, Precision precision, Rate* peak) {
  MultiplyAdds run_peak = multiply_adds();
#if KVARTET_HAS_AVX512
  if (attention_kernels(precision).element == 2) run_peak = bf16_multiply_adds;
#endif
  for (int run = 0; run < 5; ++run) {
    std::vector<double> operations(uz(threads));
    const double begin = Clock::real().seconds();
    const double cpu_begin = cpu_seconds();
    parallel_for(threads, threads, [&](int index, int) {
      float sink = 0.5F;
      operations[uz(index)] = run_peak(2'000'000, &sink);
      benchmark::DoNotOptimize(sink);
    });
    double sum = 0;
    for (const double o : operations) sum += o;
    peak->keep_best(sum, Clock::real().seconds() - begin, cpu_seconds() - cpu_begin);
  }
}

struct Shape {
  int heads = kHeads;
  int kv_heads = kKvHeads;
  int head_dim = kHeadDim;
};
constexpr Shape kShapeS;
constexpr Shape kShape1B{32, 8, 64};
constexpr Shape kShape8B{32, 8, 128};

enum class Export { kNothing, kColumnSums, kWindow };

// Args: tokens, chunk, threads.
void prefill(benchmark::State& state, const Shape& s, Precision precision, Export exported) {
  ColumnSums columns;
  const std::size_t tokens = static_cast<std::size_t>(state.range(0));
  const std::size_t chunk = static_cast<std::size_t>(state.range(1));
  const int threads = static_cast<int>(state.range(2));
  const std::size_t q_width = uz(s.heads * s.head_dim);
  const std::size_t kv_width = uz(s.kv_heads * s.head_dim);
  const std::vector<float> q = random_floats(tokens * q_width, 1);
  const std::vector<float> k = random_floats(tokens * kv_width, 2);
  const std::vector<float> v = random_floats(tokens * kv_width, 3);
  std::vector<float> out(q.size());
  const HeadRows<const float> all_q{q.data(), tokens, uz(s.heads), uz(s.head_dim), q_width};
  const HeadRows<const float> all_k{k.data(), tokens, uz(s.kv_heads), uz(s.head_dim), kv_width};
  const HeadRows<const float> all_v{v.data(), tokens, uz(s.kv_heads), uz(s.head_dim), kv_width};
  const HeadRows<float> all_out{out.data(), tokens, uz(s.heads), uz(s.head_dim), q_width};
  PrefillAttention attention(threads, precision);
  LayerScores scores;
  const double n = static_cast<double>(tokens);
  const double operations = 4.0 * s.head_dim * s.heads * n * (n + 1) / 2;
  Rate peak;
  Rate rate;
  for (auto _ : state) {
    state.PauseTiming();
    measure_peak(threads, precision, &peak);
    state.ResumeTiming();
    const double start = Clock::real().seconds();
    const double cpu_start = cpu_seconds();
    if (exported == Export::kColumnSums) columns.start(s.heads, static_cast<int>(tokens));
    for (std::size_t begin = 0; begin < tokens; begin += chunk) {
      const std::size_t end = std::min(begin + chunk, tokens);
      attention.run({.q = all_q.token_range(begin, end),
                     .k = all_k.token_range(0, end),
                     .v = all_v.token_range(0, end),
                     .first = static_cast<int>(begin),
                     .kept = static_cast<int>(begin),
                     .prefix = {},
                     .out = all_out.token_range(begin, end),
                     .columns = exported == Export::kColumnSums ? &columns : nullptr});
    }
    if (exported == Export::kWindow) export_window_scores(all_q.token_range(tokens - 32, tokens), all_k, 32, threads, &scores);
    rate.keep_best(operations, Clock::real().seconds() - start, cpu_seconds() - cpu_start);
  }
  state.counters["GFLOP/s"] = rate.per_second * 1e-9;
  state.counters["of_peak"] = rate.per_second / peak.per_second;
  state.counters["of_peak_cpu"] = rate.per_cpu_second / peak.per_cpu_second;
  state.counters["best_ms"] = operations / rate.per_second * 1e3;
}

void prefill_sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"tokens", "chunk", "threads"})->Args({7168, 512, 1})->Args({7168, 512, 2});
  bench->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(5);
}
void large_prefill_sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"tokens", "chunk", "threads"})->Args({8192, 512, 2});
  bench->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(3);
}
BENCHMARK_CAPTURE(prefill, exact, kShapeS, Precision::kExact, Export::kNothing)->Apply(prefill_sizes);
BENCHMARK_CAPTURE(prefill, exact_column_sums, kShapeS, Precision::kExact, Export::kColumnSums)->Apply(prefill_sizes);
BENCHMARK_CAPTURE(prefill, native, kShapeS, Precision::kNative, Export::kNothing)->Apply(prefill_sizes);
BENCHMARK_CAPTURE(prefill, native_column_sums, kShapeS, Precision::kNative, Export::kColumnSums)->Apply(prefill_sizes);
BENCHMARK_CAPTURE(prefill, native_window, kShapeS, Precision::kNative, Export::kWindow)->Apply(prefill_sizes);
BENCHMARK_CAPTURE(prefill, native_1b, kShape1B, Precision::kNative, Export::kNothing)->Apply(large_prefill_sizes);
BENCHMARK_CAPTURE(prefill, native_1b_column_sums, kShape1B, Precision::kNative, Export::kColumnSums)->Apply(large_prefill_sizes);
BENCHMARK_CAPTURE(prefill, native_8b, kShape8B, Precision::kNative, Export::kNothing)->Apply(large_prefill_sizes);

// One layer's rows in tiles of one format pair, all KV heads.
struct Layer {
  TileFormat keys;
  TileFormat values;
  std::vector<std::byte> tiles;
  std::vector<TilePiece> pieces;
  std::vector<HeadView> views;

  Layer(const FormatRequest& request, int rows)
      : keys(std::move(make_tile_format(request, Side::kKey, kHeadDim)).value()),
        values(std::move(make_tile_format(request, Side::kValue, kHeadDim)).value()) {
    const std::size_t per_head = tile_count(keys, rows) * keys.tile_bytes + tile_count(values, rows) * values.tile_bytes;
    tiles.resize(kKvHeads * per_head + 64);
    pieces.reserve(kKvHeads * (tile_count(keys, rows) + tile_count(values, rows)));
    void* start = tiles.data();
    std::size_t space = tiles.size();
    std::byte* at = static_cast<std::byte*>(std::align(64, 1, start, space));
    for (int head = 0; head < kKvHeads; ++head) {
      HeadView view;
      view.rows = rows;
      view.keys = fill(keys, rows, at, 10 + static_cast<std::uint64_t>(head));
      at += tile_count(keys, rows) * keys.tile_bytes;
      view.values = fill(values, rows, at, 20 + static_cast<std::uint64_t>(head));
      at += tile_count(values, rows) * values.tile_bytes;
      views.push_back(view);
    }
  }

  static std::size_t tile_count(const TileFormat& format, int rows) {
    return uz((rows + format.tile_rows - 1) / format.tile_rows);
  }

  std::span<const TilePiece> fill(const TileFormat& format, int rows, std::byte* at, std::uint64_t stream) {
    const std::size_t first = pieces.size();
    const std::vector<float> data = random_floats(uz(rows) * kHeadDim, stream);
    for (int row = 0; row < rows; row += format.tile_rows, at += format.tile_bytes) {
      const int count = std::min(format.tile_rows, rows - row);
      const MatView<const float> part{data.data() + uz(row) * kHeadDim, uz(count), kHeadDim};
      if (!format.kernels.encode(format, at, 0, part).ok()) std::abort();
      pieces.push_back({&format, at, row, 0, count});
    }
    return {pieces.data() + first, pieces.size() - first};
  }
};

// Thirty layers, so that the cache does not fit the processor's. Args: rows, threads.
void decode(benchmark::State& state, const FormatRequest& request) {
  constexpr int kLayers = 30;
  const int rows = static_cast<int>(state.range(0));
  std::vector<std::unique_ptr<Layer>> layers;
  double bytes = 0;
  for (int l = 0; l < kLayers; ++l) {
    layers.push_back(std::make_unique<Layer>(request, rows));
    bytes += static_cast<double>(layers.back()->tiles.size());
  }
  const std::vector<float> q = random_floats(kHeads * kHeadDim, 1);
  std::vector<float> out(q.size());
  DecodeAttention attention(static_cast<int>(state.range(1)));
  std::vector<AttentionTask> tasks;
  double best = 1e9;
  for (auto _ : state) {
    const double start = Clock::real().seconds();
    for (const auto& layer : layers) {
      tasks.clear();
      for (int head = 0; head < kKvHeads; ++head) {
        const std::size_t offset = uz(head) * kHeads / kKvHeads * kHeadDim;
        AttentionTask task;
        task.view = layer->views[uz(head)];
        task.q = q.data() + offset;
        task.q_stride = task.out_stride = kHeadDim;
        task.queries = kHeads / kKvHeads;
        task.head_dim = kHeadDim;
        task.out = out.data() + offset;
        tasks.push_back(task);
      }
      attention.run(tasks);
    }
    best = std::min(best, Clock::real().seconds() - start);
  }
  state.counters["GB/s"] = bytes / best * 1e-9;
  state.counters["best_ms"] = best * 1e3;
}
BENCHMARK_CAPTURE(decode, f16, FormatRequest{})
    ->ArgNames({"rows", "threads"})
    ->Args({7168, 1})
    ->Args({7168, 2})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK_CAPTURE(decode, kivi4, FormatRequest{.name = "kivi", .bits = 4, .group = 32})
    ->ArgNames({"rows", "threads"})
    ->Args({7168, 1})
    ->Args({7168, 2})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace kvartet
