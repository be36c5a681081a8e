// What `kvartet speed --json` wrote, read back for the page.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace kvartet {

struct SpeedPoint {
  int depth = 0;
  double tokens_per_s = 0;  // median over rounds
};

// One cache of ours or of the peer's in one phase.
struct SpeedCurve {
  std::string engine;
  std::string spec;
  std::vector<SpeedPoint> points;  // by depth
};

struct SpeedCurves {
  std::string source;  // the file's name, for people
  std::string model;
  bool filled_directly = false;  // with random rows
  std::string cpu;
  int threads = 0;
  double read_gb_per_s = 0;  // plain reading in the same rounds
  std::vector<SpeedCurve> decode;
  std::vector<SpeedCurve> prefill;
};

// kBadInput: not such a file, or one that measured nothing.
Result<SpeedCurves> parse_speed(std::string_view text, const std::string& source);

}  // namespace kvartet
