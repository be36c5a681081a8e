// Mistakes on the command line, as CLI11 finds them, in this program's words: the value, what is allowed, where help is.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cstdint>
#include <limits>
#include <system_error>
#include <type_traits>

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
  return fmt::format("{} has no command {}; {}; see {} --help", name, kvartet::quoted(*word), choice_hint(*word, names), name);
}

// Between the flag's name and what a check says of its value; CLI11 puts a colon there.
constexpr std::string_view kTakes = "takes ";
constexpr std::string_view kValue = "value ";

// CLI11's sentences about flags, made shorter.
std::string about_flag(std::string text) {
  for (const std::string_view start : {kTakes, kValue}) {
    const std::size_t at = text.find(fmt::format(": {}", start));
    if (at == std::string::npos) continue;
    return text.substr(0, at) + " " + text.substr(at + 2 + (start == kValue ? kValue.size() : 0));
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

// "from 1", "from 1 to 1024", as help shows it.
template <typename Number>
std::string bounds_text(Number least, Number most) {
  return most == std::numeric_limits<Number>::max() ? fmt::format("from {}", least) : fmt::format("from {} to {}", least, most);
}

// `Number`: as it is read and compared.
template <typename Number, typename Bound>
CLI::Validator number_check(std::string_view kind, Bound least, Bound most) {
  const std::string bounds = bounds_text(least, most);
  const auto check = [kind = std::string(kind), bounds, least, most](std::string& text) -> std::string {
    Number number = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    const bool octal = std::is_integral_v<Number> && text.size() > 1 && text.front() == '0';         // to CLI11, not to people
    const bool is_number = stop == end && error != std::errc::invalid_argument && number == number;  // no NaN is
    if (octal || !is_number) return fmt::format("{}{} {}, not {}", kTakes, kind, bounds, kvartet::quoted(text));
    if (error == std::errc::result_out_of_range || number < least || number > most)
      return fmt::format("{}{} is outside {} to {}", kValue, kvartet::printable(text), least, most);
    return {};
  };
  return {check, bounds};
}

}  // namespace

CLI::Validator at_least(int least) { return whole_number(least, INT_MAX); }
CLI::Validator whole_number(int least, int most) { return number_check<long long>("a whole number", least, most); }
CLI::Validator seed_number() {
  return number_check<std::uint64_t>("a whole number", std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max());
}
CLI::Validator number_within(double least, double most) { return number_check<double>("a number", least, most); }

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
