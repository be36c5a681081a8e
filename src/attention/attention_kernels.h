// The inner loops of attention, per instruction set: the running softmax, and the two matrix products of prefill.
//
// Prefill walks a tile of query rows over blocks of kPrefillBlock keys. Everything it multiplies is packed so that the
// innermost loop reads memory in order:
//   queries  [groups][head_dim][kMicroRows]                     rows of a tile in groups of kMicroRows
//   keys     [kPrefillBlock / panel][head_dim][panel]           one block; lanes are tokens
//   values   [ceil(head_dim / panel)][kPrefillBlock][panel]     one block; lanes are channels, padded with zeros
// where panel = panel_width() lanes. What is computed for a row never depends on its place in the tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/matrix.h"

namespace kvartet {

inline constexpr int kMicroRows = 6;       // query rows that one micro tile holds in registers
inline constexpr int kPrefillBlock = 128;  // keys per block; blocks start at multiples of it, whatever the chunk
inline constexpr float kLog2E = 1.44269504088896340736F;
inline constexpr float kLn2 = 0.693147180559945309417F;

enum class LogitBase { kE, kTwo };  // kTwo: logits already carry a factor log2(e)

struct ColumnRange {
  int begin = 0;
  int end = 0;
};

// One step of the running softmax over a block of logits. Rows are independent.
struct OnlineSoftmax {
  float* logits = nullptr;  // [rows, stride], 64-byte aligned; becomes base^(logit - new max), exactly 0 for -inf
  std::size_t stride = 0;   // a multiple of 16
  int rows = 0;
  ColumnRange columns;       // rounded outwards to whole panels; the caller fills what it does not cover with -inf
  float* max = nullptr;      // [rows], updated
  float* sum = nullptr;      // [rows], updated
  float* rescale = nullptr;  // [rows], written: base^(old max - new max), what was accumulated before is multiplied with it
};

// A tile of query rows against one packed block.
struct PrefillTile {
  const float* queries = nullptr;  // packed, see above
  int groups = 0;
  int head_dim = 0;
  const float* keys = nullptr;           // packed block
  const float* values = nullptr;         // packed block
  const float* next_keys = nullptr;      // the block that comes next, for prefetching; may be null
  const ColumnRange* columns = nullptr;  // [groups]: the keys of the block that some row of the group sees
  float* logits = nullptr;               // [groups * kMicroRows, kPrefillBlock]
  const float* rescale = nullptr;        // [groups * kMicroRows]
  float* acc = nullptr;                  // [groups * kMicroRows, acc_stride()]
};

// Weights of one block that belong to one query head: rows first, first + step, ... below `rows`.
struct ColumnRows {
  const float* weights = nullptr;  // [rows, kPrefillBlock], 64-byte aligned, each >= 0
  const float* scale = nullptr;    // [rows]; weight * scale is at most 2^24
  int first = 0;
  int rows = 0;
  int step = 1;
  std::uint32_t* sums = nullptr;  // [kPrefillBlock], 64-byte aligned: written
};

struct AttentionKernels {
  int panel = 0;   // lanes of a packed panel; divides kPrefillBlock
  int vector = 0;  // float lanes of a vector; divides panel

  void (*online_softmax_e)(const OnlineSoftmax&) = nullptr;
  void (*online_softmax_two)(const OnlineSoftmax&) = nullptr;
  // The whole softmax of one row of `count` logits, in place; any count and alignment.
  void (*softmax_row)(float* row, std::size_t count, LogitBase base) = nullptr;

  // rows: up to kPrefillBlock tokens [rows, head_dim]; the rest of the block becomes zeros.
  void (*pack_keys)(MatView<const float> rows, float* block) = nullptr;
  void (*pack_values)(MatView<const float> rows, float* block) = nullptr;
  // logits = queries . keys, for the panels that touch each group's columns.
  void (*score_tile)(const PrefillTile&) = nullptr;
  // acc = acc * rescale + logits . values, over each group's columns.
  void (*accumulate_tile)(const PrefillTile&) = nullptr;
  // sums[column] = sum over rows of round(weight * scale), in whole numbers.
  void (*sum_columns)(const ColumnRows&) = nullptr;

  std::size_t acc_stride(int head_dim) const;  // head_dim rounded up to whole vectors
  std::size_t key_block_floats(int head_dim) const {
    return static_cast<std::size_t>(kPrefillBlock) * static_cast<std::size_t>(head_dim);
  }
  std::size_t value_block_floats(int head_dim) const { return static_cast<std::size_t>(kPrefillBlock) * acc_stride(head_dim); }
};

// The kernels of the best instruction set this CPU has (simd/targets.h lets a test choose another).
AttentionKernels attention_kernels();

}  // namespace kvartet
