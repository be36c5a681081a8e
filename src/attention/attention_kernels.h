// The inner loops of attention, per instruction set: the running softmax, and the two matrix products of prefill.
//
// Prefill walks a tile of query rows over blocks of kPrefillBlock keys. Everything it multiplies is packed so that the
// innermost loop reads memory in order, in elements that the kernels alone know: f32, or BF16 in pairs, which the CPU multiplies
// and adds two at a time. With `pair` elements that lie side by side (1 or 2):
//   queries  [groups][head_dim / pair][kMicroRows][pair]            rows of a tile in groups of kMicroRows
//   keys     [kPrefillBlock / panel][head_dim / pair][panel][pair]  one block; lanes are tokens, pairs are channels
//   values   [ceil(head_dim / panel)][kPrefillBlock / pair][panel][pair]  one block; lanes are channels, padded with zeros
//   weights  [rows][kPrefillBlock]                                  what the softmax makes of a block's logits
// where panel is the number of lanes. What is computed for a row never depends on its place in the tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/precision.h"
#include "core/matrix.h"

namespace kvartet {

struct TileRows;

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
  float* logits = nullptr;       // [rows, stride], 64-byte aligned; becomes base^(logit - new max), exactly 0 for -inf
  std::size_t stride = 0;        // a multiple of 16
  int rows = 0;                  // of weigh_tile: a multiple of kMicroRows
  ColumnRange columns;           // rounded outwards to whole panels; the caller fills what it does not cover with -inf
  float* max = nullptr;          // [rows], updated
  float* sum = nullptr;          // [rows], updated
  float* rescale = nullptr;      // [rows], written: base^(old max - new max), what was accumulated before is multiplied with it
  std::byte* weights = nullptr;  // what weigh_tile writes: [rows, kPrefillBlock] packed elements. The logits where those are f32
};

// A tile of query rows against one packed block.
struct PrefillTile {
  const std::byte* queries = nullptr;  // packed, see above
  int groups = 0;
  int head_dim = 0;
  const std::byte* keys = nullptr;       // packed block
  const std::byte* values = nullptr;     // packed block; score_tile only prefetches it, if not null
  const std::byte* next_keys = nullptr;  // the block that comes next, for prefetching; may be null
  const ColumnRange* columns = nullptr;  // [groups]: the keys of the block that some row of the group sees
  float* logits = nullptr;               // [groups * kMicroRows, kPrefillBlock]
  const std::byte* weights = nullptr;    // [groups * kMicroRows, kPrefillBlock], packed elements
  const float* rescale = nullptr;        // [groups * kMicroRows]
  float* acc = nullptr;                  // [groups * kMicroRows, acc_stride()]
};

// Weights of one block that belong to one query head: rows first, first + step, ... below `rows`.
struct ColumnRows {
  const std::byte* weights = nullptr;  // [rows, kPrefillBlock] packed elements, 64-byte aligned, each >= 0
  const float* scale = nullptr;        // [rows]; weight * scale is at most 2^24
  int first = 0;
  int rows = 0;
  int step = 1;
  std::uint32_t* sums = nullptr;  // [kPrefillBlock], 64-byte aligned: written
};

struct AttentionKernels {
  int panel = 0;                        // lanes of a packed panel; divides kPrefillBlock
  int vector = 0;                       // float lanes of a vector; divides panel
  std::size_t element = sizeof(float);  // bytes of a packed element

  void (*online_softmax_e)(const OnlineSoftmax&) = nullptr;
  void (*online_softmax_two)(const OnlineSoftmax&) = nullptr;
  // The whole softmax of one row of `count` logits, in place; any count and alignment.
  void (*softmax_row)(float* row, std::size_t count, LogitBase base) = nullptr;

  // packed = q * log2(e) / sqrt(head_dim); rows to spare become zeros.
  void (*pack_queries)(HeadRows<const float> q, const TileRows& tile, std::byte* packed) = nullptr;
  // rows: up to kPrefillBlock tokens [rows, head_dim]; the rest of the block becomes zeros.
  void (*pack_keys)(MatView<const float> rows, std::byte* block) = nullptr;
  void (*pack_values)(MatView<const float> rows, std::byte* block) = nullptr;
  // logits = queries . keys, for the panels that touch each group's columns.
  void (*score_tile)(const PrefillTile&) = nullptr;
  // As online_softmax_two, but the weights are written as packed elements, and their sum is that of the rounded ones.
  void (*weigh_tile)(const OnlineSoftmax&) = nullptr;
  // acc = acc * rescale + weights . values, over each group's columns.
  void (*accumulate_tile)(const PrefillTile&) = nullptr;
  // sums[column] = sum over rows of round(weight * scale), in whole numbers.
  void (*sum_columns)(const ColumnRows&) = nullptr;

  std::size_t acc_stride(int head_dim) const;  // head_dim rounded up to whole vectors
  std::size_t query_group_bytes(int head_dim) const;
  std::size_t key_block_bytes(int head_dim) const;
  std::size_t value_block_bytes(int head_dim) const;
  bool weights_are_logits() const { return element == sizeof(float); }  // weigh_tile works in place
};

// The kernels of the best instruction set this CPU has (simd/targets.h lets a test choose another).
AttentionKernels attention_kernels(Precision precision = Precision::kExact);

// Prefill's part with BF16 elements, for CPUs that multiply those; leaves `kernels` alone on others.
void use_bf16_prefill(AttentionKernels* kernels);

}  // namespace kvartet
