#include "core/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

namespace kvartet {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

// One sentence for a refused operation. A full disk or memory is exhaustion (exit 4), everything else is the system's refusal
// (exit 5).
Status refused(std::string_view verb, const std::string& path, int error) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return exhausted(fmt::format("cannot {} '{}': {}; free some space or choose another folder", verb, path, reason(error)));
  }
  if (error == ENOMEM)
    return exhausted(fmt::format("cannot {} '{}': {}; allow the process more memory", verb, path, reason(error)));
  const char* hint = error == ENOENT                                       ? "; is there such a folder?"
                     : error == ENOTDIR || error == EEXIST                 ? "; a file stands where a folder is needed"
                     : error == EROFS || error == EACCES || error == EPERM ? "; choose a place you may write to"
                                                                           : "";
  return io_error(fmt::format("cannot {} '{}': {}{}", verb, path, reason(error), verb == "read" ? "" : hint));
}

// The same for files that the user named: one that is missing or is a folder is bad input (exit 3).
Status unreadable(const std::string& path, int error) {
  if (error == ENOENT || error == ENOTDIR) return bad_input(fmt::format("there is no file '{}'; check the path", path));
  if (error == EISDIR) return bad_input(fmt::format("'{}' is a folder, but a file is needed", path));
  return refused("read", path, error);
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  bool open() const { return fd_ >= 0; }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

class RealWritableFile : public WritableFile {
 public:
  RealWritableFile(Descriptor fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Status append(std::string_view bytes) override {
    if (!fd_.open()) return closed();
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return refused("write", path_, errno);
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
    return {};
  }

  Status sync() override {
    if (!fd_.open()) return closed();
    // Pipes and terminals cannot be synced, and need not be.
    if (::fsync(fd_.get()) != 0 && errno != EINVAL && errno != EROFS) return refused("write", path_, errno);
    return {};
  }

  Status close() override {
    if (!fd_.open()) return {};
    if (::close(fd_.release()) != 0 && errno != EINTR) return refused("write", path_, errno);
    return {};
  }

 private:
  Status closed() const { return internal_error(fmt::format("'{}' was written to after it was closed", path_)); }
  Descriptor fd_;
  std::string path_;
};

class RealMappedFile : public MappedFile {
 public:
  RealMappedFile(void* data, std::size_t size) : data_(data), size_(size) {}
  ~RealMappedFile() override {
    if (size_ != 0) ::munmap(data_, size_);
  }
  std::span<const std::byte> bytes() const override { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  void* data_;
  std::size_t size_;
};

class RealRandomAccessFile : public RandomAccessFile {
 public:
  RealRandomAccessFile(Descriptor fd, std::string path, bool direct)
      : fd_(std::move(fd)), path_(std::move(path)), direct_(direct) {}

  Status read_at(std::uint64_t offset, std::span<std::byte> out) override {
    while (!out.empty()) {
      const ssize_t got = ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      KV_ASSIGN(const std::size_t good, finish_read(offset, out.size(), got < 0 ? -errno : got));
      offset += good;
      out = out.subspan(good);
      // A direct read that stops within a page has met the end of the file.
      if (direct_ && good % kDirectAlignment != 0) KV_TRY(finish_read(offset, out.size(), 0).status());
    }
    return {};
  }

  Status write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return refused("write", path_, errno);
      offset += static_cast<std::uint64_t>(written);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    return {};
  }

  Status reserve(std::uint64_t offset, std::uint64_t bytes) override {
    if (bytes == 0) return {};
    while (::fallocate(fd_.get(), 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
      if (errno == EINTR) continue;
      if (errno == EOPNOTSUPP || errno == ENOSYS) return {};  // then the write itself says when the disk is full
      return refused("write", path_, errno);
    }
    return {};
  }

  Result<std::uint64_t> size() override {
    struct stat info{};
    if (::fstat(fd_.get(), &info) != 0) return refused("read", path_, errno);
    return static_cast<std::uint64_t>(info.st_size);
  }

  Status sync() override {
    if (::fsync(fd_.get()) != 0) return refused("write", path_, errno);
    return {};
  }

  bool direct() const override { return direct_; }
  int descriptor() const override { return fd_.get(); }

  Result<std::size_t> finish_read(std::uint64_t offset, std::size_t wanted, std::int64_t got) override {
    if (got < 0) return refused("read", path_, static_cast<int>(-got));
    if (got == 0)
      return io_error(fmt::format("cannot read '{}': it ends before byte {}; was it cut short?", path_, offset + wanted));
    return static_cast<std::size_t>(got);
  }

 private:
  Descriptor fd_;
  std::string path_;
  bool direct_;
};

// Opens past the page cache where the file system can, and says whether it could.
Descriptor open_maybe_direct(const std::string& path, int flags, bool try_direct, bool* direct) {
  *direct = try_direct;
  if (try_direct) {
    Descriptor fd(::open(path.c_str(), flags | O_DIRECT, 0600));
    if (fd.open() || errno != EINVAL) return fd;
  }
  *direct = false;
  return Descriptor(::open(path.c_str(), flags, 0600));
}

class RealFileSystem : public FileSystem {
 public:
  Result<std::string> read_file(const std::string& path) override {
    const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.open()) return unreadable(path, errno);
    struct stat info{};
    if (::fstat(fd.get(), &info) != 0) return unreadable(path, errno);
    if (S_ISDIR(info.st_mode)) return unreadable(path, EISDIR);
    // The size is only a hint: pipes have none, and a file may grow. So: read until the end.
    std::string text;
    std::size_t filled = 0;
    text.resize(static_cast<std::size_t>(std::max<off_t>(info.st_size, 0)) + 1);
    while (true) {
      if (filled == text.size()) text.resize(text.size() * 2);
      const ssize_t got = ::read(fd.get(), text.data() + filled, text.size() - filled);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return unreadable(path, errno);
      if (got == 0) break;
      filled += static_cast<std::size_t>(got);
    }
    text.resize(filled);
    return text;
  }

  Result<std::unique_ptr<MappedFile>> map_file(const std::string& path) override {
    const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.open()) return unreadable(path, errno);
    struct stat info{};
    if (::fstat(fd.get(), &info) != 0) return unreadable(path, errno);
    if (S_ISDIR(info.st_mode)) return unreadable(path, EISDIR);
    if (!S_ISREG(info.st_mode)) return bad_input(fmt::format("'{}' is not a regular file, so it cannot be mapped", path));
    const auto size = static_cast<std::size_t>(info.st_size);
    if (size == 0) return std::unique_ptr<MappedFile>(std::make_unique<RealMappedFile>(nullptr, 0));  // mmap refuses length 0
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (data == MAP_FAILED) return refused("map", path, errno);
    return std::unique_ptr<MappedFile>(std::make_unique<RealMappedFile>(data, size));
  }

  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override { return open_for_writing(path, O_TRUNC); }
  Result<std::unique_ptr<WritableFile>> open_append(const std::string& path) override { return open_for_writing(path, O_APPEND); }

  Result<std::unique_ptr<RandomAccessFile>> open_random(const std::string& path, const RandomAccessOptions& options) override {
    bool direct = false;
    if (!options.create) {
      Descriptor fd = open_maybe_direct(path, O_RDONLY | O_CLOEXEC, options.try_direct, &direct);
      if (!fd.open()) return unreadable(path, errno);
      struct stat info{};
      if (::fstat(fd.get(), &info) != 0) return unreadable(path, errno);
      if (!S_ISREG(info.st_mode)) return bad_input(fmt::format("'{}' is not a regular file", path));
      return std::unique_ptr<RandomAccessFile>(std::make_unique<RealRandomAccessFile>(std::move(fd), path, direct));
    }
    if (options.nameless) {
      // Born without a name, so that not even a kill at the wrong moment leaves one.
      const std::string parent = std::filesystem::path(path).parent_path().string();
      Descriptor fd =
          open_maybe_direct(parent.empty() ? "." : parent, O_RDWR | O_TMPFILE | O_CLOEXEC, options.try_direct, &direct);
      if (fd.open())
        return std::unique_ptr<RandomAccessFile>(std::make_unique<RealRandomAccessFile>(std::move(fd), path, direct));
      if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return refused("write", path, errno);
    }
    Descriptor fd = open_maybe_direct(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, options.try_direct, &direct);
    if (!fd.open()) return refused("write", path, errno);
    if (options.nameless && ::unlink(path.c_str()) != 0) return refused("remove", path, errno);
    return std::unique_ptr<RandomAccessFile>(std::make_unique<RealRandomAccessFile>(std::move(fd), path, direct));
  }

  Status rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return refused(fmt::format("rename '{}' to", from), to, errno);
    // The new name survives a power cut only once the folder itself is on disk.
    const std::string parent = std::filesystem::path(to).parent_path().string();
    const Descriptor folder(::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder.open()) ::fsync(folder.get());  // some file systems cannot; the rename itself has happened
    return {};
  }

  Status remove(const std::string& path) override {
    if (std::remove(path.c_str()) != 0) return refused("remove", path, errno);
    return {};
  }

  Status make_directories(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) return refused("make the folder", path, error.value());
    if (!std::filesystem::is_directory(path, error)) return refused("make the folder", path, ENOTDIR);
    return {};
  }

  bool exists(const std::string& path) override {
    struct stat info{};
    return ::stat(path.c_str(), &info) == 0;
  }

  Result<std::vector<std::string>> list(const std::string& directory) override {
    DIR* folder = ::opendir(directory.c_str());
    if (folder == nullptr) {
      if (errno == ENOENT || errno == ENOTDIR)
        return bad_input(fmt::format("there is no folder '{}'; check the path", directory));
      return refused("list", directory, errno);
    }
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(folder)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    const int error = errno;
    ::closedir(folder);
    if (error != 0) return refused("list", directory, error);
    std::sort(names.begin(), names.end());
    return names;
  }

  Result<std::uint64_t> free_bytes(const std::string& path) override {
    std::filesystem::path place = path.empty() ? "." : path;
    struct statvfs info{};
    while (::statvfs(place.c_str(), &info) != 0) {
      if (errno == EINTR) continue;
      if (errno != ENOENT && errno != ENOTDIR) return refused("ask for the free space of", path, errno);
      std::filesystem::path parent = place.has_relative_path() ? place.parent_path() : place;
      if (parent.empty()) parent = ".";
      if (parent == place) return refused("ask for the free space of", path, ENOENT);
      place = std::move(parent);
    }
    return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
  }

 private:
  static Result<std::unique_ptr<WritableFile>> open_for_writing(const std::string& path, int mode) {
    Descriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | mode, 0644));
    if (!fd.open()) return refused("write", path, errno);
    return std::unique_ptr<WritableFile>(std::make_unique<RealWritableFile>(std::move(fd), path));
  }
};

