// Where in a model a cache loses: per layer, how far its keys, its values and the outputs of its attention are from those of
// `full`, under the same queries.
//
// Teacher forcing on the dense run, as in bench/diagnose.h: `full` decodes, every other cache gets its queries and its new
// rows, so that an error is this layer's own and not what the layers below handed up.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/status.h"
#include "engine/engine.h"

namespace kvartet {

// ||x - exact|| / ||exact||, norms over all that was summed.
struct RelativeError {
  double squared_error = 0;
  double squared_norm = 0;
  void add(double value, double exact) {
    squared_error += (value - exact) * (value - exact);
    squared_norm += exact * exact;
  }
  double value() const;
};

struct LayerError {
  RelativeError keys;     // over the rows kept, against full's rows of the same tokens
  RelativeError values;   // the same
  RelativeError outputs;  // of attention, all query heads together: what was dropped counts here
  bool has_rows = true;   // false: the cache selects rows, and what it attends to is another set for every query
};

// One entry per layer. Errors of several texts are summed into it.
using LayerErrors = std::vector<LayerError>;
double mean_output_error(const LayerErrors& errors);  // over layers

// sequences[0] is `full`; the others have seen the same tokens. Decodes `tokens` and adds to errors[i - 1] what sequence i
// lost: outputs at every step, rows at the last. The sequences end `tokens` tokens later.
Status add_layer_errors(Engine& engine, std::span<Sequence> sequences, std::span<const Token> tokens,
                        std::span<LayerErrors> errors);

}  // namespace kvartet
