// How fast: prefill and decode rates by cache and depth, and llama.cpp's on the same model in the same rounds.
//
// Machines are shared and noisy, so engines and caches take turns inside every round and only medians of a run and their
// ratios mean something; the plain read bandwidth and the multiply-add rate of the same rounds stand beside them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/disk_rates.h"
#include "cache/spec.h"
#include "core/arena.h"
#include "core/bytes.h"
#include "core/status.h"
#include "engine/engine.h"

namespace kvartet {

// How a cache reaches its depth before decode is measured.
enum class Fill : std::uint8_t {
  kPrefill,  // a real prompt
  kDirect,   // random rows: for depths and models whose prefill would take too long; prefill is then not measured
};

struct SpeedOptions {
  std::string model_path;
  int threads = 1;
  std::size_t fast_tier_bytes = Arena::kNoCap;  // cap over all of our caches
  std::string tier_directory;                   // for the files of tier=mmap and tier=disk; "": the system's temporary folder
  std::vector<CacheSpec> specs;
  std::vector<int> depths;  // tokens in the cache before decode; prefill at depth N is N tokens from empty
  Fill fill = Fill::kPrefill;
  int gen = 32;  // tokens decoded per measurement
  int prefill_rounds = 3;
  int decode_rounds = 5;
  bool peer = false;  // also llama.cpp: decode for f16, q8_0, q4_0, prefill for f16, flash attention on and off
  const std::atomic<bool>* cancel = nullptr;
  std::function<void(std::string_view what)> progress;
};

// Where one decode step's time goes, means over all rounds, and the bytes it reads at least.
struct StepBreakdown {
  DecodeTimes times;             // seconds per step, medians of the rounds
  std::int64_t layer_bytes = 0;  // weights of the linear layers
  std::int64_t head_bytes = 0;   // weights behind the logits
  std::int64_t cache_bytes = 0;  // that attention reads: live bytes of the cache at this depth, or of the rows that a step chose
  ByteAccount held;              // by the cache after the last round
  // Between the tiers, sums over all rounds and their steps; zero and "" without a slow tier.
  RowTraffic traffic;
  int steps = 0;
  std::string slow_medium;
};

inline constexpr const char* kOwnEngine = "kvartet";

struct SpeedRow {
  std::string engine;  // kOwnEngine or "llama.cpp"
  std::string spec;    // llama.cpp: its KV type and flash attention, the better of the two
  std::string phase;   // "prefill" or "decode"
  int depth = 0;
  double tokens_per_s = 0;                 // median of runs
  std::vector<double> runs;                // one per round
  std::optional<StepBreakdown> breakdown;  // our decode rows
};

struct SpeedReport {
  double read_gb_per_s = 0;  // median over the rounds
  std::vector<double> read_runs;
  double compute_gflop_per_s = 0;  // likewise (simd/compute_rate.h)
  std::vector<double> compute_runs;
  // Of this process, with every cache still there: says what a cache takes only where it is the only one.
  std::int64_t resident_bytes = 0;
  std::optional<DiskRates> disk;  // of the folder, before the first round; only if a cache has tier=disk
  std::vector<SpeedRow> rows;
};

// kUsage: a spec does not fit the model; kExhausted: a depth plus `gen` exceeds the context.
Result<SpeedReport> measure_speed(const SpeedOptions& options);

// Plain read bandwidth of this machine in GB/s: `threads` threads sum a buffer larger than the caches once.
double read_bandwidth(int threads);

}  // namespace kvartet