// Of at most five characters: a file name has 255 bytes at most.
std::string process_name() {
  std::string name;
  for (auto number = static_cast<std::uint32_t>(::getpid()); number > 0; number /= 36)
    name += "0123456789abcdefghijklmnopqrstuvwxyz"[number % 36];
  return name;
}

Status write_and_close(WritableFile& file, std::string_view bytes) {
  KV_TRY(file.append(bytes));
  KV_TRY(file.sync());
  return file.close();
}

}  // namespace

FileSystem& FileSystem::real() {
  static RealFileSystem fs;
  return fs;
}

Result<std::string> folder_or_temporary(const std::string& named) {
  if (!named.empty()) return named;
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  if (error) {
    const char* wanted = nullptr;
    for (const char* const name : {"TMPDIR", "TMP", "TEMP", "TEMPDIR"})  // where the library looks, in its order
      if (wanted == nullptr) wanted = std::getenv(name);
    return io_error(
        fmt::format("the temporary folder '{}' is no folder that can be used ({}); set TMPDIR to one, or name one with "
                    "--tier-dir",
                    wanted == nullptr ? "/tmp" : wanted, error.message()));
  }
  return folder.string();
}

Status write_file_atomically(FileSystem& fs, const std::string& path, std::string_view bytes) {
  const std::string unfinished = path + ".tmp" + process_name();
  auto file = fs.create(unfinished);
  if (!file.ok()) return std::move(file).status();
  Status status = write_and_close(**file, bytes);
  file->reset();
  if (status.ok()) status = fs.rename(unfinished, path);
  // Leave nothing half-written behind; that the removal may fail too changes nothing about the error to report.
  if (!status.ok()) static_cast<void>(fs.remove(unfinished).ok());
  return status;
}

}  // namespace kvartet
