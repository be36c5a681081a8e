// Tiles: the one thing that cache and attention both speak.
//
// A tile holds up to `tile_rows` rows of one side (keys or values) of one KV head in one format. Attention never decodes
// a tile: it scores queries against encoded keys and accumulates weighted encoded values (compression.md 2.4).
// A format is a table of functions, chosen once for the CPU; a new format is one file with its test and one line in
// tile_format.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/matrix.h"
#include "core/status.h"
#include "quantize/row_rotation.h"

namespace kvartet {

// Attention cuts its work at multiples of this many rows, whatever the thread count. Every tile_rows divides it.
inline constexpr int kBlockRows = 128;

enum class Side : std::uint8_t { kKey, kValue };

struct TileFormat;
struct PlanarRows;   // quantize/planar_rows.h
struct RotatedRows;  // quantize/rotated_format.h

// Logits of `queries` queries against rows [begin, end) of a key tile.
struct ScoreArgs {
  const std::byte* tile = nullptr;
  int begin = 0;
  int end = 0;
  const float* q = nullptr;  // [queries, prepared_floats()], scaled by 1/sqrt(head_dim) and prepared by prepare_queries
  int queries = 0;
  float* logits = nullptr;  // logits[query * logit_stride + (row - begin)] is written
  std::size_t logit_stride = 0;
  const std::byte* next = nullptr;  // the tile that comes next, for prefetching; may be null
};

// out[query, :] += sum over rows [begin, end) of weights[query, row - begin] * value row.
struct AccumulateArgs {
  const std::byte* tile = nullptr;
  int begin = 0;
  int end = 0;
  const float* weights = nullptr;  // [queries, weight_stride]
  std::size_t weight_stride = 0;
  int queries = 0;
  float* out = nullptr;  // [queries, head_dim], dense
  const std::byte* next = nullptr;
};

struct TileKernels {
  // Encodes rows.rows rows at tile rows [begin, begin + rows.rows). `begin` and the count are multiples of row_step.
  // kBadInput: a NaN or an Inf, or a scale that does not fit f16; the tile is then unchanged.
  Status (*encode)(const TileFormat&, std::byte* tile, int begin, MatView<const float> rows) = nullptr;
  // The obvious way back, for tests and diagnostics: out is [end - begin, head_dim].
  void (*decode)(const TileFormat&, const std::byte* tile, int begin, int end, MatView<float> out) = nullptr;
  void (*score)(const TileFormat&, const ScoreArgs&) = nullptr;            // key formats
  void (*accumulate)(const TileFormat&, const AccumulateArgs&) = nullptr;  // value formats
  // Once per layer and step, in place (rotations, sketches): q holds [queries, head_dim] and has room for what it becomes,
  // [queries, prepared_floats()]. Null: nothing to do.
  void (*prepare_queries)(const TileFormat&, float* q, int queries) = nullptr;
  // Once per layer and step, in place on the accumulated outputs. Null: nothing to do.
  void (*finish_output)(const TileFormat&, float* out, int queries) = nullptr;
  // Once per head, from the first rows that reach it: writes calibration_bytes of what the format needs to know about them.
  // Null: nothing to know.
  void (*calibrate)(const TileFormat&, MatView<const float> rows, std::byte* calibration) = nullptr;
};

struct TileFormat {
  std::string name;  // "f16", "q8_0", "kivi4": as it appears in state listings
  Side side = Side::kKey;
  int head_dim = 0;
  int tile_rows = 0;    // capacity; divides kBlockRows
  int row_step = 1;     // rows are encoded in multiples of this (KIVI keys: the group length)
  int bits = 0;         // of a code; 16 and 32 for f16 and f32
  int group = 0;        // elements that share a scale; 0: no scales
  int group_bytes = 0;  // of a group's scale, and of its zero point if it has one
  std::size_t tile_bytes = 0;
  int row_bytes = 0;     // of a row, where bits and group do not say it; 0: they do
  int query_floats = 0;  // of a prepared query; 0: head_dim
  TileKernels kernels;

  // Rotation and sketch matrices, shared by whoever holds a copy of the format (compression.md R7: counted once).
  std::shared_ptr<const std::byte> tables;
  std::size_t table_bytes = 0;
  // What calibrate() wrote for this head; null before.
  std::shared_ptr<const std::byte> calibration;
  std::size_t calibration_bytes = 0;
  // How the kernels find their way in a tile; both point into `layout`, which never changes.
  const PlanarRows* planar = nullptr;
  const RotatedRows* rotated = nullptr;
  std::shared_ptr<const void> layout;

  int prepared_floats() const { return query_floats > 0 ? query_floats : head_dim; }

  // Exactly the spec's bytes for this many rows (a multiple of row_step).
  std::size_t live_bytes(int rows) const;
};

// What a spec asks of one side. `name` is one of format_names().
struct FormatRequest {
  std::string name = "f16";
  int bits = 0;                         // kivi: 2, 3, 4, 8; turboquant: 1 to 8
  int group = 0;                        // kivi: 32, 64, 128
  int quarters = 0;                     // turboquant: how many quarters of the channels have one bit more: 3.25 bits is 3 and 1
  Rotation rotation = Rotation::kNone;  // turboquant, and the block types before coding
  bool residual_signs = false;          // turboquant, keys: the last bit is a sketch of the error (variant=prod)
  std::uint64_t seed = 0;               // of rotation and sketch
  int sketch = 256;                     // qjl: signs per key
  bool calibrated = false;              // fp8: a scale from the first rows instead of 1
  bool operator==(const FormatRequest&) const = default;
};

// kUsage when the format is unknown or does not fit head_dim (says which choice is nearest).
Result<TileFormat> make_tile_format(const FormatRequest& request, Side side, int head_dim);
std::span<const std::string> format_names();

// A run of rows inside one tile, as attention walks them. A piece never crosses a multiple of kBlockRows of `row`.
struct TilePiece {
  const TileFormat* format = nullptr;
  const std::byte* tile = nullptr;
  int row = 0;    // index of its first row among the head's rows (a row is not a position)
  int begin = 0;  // the same rows inside the tile: [begin, end)
  int end = 0;
};

// One KV head as attention sees it. Keys and values cover the same rows [begin, rows), cut differently if their formats ask
// for it; pieces are sorted by row and leave no gap.
struct HeadView {
  std::span<const TilePiece> keys;
  std::span<const TilePiece> values;
  int rows = 0;   // end of the rows
  int begin = 0;  // rows before it left a sliding window: they have no pieces, or pieces that attention passes over
  // Keys were written without this, [head_dim]: all logits of a query q are too small by q . key_mean, which softmax does
  // not see, but a merge with other rows does (compression.md 12.4). Null: nothing is missing.
  const float* key_mean = nullptr;
};

}  // namespace kvartet
