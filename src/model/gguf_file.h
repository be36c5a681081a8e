// A GGUF file, mapped and known to be sound: metadata with types, tensors without copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ggml-cpp.h>
#include <ggml.h>
#include <gguf.h>

#include "core/check.h"
#include "core/file_system.h"
#include "core/status.h"

namespace kvartet {

class GgufFile {
 public:
  // Checks the whole header before ggml sees it (gguf_file_check.h). kBadInput: missing, damaged, one part of several.
  static Result<std::shared_ptr<const GgufFile>> open(const std::string& path);

  // For those who read no weights: the file may end behind its tensor records. Of arrays of strings (vocabulary, merges) only the
  // number is known, as text_count() says.
  static Result<std::shared_ptr<const GgufFile>> open_metadata(const std::string& path);

  const std::string& path() const { return path_; }
  std::size_t file_bytes() const { return whole_bytes_; }  // with all tensors, whether they are there or not
  bool metadata_only() const { return metadata_only_; }
  const std::byte* data() const {
    KV_CHECK(!metadata_only_);
    return file_->bytes().data();
  }

  // Metadata. The plain forms need the key, `or` forms give the default when it is absent. kBadInput: absent or of another type.
  bool has(std::string_view key) const { return find(key) >= 0; }
  Result<std::uint64_t> integer(std::string_view key) const;  // any unsigned or non-negative signed type
  Result<std::uint64_t> integer_or(std::string_view key, std::uint64_t fallback) const;
  Result<double> real(std::string_view key) const;
  Result<double> real_or(std::string_view key, double fallback) const;
  Result<std::string> text(std::string_view key) const;
  Result<std::string> text_or(std::string_view key, std::string_view fallback) const;
  // How many strings an array has.
  Result<std::size_t> text_count(std::string_view key) const;
  // Elements of an array of strings as C strings (they live as long as the file).
  Result<std::vector<const char*>> texts(std::string_view key) const;
  // Elements of an array of 4-byte numbers (they live as long as the file).
  Result<std::span<const std::int32_t>> whole_numbers(std::string_view key) const;
  Result<std::span<const float>> reals(std::string_view key) const;
  // Elements of an array of booleans or of 4-byte whole numbers, which files use for flags too.
  Result<std::vector<bool>> flags(std::string_view key) const;
  // Elements of an array of any type; 0 when the key is absent or no array.
  std::size_t array_size(std::string_view key) const;

  // Tensors without data (their place is tensor_offset from data()). nullptr: there is none.
  const ggml_tensor* tensor(const std::string& name) const;
  std::size_t tensor_offset(const ggml_tensor& tensor) const;
  int tensor_count() const;
  const ggml_tensor* tensor_at(int index) const;

 private:
  GgufFile() = default;
  std::int64_t find(std::string_view key) const;
  Result<std::int64_t> need(std::string_view key) const;
  Result<const void*> numbers(std::string_view key, gguf_type type, std::string_view needed) const;
  Status wrong_type(std::string_view key, std::int64_t id, std::string_view needed) const;

  // `header`: what ggml reads, with the metadata and the tensor records.
  static Result<std::shared_ptr<const GgufFile>> parse(std::shared_ptr<GgufFile> file, std::span<const std::byte> header);

  std::string path_;
  std::unique_ptr<MappedFile> file_;
  std::size_t whole_bytes_ = 0;
  bool metadata_only_ = false;
  gguf_context_ptr gguf_;
  ggml_context_ptr tensors_;
};

}  // namespace kvartet
