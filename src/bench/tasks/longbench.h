// LongBench's English sets, read from the user's files: DATA/longbench/SET.jsonl and, for prompts and answer lengths,
// DATA/longbench/config/dataset2prompt.json and dataset2maxlen.json (their typos are part of the benchmark).
#pragma once

#include <span>
#include <string_view>

#include "bench/tasks/task.h"

namespace kvartet {

// One row of compression.md 13.1. Prompt and answer length come from the configuration files.
struct LongBenchSet {
  std::string_view name;
  std::string_view metric;
  AnswerCut answer_cut = AnswerCut::kNone;
  bool chat_template = true;
  bool stop_at_newline = false;
};

std::span<const LongBenchSet> longbench_sets();

// The sets that are refused: their scores need a word segmenter.
std::span<const std::string_view> longbench_chinese_sets();

// One entry per English set.
std::vector<TaskEntry> longbench_tasks();

// kUsage: not a set, a Chinese set (they need the word segmenter jieba), or any key.
Result<std::unique_ptr<Task>> make_longbench_task(const TaskSpec& spec);

}  // namespace kvartet
