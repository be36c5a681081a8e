// What of the known data sets a folder (--data) holds: found or missing, how many records, and a hash that tells two
// copies apart.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/json_lines.h"
#include "core/file_system.h"
#include "core/status.h"

namespace kvartet {

enum class DataState : std::uint8_t {
  kFound,
  kMissing,
  kDamaged,  // there, but with records that cannot be used, or not the form it should have
  kRefused,  // there, and Kvartet cannot score it: `note` says why
};
std::string_view data_state_name(DataState state);  // "found", ...

struct DataSetCheck {
  std::string task = {};    // which task reads it: "longbench/hotpotqa"
  std::string path = {};    // below the folder
  std::string source = {};  // where such files come from
  DataState state = DataState::kMissing;
  int records = 0;
  int unusable = 0;       // records
  std::string hash = {};  // XXH64 of the file, 16 hex digits; folders: of the names and hashes of their files
  std::string note = {};  // one sentence, or empty
  std::vector<SkippedLine> skipped = {};
};

// Every known file, found or not, in the order of `kvartet tasks`. Without a haystack in `directory` the tasks read the essays
// in `essays_dir`. kBadInput: `directory` is not there; kIo: unreadable.
Result<std::vector<DataSetCheck>> check_data(FileSystem& files, const std::string& directory, const std::string& essays_dir);

}  // namespace kvartet
