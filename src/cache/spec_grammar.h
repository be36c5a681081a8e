// The grammar of spec strings (DESIGN 5), knowing no method: stages of a name and key=value settings, either may be a
// pair "keys/values". What the names mean is spec.cc's business.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace kvartet {

// "4" or "4/2": one text for both sides, or one for keys and one for values.
struct SidedText {
  std::string key;
  std::string value;
  bool paired() const { return key != value; }
};

struct SpecSetting {
  std::string name;
  SidedText value;
};

struct SpecStage {
  SidedText name;
  std::vector<SpecSetting> settings;  // in the order written, no name twice
  const SpecSetting* find(std::string_view setting) const;
};

// kUsage: an empty part, a missing '=', a third '/', the same key twice in one stage.
Result<std::vector<SpecStage>> parse_stages(std::string_view text);

// A whole number written with digits only (an optional minus), within [least, most].
Result<int> parse_whole(std::string_view key, std::string_view text, int least, int most);

// The name with the fewest edits to `word`, case aside, the first of equals; none where more than half of the letters differ: a
// name that is only the least far would mislead.
std::optional<std::string_view> likely_name(std::string_view word, std::span<const std::string_view> names);

// How a sentence goes on that refuses a word: "the nearest is BEFOREname (choose a, b or c)", or "choose a, b or c" where there
// is no likely name. `before` is what the user writes in front of a name, such as "bits=".
std::string choice_hint(std::string_view word, std::span<const std::string_view> names, std::string_view before = {});

// "a", "a or b", "a, b or c".
std::string list_names(std::span<const std::string_view> names);

// The user's text, fit for one line of a message: long ones cut, control bytes as '?'; and the same in quotes.
std::string printable(std::string_view text);
std::string quoted(std::string_view text);

}  // namespace kvartet
