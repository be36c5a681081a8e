// Tasks needle and multineedle:k=4: facts of our own at chosen depths of long text, asked for at the end.
#pragma once

#include "bench/tasks/task.h"

namespace kvartet {

TaskEntry needle_task();
TaskEntry multineedle_task();

}  // namespace kvartet
