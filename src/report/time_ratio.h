// How much longer one cache takes than another: of each alone where enough such runs are stored, else of the answers that they
// wrote in company.
#pragma once

#include <cstdint>
#include <string>

#include "report/evidence.h"

namespace kvartet {

enum class TimeOf : std::uint8_t { kFirstToken, kEachToken };

struct TimeRatio {
  PairedInterval interval;  // of ln(time of mine / time of other)
  bool alone = false;       // of runs alone (--solo), on at least kMinimumPairs prompts; a prompt counts as a document
  bool shared = false;      // of steps that caches shared: only what each did for itself tells them apart, which no rate shows
};

TimeRatio time_ratio(const Evidence& evidence, const std::string& mine, const std::string& other, TimeOf time);

}  // namespace kvartet
