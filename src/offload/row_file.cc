#include "offload/row_file.h"

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

#include "core/arena.h"
#include "core/clock.h"
#include "offload/page_buffer.h"

namespace kvartet {

static_assert(std::endian::native == std::endian::little, "row files are little-endian");

// Page 0 (docs/formats/row-file.md).
struct RowFile::Header {
  char magic[8] = {'K', 'V', 'R', 'O', 'W', 'S', '\r', '\n'};
  std::uint32_t version = kVersion;
  std::uint32_t finished = 0;
  std::uint64_t largest_bytes = 0;  // the file is never larger
  std::uint64_t index_offset = 0;
  std::uint64_t index_bytes = 0;
  std::uint64_t index_checksum = 0;
  std::uint64_t checksum = 0;  // of all bytes of this header before it
};

namespace {

constexpr std::uint64_t kAnnounceStep = std::uint64_t{16} << 20;

std::uint64_t rounded_up(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

std::string name_of(const RowFileOptions& options) {
  if (!options.keep_as.empty()) return options.keep_as + ".unfinished";
  const auto now = static_cast<std::uint64_t>(Clock::real().seconds() * 1e9);
  const std::string name = fmt::format("kvartet-{}-{}.rows", ::getpid(), now);
  return options.directory.empty() ? name : options.directory + "/" + name;
}

// A disk that is full under a running sequence counts as the system's refusal (exit 5), unlike a cap that the user set (exit 4).
Status disk_status(Status status) {
  if (status.code() != Code::kExhausted) return status;
  return io_error(status.message());
}

template <typename Header>
std::uint64_t checksum_of(const Header& header) {
  return XXH3_64bits(&header, offsetof(Header, checksum));
}

}  // namespace

PageRun::~PageRun() {
  if (file_ != nullptr) file_->release(offset_, bytes_);
}

Result<std::shared_ptr<RowFile>> RowFile::create(const RowFileOptions& options) {
  std::shared_ptr<RowFile> made(new RowFile(options, name_of(options)));
  KV_TRY(options.budget->charge(kUnit, "a file of rows"));
  made->charged_ = kUnit;
  made->end_ = kUnit;
  KV_ASSIGN(made->file_, options.fs->open_random(
                             made->path_, {.create = true, .nameless = !made->to_keep(), .try_direct = options.try_direct}));
  KV_TRY(made->announce(kUnit));
  return made;
}

Result<std::shared_ptr<RowFile>> RowFile::open(const RowFileOptions& options, const std::string& path, std::string* index) {
  std::shared_ptr<RowFile> made(new RowFile(options, path));
  made->read_only_ = true;
  made->finished_ = true;
  KV_ASSIGN(made->file_, options.fs->open_random(path, {.create = false, .try_direct = options.try_direct}));
  KV_ASSIGN(const std::uint64_t size, made->file_->size());
  if (size < kUnit) return bad_input(fmt::format("'{}' has {} bytes, too few for a file of rows; was it cut short?", path, size));
  const std::shared_ptr<Arena> arena = Arena::create();
  KV_ASSIGN(const PageBuffer page, PageBuffer::create(*arena, kUnit));
  KV_TRY(made->file_->read_at(0, page.bytes()));
  Header header;
  const Header expected;
  std::memcpy(&header, page.bytes().data(), sizeof(header));
  if (std::memcmp(header.magic, expected.magic, sizeof(header.magic)) != 0) {
    return bad_input(fmt::format("'{}' is not a file of rows (it does not begin with KVROWS)", path));
  }
  if (header.version != kVersion) {
    return bad_input(
        fmt::format("'{}' is a file of rows of version {}, but this program reads version {}", path, header.version, kVersion));
  }
  if (header.checksum != checksum_of(header)) {
    return bad_input(fmt::format("'{}' is damaged: the checksum of its header does not match; make it again", path));
  }
  if (header.finished != 1) {
    return bad_input(fmt::format("'{}' was not finished (its writer was stopped); it can be removed", path));
  }
  const std::uint64_t index_pages = rounded_up(std::min(header.index_bytes, size), kUnit);
  if (header.index_bytes > size || index_pages > size || header.index_offset > size - index_pages ||
      header.index_offset % kUnit != 0) {
    return bad_input(fmt::format("'{}' has {} bytes, but its index ends at byte {}; was it cut short?", path, size,
                                 header.index_offset + index_pages));
  }
  KV_ASSIGN(const PageBuffer pages, PageBuffer::create(*arena, index_pages));
  KV_TRY(made->file_->read_at(header.index_offset, pages.bytes()));
  index->assign(reinterpret_cast<const char*>(pages.bytes().data()), header.index_bytes);
  if (XXH3_64bits(index->data(), index->size()) != header.index_checksum) {
    return bad_input(fmt::format("'{}' is damaged: the checksum of its index does not match; make it again", path));
  }
  made->end_ = header.index_offset;
  return made;
}

RowFile::~RowFile() {
  options_.budget->release(charged_);
  // A file that was to be kept and never finished is of no use. That its removal may fail too cannot be told to anybody.
  if (file_ != nullptr && to_keep() && !finished_) static_cast<void>(options_.fs->remove(path_).ok());
}

// The smallest free place that is large enough, or new space at the end.
std::uint64_t RowFile::take_space(std::uint64_t bytes, bool* at_end) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second >= bytes && (best == free_.end() || it->second < best->second)) best = it;
  }
  *at_end = best == free_.end();
  if (*at_end) return std::exchange(end_, end_ + bytes);
  const auto [offset, size] = *best;
  free_.erase(best);
  if (size > bytes) free_.emplace(offset + bytes, size - bytes);
  return offset;
}

