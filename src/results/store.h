// The results store: one SQLite file per output folder (docs/formats/results.md).
//
// A sample's outcomes are written in one transaction, so a killed process keeps every finished sample and nothing of an
// unfinished one. A store holds runs of one identity only; stores of equal identity merge by key.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "results/evidence.h"
#include "results/records.h"
#include "results/sqlite.h"

namespace kvartet {

inline constexpr const char* kStoreFile = "results.sqlite";

class Store {
 public:
  // Opens or makes `directory` for this run. kUsage: it holds results of another run, and the sentence names what
  // differs; kIo: it cannot be written; kBadInput: its results file is something else or damaged.
  static Result<Store> open(FileSystem& files, const std::string& directory, const RunRecord& run);
  // For reports: read-only, also stores of an older format. kBadInput: no results there, or of a newer format.
  static Result<Store> open_for_reading(FileSystem& files, const std::string& directory);

  Status add_task(const std::string& task, const std::string& metric);

  // Which of `specs` have no outcome for this sample yet, in the given order; failed ones count as missing, so that
  // repeating the command tries them again. kUsage: the sample is stored with another prompt, so the input has changed.
  Result<std::vector<std::string>> missing(const SampleKey& key, const std::string& prompt_hash,
                                           std::span<const std::string> specs);

  // What a sample of an older format is about, in both positions of its question, once the plan says it again.
  Status note_document(const SampleRecord& sample);

  // All or nothing. An outcome replaces an earlier one of the same sample and spec.
  Status finish_sample(const SampleRecord& sample, std::span<const Outcome> outcomes);

  // A run that is there is replaced.
  Status finish_solo(const SoloRun& solo);

  // Takes over what `directory`'s store has and this one has not (and successes in place of failures).
  // kUsage: another run's, or another prompt under the same sample.
  Status merge(FileSystem& files, const std::string& directory);

  Result<StoredResults> load();

  // The store as statistics, without its texts: what each cache lost against `full`, by task and context.
  Result<std::vector<EvidenceCell>> evidence();

 private:
  Store(Database database, std::string directory, std::int64_t format)
      : database_(std::move(database)), directory_(std::move(directory)), format_(format) {}
  Status check_identity(const RunIdentity& identity);
  Result<std::int64_t> add_run(const RunRecord& run);
  Status put_sample(const SampleRecord& sample);
  Status put_outcome(const Outcome& outcome, std::int64_t run);
  Result<std::vector<RunRecord>> load_runs();
  Result<std::vector<SampleRecord>> load_samples();
  Result<std::vector<Outcome>> load_outcomes();
  Result<std::string> position_column(std::string_view table);  // an expression in SQL, whatever the format
  Status put_solo(const SoloRun& solo, std::int64_t run);
  Status merge_solo(std::span<const SoloRun> theirs, const std::map<std::int64_t, std::int64_t>& own_number);
  Result<std::vector<SoloRun>> load_solo();

  Database database_;
  std::string directory_;
  std::int64_t format_;  // of the file; older ones are read as they are and renewed when written
  std::int64_t run_id_ = 0;
};

}  // namespace kvartet
