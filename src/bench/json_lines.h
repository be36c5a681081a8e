// JSON lines as people really have them: a BOM, CRLF and blank lines are fine; every other defect is a line with a
// reason, never a silently shorter result (user-needs C20).
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace kvartet {

// A line that could not be used. `where()` is what the user sees: "preds.jsonl:17".
struct SkippedLine {
  std::string file;
  int line = 0;  // from 1
  std::string reason;
  std::string where() const { return file + ":" + std::to_string(line); }
};

// Calls `record(line, object)` for every line that holds a JSON object, in order; the callback says why it cannot use
// one by returning a bad status. Returns all lines that were not used, in file order.
std::vector<SkippedLine> read_json_lines(std::string_view text, std::string_view file_name,
                                         const std::function<Status(int line, const nlohmann::json& object)>& record);

// Fields of a record. kBadInput, naming the field: missing, or of another kind.
Result<std::string> text_field(const nlohmann::json& object, const char* key);
// A list of texts; null (LongBench's all_classes) counts as an empty list.
Result<std::vector<std::string>> text_list_field(const nlohmann::json& object, const char* key);
// The same for files that others made: one text counts as a list of one.
Result<std::vector<std::string>> text_or_list_field(const nlohmann::json& object, const char* key);
// The same, where an item that is no text stands for its JSON; one object counts as a list of one.
Result<std::vector<std::string>> json_list_field(const nlohmann::json& object, const char* key);
// The record's `id` or LongBench's `_id`, a text or a whole number; "" when there is none, or null.
Result<std::string> id_field(const nlohmann::json& object);
// LongBench's `length`, a count of words; -1 when there is none, or null.
Result<int> length_field(const nlohmann::json& object);

}  // namespace kvartet
