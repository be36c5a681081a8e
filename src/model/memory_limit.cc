#include "model/memory_limit.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

namespace kvartet {
namespace {

constexpr std::uint64_t kUnlimited = UINT64_MAX;

// The number after `label` and blanks, in text of "label number" lines.
std::optional<std::uint64_t> number_after(std::string_view text, std::string_view label) {
  const std::size_t at = text.find(label);
  if (at == text.npos) return std::nullopt;
  std::string_view rest = text.substr(at + label.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<std::uint64_t> number_in(FileSystem& fs, const std::string& path, std::string_view label = "") {
  Result<std::string> text = fs.read_file(path);
  return text.ok() ? number_after(*text, label) : std::nullopt;
}

std::uint64_t machine_memory(FileSystem& fs) {
  const auto kib = number_in(fs, "/proc/meminfo", "MemAvailable:");
  return kib ? *kib * 1024 : kUnlimited;
}

struct ControlGroupFiles {
  const char* limit;
  const char* usage;
  const char* stat;
  const char* page_cache;  // label of reclaimable file pages in `stat`
};
constexpr ControlGroupFiles kVersion2 = {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current",
                                         "/sys/fs/cgroup/memory.stat", "\nfile "};
constexpr ControlGroupFiles kVersion1 = {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
                                         "/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat",
                                         "\ntotal_cache "};

std::uint64_t group_memory(FileSystem& fs, const ControlGroupFiles& files) {
  const auto limit = number_in(fs, files.limit);  // "max" is no number: unlimited
  const auto usage = number_in(fs, files.usage);
  if (!limit || !usage) return kUnlimited;
  const std::uint64_t cache = std::min(number_in(fs, files.stat, files.page_cache).value_or(0), *usage);
  const std::uint64_t held = *usage - cache;
  return *limit > held ? *limit - held : 0;
}

}  // namespace

std::uint64_t available_memory(FileSystem& fs) {
  return std::min({machine_memory(fs), group_memory(fs, kVersion2), group_memory(fs, kVersion1)});
}

}  // namespace kvartet
