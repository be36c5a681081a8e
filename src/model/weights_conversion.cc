#include "model/weights_conversion.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include <fmt/format.h>
#include <ggml-cpu.h>

#include "core/bytes_text.h"
#include "core/parallel_for.h"
#include "model/linear_nodes.h"

namespace kvartet {
namespace {

constexpr std::int64_t kRowsPerTask = 32;

// Infinities and NaNs have all exponent bits set: adding one to the exponent then reaches the sign bit. Four values at a
// time, since a plain maximum would cost more than the conversion.
bool all_finite_f16(const ggml_fp16_t* values, std::int64_t count) {
  std::uint64_t overflowed = 0;
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    std::uint64_t four = 0;
    std::memcpy(&four, values + i, sizeof(four));
    overflowed |= (four & 0x7c007c007c007c00ULL) + 0x0400040004000400ULL;
  }
  for (; i < count; ++i) overflowed |= (values[i] & 0x7c00U) + 0x0400U;
  return (overflowed & 0x8000800080008000ULL) == 0;
}

// False: a value is out of the type's range. ggml-cpu's own conversions are compiled for this CPU; the type table's are not.
bool write_row(const float* values, ggml_tensor& to, std::int64_t row) {
  void* place = static_cast<char*>(to.data) + static_cast<std::size_t>(row) * to.nb[1];
  if (to.type == GGML_TYPE_F16) {
    ggml_cpu_fp32_to_fp16(values, static_cast<ggml_fp16_t*>(place), to.ne[0]);
    return all_finite_f16(static_cast<const ggml_fp16_t*>(place), to.ne[0]);
  }
  if (to.type == GGML_TYPE_BF16) {
    ggml_cpu_fp32_to_bf16(values, static_cast<ggml_bf16_t*>(place), to.ne[0]);
    return true;
  }
  KV_CHECK(to.type == GGML_TYPE_F32);
  std::memcpy(place, values, sizeof(float) * static_cast<std::size_t>(to.ne[0]));
  return true;
}

}  // namespace

OwnedTensors OwnedTensors::with_room_for(std::size_t count) {
  OwnedTensors tensors;
  tensors.context.reset(ggml_init({.mem_size = ggml_tensor_overhead() * count, .mem_buffer = nullptr, .no_alloc = true}));
  return tensors;
}

Status OwnedTensors::allocate() {
  buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(context.get(), ggml_backend_cpu_buffer_type()));
  if (buffer != nullptr) return {};
  const std::size_t bytes = ggml_backend_alloc_ctx_tensors_from_buft_size(context.get(), ggml_backend_cpu_buffer_type());
  return exhausted(fmt::format("no memory for {} of converted weights: choose a smaller model", bytes_text(bytes)));
}

ggml_type fastest_prefill_type() {
  if (ggml_cpu_has_avx512_bf16()) return GGML_TYPE_BF16;
  if (ggml_cpu_has_f16c() || ggml_cpu_has_fp16_va()) return GGML_TYPE_F16;
  return GGML_TYPE_F32;
}

bool is_convertible(ggml_type type) { return ggml_is_quantized(type) || type == GGML_TYPE_BF16; }

void read_row(const ggml_tensor& matrix, std::int64_t row, float* values) {
  const void* place = static_cast<const char*>(matrix.data) + static_cast<std::size_t>(row) * matrix.nb[1];
  if (matrix.type == GGML_TYPE_F32) {
    std::memcpy(values, place, sizeof(float) * static_cast<std::size_t>(matrix.ne[0]));
  } else {
    ggml_get_type_traits(matrix.type)->to_float(place, values, matrix.ne[0]);
  }
}

bool convert_matrix(const ggml_tensor& from, ggml_tensor& to, int threads) {
  KV_CHECK(ggml_are_same_shape(&from, &to) && ggml_is_contiguous(&from) && ggml_is_contiguous(&to));
  const std::int64_t rows = ggml_nrows(&from);
  std::atomic<bool> fits{true};
  const auto tasks = static_cast<int>((rows + kRowsPerTask - 1) / kRowsPerTask);
  parallel_for(threads, tasks, [&](int task, int) {
    std::vector<float> values(static_cast<std::size_t>(from.ne[0]));
    const std::int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
    for (std::int64_t row = task * kRowsPerTask; row < end; ++row) {
      read_row(from, row, values.data());
      if (!write_row(values.data(), to, row)) fits = false;
    }
  });
  return fits;
}

bool can_pack(const ggml_tensor& matrix) { return matrix.ne[0] % static_cast<std::int64_t>(kStoredBlock) == 0; }

ggml_tensor* new_packed_matrix(ggml_context* context, std::int64_t inputs, std::int64_t outputs) {
  return ggml_new_tensor_3d(context, kPackedType, kPanelOutputs, inputs / 2,
                            static_cast<std::int64_t>(panel_count(static_cast<std::size_t>(outputs))));
}

void pack_matrix(const ggml_tensor& from, ggml_tensor& to, int threads) {
  KV_CHECK(to.type == kPackedType && from.ne[0] == 2 * to.ne[1] && ggml_is_contiguous(&from));
  const auto inputs = static_cast<std::size_t>(from.ne[0]);
  const auto outputs = static_cast<std::size_t>(from.ne[1]);
  const PackedKernels& kernels = *packed_kernels();
  const std::optional<StoredFormat> format = stored_format(from.type);
  parallel_for(threads, static_cast<int>(to.ne[2]), [&](int panel, int) {
    const std::size_t first = static_cast<std::size_t>(panel) * kPanelOutputs;
    const std::size_t count = std::min(kPanelOutputs, outputs - first);
    std::uint32_t* const place = static_cast<std::uint32_t*>(to.data) + first * (inputs / 2);
    if (format.has_value()) {
      const std::byte* const stored = static_cast<const std::byte*>(from.data) + first * from.nb[1];
      return kernels.pack_stored(stored, *format, inputs, count, place);
    }
    std::vector<float> rows(count * inputs);
    for (std::size_t r = 0; r < count; ++r) read_row(from, static_cast<std::int64_t>(first + r), rows.data() + r * inputs);
    kernels.pack(rows.data(), inputs, count, place);
  });
}

}  // namespace kvartet
