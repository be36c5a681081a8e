// Generated stand-ins for question answering over documents: one fact (docqa), two facts in documents apart (multihop), a
// conversation about one context (chat).
#pragma once

#include "bench/tasks/task.h"

namespace kvartet {

TaskEntry docqa_task();
TaskEntry multihop_task();
TaskEntry chat_task();

}  // namespace kvartet
