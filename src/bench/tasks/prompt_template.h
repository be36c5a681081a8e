// Prompt templates as data sets bring them: texts with {fields}, doubled braces for braces, as Python's str.format reads.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "core/status.h"

namespace kvartet {

// kBadInput: a field that has no value, or a brace without its partner.
Result<std::string> fill_template(std::string_view text, const std::map<std::string, std::string, std::less<>>& fields);

// The block of `key: |-` in a YAML file, its indentation taken off, without newlines at the end. Nothing else of YAML is
// understood. kBadInput: there is no such block.
Result<std::string> yaml_block(std::string_view yaml, std::string_view key);

}  // namespace kvartet
