#include "bench/tasks/prompt_template.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvartet {
namespace {

std::string_view take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace

Result<std::string> fill_template(std::string_view text, const std::map<std::string, std::string, std::less<>>& fields) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool doubled = i + 1 < text.size() && text[i + 1] == c;
    if (c != '{' && c != '}') {
      out += c;
    } else if (doubled) {
      out += c;
      ++i;
    } else {
      const std::size_t end = c == '{' ? text.find('}', i) : std::string_view::npos;
      if (end == std::string_view::npos) return bad_input(fmt::format("the template has a single brace at character {}", i + 1));
      const std::string_view name = text.substr(i + 1, end - i - 1);
      const auto field = fields.find(name);
      if (field == fields.end())
        return bad_input(fmt::format("the template asks for {{{}}}, which is not known here", name.substr(0, 40)));
      out += field->second;
      i = end;
    }
  }
  return out;
}

Result<std::string> yaml_block(std::string_view yaml, std::string_view key) {
  const std::string head = fmt::format("{}: |-", key);
  while (!yaml.empty() && take_line(yaml) != head) {}
  std::string out;
  std::size_t indent = 0;
  while (!yaml.empty()) {
    const std::string_view line = take_line(yaml);
    const std::size_t spaces = line.find_first_not_of(' ');
    const bool blank = spaces == std::string_view::npos;
    if (!blank && indent == 0) indent = spaces;
    if (!blank && (spaces == 0 || spaces < indent)) break;
    out += blank ? std::string_view() : line.substr(indent);
    out += '\n';
  }
  while (out.ends_with('\n')) out.pop_back();
  if (out.empty()) return bad_input(fmt::format("there is no block '{}'", head));
  return out;
}

}  // namespace kvartet
