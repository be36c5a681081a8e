// CaM (compression.md 5): a row that leaves adds its value to the rows that follow it, at random and only where that helps.
//
// A pure function to a plan; cache/ carries it out on values. Keys are never touched.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvartet {

// value(target) += weight * value(source), in fp32.
struct Merge {
  std::int32_t target = 0;
  std::int32_t source = 0;
  float weight = 0;
  bool operator==(const Merge&) const = default;
};

struct CamOptions {
  int merge = 32;  // m: rows that one leaving row is spread over; 0: plain eviction
  std::uint64_t seed = 1;
  int layer = 0;
  int kv_head = 0;
};

// How likely a row with running sum `own` is merged into targets whose sums have this mean: own / mean, at most 1; 0/0 is 0.
double cam_probability(double own, double mean);

// `rows` of one head with their positions (in any order) and running sums; `leaving` lists rows. Each leaving row is drawn
// for with a number that depends on (seed, layer, head, position) alone, and if drawn goes to the next m staying rows after
// it, 1/m each (fewer at the end: divided by their count; none: plain drop). One pass gives a target at most m merges: where
// more want it, the leaving rows with the larger sums come first, so that a pass which drops thousands of rows before one
// block of targets cannot blow their values up. Merges come in ascending position of the source.
std::vector<Merge> cam_plan(std::span<const float> sums, std::span<const std::int32_t> positions,
                            std::span<const std::int32_t> leaving, const CamOptions& options);

}  // namespace kvartet
