// How fast this machine does the things a cache needs: measured once by `kvartet calibrate`, read by the planner.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "results/machine.h"

namespace kvartet {

// What a rate measures. The text is what the store holds.
namespace rate {
inline constexpr std::string_view kRead = "read";  // bytes/s, plain read of memory: for people, no time is predicted by it
inline constexpr std::string_view kAttend =
    "attend";  // s per KV head and layer of one decode step at `depth` rows; subject: key/value format
// s per row of one KV head of a prompt, keys and values; subject as above
inline constexpr std::string_view kEncode = "encode";
// s per KV head and layer of one decode step, for its one row; subject as above
inline constexpr std::string_view kAppend = "append";
// flop/s of causal attention between the tokens of a prompt; subject: precision()
inline constexpr std::string_view kPrefill = "prefill-attention";
inline constexpr std::string_view kWeights = "weights";  // bytes of weights/s in a decode step; subject: weight type
inline constexpr std::string_view kLinear = "linear";    // flop/s of the matrix products of a prefill; subject: weight type
inline constexpr std::string_view kEvict = "evict";      // s per token, KV head and layer at the end of prefill; subject: method
// s per row kept, KV head and layer of one decode step, beside attention, of a method by which rows leave after steps; subject:
// method
inline constexpr std::string_view kDepart = "depart";
// Of a cache that selects rows at every step, with its rows in RAM; subject: method.
inline constexpr std::string_view kSeal =
    "seal";  // s per KV head and layer at the end of a prefill of `depth` tokens, writing included
inline constexpr std::string_view kScore = "score";    // s per row that could be chosen, KV head and layer of one decode step
inline constexpr std::string_view kChosen = "chosen";  // s per row that is chosen, likewise: fetched, decoded, attended
inline constexpr std::string_view kDiskRead = "disk-read";  // bytes/s, in order; subject as of the next
inline constexpr std::string_view kDiskOps = "disk-ops";    // random 4 KiB reads/s; subject: past the page cache or through it
inline constexpr std::string_view kDirect = "direct";
inline constexpr std::string_view kPageCache = "page cache";  // memory was measured, not the disk
// Of prefill attention: as models of rounded weights have it, in what the CPU multiplies fastest, or in f32.
constexpr std::string_view precision(bool native) { return native ? "native" : "exact"; }
}  // namespace rate

// Of what a calibration measures, and how. Raised by whoever measures a rate another way, or makes what was measured much faster
// or slower: what was measured before then says nothing of this program, and is not used.
inline constexpr int kCalibrationRevision = 3;

struct Rate {
  std::string what;
  std::string subject;
  int head_dim = 0;  // 0: does not matter
  int group = 0;     // query heads per KV head; 0: does not matter
  int depth = 0;     // rows; 0: does not matter
  double value = 0;
  double spread = 0;  // relative: half the range of the repetitions over their median
  bool operator==(const Rate&) const = default;
};

struct Calibration {
  Machine machine;
  int threads = 0;
  std::string version;                  // of Kvartet
  int revision = kCalibrationRevision;  // 0: by a Kvartet that wrote none down
  std::string measured;                 // UTC
  std::vector<Rate> rates;
};

// The same hardware, as far as a rate is concerned. The compiler counts: kernels differ.
bool same_machine(const Machine& a, const Machine& b);

// "AMD EPYC, 2 cores"
std::string machine_text(const Machine& machine);

}  // namespace kvartet
