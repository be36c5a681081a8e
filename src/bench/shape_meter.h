// What attention, encoding and appending take for one layer's shape, on synthetic rows: holds for any model of that shape.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "attention/decode_attention.h"
#include "attention/prefill_attention.h"
#include "cache/sequence_cache.h"
#include "cache/spec.h"
#include "core/model_shape.h"
#include "core/status.h"
#include "results/calibration.h"

namespace kvartet {

struct Spread {
  double median = 0;
  double relative = 0;  // half the range over the median
};
Spread spread_of(std::vector<double> runs);

class ShapeMeter {
 public:
  ShapeMeter(const LayerShape& layer, int threads);

  // Attention at three depths, encoding and appending of every format. All formats take turns in every round: a machine that is
  // slower for a second is so for all of them.
  Status measure(std::span<const CacheSpec> specs, std::vector<Rate>* rates);
  // By how much longer the second half of the tokens takes: attention alone grows with the tokens before, and what else a chunk
  // takes is the same in both halves. It counts with the products, which are told from attention by this rate.
  Rate prefill(Precision precision);

 private:
  void add(std::string_view what, const CacheSpec& spec, int depth, double value, double spread, std::vector<Rate>* rates) const;
  // Seconds of half of a prompt from token `begin` on, in chunks as the model has them; its keys and values stay packed.
  double attend_prompt(PrefillAttention& attention, int begin);
  Status seal(SequenceCache& cache, int rows, double* seconds);
  // Seconds of one step's rows, in all layers. One row alone may take many times its share of a prompt's.
  Status append_rows(SequenceCache& cache, int prompt, double* seconds);
  double attend(const SequenceCache& cache);

  LayerShape layer_;
  int threads_;
  ModelShape shape_;
  DecodeAttention attention_;
  std::vector<float> keys_, values_, queries_, out_;
  std::vector<float> prompt_, attended_;  // queries of a prompt, and what they get
};

}  // namespace kvartet
