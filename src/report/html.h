// Writes HTML that is balanced and escaped by construction: text and attribute values can only enter as text.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvartet {

// For text and for attribute values in double quotes. What is no valid UTF-8, and control characters other than tab and
// line feed, become U+FFFD.
std::string html_escaped(std::string_view text);

class Html {
 public:
  using Attribute = std::pair<std::string_view, std::string>;
  using Attributes = std::vector<Attribute>;

  Html& open(std::string_view tag, const Attributes& attributes = {});
  Html& close();                                                         // the innermost open element
  Html& empty(std::string_view tag, const Attributes& attributes = {});  // no end tag: meta, input, br, wbr
  Html& element(std::string_view tag, std::string_view text, const Attributes& attributes = {});
  Html& text(std::string_view text);
  Html& constant(std::string_view markup);  // as it is: only for text that is part of this program
  std::string take();                       // everything must be closed

 private:
  void start(std::string_view tag, const Attributes& attributes);
  std::string out_;
  std::vector<std::string> open_;
};

}  // namespace kvartet
