// Lists in which every cache stands once.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "cache/spec.h"

namespace kvartet {

// False: the list holds a cache of this canonical form already, and stays as it is.
inline bool add_once(std::vector<CacheSpec>* specs, CacheSpec spec) {
  const auto same = [&](const CacheSpec& s) { return s.canonical == spec.canonical; };
  if (std::any_of(specs->begin(), specs->end(), same)) return false;
  specs->push_back(std::move(spec));
  return true;
}

}  // namespace kvartet
