#include "results/machine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string_view>

#include "core/parallel_for.h"

namespace kvartet {
namespace {

std::string compiler_name() {
#if defined(__clang__)
  return fmt::format("clang++ {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
  return fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
  return "unknown";
#endif
}

// "model name : X" on x86; ARM boards name the chip under "Hardware" or "CPU part".
std::string value_of(std::string_view text, std::string_view key) {
  for (std::size_t at = text.find(key); at != std::string_view::npos; at = text.find(key, at + 1)) {
    if (at != 0 && text[at - 1] != '\n') continue;
    const std::size_t line_end = std::min(text.find('\n', at), text.size());
    const std::size_t colon = text.find(':', at);
    if (colon == std::string_view::npos || colon >= line_end) continue;
    std::string_view value = text.substr(colon + 1, line_end - colon - 1);
    while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) value.remove_prefix(1);
    while (!value.empty() && value.back() == ' ') value.remove_suffix(1);
    if (!value.empty()) return std::string(value);
  }
  return {};
}

// A line of this process's status, "VmHWM:     1234 kB".
std::int64_t process_bytes(std::string_view key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return std::strtoll(line.c_str() + key.size(), nullptr, 10) * 1024;
  }
  return 0;
}

}  // namespace

std::string cpu_name(std::string_view cpuinfo) {
  for (const char* key : {"model name", "Hardware", "CPU part"}) {
    std::string value = value_of(cpuinfo, key);
    if (!value.empty()) return value;
  }
  return "unknown";
}

Machine this_machine() {
  std::ifstream file("/proc/cpuinfo");
  const std::string cpuinfo{std::istreambuf_iterator<char>(file), {}};
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page = sysconf(_SC_PAGESIZE);
  return {
      .cpu = cpu_name(cpuinfo),
      .cores = physical_cores(),
      .memory_bytes = pages > 0 && page > 0 ? std::int64_t{pages} * page : 0,
      .compiler = compiler_name(),
  };
}

std::int64_t peak_resident_bytes() { return process_bytes("VmHWM:"); }

std::int64_t resident_bytes() { return process_bytes("VmRSS:"); }

std::string kvartet_version() { return "0.1.0"; }

std::string utc_timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour,
                     utc.tm_min, utc.tm_sec);
}

}  // namespace kvartet
