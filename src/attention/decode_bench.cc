// Decode attention over whole caches, every format beside f16 in the same rounds: decode/SHAPE prints for each the median
// milliseconds of a step and x_NAME, the median over rounds of f16's time by its own. `read` is the plain read bandwidth of
// those rounds in GB/s and f16_read what f16 reaches of it: ratios are only worth something beside them, because memory
// changes its speed from minute to minute. NAME_portable are Highway's kernels where integer twins exist.
#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "attention/decode_attention.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/normals_fixture.h"
#include "core/parallel_for.h"
#include "core/uz.h"
#include "quantize/tile_format.h"
#include "simd/targets.h"

namespace kvartet {
namespace {

constexpr int kThreads = 2;

struct Shape {
  const char* name;
  int layers;
  int kv_heads;
  int queries;  // of each KV head
  int head_dim;
  int rows;  // a multiple of kBlockRows
  int heads() const { return layers * kv_heads; }
};
constexpr Shape kShapes[] = {{"smollm2", 30, 3, 3, 64, 7168},
                             {"llama-3.2-1b", 16, 8, 4, 64, 32768},
                             {"head_dim_128", 4, 8, 4, 128, 32768}};  // four layers of Llama-3.1-8B

// All tiles of one side: those of the first head are encoded, the others are its copies.
class SideTiles {
 public:
  SideTiles(const FormatRequest& request, Side side, const Shape& shape)
      : format_(make_tile_format(request, side, shape.head_dim).value()),
        tiles_per_head_(uz(shape.rows / format_.tile_rows)),
        buffer_(Arena::create()->allocate(uz(shape.heads()) * tiles_per_head_ * format_.tile_bytes).value()) {
    const std::size_t tile_floats = uz(format_.tile_rows) * uz(shape.head_dim);
    constexpr std::size_t kKinds = 8;
    for (std::size_t t = 0; t < uz(shape.heads()) * tiles_per_head_; ++t) {
      std::byte* const tile = buffer_.data() + t * format_.tile_bytes;
      if (t >= kKinds) {
        std::memcpy(tile, buffer_.data() + t % kKinds * format_.tile_bytes, format_.tile_bytes);
        continue;
      }
      const std::vector<float> rows = normals(tile_floats, 10 + t);
      const Status s = format_.kernels.encode(format_, tile, 0, {rows.data(), uz(format_.tile_rows), uz(shape.head_dim)});
      KV_CHECK(s.ok());
    }
  }
  // The same tiles, for the kernels of `format`.
  std::vector<TilePiece> pieces(int head, const TileFormat* format) const {
    std::vector<TilePiece> pieces;
    for (std::size_t t = 0; t < tiles_per_head_; ++t) {
      const std::byte* const tile = buffer_.data() + (uz(head) * tiles_per_head_ + t) * format->tile_bytes;
      pieces.push_back({format, tile, static_cast<int>(t) * format->tile_rows, 0, format->tile_rows});
    }
    return pieces;
  }
  const TileFormat& format() const { return format_; }
  const Buffer& buffer() const { return buffer_; }

 private:
  TileFormat format_;
  std::size_t tiles_per_head_;
  Buffer buffer_;
};

struct Tiles {
  FormatRequest request;
  SideTiles keys;
  SideTiles values;
  Tiles(const FormatRequest& r, const Shape& shape) : request(r), keys(r, Side::kKey, shape), values(r, Side::kValue, shape) {}
};

// One way to attend to tiles.
class Cache {
 public:
  Cache(std::string name, const Tiles& tiles, const Shape& shape)
      : name_(std::move(name)),
        keys_(make_tile_format(tiles.request, Side::kKey, shape.head_dim).value()),
        values_(make_tile_format(tiles.request, Side::kValue, shape.head_dim).value()),
        q_(normals(uz(shape.queries * shape.head_dim), 2)),
        out_(uz(shape.kv_heads) * q_.size()) {
    for (int head = 0; head < shape.heads(); ++head) {
      pieces_.push_back(tiles.keys.pieces(head, &keys_));
      pieces_.push_back(tiles.values.pieces(head, &values_));
      AttentionTask task;
      task.view.keys = pieces_[pieces_.size() - 2];
      task.view.values = pieces_.back();
      task.view.rows = shape.rows;
      task.q = q_.data();
      task.q_stride = task.out_stride = uz(shape.head_dim);
      task.queries = shape.queries;
      task.head_dim = shape.head_dim;
      task.out = out_.data() + uz(head % shape.kv_heads) * q_.size();
      tasks_.push_back(task);
    }
  }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  const std::string& name() const { return name_; }
  double step(DecodeAttention* attention, const Shape& shape) {
    const double start = Clock::real().seconds();
    for (std::size_t first = 0; first < tasks_.size(); first += uz(shape.kv_heads)) {
      attention->run({tasks_.data() + first, uz(shape.kv_heads)});
    }
    return Clock::real().seconds() - start;
  }

