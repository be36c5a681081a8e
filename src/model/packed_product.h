// Products of many rows of activations with weights in BF16, packed for dot products of pairs (prefill). Sums are f32, in an
// order that depends on the number of inputs alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/stored_product.h"

namespace kvartet {

// A panel is 64 outputs: [inputs / 2][64] pairs of BF16. Outputs past the last are zeros.
inline constexpr std::size_t kPanelOutputs = 64;
constexpr std::size_t panel_count(std::size_t outputs) { return (outputs + kPanelOutputs - 1) / kPanelOutputs; }

struct PackedProduct {
  const std::uint32_t* panels = nullptr;
  std::size_t inputs = 0;  // a multiple of 32
  std::size_t outputs = 0;
  const std::uint16_t* x = nullptr;  // BF16 [rows, inputs]
  std::size_t rows = 0;
  float* out = nullptr;  // [rows, out_stride], a call's first row and its panel's first output in front
  std::size_t out_stride = 0;
};

struct PackedKernels {
  static constexpr std::size_t kRows = 6;  // of activations that one tile has
  // Rounds to nearest even; what is not finite stays so. n is a multiple of 16.
  void (*round)(const float* x, std::size_t n, std::uint16_t* to);
  // `count` rows of f32 weights [count, inputs] as a panel; inputs is a multiple of 32.
  void (*pack)(const float* rows, std::size_t inputs, std::size_t count, std::uint32_t* panel);
  // The same of weights as they are stored, without a detour through memory.
  void (*pack_stored)(const std::byte* rows, StoredFormat format, std::size_t inputs, std::size_t count, std::uint32_t* panel);
  // The outputs of one panel for rows [begin, end).
  void (*multiply)(const PackedProduct& product, std::size_t panel, std::size_t begin, std::size_t end);
};

// Null: this CPU has no dot products of BF16.
const PackedKernels* packed_kernels();

}  // namespace kvartet
