// LongProc's HTML-to-TSV (offloading.md 13.4) from the user's files: DATA/longproc/html_to_tsv_{0.5k,2k,8k}.json, the pages
// they name, and prompts.yaml.
#pragma once

#include "bench/tasks/task.h"

namespace kvartet {

// longproc/html_to_tsv:group=8k
TaskEntry html_to_tsv_task();

}  // namespace kvartet
