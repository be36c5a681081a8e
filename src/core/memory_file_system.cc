#include "core/memory_file_system.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

namespace kvartet {

// Shared between the name and the open handles, as an inode is: a handle stays valid when its name goes away.
struct MemoryFileSystem::File {
  std::mutex mutex;
  std::string bytes;
  std::string synced;
};

namespace {

std::string normalized(const std::string& path) {
  std::string text = std::filesystem::path(path).lexically_normal().string();
  if (text.size() > 1 && text.back() == '/') text.pop_back();
  return text == "." ? "" : text;
}

std::string parent_of(const std::string& path) { return std::filesystem::path(path).parent_path().string(); }

class MemoryWritableFile : public WritableFile {
 public:
  MemoryWritableFile(std::shared_ptr<MemoryFileSystem::File> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}

  Status append(std::string_view bytes) override {
    if (file_ == nullptr) return closed();
    const std::lock_guard lock(file_->mutex);
    file_->bytes += bytes;
    return {};
  }
  Status sync() override {
    if (file_ == nullptr) return closed();
    const std::lock_guard lock(file_->mutex);
    file_->synced = file_->bytes;
    return {};
  }
  Status close() override {
    file_.reset();
    return {};
  }

 private:
  Status closed() const { return internal_error(fmt::format("'{}' was written to after it was closed", path_)); }
  std::shared_ptr<MemoryFileSystem::File> file_;
  std::string path_;
};

class MemoryRandomAccessFile : public RandomAccessFile {
 public:
  MemoryRandomAccessFile(std::shared_ptr<MemoryFileSystem::File> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}

  Status read_at(std::uint64_t offset, std::span<std::byte> out) override {
    const std::lock_guard lock(file_->mutex);
    if (offset + out.size() > file_->bytes.size()) {
      return io_error(fmt::format("cannot read '{}': it ends before byte {}; was it cut short?", path_, offset + out.size()));
    }
    std::memcpy(out.data(), file_->bytes.data() + offset, out.size());
    return {};
  }
  Status write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    const std::lock_guard lock(file_->mutex);
    if (file_->bytes.size() < offset + bytes.size()) file_->bytes.resize(offset + bytes.size());
    std::memcpy(file_->bytes.data() + offset, bytes.data(), bytes.size());
    return {};
  }
  Status reserve(std::uint64_t offset, std::uint64_t bytes) override {
    const std::lock_guard lock(file_->mutex);
    if (file_->bytes.size() < offset + bytes) file_->bytes.resize(offset + bytes);
    return {};
  }
  Result<std::uint64_t> size() override {
    const std::lock_guard lock(file_->mutex);
    return file_->bytes.size();
  }
  Status sync() override {
    const std::lock_guard lock(file_->mutex);
    file_->synced = file_->bytes;
    return {};
  }
  bool direct() const override { return false; }
  int descriptor() const override { return -1; }
  Result<std::size_t> finish_read(std::uint64_t, std::size_t, std::int64_t) override {
    return internal_error(fmt::format("'{}' lies in memory and has no descriptor to read through", path_));
  }

 private:
  std::shared_ptr<MemoryFileSystem::File> file_;
  std::string path_;
};

class MemoryMappedFile : public MappedFile {
 public:
  explicit MemoryMappedFile(std::string bytes) : bytes_(std::move(bytes)) {}
  std::span<const std::byte> bytes() const override { return std::as_bytes(std::span(bytes_.data(), bytes_.size())); }

 private:
  std::string bytes_;
};

}  // namespace

Result<std::string> MemoryFileSystem::contents(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const std::string name = normalized(path);
  const auto it = files_.find(name);
  if (it == files_.end()) {
    if (directories_.contains(name)) return bad_input(fmt::format("'{}' is a folder, but a file is needed", path));
    return bad_input(fmt::format("there is no file '{}'; check the path", path));
  }
  const std::lock_guard file_lock(it->second->mutex);
  return it->second->bytes;
}

Result<std::string> MemoryFileSystem::read_file(const std::string& path) { return contents(path); }

Result<std::unique_ptr<MappedFile>> MemoryFileSystem::map_file(const std::string& path) {
  KV_ASSIGN(std::string bytes, contents(path));
  return std::unique_ptr<MappedFile>(std::make_unique<MemoryMappedFile>(std::move(bytes)));
}

Result<std::shared_ptr<MemoryFileSystem::File>> MemoryFileSystem::file_to_write(const std::string& path, bool truncate) {
  const std::lock_guard lock(mutex_);
  const std::string name = normalized(path);
  const std::string parent = parent_of(name);
  if (!parent.empty() && parent != "/" && !directories_.contains(parent)) {
    return io_error(fmt::format("cannot write '{}': there is no folder '{}'", path, parent));
  }
  if (name.empty() || directories_.contains(name)) return io_error(fmt::format("cannot write '{}': it is a folder", path));
  std::shared_ptr<File>& file = files_[name];
  if (file == nullptr) file = std::make_shared<File>();
  if (truncate) {
    const std::lock_guard file_lock(file->mutex);
    file->bytes.clear();
  }
  return file;
}

