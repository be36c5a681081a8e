// The benchmark: tasks x contexts x samples x caches, into a store that a repeated command continues.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bench/json_lines.h"
#include "bench/runner/measure_sample.h"
#include "bench/runner/prepared_sample.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/model_shape.h"
#include "results/store.h"

namespace kvartet {

struct BenchmarkRequest {
  std::vector<std::string> tasks;  // task specs
  std::string metric;              // for the user's own files only
  std::vector<int> contexts;       // tokens of prompt + answer; empty: the model's context
  int samples = 0;                 // per task and context; 0: the task's default
  std::uint64_t seed = 1;
  std::string data_dir;
  std::string essays_dir = kSetUpEssays;                                         // where data_dir has no haystack/
  std::vector<QuestionPosition> question_positions = {QuestionPosition::kSeen};  // each prompt runs once for each
  std::string form;                                                              // "paper": a paper's own settings; empty: fair
  const std::atomic<bool>* cancel = nullptr;                                     // looked at while prompts are prepared
};

struct PlannedTask {
  std::string task;
  std::string metric;
  AnswerCut answer_cut = AnswerCut::kNone;
  int context = 0;
  QuestionPosition position = QuestionPosition::kSeen;
  std::vector<PreparedSample> samples;
  std::vector<SkippedLine> skipped;  // records that could not be used
  std::string note;                  // one sentence for the user, or ""

  Cell cell() const { return {task, context, position}; }
};

// All prompts, tokenized: everything that can be refused is refused here, before any time is spent. Where several positions are
// asked for, a task runs in those that it can, with a note: without questions apart from its documents in the seen one only,
// without a second question about any of them not in that position.
// kUsage: unknown task, context beyond the model's, no position that a task can run in; kExhausted: a conversation of two
// questions that is longer than the model's context; kCancelled; else as the task.
Result<std::vector<PlannedTask>> plan_benchmark(const BenchmarkRequest& request, const Vocabulary& vocabulary,
                                                const ModelShape& shape, FileSystem& files);

// What shapes every sample, for RunIdentity::parameters; the position of the question is each sample's own.
std::string run_parameters(const BenchmarkRequest& request);

struct BenchmarkProgress {
  Cell cell;
  int done = 0;              // samples finished in this run
  int total = 0;             // samples to be run
  double sample_share = 0;   // of the current sample's prefill
  double tokens_per_s = 0;   // prompt tokens of finished samples over their time, all caches together; 0: unknown yet
  double seconds_left = -1;  // -1: unknown yet
};

struct BenchmarkHooks {
  // measure_sample bound to an engine. Called with the caches that are still missing.
  std::function<Result<std::vector<Outcome>>(const PreparedSample&, std::span<const CacheSpec>, const Engine::Progress&)> measure;
  std::function<void(const BenchmarkProgress&)> progress;  // may be empty
  // Is told the samples that will be measured, before the first; its failure ends the benchmark. May be empty.
  std::function<Status(std::span<const PreparedSample* const>)> begin = {};
  // Is told that no sample to come is about the document of the last ones: what is held of it can go. May be empty.
  std::function<void()> end_document = {};
  const std::atomic<bool>* cancel = nullptr;  // looked at between samples; the engine looks at its own
  const Clock* clock = &Clock::real();
};

struct BenchmarkSummary {
  int samples_run = 0;
  int samples_resumed = 0;  // found complete in the store
  int outcomes_failed = 0;  // of this run
  bool cancelled = false;   // what was finished before is in the store
};

// All questions about a document, in all positions, run one after the other, where the first of them stands in the plan.
// kIo: the store cannot be written; kUsage: the store holds a sample with another prompt. Failing samples are no error:
// they are stored with their reason.
Result<BenchmarkSummary> run_benchmark(std::span<const PlannedTask> plan, std::span<const CacheSpec> specs, Store& store,
                                       const BenchmarkHooks& hooks);

}  // namespace kvartet
