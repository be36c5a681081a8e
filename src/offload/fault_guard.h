// Reading mapped files that may be cut short, or whose disk may fail, while they are read.
//
// The kernel reports both as SIGBUS at the load, and nothing can be asked beforehand without a race (docs/decisions/0009).
// read_guarded installs a handler for the process at its first call; faults that are not ours go to the handler before.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace kvartet {

// Runs `read`, which only loads from `mapped` and stores elsewhere: it may be left at any load, so it must own nothing that
// needs a destructor. False: a page of `mapped` could not be read. Thread-safe; not to be nested.
bool read_guarded(std::span<const std::byte> mapped, const std::function<void()>& read);

}  // namespace kvartet
