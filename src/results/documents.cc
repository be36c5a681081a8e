#include "results/documents.h"

#include <string>
#include <tuple>
#include <utility>

#include "core/check.h"

namespace kvartet {

DocumentNumbers::DocumentNumbers(const StoredResults& results) {
  // Without their position: one of the two may come from an older store.
  using Prompt = std::tuple<std::string, int, std::string>;
  const auto prompt_of = [](const SampleKey& key) { return Prompt{key.task, key.context, key.sample}; };
  std::map<Prompt, std::string> document_of;
  for (const SampleRecord& sample : results.samples) {
    if (!sample.document.empty()) document_of.try_emplace(prompt_of(sample.key), sample.document);
  }
  std::map<std::pair<std::string, Prompt>, int> known;  // by document, or without one by prompt
  const auto add = [&](const SampleKey& key) {
    const auto document = document_of.find(prompt_of(key));
    const std::pair<std::string, Prompt> identity =
        document == document_of.end() ? std::pair(std::string(), prompt_of(key)) : std::pair(document->second, Prompt());
    const auto [it, fresh] = known.try_emplace(identity, static_cast<int>(known.size()));
    numbers_.try_emplace(key, it->second);
  };
  for (const SampleRecord& sample : results.samples) add(sample.key);
  for (const Outcome& outcome : results.outcomes) add(outcome.key);
}

int DocumentNumbers::of(const SampleKey& key) const {
  const auto found = numbers_.find(key);
  KV_CHECK(found != numbers_.end());
  return found->second;
}

}  // namespace kvartet
