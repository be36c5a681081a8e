#include "engine/unfinished_file.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <string_view>
#include <utility>

namespace kvartet {
namespace {

constexpr std::string_view kEnding = ".unfinished";
constexpr std::size_t kRandomDigits = 16;

bool all_of_text(std::string_view text, std::string_view allowed) {
  return !text.empty() && text.find_first_not_of(allowed) == std::string_view::npos;
}

// Ours alone: NAME.<digits>-<16 hex digits>.unfinished.
bool is_unfinished_name(std::string_view name) {
  if (!name.ends_with(kEnding)) return false;
  name.remove_suffix(kEnding.size());
  const std::size_t dash = name.rfind('-');
  if (dash == std::string_view::npos || name.size() - dash - 1 != kRandomDigits) return false;
  if (!all_of_text(name.substr(dash + 1), "0123456789abcdef")) return false;
  const std::size_t dot = name.rfind('.', dash);
  return dot != std::string_view::npos && dot > 0 && all_of_text(name.substr(dot + 1, dash - dot - 1), "0123456789");
}

// A file without a descriptor (in memory) has no locks, and one that is gone has no names.
bool has_name(int descriptor) {
  struct stat info{};
  return ::fstat(descriptor, &info) == 0 && info.st_nlink > 0;
}

// Waits for whoever just looks whether the file is abandoned. That a file system has no locks is no error: nobody can take one.
void lock(int descriptor) {
  while (::flock(descriptor, LOCK_EX) != 0 && errno == EINTR) {}
}

bool is_abandoned(RandomAccessFile& file) {
  const int descriptor = file.descriptor();
  return descriptor >= 0 && ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 && has_name(descriptor);
}

}  // namespace

std::string unfinished_name(const std::string& path) {
  std::random_device device;
  const std::uint64_t random = (std::uint64_t{device()} << 32) | device();
  return fmt::format("{}.{}-{:0{}x}{}", path, getpid(), random, kRandomDigits, kEnding);
}

Result<std::unique_ptr<RandomAccessFile>> create_unfinished(FileSystem& files, const std::string& path) {
  for (;;) {
    KV_ASSIGN(std::unique_ptr<RandomAccessFile> file, files.open_random(path, {.create = true}));
    if (file->descriptor() < 0) return file;
    lock(file->descriptor());
    // Somebody may have found the file between these two steps, and removed it as abandoned.
    if (has_name(file->descriptor())) return file;
  }
}

int remove_abandoned(FileSystem& files, const std::string& directory) {
  const Result<std::vector<std::string>> names = files.list(directory);
  if (!names.ok()) return 0;
  int removed = 0;
  for (const std::string& name : *names) {
    if (!is_unfinished_name(name)) continue;
    const std::string path = directory + "/" + name;
    const Result<std::unique_ptr<RandomAccessFile>> file = files.open_random(path, {.create = false});
    // The lock is held while the name goes: whoever creates the file anew then waits, and sees that its own has none.
    if (file.ok() && is_abandoned(**file) && files.remove(path).ok()) ++removed;
  }
  return removed;
}

}  // namespace kvartet
