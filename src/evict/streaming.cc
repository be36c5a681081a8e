#include "evict/streaming.h"

#include <algorithm>
#include <cstddef>

#include "core/check.h"

namespace kvartet {

int streaming_rows(int seen, const StreamingOptions& options) {
  return static_cast<int>(std::min<std::int64_t>(seen, std::int64_t{options.sinks} + options.window));
}

int streaming_slot(int position, const StreamingOptions& options) {
  if (position < options.sinks) return position;
  return options.sinks + (position - options.sinks) % options.window;
}

int streaming_position(int slot, int seen, const StreamingOptions& options) {
  KV_DCHECK(slot < streaming_rows(seen, options));
  if (slot < options.sinks) return slot;
  return slot + (seen - 1 - slot) / options.window * options.window;
}

KeepPlan streaming_plan(int seen, int kv_heads, const StreamingOptions& options) {
  KV_CHECK(options.sinks >= 0 && options.window >= 1);
  std::vector<std::int32_t> kept;
  const int rows = streaming_rows(seen, options);
  const int sinks = std::min(options.sinks, rows);
  for (int p = 0; p < sinks; ++p) kept.push_back(p);
  for (int p = seen - (rows - sinks); p < seen; ++p) kept.push_back(p);
  return {std::vector<std::vector<std::int32_t>>(static_cast<std::size_t>(kv_heads), kept)};
}

}  // namespace kvartet
