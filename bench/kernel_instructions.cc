// Runs every kernel that a decode step or a prefill spends its time in, once, on small inputs, and tells callgrind before and
// after, so that bench/instructions can count the instructions of each: a figure that no neighbour on the machine changes.
// Outside of callgrind it does nothing that can be seen.
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <valgrind/callgrind.h>

#include "attention/prefill_attention.h"
#include "core/arena.h"
#include "core/check.h"
#include "core/rng.h"
#include "quantize/tile_format.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

constexpr int kHeadDim = 64;  // SmolLM2's heads: three queries to each KV head
constexpr int kQueries = 3;

template <class Work>
void counted(const std::string& name, const Work& work) {
  work();  // what is done once (choosing the CPU's kernels, growing scratch) is not counted
  CALLGRIND_ZERO_STATS;
  work();
  CALLGRIND_DUMP_STATS_AT(name.c_str());
}

std::vector<float> normal_floats(std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x(count);
  for (float& v : x) v = static_cast<float>(rng.normal());
  return x;
}

std::string label(const FormatRequest& request) {
  std::string text = request.name;
  if (request.bits != 0) text += fmt::format("-{}", request.bits);
  if (request.name != "turboquant" && request.rotation == Rotation::kHadamard) text += "-hadamard";
  return text;
}

// One block of rows of one KV head: encoded as after a prefill, then read as in a decode step.
void count_format(const FormatRequest& request, Side side) {
  const TileFormat format = make_tile_format(request, side, kHeadDim).value();
  const std::size_t tiles = static_cast<std::size_t>(kBlockRows / format.tile_rows);
  Buffer buffer = Arena::create()->allocate(tiles * format.tile_bytes).value();
  const auto tile = [&](std::size_t i) { return buffer.data() + i * format.tile_bytes; };
  const std::vector<float> rows = normal_floats(std::size_t{kBlockRows} * kHeadDim, 1);
  const std::size_t tile_floats = static_cast<std::size_t>(format.tile_rows) * kHeadDim;
  const char* const part = side == Side::kKey ? "keys" : "values";

  counted(fmt::format("encode/{}/{}", part, label(request)), [&] {
    for (std::size_t i = 0; i < tiles; ++i) {
      const MatView<const float> some(rows.data() + i * tile_floats, static_cast<std::size_t>(format.tile_rows), kHeadDim);
      KV_CHECK(format.kernels.encode(format, tile(i), 0, some).ok());
    }
  });

  const std::vector<float> queries = normal_floats(std::size_t{kQueries} * static_cast<std::size_t>(format.prepared_floats()), 2);
  std::vector<float> weights(std::size_t{kQueries} * kBlockRows, 1.0F / kBlockRows);
  std::vector<float> out(std::size_t{kQueries} * kHeadDim);
  counted(fmt::format("{}/{}", side == Side::kKey ? "score" : "accumulate", label(request)), [&] {
    for (std::size_t i = 0; i < tiles; ++i) {
      const std::size_t row = i * static_cast<std::size_t>(format.tile_rows);
      if (side == Side::kKey)
        format.kernels.score(format,
                             {tile(i), 0, format.tile_rows, queries.data(), kQueries, weights.data() + row, kBlockRows, nullptr});
      else
        format.kernels.accumulate(
            format, {tile(i), 0, format.tile_rows, weights.data() + row, kBlockRows, kQueries, out.data(), nullptr});
    }
  });
}

void count_prefill() {
  constexpr std::size_t kTokens = 256;
  constexpr std::size_t kKvHeads = 3;
  constexpr std::size_t kHeads = kKvHeads * kQueries;
  const std::vector<float> q = normal_floats(kTokens * kHeads * kHeadDim, 1);
  const std::vector<float> k = normal_floats(kTokens * kKvHeads * kHeadDim, 2);
  const std::vector<float> v = normal_floats(kTokens * kKvHeads * kHeadDim, 3);
  std::vector<float> out(q.size());
  PrefillAttention attention(1);
  ColumnSums columns;
  const auto run = [&](ColumnSums* exported) {
    attention.run({.q = {q.data(), kTokens, kHeads, kHeadDim, kHeads * kHeadDim},
                   .k = {k.data(), kTokens, kKvHeads, kHeadDim, kKvHeads * kHeadDim},
                   .v = {v.data(), kTokens, kKvHeads, kHeadDim, kKvHeads * kHeadDim},
                   .first = 0,
                   .kept = 0,
                   .prefix = {},
                   .out = {out.data(), kTokens, kHeads, kHeadDim, kHeads * kHeadDim},
                   .columns = exported});
  };
  counted("prefill/plain", [&] { run(nullptr); });
  counted("prefill/column_sums", [&] {
    columns.start(static_cast<int>(kHeads), static_cast<int>(kTokens));
    run(&columns);
  });
}

std::vector<FormatRequest> formats() {
  std::vector<FormatRequest> all = {{"f16"}, {"f32"}, {"q8_0"}, {"fp8"}, {"q4_0"}, {"q4_1"}, {"q5_0"}};
  all.push_back({.name = "q4_0", .rotation = Rotation::kHadamard});
  for (const int bits : {2, 3, 4, 8}) all.push_back({.name = "kivi", .bits = bits, .group = 32});
  for (const int bits : {2, 3, 4})
    all.push_back({.name = "turboquant", .bits = bits, .rotation = Rotation::kHadamard, .seed = 1});
  return all;
}

}  // namespace
}  // namespace kvartet

int main() {
  // Counts are comparable with those of the same kernels as the same compiler makes them.
#ifdef __clang__
  const std::string compiler = fmt::format("clang++ {}.{}", __clang_major__, __clang_minor__);
#else
  const std::string compiler = fmt::format("g++ {}.{}", __GNUC__, __GNUC_MINOR__);
#endif
  fmt::print("counted {}, {}\n", kvartet::simd_targets().front().name, compiler);
  for (const kvartet::FormatRequest& request : kvartet::formats())
    for (const kvartet::Side side : {kvartet::Side::kKey, kvartet::Side::kValue}) kvartet::count_format(request, side);
  kvartet::count_prefill();
}
