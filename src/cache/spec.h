// The spec string: which cache (DESIGN 5). "snapkv:budget=0.25+kivi:bits=4/2"
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/model_shape.h"
#include "core/status.h"
#include "evict/snapkv.h"
#include "offload/presets.h"
#include "quantize/tile_format.h"

namespace kvartet {

enum class Evict : unsigned char { kNone, kStreaming, kSnap, kH2o, kTova, kPyramid, kAda, kCam };
enum class CamBase : unsigned char { kStreaming, kH2o, kTova, kSnap };

// Rows: an integer is rows kept, a number below 1 is the share of the prompt kept.
struct Budget {
  double value = 0.25;
  // Rows kept of a prompt of `tokens`: the integer, or max(least, ceil(share * tokens)) (compression.md 4.3).
  int rows(int tokens, int least) const;
  bool operator==(const Budget&) const = default;
};

// Layers [first, last].
struct LayerRange {
  int first = 0;
  int last = 0;
  bool operator==(const LayerRange&) const = default;
};

// A parsed and completed spec: the four questions of DESIGN 4 answered.
struct CacheSpec {
  std::string canonical;  // every key printed, in the table's order: what results, reports and explain show

  // evict
  Evict evict = Evict::kNone;
  Budget budget;   // all but streamingllm with a window; cam: its target, in rows
  int window = 0;  // snapkv and what is like it: observation window; streamingllm: recent rows kept, 0: budget - sinks
  int kernel = 7;  // snapkv pooling
  Pool pool = Pool::kMax;
  int sinks = 0;                       // streamingllm, cam over it
  bool rerotate = false;               // streamingllm: angles by row instead of by position
  double recent = 0.5;                 // h2o, cam over it: share of the budget
  int beta = 20;                       // pyramidkv
  double alpha = 0.2;                  // adakv
  int interval = 1;                    // cam: decode steps from one pass to the next
  int merge = 32;                      // cam
  CamBase base = CamBase::kStreaming;  // cam: which rows leave
  int seed = 1;                        // cam

  // quantize
  FormatRequest key;
  FormatRequest value;
  int residual = 0;              // newest rows kept in f16 on the sides that seal (KIVI's R); 0: rows are encoded as they come
  bool center_keys = false;      // keys are written without their head's mean (compression.md 12.4)
  std::vector<LayerRange> keep;  // layers left at f16, in ascending order

  // The spec of one layer: f16 on both sides where it is kept.
  CacheSpec for_layer(int layer) const;

  // Rows leave after decode steps too, by the weights of each step: rows are then written one by one, in formats without groups
  // of rows, and end where another row was.
  bool drops_after_steps() const { return evict == Evict::kH2o || evict == Evict::kTova || evict == Evict::kCam; }
  bool keeps_sums() const { return evict == Evict::kH2o || evict == Evict::kCam; }           // of each row's weights
  bool keeps_window_sums() const { return evict == Evict::kCam && base == CamBase::kSnap; }  // of those of the last steps alone
  bool observes_window() const { return evict == Evict::kSnap || evict == Evict::kPyramid || evict == Evict::kAda; }

  // offload: rows beyond the kept ones lie in the slow tier and come back by selection
  std::optional<SelectOptions> offload;

  bool operator==(const CacheSpec&) const = default;
};

// kUsage: unknown name, key, value or senseless combination, naming the nearest valid choice.
Result<CacheSpec> parse_spec(std::string_view text);

// kUsage when the spec does not fit the model (a group that does not divide head_dim, ...). Needs no weights.
Status check_spec(const CacheSpec& spec, const ModelShape& shape);

// One line per method for `kvartet methods`.
struct MethodInfo {
  std::string name;
  std::string keys;     // "bits=4, group=32, residual=128"
  std::string summary;  // one sentence
  // What the planner tries beside the values that `keys` lists: stage settings such as "budget=0.1". Empty: those of its kind.
  std::vector<std::string> candidates = {};
};
const std::vector<MethodInfo>& methods();

}  // namespace kvartet
