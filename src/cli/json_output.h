// The form of every --json: indented, one document, its bytes that are no UTF-8 (a file's name may have any) replaced.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kvartet {

template <class Json>
std::string json_text(const Json& document) {
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kvartet
