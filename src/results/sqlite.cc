#include "results/sqlite.h"

#include <fmt/format.h>
#include <sqlite3.h>

namespace kvartet {
namespace {

Status sqlite_status(sqlite3* database, int code, const std::string& path) {
  const std::string reason = database != nullptr ? sqlite3_errmsg(database) : sqlite3_errstr(code);
  switch (code & 0xff) {
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
      return io_error(fmt::format("The results file {} cannot be written ({}); choose a folder you may write to.", path, reason));
    case SQLITE_FULL:
    case SQLITE_IOERR: {
      std::string sentence = fmt::format(
          "The results file {} could not be written ({}); free space on that disk and repeat the command: finished samples are "
          "kept.",
          path, reason);
      return (code & 0xff) == SQLITE_FULL ? exhausted(std::move(sentence)) : io_error(std::move(sentence));
    }
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return io_error(fmt::format("The results file {} is in use by another process ({}); wait for it or choose another folder.",
                                  path, reason));
    // Our statements and values are right: the tables, or rows taken over from them, are not what we write.
    case SQLITE_ERROR:
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
      return bad_input(fmt::format("{} is not a Kvartet results file or is damaged ({}); choose another folder.", path, reason));
    case SQLITE_NOMEM: return exhausted(fmt::format("There is not enough memory to use the results file {}.", path));
    default: return internal_error(fmt::format("The results file {}: {}.", path, reason));
  }
}

}  // namespace

Statement::Statement(sqlite3* database, sqlite3_stmt* statement, std::string path)
    : database_(database), statement_(statement), path_(std::move(path)) {}

Statement::Statement(Statement&& other) noexcept
    : database_(other.database_),
      statement_(other.statement_),
      path_(std::move(other.path_)),
      parameter_(other.parameter_),
      column_(other.column_) {
  other.statement_ = nullptr;
}

Statement::~Statement() { sqlite3_finalize(statement_); }

// Binding fails only for a wrong parameter number or without memory; the step that follows reports the latter.
Statement& Statement::bind(std::int64_t value) {
  KV_CHECK(sqlite3_bind_int64(statement_, ++parameter_, value) != SQLITE_RANGE);
  return *this;
}

Statement& Statement::bind(double value) {
  KV_CHECK(sqlite3_bind_double(statement_, ++parameter_, value) != SQLITE_RANGE);
  return *this;
}

Statement& Statement::bind(std::string_view value) {
  // A null pointer would bind NULL, and an empty view may carry one.
  const char* data = value.empty() ? "" : value.data();
  KV_CHECK(sqlite3_bind_text64(statement_, ++parameter_, data, value.size(), SQLITE_TRANSIENT, SQLITE_UTF8) != SQLITE_RANGE);
  return *this;
}

Statement& Statement::bind(const std::optional<double>& value) {
  if (value) return bind(*value);
  KV_CHECK(sqlite3_bind_null(statement_, ++parameter_) != SQLITE_RANGE);
  return *this;
}

Result<bool> Statement::step() {
  column_ = 0;
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  Status status = sqlite_status(database_, code, path_);
  reset();
  return status;
}

Status Statement::run() {
  for (;;) {
    KV_ASSIGN(const bool row, step());
    if (!row) break;
  }
  reset();
  return {};
}

void Statement::reset() {
  sqlite3_reset(statement_);
  parameter_ = 0;
  column_ = 0;
}

std::int64_t Statement::integer() { return sqlite3_column_int64(statement_, column_++); }
double Statement::real() { return sqlite3_column_double(statement_, column_++); }

std::optional<double> Statement::optional_real() {
  const int column = column_++;
  if (sqlite3_column_type(statement_, column) == SQLITE_NULL) return std::nullopt;
  return sqlite3_column_double(statement_, column);
}

std::string Statement::text() {
  const int column = column_++;
  const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
  return data == nullptr ? std::string() : std::string(data, static_cast<std::size_t>(sqlite3_column_bytes(statement_, column)));
}

Result<Database> Database::open(const std::string& path, Access access) {
  sqlite3* handle = nullptr;
  // A reader, too, must be able to roll back what a killed writer left half-done; SQLite reads only where it may not write.
  const int flags = SQLITE_OPEN_READWRITE | (access == Access::kReadOnly ? 0 : SQLITE_OPEN_CREATE);
  const int code = sqlite3_open_v2(path.c_str(), &handle, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  if (code != SQLITE_OK) {
    Status status = sqlite_status(handle, code, path);
    sqlite3_close(handle);
    return status;
  }
  sqlite3_extended_result_codes(handle, 1);
  sqlite3_busy_timeout(handle, 10000);
  // A stranger's file may hold views and defaults that call functions with effects; without trust they cannot.
  sqlite3_exec(handle, "PRAGMA trusted_schema = 0", nullptr, nullptr, nullptr);
  if (access == Access::kReadOnly) sqlite3_exec(handle, "PRAGMA query_only = 1", nullptr, nullptr, nullptr);
  return Database(handle, path);
}

Database::Database(Database&& other) noexcept : database_(other.database_), path_(std::move(other.path_)) {
  other.database_ = nullptr;
}

Database& Database::operator=(Database&& other) noexcept {
  if (this != &other) {
    sqlite3_close(database_);
    database_ = other.database_;
    path_ = std::move(other.path_);
    other.database_ = nullptr;
  }
  return *this;
}

Database::~Database() { sqlite3_close(database_); }

Status Database::execute(const std::string& sql) {
  const int code = sqlite3_exec(database_, sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? Status() : sqlite_status(database_, code, path_);
}

Result<Statement> Database::prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v2(database_, sql.data(), static_cast<int>(sql.size()), &statement, nullptr);
  if (code != SQLITE_OK) return sqlite_status(database_, code, path_);
  return Statement(database_, statement, path_);
}

Result<Transaction> Transaction::begin(Database& database) {
  // Immediate: two processes that both read first and write later would deadlock.
  KV_TRY(database.execute("BEGIN IMMEDIATE"));
  return Transaction(database);
}

Transaction::~Transaction() {
  if (database_ == nullptr) return;
  const Status ignored = database_->execute("ROLLBACK");  // the failure that brought us here is what gets reported
  static_cast<void>(ignored.ok());
}

Status Transaction::commit() {
  KV_TRY(database_->execute("COMMIT"));
  database_ = nullptr;
  return {};
}

}  // namespace kvartet
