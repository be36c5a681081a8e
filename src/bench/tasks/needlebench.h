// MultiNeedle in NeedleBench's form (offloading.md 13.3) from the user's files: DATA/needlebench/needles.jsonl and
// PaulGrahamEssays.jsonl. Needles, depths and score are NeedleBench's; the order of essays and needles comes from our own
// seeds, needles stand at sentence borders, and the length is --context, so prompts are not the published ones.
#pragma once

#include "bench/tasks/task.h"

namespace kvartet {

TaskEntry needlebench_task();  // needlebench/multineedle:k=11

}  // namespace kvartet
