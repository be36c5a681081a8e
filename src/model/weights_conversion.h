// Changing the type of weight matrices in memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ggml-cpp.h>
#include <ggml.h>

#include "core/status.h"

namespace kvartet {

// Tensors and the one buffer that holds them.
struct OwnedTensors {
  ggml_context_ptr context;
  ggml_backend_buffer_ptr buffer;

  // Room for `count` tensors without data yet.
  static OwnedTensors with_room_for(std::size_t count);
  // Gives every tensor its place. kExhausted: the system has no memory for them.
  Status allocate();
  std::size_t bytes() const { return buffer ? ggml_backend_buffer_get_size(buffer.get()) : 0; }
};

// The type that ggml multiplies fastest on this CPU, measured at 512 rows: BF16 where dot products of it are native; else
// F16, whose products widen to f32 in registers (155 GFLOP/s of a 178 peak with AVX2, against 113 for F32 and 110 for BF16)
// and which rounds less than BF16; F32 where the CPU cannot convert F16.
ggml_type fastest_prefill_type();

// Weights of 8 bits or fewer, and BF16. Never F32 or F16: tests against an oracle stay exact.
bool is_convertible(ggml_type type);

// Converts matrix `from`, or a stack of them, to the type of `to`, of the same shape. False: a value does not fit that type (F16
// ends at 65504).
bool convert_matrix(const ggml_tensor& from, ggml_tensor& to, int threads);

// Matrices for products of our own (model/packed_product.h), where this CPU has them: any shape whose inputs fill whole blocks.
bool can_pack(const ggml_tensor& matrix);
ggml_tensor* new_packed_matrix(ggml_context* context, std::int64_t inputs, std::int64_t outputs);
void pack_matrix(const ggml_tensor& from, ggml_tensor& to, int threads);

// Row `row` of a matrix as f32 [columns].
void read_row(const ggml_tensor& matrix, std::int64_t row, float* values);

}  // namespace kvartet
