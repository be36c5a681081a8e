// Tile kernels in the shape of one decode step of a small model: 30 layers x 3 KV heads x 7,168 rows of 64 channels, 3 query
// heads to each KV head, far more than the caches hold. One thread; bytes are live bytes, keys and values together.
// Compare formats within one run, with --benchmark_enable_random_interleaving=true --benchmark_repetitions=9: memory
// bandwidth changes from minute to minute. `read` is the plain read bandwidth of the same bytes as f16.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "core/arena.h"
#include "core/normals_fixture.h"
#include "quantize/tile_format.h"

namespace kvartet {
namespace {

constexpr int kHeads = 30 * 3;  // layers x KV heads
constexpr int kRows = 7168;
constexpr int kHeadDim = 64;
constexpr int kQueries = 3;

// The tiles of all heads of one side, one after the other.
class Tiles {
 public:
  Tiles(const FormatRequest& request, Side side)
      : format_(make_tile_format(request, side, kHeadDim).value()),
        tile_count_(kHeads * kRows / format_.tile_rows),
        buffer_(Arena::create()->allocate(static_cast<std::size_t>(tile_count_) * format_.tile_bytes).value()) {
    const std::vector<float> rows = normals(static_cast<std::size_t>(format_.tile_rows) * kHeadDim, 1);
    for (int i = 0; i < tile_count_; ++i) encode(i, rows);
  }
  void encode(int index, const std::vector<float>& rows) {
    const MatView<const float> view(rows.data(), static_cast<std::size_t>(format_.tile_rows), kHeadDim);
    const Status s = format_.kernels.encode(format_, buffer_.data() + offset(index), 0, view);
    KV_CHECK(s.ok());
  }
  const std::byte* tile(int index) const { return index < tile_count_ ? buffer_.data() + offset(index) : nullptr; }
  int count() const { return tile_count_; }
  const TileFormat& format() const { return format_; }
  std::size_t bytes() const { return buffer_.size(); }

 private:
  std::size_t offset(int index) const { return static_cast<std::size_t>(index) * format_.tile_bytes; }
  TileFormat format_;
  int tile_count_;
  Buffer buffer_;
};

void count_bytes(benchmark::State& state, std::size_t bytes) {
  state.counters["GB/s"] =
      benchmark::Counter(static_cast<double>(bytes), benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

void score_block(const Tiles& keys, int row, const float* q, float* logits) {
  const int tile_rows = keys.format().tile_rows;
  for (int r = row; r < row + kBlockRows; r += tile_rows) {
    const int index = r / tile_rows;
    keys.format().kernels.score(
        keys.format(), {keys.tile(index), 0, tile_rows, q, kQueries, logits + (r - row), kBlockRows, keys.tile(index + 1)});
  }
}

void accumulate_block(const Tiles& values, int row, const float* weights, float* out) {
  const int tile_rows = values.format().tile_rows;
  for (int r = row; r < row + kBlockRows; r += tile_rows) {
    const int index = r / tile_rows;
    values.format().kernels.accumulate(values.format(), {values.tile(index), 0, tile_rows, weights + (r - row), kBlockRows,
                                                         kQueries, out, values.tile(index + 1)});
  }
}

void decode_step(benchmark::State& state, const FormatRequest& request) {
  const Tiles keys(request, Side::kKey);
  const Tiles values(request, Side::kValue);
  const std::vector<float> q = normals(kQueries * kHeadDim, 2);
  std::vector<float> logits(kQueries * kBlockRows);
  const std::vector<float> weights(kQueries * kBlockRows, 1.0F / kRows);
  for (auto _ : state) {
    for (int row = 0; row < kHeads * kRows; row += kRows) {
      std::vector<float> out(kQueries * kHeadDim);
      for (int r = row; r < row + kRows; r += kBlockRows) {
        score_block(keys, r, q.data(), logits.data());
        benchmark::DoNotOptimize(logits.data());
        accumulate_block(values, r, weights.data(), out.data());
      }
      benchmark::DoNotOptimize(out.data());
    }
  }
  count_bytes(state, keys.bytes() + values.bytes());
}

// One block over and over: what the arithmetic alone costs.
void in_cache(benchmark::State& state, const FormatRequest& request, Side side) {
  const Tiles tiles(request, side);
  const std::vector<float> q = normals(kQueries * kHeadDim, 2);
  std::vector<float> logits(kQueries * kBlockRows, 1.0F);
  std::vector<float> out(kQueries * kHeadDim);
  for (auto _ : state) {
    if (side == Side::kKey) score_block(tiles, 0, q.data(), logits.data());
    if (side == Side::kValue) accumulate_block(tiles, 0, logits.data(), out.data());
    benchmark::DoNotOptimize(logits.data());
    benchmark::DoNotOptimize(out.data());
  }
}

void encode_prompt(benchmark::State& state, const FormatRequest& request) {
  Tiles keys(request, Side::kKey);
  Tiles values(request, Side::kValue);
  const std::vector<float> rows = normals(kBlockRows * kHeadDim, 3);
  for (auto _ : state) {
    for (int i = 0; i < kHeads * 4096 / keys.format().tile_rows; ++i) {
      keys.encode(i, rows);
      values.encode(i, rows);
    }
  }
}

void plain_read(benchmark::State& state) {
  const std::vector<std::uint64_t> words(std::size_t{kHeads} * kRows * kHeadDim * 4 / 8, 1);
  for (auto _ : state) {
    std::uint64_t sum = 0;
    for (const std::uint64_t w : words) sum += w;
    benchmark::DoNotOptimize(sum);
  }
  count_bytes(state, words.size() * 8);
}

std::string label(const FormatRequest& r) {
  std::string text = r.name;
  if (r.bits != 0) text += std::to_string(r.bits);
  if (r.group != 0) text.append("g").append(std::to_string(r.group));
  if (r.residual_signs) text += "prod";
  if (r.rotation == Rotation::kDense) text += "dense";
  if (r.name != "turboquant" && r.rotation == Rotation::kHadamard) text += "hadamard";
  return text;
}

FormatRequest turboquant(int bits) { return {.name = "turboquant", .bits = bits, .rotation = Rotation::kHadamard, .seed = 1}; }

const int kRegistered = [] {
  benchmark::RegisterBenchmark("read", plain_read)->Unit(benchmark::kMillisecond);
  for (const FormatRequest& r : std::vector<FormatRequest>{{"f16"},
                                                           {"f32"},
                                                           {"q8_0"},
                                                           {"kivi", 4, 32},
                                                           {"kivi", 2, 32},
                                                           {"kivi", 8, 32},
                                                           {"kivi", 4, 64},
                                                           {"kivi", 3, 32},
                                                           {"fp8"},
                                                           {"q4_0"},
                                                           {"q4_1"},
                                                           {"q5_0"},
                                                           {"q3_0"},
                                                           {.name = "q4_0", .rotation = Rotation::kHadamard},
                                                           turboquant(1),
                                                           turboquant(2),
                                                           turboquant(3),
                                                           turboquant(4),
                                                           turboquant(6)}) {
    benchmark::RegisterBenchmark(("decode/" + label(r)).c_str(), decode_step, r)->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("score_in_cache/" + label(r)).c_str(), in_cache, r, Side::kKey);
    benchmark::RegisterBenchmark(("accumulate_in_cache/" + label(r)).c_str(), in_cache, r, Side::kValue);
    benchmark::RegisterBenchmark(("encode_4096/" + label(r)).c_str(), encode_prompt, r)->Unit(benchmark::kMillisecond);
  }
  return 0;
}();

}  // namespace
}  // namespace kvartet
