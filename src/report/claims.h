// Which claims of the two papers hold in these results: a rule for each, carried out on the stored outcomes.
//
// A claim is *reproduced* or *not reproduced* only where a 95 % interval of paired differences decides its rule. Where there are
// pairs and they do not decide it, it is *undecided*; where what it is about did not run, it is *not run here*, with the command
// that would run it. Nothing is judged by hand. The claims are those of N. Agrawal and R. Mayer, arXiv 2607.05399 (compression.md
// 15) and of the YAKV paper (offloading.md 9.3).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "results/records.h"

namespace kvartet {

enum class ClaimResult : std::uint8_t { kReproduced, kNotReproduced, kUndecided, kNotRun };
const char* claim_result_name(ClaimResult result);  // "reproduced", "not reproduced", "undecided", "not run here"

struct ClaimRow {
  std::string claim;  // the paper's, in our words
  std::string rule;   // what decides it
  ClaimResult result = ClaimResult::kNotRun;
  std::string limits;         // what the result rests on where that is less than it says: "by the sealing alone"; may be empty
  std::string figure;         // what the interval is of, with its unit; empty: no interval
  std::optional<double> low;  // 95 %, of the comparison that decided
  std::optional<double> high;
  int decimals = 3;           // to write them with
  bool is_difference = true;  // written with their signs; else a factor or a ratio
  int n = 0;                  // pairs (or samples) behind it
  std::string reason;
  std::string to_run;  // of kNotRun: the command that would bring what is missing
};

enum class Study : std::uint8_t { kCompression, kOffloading };

struct StudyClaims {
  Study study = Study::kCompression;
  std::string title;
  std::string form;                                         // in which form the methods ran, one sentence
  std::vector<std::pair<std::string, std::string>> caches;  // the paper's name, the spec that stands for it here
  std::vector<ClaimRow> rows;
};

// The studies of which `results` hold `full` and at least four of the caches. `other`: results of another model, for the claim
// about model families; may be null.
std::vector<StudyClaims> find_claims(const StoredResults& results, const StoredResults* other = nullptr);

nlohmann::json claims_json(std::span<const StudyClaims> studies);
std::string claims_text(std::span<const StudyClaims> studies);  // for a terminal; empty without studies

}  // namespace kvartet
