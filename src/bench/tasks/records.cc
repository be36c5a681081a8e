#include "bench/tasks/records.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "bench/metrics/unicode_text.h"

namespace kvartet {
namespace {

Result<Record> record_of(const nlohmann::json& object, int line, std::string_view metric) {
  Record record;
  record.line = line;
  KV_ASSIGN(record.id, id_field(object));
  if (record.id.empty()) record.id = fmt::format("line {}", line);
  KV_ASSIGN(record.input, text_field(object, "input"));
  KV_ASSIGN(record.context, text_field(object, "context"));
  KV_ASSIGN(record.answers, metric == "json" ? json_list_field(object, "answers") : text_list_field(object, "answers"));
  if (record.answers.empty()) return bad_input("field answers is empty");
  if (object.contains("all_classes")) {
    KV_ASSIGN(record.all_classes, text_list_field(object, "all_classes"));
  }
  KV_TRY(check_answer(metric, "", record.answers, record.all_classes));
  KV_ASSIGN(record.length, length_field(object));
  if (record.length < 0) record.length = static_cast<int>(split_words(decode_utf8(record.context)).size());
  return record;
}

}  // namespace

RecordFile parse_records(std::string_view text, std::string_view file_name, std::string_view metric) {
  RecordFile file;
  std::map<std::string, int> line_of_id;
  file.skipped = read_json_lines(text, file_name, [&](int line, const nlohmann::json& object) -> Status {
    KV_ASSIGN(Record record, record_of(object, line, metric));
    const auto [place, is_new] = line_of_id.try_emplace(record.id, line);
    if (!is_new) return bad_input(fmt::format("repeats the id {} of line {}", record.id, place->second));
    file.records.push_back(std::move(record));
    return {};
  });
  return file;
}

Result<SampleSet> sample_set(RecordFile file, const std::string& file_name, int limit,
                             const std::function<Sample(Record)>& sample_of) {
  if (file.records.empty() && file.skipped.empty()) return bad_input(fmt::format("{} holds no records", file_name));
  if (file.records.empty()) {
    const SkippedLine& first = file.skipped.front();
    return bad_input(fmt::format("no line of {} is a usable record; the first: {}: {}", file_name, first.where(), first.reason));
  }
  if (limit > 0 && static_cast<std::size_t>(limit) < file.records.size()) file.records.resize(static_cast<std::size_t>(limit));
  SampleSet set;
  set.skipped = std::move(file.skipped);
  for (Record& record : file.records) set.samples.push_back(sample_of(std::move(record)));
  return set;
}

}  // namespace kvartet
