// Where a table says little about caches, whatever they do: the model itself can hardly do the task, or answers ended at the
// limit of tokens. Rules, printed in docs/howto/read-the-report.md too:
// - `full` is weak when it scores below half of the points and a cache that got nothing right would not be found worse than it on
//   these samples, by the verdict's own rule. Where fewer than kMinimumPairs documents allow no verdict, when it has fewer than
//   one in five right.
// - Many answers were cut when one in five of all caches' answers ended at the limit.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "report/pairing.h"
#include "report/rows.h"
#include "results/documents.h"

namespace kvartet {

inline constexpr double kWeakScore = 50;         // points, from which on `full` is never called weak
inline constexpr double kHardlyAnyRight = 20;    // points, where there are too few documents for a verdict
inline constexpr double kNotableCutShare = 0.2;  // of the answers of a table

// Whether `full` with these finished outcomes is weak. `full.score` and `full.metric` are there already.
bool is_weak_reference(const ReportRow& full, std::span<const Outcome* const> done, const References& references,
                       const DocumentNumbers& documents);

// Of the rows of one table.
struct TableCaution {
  const ReportRow* weak = nullptr;  // `full`, where it is weak
  double cut = 0;                   // share of all answers that ended at the limit
  std::optional<double> full_cut;   // share of those of `full`
  bool many_cut() const { return cut >= kNotableCutShare; }
};
TableCaution caution_of(std::span<const ReportRow* const> table);
std::string weak_text(double points);               // "full itself scores 8.3 of 100 points: so little that ..."
std::string cut_text(const TableCaution& caution);  // "35 % of the answers, 0 % of those of full, were cut ..."

// One sentence for each sort of caution, with the tasks and lengths that it holds for.
std::vector<std::string> caution_sentences(std::span<const ReportRow> rows);
// The same of the prompts: documents that several ask about, cut ones, and answers that no cache can change.
std::vector<std::string> prompt_sentences(const StoredResults& results);

}  // namespace kvartet
