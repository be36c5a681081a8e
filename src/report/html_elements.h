// Pages read back in tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace kvartet {

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;  // of it and all within
};

// A strict reader for the HTML we write: everything closed in order, attributes quoted. Fails the test otherwise.
inline std::vector<Element> parsed(const std::string& html) {
  static const std::set<std::string> kVoid = {"meta", "input", "br", "wbr", "!DOCTYPE"};
  std::vector<Element> done;
  std::vector<Element> open;
  std::size_t at = 0;
  while (at < html.size()) {
    if (html[at] != '<') {
      const std::size_t next = std::min(html.find('<', at), html.size());
      for (Element& e : open) e.text += html.substr(at, next - at);
      at = next;
      continue;
    }
    const std::size_t end = html.find('>', at);
    if (end == std::string::npos) {
      ADD_FAILURE() << "a tag without an end: " << html.substr(at, 80);
      return done;
    }
    std::string tag = html.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag[0] == '/') {
      if (open.empty() || open.back().name != tag.substr(1)) {
        ADD_FAILURE() << "</" << tag.substr(1) << "> closes " << (open.empty() ? "nothing" : open.back().name);
        return done;
      }
      done.push_back(open.back());
      open.pop_back();
      continue;
    }
    Element element;
    element.name = tag.substr(0, tag.find(' '));
    static const std::regex kAttribute(R"re( ([A-Za-z:-]+)(?:="([^"]*)")?)re");
    for (std::sregex_iterator it(tag.begin(), tag.end(), kAttribute), none; it != none; ++it)
      element.attributes[(*it)[1]] = (*it)[2];
    if (kVoid.contains(element.name)) {
      done.push_back(element);
      continue;
    }
    if (element.name == "script" || element.name == "style") {  // raw text
      const std::string close = "</" + element.name + ">";
      const std::size_t stop = html.find(close, at);
      element.text = html.substr(at, stop - at);
      at = stop + close.size();
      done.push_back(element);
      continue;
    }
    open.push_back(element);
  }
  EXPECT_TRUE(open.empty());
  return done;
}

inline std::vector<Element> named(const std::vector<Element>& all, const std::string& name) {
  std::vector<Element> out;
  std::ranges::copy_if(all, std::back_inserter(out), [&](const Element& e) { return e.name == name; });
  return out;
}

}  // namespace kvartet
