// Times of each cache alone (compression.md 14): one prompt of each task and context, each cache several times, in turns.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bench/runner/benchmark.h"
#include "core/clock.h"
#include "results/store.h"

namespace kvartet {

// Fewer repeats are stored and shown, with a word of caution.
inline constexpr int kSoloRepeats = 5;

// More are a mistake: weeks, and no better a median.
inline constexpr int kMostSoloRepeats = 10'000;

// The tasks that are timed: of two positions of the question the first, since times hardly differ.
std::vector<const PlannedTask*> solo_tasks(std::span<const PlannedTask> plan);

// The prompt of median length, the first of several; null when there is none.
const PreparedSample* representative_sample(const PlannedTask& task);

struct SoloWork {
  const PlannedTask* task = nullptr;
  std::vector<CacheSpec> specs;
};

struct SoloProgress {
  Cell cell;
  std::string spec;
  int done = 0;
  int total = 0;
  double seconds_left = -1;  // -1: unknown yet
};

struct SoloHooks {
  // run_alone bound to a program. Fails only when no cache can be run at all, and with kCancelled.
  std::function<Result<SoloRun>(const PreparedSample&, const CacheSpec&, double limit_s)> measure;
  std::function<void(const SoloProgress&)> progress;  // may be empty
  const std::atomic<bool>* cancel = nullptr;
  const Clock* clock = &Clock::real();
};

struct SoloSummary {
  int run = 0;
  int resumed = 0;                 // found in the store
  int failed = 0;                  // of this run
  std::vector<std::string> notes;  // texts that differ from the shared ones, caches that are left out: one sentence each
  bool cancelled = false;          // what was finished before is in the store
};

// Each finished run is stored at once; what the store has is not run again, unless it failed. A cache that failed on the prompt
// in company is not tried alone. Where runs of a cell are in the store, its prompt stays the same, so that repeats belong
// together. kIo: the store cannot be written, or no process started.
Result<SoloSummary> run_solo(std::span<const SoloWork> work, int repeats, Store& store, const SoloHooks& hooks);

}  // namespace kvartet
