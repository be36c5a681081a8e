// A user's own records as a task: `my.jsonl` or `my.jsonl:max_new=64`, with a metric named beside it.
#pragma once

#include <string_view>

#include "bench/tasks/task.h"

namespace kvartet {

// Is this task name the path of a record file (it ends in .jsonl)?
bool is_record_file(std::string_view task_name);

// Each record's prompt is its `context`, an empty line, and its `input`. The file is read by Task::samples.
// kUsage: no or an unknown metric, an unknown key, a bad value.
Result<std::unique_ptr<Task>> make_own_file_task(const TaskSpec& spec, std::string_view metric);

}  // namespace kvartet
