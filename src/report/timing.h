// Times: between tokens, and of each cache alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "results/records.h"

namespace kvartet {

// Time between consecutive tokens, in ms.
struct GapSpread {
  double p50 = 0;
  double p95 = 0;
  double p99 = 0;
  double max = 0;
};

// A stored list of numbers; what is none of that counts as nothing stored.
std::vector<double> numbers_of(const std::string& json);
// Over all gaps; absent when there are none.
std::optional<GapSpread> gap_spread(const std::vector<double>& gaps_ms);

// Of repeated runs. Of five, the range holds the true median with 94 % confidence.
struct RunSpread {
  double median = 0;
  double low = 0;
  double high = 0;
};

// One cache alone on one prompt of a cell, in processes of its own.
struct SoloFigures {
  int runs = 0;    // completed
  int failed = 0;  // that ended in an error: counted, never left out silently
  std::string first_error;
  std::string sample;  // which prompt
  int prompt_tokens = 0;
  int completion_tokens = 0;
  RunSpread ttft_s;
  double prefill_s = 0;  // medians
  double compress_s = 0;
  std::optional<RunSpread> decode_tokens_per_s;  // absent: the answer has fewer than two tokens
  std::optional<RunSpread> end_to_end_tokens_per_s;
  std::optional<GapSpread> gaps;    // over the gaps of all runs
  std::int64_t peak_rss_bytes = 0;  // the most of all runs; 0: unknown
  std::int64_t weight_bytes = 0;
  std::optional<bool> same_text;  // as in company; absent: there is no such answer
};

std::map<std::pair<Cell, std::string>, SoloFigures> solo_figures(const StoredResults& results);

inline constexpr int kEnoughRepeats = 5;  // compression.md 14

// What a reader must know of one cache's runs alone: failures, texts that differ. One sentence each.
std::vector<std::string> solo_caveats(const std::string& name, const SoloFigures& solo);

}  // namespace kvartet
