// Record tasks whose texts must not be cut: records that exceed the context are named, never truncated.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "bench/tasks/task.h"

namespace kvartet {

// Records 0 to `count` - 1 of `file` in order, as far as request.samples asks for. `make(i)` gives a sample or the reason
// why there is none; `line(i)` says where in the file it stands. Both kinds of unused records are in `skipped`.
// kBadInput: not one record is usable; kExhausted: not one of the usable ones fits request.context_tokens.
Result<SampleSet> whole_records(const TaskRequest& request, const std::string& file, std::size_t count,
                                const std::function<Result<Sample>(std::size_t)>& make,
                                const std::function<int(std::size_t)>& line);

}  // namespace kvartet
