// Names for people: short ones for caches, kinds of work for tasks, numbers as they are written.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "results/records.h"

namespace kvartet {

// The cache that every other is compared with.
inline const std::string kReference = "full";

// "kivi:bits=4,group=32,residual=128" -> "kivi:bits=4": bits and budget stay, and every key in which two caches of the same
// names differ. Different specs get different names.
std::map<std::string, std::string> short_names(const std::vector<std::string>& specs);

// The specs of the outcomes, `full` first, then in the order in which they were met.
std::vector<std::string> specs_of(const StoredResults& results);

// What a metric asks of the model. Verdicts are pooled over the tasks of one kind.
enum class WorkKind : std::uint8_t { kQuestions, kSummaries, kClasses, kCode, kLikelihood };
WorkKind workload_of(std::string_view metric);
const char* workload_name(WorkKind workload);  // "questions with short answers", ...

std::string signed_text(double x, int decimals);  // "+1.0", "−0.35", "0.0": a true minus, no negative zero
std::string interval_text(double low, double high, int decimals);
std::string joined(const std::vector<std::string>& words);      // "a", "a and b", "a, b and c"
std::string rate_text(double tokens_per_s);                     // three digits: "1.75", "19.2"
std::string grouped(double x);                                  // rounded, "12,345"
std::string range_text(double low, double high, int decimals);  // "2.7 to 2.9", or one number when they are written alike

}  // namespace kvartet
