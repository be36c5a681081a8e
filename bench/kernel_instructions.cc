// Runs every kernel that a decode step or a prefill spends its time in, once, on small inputs, and tells callgrind before and
// after, so that bench/instructions can count the instructions of each: a figure that no neighbour on the machine changes.
// Outside of callgrind it does nothing that can be seen.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <valgrind/callgrind.h>

#include "attention/decode_attention.h"
#include "attention/prefill_attention.h"
#include "core/arena.h"
#include "core/check.h"
#include "core/normals_fixture.h"
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

std::string label(const FormatRequest& request) {
  std::string text = request.name;
  if (request.bits != 0) text += fmt::format("-{}", request.bits);
  if (request.name != "turboquant" && request.rotation == Rotation::kHadamard) text += "-hadamard";
  return text;
}

// One block of rows of one KV head: encoded as after a prefill, then read as in a decode step.
void count_format(const FormatRequest& request, Side side) {
  const Result<TileFormat> made = make_tile_format(request, side, kHeadDim);
  if (!made.ok()) return;  // a format of keys alone; the record tells when another one vanishes
  const TileFormat& format = *made;
  const std::size_t tiles = static_cast<std::size_t>(kBlockRows / format.tile_rows);
  Buffer buffer = Arena::create()->allocate(tiles * format.tile_bytes).value();
  const auto tile = [&](std::size_t i) { return buffer.data() + i * format.tile_bytes; };
  const std::vector<float> rows = normals(std::size_t{kBlockRows} * kHeadDim, 1);
  const std::size_t tile_floats = static_cast<std::size_t>(format.tile_rows) * kHeadDim;
  const char* const part = side == Side::kKey ? "keys" : "values";

  counted(fmt::format("encode/{}/{}", part, label(request)), [&] {
    for (std::size_t i = 0; i < tiles; ++i) {
      const MatView<const float> some(rows.data() + i * tile_floats, static_cast<std::size_t>(format.tile_rows), kHeadDim);
      KV_CHECK(format.kernels.encode(format, tile(i), 0, some).ok());
    }
  });

  const std::vector<float> queries = normals(std::size_t{kQueries} * static_cast<std::size_t>(format.prepared_floats()), 2);
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

// Rows of one side in tiles, as a cache holds them.
struct Rows {
  TileFormat format;
  std::vector<Buffer> tiles;
  std::vector<TilePiece> pieces;
};

std::unique_ptr<Rows> f16_rows(Side side, int count) {
  auto rows = std::make_unique<Rows>(Rows{make_tile_format({"f16"}, side, kHeadDim).value(), {}, {}});
  const TileFormat& format = rows->format;
  const auto arena = Arena::create();
  const std::vector<float> data = normals(static_cast<std::size_t>(format.tile_rows) * kHeadDim, side == Side::kKey ? 4 : 5);
  for (int row = 0; row < count; row += format.tile_rows) {
    rows->tiles.push_back(arena->allocate(format.tile_bytes).value());
    std::byte* const tile = rows->tiles.back().data();
    KV_CHECK(format.kernels.encode(format, tile, 0, {data.data(), static_cast<std::size_t>(format.tile_rows), kHeadDim}).ok());
    rows->pieces.push_back({&format, tile, row, 0, format.tile_rows});
  }
  return rows;
}

// Scores, softmax and sums of one head of two ranges of rows, and their merge.
void count_decode() {
  constexpr int kCount = DecodeAttention::kRangeRows + kBlockRows;
  const std::unique_ptr<Rows> keys = f16_rows(Side::kKey, kCount);
  const std::unique_ptr<Rows> values = f16_rows(Side::kValue, kCount);
  const std::vector<float> q = normals(std::size_t{kQueries} * kHeadDim, 1);
  std::vector<float> out(q.size());
  AttentionTask task;
  task.view = {keys->pieces, values->pieces, kCount};
  task.q = q.data();
  task.q_stride = kHeadDim;
  task.queries = kQueries;
  task.head_dim = kHeadDim;
  task.out = out.data();
  task.out_stride = kHeadDim;
  DecodeAttention attention(1);
  counted("decode/f16", [&] { attention.run({&task, 1}); });
}

void count_prefill() {
  constexpr std::size_t kTokens = 256;
  constexpr std::size_t kKvHeads = 3;
  constexpr std::size_t kHeads = kKvHeads * kQueries;
  const std::vector<float> q = normals(kTokens * kHeads * kHeadDim, 1);
  const std::vector<float> k = normals(kTokens * kKvHeads * kHeadDim, 2);
  const std::vector<float> v = normals(kTokens * kKvHeads * kHeadDim, 3);
  std::vector<float> out(q.size());
  PrefillAttention attention(1, Precision::kNative);
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
  std::vector<FormatRequest> all;
  for (const std::string& name : format_names()) {
    if (name != "kivi" && name != "turboquant") all.push_back({name});  // these have no form without bits
  }
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
  kvartet::count_decode();
  kvartet::count_prefill();
}
