// How a benchmark says how far it is: on a terminal one line that is rewritten, elsewhere a line now and then.
#pragma once

#include "bench/runner/benchmark.h"
#include "bench/runner/progress_lines.h"
#include "bench/runner/solo.h"

namespace kvartet {

void show_bench_progress(const BenchmarkProgress& progress, ProgressLines* lines);
void show_solo_progress(const SoloProgress& progress, ProgressLines* lines);

}  // namespace kvartet
