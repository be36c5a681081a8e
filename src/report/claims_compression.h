// What the claims of the compression paper (arXiv 2607.05399; compression.md 15) share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/evidence.h"

namespace kvartet {

// The paper's methods by its names; `full` is none of them.
struct CompressionCase {
  const Evidence& evidence;
  const Roles& roles;

  const std::string& spec(const std::string& role) const;
  std::vector<std::string> present() const;  // of the paper's methods those that ran, in its order

  // The command that runs `methods` (empty: all of the paper's) beside full, with further flags.
  std::string command(const std::vector<std::string>& methods, std::string_view flags = "") const;
  // The row of a claim for which one of `wanted` never ran; absent: all are there.
  std::optional<ClaimRow> missing(const std::string& claim, const std::string& rule,
                                  const std::vector<std::string>& wanted) const;
  // The row of a claim about rates where those of `methods`, or of full, were shared with other caches and too few runs alone
  // stand in for them; absent: each has a rate of its own.
  std::optional<ClaimRow> not_alone(const std::string& claim, const std::string& rule,
                                    const std::vector<std::string>& methods) const;
};

// The score's margin on the pairs that `keep` holds: by what full scores there (results/paired.h).
double margin_on(const CompressionCase& c, const std::string& method, const PairFilter& keep);

// Of time to the first token and decode rates (claims_times.cc), in the order of the table.
std::vector<ClaimRow> time_claims(const CompressionCase& c);

}  // namespace kvartet
