// System figures by the length of the prompt in tokens: the compression paper's table of memory and times (compression.md 14,
// 15).
//
// LongBench's own buckets count words; what a cache costs goes by tokens. Only tasks whose prompts differ that much have a table.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "report/rows.h"
#include "results/records.h"

namespace kvartet {

struct TokenBucket {
  std::string name;             // "0-4k", "4-8k", "8k+" prompt tokens
  std::vector<ReportRow> rows;  // of the samples in it; one per (task, context, cache)
};

// Of the sets of real documents (longbench/...) whose prompts lie in more than one bucket; shortest first, empty ones left out.
std::vector<TokenBucket> token_buckets(const StoredResults& results);

// [{bucket, task, context, spec, n, prompt_tokens, ttft_s, decode_tokens_per_s, compression_ratio, end_compression_ratio, acted}]
nlohmann::json token_buckets_json(const StoredResults& results);
std::string token_buckets_text(const StoredResults& results);  // for a terminal; empty without buckets

}  // namespace kvartet
