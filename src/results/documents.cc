#include "results/documents.h"

#include <string>
#include <tuple>

#include "core/check.h"

namespace kvartet {

DocumentNumbers::DocumentNumbers(const StoredResults& results) {
  std::map<std::tuple<std::string, int, std::string, std::string>, int> known;  // the last two: document, or sample
  const auto add = [&](const SampleKey& key, const std::string& document) {
    const std::string& own = document.empty() ? key.sample : std::string();
    const auto [it, fresh] = known.try_emplace({key.task, key.context, document, own}, static_cast<int>(known.size()));
    numbers_.try_emplace(key, it->second);
  };
  for (const SampleRecord& sample : results.samples) add(sample.key, sample.document);
  for (const Outcome& outcome : results.outcomes) {
    if (!numbers_.contains(outcome.key)) add(outcome.key, "");
  }
}

int DocumentNumbers::of(const SampleKey& key) const {
  const auto found = numbers_.find(key);
  KV_CHECK(found != numbers_.end());
  return found->second;
}

}  // namespace kvartet
