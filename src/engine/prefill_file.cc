#include "engine/prefill_file.h"

#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <xxhash.h>

#include "core/check.h"
#include "engine/unfinished_file.h"

namespace kvartet {
namespace {

static_assert(std::endian::native == std::endian::little, "kept prefills are little-endian");

constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kAlignment = 64;
constexpr std::size_t kMostMadeBy = 4096;

// --- the layout (docs/formats/kept-prefill.md)

struct Head {
  char magic[8] = {'K', 'V', 'P', 'R', 'E', 'F', '\r', '\n'};
  std::uint32_t version = kVersion;
  std::uint32_t layers = 0;
  std::uint32_t tokens = 0;
  std::uint32_t hidden = 0;
  std::uint32_t queries = 0;
  std::uint32_t made_by_bytes = 0;
  std::uint64_t file_bytes = 0;
  double prefill_seconds = 0;
};
static_assert(sizeof(Head) == 48);

enum Part : std::uint8_t { kKey, kKeyPre, kValue, kQueries, kColumnSums, kParts };
constexpr std::array<const char*, kParts> kPartNames = {"keys", "keys before RoPE", "values", "queries", "column sums"};

struct LayerEntry {
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t window = 0;
  std::array<std::uint64_t, kParts> checksums = {};
};
static_assert(sizeof(LayerEntry) == 56);

std::uint64_t rounded_up(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
std::uint64_t u64(std::size_t n) { return n; }

std::uint64_t header_bytes(const Head& head) {
  return sizeof(Head) + sizeof(std::int32_t) * u64(head.tokens) + sizeof(LayerEntry) * u64(head.layers) + sizeof(std::uint64_t) +
         head.made_by_bytes + sizeof(std::uint64_t);
}

struct Extent {
  std::uint64_t offset = 0;
  std::size_t floats = 0;
};

// Where everything lies. Follows from the shape and the head's counts.
struct Layout {
  std::vector<std::array<Extent, kParts>> layers;
  Extent hidden;
  std::uint64_t file_bytes = 0;
};

Layout layout_of(const ModelShape& shape, const Head& head) {
  Layout out;
  std::uint64_t at = rounded_up(header_bytes(head));
  const auto take = [&](std::size_t floats) {
    const Extent extent{at, floats};
    at = rounded_up(at + sizeof(float) * u64(floats));
    return extent;
  };
  for (const LayerShape& layer : shape.layers) {
    const auto head_dim = static_cast<std::size_t>(layer.head_dim);
    const auto heads = static_cast<std::size_t>(layer.heads);
    const std::size_t rows = head.tokens * static_cast<std::size_t>(layer.kv_heads) * head_dim;
    const bool scored = layer.window == 0;
    std::array<Extent, kParts>& parts = out.layers.emplace_back();
    parts[kKey] = take(rows);
    parts[kKeyPre] = take(rows);
    parts[kValue] = take(rows);
    parts[kQueries] = take(scored ? head.queries * heads * head_dim : 0);
    parts[kColumnSums] = take(scored ? head.tokens * heads : 0);
  }
  out.hidden = take(head.hidden);
  out.file_bytes = at;
  return out;
}

Head head_of(const ModelShape& shape, const PrefillFileSize& size) {
  Head head;
  head.layers = static_cast<std::uint32_t>(shape.layer_count());
  head.tokens = static_cast<std::uint32_t>(size.tokens);
  head.hidden = static_cast<std::uint32_t>(shape.hidden);
  head.queries = static_cast<std::uint32_t>(size.queries);
  head.made_by_bytes = static_cast<std::uint32_t>(size.made_by_bytes);
  return head;
}

LayerEntry entry_of(const LayerShape& layer) {
  return {static_cast<std::uint32_t>(layer.heads), static_cast<std::uint32_t>(layer.kv_heads),
          static_cast<std::uint32_t>(layer.head_dim), static_cast<std::uint32_t>(layer.window)};
}

std::uint64_t checksum_of(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

// Everything in front of the rows.
struct Header {
  Head head;
  std::vector<Token> tokens;
  std::vector<LayerEntry> layers;
  std::uint64_t hidden_checksum = 0;
  std::string made_by;

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out(header_bytes(head));
    std::size_t at = 0;
    const auto put = [&](const void* data, std::size_t size) {
      if (size > 0) std::memcpy(out.data() + at, data, size);
      at += size;
    };
    put(&head, sizeof(head));
    put(tokens.data(), tokens.size() * sizeof(Token));
    put(layers.data(), layers.size() * sizeof(LayerEntry));
    put(&hidden_checksum, sizeof(hidden_checksum));
    put(made_by.data(), made_by.size());
    const std::uint64_t checksum = checksum_of(std::span(out).first(at));
    put(&checksum, sizeof(checksum));
    KV_CHECK(at == out.size());
    return out;
  }

  // `bytes` are header_bytes(head) long. Nothing: the checksum does not match.
  static std::optional<Header> read(const Head& head, std::span<const std::byte> bytes) {
    Header out;
    std::size_t at = 0;
    const auto get = [&](void* data, std::size_t size) {
      if (size > 0) std::memcpy(data, bytes.data() + at, size);
      at += size;
    };
    get(&out.head, sizeof(out.head));
    out.tokens.resize(head.tokens);
    get(out.tokens.data(), out.tokens.size() * sizeof(Token));
    out.layers.resize(head.layers);
    get(out.layers.data(), out.layers.size() * sizeof(LayerEntry));
    get(&out.hidden_checksum, sizeof(out.hidden_checksum));
    out.made_by.resize(head.made_by_bytes);
    get(out.made_by.data(), out.made_by.size());
    const std::uint64_t computed = checksum_of(bytes.first(at));
    std::uint64_t checksum = 0;
    get(&checksum, sizeof(checksum));
    const bool unchanged = std::memcmp(&head, &out.head, sizeof(head)) == 0;  // since its counts were read
    if (checksum != computed || !unchanged) return std::nullopt;
    return out;
  }
};

HeadRows<const float> rows_of(std::span<const float> floats, int heads, int head_dim) {
  const std::size_t width = static_cast<std::size_t>(heads) * static_cast<std::size_t>(head_dim);
  return {floats.data(), floats.size() / width, static_cast<std::size_t>(heads), static_cast<std::size_t>(head_dim), width};
}

std::span<const float> floats_of(HeadRows<const float> rows) {
  KV_CHECK(rows.tokens <= 1 || rows.token_stride == rows.heads * rows.head_dim);
  return {rows.data, rows.tokens * rows.heads * rows.head_dim};
}

// --- writing

class Writer : public PrefillFileWriter {
 public:
  Writer(FileSystem& files, std::string path, const PrefillOrigin& origin, const Head& head)
      : files_(files), path_(std::move(path)), unfinished_(unfinished_name(path_)), layout_(layout_of(*origin.shape, head)) {
    header_.head = head;
    header_.head.file_bytes = layout_.file_bytes;
    header_.tokens.assign(origin.tokens.begin(), origin.tokens.end());
    for (const LayerShape& layer : origin.shape->layers) header_.layers.push_back(entry_of(layer));
    header_.made_by = origin.made_by;
  }
  ~Writer() override {
    // That the removal may fail too can be told to nobody; the file is never read under this name.
    if (file_ != nullptr && !finished_) static_cast<void>(files_.remove(unfinished_).ok());
  }

  Status start() {
    KV_ASSIGN(file_, create_unfinished(files_, unfinished_));
    return file_->reserve(0, layout_.file_bytes);
  }

  Status write_layer(int layer, const ExactLayer& exact) override {
    const auto l = static_cast<std::size_t>(layer);
    const bool scored = header_.layers[l].window == 0;
    KV_TRY(write_part(l, kKey, floats_of(exact.key)));
    KV_TRY(write_part(l, kKeyPre, floats_of(exact.key_pre)));
    KV_TRY(write_part(l, kValue, floats_of(exact.value)));
    KV_TRY(write_part(l, kQueries, scored ? floats_of(exact.last_queries) : std::span<const float>()));
    return write_part(l, kColumnSums, scored ? exact.column_sums : std::span<const float>());
  }

  // Every part has its checksum in the header, so it does not matter which of them becomes durable first.
  Status finish(MatView<const float> hidden, double prefill_seconds) override {
    KV_CHECK(!finished_ && hidden.rows == 1 && hidden.cols == layout_.hidden.floats);
    KV_TRY(write(layout_.hidden, hidden.row_span(0), &header_.hidden_checksum));
    header_.head.prefill_seconds = prefill_seconds;
    KV_TRY(file_->write_at(0, header_.bytes()));
    KV_TRY(file_->sync());
    KV_TRY(files_.rename(unfinished_, path_));
    finished_ = true;
    return {};
  }

 private:
  Status write_part(std::size_t layer, Part part, std::span<const float> floats) {
    return write(layout_.layers[layer][part], floats, &header_.layers[layer].checksums[part]);
  }
  Status write(const Extent& extent, std::span<const float> floats, std::uint64_t* checksum) {
    KV_CHECK(floats.size() == extent.floats);
    *checksum = checksum_of(std::as_bytes(floats));
    if (floats.empty()) return {};
    return file_->write_at(extent.offset, std::as_bytes(floats));
  }

  FileSystem& files_;
  std::string path_;
  std::string unfinished_;
  Layout layout_;
  Header header_;
  std::unique_ptr<RandomAccessFile> file_;
  bool finished_ = false;
};

// --- reading

Status damaged(const std::string& path, std::string_view what) {
  return bad_input(fmt::format("the kept prefill '{}' is damaged: the checksum of its {} does not match", path, what));
}

Status cut_short(const std::string& path, std::uint64_t bytes, std::uint64_t needed) {
  return bad_input(fmt::format("the kept prefill '{}' has {} bytes, but {} are needed; was it cut short?", path, bytes, needed));
}

class Reader : public PrefillFileReader {
 public:
  Reader(std::string path, std::unique_ptr<RandomAccessFile> file) : path_(std::move(path)), file_(std::move(file)) {}

  Status read_header() {
    KV_ASSIGN(const std::uint64_t size, file_->size());
    if (size < sizeof(Head)) return cut_short(path_, size, sizeof(Head));
    Head head;
    KV_TRY(file_->read_at(0, std::as_writable_bytes(std::span(&head, 1))));
    if (std::memcmp(head.magic, Head().magic, sizeof(head.magic)) != 0) {
      return bad_input(fmt::format("'{}' is not a kept prefill (it does not begin with KVPREF)", path_));
    }
    if (head.version != kVersion) {
      return bad_input(
          fmt::format("the kept prefill '{}' has version {}, but this program reads version {}", path_, head.version, kVersion));
    }
    const std::uint64_t needed = header_bytes(head);  // of counts that may be damaged: no more than the file has is read
    if (needed > size) return cut_short(path_, size, needed);
    std::vector<std::byte> bytes(needed);
    KV_TRY(file_->read_at(0, bytes));
    std::optional<Header> header = Header::read(head, bytes);
    if (!header) return damaged(path_, "header");
    header_ = std::move(*header);
    if (size != header_.head.file_bytes) return cut_short(path_, size, header_.head.file_bytes);
    return {};
  }

  Status compare(const PrefillOrigin& origin) {
    if (header_.made_by != origin.made_by) {
      return bad_input(
          fmt::format("the kept prefill '{}' was made by [{}], but this is [{}]", path_, header_.made_by, origin.made_by));
    }
    if (header_.tokens.size() != origin.tokens.size() ||
        !std::equal(origin.tokens.begin(), origin.tokens.end(), header_.tokens.begin())) {
      return bad_input(fmt::format("the kept prefill '{}' holds another prompt, of {} tokens", path_, header_.tokens.size()));
    }
    shape_ = origin.shape;
    layout_ = layout_of(*shape_, header_.head);
    bool same = header_.head.file_bytes == layout_.file_bytes && header_.head.queries <= header_.head.tokens &&
                header_.layers.size() == shape_->layers.size() &&
                header_.head.hidden == static_cast<std::uint32_t>(shape_->hidden);
    for (std::size_t l = 0; same && l < header_.layers.size(); ++l) {
      LayerEntry entry = entry_of(shape_->layers[l]);
      entry.checksums = header_.layers[l].checksums;
      same = std::memcmp(&entry, &header_.layers[l], sizeof(entry)) == 0;
    }
    if (same) return {};
    return bad_input(fmt::format("the kept prefill '{}' is of a model with another shape", path_));
  }

  int queries() const override { return static_cast<int>(header_.head.queries); }
  double prefill_seconds() const override { return header_.head.prefill_seconds; }

  Result<ExactLayer> read_layer(int layer, const Wanted& wanted) override {
    const auto l = static_cast<std::size_t>(layer);
    const LayerShape& shape = shape_->layers[l];
    KV_TRY(read_part(l, kKey));
    KV_TRY(read_part(l, kValue));
    ExactLayer exact;
    exact.key = rows_of(buffers_[kKey], shape.kv_heads, shape.head_dim);
    exact.value = rows_of(buffers_[kValue], shape.kv_heads, shape.head_dim);
    if (wanted.key_pre) {
      KV_TRY(read_part(l, kKeyPre));
      exact.key_pre = rows_of(buffers_[kKeyPre], shape.kv_heads, shape.head_dim);
    }
    if (wanted.queries) {
      KV_TRY(read_part(l, kQueries));
      exact.last_queries = rows_of(buffers_[kQueries], shape.heads, shape.head_dim);
    }
    if (wanted.column_sums) {
      KV_TRY(read_part(l, kColumnSums));
      exact.column_sums = buffers_[kColumnSums];
    }
    return exact;
  }

  Result<MatView<const float>> read_hidden() override {
    KV_TRY(read(layout_.hidden, header_.hidden_checksum, "last hidden state", &hidden_));
    return MatView<const float>(hidden_.data(), 1, hidden_.size());
  }

 private:
  Status read_part(std::size_t layer, Part part) {
    return read(layout_.layers[layer][part], header_.layers[layer].checksums[part],
                fmt::format("layer {}'s {}", layer, kPartNames[part]), &buffers_[part]);
  }
  Status read(const Extent& extent, std::uint64_t checksum, std::string_view what, std::vector<float>* out) {
    out->resize(extent.floats);
    const std::span<std::byte> bytes = std::as_writable_bytes(std::span(*out));
    if (!bytes.empty()) KV_TRY(file_->read_at(extent.offset, bytes));
    return checksum_of(bytes) == checksum ? Status() : damaged(path_, what);
  }

  std::string path_;
  std::unique_ptr<RandomAccessFile> file_;
  const ModelShape* shape_ = nullptr;
  Header header_;
  Layout layout_;
  std::array<std::vector<float>, kParts> buffers_;  // of the layer read last
  std::vector<float> hidden_;
};

}  // namespace

std::uint64_t prefill_file_bytes(const ModelShape& shape, const PrefillFileSize& size) {
  return layout_of(shape, head_of(shape, size)).file_bytes;
}

Result<std::unique_ptr<PrefillFileWriter>> PrefillFileWriter::create(FileSystem& files, const std::string& path,
                                                                     const PrefillOrigin& origin, int queries) {
  KV_CHECK(origin.made_by.size() <= kMostMadeBy);
  const Head head = head_of(*origin.shape, {origin.tokens.size(), static_cast<std::size_t>(queries), origin.made_by.size()});
  auto writer = std::make_unique<Writer>(files, path, origin, head);
  KV_TRY(writer->start());
  return std::unique_ptr<PrefillFileWriter>(std::move(writer));
}

Result<std::unique_ptr<PrefillFileReader>> PrefillFileReader::open(FileSystem& files, const std::string& path,
                                                                   const PrefillOrigin& origin) {
  KV_ASSIGN(auto file, files.open_random(path, {.create = false}));
  auto reader = std::make_unique<Reader>(path, std::move(file));
  KV_TRY(reader->read_header());
  KV_TRY(reader->compare(origin));
  return std::unique_ptr<PrefillFileReader>(std::move(reader));
}

}  // namespace kvartet