Result<std::unique_ptr<WritableFile>> MemoryFileSystem::open_for_writing(const std::string& path, bool truncate) {
  KV_ASSIGN(std::shared_ptr<File> file, file_to_write(path, truncate));
  return std::unique_ptr<WritableFile>(std::make_unique<MemoryWritableFile>(std::move(file), path));
}

Result<std::unique_ptr<RandomAccessFile>> MemoryFileSystem::open_random(const std::string& path,
                                                                        const RandomAccessOptions& options) {
  std::shared_ptr<File> file;
  if (options.create) {
    KV_ASSIGN(file, file_to_write(path, true));
    if (options.nameless) KV_TRY(remove(path));
  } else {
    KV_TRY(contents(path).status());
    const std::lock_guard lock(mutex_);
    file = files_[normalized(path)];
  }
  return std::unique_ptr<RandomAccessFile>(std::make_unique<MemoryRandomAccessFile>(std::move(file), path));
}

Result<std::unique_ptr<WritableFile>> MemoryFileSystem::create(const std::string& path) { return open_for_writing(path, true); }
Result<std::unique_ptr<WritableFile>> MemoryFileSystem::open_append(const std::string& path) {
  return open_for_writing(path, false);
}

Status MemoryFileSystem::rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  const std::string target = normalized(to);
  const std::string parent = parent_of(target);
  const auto it = files_.find(normalized(from));
  if (it == files_.end()) return io_error(fmt::format("cannot rename '{}' to '{}': there is no such file", from, to));
  if (directories_.contains(target)) return io_error(fmt::format("cannot rename '{}' to '{}': it is a folder", from, to));
  if (!parent.empty() && parent != "/" && !directories_.contains(parent)) {
    return io_error(fmt::format("cannot rename '{}' to '{}': there is no folder '{}'", from, to, parent));
  }
  std::shared_ptr<File> file = std::move(it->second);
  files_.erase(it);
  files_[target] = std::move(file);
  return {};
}

Status MemoryFileSystem::remove(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const std::string name = normalized(path);
  if (files_.erase(name) != 0) return {};
  if (!directories_.contains(name)) return io_error(fmt::format("cannot remove '{}': there is no such file", path));
  const std::string inside = name + "/";
  const auto starts_inside = [&](const std::string& other) { return other.starts_with(inside); };
  const bool empty = std::none_of(directories_.begin(), directories_.end(), starts_inside) &&
                     std::none_of(files_.begin(), files_.end(), [&](const auto& entry) { return starts_inside(entry.first); });
  if (!empty) return io_error(fmt::format("cannot remove '{}': the folder is not empty", path));
  directories_.erase(name);
  return {};
}

Status MemoryFileSystem::make_directories(const std::string& path) {
  const std::lock_guard lock(mutex_);
  for (std::string name = normalized(path); !name.empty() && name != "/"; name = parent_of(name)) {
    if (files_.contains(name)) return io_error(fmt::format("cannot make the folder '{}': '{}' is a file", path, name));
    directories_.insert(name);
  }
  return {};
}

bool MemoryFileSystem::exists(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const std::string name = normalized(path);
  return name.empty() || name == "/" || files_.contains(name) || directories_.contains(name);
}

Result<std::vector<std::string>> MemoryFileSystem::list(const std::string& directory) {
  const std::lock_guard lock(mutex_);
  const std::string name = normalized(directory);
  if (!name.empty() && name != "/" && !directories_.contains(name)) {
    return bad_input(fmt::format("there is no folder '{}'; check the path", directory));
  }
  std::set<std::string> names;
  const auto add = [&](const std::string& path) {
    if (parent_of(path) == name) names.insert(std::filesystem::path(path).filename().string());
  };
  for (const auto& [path, file] : files_) add(path);
  for (const std::string& path : directories_) add(path);
  return std::vector<std::string>(names.begin(), names.end());
}

Result<std::uint64_t> MemoryFileSystem::free_bytes(const std::string&) {
  const std::lock_guard lock(mutex_);
  return free_bytes_;
}

void MemoryFileSystem::set_free_bytes(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  free_bytes_ = bytes;
}

void MemoryFileSystem::crash() {
  const std::lock_guard lock(mutex_);
  for (auto& [path, file] : files_) {
    const std::lock_guard file_lock(file->mutex);
    file->bytes = file->synced;
  }
}

}  // namespace kvartet
