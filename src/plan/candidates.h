// Which caches are considered: a search over the spec grammar's own tables, so that a new method is a candidate by being there.
#pragma once

#include <string>
#include <vector>

#include "cache/spec.h"

namespace kvartet {

// Specs of every model, without repetition, `full` first: every quantizer with the values its help lists for `bits`, keys
// and values alike and apart (keys never in fewer bits); pairs of two quantizers; every evictor over a grid of budgets; and
// every evictor with every quantizer. A method's entry may add settings (MethodInfo::candidates).
// The list depends on nothing but the tables: more memory allows more of it, never others.
std::vector<CacheSpec> candidate_specs();

// Of the specs that keep every row those whose times, measured, tell the times of all of them: every format on both sides, and
// of one that is written for one side alone a spec that has it there.
std::vector<CacheSpec> calibrated_formats(const std::vector<CacheSpec>& candidates);

// The settings tried for a method: "", "bits=4", "bits=4/2", "budget=0.1", ... From its help text and its own candidates.
std::vector<std::string> settings_tried(const std::string& keys, const std::vector<std::string>& own,
                                        const std::string& searched_key);

}  // namespace kvartet
