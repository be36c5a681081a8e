// What claims are decided by: outcomes of two caches side by side, intervals over them, and the ways to read an interval.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "report/claims.h"
#include "report/names.h"
#include "results/documents.h"
#include "results/paired.h"
#include "results/records.h"

namespace kvartet {

// A sample that two caches completed.
struct OutcomePair {
  const Outcome* mine = nullptr;
  const Outcome* other = nullptr;
};

// A prompt that two caches wrote an answer to alone, each in a process of its own, one after the other (--solo).
struct SoloPair {
  const SoloRun* mine = nullptr;
  const SoloRun* other = nullptr;
};

using PairFilter = std::function<bool(const OutcomePair&)>;
// The difference of a pair; absent: the pair has none.
using PairValue = std::function<std::optional<double>(const OutcomePair&)>;

std::optional<double> score_difference(const OutcomePair& pair);       // in [-1, 1]
std::optional<double> likelihood_difference(const OutcomePair& pair);  // nats per token

// The papers seal their caches after the whole prompt: where both positions of the question were run, claims rest on that.
QuestionPosition claimed_position(const StoredResults& results);

// Stored outcomes of the claimed position by cache and sample. Keeps pointers into `results`.
class Evidence {
 public:
  explicit Evidence(const StoredResults& results);

  const StoredResults& results() const { return results_; }
  std::vector<const Outcome*> completed(const std::string& spec) const;
  std::vector<OutcomePair> pairs(const std::string& mine, const std::string& other, const PairFilter& keep = {}) const;
  PairedInterval interval(const std::string& mine, const std::string& other, const PairValue& value, ScoreKind kind,
                          const PairFilter& keep = {}) const;

  // Of `other`, over the pairs: what a score's margin goes by. 0 without pairs.
  double mean_score(const std::string& mine, const std::string& other, const PairFilter& keep = {}) const;

  WorkKind workload(const Outcome& outcome) const;
  int prompt_tokens(const Outcome& outcome) const;
  int document(const SampleKey& key) const { return documents_.of(key); }  // a number, equal for the same document
  // Were the times of one of the two taken in steps shared with other caches?
  bool shared(const std::string& mine, const std::string& other) const;
  // Of completed runs, those of the same prompt and repeat.
  std::vector<SoloPair> solo_pairs(const std::string& mine, const std::string& other) const;

 private:
  const StoredResults& results_;
  std::map<std::string, std::map<SampleKey, const Outcome*>> by_spec_;
  std::map<std::string, std::map<std::pair<SampleKey, int>, const SoloRun*>> alone_;  // by cache; by prompt and repeat
  std::map<std::string, std::string> metric_of_;
  std::map<SampleKey, int> prompt_tokens_;
  DocumentNumbers documents_;
};

// ---- reading an interval

bool is_enough(const PairedInterval& interval);  // an interval, of pairs about at least kMinimumPairs documents

// How far it lies above an edge.
PairedInterval beyond(PairedInterval interval, double edge);

// Greater than 0: the interval lies above it. Refuted when it lies below, or within +-margin.
ClaimResult judge_above(const PairedInterval& interval, double margin);
// Not below 0 by more than the margin. Refuted when the interval lies below 0 and reaches beyond the margin.
ClaimResult judge_no_less(const PairedInterval& interval, double margin);
// Within +-margin. Refuted when the interval excludes 0 and reaches beyond the margin.
ClaimResult judge_equal(const PairedInterval& interval, double margin);

// One comparison of a claim.
struct Part {
  std::string what;  // "SnapKV minus full on questions, points"
  PairedInterval interval;
  ClaimResult result = ClaimResult::kUndecided;
  double scale = 1;           // of the figures that are shown
  bool is_log_ratio = false;  // shown as a factor
  int decimals = 3;
};

// Every part must hold: one refuted part refutes the claim; else one without a single pair makes it kNotRun, for which `to_run`
// is the command; else one undecided part leaves it undecided. The deciding part gives the interval; when all hold, the one with
// the least room does.
ClaimRow decide_all(std::string claim, std::string rule, const std::vector<Part>& parts, std::string to_run);

// Measured, but not decided, for another reason than an interval.
ClaimRow undecided(std::string claim, std::string rule, std::string reason);
ClaimRow not_run(std::string claim, std::string rule, std::string reason, std::string to_run);

// "kvartet bench -m MODEL --preset PRESET --kv full --kv SPEC ... FLAGS -o DIR"; without specs those of the preset.
std::string bench_command(const StoredResults& results, std::string_view preset, const std::vector<std::string>& specs,
                          std::string_view flags);

// ---- caches by the names that the papers give them

using Roles = std::map<std::string, std::string>;  // "KIVI-4" -> spec

// The keys of a spec of one stage; absent for a combination.
struct SpecKeys {
  std::string name;
  std::map<std::string, std::string> keys;
  std::string key(const std::string& name_of_key) const;  // "" when it is not there
};
std::optional<SpecKeys> spec_keys(std::string_view spec);

Roles compression_roles(const StoredResults& results);
Roles offloading_roles(const StoredResults& results);
// The first of `wanted` that is missing, in words; empty: all there. "full" needs no role.
std::string missing_roles(const Roles& roles, const std::vector<std::string>& wanted);

std::vector<ClaimRow> compression_claims(const Evidence& evidence, const Roles& roles, const StoredResults* other);
std::vector<ClaimRow> offloading_claims(const Evidence& evidence, const Roles& roles, const StoredResults* other);

// "The same trends across model families", for the caches of `roles`; `other` may be null.
ClaimRow family_claim(const Evidence& evidence, const Roles& roles, const StoredResults* other);

}  // namespace kvartet
