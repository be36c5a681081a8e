// KV_CHECK: for bugs only, never reachable from input. Says what and where, then ends the process.
#pragma once

namespace kvartet {
[[noreturn]] void check_failed(const char* expression, const char* file, int line);
}  // namespace kvartet

#define KV_CHECK(condition) \
  (static_cast<bool>(condition) ? static_cast<void>(0) : ::kvartet::check_failed(#condition, __FILE__, __LINE__))

#ifdef NDEBUG
#define KV_DCHECK(condition) static_cast<void>(sizeof(condition))
#else
#define KV_DCHECK(condition) KV_CHECK(condition)
#endif
