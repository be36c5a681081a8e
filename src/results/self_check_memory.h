// What self-checks found, kept from one command to the next: one line of text per model and cache.
//
// Lines are only added, so two programs may write at once; of several lines about the same model and cache the last holds. Lines
// that cannot be read (damaged, or of another probe) are passed over: the check then runs again.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/file_system.h"
#include "core/status.h"

namespace kvartet {

inline constexpr const char* kSelfCheckFile = "self-checks.tsv";

// A cache on a short text, against `full`.
struct SelfCheck {
  std::string spec;  // canonical
  int seen = 0;      // tokens of the text
  int tokens = 0;    // compared, the last of them
  double top1_agreement = 0;
  double kl_mean = 0;
  bool acted = false;         // has anything been dropped or written in fewer bits?
  std::string cause;          // of poor agreement, as part of a sentence; empty: none of the usual ones was found
  std::string safe_spec;      // the nearest cache that did better; empty: none was found
  double safe_agreement = 0;  // its top-1 agreement on the same text
  bool operator==(const SelfCheck&) const = default;
};

class SelfCheckMemory {
 public:
  // `probe` names text, length and engine: results of another probe are not used. A missing file is an empty memory.
  // kIo: the file cannot be read.
  static Result<SelfCheckMemory> load(FileSystem& files, const std::string& path, std::string probe);

  const SelfCheck* find(const std::string& model_hash, const std::string& spec) const;  // null: not known
  // Makes the file's folder if need be. kIo: not written.
  Status add(FileSystem& files, const std::string& model_hash, std::span<const SelfCheck> checks);

 private:
  SelfCheckMemory(std::string path, std::string probe) : path_(std::move(path)), probe_(std::move(probe)) {}
  void read_line(std::string_view line);

  std::string path_;
  std::string probe_;
  std::map<std::pair<std::string, std::string>, SelfCheck> known_;  // by (model hash, spec)
};

}  // namespace kvartet
