#include "results/store_schema.h"

#include <fmt/format.h>

#include "results/store.h"

namespace kvartet {
namespace {

constexpr std::int64_t kApplicationId = 0x4b564152;  // "KVAR": tells our file from any other SQLite file

// No write-ahead log: it needs shared memory, which network folders of a cluster do not offer.
constexpr const char* kRunTables = R"sql(
CREATE TABLE runs(
  run INTEGER PRIMARY KEY,
  model_hash TEXT NOT NULL, model_name TEXT NOT NULL, model_shape TEXT NOT NULL,
  seed TEXT NOT NULL, parameters TEXT NOT NULL, version TEXT NOT NULL,
  cpu TEXT NOT NULL, cores INTEGER NOT NULL, memory_bytes INTEGER NOT NULL, compiler TEXT NOT NULL,
  threads INTEGER NOT NULL, started TEXT NOT NULL, process INTEGER NOT NULL,
  UNIQUE(cpu, started, process)
) STRICT;
CREATE TABLE tasks(ordinal INTEGER PRIMARY KEY, task TEXT NOT NULL UNIQUE, metric TEXT NOT NULL) STRICT;
CREATE TABLE caches(ordinal INTEGER PRIMARY KEY, spec TEXT NOT NULL UNIQUE) STRICT;
)sql";

constexpr const char* kSampleTables = R"sql(
CREATE TABLE samples(
  task TEXT NOT NULL, context INTEGER NOT NULL, sample TEXT NOT NULL, question_position TEXT NOT NULL, ordinal INTEGER NOT NULL,
  prompt_hash TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, dropped_tokens INTEGER NOT NULL, gold_tokens INTEGER NOT NULL,
  length INTEGER NOT NULL, answers TEXT NOT NULL, classes TEXT NOT NULL,
  question TEXT NOT NULL, depths TEXT NOT NULL, document TEXT NOT NULL,
  PRIMARY KEY(task, context, question_position, sample)
) STRICT, WITHOUT ROWID;
CREATE TABLE outcomes(
  task TEXT NOT NULL, context INTEGER NOT NULL, sample TEXT NOT NULL, question_position TEXT NOT NULL,
  spec TEXT NOT NULL, run INTEGER NOT NULL,
  error TEXT NOT NULL, prediction TEXT NOT NULL, score REAL, gold_log_likelihood REAL,
  ttft_s REAL NOT NULL, shared INTEGER NOT NULL, prefill_s REAL NOT NULL, compress_s REAL NOT NULL, decode_tokens_per_s REAL NOT NULL,
  live_bytes INTEGER NOT NULL, allocated_bytes INTEGER NOT NULL, fast_bytes INTEGER NOT NULL, f16_bytes INTEGER NOT NULL,
  end_live_bytes INTEGER NOT NULL, end_allocated_bytes INTEGER NOT NULL, end_fast_bytes INTEGER NOT NULL, end_f16_bytes INTEGER NOT NULL,
  rows_kept REAL NOT NULL, acted INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, finish_reason TEXT NOT NULL,
  token_gaps_ms TEXT NOT NULL,
  PRIMARY KEY(task, context, question_position, sample, spec)
) STRICT, WITHOUT ROWID;
CREATE TABLE solo(
  task TEXT NOT NULL, context INTEGER NOT NULL, sample TEXT NOT NULL, question_position TEXT NOT NULL,
  spec TEXT NOT NULL, repeat INTEGER NOT NULL, run INTEGER NOT NULL, error TEXT NOT NULL,
  text TEXT NOT NULL, finish_reason TEXT NOT NULL, completion_tokens INTEGER NOT NULL,
  ttft_s REAL NOT NULL, prefill_s REAL NOT NULL, compress_s REAL NOT NULL,
  decode_tokens_per_s REAL NOT NULL, end_to_end_tokens_per_s REAL NOT NULL, token_gaps_ms TEXT NOT NULL,
  peak_rss_bytes INTEGER NOT NULL, weight_bytes INTEGER NOT NULL,
  PRIMARY KEY(task, context, question_position, sample, spec, repeat)
) STRICT, WITHOUT ROWID;
)sql";

// Format 1 lacked what the report shows: the question asked, the facts' depths, the time between tokens.
constexpr const char* kFormat1To2 = R"sql(
ALTER TABLE samples ADD COLUMN question TEXT NOT NULL DEFAULT '';
ALTER TABLE samples ADD COLUMN depths TEXT NOT NULL DEFAULT '';
ALTER TABLE outcomes ADD COLUMN token_gaps_ms TEXT NOT NULL DEFAULT '';
)sql";

// Format 3 did not know which samples are about the same document.
constexpr const char* kFormat3To4 = "ALTER TABLE samples ADD COLUMN document TEXT NOT NULL DEFAULT '';";

// Format 2 had one position of the question for a whole file, among the parameters of its runs. {0}: that position.
constexpr const char* kFormat2To3Rows = R"sql(
INSERT INTO samples(task, context, sample, question_position, ordinal, prompt_hash, prompt_tokens, dropped_tokens, gold_tokens,
                    length, answers, classes, question, depths, document)
  SELECT task, context, sample, '{0}', ordinal, prompt_hash, prompt_tokens, dropped_tokens, gold_tokens, length, answers, classes,
         question, depths, '' FROM old_samples;
