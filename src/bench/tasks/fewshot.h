// Task fewshot: classification learned from examples in the prompt, in the form of LongBench's trec.
#pragma once

#include "bench/tasks/task.h"

namespace kvartet {

TaskEntry fewshot_task();

}  // namespace kvartet
