// What it costs a cache not to have seen the question when it was sealed, or to have seen another one: the same questions, both
// ways, side by side.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "report/names.h"
#include "report/rows.h"

namespace kvartet {

// One cache in one table of questions that it completed seen and in another position. Means are over these. An answer of one
// token is left out: with the question seen no cache changes it, so the difference would be the cache's, not the position's.
//
// Unseen, the prompt is the same, and so the difference is that of the cache to itself. A second question stands in another text,
// behind a first question and its answer, which changes answers by itself; so the difference is that of the losses to `full`,
// which is asked in both texts, too: what choosing rows for one question cost the next one. `full` has none.
struct PositionRow {
  std::string task;
  int context = 0;
  std::string spec;
  QuestionPosition position = QuestionPosition::kUnseen;  // the other one
  int n = 0;
  std::optional<double> score_seen;  // points
  Measured score;                    // in the other position; its difference is to the question seen
  std::optional<double> likelihood_seen;
  Measured likelihood;                       // likewise
  double largest_likelihood_difference = 0;  // of a single prompt, nats, without its sign
};

// Unseen first, then second; in the order of the outcomes. Empty when no question ran seen and in another position.
std::vector<PositionRow> position_rows(const StoredResults& results);

// What choosing rows for one question cost the next one, over all tables of a kind of work: differences of the likelihood's loss,
// by kind and cache. None of `full`.
std::map<std::pair<WorkKind, std::string>, Measured> next_question_costs(const StoredResults& results);

// What of the differences to the question unseen is rounding: a prompt that is computed in two parts is rounded in other places
// than one computed at once, so that a cache which loses nothing differs from itself, too. By how much where f32 is among the
// rows, or else full; a word of caution where neither is.
std::string position_floor(std::span<const PositionRow> rows);

// What the difference of a second question is of, and what is in it beside the choice of rows.
std::string second_question_note();

nlohmann::json positions_json(std::span<const PositionRow> rows);

}  // namespace kvartet
