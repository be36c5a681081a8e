#include "core/faulty_file_system.h"

#include <fmt/format.h>

#include <utility>

namespace kvartet {
namespace {

class FaultyWritableFile : public WritableFile {
 public:
  FaultyWritableFile(std::unique_ptr<WritableFile> base, std::shared_ptr<FaultyFileSystem::Counter> counter, std::string path)
      : base_(std::move(base)), counter_(std::move(counter)), path_(std::move(path)) {}

  Status append(std::string_view bytes) override {
    Status fault = counter_->next("write", path_);
    if (fault.ok()) return base_->append(bytes);
    KV_TRY(base_->append(bytes.substr(0, bytes.size() / 2)));
    return fault;
  }
  Status sync() override {
    KV_TRY(counter_->next("sync", path_));
    return base_->sync();
  }
  Status close() override {
    Status fault = counter_->next("close", path_);
    KV_TRY(base_->close());  // as close(2): the descriptor is gone even when it reports an error
    return fault;
  }

 private:
  std::unique_ptr<WritableFile> base_;
  std::shared_ptr<FaultyFileSystem::Counter> counter_;
  std::string path_;
};

class FaultyRandomAccessFile : public RandomAccessFile {
 public:
  FaultyRandomAccessFile(std::unique_ptr<RandomAccessFile> base, std::shared_ptr<FaultyFileSystem::Counter> counter,
                         std::string path)
      : base_(std::move(base)), counter_(std::move(counter)), path_(std::move(path)) {}

  Status read_at(std::uint64_t offset, std::span<std::byte> out) override {
    KV_TRY(counter_->next("read", path_));
    return base_->read_at(offset, out);
  }
  Status write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    Status fault = counter_->next("write", path_);
    if (fault.ok()) return base_->write_at(offset, bytes);
    const std::size_t unit = direct() ? kDirectAlignment : 1;
    KV_TRY(base_->write_at(offset, bytes.first(bytes.size() / 2 / unit * unit)));
    return fault;
  }
  Status reserve(std::uint64_t offset, std::uint64_t bytes) override {
    KV_TRY(counter_->next("reserve space for", path_));
    return base_->reserve(offset, bytes);
  }
  Result<std::uint64_t> size() override {
    KV_TRY(counter_->next("read the size of", path_));
    return base_->size();
  }
  Status sync() override {
    KV_TRY(counter_->next("sync", path_));
    return base_->sync();
  }
  bool direct() const override { return base_->direct(); }
  int descriptor() const override { return base_->descriptor(); }
  Result<std::size_t> finish_read(std::uint64_t offset, std::size_t wanted, std::int64_t got) override {
    KV_TRY(counter_->next("read", path_));
    const std::int64_t half = got / 2 / static_cast<std::int64_t>(kDirectAlignment) * static_cast<std::int64_t>(kDirectAlignment);
    if (half > 0 && counter_->next_read_is_short()) got = half;
    return base_->finish_read(offset, wanted, got);
  }

 private:
  std::unique_ptr<RandomAccessFile> base_;
  std::shared_ptr<FaultyFileSystem::Counter> counter_;
  std::string path_;
};

}  // namespace

bool FaultyFileSystem::Counter::next_read_is_short() {
  return fault.short_reads && fault.nth > 0 && operations.load() % fault.nth == 0;
}

Status FaultyFileSystem::Counter::next(std::string_view operation, const std::string& path) {
  const long n = operations.fetch_add(1) + 1;
  const bool fails = !fault.short_reads && fault.nth > 0 && (n == fault.nth || (fault.lasting && n > fault.nth));
  if (!fails) return {};
  failed.store(true);
  return {fault.code, fmt::format("cannot {} '{}': file operation {} was made to fail", operation, path, n)};
}

FaultyFileSystem::FaultyFileSystem(FileSystem& base) : base_(base), counter_(std::make_shared<Counter>()) {}

void FaultyFileSystem::arm(const FileFault& fault) {
  counter_->operations.store(0);
  counter_->failed.store(false);
  counter_->fault = fault;
}

long FaultyFileSystem::operations() const { return counter_->operations.load(); }
bool FaultyFileSystem::failed() const { return counter_->failed.load(); }

Result<std::string> FaultyFileSystem::read_file(const std::string& path) {
  KV_TRY(counter_->next("read", path));
  return base_.read_file(path);
}

Result<std::unique_ptr<MappedFile>> FaultyFileSystem::map_file(const std::string& path) {
  KV_TRY(counter_->next("map", path));
  return base_.map_file(path);
}

Result<std::unique_ptr<WritableFile>> FaultyFileSystem::create(const std::string& path) {
  KV_TRY(counter_->next("create", path));
  KV_ASSIGN(auto file, base_.create(path));
  return std::unique_ptr<WritableFile>(std::make_unique<FaultyWritableFile>(std::move(file), counter_, path));
}

Result<std::unique_ptr<WritableFile>> FaultyFileSystem::open_append(const std::string& path) {
  KV_TRY(counter_->next("open", path));
  KV_ASSIGN(auto file, base_.open_append(path));
  return std::unique_ptr<WritableFile>(std::make_unique<FaultyWritableFile>(std::move(file), counter_, path));
}

Result<std::unique_ptr<RandomAccessFile>> FaultyFileSystem::open_random(const std::string& path,
                                                                        const RandomAccessOptions& options) {
  KV_TRY(counter_->next("open", path));
  KV_ASSIGN(auto file, base_.open_random(path, options));
  return std::unique_ptr<RandomAccessFile>(std::make_unique<FaultyRandomAccessFile>(std::move(file), counter_, path));
}

Status FaultyFileSystem::rename(const std::string& from, const std::string& to) {
  KV_TRY(counter_->next("rename", from));
  return base_.rename(from, to);
}

Status FaultyFileSystem::remove(const std::string& path) {
  KV_TRY(counter_->next("remove", path));
  return base_.remove(path);
}

Status FaultyFileSystem::make_directories(const std::string& path) {
  KV_TRY(counter_->next("make the folder", path));
  return base_.make_directories(path);
}

bool FaultyFileSystem::exists(const std::string& path) { return base_.exists(path); }

Result<std::vector<std::string>> FaultyFileSystem::list(const std::string& directory) {
  KV_TRY(counter_->next("list", directory));
  return base_.list(directory);
}

Result<std::uint64_t> FaultyFileSystem::free_bytes(const std::string& path) {
  KV_TRY(counter_->next("ask for the free space of", path));
  return base_.free_bytes(path);
}

}  // namespace kvartet
