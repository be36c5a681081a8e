// Small stored results for the tests of the report.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "results/records.h"

namespace kvartet {

inline Outcome made_outcome(const std::string& task, int context, int i, const std::string& spec, double score,
                            double likelihood) {
  Outcome o;
  o.key = {task, context, std::to_string(i)};
  o.spec = spec;
  o.prediction = "the answer is 42";
  o.score = score;
  o.gold_log_likelihood = likelihood;
  o.ttft_s = spec == "full" ? 2 : 2.5;
  o.decode_tokens_per_s = spec == "full" ? 20 : 30;
  o.f16_bytes = 4000;
  o.allocated_bytes = spec == "full" ? 4000 : 1000;
  o.fast_bytes = spec == "full" ? 4000 : 500;
  o.live_bytes = o.allocated_bytes;
  o.end_f16_bytes = 5000;
  o.end_allocated_bytes = 2500;
  o.end_fast_bytes = 2500;
  o.rows_kept = 500;
  o.acted = spec != "full";
  o.completion_tokens = 4 + i;
  o.finish_reason = i % 2 == 0 ? "stop" : "length";
  o.token_gaps_json = "[10,20,30]";
  o.run = 1;
  return o;
}

inline SampleRecord made_sample(const std::string& task, int context, int i) {
  SampleRecord s;
  s.key = {task, context, std::to_string(i)};
  s.ordinal = i;
  s.prompt_hash = "aa" + std::to_string(i);
  s.prompt_tokens = 2000;
  s.answers_json = "[\"42\"]";
  s.classes_json = "null";
  s.question = "What is the number?";
  s.depths_json = "[" + std::to_string((i % 5) * 0.2 + 0.1) + "]";
  return s;
}

inline RunRecord made_run() {
  RunRecord run;
  run.identity = {
      .model_hash = "h", .model_name = "tiny", .model_shape = "2 layers", .seed = 1, .parameters = "", .version = "0.1.0"};
  run.machine = {.cpu = "A processor", .cores = 2, .memory_bytes = 1 << 30, .compiler = "g++"};
  run.threads = 2;
  run.started = "2025-01-31T12:00:00Z";
  run.id = 1;
  return run;
}

// `n` samples of needle at 2,048 and 4,096 tokens through full, a lossless kivi:bits=4 and a kivi:bits=2 that loses.
inline StoredResults made_results(int n) {
  StoredResults r;
  r.runs = {made_run()};
  r.tasks = {{"needle", "contains"}};
  for (const int context : {2048, 4096}) {
    for (int i = 0; i < n; ++i) r.samples.push_back(made_sample("needle", context, i));
    for (int i = 0; i < n; ++i) {
      const double wobble = i % 2 == 0 ? 0.001 : -0.001;
      r.outcomes.push_back(made_outcome("needle", context, i, "full", 1, -0.2));
      r.outcomes.push_back(made_outcome("needle", context, i, "kivi:bits=4,group=32,residual=128", 1, -0.2 + wobble));
      r.outcomes.push_back(made_outcome("needle", context, i, "kivi:bits=2,group=32,residual=128", i % 2, -0.6 + wobble));
      r.outcomes.back().allocated_bytes = 500;
    }
  }
  return r;
}

// The same prompts with their question unseen: kivi:bits=2 then loses everything.
inline void add_unseen(StoredResults& r) {
  const std::vector<SampleRecord> samples = r.samples;
  for (SampleRecord s : samples) {
    s.key.position = QuestionPosition::kUnseen;
    r.samples.push_back(s);
  }
  const std::vector<Outcome> outcomes = r.outcomes;
  for (Outcome o : outcomes) {
    o.key.position = QuestionPosition::kUnseen;
    if (o.spec.starts_with("kivi:bits=2")) o.score = 0;
    r.outcomes.push_back(o);
  }
}

// The same questions asked second: another prompt, on which full loses 0.1 nats; kivi:bits=2 loses 0.3 nats more than where it
// has seen the question.
inline void add_second(StoredResults& r) {
  const std::vector<SampleRecord> samples = r.samples;
  for (SampleRecord s : samples) {
    if (s.key.position != QuestionPosition::kSeen) continue;
    s.key.position = QuestionPosition::kSecond;
    s.prompt_hash = "second " + s.prompt_hash;
    r.samples.push_back(s);
  }
  const std::vector<Outcome> outcomes = r.outcomes;
  for (Outcome o : outcomes) {
    if (o.key.position != QuestionPosition::kSeen) continue;
    o.key.position = QuestionPosition::kSecond;
    *o.gold_log_likelihood -= o.spec.starts_with("kivi:bits=2") ? 0.4 : 0.1;
    r.outcomes.push_back(o);
  }
}

// Five runs of each cache alone on the first prompt at 2,048 tokens; kivi:bits=2 decodes twice as fast as full.
inline void add_solo(StoredResults& r) {
  for (const char* spec : {"full", "kivi:bits=4,group=32,residual=128", "kivi:bits=2,group=32,residual=128"}) {
    for (int repeat = 0; repeat < 5; ++repeat) {
      SoloRun s;
      s.key = {"needle", 2048, "0"};
      s.spec = spec;
      s.repeat = repeat;
      s.text = "the answer is 42";
      s.finish_reason = "stop";
      s.completion_tokens = 4;
      s.ttft_s = 1 + 0.1 * repeat;
      s.decode_tokens_per_s = (std::string_view(spec).starts_with("kivi:bits=2") ? 80 : 40) + repeat;
      s.end_to_end_tokens_per_s = 4;
      s.token_gaps_json = "[20,25,30]";
      s.peak_rss_bytes = (std::int64_t{200} + repeat) << 20;
      s.weight_bytes = std::int64_t{100} << 20;
      s.run = 1;
      r.solo.push_back(s);
    }
  }
}

}  // namespace kvartet
