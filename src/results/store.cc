#include "results/store.h"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include "results/outcome_check.h"
#include "results/store_schema.h"

namespace kvartet {
namespace {

constexpr const char* kOutcomeColumns =
    "task, context, sample, question_position, spec, error, prediction, score, gold_log_likelihood, ttft_s, shared, prefill_s, "
    "compress_s, "
    "decode_tokens_per_s, live_bytes, allocated_bytes, fast_bytes, f16_bytes, end_live_bytes, end_allocated_bytes, "
    "end_fast_bytes, "
    "end_f16_bytes, rows_kept, acted, completion_tokens, finish_reason, run, token_gaps_ms";

Result<Outcome> read_outcome(Statement& row) {
  Outcome o;
  KV_ASSIGN(o.key, read_key(row));
  o.spec = row.text();
  o.error = row.text();
  o.prediction = row.text();
  o.score = row.optional_real();
  o.gold_log_likelihood = row.optional_real();
  o.ttft_s = row.real();
  o.shared = row.integer() != 0;
  o.prefill_s = row.real();
  o.compress_s = row.real();
  o.decode_tokens_per_s = row.real();
  o.live_bytes = row.integer();
  o.allocated_bytes = row.integer();
  o.fast_bytes = row.integer();
  o.f16_bytes = row.integer();
  o.end_live_bytes = row.integer();
  o.end_allocated_bytes = row.integer();
  o.end_fast_bytes = row.integer();
  o.end_f16_bytes = row.integer();
  o.rows_kept = row.real();
  o.acted = row.integer() != 0;
  o.completion_tokens = static_cast<int>(row.integer());
  o.finish_reason = row.text();
  o.run = row.integer();
  o.token_gaps_json = row.text();
  return o;
}

// Which of a sample's lists is none, by name; "" when all are sound.
std::string_view impossible_lists(const SampleRecord& sample) {
  if (!has_possible_depths(sample)) return "depths";
  return has_possible_texts(sample) ? "" : "answers or classes";
}

std::string prefixed_columns(std::string_view prefix) {
  std::string out(prefix);
  for (const char* c = kOutcomeColumns; *c != 0; ++c) {
    out += *c;
    if (*c == ' ') out += prefix;
  }
  return out;
}

}  // namespace

Result<Store> Store::open(FileSystem& files, const std::string& directory, const RunRecord& run) {
  KV_TRY(files.make_directories(directory));
  const std::string path = store_path(directory);
  KV_ASSIGN(Database database, Database::open(path, Access::kReadWrite));
  KV_TRY(make_schema(database, path));
  Store store(std::move(database), directory, kStoreFormat);
  KV_TRY(store.check_identity(run.identity));
  KV_ASSIGN(store.run_id_, store.add_run(run));
  return store;
}

Result<Store> Store::open_for_reading(FileSystem& files, const std::string& directory) {
  const std::string path = store_path(directory);
  if (!files.exists(path)) {
    return bad_input(fmt::format("There are no results in {} ({} is missing); make some with 'kvartet bench ... -o {}'.",
                                 directory, kStoreFile, directory));
  }
  KV_ASSIGN(Database database, Database::open(path, Access::kReadOnly));
  KV_ASSIGN(const std::int64_t format, format_of(database, path));
  return Store(std::move(database), directory, format);
}

Status Store::check_identity(const RunIdentity& identity) {
  KV_ASSIGN(const std::vector<RunRecord> runs, load_runs());
  if (runs.empty()) return {};
  const RunIdentity& stored = runs.front().identity;
  const auto differs = [&](const char* what, const std::string& theirs, const std::string& ours) {
    return usage_error(
        fmt::format("The folder {} holds results of another run: its {} is {}, this run's is {}; choose another folder "
                    "with -o or repeat that run's settings.",
                    directory_, what, theirs, ours));
  };
  if (stored.model_hash != identity.model_hash) {
    return differs("model", fmt::format("{} (hash {})", stored.model_name, stored.model_hash),
                   fmt::format("{} (hash {})", identity.model_name, identity.model_hash));
  }
  if (stored.seed != identity.seed) return differs("seed", std::to_string(stored.seed), std::to_string(identity.seed));
  if (stored.parameters != identity.parameters)
    return differs("set of sample parameters", stored.parameters, identity.parameters);
  if (stored.version != identity.version) return differs("Kvartet version", stored.version, identity.version);
  return {};
}

Result<std::int64_t> Store::add_run(const RunRecord& run) {
  // The update that changes nothing makes a run that is already there (a second merge) give its number back.
  KV_ASSIGN(Statement insert,
            database_.prepare(
                "INSERT INTO runs(model_hash, model_name, model_shape, seed, parameters, version, cpu, cores, memory_bytes, "
                "compiler, threads, started, process) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT(cpu, started, process) DO UPDATE SET cores = cores RETURNING run"));
  const RunIdentity& id = run.identity;
  insert.bind(id.model_hash)
      .bind(id.model_name)
      .bind(id.model_shape)
      .bind(std::to_string(id.seed))
      .bind(id.parameters)
      .bind(id.version);
  insert.bind(run.machine.cpu).bind(run.machine.cores).bind(run.machine.memory_bytes).bind(run.machine.compiler);
  insert.bind(run.threads).bind(run.started).bind(run.process);
  KV_ASSIGN(const bool row, insert.step());
  if (!row) return damaged_store(store_path(directory_), "its table of runs takes no run");
  const std::int64_t id_of_run = insert.integer();
  // To the end: the row is only written once the statement has finished.
  KV_ASSIGN(const bool more, insert.step());
  KV_CHECK(!more);
  return id_of_run;
}

Status Store::add_task(const std::string& task, const std::string& metric) {
  KV_ASSIGN(Statement insert, database_.prepare("INSERT OR IGNORE INTO tasks(task, metric) VALUES(?, ?)"));
  return insert.bind(task).bind(metric).run();
}

Result<std::vector<std::string>> Store::missing(const SampleKey& key, const std::string& prompt_hash,
                                                std::span<const std::string> specs) {
  // With its question seen or unseen, a prompt is the same; with its question asked second, another.
  KV_ASSIGN(Statement sample,
            database_.prepare("SELECT prompt_hash FROM samples WHERE task = ? AND context = ? AND sample = ? AND "
                              "(question_position = 'second') = ?"));
  sample.bind(key.task).bind(key.context).bind(key.sample).flag(key.position == QuestionPosition::kSecond);
  KV_ASSIGN(const bool known, sample.step());
  if (!known) return std::vector<std::string>(specs.begin(), specs.end());
  const std::string stored = sample.text();
  if (stored != prompt_hash) {
    return usage_error(
        fmt::format("The folder {} holds sample {} of {} at {} tokens with another prompt (hash {}, now {}): the task's "
                    "input has changed since; choose another folder with -o.",
                    directory_, key.sample, key.task, key.context, stored, prompt_hash));
  }
  KV_ASSIGN(Statement done,
            database_.prepare(fmt::format("SELECT 1 FROM outcomes WHERE {} AND spec = ? AND error = ''", kThisSample)));
  std::vector<std::string> out;
  for (const std::string& spec : specs) {
    done.reset();
    KV_ASSIGN(const bool there, bind_key(done, key).bind(spec).step());
    if (!there) out.push_back(spec);
  }
  return out;
}

Status Store::note_document(const SampleRecord& s) {
  // Both positions are named so that each is found by its key. What was asked second has known its document from the beginning.
  KV_ASSIGN(Statement update,
            database_.prepare("UPDATE samples SET document = ? WHERE task = ? AND context = ? AND question_position IN ('seen', "
                              "'unseen') AND sample = ? AND prompt_hash = ? AND document = ''"));
  return update.bind(s.document).bind(s.key.task).bind(s.key.context).bind(s.key.sample).bind(s.prompt_hash).run();
}

Status Store::put_sample(const SampleRecord& s) {
  KV_ASSIGN(Statement insert,
            database_.prepare("INSERT INTO samples(task, context, sample, question_position, ordinal, "
                              "prompt_hash, prompt_tokens, dropped_tokens, gold_tokens, length, answers, classes, "
                              "question, depths, document) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
                              "ON CONFLICT DO UPDATE SET document = excluded.document WHERE document = ''"));
  bind_key(insert, s.key).bind(s.ordinal).bind(s.prompt_hash).bind(s.prompt_tokens);
  insert.bind(s.dropped_tokens).bind(s.gold_tokens).bind(s.length).bind(s.answers_json).bind(s.classes_json);
  insert.bind(s.question).bind(s.depths_json).bind(s.document);
  return insert.run();
}

Status Store::put_outcome(const Outcome& o, std::int64_t run) {
  KV_ASSIGN(Statement cache, database_.prepare("INSERT OR IGNORE INTO caches(spec) VALUES(?)"));
  KV_TRY(cache.bind(o.spec).run());
  KV_ASSIGN(Statement insert, database_.prepare(fmt::format(
                                  "INSERT OR REPLACE INTO outcomes({}) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
                                  "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                                  kOutcomeColumns)));
  bind_key(insert, o.key).bind(o.spec).bind(o.error).bind(o.prediction);
  insert.bind(o.score).bind(o.gold_log_likelihood).bind(o.ttft_s).flag(o.shared).bind(o.prefill_s).bind(o.compress_s);
  insert.bind(o.decode_tokens_per_s).bind(o.live_bytes).bind(o.allocated_bytes).bind(o.fast_bytes).bind(o.f16_bytes);
  insert.bind(o.end_live_bytes).bind(o.end_allocated_bytes).bind(o.end_fast_bytes).bind(o.end_f16_bytes).bind(o.rows_kept);
  insert.flag(o.acted).bind(o.completion_tokens).bind(o.finish_reason).bind(run).bind(o.token_gaps_json);
  return insert.run();
}

Status Store::finish_sample(const SampleRecord& sample, std::span<const Outcome> outcomes) {
  for (const Outcome& o : outcomes) {  // or no report could be made of this store any more
    if (has_possible_figures(o)) continue;
    return internal_error(
        fmt::format("The figures measured for sample {} of {} through {} cannot be; nothing of the sample was stored.",
                    o.key.sample, o.key.task, o.spec));
  }
  if (const std::string_view odd = impossible_lists(sample); !odd.empty()) {
    return internal_error(fmt::format("The {} of sample {} of {} cannot be; nothing of the sample was stored.", odd,
                                      sample.key.sample, sample.key.task));
  }
  KV_ASSIGN(Transaction transaction, Transaction::begin(database_));
  KV_TRY(put_sample(sample));
  for (const Outcome& outcome : outcomes) KV_TRY(put_outcome(outcome, run_id_));
  return transaction.commit();
}

Status Store::merge(FileSystem& files, const std::string& directory) {
  KV_ASSIGN(Store other, open_for_reading(files, directory));
  KV_ASSIGN(const StoredResults theirs, other.load());
  KV_ASSIGN(Transaction transaction, Transaction::begin(database_));
  std::map<std::int64_t, std::int64_t> own_number;  // their run -> ours
  for (const RunRecord& run : theirs.runs) {
    KV_TRY(check_identity(run.identity));
    KV_ASSIGN(own_number[run.id], add_run(run));
  }
  for (const StoredTask& task : theirs.tasks) KV_TRY(add_task(task.task, task.metric));
  for (const SampleRecord& sample : theirs.samples) {
    KV_ASSIGN(const auto ignored, missing(sample.key, sample.prompt_hash, {}));
    KV_CHECK(ignored.empty());
    KV_TRY(put_sample(sample));
  }
  for (const Outcome& outcome : theirs.outcomes) {
    KV_ASSIGN(Statement there, database_.prepare(fmt::format("SELECT error FROM outcomes WHERE {} AND spec = ?", kThisSample)));
    KV_ASSIGN(const bool known, bind_key(there, outcome.key).bind(outcome.spec).step());
    const bool better = !known || (!there.text().empty() && !outcome.failed());
    if (better) KV_TRY(put_outcome(outcome, own_number[outcome.run]));
  }
  KV_TRY(merge_solo(theirs.solo, own_number));
  return transaction.commit();
}

Result<std::vector<RunRecord>> Store::load_runs() {
  KV_ASSIGN(Statement row, database_.prepare("SELECT model_hash, model_name, model_shape, seed, parameters, version, cpu, cores, "
                                             "memory_bytes, compiler, threads, started, process, run FROM runs ORDER BY run"));
  std::vector<RunRecord> out;
  for (;;) {
    KV_ASSIGN(const bool more, row.step());
    if (!more) return out;
    RunRecord run;
    run.identity.model_hash = row.text();
    run.identity.model_name = row.text();
    run.identity.model_shape = row.text();
    run.identity.seed = std::strtoull(row.text().c_str(), nullptr, 10);
    run.identity.parameters = row.text();
    if (format_ < 3) run.identity.parameters.clear();  // they said the position of the question, which samples say now
    run.identity.version = row.text();
    run.machine.cpu = row.text();
    run.machine.cores = static_cast<int>(row.integer());
    run.machine.memory_bytes = row.integer();
    run.machine.compiler = row.text();
    run.threads = static_cast<int>(row.integer());
    run.started = row.text();
    run.process = row.integer();
    run.id = row.integer();
    out.push_back(std::move(run));
  }
}

Result<std::string> Store::position_column(std::string_view table) {
  if (format_ >= 3) return fmt::format("{}.question_position", table);
  KV_ASSIGN(const QuestionPosition position, position_of_old_store(database_));
  return fmt::format("'{}'", question_position_name(position));
}

Result<std::vector<SampleRecord>> Store::load_samples() {
  const char* added = format_ == 1 ? "'', '', ''" : format_ < 4 ? "question, depths, ''" : "question, depths, document";
  KV_ASSIGN(const std::string position, position_column("s"));
  KV_ASSIGN(Statement row, database_.prepare(fmt::format(
                               "SELECT s.task, context, sample, {0} AS position, s.ordinal, prompt_hash, prompt_tokens, "
                               "dropped_tokens, gold_tokens, length, answers, classes, {1} FROM samples s LEFT JOIN tasks t "
                               "USING(task) ORDER BY t.ordinal, context, position = 'second', position, s.ordinal",
                               position, added)));
  std::vector<SampleRecord> out;
  for (;;) {
    KV_ASSIGN(const bool more, row.step());
    if (!more) return out;
    SampleRecord s;
    KV_ASSIGN(s.key, read_key(row));
    s.ordinal = static_cast<int>(row.integer());
    s.prompt_hash = row.text();
    s.prompt_tokens = static_cast<int>(row.integer());
    s.dropped_tokens = static_cast<int>(row.integer());
    s.gold_tokens = static_cast<int>(row.integer());
    s.length = static_cast<int>(row.integer());
    s.answers_json = row.text();
    s.classes_json = row.text();
    s.question = row.text();
    s.depths_json = row.text();
    s.document = row.text();
    out.push_back(std::move(s));
    const std::string_view odd = impossible_lists(out.back());
    if (odd.empty()) continue;
    const SampleKey& key = out.back().key;
    return damaged_store(store_path(directory_), fmt::format("the {} of sample {} of {} cannot be", odd, key.sample, key.task));
  }
}

Result<std::vector<Outcome>> Store::load_outcomes() {
  std::string columns = prefixed_columns("o.");
  if (format_ == 1) columns.replace(columns.rfind("o.token_gaps_ms"), std::string::npos, "''");
  KV_ASSIGN(const std::string position, position_column("o"));
  KV_ASSIGN(const std::string sample_position, position_column("s"));
  constexpr std::string_view kStored = "o.question_position";
  columns.replace(columns.find(kStored), kStored.size(), position);
  KV_ASSIGN(Statement row, database_.prepare(fmt::format(
                               "SELECT {0} FROM outcomes o JOIN samples s ON s.task = o.task AND s.context = o.context AND "
                               "{1} = {2} AND s.sample = o.sample LEFT JOIN tasks t ON t.task = o.task JOIN caches c ON "
                               "c.spec = o.spec ORDER BY t.ordinal, o.context, {2} = 'second', {2}, s.ordinal, c.ordinal",
                               columns, sample_position, position)));
  std::vector<Outcome> out;
  for (;;) {
    KV_ASSIGN(const bool more, row.step());
    if (!more) return out;
    KV_ASSIGN(Outcome outcome, read_outcome(row));
    out.push_back(std::move(outcome));
    if (has_possible_figures(out.back())) continue;
    const Outcome& o = out.back();
    return damaged_store(store_path(directory_),
                         fmt::format("the figures of sample {} of {} through {} cannot be", o.key.sample, o.key.task, o.spec));
  }
}

Result<StoredResults> Store::load() {
  StoredResults out;
  KV_ASSIGN(out.runs, load_runs());
  KV_ASSIGN(Statement row, database_.prepare("SELECT task, metric FROM tasks ORDER BY ordinal"));
  for (;;) {
    KV_ASSIGN(const bool more, row.step());
    if (!more) break;
    StoredTask task;
    task.task = row.text();
    task.metric = row.text();
    out.tasks.push_back(std::move(task));
  }
  KV_ASSIGN(out.samples, load_samples());
  KV_ASSIGN(out.outcomes, load_outcomes());
  KV_ASSIGN(out.solo, load_solo());
  return out;
}

}  // namespace kvartet
