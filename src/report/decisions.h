// What the planner would choose, as plain data: for each kind of task, length and memory cap one decision, and for each kind a
// picture of all that could be chosen. Who decided is not the report's affair.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace kvartet {

// An expected loss in points (0.01 nats per token of the reference answer) with its 95 % interval.
struct DecidedLoss {
  double low = 0;
  double expected = 0;
  double high = 0;
};

struct Decision {
  std::string kind;  // "summary"
  int prompt_tokens = 0;
  int answer_tokens = 0;
  double cap_bytes = 0;
  double cap_share = 0;  // of the cache in f16
  std::string spec;      // empty: nothing fits
  std::string reason;    // why this one; or what would have to change
  double bytes = 0;
  double ttft_s = 0;
  double decode_tokens_per_s = 0;
  double time_error = 0;  // relative
  DecidedLoss loss;
  std::string source;   // "measured here", "neighbour", "prior", "by definition"
  int samples = 0;      // measured here
  std::string what_if;  // the nearest border of the decision; empty: none
};

struct DecisionPoint {
  std::string spec;
  double times_smaller = 0;  // than f16
  DecidedLoss loss;
  bool chosen = false;  // under one of the caps
};

struct DecisionPicture {
  std::string kind;
  int prompt_tokens = 0;
  std::vector<DecisionPoint> points;
  int left_out = 0;  // points that lose more than the picture shows
};

struct DecisionKind {
  std::string kind;
  std::string summary;  // "the whole text, in the large"
  std::vector<Decision> decisions;
  DecisionPicture picture;
};

struct Decisions {
  std::string model;       // as the user named it
  std::string statistics;  // what the losses rest on
  std::string machine;     // what the times rest on
  std::vector<DecisionKind> kinds;
  bool empty() const { return kinds.empty(); }
};

// {"model", "statistics", "machine", "rows": [...]}: one row per decision.
nlohmann::json decisions_json(const Decisions& decisions);

}  // namespace kvartet
