#include "cli/task_notes.h"

#include <fmt/format.h>

#include "cli/command.h"
#include "core/counted.h"

namespace kvartet {

void print_task_notes(std::span<const PlannedTask> plan) {
  for (const PlannedTask& task : plan) {
    for (const SkippedLine& line : task.skipped) print_note(fmt::format("{}: {}; left out", line.where(), line.reason));
    if (!task.skipped.empty()) {
      print_note(fmt::format("{}: {} used, {} left out", task.task, counted(task.samples.size(), "record"),
                             counted(task.skipped.size(), "line")));
    }
    if (!task.note.empty()) print_note(task.note);
  }
}

}  // namespace kvartet
