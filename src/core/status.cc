#include "core/status.h"

#include <cstdio>
#include <cstdlib>

namespace kvartet {

int exit_code(Code code) {
  switch (code) {
    case Code::kOk: return 0;
    case Code::kUsage: return 2;
    case Code::kBadInput: return 3;
    case Code::kExhausted: return 4;
    case Code::kIo: return 5;
    case Code::kCancelled: return 130;
    case Code::kInternal: return 1;
  }
  return 1;
}

void check_failed(const char* expression, const char* file, int line) {
  std::fprintf(stderr, "kvartet: a bug: %s does not hold (%s:%d). Please report it.\n", expression, file, line);
  std::abort();
}

}  // namespace kvartet
