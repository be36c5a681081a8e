#include "bench/metrics/code_similarity.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/metrics/best_reference.h"
#include "bench/metrics/unicode_text.h"

namespace kvartet {
namespace {

std::size_t common_subsequence_length(std::u32string_view a, std::u32string_view b) {
  std::vector<std::uint32_t> row(b.size() + 1);
  for (const char32_t x : a) {
    std::uint32_t diagonal = 0;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::uint32_t above = row[j + 1];
      row[j + 1] = x == b[j] ? diagonal + 1 : std::max(above, row[j]);
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace

std::string_view first_code_line(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const bool is_prose = line.find_first_of("`#") != std::string_view::npos || line.find("//") != std::string_view::npos;
    if (!is_prose) return line;
    begin = end + 1;
  }
  return {};
}

int fuzzy_ratio(std::string_view a, std::string_view b) {
  if (a == b) return 100;
  const std::u32string x = decode_utf8(a);
  const std::u32string y = decode_utf8(b);
  const auto total = static_cast<double>(x.size() + y.size());
  // The distance with insertions and deletions only is total - 2 * (longest common subsequence).
  const double ratio = 2.0 * static_cast<double>(common_subsequence_length(x, y)) / total;
  return static_cast<int>(std::nearbyint(100 * ratio));
}

double code_similarity(std::string_view prediction, Texts references, Texts) {
  const std::string_view line = first_code_line(prediction);
  return best_reference(references, [&](const std::string& reference) { return fuzzy_ratio(line, reference) / 100.0; });
}

}  // namespace kvartet
