#include "model/gguf_file_check.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>
#include <ggml.h>
#include <gguf.h>

namespace kvartet {
namespace {

constexpr std::string_view kMagic = "GGUF";
// ggml compares every name with every other: far more than any model has, but a matter of seconds.
constexpr std::uint64_t kMostPairs = 32'768;
constexpr std::uint64_t kMostTensors = 32'768;
// A string takes 8 bytes in the file and 32 in memory, so the file's size alone is no bound.
constexpr std::uint64_t kMostStrings = std::uint64_t{1} << 24;
constexpr std::uint64_t kMaxRowElements = std::uint64_t{1} << 31;  // ggml counts a row's elements in an int in places

// Size of a scalar metadata value; 0 for strings, arrays and unknown types.
std::size_t scalar_bytes(std::uint32_t type) {
  switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL: return 1;
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16: return 2;
    case GGUF_TYPE_UINT32:
    case GGUF_TYPE_INT32:
    case GGUF_TYPE_FLOAT32: return 4;
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
    case GGUF_TYPE_FLOAT64: return 8;
    default: return 0;
  }
}

// Where an array of strings lies.
struct TextArray {
  std::size_t type = 0;   // of its elements
  std::size_t first = 0;  // element
  std::size_t end = 0;
  std::size_t count = 0;
};

struct TensorRecord {
  std::string_view name;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

class HeaderWalk {
 public:
  HeaderWalk(std::span<const std::byte> file, const std::string& path) : file_(file), path_(path) {}

  Status run() {
    KV_TRY(read_start());
    KV_TRY(read_metadata());
    KV_TRY(read_tensor_records());
    KV_TRY(check_tensor_data());
    return check_end();
  }

  Result<GgufHeader> header() {
    KV_TRY(read_start());
    KV_TRY(read_metadata());
    KV_TRY(read_tensor_records());
    KV_TRY(check_tensor_data());
    GgufHeader header;
    std::size_t copied = 0;
    const auto copy_to = [&](std::size_t end) {
      header.bytes.insert(header.bytes.end(), file_.begin() + static_cast<std::ptrdiff_t>(copied),
                          file_.begin() + static_cast<std::ptrdiff_t>(end));
      copied = end;
    };
    for (const TextArray& array : texts_) {
      copy_to(array.type);
      const std::uint32_t type = kOmittedTexts;
      const auto* const bytes = reinterpret_cast<const std::byte*>(&type);
      header.bytes.insert(header.bytes.end(), bytes, bytes + sizeof(type));
      copied += sizeof(type);
      copy_to(array.first);  // the count
      header.bytes.resize(header.bytes.size() + array.count);
      copied = array.end;
    }
    copy_to(at_);
    header.bytes.resize((header.bytes.size() + alignment_ - 1) / alignment_ * alignment_);
    header.whole_file = data_end_;
    return header;
  }

 private:
  std::size_t left() const { return file_.size() - at_; }