Result<std::shared_ptr<PageRun>> RowFile::allocate(std::uint64_t bytes) {
  KV_CHECK(bytes > 0 && bytes % kUnit == 0);
  const std::lock_guard lock(mutex_);
  if (finished_) return usage_error(fmt::format("'{}' is a kept file of rows and takes no more of them", path_));
  bool at_end = false;
  const std::uint64_t offset = take_space(bytes, &at_end);
  if (at_end) {
    Status status = options_.budget->charge(bytes, fmt::format("'{}'", path_));
    if (status.ok()) {
      charged_ += bytes;
      status = announce(offset + bytes);
      if (status.ok()) status = disk_status(file_->reserve(offset, bytes));
      if (!status.ok()) {
        options_.budget->release(bytes);
        charged_ -= bytes;
      }
    }
    if (!status.ok()) {
      end_ = offset;
      return status;
    }
  }
  return std::make_shared<PageRun>(shared_from_this(), offset, bytes);
}

// Free neighbours become one place. Freed bytes stay charged: the file does not shrink.
void RowFile::release(std::uint64_t offset, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace(offset, bytes);
}

Status RowFile::write(std::uint64_t offset, std::span<const std::byte> pages) {
  return disk_status(file_->write_at(offset, pages));
}

// Only a file with a name can outlive its process, so only there the header must say beforehand how large it may become.
Status RowFile::announce(std::uint64_t end) {
  if (!to_keep() || end <= announced_) return {};
  Header header;
  header.largest_bytes = rounded_up(end, kAnnounceStep);
  KV_TRY(write_header(header));
  announced_ = header.largest_bytes;
  return {};
}

Status RowFile::write_header(const Header& header) {
  Header sealed = header;
  sealed.checksum = checksum_of(sealed);
  return write_unaligned(0, {reinterpret_cast<const char*>(&sealed), sizeof(sealed)});
}

// Pads to whole units, as direct files need.
Status RowFile::write_unaligned(std::uint64_t offset, std::string_view bytes) {
  const std::shared_ptr<Arena> arena = Arena::create();
  KV_ASSIGN(const PageBuffer pages, PageBuffer::create(*arena, rounded_up(bytes.size(), kUnit)));
  std::memcpy(pages.bytes().data(), bytes.data(), bytes.size());
  return disk_status(file_->write_at(offset, pages.bytes()));
}

// Order matters: everything is durable before the header says so, and the header before the name.
Status RowFile::finish(std::string_view index) {
  KV_CHECK(to_keep() && !finished_);
  Header header;
  header.finished = 1;
  header.index_bytes = index.size();
  header.index_checksum = XXH3_64bits(index.data(), index.size());
  const std::lock_guard lock(mutex_);
  header.index_offset = end_;
  header.largest_bytes = end_ + rounded_up(index.size(), kUnit);
  KV_TRY(options_.budget->charge(header.largest_bytes - end_, fmt::format("the index of '{}'", path_)));
  charged_ += header.largest_bytes - end_;
  end_ = header.largest_bytes;
  KV_TRY(announce(end_));
  KV_TRY(write_unaligned(header.index_offset, index));
  KV_TRY(file_->sync());
  KV_TRY(write_header(header));
  KV_TRY(file_->sync());
  KV_TRY(options_.fs->rename(path_, options_.keep_as));
  path_ = options_.keep_as;
  finished_ = true;
  return {};
}

}  // namespace kvartet
