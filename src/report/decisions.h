// What the planner would choose, as plain data: for each kind of task, length and memory cap one decision, and for each kind a
// picture of all that could be chosen. Who decided is not the report's affair.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "report/rows.h"

namespace kvartet {

// An expected loss, nats per token of the reference answer, with its 95 % interval.
struct DecidedLoss {
  double low = 0;
  double expected = 0;
  double high = 0;
};

// What the planner predicts of the cache that the short answer names, for one decision's workload.
struct RivalChoice {
  double bytes = 0;
  DecidedLoss loss;
  std::string source;
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
  std::string source;        // "measured here", "neighbour", "prior", "by definition"
  int samples = 0;           // measured here
  std::string what_if;       // the nearest border of the decision, "--memory 5940K or more"; empty: none
  std::string what_if_spec;  // what would be chosen there
  double what_if_loss = 0;   // expected
  std::optional<RivalChoice> rival;
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

// What the short answer (report/findings.h) says of one kind of work, question seen, for whoever sets choices beside it.
struct ShortAnswer {
  std::string work;                // "questions with short answers"
  std::vector<std::string> tasks;  // by which it was measured
  std::string spec;                // the cache that it names; empty: none
  std::string evidence;            // "−0.016 nats per token (−0.025 to −0.008)"
};

struct DecisionKind {
  std::string kind;
  std::string summary;  // "the whole text, in the large"
  std::vector<Decision> decisions;
  DecisionPicture picture;
  ShortAnswer answer;  // for work of this kind; without `work`: no task of this kind ran
};

struct Decisions {
  std::string model;       // as the user named it
  std::string statistics;  // what the losses rest on
  std::string machine;     // what the times rest on
  std::vector<DecisionKind> kinds;
  bool empty() const { return kinds.empty(); }
};

std::vector<ShortAnswer> short_answers(const StoredResults& results, std::span<const ReportRow> rows);

// Why the choices for this kind are, or are not, what the short answer names, in one sentence with the figures.
std::string beside_short_answer(const DecisionKind& kind, const std::map<std::string, std::string>& names);

// {"model", "statistics", "machine", "rows": [...]}: one row per decision.
nlohmann::json decisions_json(const Decisions& decisions);

}  // namespace kvartet
