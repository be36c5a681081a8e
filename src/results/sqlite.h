// The little of SQLite that the store needs: a connection, a statement, and what went wrong as a Status.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/status.h"

struct sqlite3;
struct sqlite3_stmt;

namespace kvartet {

class Statement {
 public:
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&&) = delete;
  ~Statement();

  // Parameters in order, starting with the first `?` after reset().
  Statement& bind(std::int64_t value);
  Statement& bind(int value) { return bind(std::int64_t{value}); }
  Statement& bind(double value);
  Statement& bind(std::string_view value);
  Statement& bind(const std::string& value) { return bind(std::string_view(value)); }
  Statement& bind(const std::optional<double>& value);
  Statement& flag(bool value) { return bind(std::int64_t{value}); }

  Result<bool> step();  // true: a row is there to be read
  Status run();         // to the end, then reset

  // Columns of the current row, from left to right.
  std::int64_t integer();
  double real();
  std::optional<double> optional_real();
  std::string text();

  void reset();

 private:
  friend class Database;
  Statement(sqlite3* database, sqlite3_stmt* statement, std::string path);
  sqlite3* database_ = nullptr;
  sqlite3_stmt* statement_ = nullptr;
  std::string path_;
  int parameter_ = 0;
  int column_ = 0;
};

enum class Access : std::uint8_t { kReadOnly, kReadWrite };

class Database {
 public:
  // kReadWrite creates the file. kIo: the system refuses; kBadInput: not a database.
  static Result<Database> open(const std::string& path, Access access);
  Database(Database&& other) noexcept;
  Database& operator=(Database&& other) noexcept;
  ~Database();

  Status execute(const std::string& sql);
  Result<Statement> prepare(std::string_view sql);

 private:
  explicit Database(sqlite3* database, std::string path) : database_(database), path_(std::move(path)) {}
  sqlite3* database_ = nullptr;
  std::string path_;
};

// All or nothing: rolls back unless commit() was called and succeeded.
class Transaction {
 public:
  static Result<Transaction> begin(Database& database);
  Transaction(Transaction&& other) noexcept : database_(other.database_) { other.database_ = nullptr; }
  Transaction& operator=(Transaction&&) = delete;
  ~Transaction();
  Status commit();

 private:
  explicit Transaction(Database& database) : database_(&database) {}
  Database* database_;
};

}  // namespace kvartet
