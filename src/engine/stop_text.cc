#include "engine/stop_text.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace kvartet {

StopText::StopText(std::vector<std::string> stops) {
  for (std::string& stop : stops) add_stop(std::move(stop));
}

void StopText::add_stop(std::string stop) {
  KV_CHECK(!stop.empty());
  stops_.push_back({std::move(stop), held_.size()});
}

std::string StopText::push(std::string_view text) {
  if (stopped_) return {};
  std::size_t end = held_.size();
  held_.append(text);
  while (end < held_.size()) {
    const std::size_t length = completed_stop(++end);
    if (length == 0) continue;
    stopped_ = true;
    held_.resize(end - length);
    return std::exchange(held_, {});
  }
  const std::size_t certain = held_.size() - begun_stop();
  std::string out = held_.substr(0, certain);
  held_.erase(0, certain);
  for (Stop& stop : stops_) stop.first -= std::min(stop.first, certain);
  return out;
}

std::string StopText::finish() { return std::exchange(held_, {}); }

std::size_t StopText::completed_stop(std::size_t end) const {
  const std::string_view seen = std::string_view(held_).substr(0, end);
  std::size_t longest = 0;
  for (const Stop& stop : stops_) {
    if (stop.text.size() > longest && seen.ends_with(stop.text) && end - stop.text.size() >= stop.first)
      longest = stop.text.size();
  }
  return longest;
}

std::size_t StopText::begun_stop() const {
  std::size_t longest = 0;
  for (const Stop& stop : stops_) {
    const std::size_t most = std::min(stop.text.size() - 1, held_.size() - stop.first);
    for (std::size_t n = most; n > longest; --n) {
      if (std::string_view(held_).ends_with(std::string_view(stop.text).substr(0, n))) longest = n;
    }
  }
  return longest;
}

}  // namespace kvartet
