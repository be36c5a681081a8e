// Prediction files in LongBench's form, written from the store: DIR/predictions/<task>/<context>/<spec>.jsonl,
// with <context>-unseen or <context>-second where the question came after sealing.
#pragma once

#include <string>

#include "core/file_system.h"
#include "core/status.h"
#include "results/records.h"

namespace kvartet {

// One file per cell and cache, each replaced as a whole; failed samples have no line. kIo: cannot be written.
Status write_predictions(FileSystem& files, const std::string& directory, const StoredResults& results);

// "longbench/multi_news" -> "longbench-multi_news": a name for a file or folder. Different specs get different names: that
// of a record file in a folder ("a/b.jsonl") also carries a hash of its path, because a file "a-b.jsonl" may stand beside it.
std::string path_name(const std::string& spec);

// The same, cut where it is too long for a file's name and then told apart by a hash: specs of many keys have up to 1,000 bytes.
std::string file_name(const std::string& spec);

}  // namespace kvartet
