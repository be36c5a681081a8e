// The tables of the results store, and how files of older formats become the present one (docs/formats/results.md).
#pragma once

#include <cstdint>
#include <string>

#include "core/status.h"
#include "results/records.h"
#include "results/sqlite.h"

namespace kvartet {

inline constexpr std::int64_t kStoreFormat = 5;
inline constexpr std::int64_t kOldestStoreFormat = 1;

std::string store_path(const std::string& directory);

// Makes the tables in an empty file, renews those of an older format, or finds them there; all or nothing.
// kBadInput: another program's database, or a format of the future.
Status make_schema(Database& database, const std::string& path);

// kBadInput as above, or damaged; which a store is when it holds what Kvartet never writes.
Result<std::int64_t> format_of(Database& database, const std::string& path);

Status damaged_store(const std::string& path, const std::string& what);

// Formats 1 and 2 had one position of the question for a whole file: what its runs say.
Result<QuestionPosition> position_of_old_store(Database& database);

// The key of a sample: as a condition, as the condition's values, and as the first four columns of a row.
inline constexpr const char* kThisSample = "task = ? AND context = ? AND sample = ? AND question_position = ?";
Statement& bind_key(Statement& statement, const SampleKey& key);
Result<SampleKey> read_key(Statement& row);  // kBadInput: a position that there is not

}  // namespace kvartet
