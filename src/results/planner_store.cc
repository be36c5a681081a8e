#include "results/planner_store.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "core/bytes_text.h"
#include "core/counted.h"
#include "results/store.h"

namespace kvartet {
namespace {

constexpr std::int64_t kApplicationId = 0x4b56504c;  // "KVPL"
constexpr std::int64_t kFormatVersion = 3;

constexpr const char* kSchema = R"sql(
CREATE TABLE calibrations(
  calibration INTEGER PRIMARY KEY,
  cpu TEXT NOT NULL, cores INTEGER NOT NULL, memory_bytes INTEGER NOT NULL, compiler TEXT NOT NULL, threads INTEGER NOT NULL,
  version TEXT NOT NULL, measured TEXT NOT NULL, revision INTEGER NOT NULL DEFAULT 0,
  UNIQUE(cpu, cores, memory_bytes, compiler, threads)
) STRICT;
CREATE TABLE rates(
  calibration INTEGER NOT NULL, what TEXT NOT NULL, subject TEXT NOT NULL, head_dim INTEGER NOT NULL, heads INTEGER NOT NULL,
  depth INTEGER NOT NULL, value REAL NOT NULL, spread REAL NOT NULL
) STRICT;
CREATE TABLE evidence_stores(store TEXT PRIMARY KEY, stamp TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE evidence(
  store TEXT NOT NULL, model_hash TEXT NOT NULL, model_name TEXT NOT NULL, parameters TEXT NOT NULL, task TEXT NOT NULL,
  metric TEXT NOT NULL, context INTEGER NOT NULL, spec TEXT NOT NULL, prompt_tokens INTEGER NOT NULL,
  nats_n INTEGER NOT NULL, nats_mean REAL NOT NULL, nats_m2 REAL NOT NULL,
  score_n INTEGER NOT NULL, score_mean REAL NOT NULL, score_m2 REAL NOT NULL
) STRICT;
CREATE INDEX evidence_by_store ON evidence(store);
CREATE TABLE plans(
  id INTEGER PRIMARY KEY, decided TEXT NOT NULL, model TEXT NOT NULL, kind TEXT NOT NULL, kind_source TEXT NOT NULL,
  prompt_tokens INTEGER NOT NULL, limits TEXT NOT NULL, spec TEXT NOT NULL, reason TEXT NOT NULL, calibrated INTEGER NOT NULL,
  loss_low REAL NOT NULL, loss_expected REAL NOT NULL, loss_high REAL NOT NULL,
  predicted_bytes REAL NOT NULL, predicted_ttft_s REAL NOT NULL, predicted_rate REAL NOT NULL,
  actual_bytes REAL, actual_ttft_s REAL, actual_rate REAL, actual_loss REAL
) STRICT;
)sql";

constexpr const char* kFidelityTable = R"sql(
CREATE TABLE fidelity(
  model_hash TEXT NOT NULL, text_hash TEXT NOT NULL, spec TEXT NOT NULL, prefix_tokens INTEGER NOT NULL, tokens INTEGER NOT NULL,
  model_name TEXT NOT NULL, kl_mean REAL NOT NULL, kl_sd REAL NOT NULL, measured TEXT NOT NULL,
  PRIMARY KEY(model_hash, text_hash, spec, prefix_tokens, tokens)
) STRICT, WITHOUT ROWID;
)sql";

// Format 1 knew no fidelity, and its statistics did not tell a paper's own form from a fair one: they are made anew.
constexpr const char* kFormat1To2 = "DELETE FROM evidence; DELETE FROM evidence_stores;";

// Format 2 did not say by which revision of the measurement a calibration was made: by one before the first that is counted.
constexpr const char* kFormat2To3 = "ALTER TABLE calibrations ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;";

constexpr std::int64_t kMostCount = 1'000'000'000;  // rows, tokens, documents
constexpr double kMostNats = 1e6;
constexpr double kMost = 1e18;
constexpr double kStoredPerNat = 100;  // losses of decisions lie here in hundredths of a nat, as the first formats had them

std::optional<double> stored(const std::optional<double>& nats) {
  if (!nats) return std::nullopt;
  return kStoredPerNat * *nats;
}

Result<std::int64_t> integer_of(Database& database, std::string_view sql) {
  KV_ASSIGN(Statement statement, database.prepare(sql));
  KV_ASSIGN(const bool row, statement.step());
  return row ? statement.integer() : 0;
}

// Our tables and nothing that acts by itself.
Status check_schema(Database& database, const std::string& path) {
  constexpr std::int64_t kTables = 6;
  KV_ASSIGN(const std::int64_t tables,
            integer_of(database,
                       "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN ('calibrations', 'rates', "
                       "'evidence_stores', 'evidence', 'plans', 'fidelity')"));
  KV_ASSIGN(const std::int64_t foreign,
            integer_of(database, "SELECT count(*) FROM sqlite_schema WHERE type IN ('view', 'trigger')"));
  if (tables == kTables && foreign == 0) return {};
  return bad_input(
      fmt::format("{} is damaged: it has {} of the {} tables of the planner's memory, and {} views or triggers; remove "
                  "it, or name another folder with KVARTET_HOME",
                  path, tables, kTables, foreign));
}

Status make_or_check(Database& database, const std::string& path) {
  KV_ASSIGN(Transaction transaction, Transaction::begin(database));
  KV_ASSIGN(const std::int64_t tables, integer_of(database, "SELECT count(*) FROM sqlite_schema"));
  if (tables == 0) {
    KV_TRY(database.execute(kSchema));
    KV_TRY(database.execute(kFidelityTable));
    KV_TRY(
        database.execute(fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {};", kApplicationId, kFormatVersion)));
    return transaction.commit();
  }
  KV_ASSIGN(const std::int64_t application, integer_of(database, "PRAGMA application_id"));
  KV_ASSIGN(const std::int64_t version, integer_of(database, "PRAGMA user_version"));
  if (application != kApplicationId)
    return bad_input(fmt::format(
        "{} is a database of another program, not the planner's memory; name another folder with KVARTET_HOME", path));
  if (version == 1 || version == 2) {
    if (version == 1) {
      KV_TRY(database.execute(kFidelityTable));
      KV_TRY(database.execute(kFormat1To2));
    }
    KV_TRY(database.execute(kFormat2To3));
    KV_TRY(database.execute(fmt::format("PRAGMA user_version = {};", kFormatVersion)));
    KV_TRY(check_schema(database, path));
    return transaction.commit();
  }
  if (version != kFormatVersion) {
    return bad_input(
        fmt::format("{} has format {}, this Kvartet reads format {}; remove it, or name another folder with KVARTET_HOME", path,
                    version, kFormatVersion));
  }
  return check_schema(database, path);
}

bool within(double x, double least, double most) { return x >= least && x <= most; }  // no NaN is
bool is_count(std::int64_t n) { return n >= 0 && n <= kMostCount; }
// -1: none that can be.
int count_of(Statement& row) {
  const std::int64_t n = row.integer();
  return is_count(n) ? static_cast<int>(n) : -1;
}

bool is_possible(const Moments& m) { return is_count(m.n) && within(m.mean, -kMostNats, kMostNats) && within(m.m2, 0, kMost); }

bool is_possible(const EvidenceCell& c) {
  return is_possible(c.nats) && is_possible(c.score) && is_count(c.context) && c.prompt_tokens > 0;
}

bool is_possible(const Rate& r) {
  return within(r.value, 0, kMost) && within(r.spread, 0, kMost) && is_count(r.head_dim) && is_count(r.group) &&
         is_count(r.depth);
}

bool is_possible(const FidelityRecord& r) {
  return is_count(r.prefix_tokens) && r.tokens > 0 && within(r.kl_mean, -kMostNats, kMostNats) && within(r.kl_sd, 0, kMost);
}

bool is_possible(const std::optional<double>& measured) { return !measured || within(*measured, 0, kMost); }

bool is_possible(const PlanRecord& p) {
  const bool ordered = within(p.loss_low, -kMost, p.loss_expected) && within(p.loss_high, p.loss_expected, kMost);
  const bool predicted = within(p.predicted_bytes, 0, kMost) && within(p.predicted_ttft_s, 0, kMost) &&
                         within(p.predicted_decode_tokens_per_s, 0, kMost);
  return ordered && predicted && is_possible(p.actual_bytes) && is_possible(p.actual_ttft_s) &&
         is_possible(p.actual_decode_tokens_per_s);
}

Status damaged_memory(const std::string& what) {
  return bad_input(fmt::format(
      "the planner's memory is damaged: {} cannot be; remove its file, or name another folder with KVARTET_HOME", what));
}

// Changes whenever a transaction was written to the results file, or its statistics would be others.
Result<std::string> stamp_of(const std::string& directory) {
  struct stat s = {};
  const std::string path = directory + "/" + kStoreFile;
  if (stat(path.c_str(), &s) != 0) {
    return bad_input(fmt::format("There are no results in {} ({} is missing); make some with 'kvartet bench ... -o {}'.",
                                 directory, kStoreFile, directory));
  }
  return fmt::format("{}:{}:{}:{}.{:09}", kEvidenceRevision, s.st_ino, s.st_size, s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
}

}  // namespace

bool same_machine(const Machine& a, const Machine& b) {
  // Control groups and virtual machines report a few pages more or less from boot to boot.
  const double apart = static_cast<double>(a.memory_bytes) - static_cast<double>(b.memory_bytes);
  const bool memory = apart * apart <= 0.0025 * static_cast<double>(a.memory_bytes) * static_cast<double>(b.memory_bytes);
  return a.cpu == b.cpu && a.cores == b.cores && a.compiler == b.compiler && memory;
}

std::string machine_text(const Machine& m) {
  return fmt::format("{}, {}, {}, {}", m.cpu, counted(m.cores, "core"), bytes_text(m.memory_bytes), m.compiler);
}

Result<std::vector<EvidenceCell>> read_evidence(FileSystem& files, const std::string& directory) {
  KV_ASSIGN(Store store, Store::open_for_reading(files, directory));
  return store.evidence();
}

Result<PlannerStore> PlannerStore::open(FileSystem& files, const std::string& directory) {
  KV_TRY(files.make_directories(directory));
  const std::string path = directory + "/" + kPlannerFile;
  Result<Database> database = Database::open(path, Access::kReadWrite);
  Status readable = database.status();  // whatever file opens; what it is shows when it is read
  if (readable.ok()) readable = integer_of(*database, "SELECT count(*) FROM sqlite_schema").status();
  if (readable.code() == Code::kBadInput) {
    return bad_input(fmt::format(
        "{} is not the planner's memory, or it is damaged; remove it, or name another folder with KVARTET_HOME", path));
  }
  KV_TRY(readable);
  KV_TRY(make_or_check(*database, path));
  return PlannerStore(std::move(*database));
}

Status PlannerStore::save(const Calibration& c) {
  KV_ASSIGN(Transaction transaction, Transaction::begin(database_));
  KV_ASSIGN(Statement old,
            database_.prepare("DELETE FROM rates WHERE calibration IN (SELECT calibration FROM calibrations WHERE cpu = ? AND "
                              "cores = ? AND memory_bytes = ? AND compiler = ? AND threads = ?)"));
  const Machine& m = c.machine;
  KV_TRY(old.bind(m.cpu).bind(m.cores).bind(m.memory_bytes).bind(m.compiler).bind(c.threads).run());
  KV_ASSIGN(Statement insert,
            database_.prepare("INSERT OR REPLACE INTO calibrations(cpu, cores, memory_bytes, compiler, threads, version, "
                              "measured, revision) VALUES(?, ?, ?, ?, ?, ?, ?, ?)"));
  KV_TRY(insert.bind(m.cpu)
             .bind(m.cores)
             .bind(m.memory_bytes)
             .bind(m.compiler)
             .bind(c.threads)
             .bind(c.version)
             .bind(c.measured)
             .bind(c.revision)
             .run());
  KV_ASSIGN(const std::int64_t id, integer_of(database_, "SELECT last_insert_rowid()"));
  KV_ASSIGN(Statement rates, database_.prepare("INSERT INTO rates VALUES(?, ?, ?, ?, ?, ?, ?, ?)"));
  for (const Rate& r : c.rates) {
    rates.bind(id).bind(r.what).bind(r.subject).bind(r.head_dim).bind(r.group).bind(r.depth).bind(r.value).bind(r.spread);
    KV_TRY(rates.run());
  }
  return transaction.commit();
}

Result<std::vector<Calibration>> PlannerStore::calibrations() {
  std::vector<Calibration> out;
  KV_ASSIGN(Statement row,
            database_.prepare("SELECT calibration, cpu, cores, memory_bytes, compiler, threads, version, measured, "
                              "revision FROM calibrations ORDER BY measured DESC, calibration DESC"));
  KV_ASSIGN(Statement rates,
            database_.prepare("SELECT what, subject, head_dim, heads, depth, value, spread FROM rates WHERE calibration = ? "
                              "ORDER BY what, subject, head_dim, heads, depth"));
  for (;;) {
    KV_ASSIGN(const bool more, row.step());
    if (!more) return out;
    Calibration c;
    const std::int64_t id = row.integer();
    c.machine.cpu = row.text();
    c.machine.cores = static_cast<int>(row.integer());
    c.machine.memory_bytes = row.integer();
    c.machine.compiler = row.text();
    c.threads = static_cast<int>(row.integer());
    c.version = row.text();
    c.measured = row.text();
    c.revision = static_cast<int>(row.integer());
    if (!is_count(c.revision)) return damaged_memory(fmt::format("the revision of the calibration of {}", c.measured));
    rates.reset();
    rates.bind(id);
    for (;;) {
      KV_ASSIGN(const bool another, rates.step());
      if (!another) break;
      Rate r;
      r.what = rates.text();
      r.subject = rates.text();
      r.head_dim = static_cast<int>(rates.integer());
      r.group = static_cast<int>(rates.integer());
      r.depth = static_cast<int>(rates.integer());
      r.value = rates.real();
      r.spread = rates.real();
      if (!is_possible(r)) return damaged_memory(fmt::format("the rate {} of {}", r.what, c.measured));
      c.rates.push_back(std::move(r));
    }
    out.push_back(std::move(c));
  }
}

Result<std::vector<EvidenceCell>> PlannerStore::evidence(FileSystem& files, const std::string& directory) {
  KV_ASSIGN(const std::string stamp, stamp_of(directory));
  KV_ASSIGN(Statement known, database_.prepare("SELECT stamp FROM evidence_stores WHERE store = ?"));
  KV_ASSIGN(const bool there, known.bind(directory).step());
  if (there && known.text() == stamp) {
    KV_ASSIGN(std::vector<EvidenceCell> cells, remembered(directory));
    if (std::ranges::all_of(cells, [](const EvidenceCell& c) { return is_possible(c); })) return cells;
  }
  known.reset();
  KV_ASSIGN(std::vector<EvidenceCell> cells, read_evidence(files, directory));
  KV_TRY(remember(directory, stamp, cells));
  return cells;
}

Result<std::vector<EvidenceCell>> PlannerStore::remembered(const std::string& store) {
  KV_ASSIGN(Statement row,
            database_.prepare("SELECT model_hash, model_name, parameters, task, metric, context, spec, prompt_tokens, nats_n, "
                              "nats_mean, nats_m2, score_n, score_mean, score_m2 FROM evidence WHERE store = ? ORDER BY rowid"));
  row.bind(store);
  std::vector<EvidenceCell> cells;
  for (;;) {
    KV_ASSIGN(const bool more, row.step());
    if (!more) return cells;
    EvidenceCell c;
    c.model_hash = row.text();
    c.model_name = row.text();
    c.parameters = row.text();
    c.task = row.text();
    c.metric = row.text();
    c.context = count_of(row);
    c.spec = row.text();
    c.prompt_tokens = count_of(row);
    c.nats.n = count_of(row);
    c.nats.mean = row.real();
    c.nats.m2 = row.real();
    c.score.n = count_of(row);
    c.score.mean = row.real();
    c.score.m2 = row.real();
    cells.push_back(std::move(c));
  }
}

Status PlannerStore::remember(const std::string& store, const std::string& stamp, const std::vector<EvidenceCell>& cells) {
  KV_ASSIGN(Transaction transaction, Transaction::begin(database_));
  KV_ASSIGN(Statement old, database_.prepare("DELETE FROM evidence WHERE store = ?"));
  KV_TRY(old.bind(store).run());
  KV_ASSIGN(Statement insert, database_.prepare("INSERT INTO evidence VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"));
  for (const EvidenceCell& c : cells) {
    insert.bind(store)
        .bind(c.model_hash)
        .bind(c.model_name)
        .bind(c.parameters)
        .bind(c.task)
        .bind(c.metric)
        .bind(c.context)
        .bind(c.spec);
    insert.bind(c.prompt_tokens)
        .bind(c.nats.n)
        .bind(c.nats.mean)
        .bind(c.nats.m2)
        .bind(c.score.n)
        .bind(c.score.mean)
        .bind(c.score.m2);
    KV_TRY(insert.run());
  }
  KV_ASSIGN(Statement mark, database_.prepare("INSERT OR REPLACE INTO evidence_stores VALUES(?, ?)"));
  KV_TRY(mark.bind(store).bind(stamp).run());
  return transaction.commit();
}

Status PlannerStore::keep(std::span<const FidelityRecord> records) {
  KV_ASSIGN(Transaction transaction, Transaction::begin(database_));
  KV_ASSIGN(Statement insert, database_.prepare("INSERT OR REPLACE INTO fidelity VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)"));
  for (const FidelityRecord& r : records) {
    if (!is_possible(r)) return internal_error(fmt::format("the fidelity of {} cannot be and was not kept", r.spec));
    insert.bind(r.model_hash).bind(r.text_hash).bind(r.spec).bind(r.prefix_tokens).bind(r.tokens).bind(r.model_name);
    insert.bind(r.kl_mean).bind(r.kl_sd).bind(r.measured);
    KV_TRY(insert.run());
  }
  return transaction.commit();
}

Result<std::vector<FidelityRecord>> PlannerStore::fidelity() {
  KV_ASSIGN(Statement row, database_.prepare("SELECT model_hash, text_hash, spec, prefix_tokens, tokens, model_name, kl_mean, "
                                             "kl_sd, measured FROM fidelity ORDER BY model_hash, text_hash, spec, "
                                             "prefix_tokens, tokens"));
  std::vector<FidelityRecord> out;
  for (;;) {
    KV_ASSIGN(const bool more, row.step());
    if (!more) return out;
    FidelityRecord r;
    r.model_hash = row.text();
    r.text_hash = row.text();
    r.spec = row.text();
    r.prefix_tokens = count_of(row);
    r.tokens = count_of(row);
    r.model_name = row.text();
    r.kl_mean = row.real();
    r.kl_sd = row.real();
    r.measured = row.text();
    if (!is_possible(r)) return damaged_memory(fmt::format("the fidelity of {}", r.spec));
    out.push_back(std::move(r));
  }
}

Result<std::int64_t> PlannerStore::add(const PlanRecord& p) {
  KV_ASSIGN(Statement insert,
            database_.prepare("INSERT INTO plans VALUES(NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL, NULL, "
                              "NULL)"));
  insert.bind(p.decided)
      .bind(p.model)
      .bind(p.kind)
      .bind(p.kind_source)
      .bind(p.prompt_tokens)
      .bind(p.limits)
      .bind(p.spec)
      .bind(p.reason);
  insert.flag(p.calibrated);
  insert.bind(kStoredPerNat * p.loss_low).bind(kStoredPerNat * p.loss_expected).bind(kStoredPerNat * p.loss_high);
  insert.bind(p.predicted_bytes).bind(p.predicted_ttft_s).bind(p.predicted_decode_tokens_per_s);
  KV_TRY(insert.run());
  return integer_of(database_, "SELECT last_insert_rowid()");
}

Status PlannerStore::finish(std::int64_t id, const PlanRecord& p) {
  KV_ASSIGN(Statement update,
            database_.prepare("UPDATE plans SET actual_bytes = ?, actual_ttft_s = ?, actual_rate = ?, actual_loss = ? "
                              "WHERE id = ?"));
  update.bind(p.actual_bytes).bind(p.actual_ttft_s).bind(p.actual_decode_tokens_per_s).bind(stored(p.actual_loss)).bind(id);
  return update.run();
}

Result<std::vector<PlanRecord>> PlannerStore::plans() {
  KV_ASSIGN(Statement row,
            database_.prepare("SELECT id, decided, model, kind, kind_source, prompt_tokens, limits, spec, reason, calibrated, "
                              "loss_low, loss_expected, loss_high, predicted_bytes, predicted_ttft_s, predicted_rate, "
                              "actual_bytes, actual_ttft_s, actual_rate, actual_loss FROM plans ORDER BY id"));
  std::vector<PlanRecord> out;
  for (;;) {
    KV_ASSIGN(const bool more, row.step());
    if (!more) return out;
    PlanRecord p;
    p.id = row.integer();
    p.decided = row.text();
    p.model = row.text();
    p.kind = row.text();
    p.kind_source = row.text();
    p.prompt_tokens = static_cast<int>(row.integer());
    p.limits = row.text();
    p.spec = row.text();
    p.reason = row.text();
    p.calibrated = row.integer() != 0;
    p.loss_low = row.real() / kStoredPerNat;
    p.loss_expected = row.real() / kStoredPerNat;
    p.loss_high = row.real() / kStoredPerNat;
    p.predicted_bytes = row.real();
    p.predicted_ttft_s = row.real();
    p.predicted_decode_tokens_per_s = row.real();
    p.actual_bytes = row.optional_real();
    p.actual_ttft_s = row.optional_real();
    p.actual_decode_tokens_per_s = row.optional_real();
    p.actual_loss = row.optional_real();
    if (p.actual_loss) *p.actual_loss /= kStoredPerNat;
    if (!is_possible(p)) return damaged_memory(fmt::format("decision {}", p.id));
    out.push_back(std::move(p));
  }
}

}  // namespace kvartet
