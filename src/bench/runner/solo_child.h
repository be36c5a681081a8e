// One cache alone, in a process of its own: what the benchmark orders, what the process does, what comes back.
//
// The program starts itself again; the order is one JSON document on standard input, the answer one on standard output. The
// process opens the model, warms up with two short requests through the same cache, and then runs the prompt once: nothing else
// is in its memory, and nobody shares its steps (compression.md 14).
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/runner/prepared_sample.h"
#include "cache/spec.h"
#include "core/arena.h"
#include "core/status.h"
#include "results/records.h"

namespace kvartet {

// The name of the program's command that takes an order. Not for people: it is in no help.
inline constexpr const char* kSoloCommand = "solo-child";

inline constexpr int kWarmUpRequests = 2;
inline constexpr int kWarmUpPromptTokens = 256;
inline constexpr int kWarmUpAnswerTokens = 8;

// How the process opens the model: as the engine of the shared run does.
struct SoloSettings {
  std::string model_path;
  int threads = 1;
  std::size_t fast_tier_bytes = Arena::kNoCap;
  std::string tier_directory;
};

struct SoloOrder {
  SoloSettings settings;
  std::string spec;
  QuestionPosition position = QuestionPosition::kSeen;
  std::vector<Token> document;
  std::vector<Token> question;
  int max_new_tokens = 0;
  bool stop_at_newline = false;
  std::int64_t parent_process = 0;  // who ordered it; without that process nobody waits for the answer
};

std::string solo_order_text(const SoloOrder& order);
// kBadInput: no order.
Result<SoloOrder> read_solo_order(std::string_view text);

// In the process: warm up, run, measure. What the cache cannot take is in SoloRun::error; kCancelled, or the model cannot be
// opened.
Result<SoloRun> measure_alone(const SoloOrder& order, const std::atomic<bool>* cancel);
std::string solo_answer_text(const SoloOrder& order, const SoloRun& run);

// In the benchmark: starts `program` for the sample and takes its answer. A process that dies, takes longer than limit_s or
// answers nonsense is a SoloRun with that as its error. kIo: it cannot be started; kCancelled.
struct SoloProgram {
  std::string path;
  SoloSettings settings;
  const std::atomic<bool>* cancel = nullptr;
};
Result<SoloRun> run_alone(const SoloProgram& program, const PreparedSample& sample, const CacheSpec& spec, double limit_s);

}  // namespace kvartet
