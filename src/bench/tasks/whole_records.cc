#include "bench/tasks/whole_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "core/counted.h"
#include "core/utf8.h"

namespace kvartet {

Result<SampleSet> whole_records(const TaskRequest& request, const std::string& file, std::size_t count,
                                const std::function<Result<Sample>(std::size_t)>& make,
                                const std::function<int(std::size_t)>& line) {
  SampleSet set;
  std::set<std::string> ids;
  int shortest = std::numeric_limits<int>::max();
  const auto skip = [&](std::size_t i, std::string reason) { set.skipped.push_back({file, line(i), std::move(reason)}); };
  for (std::size_t i = 0; i < count; ++i) {
    if (request.samples > 0 && set.samples.size() == static_cast<std::size_t>(request.samples)) break;
    Result<Sample> sample = make(i);
    if (!sample.ok()) {
      skip(i, sample.status().message());
      continue;
    }
    const std::string prompt = sample->prompt();
    if (!is_valid_utf8(prompt)) {
      skip(i, "the text is not UTF-8");
      continue;
    }
    if (!ids.insert(sample->id).second) {
      skip(i, fmt::format("repeats the id {}", sample->id));
      continue;
    }
    if (request.context_tokens > 0 && request.count_tokens) {
      // The context leaves room for max_new_tokens; a gold text that is longer needs more.
      KV_ASSIGN(const int gold, request.count_tokens(sample->gold));
      KV_ASSIGN(int tokens, request.count_tokens(prompt));
      tokens += std::max(0, gold - sample->max_new_tokens);
      shortest = std::min(shortest, tokens);
      if (tokens > request.context_tokens) {
        skip(i, fmt::format("the prompt of {} tokens does not fit the {} that remain for it", tokens, request.context_tokens));
        continue;
      }
    }
    set.samples.push_back(std::move(*sample));
  }
  if (!set.samples.empty()) return set;
  if (count == 0) return bad_input(fmt::format("{} holds no records", file));
  if (shortest < std::numeric_limits<int>::max()) {
    return exhausted(
        fmt::format("Not one of the {} of {} fits: the shortest prompt has {} tokens, and {} remain for it; give a "
                    "larger --context.",
                    counted(count, "record"), file, shortest, request.context_tokens));
  }
  return bad_input(
      fmt::format("no record of {} is usable; the first: {}: {}", file, set.skipped.front().where(), set.skipped.front().reason));
}

}  // namespace kvartet