INSERT INTO outcomes(task, context, sample, question_position, spec, run, error, prediction, score, gold_log_likelihood, ttft_s,
                     shared, prefill_s, compress_s, decode_tokens_per_s, live_bytes, allocated_bytes, fast_bytes, f16_bytes,
                     end_live_bytes, end_allocated_bytes, end_fast_bytes, end_f16_bytes, rows_kept, acted, completion_tokens,
                     finish_reason, token_gaps_ms)
  SELECT task, context, sample, '{0}', spec, run, error, prediction, score, gold_log_likelihood, ttft_s, shared, prefill_s,
         compress_s, decode_tokens_per_s, live_bytes, allocated_bytes, fast_bytes, f16_bytes, end_live_bytes, end_allocated_bytes,
         end_fast_bytes, end_f16_bytes, rows_kept, acted, completion_tokens, finish_reason, token_gaps_ms FROM old_outcomes;
DROP TABLE old_samples;
DROP TABLE old_outcomes;
UPDATE runs SET parameters = '';
)sql";

Result<std::int64_t> single_integer(Database& database, std::string_view sql) {
  KV_ASSIGN(Statement statement, database.prepare(sql));
  KV_ASSIGN(const bool row, statement.step());
  return row ? statement.integer() : 0;
}

Status renew(Database& database, std::int64_t version) {
  if (version == 4) return {};  // the same tables, without second questions: programs of then would take them for seen ones
  if (version == 3) return database.execute(kFormat3To4);
  if (version == 1) KV_TRY(database.execute(kFormat1To2));
  KV_ASSIGN(const QuestionPosition position, position_of_old_store(database));
  KV_TRY(database.execute("ALTER TABLE samples RENAME TO old_samples; ALTER TABLE outcomes RENAME TO old_outcomes;"));
  KV_TRY(database.execute(kSampleTables));
  return database.execute(fmt::format(kFormat2To3Rows, question_position_name(position)));
}

// Our tables and nothing that acts by itself: a view could take forever, a trigger could change what is written.
Status check_schema(Database& database, const std::string& path, std::int64_t version) {
  const std::int64_t expected = version >= 3 ? 6 : 5;
  KV_ASSIGN(const std::int64_t ours,
            single_integer(database, fmt::format("SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN ('runs', "
                                                 "'tasks', 'caches', 'samples', 'outcomes'{}) AND sql NOT LIKE '%VIRTUAL%'",
                                                 version >= 3 ? ", 'solo'" : "")));
  if (ours != expected) return damaged_store(path, fmt::format("it has {} of the {} tables", ours, expected));
  KV_ASSIGN(const std::int64_t foreign,
            single_integer(database, "SELECT count(*) FROM sqlite_schema WHERE type NOT IN ('table', 'index')"));
  if (foreign != 0) return damaged_store(path, "it has views or triggers, which Kvartet never writes");
  return {};
}

}  // namespace

std::string store_path(const std::string& directory) { return fmt::format("{}/{}", directory, kStoreFile); }

Status damaged_store(const std::string& path, const std::string& what) {
  return bad_input(fmt::format("{} is not a Kvartet results file or is damaged: {}; choose another folder.", path, what));
}

Result<std::int64_t> format_of(Database& database, const std::string& path) {
  KV_ASSIGN(const std::int64_t application, single_integer(database, "PRAGMA application_id"));
  KV_ASSIGN(const std::int64_t version, single_integer(database, "PRAGMA user_version"));
  KV_ASSIGN(const std::int64_t objects, single_integer(database, "SELECT count(*) FROM sqlite_schema"));
  if (application == 0 && version == 0 && objects == 0) {  // what a full disk leaves: made, but not a byte could be written
    return bad_input(fmt::format(
        "{} holds no results: the command that made it ended before it could write any (was the disk full?); repeat that "
        "command.",
        path));
  }
  if (application != kApplicationId) {
    return bad_input(fmt::format("{} is a database of another program, not Kvartet results; choose another folder.", path));
  }
  if (version < kOldestStoreFormat || version > kStoreFormat) {
    return bad_input(
        fmt::format("{} has format {}, this Kvartet reads formats {} to {}; use the version that wrote it or another folder.",
                    path, version, kOldestStoreFormat, kStoreFormat));
  }
  KV_TRY(check_schema(database, path, version));
  return version;
}

Status make_schema(Database& database, const std::string& path) {
  KV_ASSIGN(Transaction transaction, Transaction::begin(database));
  KV_ASSIGN(const std::int64_t tables, single_integer(database, "SELECT count(*) FROM sqlite_schema"));
  if (tables == 0) {
    KV_TRY(database.execute(kRunTables));
    KV_TRY(database.execute(kSampleTables));
    KV_TRY(database.execute(fmt::format("PRAGMA application_id = {};", kApplicationId)));
  } else {
    KV_ASSIGN(const std::int64_t version, format_of(database, path));
    if (version == kStoreFormat) return {};
    KV_TRY(renew(database, version));
  }
  KV_TRY(database.execute(fmt::format("PRAGMA user_version = {};", kStoreFormat)));
  return transaction.commit();
}

Result<QuestionPosition> position_of_old_store(Database& database) {
  KV_ASSIGN(const std::int64_t unseen,
            single_integer(database, "SELECT count(*) FROM runs WHERE parameters LIKE '%question=unseen%'"));
  return unseen > 0 ? QuestionPosition::kUnseen : QuestionPosition::kSeen;
}

Statement& bind_key(Statement& statement, const SampleKey& key) {
  return statement.bind(key.task).bind(key.context).bind(key.sample).bind(std::string_view(question_position_name(key.position)));
}

Result<SampleKey> read_key(Statement& row) {
  SampleKey key;
  key.task = row.text();
  key.context = static_cast<int>(row.integer());
  key.sample = row.text();
  const std::string stored = row.text();
  const std::optional<QuestionPosition> position = find_question_position(stored);
  if (!position) {
    return bad_input(
        fmt::format("the results store is damaged: sample {} of {} has the question position '{}'; restore a copy, or "
                    "run the benchmark into a new folder",
                    key.sample, key.task, stored));
  }
  key.position = *position;
  return key;
}

}  // namespace kvartet