  template <typename T>
  bool read(T& value) {
    if (left() < sizeof(T)) return false;
    std::memcpy(&value, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return true;
  }
  bool read(std::string_view& text) {
    std::uint64_t size = 0;
    if (!read(size) || size > left()) return false;
    text = {reinterpret_cast<const char*>(file_.data()) + at_, static_cast<std::size_t>(size)};
    at_ += text.size();
    return true;
  }

  Status cut(std::string_view where) const {
    return bad_input(fmt::format("'{}' ends or is damaged inside {} (byte {} of {}): download or convert it again", path_, where,
                                 at_, file_.size()));
  }
  Status damaged(const std::string& what) const {
    return bad_input(fmt::format("'{}' is not a usable GGUF file: {}", path_, what));
  }

  Status read_start() {
    if (file_.empty()) return damaged("it is empty");
    if (file_.size() < kMagic.size() || std::memcmp(file_.data(), kMagic.data(), kMagic.size()) != 0) {
      return damaged("it does not start with the letters GGUF; is it a model in another format?");
    }
    at_ = kMagic.size();
    std::uint32_t version = 0;
    if (!read(version) || !read(tensor_count_) || !read(pair_count_)) return cut("its first 24 bytes");
    if (version != 2 && version != 3) {
      return damaged(fmt::format("its version is {}, but only 2 and 3 in little-endian order are known", version));
    }
    // The smallest metadata pair takes 13 bytes and the smallest tensor record 33: more than fit is nonsense.
    if (pair_count_ > left() / 13 || tensor_count_ > left() / 33) {
      return damaged(
          fmt::format("it claims {} metadata pairs and {} tensors in {} bytes", pair_count_, tensor_count_, file_.size()));
    }
    if (pair_count_ > kMostPairs || tensor_count_ > kMostTensors) {
      return damaged(fmt::format("it has {} metadata pairs and {} tensors, but at most {} and {} are possible", pair_count_,
                                 tensor_count_, kMostPairs, kMostTensors));
    }
    return {};
  }

  Status read_metadata() {
    std::unordered_set<std::string_view> keys;
    for (std::uint64_t i = 0; i < pair_count_; ++i) {
      std::string_view key;
      std::uint32_t type = 0;
      if (!read(key) || !read(type)) return cut(fmt::format("metadata pair {} of {}", i + 1, pair_count_));
      if (key.empty() || key.find('\0') != key.npos) return damaged(fmt::format("metadata pair {} has no proper name", i + 1));
      if (!keys.insert(key).second) return damaged(fmt::format("the metadata key '{}' appears twice", key));
      KV_TRY(read_value(key, type));
    }
    return {};
  }

  Status read_value(std::string_view key, std::uint32_t type) {
    if (type == GGUF_TYPE_ARRAY) return read_array(key);
    if (type == GGUF_TYPE_STRING) {
      std::string_view text;
      return read(text) ? Status() : cut(fmt::format("the metadata value '{}'", key));
    }
    const std::size_t bytes = scalar_bytes(type);
    if (bytes == 0) return damaged(fmt::format("the metadata value '{}' has the unknown type {}", key, type));
    if (left() < bytes) return cut(fmt::format("the metadata value '{}'", key));
    if (key == GGUF_KEY_GENERAL_ALIGNMENT) {
      if (type != GGUF_TYPE_UINT32) return damaged("general.alignment is not a 32-bit number");
      std::memcpy(&alignment_, file_.data() + at_, sizeof(alignment_));
      if (!std::has_single_bit(alignment_) || alignment_ < 4 || alignment_ > (1U << 20)) {
        return damaged(fmt::format("its alignment is {}, but must be a power of two from 4 to 1048576", alignment_));
      }
    }
    at_ += bytes;
    return {};
  }

  Status read_array(std::string_view key) {
    std::uint32_t type = 0;
    std::uint64_t count = 0;
    const std::size_t type_at = at_;
    if (!read(type) || !read(count)) return cut(fmt::format("the metadata array '{}'", key));
    if (type == GGUF_TYPE_STRING) {
      if (count > left() / sizeof(std::uint64_t)) return cut(fmt::format("the metadata array '{}' of {} strings", key, count));
      if (count > kMostStrings) {
        return damaged(
            fmt::format("the metadata array '{}' has {} strings, but at most {} are possible", key, count, kMostStrings));
      }
      const std::size_t first = at_;
      std::string_view text;
      for (std::uint64_t i = 0; i < count; ++i) {
        if (!read(text)) return cut(fmt::format("string {} of {} of the metadata array '{}'", i + 1, count, key));
      }
      texts_.push_back({.type = type_at, .first = first, .end = at_, .count = static_cast<std::size_t>(count)});
      return {};
    }
    const std::size_t bytes = scalar_bytes(type);
    if (bytes == 0) return damaged(fmt::format("the metadata array '{}' has elements of the unusable type {}", key, type));
    if (count > left() / bytes) return cut(fmt::format("the metadata array '{}' of {} elements", key, count));
    at_ += bytes * static_cast<std::size_t>(count);
    return {};
  }

  Status read_tensor_records() {
    std::unordered_set<std::string_view> names;
    for (std::uint64_t i = 0; i < tensor_count_; ++i) {
      TensorRecord record;
      if (!read(record.name)) return cut(fmt::format("tensor record {} of {}", i + 1, tensor_count_));
      if (record.name.empty() || record.name.size() >= GGML_MAX_NAME) {
        return damaged(fmt::format("the name of tensor {} has {} bytes, but 1 to {} are allowed", i + 1, record.name.size(),
                                   GGML_MAX_NAME - 1));
      }
      if (record.name.find('\0') != record.name.npos)
        return damaged(fmt::format("the name of tensor {} holds a NUL byte", i + 1));
      if (!names.insert(record.name).second) return damaged(fmt::format("the tensor '{}' appears twice", record.name));
      KV_TRY(read_shape(record));
      tensors_.push_back(record);
    }
    return {};
  }

  Status read_shape(TensorRecord& record) {
    std::uint32_t dimensions = 0;
    if (!read(dimensions)) return cut(fmt::format("the record of tensor '{}'", record.name));
    if (dimensions < 1 || dimensions > GGML_MAX_DIMS) {
      return damaged(
          fmt::format("the tensor '{}' has {} dimensions, but 1 to {} are possible", record.name, dimensions, GGML_MAX_DIMS));
    }
    std::uint64_t sizes[GGML_MAX_DIMS] = {1, 1, 1, 1};
    std::uint64_t elements = 1;
    for (std::uint32_t d = 0; d < dimensions; ++d) {
      if (!read(sizes[d])) return cut(fmt::format("the record of tensor '{}'", record.name));
      if (sizes[d] == 0 || sizes[d] >= kMaxRowElements || __builtin_mul_overflow(elements, sizes[d], &elements)) {
        return damaged(fmt::format("the tensor '{}' has the impossible size {} in dimension {}", record.name, sizes[d], d + 1));
      }
    }
    std::uint32_t type = 0;
    if (!read(type) || !read(record.offset)) return cut(fmt::format("the record of tensor '{}'", record.name));
    if (type >= GGML_TYPE_COUNT || ggml_blck_size(static_cast<ggml_type>(type)) == 0) {
      return damaged(fmt::format("the tensor '{}' has the unknown or withdrawn type {}", record.name, type));
    }
    const auto block = static_cast<std::uint64_t>(ggml_blck_size(static_cast<ggml_type>(type)));
    if (sizes[0] % block != 0) {
      return damaged(fmt::format("the rows of tensor '{}' have {} elements, but its type needs a multiple of {}", record.name,
                                 sizes[0], block));
    }
    if (__builtin_mul_overflow(elements / block, ggml_type_size(static_cast<ggml_type>(type)), &record.bytes)) {
      return damaged(fmt::format("the tensor '{}' has an impossible size", record.name));
    }
    return {};
  }

  Status check_tensor_data() {
    const std::uint64_t start = (at_ + alignment_ - 1) / alignment_ * alignment_;
    for (const TensorRecord& t : tensors_) {
      std::uint64_t end = 0;
      if (t.offset % alignment_ != 0)
        return damaged(fmt::format("the data of tensor '{}' is not aligned to {} bytes", t.name, alignment_));
      if (__builtin_add_overflow(start, t.offset, &end) || __builtin_add_overflow(end, t.bytes, &end)) {
        return damaged(fmt::format("the tensor '{}' lies at the impossible offset {}", t.name, t.offset));
      }
      if (end > file_.size() && cut_off_.empty()) {
        cut_off_ = fmt::format(
            "'{}' is cut off: the data of tensor '{}' ends at byte {}, the file at byte {}; download or copy it again", path_,
            t.name, end, file_.size());
      }
      data_end_ = std::max(data_end_, end);
    }
    return {};
  }

  Status check_end() const { return cut_off_.empty() ? Status() : bad_input(cut_off_); }

  std::span<const std::byte> file_;
  const std::string& path_;
  std::size_t at_ = 0;
  std::uint64_t tensor_count_ = 0;
  std::uint64_t pair_count_ = 0;
  std::uint32_t alignment_ = GGUF_DEFAULT_ALIGNMENT;
  std::vector<TensorRecord> tensors_;
  std::vector<TextArray> texts_;
  std::string cut_off_;  // of the first tensor that is not all there: what to say of it
  std::uint64_t data_end_ = 0;
};

}  // namespace

Status check_gguf_bytes(std::span<const std::byte> file, const std::string& path) { return HeaderWalk(file, path).run(); }

Result<GgufHeader> read_gguf_header(std::span<const std::byte> file, const std::string& path) {
  return HeaderWalk(file, path).header();
}

}  // namespace kvartet
