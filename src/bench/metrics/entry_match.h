// Text2JSON's score (offloading.md 13.2): a list of objects against the gold list, by name, with partial credit.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "bench/metrics/metric.h"
#include "core/status.h"

namespace kvartet {

enum class EntryScoring : std::uint8_t {
  kRobust,  // a value or element of an unexpected kind is wrong
  kStrict,  // ... is an error, as in the released scorer, where it ends the whole run
};

struct EntryScore {
  double score = 0;             // S / U of the rule, in [0, 1]
  bool format_failure = false;  // not exactly one bracket pair, or no JSON between: the score is 0
  int gold = 0;                 // entries
  int matched = 0;              // predicted entries with a gold name
  int unknown = 0;              // predicted entries without: each lengthens the denominator
  int missing_fields = 0;       // of matched entries
  int wrong_values = 0;         // of matched entries
};

// kBadInput: the gold is not a list of objects with name and two more text fields, or repeats a name (the record is
// "bad" and leaves the benchmark's denominator); with kStrict also what the released scorer raises on.
// A gold list without entries scores 0.
Result<EntryScore> score_entries(std::string_view prediction, std::string_view gold, EntryScoring scoring);

// The metrics `text2json` and `text2json_strict`. The first reference is the gold list.
double entry_match(std::string_view prediction, Texts references, Texts all_classes);
std::vector<ScorePart> entry_match_parts(std::string_view prediction, Texts references, Texts all_classes);
Status check_entries(std::string_view prediction, Texts references, Texts all_classes);
Status check_entries_strict(std::string_view prediction, Texts references, Texts all_classes);

}  // namespace kvartet
