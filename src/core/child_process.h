// Another program, or this one again, as a process: fed from memory, read to its end, never left behind.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace kvartet {

struct ChildRequest {
  std::vector<std::string> command = {};      // the program's path, then its arguments
  std::string_view input = {};                // its standard input
  double limit_s = 0;                         // it is killed after so many seconds; 0: never
  const std::atomic<bool>* cancel = nullptr;  // set: it is killed, and the call ends with kCancelled
};

struct ChildResult {
  int exit_code = -1;      // -1: it did not end by itself
  int signal = 0;          // that ended it; 0: none
  bool timed_out = false;  // over limit_s, and killed
  std::string out;         // standard output
  std::string err;         // the end of standard error, at most kChildErrorBytes

  bool ok() const { return exit_code == 0; }
};

inline constexpr std::size_t kChildErrorBytes = 4096;
inline constexpr std::size_t kChildOutputBytes = std::size_t{64} << 20;  // more ends the child: it has gone mad

// Waits for its end. The environment is this process's. kIo: it cannot be started, or its output is beyond all bounds;
// kCancelled.
Result<ChildResult> run_child(const ChildRequest& request);

// "was ended by signal 9 (Killed)", "ended with exit code 3: <the last line it wrote to standard error>", "took longer than
// 30 s and was stopped". Only for one that is not ok().
std::string how_it_ended(const ChildResult& result, double limit_s);

}  // namespace kvartet
