// Keeping a file of rows, and opening a kept one: the index that says which pages belong to whom (docs/formats/row-file.md).
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "offload/file_tier.h"

namespace kvartet {
namespace {

template <typename Number>
void put(std::string* out, Number number) {
  out->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

// Takes numbers from the front; remembers that there were too few, and gives zeros then.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : left_(bytes) {}
  template <typename Number>
  Number take() {
    Number number{};
    take_bytes(&number, sizeof(number));
    return number;
  }
  void take_bytes(void* to, std::size_t bytes) {
    if (bytes > left_.size()) {
      failed_ = true;
      left_ = {};
      return;
    }
    if (bytes != 0) std::memcpy(to, left_.data(), bytes);
    left_.remove_prefix(bytes);
  }
  std::size_t left() const { return left_.size(); }
  bool failed() const { return failed_; }

 private:
  std::string_view left_;
  bool failed_ = false;
};

constexpr std::uint64_t kMostRows = std::uint64_t{1} << 30;
constexpr std::uint64_t kMostRowBytes = std::uint64_t{1} << 20;

}  // namespace

std::string FileTier::index() const {
  std::string index;
  put(&index, static_cast<std::uint32_t>(layers_.size()));
  for (const Layer& layer : layers_) {
    put(&index, static_cast<std::uint32_t>(layer.shape.kv_heads));
    put(&index, static_cast<std::uint64_t>(layer.shape.row_bytes));
    for (const Head& head : layer.heads) {
      put(&index, static_cast<std::uint64_t>(head.rows));
      put(&index, static_cast<std::uint32_t>(head.runs.size()));
      for (const Run& run : head.runs) {
        put(&index, run.offset);
        put(&index, static_cast<std::uint32_t>(run.pages));
        index.append(reinterpret_cast<const char*>(run.sums->data()), run.sums->size());
      }
    }
  }
  return index;
}

// The unfinished pages are written as they are; a kept file takes no more rows, so they stay so.
Status FileTier::keep() {
  if (!file_->to_keep()) return usage_error("this file of rows was made without a name to keep it under; set keep_as");
  if (closed_) return usage_error(fmt::format("'{}' is kept already", file_->path()));
  closed_ = true;
  for (Layer& layer : layers_) {
    for (Head& head : layer.heads) {
      if (head.rows == head.paged_rows) continue;
      Run run = {.first_page = head.paged_rows / layer.page_rows, .pages = 1};
      KV_ASSIGN(Buffer sums, fast_->allocate(sizeof(std::uint32_t)));
      run.sums = std::make_shared<Buffer>(std::move(sums));
      KV_ASSIGN(run.place, file_->allocate(layer.page_bytes));
      run.offset = run.place->offset();
      run.marks = marks_for(1);
      KV_TRY(write_run(layer, head, run, {}));
      head.paged_rows = head.rows;
      head.runs.push_back(std::move(run));
      head.tail.reset();
    }
  }
  return file_->finish(index());
}

// The checksum of the index was right, so what does not fit here was written so: checked all the same, before it is believed.
Status FileTier::read_index(const std::string& bytes) {
  const auto wrong = [&](const std::string& what) {
    return bad_input(fmt::format("'{}' has a wrong index: {}", file_->path(), what));
  };
  KV_ASSIGN(const std::uint64_t size, file_->file().size());
  Cursor cursor(bytes);
  const auto layers = cursor.take<std::uint32_t>();
  for (std::uint32_t l = 0; l < layers && !cursor.failed(); ++l) {
    const auto heads = cursor.take<std::uint32_t>();
    const auto row_bytes = cursor.take<std::uint64_t>();
    if (heads == 0 || heads > cursor.left() || row_bytes == 0 || row_bytes > kMostRowBytes) {
      return wrong(fmt::format("layer {} has {} KV heads and rows of {} bytes", l, heads, row_bytes));
    }
    Layer layer = {{static_cast<int>(heads), row_bytes}, page_bytes_for(row_bytes), rows_per_page(row_bytes), {}};
    for (std::uint32_t h = 0; h < heads; ++h) {
      Head head;
      const auto rows = cursor.take<std::uint64_t>();
      const auto runs = cursor.take<std::uint32_t>();
      if (rows > kMostRows) return wrong(fmt::format("layer {} head {} has {} rows", l, h, rows));
      std::uint64_t pages = 0;
      for (std::uint32_t r = 0; r < runs && !cursor.failed(); ++r) {
        Run run = {.first_page = static_cast<int>(pages)};
        run.offset = cursor.take<std::uint64_t>();
        const auto count = cursor.take<std::uint32_t>();
        if (count == 0 || count > cursor.left() / sizeof(std::uint32_t) || run.offset % kPage != 0 || run.offset > size ||
            count * layer.page_bytes > size - run.offset) {
          return wrong(fmt::format("layer {} head {} has {} pages at byte {} of {}", l, h, count, run.offset, size));
        }
        KV_ASSIGN(Buffer sums, fast_->allocate(count * sizeof(std::uint32_t)));
        cursor.take_bytes(sums.data(), sums.size());
        run.sums = std::make_shared<Buffer>(std::move(sums));
        run.pages = static_cast<int>(count);
        run.marks = marks_for(run.pages);
        pages += count;
        head.runs.push_back(std::move(run));
      }
      const auto page_rows = static_cast<std::uint64_t>(layer.page_rows);
      if (pages != (rows + page_rows - 1) / page_rows)
        return wrong(fmt::format("layer {} head {} has {} rows in {} pages", l, h, rows, pages));
      head.rows = head.paged_rows = static_cast<int>(rows);
      layer.heads.push_back(std::move(head));
    }
    layers_.push_back(std::move(layer));
  }
  if (cursor.failed() || cursor.left() != 0) return wrong("it is too short or too long");
  closed_ = true;
  return {};
}

}  // namespace kvartet
