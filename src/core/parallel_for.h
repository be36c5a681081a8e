// One way to run independent tasks on several threads.
//
// Work is cut by the caller at borders that do not depend on the thread count, each task writes its own output, and
// partial results are merged in task order: so the bits are the same for any number of threads.
// Back end: OpenMP (the runtime ggml uses: one compute thread must own every region), or std::thread when
// KVARTET_STD_THREAD is defined (thread sanitizer does not understand libgomp).
#pragma once

#include <functional>

namespace kvartet {

// Runs task(index, worker) for index in [0, count); worker in [0, threads). Tasks must not throw.
void parallel_for(int threads, int count, const std::function<void(int index, int worker)>& task);

// Physical cores of this machine that this process may use: the default for --threads.
int physical_cores();

}  // namespace kvartet
