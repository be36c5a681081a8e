#include "core/parallel_for.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

namespace kvartet {
namespace {

TEST(ParallelFor, RunsEveryTaskOnceOnAWorkerOfTheTeam) {
  for (const int threads : {0, 1, 2, 3, 7, 16}) {
    for (const int count : {0, 1, 2, 5, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      std::atomic<int> strangers{0};
      parallel_for(threads, count, [&](int index, int worker) {
        ++runs.at(static_cast<std::size_t>(index));
        if (worker < 0 || worker >= std::max(threads, 1)) ++strangers;
      });
      for (const auto& run : runs) EXPECT_EQ(run.load(), 1) << threads << " threads, " << count << " tasks";
      EXPECT_EQ(strangers.load(), 0);
    }
  }
}

// Workers may keep scratch memory by number: so no two tasks of one worker may overlap.
TEST(ParallelFor, AWorkerRunsOneTaskAtATime) {
  constexpr int kThreads = 7;
  std::vector<std::atomic<bool>> busy(kThreads);
  std::atomic<int> overlaps{0};
  parallel_for(kThreads, 5000, [&](int, int worker) {
    if (busy.at(static_cast<std::size_t>(worker)).exchange(true)) ++overlaps;
    busy.at(static_cast<std::size_t>(worker)).store(false);
  });
  EXPECT_EQ(overlaps.load(), 0);
}

// DESIGN 4: same bits for any thread count. Partial sums at fixed borders, merged in task order.
TEST(ParallelFor, FixedBordersGiveTheSameBitsForAnyTeam) {
  constexpr int kChunk = 128;
  std::vector<float> numbers(10000);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = 1.0F / static_cast<float>(i + 1);
  const int chunks = (static_cast<int>(numbers.size()) + kChunk - 1) / kChunk;
  const auto sum = [&](int threads) {
    std::vector<float> partial(static_cast<std::size_t>(chunks));
    parallel_for(threads, chunks, [&](int index, int) {
      const auto begin = numbers.begin() + index * kChunk;
      const auto end = numbers.begin() + std::min<std::ptrdiff_t>(std::ssize(numbers), (index + 1) * kChunk);
      partial[static_cast<std::size_t>(index)] = std::accumulate(begin, end, 0.0F);
    });
    return std::accumulate(partial.begin(), partial.end(), 0.0F);
  };
  const float alone = sum(1);
  for (const int threads : {2, 3, 7, 16}) EXPECT_EQ(sum(threads), alone) << threads << " threads";
}

TEST(PhysicalCores, IsAtLeastOneAndAtMostTheProcessorsHere) {
  EXPECT_GE(physical_cores(), 1);
  EXPECT_LE(physical_cores(), static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace
}  // namespace kvartet
