// What one selection of rows gives its query heads, against the dense run at the same step (offloading.md 10).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/sequence_cache.h"
#include "core/matrix.h"
#include "quantize/tile_format.h"

namespace kvartet {

// Rows of one side of a view read back as floats: [rows, dim].
std::vector<float> decoded_rows(std::span<const TilePiece> pieces, int rows, int dim);

// One KV head of the dense run at one step: exact rows, and for each query of the group what attention makes of them.
struct DenseHead {
  int dim = 0;
  int rows = 0;
  std::vector<float> keys, values;           // [rows, dim]
  std::vector<std::vector<float>> logits;    // per query: [rows]
  std::vector<std::vector<double>> weights;  // softmax of them
  std::vector<std::vector<double>> outputs;  // [dim]
  std::vector<double> largest;               // logit
  double longest_value = 0;                  // ||v||

  DenseHead only_query(std::size_t query) const;  // as if the group had this one alone
};
DenseHead dense_head(std::vector<float> keys, std::vector<float> values, MatView<const float> queries);
// All KV heads of one layer; queries: [heads, head_dim].
std::vector<DenseHead> dense_heads(const SequenceCache& cache, int layer, MatView<const float> queries);

// The exact top set of the candidates, as large as the selection: by the largest softmax over all queries of the group, or by the
// logits of one query alone. Positions, ascending.
std::vector<std::int32_t> exact_top(const DenseHead& head, const RowSelection& selection);
std::vector<std::int32_t> exact_top_of(const DenseHead& head, std::size_t query, const RowSelection& selection);

// |found and wanted| / |wanted|, 1 if nothing is wanted; both ascending.
double share_found(std::span<const std::int32_t> found, std::span<const std::int32_t> wanted);

// A query's outputs by the attribution grid (5.7): {exact | stored} rows x {exact top set | own selection}. [dim] each.
struct OutputGrid {
  std::vector<double> exact_oracle, stored_oracle, exact_selected, stored_selected;
};

struct QueryFigures {
  double own_recall = 0;  // of this query's own exact top set
  // Exact attention mass on what is attended, by where it lies, and with the exact top sets in place of the selection.
  double kept_mass = 0, selected_mass = 0, generated_mass = 0;
  double oracle_mass = 0;  // top set shared by the group
  double own_mass = 0;     // this query's own
  double mass() const { return kept_mass + selected_mass + generated_mass; }
  OutputGrid outputs = {};
  // Their relative errors.
  double exact_oracle = 0, stored_oracle = 0, exact_selected = 0, stored_selected = 0;
  double logit_error = 0;  // mean of |q (stored k - k)| / sqrt(d) over the exact top set
  double logit_error_max = 0;
  // ||o~ - o|| with exact rows, and the bound 2 (1 - m) max ||v|| that holds for it.
  double exact_distance = 0, exact_bound = 0;
};

struct ViewFigures {
  double recall = 0;                          // of the exact top set that the group shares
  std::vector<float> key_error, value_error;  // ||x - stored x|| / ||x|| of its rows
  std::vector<QueryFigures> queries;
};

// The rows a view was measured with.
struct ViewRows {
  MatView<const float> queries;                         // [queries of the view, dim]
  MatView<const float> stored_keys, stored_values;      // of the exact top set, as the cache has them
  MatView<const float> attended_keys, attended_values;  // what attention really walks
};
// `near_from`: rows from there on are attended whatever is selected: generated ones. `best`: exact_top(head, selection).
ViewFigures measure_view(const DenseHead& head, const RowSelection& selection, std::span<const std::int32_t> best, int near_from,
                         const ViewRows& rows);

}  // namespace kvartet
