#include "report/token_buckets.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace kvartet {
namespace {

constexpr std::array<const char*, 3> kNames = {"0-4k", "4-8k", "8k+"};

std::size_t bucket_of(int prompt_tokens) { return prompt_tokens < 4096 ? 0 : prompt_tokens < 8192 ? 1 : 2; }

// Tasks worth a table: real documents, in more than one bucket.
std::set<std::pair<std::string, int>> bucketed_tasks(const StoredResults& results) {
  std::map<std::pair<std::string, int>, std::set<std::size_t>> seen;
  for (const SampleRecord& s : results.samples) {
    if (s.key.task.starts_with("longbench/")) seen[{s.key.task, s.key.context}].insert(bucket_of(s.prompt_tokens));
  }
  std::set<std::pair<std::string, int>> tasks;
  for (const auto& [task, buckets] : seen) {
    if (buckets.size() > 1) tasks.insert(task);
  }
  return tasks;
}

}  // namespace

std::vector<TokenBucket> token_buckets(const StoredResults& results) {
  const std::set<std::pair<std::string, int>> tasks = bucketed_tasks(results);
  std::vector<TokenBucket> buckets;
  for (std::size_t b = 0; b < kNames.size(); ++b) {
    StoredResults part;
    part.runs = results.runs;
    part.tasks = results.tasks;
    std::set<SampleKey> members;
    for (const SampleRecord& s : results.samples) {
      if (bucket_of(s.prompt_tokens) != b || !tasks.contains({s.key.task, s.key.context})) continue;
      members.insert(s.key);
      part.samples.push_back(s);
    }
    for (const Outcome& o : results.outcomes) {
      if (members.contains(o.key)) part.outcomes.push_back(o);
    }
    if (!part.outcomes.empty()) buckets.push_back({kNames[b], report_rows(part)});
  }
  return buckets;
}

nlohmann::json token_buckets_json(const StoredResults& results) {
  nlohmann::json out = nlohmann::json::array();
  for (const TokenBucket& bucket : token_buckets(results)) {
    for (const ReportRow& r : bucket.rows) {
      out.push_back({{"bucket", bucket.name},
                     {"task", r.task},
                     {"context", r.context},
                     {"spec", r.spec},
                     {"n", r.n},
                     {"prompt_tokens", r.prompt_tokens},
                     {"ttft_s", r.ttft_s},
                     {"decode_tokens_per_s", optional_json(r.decode_tokens_per_s)},
                     {"shared", r.shared},
                     {"compression_ratio", r.compression_ratio},
                     {"end_compression_ratio", r.end_compression_ratio},
                     {"acted", r.acted}});
    }
  }
  return out;
}

std::string token_buckets_text(const StoredResults& results) {
  const std::vector<TokenBucket> buckets = token_buckets(results);
  if (buckets.empty()) return "";
  std::string out = "\nMemory and times by prompt tokens (ratio: after the prompt and after the answer)\n";
  out += fmt::format("{:<26} {:<5} {:<40} {:>4} {:>7} {:>6} {:>6} {:>8} {:>7} {:>6}\n", "task", "tok", "cache", "n", "tokens",
                     "ratio", "end", "ttft s", "tok/s", "acted");
  for (const TokenBucket& bucket : buckets) {
    for (const ReportRow& r : bucket.rows) {
      const char* const mark = shared_mark(r);
      const std::string rate = r.decode_tokens_per_s ? fmt::format("{:.1f}{}", *r.decode_tokens_per_s, mark) : "-";
      out += fmt::format("{:<26.26} {:<5} {:<40.40} {:>4} {:>7.0f} {:>6.2f} {:>6.2f} {:>7.2f}{:1} {:>7} {:>5.0f}%\n", r.task,
                         bucket.name, r.spec, r.n, r.prompt_tokens, r.compression_ratio, r.end_compression_ratio, r.ttft_s, mark,
                         rate, 100 * r.acted);
    }
  }
  return out;
}

}  // namespace kvartet
