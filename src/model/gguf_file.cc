#include "model/gguf_file.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "model/ggml_runtime.h"
#include "model/gguf_file_check.h"

namespace kvartet {

Result<std::shared_ptr<const GgufFile>> GgufFile::open(const std::string& path) {
  start_ggml();
  auto file = std::shared_ptr<GgufFile>(new GgufFile);
  file->path_ = path;
  KV_ASSIGN(file->file_, FileSystem::real().map_file(path));
  const std::span<const std::byte> bytes = file->file_->bytes();
  KV_TRY(check_gguf_bytes(bytes, path));
  file->whole_bytes_ = bytes.size();
  return parse(std::move(file), bytes);
}

Result<std::shared_ptr<const GgufFile>> GgufFile::open_metadata(const std::string& path) {
  quiet_ggml();  // to start it takes longer than to read
  auto file = std::shared_ptr<GgufFile>(new GgufFile);
  file->path_ = path;
  KV_ASSIGN(file->file_, FileSystem::real().map_file(path));
  const std::span<const std::byte> bytes = file->file_->bytes();
  KV_ASSIGN(const GgufHeader header, read_gguf_header(bytes, path));
  file->whole_bytes_ = std::max(bytes.size(), static_cast<std::size_t>(header.whole_file));
  file->metadata_only_ = true;
  return parse(std::move(file), header.bytes);
}

Result<std::shared_ptr<const GgufFile>> GgufFile::parse(std::shared_ptr<GgufFile> file, std::span<const std::byte> header) {
  const std::string& path = file->path_;
  ggml_context* tensors = nullptr;
  file->gguf_.reset(gguf_init_from_buffer(header.data(), header.size(), {.no_alloc = true, .ctx = &tensors}));
  file->tensors_.reset(tensors);
  if (file->gguf_ == nullptr || file->tensors_ == nullptr) {
    return bad_input(fmt::format("'{}' is not a usable GGUF file: its tensors are not laid out one after the other", path));
  }
  KV_ASSIGN(const std::uint64_t parts, file->integer_or("split.count", 1));
  if (parts > 1) return bad_input(fmt::format("'{}' is one of {} parts of a model: merge them into one file first", path, parts));
  return std::shared_ptr<const GgufFile>(std::move(file));
}

std::int64_t GgufFile::find(std::string_view key) const { return gguf_find_key(gguf_.get(), std::string(key).c_str()); }

Result<std::int64_t> GgufFile::need(std::string_view key) const {
  const std::int64_t id = find(key);
  if (id < 0) return bad_input(fmt::format("'{}' lacks the metadata key '{}'", path_, key));
  return id;
}

Status GgufFile::wrong_type(std::string_view key, std::int64_t id, std::string_view needed) const {
  return bad_input(fmt::format("the metadata key '{}' of '{}' has the type {}, but {} is needed", key, path_,
                               gguf_type_name(gguf_get_kv_type(gguf_.get(), id)), needed));
}

Result<std::uint64_t> GgufFile::integer(std::string_view key) const {
  KV_ASSIGN(const std::int64_t id, need(key));
  const gguf_context* g = gguf_.get();
  std::int64_t value = 0;
  switch (gguf_get_kv_type(g, id)) {
    case GGUF_TYPE_UINT8: return std::uint64_t{gguf_get_val_u8(g, id)};
    case GGUF_TYPE_UINT16: return std::uint64_t{gguf_get_val_u16(g, id)};
    case GGUF_TYPE_UINT32: return std::uint64_t{gguf_get_val_u32(g, id)};
    case GGUF_TYPE_UINT64: return gguf_get_val_u64(g, id);
    case GGUF_TYPE_INT8: value = gguf_get_val_i8(g, id); break;
    case GGUF_TYPE_INT16: value = gguf_get_val_i16(g, id); break;
    case GGUF_TYPE_INT32: value = gguf_get_val_i32(g, id); break;
    case GGUF_TYPE_INT64: value = gguf_get_val_i64(g, id); break;
    default: return wrong_type(key, id, "a whole number");
  }
  if (value < 0) return bad_input(fmt::format("the metadata key '{}' of '{}' is {}, but cannot be negative", key, path_, value));
  return static_cast<std::uint64_t>(value);
}

Result<std::uint64_t> GgufFile::integer_or(std::string_view key, std::uint64_t fallback) const {
  if (!has(key)) return fallback;
  return integer(key);
}

Result<double> GgufFile::real(std::string_view key) const {
  KV_ASSIGN(const std::int64_t id, need(key));
  switch (gguf_get_kv_type(gguf_.get(), id)) {
    case GGUF_TYPE_FLOAT32: return static_cast<double>(gguf_get_val_f32(gguf_.get(), id));
    case GGUF_TYPE_FLOAT64: return gguf_get_val_f64(gguf_.get(), id);
    default: return wrong_type(key, id, "a floating-point number");
  }
}

Result<double> GgufFile::real_or(std::string_view key, double fallback) const {
  if (!has(key)) return fallback;
  return real(key);
}

Result<std::string> GgufFile::text(std::string_view key) const {
  KV_ASSIGN(const std::int64_t id, need(key));
  if (gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_STRING) return wrong_type(key, id, "a string");
  return std::string(gguf_get_val_str(gguf_.get(), id));
}

Result<std::string> GgufFile::text_or(std::string_view key, std::string_view fallback) const {
  if (!has(key)) return std::string(fallback);
  return text(key);
}

Result<std::size_t> GgufFile::text_count(std::string_view key) const {
  KV_ASSIGN(const std::int64_t id, need(key));
  const gguf_context* g = gguf_.get();
  const gguf_type texts = metadata_only_ ? kOmittedTexts : GGUF_TYPE_STRING;
  if (gguf_get_kv_type(g, id) != GGUF_TYPE_ARRAY || gguf_get_arr_type(g, id) != texts) {
    return wrong_type(key, id, "an array of strings");
  }
  return gguf_get_arr_n(g, id);
}

Result<std::vector<const char*>> GgufFile::texts(std::string_view key) const {
  KV_ASSIGN(const std::int64_t id, need(key));
  const gguf_context* g = gguf_.get();
  if (gguf_get_kv_type(g, id) != GGUF_TYPE_ARRAY || gguf_get_arr_type(g, id) != GGUF_TYPE_STRING) {
    return wrong_type(key, id, "an array of strings");
  }
  std::vector<const char*> list(gguf_get_arr_n(g, id));
  for (std::size_t i = 0; i < list.size(); ++i) list[i] = gguf_get_arr_str(g, id, i);
  return list;
}

Result<const void*> GgufFile::numbers(std::string_view key, gguf_type type, std::string_view needed) const {
  KV_ASSIGN(const std::int64_t id, need(key));
  const gguf_context* g = gguf_.get();
  if (gguf_get_kv_type(g, id) != GGUF_TYPE_ARRAY || gguf_get_arr_type(g, id) != type) return wrong_type(key, id, needed);
  return gguf_get_arr_data(g, id);
}

Result<std::span<const std::int32_t>> GgufFile::whole_numbers(std::string_view key) const {
  KV_ASSIGN(const void* data, numbers(key, GGUF_TYPE_INT32, "an array of 4-byte whole numbers"));
  return std::span(static_cast<const std::int32_t*>(data), array_size(key));
}

Result<std::span<const float>> GgufFile::reals(std::string_view key) const {
  KV_ASSIGN(const void* data, numbers(key, GGUF_TYPE_FLOAT32, "an array of 4-byte floating-point numbers"));
  return std::span(static_cast<const float*>(data), array_size(key));
}

Result<std::vector<bool>> GgufFile::flags(std::string_view key) const {
  KV_ASSIGN(const std::int64_t id, need(key));
  const gguf_context* g = gguf_.get();
  const gguf_type type = gguf_get_kv_type(g, id) == GGUF_TYPE_ARRAY ? gguf_get_arr_type(g, id) : gguf_get_kv_type(g, id);
  const bool are_bytes = type == GGUF_TYPE_BOOL;
  if (gguf_get_kv_type(g, id) != GGUF_TYPE_ARRAY || (!are_bytes && type != GGUF_TYPE_UINT32 && type != GGUF_TYPE_INT32)) {
    return wrong_type(key, id, "an array of booleans");
  }
  const std::size_t size = are_bytes ? 1 : sizeof(std::uint32_t);
  const auto* bytes = static_cast<const std::uint8_t*>(gguf_get_arr_data(g, id));
  std::vector<bool> list;
  for (std::size_t i = 0; i < gguf_get_arr_n(g, id); ++i) {
    std::uint32_t value = 0;
    std::memcpy(&value, bytes + i * size, size);
    list.push_back(value != 0);
  }
  return list;
}

std::size_t GgufFile::array_size(std::string_view key) const {
  const std::int64_t id = find(key);
  if (id < 0 || gguf_get_kv_type(gguf_.get(), id) != GGUF_TYPE_ARRAY) return 0;
  return gguf_get_arr_n(gguf_.get(), id);
}

const ggml_tensor* GgufFile::tensor(const std::string& name) const { return ggml_get_tensor(tensors_.get(), name.c_str()); }

std::size_t GgufFile::tensor_offset(const ggml_tensor& tensor) const {
  const std::int64_t id = gguf_find_tensor(gguf_.get(), tensor.name);
  KV_CHECK(id >= 0 && !metadata_only_);
  return gguf_get_data_offset(gguf_.get()) + gguf_get_tensor_offset(gguf_.get(), id);
}

int GgufFile::tensor_count() const { return static_cast<int>(gguf_get_n_tensors(gguf_.get())); }

const ggml_tensor* GgufFile::tensor_at(int index) const { return tensor(gguf_get_tensor_name(gguf_.get(), index)); }

}  // namespace kvartet
