// What planning a task left out, said before it runs.
#pragma once

#include <span>

#include "bench/runner/benchmark.h"

namespace kvartet {

// Lines of a file that are no records, and whatever else a task has to say of itself.
void print_task_notes(std::span<const PlannedTask> plan);

}  // namespace kvartet
