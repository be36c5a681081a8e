// What it costs a cache not to have seen the question when it was sealed: the same prompts, both ways, side by side.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "report/rows.h"

namespace kvartet {

// One cache in one table of prompts that it completed in both positions of the question. Means are over these. An answer of one
// token is left out: with the question seen no cache changes it, so the difference would be the cache's, not the position's.
struct PositionRow {
  std::string task;
  int context = 0;
  std::string spec;
  int n = 0;
  std::optional<double> score_seen;  // points
  Measured score;                    // with the question unseen; its difference is to the question seen
  std::optional<double> likelihood_seen;
  Measured likelihood;                       // likewise
  double largest_likelihood_difference = 0;  // of a single prompt, nats, without its sign
};

// In the order of the outcomes; empty when no prompt ran in both positions.
std::vector<PositionRow> position_rows(const StoredResults& results);

// What of the differences is rounding: a prompt that is computed in two parts is rounded in other places than one computed at
// once, so that a cache which loses nothing differs from itself, too. By how much where f32 is among the rows, or else full; a
// word of caution where neither is.
std::string position_floor(std::span<const PositionRow> rows);

nlohmann::json positions_json(std::span<const PositionRow> rows);

}  // namespace kvartet
