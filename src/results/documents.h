// Which samples are about the same document: their results are not independent of each other.
#pragma once

#include <map>

#include "results/records.h"

namespace kvartet {

// One document is the same in whatever task, context and position of the question it stands: its results are no more independent
// there. A sample whose document is not known (stores of format 3 and older) has one of its own within its task and context.
class DocumentNumbers {
 public:
  explicit DocumentNumbers(const StoredResults& results);
  // `key`: of a sample or an outcome of the results.
  int of(const SampleKey& key) const;

 private:
  std::map<SampleKey, int> numbers_;
};

}  // namespace kvartet
