// Files under a name of their own until they are whole: several processes may write the same file at once, each its own, and
// what a killed one left can be told from what a living one writes.
//
// The name is NAME.<process>-<random>.unfinished. The writer holds an exclusive lock (flock) on the file for as long as it is
// open, and the system gives the lock back however the process ends. So who can take the lock knows that nobody writes, on
// every file system whose locks reach all who see the file; where there are none, a file is never taken for abandoned.
#pragma once

#include <memory>
#include <string>

#include "core/file_system.h"
#include "core/status.h"

namespace kvartet {

// Another one at every call.
std::string unfinished_name(const std::string& path);

// Creates the file and holds it until the object dies. As FileSystem::open_random.
Result<std::unique_ptr<RandomAccessFile>> create_unfinished(FileSystem& files, const std::string& path);

// Removes the files of such names that nobody holds, and says how many. What cannot be listed, opened or removed stays.
int remove_abandoned(FileSystem& files, const std::string& directory);

}  // namespace kvartet
