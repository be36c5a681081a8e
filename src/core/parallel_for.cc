#include "core/parallel_for.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>
#ifdef KVARTET_STD_THREAD
#include <thread>
#else
#include <omp.h>
#endif

namespace kvartet {

void parallel_for(int threads, int count, const std::function<void(int, int)>& task) {
  if (threads <= 1 || count <= 1) {
    for (int i = 0; i < count; ++i) task(i, 0);
    return;
  }
  std::atomic<int> next{0};
  auto work = [&](int worker) {
    for (int i = next.fetch_add(1); i < count; i = next.fetch_add(1)) task(i, worker);
  };
#ifdef KVARTET_STD_THREAD
  std::vector<std::thread> team;
  for (int worker = 1; worker < threads; ++worker) team.emplace_back(work, worker);
  work(0);
  for (std::thread& t : team) t.join();
#else
  // Every region uses the whole team: libgomp ends and re-creates threads when team sizes alternate.
#pragma omp parallel num_threads(threads)
  work(omp_get_thread_num());
#endif
}

int physical_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 1;
  std::set<std::pair<int, int>> cores;  // (package, core): hyper-threads of one core count once
  int logical = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    ++logical;
    const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    int package = -1;
    int core = -1;
    std::ifstream(topology + "physical_package_id") >> package;
    std::ifstream(topology + "core_id") >> core;
    if (core < 0) core = cpu;
    cores.emplace(package, core);
  }
  return std::max(1, std::min(logical, static_cast<int>(cores.size())));
}

}  // namespace kvartet
