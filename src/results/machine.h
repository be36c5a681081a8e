// Facts about the machine and the build that a timing cannot be read without.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvartet {

struct Machine {
  std::string cpu;  // "Intel(R) Xeon(R) ..."
  int cores = 0;    // physical cores this process may use
  std::int64_t memory_bytes = 0;
  std::string compiler;  // "g++ 12.2.0"
};

// Asks the operating system; what it does not tell stays "unknown" or 0.
Machine this_machine();

// The model name in the text of /proc/cpuinfo, "unknown" when it names none.
std::string cpu_name(std::string_view cpuinfo);

// The most memory this process ever had resident since its program was started, weights and all; 0 where the system does not
// tell. Not getrusage's figure, which also counts what the process that started it had.
std::int64_t peak_resident_bytes();
// What is resident now: the peak also holds what prefill needed and gave back.
std::int64_t resident_bytes();

// This build's version.
std::string kvartet_version();

// Now, as "2025-01-31T12:00:00Z".
std::string utc_timestamp();

}  // namespace kvartet
