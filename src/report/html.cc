#include "report/html.h"

#include "core/check.h"
#include "core/utf8.h"

namespace kvartet {

std::string html_escaped(std::string_view text) {
  const std::string valid = replace_invalid_utf8(text);
  std::string out;
  out.reserve(valid.size() + valid.size() / 8);
  for (const char c : valid) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: {
        const auto byte = static_cast<unsigned char>(c);
        const bool control = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
        if (control) {
          out += kReplacementCharacter;
        } else {
          out += c;
        }
      }
    }
  }
  return out;
}

void Html::start(std::string_view tag, const Attributes& attributes) {
  out_ += '<';
  out_ += tag;
  for (const auto& [name, value] : attributes) {
    out_ += ' ';
    out_ += name;
    if (value.empty()) continue;  // as in <form hidden>
    out_ += "=\"" + html_escaped(value) + '"';
  }
  out_ += '>';
}

Html& Html::open(std::string_view tag, const Attributes& attributes) {
  start(tag, attributes);
  open_.emplace_back(tag);
  return *this;
}

Html& Html::close() {
  KV_CHECK(!open_.empty());
  out_ += "</" + open_.back() + '>';
  const std::string& tag = open_.back();
  const bool block = tag != "span" && tag != "mark" && tag != "b" && tag != "text" && tag != "a";
  if (block) out_ += '\n';
  open_.pop_back();
  return *this;
}

Html& Html::empty(std::string_view tag, const Attributes& attributes) {
  start(tag, attributes);
  return *this;
}

Html& Html::element(std::string_view tag, std::string_view content, const Attributes& attributes) {
  return open(tag, attributes).text(content).close();
}

Html& Html::text(std::string_view text) {
  out_ += html_escaped(text);
  return *this;
}

Html& Html::constant(std::string_view markup) {
  out_ += markup;
  return *this;
}

std::string Html::take() {
  KV_CHECK(open_.empty());
  return std::move(out_);
}

}  // namespace kvartet
