#include "model/bf16_copy.h"

#include <cstddef>
#include <vector>

#include <fmt/format.h>
#include <ggml-cpp.h>
#include <ggml.h>
#include <gguf.h>

#include "model/gguf_file.h"
#include "model/weights_conversion.h"

namespace kvartet {

Status write_bf16_copy(const std::string& from, const std::string& to) {
  KV_ASSIGN(const auto file, GgufFile::open(from));
  const gguf_context_ptr source(gguf_init_from_file(from.c_str(), {.no_alloc = true, .ctx = nullptr}));
  const gguf_context_ptr copy(gguf_init_empty());
  if (source == nullptr || copy == nullptr) return bad_input(fmt::format("'{}' cannot be read", from));
  gguf_set_kv(copy.get(), source.get());
  OwnedTensors tensors = OwnedTensors::with_room_for(2 * static_cast<std::size_t>(file->tensor_count()));
  std::vector<std::vector<std::byte>> converted;
  for (int i = 0; i < file->tensor_count(); ++i) {
    const ggml_tensor& record = *file->tensor_at(i);
    ggml_tensor* original = ggml_dup_tensor(tensors.context.get(), &record);
    original->data = const_cast<std::byte*>(file->data()) + file->tensor_offset(record);  // only read
    ggml_tensor* written = original;
    if (ggml_is_quantized(record.type)) {
      written = ggml_new_tensor(tensors.context.get(), GGML_TYPE_BF16, ggml_n_dims(&record), record.ne);
      converted.emplace_back(ggml_nbytes(written));
      written->data = converted.back().data();
      if (!convert_matrix(*original, *written, 1)) return internal_error(fmt::format("'{}' does not fit BF16", record.name));
    }
    ggml_set_name(written, record.name);
    gguf_add_tensor(copy.get(), written);
  }
  if (gguf_write_to_file(copy.get(), to.c_str(), false)) return {};
  return io_error(fmt::format("cannot write the model file '{}': check that the folder exists and has space", to));
}

}  // namespace kvartet
