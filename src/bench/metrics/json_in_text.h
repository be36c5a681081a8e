// The JSON value that an answer holds.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace kvartet {

// Discarded when the text is no JSON, or nested too deeply to be compared (comparing recurses).
nlohmann::json parse_json(std::string_view text);

// Of a whole answer: the text itself if it is JSON; else what is inside its first Markdown fence; else what stands from
// the first { or [ to the last } or ]. Discarded: none of these is JSON.
nlohmann::json json_in_text(std::string_view text);

}  // namespace kvartet