 private:
  std::string name_;
  TileFormat keys_;
  TileFormat values_;
  std::vector<float> q_;
  std::vector<float> out_;
  std::deque<std::vector<TilePiece>> pieces_;
  std::vector<AttentionTask> tasks_;
};

double read_seconds(const Buffer& buffer) {
  constexpr int kParts = 64;
  const std::size_t words = buffer.size() / sizeof(std::uint64_t) / kParts;
  std::uint64_t sums[kParts];
  const double start = Clock::real().seconds();
  parallel_for(kThreads, kParts, [&](int part, int) {
    const std::uint64_t* const at = reinterpret_cast<const std::uint64_t*>(buffer.data()) + uz(part) * words;
    std::uint64_t sum[8] = {};
    for (std::size_t i = 0; i + 8 <= words; i += 8) {
      for (std::size_t j = 0; j < 8; ++j) sum[j] += at[i + j];
    }
    sums[part] = sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
  });
  benchmark::DoNotOptimize(sums);
  return Clock::real().seconds() - start;
}

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

std::string label(const FormatRequest& r) { return r.bits == 0 ? r.name : r.name + std::to_string(r.bits); }

FormatRequest turboquant(int bits) { return {.name = "turboquant", .bits = bits, .rotation = Rotation::kHadamard, .seed = 1}; }

void decode(benchmark::State& state, const Shape& shape, bool portable_too) {
  std::deque<Tiles> tiles;
  std::deque<Cache> caches;
  for (const FormatRequest& request :
       std::vector<FormatRequest>{{"f16"}, {"q8_0"}, {"kivi", 4, 32}, {"kivi", 2, 32}, turboquant(4), turboquant(3)}) {
    tiles.emplace_back(request, shape);
    caches.emplace_back(label(request), tiles.back(), shape);
    const SimdTarget portable = {"portable", simd_targets().front().bit, SimdExtension::kNone};
    const ScopedSimdTarget scope(portable);
    if (portable_too) caches.emplace_back(label(request) + "_portable", tiles.back(), shape);
  }
  DecodeAttention attention(kThreads);
  std::vector<std::vector<double>> seconds(caches.size());
  std::vector<std::vector<double>> ratios(caches.size());
  std::vector<double> reads;
  std::vector<double> shares;
  const double bytes = static_cast<double>(tiles[0].keys.buffer().size());
  for (auto _ : state) {
    const double read = bytes / read_seconds(tiles[0].keys.buffer());
    reads.push_back(read);
    for (std::size_t i = 0; i < caches.size(); ++i) {
      seconds[i].push_back(caches[i].step(&attention, shape));
      ratios[i].push_back(seconds[0].back() / seconds[i].back());
    }
    shares.push_back(2 * bytes / seconds[0].back() / read);
  }
  for (std::size_t i = 0; i < caches.size(); ++i) {
    state.counters["ms_" + caches[i].name()] = median(seconds[i]) * 1e3;
    state.counters["best_" + caches[i].name()] = *std::min_element(seconds[i].begin(), seconds[i].end()) * 1e3;
    if (i > 0) state.counters["x_" + caches[i].name()] = median(ratios[i]);
  }
  state.counters["read"] = median(reads) * 1e-9;
  state.counters["f16_read"] = median(shares);
}

const int kRegistered = [] {
  for (const Shape& shape : kShapes) {
    for (const bool portable_too : {false, true}) {
      const std::string name = std::string("decode/") + shape.name + (portable_too ? "/portable_too" : "");
      benchmark::RegisterBenchmark(name.c_str(), decode, shape, portable_too)
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime()
          ->Iterations(21);
    }
  }
  return 0;
}();

}  // namespace
}  // namespace kvartet
