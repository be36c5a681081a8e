// Text2JSON (offloading.md 13.2): a table of facts scattered over a long text is to be written down as a JSON array.
//
//   text2json                 our generator in the paper's shape: prompts of 10,000 to 63,500 tokens, 3 to 20 entries
//   text2json:shape=scaled    the same filling --context, with fewer entries in shorter texts
//   text2json/released        the user's copy of the released file (--data DIR/text2json/*.jsonl, problem and answer)
//   ...:scorer=strict         fails on what the released scorer fails on (default robust)
#pragma once

#include <vector>

#include "bench/tasks/task.h"

namespace kvartet {

std::vector<TaskEntry> text2json_tasks();

}  // namespace kvartet
