// The eleven tasks of RULER (Hsieh et al., arXiv 2404.06654) that need no third-party text: eight needle tasks, variable
// tracking, common words, frequent words. Shapes, counts, answer lengths and the string-match score are RULER's; the
// wording, the word lists and the random draws are ours, so scores are near RULER's but not the same figures.
#pragma once

#include <memory>
#include <vector>

#include "bench/tasks/task.h"

namespace kvartet {

std::vector<TaskEntry> ruler_tasks();

// kUsage: not one of the eleven (naming the nearest), or any key.
Result<std::unique_ptr<Task>> make_ruler_task(const TaskSpec& spec);

// The three of ruler_lists.cc; spec is "ruler/vt", ...
std::unique_ptr<Task> make_ruler_variable_tracking(std::string spec);
std::unique_ptr<Task> make_ruler_common_words(std::string spec);
std::unique_ptr<Task> make_ruler_frequent_words(std::string spec);

}  // namespace kvartet
