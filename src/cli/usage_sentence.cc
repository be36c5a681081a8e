// Mistakes on the command line, as CLI11 finds them, in this program's words: the value, what is allowed, where help is.
#include <fmt/format.h>

#include <algorithm>
#include <climits>

#include "cache/spec_grammar.h"
#include "cli/command.h"

namespace kvartet {
namespace {

// The command whose words were being read: `bench` of `kvartet bench ...`, `check` of `kvartet data check ...`.
const CLI::App& innermost(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : full_name(*parent) + " " + command.get_name();
}

// The name of a command is missing or is none.
std::string no_command(const CLI::App& command, const std::vector<std::string>& words) {
  std::vector<std::string_view> names;
  const auto for_people = [](const CLI::App* sub) { return !sub->get_group().empty(); };
  for (const CLI::App* sub : command.get_subcommands(for_people)) names.emplace_back(sub->get_name());
  auto word = words.begin();
  if (command.get_parent() != nullptr) {
    word = std::find(words.begin(), words.end(), command.get_name());
    if (word != words.end()) ++word;
  }
  const std::string name = full_name(command);
  if (word == words.end() || word->empty() || word->starts_with('-')) {
    return fmt::format("{} needs {} {}; see {} --help", name, names.size() == 1 ? "the command" : "one of the commands",
                       list_names(names), name);
  }
  return fmt::format("{} has no command {}; the nearest is '{}'; see {} --help", name, kvartet::quoted(*word),
                     nearest_name(*word, names), name);
}

void replace_first(std::string* text, std::string_view from, std::string_view to) {
  if (const std::size_t at = text->find(from); at != std::string::npos) text->replace(at, from.size(), to);
}

void erase_all(std::string* text, std::string_view what) {
  for (std::size_t at = text->find(what); at != std::string::npos; at = text->find(what)) text->erase(at, what.size());
}

// CLI11's sentences about flags, made shorter.
std::string about_flag(std::string text) {
  if (text.find(" not in range ") != std::string::npos) {
    replace_first(&text, ": Value ", " ");
    replace_first(&text, " not in range ", " is outside ");
    erase_all(&text, ".000000");
  }
  constexpr std::string_view kTwice = ": At Most 1 required but received ";
  if (const std::size_t at = text.find(kTwice); at != std::string::npos) {
    return fmt::format("{} is given {} times, and takes one value", text.substr(0, at), text.substr(at + kTwice.size()));
  }
  constexpr std::string_view kNumber = "Could not convert: ";
  if (text.starts_with(kNumber)) {
    const std::size_t equals = text.find(" = ");
    if (equals == std::string::npos) return text;
    return fmt::format("{} takes a number, and one of a size it can hold, not {}",
                       text.substr(kNumber.size(), equals - kNumber.size()), kvartet::quoted(text.substr(equals + 3)));
  }
  constexpr std::string_view kUnknown = "The following argument was not expected: ";
  if (text.starts_with(kUnknown)) return "there is no such flag or argument here: " + text.substr(kUnknown.size());
  return text;
}

}  // namespace

CLI::Range at_least(int least) { return {least, INT_MAX, fmt::format("from {}", least)}; }

std::string usage_sentence(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& words) {
  const CLI::App& command = innermost(app);
  const std::string text = error.what();
  if (text.starts_with("A subcommand is required")) return no_command(command, words);
  return fmt::format("{}; see {} --help", about_flag(text), full_name(command));
}

std::string wrapped(std::string_view text, std::size_t indent, std::size_t width) {
  std::string lines;
  std::size_t column = 0;
  const auto new_line = [&] {
    while (lines.ends_with(' ')) lines.pop_back();
    lines += '\n' + std::string(indent, ' ');
    column = indent;
  };
  while (!text.empty()) {
    // A word goes up to the blanks behind it, or up to a comma: lists of keys have no blanks.
    std::size_t end = std::min(text.find_first_of(" ,"), text.size());
    if (end < text.size() && text[end] == ',') ++end;
    const std::size_t next = std::min(text.find_first_not_of(' ', end), text.size());
    if (column > indent && column + end > width) new_line();
    lines += text.substr(0, next);
    column += next;
    text.remove_prefix(next);
  }
  while (lines.ends_with(' ')) lines.pop_back();
  return lines + '\n';
}

}  // namespace kvartet
