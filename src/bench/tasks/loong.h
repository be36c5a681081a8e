// Loong (offloading.md 13.5) from the user's files, as far as it needs no judge: DATA/loong/loong.jsonl and
// DATA/loong/doc/{financial,legal,paper}/. Its own metric is a rating by a judge model; records whose answer is a JSON
// structure (clusters, citation lists) are scored by comparing structures, the others are left out and counted.
#pragma once

#include "bench/tasks/task.h"

namespace kvartet {

TaskEntry loong_task();  // loong:language=en

}  // namespace kvartet
