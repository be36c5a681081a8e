// A results store of a stranger: read, put together with others, taken over, reported, its predictions written again.
//
// Bytes that begin as an SQLite file are one. Others are a script of rows, so that a mutation reaches what stands behind
// SQLite's own checks: a line is a table's letter and the columns that differ from a sound row, as "o|spec=q8_0|score=f1e308".
// The tables then have neither types nor constraints: any column may hold an integer (i), a real (f), nothing (n) or a text.
#include <sqlite3.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/runner/predictions.h"
#include "core/check.h"
#include "core/memory_file_system.h"
#include "report/claims.h"
#include "report/page.h"
#include "report/rows.h"
#include "report/text_table.h"
#include "results/merge.h"
#include "results/store.h"
#include "targets.h"

namespace kvartet::fuzz {
namespace {

constexpr std::string_view kSqliteMagic = "SQLite format 3";
constexpr std::size_t kMostLines = 64;

struct Column {
  std::string name;
  std::string value;  // of a sound row
};
struct Table {
  char letter;
  std::string name;
  std::vector<Column> columns;
};

const std::vector<Table>& tables() {
  static const std::vector<Table> all = {
      {'r',
       "runs",
       {{"run", "i1"},
        {"model_hash", "h"},
        {"model_name", "tiny"},
        {"model_shape", "2 layers"},
        {"seed", "1"},
        {"parameters", "p"},
        {"version", "0.1.0"},
        {"cpu", "c"},
        {"cores", "i2"},
        {"memory_bytes", "i1000"},
        {"compiler", "g++"},
        {"threads", "i2"},
        {"started", "2025-01-31T12:00:00Z"},
        {"process", "i7"}}},
      {'t', "tasks", {{"ordinal", "i1"}, {"task", "needle"}, {"metric", "contains"}}},
      {'c', "caches", {{"ordinal", "i1"}, {"spec", "full"}}},
      {'s',
       "samples",
       {{"task", "needle"},
        {"context", "i900"},
        {"sample", "a"},
        {"question_position", "seen"},
        {"ordinal", "i0"},
        {"prompt_hash", "aa"},
        {"prompt_tokens", "i800"},
        {"dropped_tokens", "i0"},
        {"gold_tokens", "i4"},
        {"length", "i500"},
        {"answers", R"(["42"])"},
        {"classes", "null"},
        {"question", "Which?"},
        {"depths", "[0.5]"},
        {"document", "d"}}},
      {'o',
       "outcomes",
       {{"task", "needle"},
        {"context", "i900"},
        {"sample", "a"},
        {"question_position", "seen"},
        {"spec", "full"},
        {"run", "i1"},
        {"error", ""},
        {"prediction", "42"},
        {"score", "f1"},
        {"gold_log_likelihood", "f-0.5"},
        {"ttft_s", "f1"},
        {"shared", "i1"},
        {"prefill_s", "f0.5"},
        {"compress_s", "f0.1"},
        {"decode_tokens_per_s", "f20"},
        {"live_bytes", "i900"},
        {"allocated_bytes", "i1000"},
        {"fast_bytes", "i1000"},
        {"f16_bytes", "i4000"},
        {"end_live_bytes", "i900"},
        {"end_allocated_bytes", "i1000"},
        {"end_fast_bytes", "i1000"},
        {"end_f16_bytes", "i4000"},
        {"rows_kept", "f100"},
        {"acted", "i1"},
        {"completion_tokens", "i5"},
        {"finish_reason", "stop"},
        {"token_gaps_ms", "[1,2]"}}},
      {'a',
       "solo",
       {{"task", "needle"},
        {"context", "i900"},
        {"sample", "a"},
        {"question_position", "seen"},
        {"spec", "full"},
        {"repeat", "i0"},
        {"run", "i1"},
        {"error", ""},
        {"text", "42"},
        {"finish_reason", "stop"},
        {"completion_tokens", "i5"},
        {"ttft_s", "f1"},
        {"prefill_s", "f0.5"},
        {"compress_s", "f0.1"},
        {"decode_tokens_per_s", "f20"},
        {"end_to_end_tokens_per_s", "f3"},
        {"token_gaps_ms", "[1,2]"},
        {"peak_rss_bytes", "i1000000"},
        {"weight_bytes", "i100000"}}},
  };
  return all;
}

RunRecord run_of_the_scripts() {
  RunRecord run;
  run.identity = {
      .model_hash = "h", .model_name = "tiny", .model_shape = "2 layers", .seed = 1, .parameters = "p", .version = "0.1.0"};
  run.machine = {.cpu = "mine", .cores = 2, .memory_bytes = 1000, .compiler = "g++"};
  run.started = "2025-01-31T12:00:00Z";
  return run;
}

// A folder in memory where there is one, for this process only.
const std::string& folder() {
  static const struct Folder {
    Folder() {
      std::string pattern =
          (std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path().string()) +
          "/kvartet_fuzz_XXXXXX";
      KV_CHECK(mkdtemp(pattern.data()) != nullptr);
      path = pattern;
    }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
    std::string path;
  } made;
  return made.path;
}

std::string fresh_folder(const std::string& name) {
  const std::string path = folder() + "/" + name;
  std::filesystem::create_directories(path);
  for (const char* ending : {"", "-journal", "-wal", "-shm"}) std::filesystem::remove(path + "/" + kStoreFile + ending);
  return path;
}

std::vector<std::string_view> split(std::string_view text, char border) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(border, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

void bind(sqlite3_stmt* insert, int place, const std::string& value) {
  const std::string rest = value.empty() ? "" : value.substr(1);
  switch (value.empty() ? '\0' : value[0]) {
    case 'i': sqlite3_bind_int64(insert, place, std::strtoll(rest.c_str(), nullptr, 10)); return;
    case 'f': sqlite3_bind_double(insert, place, std::strtod(rest.c_str(), nullptr)); return;
    case 'n':
      if (rest.empty()) return;  // nothing
      [[fallthrough]];
    default: sqlite3_bind_text(insert, place, value.data(), static_cast<int>(value.size()), SQLITE_TRANSIENT);
  }
}

void insert_row(sqlite3* database, std::string_view line) {
  const std::vector<std::string_view> parts = split(line, '|');
  const auto table = std::ranges::find_if(tables(), [&](const Table& t) { return parts[0] == std::string_view(&t.letter, 1); });
  if (table == tables().end()) return;
  std::map<std::string, std::string, std::less<>> changed;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::size_t equals = std::min(parts[i].find('='), parts[i].size());
    changed[std::string(parts[i].substr(0, equals))] = parts[i].substr(std::min(equals + 1, parts[i].size()));
  }
  std::string sql = "INSERT INTO " + table->name + " VALUES(?";
  for (std::size_t i = 1; i < table->columns.size(); ++i) sql += ",?";
  sqlite3_stmt* insert = nullptr;
  KV_CHECK(sqlite3_prepare_v2(database, (sql + ")").c_str(), -1, &insert, nullptr) == SQLITE_OK);
  int place = 0;
  for (const Column& column : table->columns) {
    const auto it = changed.find(column.name);
    bind(insert, ++place, it == changed.end() ? column.value : it->second);
  }
  sqlite3_step(insert);
  sqlite3_finalize(insert);
}

void write_script(const std::string& path, std::string_view script) {
  sqlite3* database = nullptr;
  KV_CHECK(sqlite3_open(path.c_str(), &database) == SQLITE_OK);
  std::string schema =
      "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN; PRAGMA application_id = 1263944018; "
      "PRAGMA user_version = 4;";
  for (const Table& table : tables()) {
    schema += "CREATE TABLE " + table.name + "(";
    for (const Column& column : table.columns) schema += column.name + ", ";
    schema.replace(schema.size() - 2, 2, ");");
  }
  KV_CHECK(sqlite3_exec(database, schema.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK);
  std::vector<std::string_view> lines = split(script, '\n');
  lines.resize(std::min(lines.size(), kMostLines));
  for (const std::string_view line : lines) insert_row(database, line);
  KV_CHECK(sqlite3_exec(database, "COMMIT", nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(database);
}

void check_refusal(const Status& status) {
  KV_CHECK(status.code() != Code::kOk && status.code() != Code::kInternal);
  KV_CHECK(!status.message().empty());
}

void report(StoredResults results) {
  std::vector<FolderResults> parts = {{"a", results}, {"b", std::move(results)}};
  const Result<MergedResults> merged = merge_results(std::move(parts));
  if (!merged.ok()) return check_refusal(merged.status());
  const std::vector<ReportRow> rows = report_rows(merged->results);
  PageRequest request;
  request.folders = {"a", "b"};
  request.claims = find_claims(merged->results, &merged->results);
  const std::string json = report_json(merged->results, rows).dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
  KV_CHECK(nlohmann::json::accept(json));
  const std::string table = text_table(merged->results, rows);
  KV_CHECK(std::ranges::none_of(table, [](char c) { return static_cast<unsigned char>(c) < 32 && c != '\n'; }));
  static_cast<void>(claims_text(request.claims));
  KV_CHECK(report_page(merged->results, rows, request).find("</html>") != std::string::npos);
  MemoryFileSystem files;
  const Status written = write_predictions(files, "out", merged->results);
  KV_CHECK(written.ok() || !written.message().empty());
}

void take_over(const std::string& directory) {
  FileSystem& files = FileSystem::real();
  Result<Store> own = Store::open(files, fresh_folder("own"), run_of_the_scripts());
  KV_CHECK(own.ok());
  const Status merged = own->merge(files, directory);
  if (!merged.ok()) check_refusal(merged);
}

}  // namespace

void feed_results(std::string_view bytes) {
  const std::string directory = fresh_folder("theirs");
  const std::string path = directory + "/" + kStoreFile;
  if (bytes.starts_with(kSqliteMagic)) {
    std::ofstream(path, std::ios::binary) << bytes;
  } else {
    write_script(path, bytes);
  }
  {
    Result<Store> store = Store::open_for_reading(FileSystem::real(), directory);
    if (!store.ok()) return check_refusal(store.status());
    Result<StoredResults> results = store->load();
    if (!results.ok()) return check_refusal(results.status());
    const Result<std::vector<EvidenceCell>> evidence = store->evidence();
    if (!evidence.ok()) check_refusal(evidence.status());
    report(std::move(results).value());
  }
  take_over(directory);
  // And the command that would go on with it.
  const Result<Store> resumed = Store::open(FileSystem::real(), directory, run_of_the_scripts());
  if (!resumed.ok()) check_refusal(resumed.status());
}

}  // namespace kvartet::fuzz
