// --kv auto[:key=value,...]: the planner chooses the cache, says which and why, and keeps what it predicted and what happened.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/planning.h"
#include "core/status.h"
#include "plan/planner.h"

namespace kvartet {

bool is_auto(std::string_view kv);

// What an auto spec asks: "auto:memory=200M,for=summary,max-loss=0.02,prefer=speed,results=DIR".
struct AutoSpec {
  std::string text;
  PlanRequest limits;  // of its workload only the kind, and only if it was given
  bool kind_given = false;
  std::vector<std::string> results;  // else the folders of KVARTET_RESULTS
};
// kUsage: an unknown key (naming the nearest) or value.
Result<AutoSpec> parse_auto(std::string_view kv);

struct AutoDecision {
  std::string spec;
  std::int64_t record = 0;  // in the planner's memory; 0: none
};

// Where a decision is needed: everything but what the auto spec itself says.
struct AutoSite {
  std::string model;  // as the user named it
  std::string model_path;
  int threads = 1;
  Workload workload;  // its kind only as `guess` says
  KindGuess guess;    // used, and printed, when the spec names no kind
  std::string what;   // "needle at 2048"; empty: the whole run
};

// Prints the decision in one line on standard error and keeps it. kExhausted: nothing fits, with what would fix it.
Result<AutoDecision> decide(const AutoSpec& wish, const AutoSite& site);

// What really happened, into the record of the decision.
void keep_outcome(const AutoDecision& decision, const PlanRecord& what_happened);

}  // namespace kvartet
