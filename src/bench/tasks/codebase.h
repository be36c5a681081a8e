// Task codebase: functions that return what functions of other files return, asked for by the handful. Context-intensive:
// every answer needs `hops` look-ups (offloading.md 13.1).
#pragma once

#include "bench/tasks/task.h"

namespace kvartet {

TaskEntry codebase_task();

}  // namespace kvartet
