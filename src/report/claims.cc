#include "report/claims.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "report/evidence.h"
#include "report/rows.h"

namespace kvartet {
namespace {

constexpr std::size_t kFewestRoles = 4;  // fewer leave nearly every claim open

bool has_reference(const StoredResults& results) {
  for (const Outcome& o : results.outcomes) {
    if (o.spec == kReference && !o.failed()) return true;
  }
  return false;
}

std::string form_of(const StoredResults& results) {
  const char* question = question_position_name(claimed_position(results));
  const bool paper = !results.runs.empty() && results.runs.front().identity.parameters.find("form=paper") != std::string::npos;
  if (paper) {
    return fmt::format(
        "All methods ran in the paper's form, as far as one harness can have it: its settings, and answers cut where it cut them "
        "(question={}); token ids, template and greedy choice are the same for all, and bytes are counted from allocations.",
        question);
  }
  return fmt::format(
      "All methods ran in their fair form: the same token ids, template, truncation, room for the answer, stop rules and greedy "
      "choice (question={}), "
      "and bytes counted from allocations; where that differs from the paper's own runs, so may the outcome.",
      question);
}

}  // namespace

const char* claim_result_name(ClaimResult result) {
  switch (result) {
    case ClaimResult::kReproduced: return "reproduced";
    case ClaimResult::kNotReproduced: return "not reproduced";
    case ClaimResult::kUndecided: return "undecided";
    case ClaimResult::kNotRun: return "not run here";
  }
  return "";
}

std::vector<StudyClaims> find_claims(const StoredResults& results, const StoredResults* other) {
  std::vector<StudyClaims> out;
  if (!has_reference(results)) return out;
  const Evidence evidence(results);
  const auto add = [&](Study study, const char* title, const Roles& roles, auto claims) {
    if (roles.size() < kFewestRoles) return;
    StudyClaims found{study, title, form_of(results), {roles.begin(), roles.end()}, claims(evidence, roles, other)};
    out.push_back(std::move(found));
  };
  add(Study::kCompression, "The claims of the compression paper (N. Agrawal and R. Mayer, arXiv 2607.05399)",
      compression_roles(results), compression_claims);
  add(Study::kOffloading, "The claims of the offloading paper (YAKV, arXiv 2604.08426)", offloading_roles(results),
      offloading_claims);
  return out;
}

nlohmann::json claims_json(std::span<const StudyClaims> studies) {
  nlohmann::json out = nlohmann::json::array();
  for (const StudyClaims& study : studies) {
    for (const ClaimRow& row : study.rows) {
      out.push_back({{"study", study.study == Study::kCompression ? "compression" : "offloading"},
                     {"claim", row.claim},
                     {"rule", row.rule},
                     {"result", claim_result_name(row.result)},
                     {"limits", row.limits},
                     {"figure", row.figure},
                     {"low", optional_json(row.low)},
                     {"high", optional_json(row.high)},
                     {"n", row.n},
                     {"reason", row.reason},
                     {"to_run", row.to_run}});
    }
  }
  return out;
}

std::string claims_text(std::span<const StudyClaims> studies) {
  std::string out;
  for (const StudyClaims& study : studies) {
    out += fmt::format("\n{}\n{}\n", study.title, study.form);
    for (const ClaimRow& row : study.rows) {
      out += fmt::format("  {:<19} {}\n{:22}{}\n", claim_result_name(row.result), row.claim, "", row.reason);
      if (!row.limits.empty()) out += fmt::format("{:22}{}\n", "", row.limits);
      if (!row.to_run.empty()) out += fmt::format("{:22}to run: {}\n", "", row.to_run);
      if (row.low)
        out += fmt::format("{:22}{}: {:.{}f} to {:.{}f}, n = {}\n", "", row.figure, *row.low, row.decimals, *row.high,
                           row.decimals, row.n);
    }
  }
  return out;
}

}  // namespace kvartet
