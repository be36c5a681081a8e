#include "report/text_parts.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvartet {
namespace {

constexpr std::size_t kLongestSpec = 31;

// "snapkv:budget=0.25,window=32,..." in pieces that fit, cut behind a comma or a plus where there is one.
std::vector<std::string> wrap_spec(std::string_view spec, std::size_t width) {
  std::vector<std::string> out;
  std::string_view indent;  // of continuation lines
  while (spec.size() > width - indent.size()) {
    std::size_t cut = spec.find_last_of(",+", width - indent.size() - 1);
    cut = cut == std::string_view::npos || cut == 0 ? width - indent.size() : cut + 1;
    out.push_back(fmt::format("{}{}", indent, spec.substr(0, cut)));
    spec.remove_prefix(cut);
    indent = "  ";
  }
  out.push_back(fmt::format("{}{}", indent, spec));
  return out;
}

}  // namespace

std::size_t spec_width(std::span<const ReportRow> rows) {
  std::size_t width = 5;
  for (const ReportRow& r : rows) {
    for (const std::string& piece : wrap_spec(r.spec, kLongestSpec)) width = std::max(width, piece.size());
  }
  return width;
}

std::string spec_line(std::string_view spec, std::size_t width, std::string_view columns) {
  const std::vector<std::string> pieces = wrap_spec(spec, kLongestSpec);
  std::string out = fmt::format("{:<{}} {}\n", pieces.front(), width, columns);
  for (std::size_t i = 1; i < pieces.size(); ++i) out += pieces[i] + "\n";
  return out;
}

std::string text_number(const std::optional<double>& x, int decimals) { return x ? fmt::format("{:.{}f}", *x, decimals) : "-"; }

std::string text_interval(const Measured& m, int decimals) {
  if (m.verdict == Verdict::kNone) return "";
  if (!m.low || !m.high) return "-";
  return fmt::format("{:+.{}f}..{:+.{}f}", *m.low, decimals, *m.high, decimals);
}

std::string_view text_verdict(Verdict verdict) {
  return verdict == Verdict::kNotMeasurable ? "n too small" : verdict_name(verdict);
}

std::string wrap_text(std::string_view text) {
  std::string out;
  while (text.size() > kTextColumns) {
    std::size_t cut = text.rfind(' ', kTextColumns);
    if (cut == std::string_view::npos || cut == 0) cut = kTextColumns;
    out += std::string(text.substr(0, cut)) + "\n";
    text.remove_prefix(std::min(text.size(), text[cut] == ' ' ? cut + 1 : cut));
  }
  return out + std::string(text) + "\n";
}

}  // namespace kvartet
