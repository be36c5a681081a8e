#include "bench/metrics/classification.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "bench/metrics/best_reference.h"
#include "bench/metrics/unicode_text.h"

namespace kvartet {
namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

double classify_against(std::string_view gold, std::vector<std::string_view> found) {
  // Python's `for x in found: ... found.remove(x)`: the index moves on over the gap, and remove() takes the first equal.
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::string_view name = found[i];
    if (contains(gold, name) && name != gold) found.erase(std::find(found.begin(), found.end(), name));
  }
  const bool hit = std::find(found.begin(), found.end(), gold) != found.end();
  return hit ? 1.0 / static_cast<double>(found.size()) : 0.0;
}

double share_equal(const std::vector<std::string>& numbers, std::string_view gold) {
  if (numbers.empty()) return 0;
  return static_cast<double>(std::count(numbers.begin(), numbers.end(), gold)) / static_cast<double>(numbers.size());
}

// N of the first `Paragraph N`; empty: there is none.
std::string paragraph_number(std::string_view text) {
  constexpr std::string_view kCue = "Paragraph ";
  for (std::size_t at = text.find(kCue); at != std::string_view::npos; at = text.find(kCue, at + 1)) {
    const std::u32string behind = decode_utf8(text.substr(at + kCue.size()));
    if (!behind.empty() && is_digit(behind[0])) return digit_runs(text.substr(at + kCue.size())).front();
  }
  return {};
}

}  // namespace

double classification(std::string_view prediction, Texts references, Texts all_classes) {
  std::vector<std::string_view> found;
  for (const std::string& name : all_classes) {
    if (contains(prediction, name)) found.push_back(name);
  }
  return best_reference(references, [&](const std::string& gold) { return classify_against(gold, found); });
}

Status check_classes(std::string_view, Texts, Texts all_classes) {
  if (!all_classes.empty()) return {};
  return bad_input("field all_classes is missing or empty, and the metric classification needs it");
}

double count_share(std::string_view prediction, Texts references, Texts) {
  const std::vector<std::string> numbers = digit_runs(prediction);
  return best_reference(references, [&](const std::string& gold) { return share_equal(numbers, gold); });
}

double retrieval_share(std::string_view prediction, Texts references, Texts) {
  const std::vector<std::string> numbers = digit_runs(prediction);
  return best_reference(references, [&](const std::string& gold) { return share_equal(numbers, paragraph_number(gold)); });
}

}  // namespace kvartet
