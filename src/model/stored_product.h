// Products of a few rows of activations with a weight matrix as the file has it (decode): activations in 8 bits per block of
// 32 inputs, as ggml rounds them, sums within a block exact in 32-bit integers, several outputs at once, and each byte of the
// weights read once for all rows. An output's bits depend neither on the other outputs nor on the other rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvartet {

// The block formats of GGUF that there are kernels for. A block is 32 inputs of one output.
enum class StoredFormat : std::uint8_t {
  kQ4_0,  // f16 scale, 16 bytes of two codes each (input i and i + 16): scale * (code - 8)
  kQ4_1,  // f16 scale, f16 minimum, codes: scale * code + minimum
  kQ8_0,  // f16 scale, 32 signed bytes: scale * code
};
inline constexpr std::size_t kStoredBlock = 32;
constexpr std::size_t stored_block_bytes(StoredFormat format) {
  return format == StoredFormat::kQ4_0 ? 18 : format == StoredFormat::kQ4_1 ? 20 : 34;
}

// One row of activations is a run of these, four blocks each; blocks past the row's end are zeros.
struct Int8Blocks {
  static constexpr std::size_t kBlocks = 4;
  alignas(64) std::int8_t low[16 * kBlocks];  // inputs 0..15 of each block
  std::int8_t high[16 * kBlocks];             // inputs 16..31
  float scale[4 * kBlocks];                   // each block's four times: lane 4 block + output
  float sum[4 * kBlocks];                     // scale times the sum of its codes, the same way
};
constexpr std::size_t int8_runs(std::size_t inputs) {
  return (inputs + kStoredBlock * Int8Blocks::kBlocks - 1) / (kStoredBlock * Int8Blocks::kBlocks);
}

struct StoredProduct {
  const std::byte* weights = nullptr;  // [outputs, inputs] in blocks
  std::size_t inputs = 0;              // a multiple of kStoredBlock
  const Int8Blocks* x = nullptr;       // [rows, int8_runs(inputs)]
  std::size_t rows = 0;
  float* out = nullptr;  // [rows, out_stride], a call's first output in front
  std::size_t out_stride = 0;
};

// Which blocks of a row a call makes: [first, first + count) of `blocks`.
struct BlockRange {
  std::size_t first = 0;
  std::size_t count = 0;
  std::size_t blocks = 0;
};

enum class GatedBy : std::uint8_t { kSilu, kGelu };

struct StoredKernels {
  // Whole blocks x[32 count] to their places in a row's runs. A value that is not finite makes its block's scale not finite.
  void (*quantize)(const float* x, const BlockRange& range, Int8Blocks* row);
  // y <- weight * x / sqrt(mean of squares + epsilon), n a multiple of kStoredBlock.
  void (*rms_norm)(const float* x, const float* weight, std::size_t n, float epsilon, float* y);
  // y <- act(gate) * up, n a multiple of kStoredBlock. GELU is the form with tanh.
  void (*gated)(const float* gate, const float* up, std::size_t n, GatedBy function, float* y);
  // Outputs [begin, end) of all rows.
  void (*multiply[3])(const StoredProduct& product, std::size_t begin, std::size_t end);  // by StoredFormat
};

// Null: this CPU has none.
const StoredKernels* stored_kernels();

const StoredKernels* stored_kernels_avx512();  // null where they cannot run
const StoredKernels* stored_kernels_avx2();

}  // namespace kvartet
