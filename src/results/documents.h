// Which samples are about the same document: their results are not independent of each other.
#pragma once

#include <map>

#include "results/records.h"

namespace kvartet {

// Numbers documents within a task and context. A sample whose document is not known (stores of format 3 and older) has one of
// its own. Both positions of a question have the same.
class DocumentNumbers {
 public:
  explicit DocumentNumbers(const StoredResults& results);
  // `key`: of a sample or an outcome of the results.
  int of(const SampleKey& key) const;

 private:
  std::map<SampleKey, int> numbers_;
};

}  // namespace kvartet
