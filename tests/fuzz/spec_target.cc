// Cache specs and task specs: canonical forms stand for themselves, refusals are one printable line.
#include <algorithm>
#include <memory>
#include <string>

#include "bench/tasks/task.h"
#include "cache/sequence_cache.h"
#include "cache/spec.h"
#include "core/check.h"
#include "targets.h"

namespace kvartet::fuzz {
namespace {

constexpr int kTokens = 300;
constexpr int kSteps = 10;

void check_refusal(const Status& status) {
  KV_CHECK(status.code() == Code::kUsage);
  KV_CHECK(!status.message().empty());
}

ModelShape shape_of(int head_dim, int window) {
  ModelShape shape;
  shape.context = 8192;
  shape.hidden = 256;
  shape.layers.assign(4, {.heads = 4, .kv_heads = 2, .head_dim = head_dim, .window = window});
  return shape;
}

void feed_cache_spec(std::string_view text) {
  const Result<CacheSpec> spec = parse_spec(text);
  if (!spec.ok()) {
    check_refusal(spec.status());
    // The command line blanks what is left, but no byte of the text may come through as a control character.
    const auto control = [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; };
    KV_CHECK(std::none_of(spec.status().message().begin(), spec.status().message().end(), control));
    return;
  }
  const Result<CacheSpec> again = parse_spec(spec->canonical);
  KV_CHECK(again.ok());
  KV_CHECK(*again == *spec);
  for (const int head_dim : {64, 80, 128}) {
    const ModelShape shape = shape_of(head_dim, head_dim == 128 ? 100 : 0);
    const Status fits = check_spec(*spec, shape);
    if (!fits.ok()) {
      check_refusal(fits);
      continue;
    }
    const Result<ByteAccount> bytes = predict_bytes(*spec, shape, kTokens, kSteps);
    KV_CHECK(bytes.ok() || bytes.status().code() == Code::kUsage);
  }
}

void feed_task_spec(std::string_view text, std::string_view metric) {
  const Result<std::unique_ptr<Task>> task = make_task(text, metric);
  if (!task.ok()) return check_refusal(task.status());
  const Result<std::unique_ptr<Task>> again = make_task((*task)->spec(), metric);
  KV_CHECK(again.ok());
  KV_CHECK((*again)->spec() == (*task)->spec());
  KV_CHECK((*again)->metric() == (*task)->metric());
}

}  // namespace

void feed_spec(std::string_view bytes) {
  feed_cache_spec(bytes);
  feed_task_spec(bytes, "");
  feed_task_spec(bytes, "f1");
}

}  // namespace kvartet::fuzz
