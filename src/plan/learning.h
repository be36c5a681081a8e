// Which measurement would change a decision most: for every workload and memory cap the planner's choice is set against what the
// interval of each other cache leaves open. A pure function, as the planner.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/status.h"
#include "plan/loss_prior.h"
#include "plan/planner.h"
#include "plan/workload.h"

namespace kvartet {

// E[max(0, known - X)] for X the larger of 0 and a normal variable: what is gained on average by learning a cache's loss, when a
// cache of the loss `known` would be taken otherwise.
double expected_gain(double known, const Belief& unknown);
// E[max(0, X - known)]: what the choice loses on average against the next best, of which `known` is expected.
double expected_regret(const Belief& chosen, double known);
// P(X < known).
double chance_below(double known, const Belief& unknown);

struct LearnRequest {
  std::vector<Workload> workloads;
  std::vector<std::size_t> memory;                 // caps in bytes; where empty:
  std::vector<double> cap_shares = {0.25, 0.125};  // of the cache in f16 after the answer
  std::size_t most = 12;                           // lessons
};

// One cell that is worth measuring.
struct Lesson {
  CacheSpec spec;
  Workload workload;
  double value = 0;    // nats: what the decision gains on average, mean over the caps
  double chance = 0;   // that the decision changes under the cap where it is likeliest
  std::string reason;  // one sentence, of the cap where the value is largest
};

// Most valuable first. Caches that are so much alike that one tells about the other stand there once per workload. Nothing is
// listed that would gain less than kLeastValue. kUsage, kExhausted: as weigh() and choose().
inline constexpr double kLeastValue = 0.0002;  // nats per token
Result<std::vector<Lesson>> find_lessons(const PlanInputs& inputs, const LearnRequest& request);

}  // namespace kvartet
