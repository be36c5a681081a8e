// What the results store holds: plain data, no database in sight.
//
// A run is one invocation of the benchmark; runs that agree in their identity share a store. A sample is one prompt of
// one task at one context length. An outcome is one sample seen through one cache.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "results/machine.h"

namespace kvartet {

// What must agree before outcomes may stand side by side, however many runs and machines they come from.
struct RunIdentity {
  std::string model_hash;   // model_fingerprint()
  std::string model_name;   // for people; not compared
  std::string model_shape;  // "llama, 30 layers, ..."; not compared, it follows from the hash
  std::uint64_t seed = 1;
  std::string parameters;  // whatever else shapes every sample; empty so far
  std::string version;     // of Kvartet
};

struct RunRecord {
  RunIdentity identity;
  Machine machine;
  int threads = 0;
  std::string started;       // UTC, ISO 8601
  std::int64_t process = 0;  // process id: tells two runs of one second apart
  std::int64_t id = 0;       // number within the store, given by it
};

// Where the question stands when a cache is sealed.
enum class QuestionPosition : std::uint8_t {
  kSeen,    // the caches are sealed after the whole prompt
  kUnseen,  // sealed after the document; the question comes as an extension
  kSecond,  // sealed after the whole prompt of another question about the document; its answer and the question come as an
            // extension
};
inline constexpr std::array kQuestionPositions = {QuestionPosition::kSeen, QuestionPosition::kUnseen, QuestionPosition::kSecond};
const char* question_position_name(QuestionPosition position);  // "seen", "unseen", "second"
std::optional<QuestionPosition> find_question_position(std::string_view name);
std::string question_suffix(QuestionPosition position);  // "", ", question unseen", ", second question": behind a table's name

// The prompts that stand in one table, and are compared with each other only.
struct Cell {
  std::string task;  // canonical task spec
  int context = 0;   // tokens asked for: prompt and answer together
  QuestionPosition position = QuestionPosition::kSeen;
  auto operator<=>(const Cell&) const = default;
};

// One prompt, sealed in one way. The same prompt with its question seen and unseen is two samples of the same id and hash; asked
// second, the question has the same id but another prompt, which begins with that of the question before it.
struct SampleKey {
  std::string task;
  int context = 0;
  std::string sample;  // the task's own id
  QuestionPosition position = QuestionPosition::kSeen;
  auto operator<=>(const SampleKey&) const = default;
  Cell cell() const { return {task, context, position}; }
};

inline constexpr std::size_t kQuestionBytes = 2000;

struct SampleRecord {
  SampleKey key;
  int ordinal = 0;          // place within the task, for a stable order
  std::string prompt_hash;  // hash_tokens() of the rendered prompt: every cache saw these ids
  int prompt_tokens = 0;
  int dropped_tokens = 0;  // by middle truncation
  int gold_tokens = 0;
  int length = 0;                     // LongBench's `length`
  std::string answers_json = "[]";    // JSON array of strings
  std::string classes_json = "null";  // JSON array of strings, or "null"
  std::string question;               // what was asked, for people; cut at kQuestionBytes. Empty in stores of format 1
  std::string depths_json;            // JSON array: where in the document the facts stand, 0 first .. 1 last; "" when unknown
  std::string document;  // hash_bytes() of the text that is asked about: several samples may have the same; "" when unknown

  // The first token of an answer is predicted by the exact pass over the prompt, before any cache has changed a row. A reference
  // of one token is then the same through every cache: it says nothing about them. A question asked later goes through the cache.
  bool decided_by_prefill() const { return gold_tokens == 1 && key.position == QuestionPosition::kSeen; }
};

struct Outcome {
  SampleKey key;
  std::string spec;   // canonical cache spec
  std::string error;  // not empty: the sample failed, and this sentence says why; the figures below mean nothing

  std::string prediction;
  std::optional<double> score;                // [0, 1]; none for tasks without free-running score
  std::optional<double> gold_log_likelihood;  // natural log, mean per gold token
  double ttft_s = 0;                          // prefill + own compression + first token
  bool shared = false;                        // with other caches, or its prefill with other questions: not times of a run alone
  double prefill_s = 0;
  double compress_s = 0;
  double decode_tokens_per_s = 0;  // (n - 1) / (last - first); 0: fewer than two tokens
  std::int64_t live_bytes = 0;     // after prefill
  std::int64_t allocated_bytes = 0;
  std::int64_t fast_bytes = 0;      // allocated in the fast tier (RAM)
  std::int64_t f16_bytes = 0;       // what the same live tokens take in f16
  std::int64_t end_live_bytes = 0;  // after the last generated token
  std::int64_t end_allocated_bytes = 0;
  std::int64_t end_fast_bytes = 0;
  std::int64_t end_f16_bytes = 0;
  double rows_kept = 0;  // mean over layers and heads, after prefill
  bool acted = false;    // has the cache dropped or shortened anything?
  int completion_tokens = 0;
  std::string finish_reason;
  std::string token_gaps_json;  // JSON array of ms between consecutive tokens; "" when unknown (stores of format 1)
  std::int64_t run = 0;         // RunRecord::id, given by the store

  bool failed() const { return !error.empty(); }
};

// Whether the times of two caches on one sample compare: both alone, or both in the very same prefill and decode steps. A step
// that seven caches share is slower than one that two share, whatever the caches.
inline bool times_compare(const Outcome& a, const Outcome& b) { return a.shared == b.shared && (!a.shared || a.run == b.run); }

// One cache alone on one prompt, timed in a process of its own (compression.md 14).
struct SoloRun {
  SampleKey key;
  std::string spec;
  int repeat = 0;     // 0 .. N-1
  std::string error;  // not empty: it failed, and this sentence says why; the figures below mean nothing

  std::string text;  // must be what the same cache wrote in company; the report says when it is not
  std::string finish_reason;
  int completion_tokens = 0;
  double ttft_s = 0;  // from the token ids to the first token: prefill, sealing, sampling
  double prefill_s = 0;
  double compress_s = 0;
  double decode_tokens_per_s = 0;      // (n - 1) / (last - first); 0: fewer than two tokens
  double end_to_end_tokens_per_s = 0;  // n / (last - begin of the prefill); 0: no token
  std::string token_gaps_json;         // JSON array of ms between consecutive tokens
  std::int64_t peak_rss_bytes = 0;     // most memory the process ever had resident, weights included; 0: unknown
  std::int64_t weight_bytes = 0;       // held weights, converted copies included
  std::int64_t run = 0;                // RunRecord::id, given by the store

  bool failed() const { return !error.empty(); }
};

struct StoredTask {
  std::string task;
  std::string metric;
};

// Everything in a store. Samples by (task, context, position, ordinal), outcomes and solo runs likewise, then by first seen spec
// and repeat.
struct StoredResults {
  std::vector<RunRecord> runs;
  std::vector<StoredTask> tasks;
  std::vector<SampleRecord> samples;
  std::vector<Outcome> outcomes;
  std::vector<SoloRun> solo;
};

// "question=seen", "question=unseen", "question=seen+unseen+second", and RunIdentity::parameters where there are any.
std::string parameters_text(const StoredResults& results);

}  // namespace kvartet
