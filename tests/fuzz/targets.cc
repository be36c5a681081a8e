#include "targets.h"

namespace kvartet::fuzz {

std::span<const Target> targets() {
  static constexpr Target kTargets[] = {
      {"gguf", feed_gguf}, {"spec", feed_spec}, {"json_lines", feed_json_lines}, {"results", feed_results}};
  return kTargets;
}

}  // namespace kvartet::fuzz
