// Attention over chosen rows of cold memory: where they lie, against staging them into f16 tiles first. Processor time of one
// head, three queries, 224 of 7,168 rows chosen anew each time.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/normals_fixture.h"
#include "core/rng.h"
#include "offload/row_places.h"
#include "quantize/f16_numbers.h"
#include "quantize/float_format.h"

namespace kvartet {
namespace {

constexpr int kDim = 64;
constexpr int kQueries = 3;
constexpr int kTokens = 7168;
constexpr int kChosen = 224;
constexpr int kHeads = 90;  // together larger than any cache

struct Heads {
  Heads(RowFormat format, int heads)
      : codec(RowCodec::create(format, kDim).value()),
        rope(RopeTable::create({.dims = kDim}, kTokens, *Arena::create()).value()) {
    const std::size_t row = 2 * codec.row_bytes();
    const std::vector<float> numbers = normals(kDim * 64, 1);
    for (int h = 0; h < heads; ++h) {
      rows.emplace_back(row * kTokens);
      for (int t = 0; t < kTokens; ++t) {
        for (std::size_t side = 0; side < 2; ++side)
          codec.encode(numbers.data() + kDim * ((static_cast<std::size_t>(t) + side) % 64),
                       rows.back().data() + row * static_cast<std::size_t>(t) + side * codec.row_bytes());
      }
    }
    const Rng rng(3);
    for (std::size_t i = 0; i < 64; ++i) {
      std::vector<std::int32_t> all;
      for (std::size_t t = 0; t < kTokens; ++t)
        if (rng.at(i * kTokens + t) % 32 == 0) all.push_back(static_cast<std::int32_t>(t));
      all.resize(kChosen, kTokens - 1);
      chosen.push_back(all);
    }
  }
  RowSide side(std::size_t at, bool unrotated) const {
    return {.format = codec.format(), .head_dim = kDim, .at = at, .row_bytes = 2 * codec.row_bytes(), .unrotated = unrotated};
  }
  RowCodec codec;
  RopeTable rope;
  std::vector<std::vector<std::byte>> rows;
  std::vector<std::vector<std::int32_t>> chosen;
};

void in_place(benchmark::State& state) {
  const bool coded = state.range(0) != 0;
  const int count = static_cast<int>(state.range(1));
  const Heads heads(coded ? RowFormat::kHiggs4 : RowFormat::kF16, count);
  const TileFormat key = make_places_format(heads.side(0, coded), Side::kKey);
  const TileFormat value = make_places_format(heads.side(heads.codec.row_bytes(), false), Side::kValue);
  std::vector<float> q = normals(kQueries * kDim, 4);
  std::vector<float> logits(kQueries * kBlockRows);
  std::vector<float> out(kQueries * kDim);
  std::vector<RowPlaces> tiles(2);
  std::size_t step = 0;
  for (auto _ : state) {
    const auto& rows = heads.rows[step % heads.rows.size()];
    const auto& chosen = heads.chosen[step % 64];
    ++step;
    for (int i = 0; i < kChosen; ++i) {
      RowPlaces& places = tiles[static_cast<std::size_t>(i / kBlockRows)];
      places.rows[i % kBlockRows] =
          rows.data() + static_cast<std::size_t>(chosen[static_cast<std::size_t>(i)]) * 2 * heads.codec.row_bytes();
      places.positions[i % kBlockRows] = chosen[static_cast<std::size_t>(i)];
      places.count = i % kBlockRows + 1;
      places.rope = &heads.rope;
    }
    for (const RowPlaces& places : tiles) {
      const auto* const tile = reinterpret_cast<const std::byte*>(&places);
      key.kernels.score(key, {.tile = tile,
                              .begin = 0,
                              .end = places.count,
                              .q = q.data(),
                              .queries = kQueries,
                              .logits = logits.data(),
                              .logit_stride = kBlockRows});
      value.kernels.accumulate(value, {.tile = tile,
                                       .begin = 0,
                                       .end = places.count,
                                       .weights = logits.data(),
                                       .weight_stride = kBlockRows,
                                       .queries = kQueries,
                                       .out = out.data()});
    }
    benchmark::DoNotOptimize(out.data());
  }
}
BENCHMARK(in_place)->ArgsProduct({{0, 1}, {1, kHeads}});

// All rows, in new tiles: what a step of tier=ram did of the rows that it had not staged already.
void staged(benchmark::State& state) {
  const bool coded = state.range(0) != 0;
  const Heads heads(coded ? RowFormat::kHiggs4 : RowFormat::kF16, kHeads);
  const RopeTable rope = RopeTable::create({.dims = kDim}, kTokens, *Arena::create()).value();
  const TileFormat key = make_tile_format({"f16"}, Side::kKey, kDim).value();
  const TileFormat value = make_tile_format({"f16"}, Side::kValue, kDim).value();
  std::vector<float> q = normals(kQueries * kDim, 4);
  std::vector<float> logits(kQueries * 64);
  std::vector<float> out(kQueries * kDim);
  std::vector<float> row(kDim);
  std::vector<std::vector<std::byte>> tiles(kHeads, std::vector<std::byte>(2 * 4 * key.tile_bytes + 4096));
  std::vector<std::byte> decoded(2 * 64 * 2 * kDim);
  std::vector<F16Row> keys;
  std::vector<F16Row> values;
  std::size_t step = 0;
  for (auto _ : state) {
    const auto& rows = heads.rows[step % kHeads];
    const auto& chosen = heads.chosen[step % 64];
    std::byte* tile = tiles[step % kHeads].data();
    ++step;
    const auto at = [&](int i) {
      return rows.data() + static_cast<std::size_t>(chosen[static_cast<std::size_t>(i)]) * 2 * heads.codec.row_bytes();
    };
    for (int first = 0; first < kChosen; first += 64, tile += 2 * key.tile_bytes) {
      keys.clear();
      values.clear();
      const int end = std::min(first + 64, kChosen);
      for (int i = first; i < end; ++i) {
        if (i + 32 < kChosen)
          for (std::size_t line = 0; line < 2 * heads.codec.row_bytes(); line += 64) __builtin_prefetch(at(i + 32) + line, 0, 2);
        for (std::size_t line = 0; line < 2 * kDim; line += 64) {
          __builtin_prefetch(tile + static_cast<std::size_t>(i - first) * 2 * kDim + line, 1);
          __builtin_prefetch(tile + key.tile_bytes + static_cast<std::size_t>(i - first) * 2 * kDim + line, 1);
        }
        if (coded && i + 8 < kChosen) rope.prefetch(chosen[static_cast<std::size_t>(i + 8)]);
        const std::byte* k = at(i);
        const std::byte* v = k + heads.codec.row_bytes();
        if (coded) {
          std::byte* room = decoded.data() + static_cast<std::size_t>(i - first) * 4 * kDim;
          heads.codec.decode(k, row.data());
          rope.rotate(row.data(), chosen[static_cast<std::size_t>(i)]);
          static_cast<void>(narrow_finite_f16(row, room));
          heads.codec.decode(v, row.data());
          static_cast<void>(narrow_finite_f16(row, room + 2 * kDim));
          k = room;
          v = room + 2 * kDim;
        }
        keys.push_back({k, i - first});
        values.push_back({v, i - first});
      }
      put_f16_rows(key, tile, keys);
      put_f16_rows(value, tile + key.tile_bytes, values);
      key.kernels.score(key, {.tile = tile,
                              .begin = 0,
                              .end = end - first,
                              .q = q.data(),
                              .queries = kQueries,
                              .logits = logits.data(),
                              .logit_stride = 64});
      value.kernels.accumulate(value, {.tile = tile + key.tile_bytes,
                                       .begin = 0,
                                       .end = end - first,
                                       .weights = logits.data(),
                                       .weight_stride = 64,
                                       .queries = kQueries,
                                       .out = out.data()});
    }
    benchmark::DoNotOptimize(out.data());
  }
}
BENCHMARK(staged)->Arg(0)->Arg(1);

}  // namespace
}  // namespace kvartet
