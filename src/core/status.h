// Status and Result<T>: how everything that can fail says so.
//
// A Status is either ok or a code with one sentence for the user: what happened, with the values, and a hint.
// Bugs are not a Status: see core/check.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/check.h"

namespace kvartet {

enum class Code : std::uint8_t {
  kOk = 0,
  kUsage,      // a flag or spec that makes no sense: exit 2
  kBadInput,   // a file or text that is damaged or not what it should be: exit 3
  kExhausted,  // memory, space or context does not suffice: exit 4
  kIo,         // the operating system refused: exit 5
  kCancelled,  // the user interrupted: exit 130
  kInternal,   // anything else: exit 1
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // Adds where it happened in front of the sentence: "layer 3: ...".
  Status within(std::string_view place) && {
    if (!ok()) message_ = std::string(place) + ": " + message_;
    return std::move(*this);
  }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status usage_error(std::string m) { return {Code::kUsage, std::move(m)}; }
inline Status bad_input(std::string m) { return {Code::kBadInput, std::move(m)}; }
inline Status exhausted(std::string m) { return {Code::kExhausted, std::move(m)}; }
inline Status io_error(std::string m) { return {Code::kIo, std::move(m)}; }
inline Status cancelled(std::string m) { return {Code::kCancelled, std::move(m)}; }
inline Status internal_error(std::string m) { return {Code::kInternal, std::move(m)}; }

// The process exit code for a status code (DESIGN: command line).
int exit_code(Code code);

// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                                    // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) { KV_CHECK(!status_.ok()); }  // NOLINT: implicit on purpose

  bool ok() const { return value_.has_value(); }
  const Status& status() const& { return status_; }
  Status status() && { return std::move(status_); }

  T& value() & {
    KV_CHECK(ok());
    return *value_;
  }
  const T& value() const& {
    KV_CHECK(ok());
    return *value_;
  }
  T&& value() && {
    KV_CHECK(ok());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace kvartet

// Returns early when `expr`, a Status, is not ok.
#define KV_TRY(expr)                               \
  do {                                             \
    ::kvartet::Status kv_try_status = (expr);      \
    if (!kv_try_status.ok()) return kv_try_status; \
  } while (false)

#define KV_CONCAT_INNER(a, b) a##b
#define KV_CONCAT(a, b) KV_CONCAT_INNER(a, b)

// KV_ASSIGN(auto x, make_x()): returns early when the Result holds no value.
#define KV_ASSIGN(lhs, expr) KV_ASSIGN_INNER(KV_CONCAT(kv_result_, __LINE__), lhs, expr)
#define KV_ASSIGN_INNER(tmp, lhs, expr)          \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = std::move(tmp).value()
