// Task contracts: numbered clauses that refer to each other by number, asked for by the handful. Context-intensive: every
// answer needs two look-ups (offloading.md 13.1).
#pragma once

#include "bench/tasks/task.h"

namespace kvartet {

TaskEntry contracts_task();

}  // namespace kvartet
