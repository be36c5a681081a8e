#include "core/memory_file_system.h"

#include <fmt/format.h>

#include <algorithm>
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

Result<std::unique_ptr<WritableFile>> MemoryFileSystem::open_for_writing(const std::string& path, bool truncate) {
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
  return std::unique_ptr<WritableFile>(std::make_unique<MemoryWritableFile>(file, path));
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

void MemoryFileSystem::crash() {
  const std::lock_guard lock(mutex_);
  for (auto& [path, file] : files_) {
    const std::lock_guard file_lock(file->mutex);
    file->bytes = file->synced;
  }
}

}  // namespace kvartet
