// Records in LongBench's form, one JSON object a line: LongBench's own files and users' files alike.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/json_lines.h"
#include "bench/tasks/task.h"

namespace kvartet {

struct Record {
  int line = 0;
  std::string id;  // "line 17" when the record has none
  std::string input;
  std::string context;
  std::vector<std::string> answers;  // not empty
  std::vector<std::string> all_classes;
  int length = 0;  // LongBench's count of words; counted here when the field is missing
};

struct RecordFile {
  std::vector<Record> records;
  std::vector<SkippedLine> skipped;
};

// `input`, `context` and `answers` must be there. `metric` decides what else is needed (`all_classes`, answers that are
// JSON; with `json` they may be JSON values in place of texts).
RecordFile parse_records(std::string_view text, std::string_view file_name, std::string_view metric);

// The first `limit` records (0: all) as samples. kBadInput: not one record is usable; names the first reason.
Result<SampleSet> sample_set(RecordFile file, const std::string& file_name, int limit,
                             const std::function<Sample(Record)>& sample_of);

}  // namespace kvartet
