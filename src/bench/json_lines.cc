#include "bench/json_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/utf8.h"

namespace kvartet {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\v\f") == std::string_view::npos; }

std::string_view without_byte_order_mark(std::string_view text) {
  if (text.substr(0, kByteOrderMark.size()) == kByteOrderMark) text.remove_prefix(kByteOrderMark.size());
  return text;
}

bool is_utf16(std::string_view text) {
  const std::string_view mark = text.substr(0, 2);
  return mark == "\xFF\xFE" || mark == "\xFE\xFF";
}

// Levels of lists and objects in a text that may be JSON. Writing and comparing a value recurses, so it must have a bound.
constexpr int kDeepestNesting = 200;
int nesting_depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '[' || c == '{')) {
      deepest = std::max(deepest, ++depth);
    } else if (!in_string && (c == ']' || c == '}')) {
      --depth;
    }
  }
  return deepest;
}

// nlohmann's parser says why by exception only; none gets further than here.
Status use_line(std::string_view line, int number, const std::function<Status(int, const nlohmann::json&)>& record) {
  if (const std::size_t at = line.find('\0'); at != std::string_view::npos) {
    return bad_input(fmt::format("a NUL byte at column {}", at + 1));
  }
  if (const std::size_t at = valid_utf8_prefix(line); at < line.size()) {
    return bad_input(fmt::format("byte 0x{:02x} at column {} is not UTF-8", static_cast<unsigned char>(line[at]), at + 1));
  }
  if (const int depth = nesting_depth(line); depth > kDeepestNesting) {
    return bad_input(fmt::format("JSON of {} levels; at most {} can be read", depth, kDeepestNesting));
  }
  nlohmann::json value;
  try {
    value = nlohmann::json::parse(line);
  } catch (const nlohmann::json::parse_error& error) {
    return bad_input(fmt::format("broken JSON at column {}", error.byte));
  } catch (const nlohmann::json::exception& error) {  // a number out of range
    return bad_input(fmt::format("JSON that cannot be read ({})", error.what()));
  }
  if (!value.is_object()) return bad_input(fmt::format("a JSON {} where an object is needed", value.type_name()));
  return record(number, value);
}

}  // namespace

std::vector<SkippedLine> read_json_lines(std::string_view text, std::string_view file_name,
                                         const std::function<Status(int line, const nlohmann::json& object)>& record) {
  std::vector<SkippedLine> skipped;
  if (is_utf16(text)) {
    skipped.push_back({std::string(file_name), 1, "the file is UTF-16; save it as UTF-8"});
    return skipped;
  }
  text = without_byte_order_mark(text);
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (is_blank(line)) continue;
    const Status status = use_line(line, number, record);
    if (!status.ok()) skipped.push_back({std::string(file_name), number, status.message()});
  }
  return skipped;
}

Result<std::string> text_field(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return bad_input(fmt::format("field {} is missing", key));
  if (!found->is_string()) return bad_input(fmt::format("field {} is a JSON {}, not a text", key, found->type_name()));
  return found->get<std::string>();
}

Result<std::vector<std::string>> text_list_field(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return bad_input(fmt::format("field {} is missing", key));
  if (found->is_null()) return std::vector<std::string>{};
  if (found->is_string()) {
    return bad_input(fmt::format("field {} is a text where a list of texts is needed; write [\"...\"], in brackets", key));
  }
  if (!found->is_array()) return bad_input(fmt::format("field {} is a JSON {}, not a list of texts", key, found->type_name()));
  std::vector<std::string> texts;
  for (const nlohmann::json& item : *found) {
    if (!item.is_string()) {
      return bad_input(fmt::format("field {} holds a JSON {} at place {}, not a text", key, item.type_name(), texts.size() + 1));
    }
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

Result<std::vector<std::string>> text_or_list_field(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_string()) return std::vector<std::string>{found->get<std::string>()};
  return text_list_field(object, key);
}

Result<std::vector<std::string>> json_list_field(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return bad_input(fmt::format("field {} is missing", key));
  std::vector<std::string> texts;
  const auto add = [&](const nlohmann::json& item) { texts.push_back(item.is_string() ? item.get<std::string>() : item.dump()); };
  if (!found->is_array()) {
    add(*found);
  } else {
    for (const nlohmann::json& item : *found) add(item);
  }
  return texts;
}

Result<std::string> id_field(const nlohmann::json& object) {
  for (const char* key : {"id", "_id"}) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) continue;
    if (found->is_string()) return found->get<std::string>();
    if (found->is_number_integer()) return found->dump();
    return bad_input(fmt::format("field {} is a JSON {}, not a text or a whole number", key, found->type_name()));
  }
  return std::string();
}

Result<int> length_field(const nlohmann::json& object) {
  constexpr double kMostWords = 2e9;
  const auto found = object.find("length");
  if (found == object.end() || found->is_null()) return -1;
  if (!found->is_number()) return bad_input(fmt::format("field length is a JSON {}, not a count of words", found->type_name()));
  const auto value = found->get<double>();
  if (value >= 0 && value <= kMostWords) return static_cast<int>(value);
  return bad_input(fmt::format("field length is {}, which is no count of words", found->dump()));
}

}  // namespace kvartet
