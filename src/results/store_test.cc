#include "results/store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <limits>

namespace kvartet {
namespace {

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvartet_store_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  static RunRecord run(std::uint64_t seed = 1) {
    RunRecord r;
    r.identity = {.model_hash = "00ff",
                  .model_name = "tiny",
                  .model_shape = "2 layers",
                  .seed = seed,
                  .parameters = "",
                  .version = "0.1.0"};
    r.machine = {.cpu = "cpu", .cores = 2, .memory_bytes = 1, .compiler = "g++"};
    r.threads = 2;
    r.started = "2025-01-01T00:00:00Z";
    r.process = getpid();
    return r;
  }
  static SampleRecord sample(int i, const std::string& hash = "aa") {
    SampleRecord s;
    s.key = {"needle", 2048, fmt::format("n{}", i)};
    s.ordinal = i;
    s.prompt_hash = hash;
    s.prompt_tokens = 2000;
    s.gold_tokens = 20;
    s.answers_json = "[\"42\"]";
    s.classes_json = "null";
    s.question = "Which number?";
    s.depths_json = "[0.5]";
    s.document = "d" + std::to_string(i / 2);
    return s;
  }
  static Outcome outcome(int i, const std::string& spec, double score = 1) {
    Outcome o;
    o.key = sample(i).key;
    o.spec = spec;
    o.prediction = "forty \"two\"\n\xc3\xa9";
    o.score = score;
    o.gold_log_likelihood = -0.25;
    o.ttft_s = 1.5;
    o.shared = true;
    o.live_bytes = 123456789012;
    o.rows_kept = 10.5;
    o.acted = true;
    o.completion_tokens = 7;
    o.finish_reason = "stop";
    o.token_gaps_json = "[10.25,11]";
    return o;
  }
  Result<Store> open(const RunRecord& r) { return Store::open(FileSystem::real(), folder(), r); }
  std::string folder(const std::string& name = "out") const { return root_ + "/" + name; }

  // What `body` returns in a child process, so that limits and user ids stay there.
  static int in_child(const std::function<int()>& body) {
    const pid_t child = fork();
    if (child == 0) _exit(body());
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
  }

  std::string root_;
};

TEST_F(StoreTest, KeepsEveryField) {
  Store store = open(run()).value();
  ASSERT_TRUE(store.add_task("needle", "contains").ok());
  Outcome bare = outcome(0, "kivi:bits=4");
  bare.score = std::nullopt;
  bare.gold_log_likelihood = std::nullopt;
  const std::vector<Outcome> both = {outcome(0, "full"), bare};
  ASSERT_TRUE(store.finish_sample(sample(0), both).ok());

  Store again = Store::open_for_reading(FileSystem::real(), folder()).value();
  const StoredResults r = again.load().value();
  ASSERT_EQ(r.runs.size(), 1U);
  EXPECT_EQ(r.runs[0].identity.model_name, "tiny");
  EXPECT_EQ(r.runs[0].machine.cpu, "cpu");
  ASSERT_EQ(r.tasks.size(), 1U);
  EXPECT_EQ(r.tasks[0].metric, "contains");
  ASSERT_EQ(r.samples.size(), 1U);
  EXPECT_EQ(r.samples[0].answers_json, "[\"42\"]");
  EXPECT_EQ(r.samples[0].question, "Which number?");
  EXPECT_EQ(r.samples[0].depths_json, "[0.5]");
  EXPECT_EQ(r.samples[0].document, "d0");
  ASSERT_EQ(r.outcomes.size(), 2U);
  const Outcome& full = r.outcomes[0];
  EXPECT_EQ(full.token_gaps_json, "[10.25,11]");
  EXPECT_EQ(full.spec, "full");
  EXPECT_EQ(full.prediction, "forty \"two\"\n\xc3\xa9");
  EXPECT_EQ(full.gold_log_likelihood, -0.25);
  EXPECT_TRUE(full.shared);
  EXPECT_EQ(full.live_bytes, 123456789012);
  EXPECT_EQ(full.completion_tokens, 7);
  EXPECT_EQ(full.run, r.runs[0].id);
  EXPECT_FALSE(r.outcomes[1].score.has_value());
  EXPECT_FALSE(r.outcomes[1].gold_log_likelihood.has_value());
}

TEST_F(StoreTest, ARerunMissesOnlyWhatIsNotThereOrFailed) {
  const std::vector<std::string> specs = {"full", "q8_0", "kivi"};
  {
    Store store = open(run()).value();
    Outcome failed = outcome(0, "kivi");
    failed.error = "out of memory";
    const std::vector<Outcome> done = {outcome(0, "full"), failed};
    ASSERT_TRUE(store.finish_sample(sample(0), done).ok());
  }
  Store store = open(run()).value();
  EXPECT_EQ(store.missing(sample(0).key, "aa", specs).value(), (std::vector<std::string>{"q8_0", "kivi"}));
  EXPECT_EQ(store.missing(sample(1).key, "aa", specs).value(), specs);
  // The second try replaces the failure.
  const std::vector<Outcome> done = {outcome(0, "kivi")};
  ASSERT_TRUE(store.finish_sample(sample(0), done).ok());
  EXPECT_EQ(store.missing(sample(0).key, "aa", specs).value(), (std::vector<std::string>{"q8_0"}));
}

TEST_F(StoreTest, AChangedPromptIsRefused) {
  Store store = open(run()).value();
  const std::vector<Outcome> done = {outcome(0, "full")};
  ASSERT_TRUE(store.finish_sample(sample(0), done).ok());
  const Status status = store.missing(sample(0).key, "bb", {}).status();
  EXPECT_EQ(status.code(), Code::kUsage);
  EXPECT_NE(status.message().find("n0"), std::string::npos);
}

TEST_F(StoreTest, AForeignFolderIsRefusedWithTheFieldNamed) {
  ASSERT_TRUE(open(run()).ok());
  const auto refused = [&](const RunRecord& other, const std::string& word) {
    const Result<Store> r = open(other);
    ASSERT_FALSE(r.ok()) << word;
    EXPECT_EQ(r.status().code(), Code::kUsage);
    EXPECT_NE(r.status().message().find(word), std::string::npos) << r.status().message();
  };
  refused(run(2), "seed is 1, this run's is 2");
  RunRecord other = run();
  other.identity.model_hash = "1234";
  other.identity.model_name = "big";
  refused(other, "model");
  other = run();
  other.identity.parameters = "rows=2";
  refused(other, "rows=2");
  other = run();
  other.identity.version = "9.9.9";
  refused(other, "9.9.9");
  EXPECT_TRUE(open(run()).ok());
}

TEST_F(StoreTest, OtherFilesUnderTheNameAreBadInput) {
  std::filesystem::create_directories(folder());
  FILE* f = fopen((folder() + "/results.sqlite").c_str(), "w");
  ASSERT_NE(f, nullptr);
  for (int i = 0; i < 200; ++i) fputs("this is not a database, whatever its name says\n", f);
  fclose(f);
  EXPECT_EQ(open(run()).status().code(), Code::kBadInput);
  EXPECT_EQ(Store::open_for_reading(FileSystem::real(), folder("none")).status().code(), Code::kBadInput);
}

// Formats 1 and 2 as they were written.
constexpr const char* kOldTables = R"sql(
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
CREATE TABLE samples(
  task TEXT NOT NULL, context INTEGER NOT NULL, sample TEXT NOT NULL, ordinal INTEGER NOT NULL,
  prompt_hash TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, dropped_tokens INTEGER NOT NULL, gold_tokens INTEGER NOT NULL,
  length INTEGER NOT NULL, answers TEXT NOT NULL, classes TEXT NOT NULL,
  PRIMARY KEY(task, context, sample)
) STRICT, WITHOUT ROWID;
CREATE TABLE outcomes(
  task TEXT NOT NULL, context INTEGER NOT NULL, sample TEXT NOT NULL, spec TEXT NOT NULL, run INTEGER NOT NULL,
  error TEXT NOT NULL, prediction TEXT NOT NULL, score REAL, gold_log_likelihood REAL,
  ttft_s REAL NOT NULL, shared INTEGER NOT NULL, prefill_s REAL NOT NULL, compress_s REAL NOT NULL, decode_tokens_per_s REAL NOT NULL,
  live_bytes INTEGER NOT NULL, allocated_bytes INTEGER NOT NULL, fast_bytes INTEGER NOT NULL, f16_bytes INTEGER NOT NULL,
  end_live_bytes INTEGER NOT NULL, end_allocated_bytes INTEGER NOT NULL, end_fast_bytes INTEGER NOT NULL, end_f16_bytes INTEGER NOT NULL,
  rows_kept REAL NOT NULL, acted INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, finish_reason TEXT NOT NULL,
  PRIMARY KEY(task, context, sample, spec)
) STRICT, WITHOUT ROWID;
INSERT INTO tasks(task, metric) VALUES('needle', 'contains');
INSERT INTO caches(spec) VALUES('full');
INSERT INTO samples VALUES('needle', 2048, 'n0', 0, 'aa', 2000, 0, 20, 0, '["42"]', 'null');
INSERT INTO outcomes VALUES('needle', 2048, 'n0', 'full', 1, '', 'forty', 1.0, -0.25, 1.5, 1, 1.0, 0.1, 20.0, 1, 2, 3, 4, 5, 6, 7, 8,
                            10.5, 1, 7, 'stop');
PRAGMA application_id = 1263944018;
)sql";

constexpr const char* kAddedByFormat2 = R"sql(
ALTER TABLE samples ADD COLUMN question TEXT NOT NULL DEFAULT 'Which?';
ALTER TABLE samples ADD COLUMN depths TEXT NOT NULL DEFAULT '[0.5]';
ALTER TABLE outcomes ADD COLUMN token_gaps_ms TEXT NOT NULL DEFAULT '[10]';
)sql";

void write_old_store(const std::string& folder, int format, const std::string& position) {
  std::filesystem::create_directories(folder);
  Database database = Database::open(folder + "/results.sqlite", Access::kReadWrite).value();
  ASSERT_TRUE(database.execute(kOldTables).ok());
  if (format == 2) {
    ASSERT_TRUE(database.execute(kAddedByFormat2).ok());
  }
  const Status run = database.execute("INSERT INTO runs VALUES(1, '00ff', 'tiny', '2 layers', '1', 'question=" + position +
                                      "', '0.1.0', 'cpu', 2, 1, 'g++', 2, '2024-01-01T00:00:00Z', 1)");
  ASSERT_TRUE(run.ok()) << run.message();
  ASSERT_TRUE(database.execute("PRAGMA user_version = " + std::to_string(format)).ok());
}

void expect_old_results(const StoredResults& r, int format, QuestionPosition position) {
  ASSERT_EQ(r.samples.size(), 1U);
  ASSERT_EQ(r.outcomes.size(), 1U);
  EXPECT_EQ(r.samples[0].key, (SampleKey{"needle", 2048, "n0", position}));
  EXPECT_EQ(r.outcomes[0].key, r.samples[0].key);
  EXPECT_EQ(r.outcomes[0].prediction, "forty");
  EXPECT_EQ(r.outcomes[0].end_f16_bytes, 8);
  EXPECT_EQ(r.outcomes[0].finish_reason, "stop");
  EXPECT_EQ(r.outcomes[0].run, r.runs[0].id);
  EXPECT_EQ(r.outcomes[0].token_gaps_json, format == 1 ? "" : "[10]");
  EXPECT_EQ(r.samples[0].question, format == 1 ? "" : "Which?");
  EXPECT_EQ(r.samples[0].depths_json, format == 1 ? "" : "[0.5]");
  EXPECT_EQ(r.runs[0].identity.parameters, "");
  EXPECT_TRUE(r.solo.empty());
}

TEST_F(StoreTest, OldFormatsAreReadAsTheyAreAndRenewedWhenWritten) {
  for (const int format : {1, 2}) {
    for (const QuestionPosition position : {QuestionPosition::kSeen, QuestionPosition::kUnseen}) {
      const std::string name = std::string(question_position_name(position)) + std::to_string(format);
      write_old_store(folder(name), format, question_position_name(position));
      for (int i = 0; i < 2; ++i) {
        Store old = Store::open_for_reading(FileSystem::real(), folder(name)).value();
        expect_old_results(old.load().value(), format, position);
        EXPECT_TRUE(old.evidence().ok());
      }
      RunRecord again = run();
      Store store = Store::open(FileSystem::real(), folder(name), again).value();
      StoredResults renewed = store.load().value();
      expect_old_results(renewed, format, position);
      SampleRecord sample_of_now = sample(1);
      const std::vector<Outcome> done = {outcome(1, "full")};
      ASSERT_TRUE(store.finish_sample(sample_of_now, done).ok());
      renewed = Store::open_for_reading(FileSystem::real(), folder(name)).value().load().value();
      ASSERT_EQ(renewed.outcomes.size(), 2U);
      EXPECT_EQ(parameters_text(renewed), position == QuestionPosition::kSeen ? "question=seen" : "question=seen+unseen");
    }
  }
}

// Which samples are about the same document is known from the next sample on that is run.
TEST_F(StoreTest, Format3KnowsNoDocuments) {
  const std::vector<Outcome> done = {outcome(0, "full"), outcome(0, "kivi", 0.5)};
  ASSERT_TRUE(open(run()).value().finish_sample(sample(0), done).ok());
  ASSERT_TRUE(Database::open(folder() + "/results.sqlite", Access::kReadWrite)
                  .value()
                  .execute("ALTER TABLE samples DROP COLUMN document; PRAGMA user_version = 3")
                  .ok());
  {
    Store old = Store::open_for_reading(FileSystem::real(), folder()).value();
    EXPECT_EQ(old.load().value().samples.at(0).document, "");
    EXPECT_EQ(old.evidence().value().at(0).score.n, 1);
  }
  Store store = open(run()).value();
  EXPECT_EQ(store.load().value().samples.at(0).document, "");
  ASSERT_TRUE(store.finish_sample(sample(1), std::vector<Outcome>{outcome(1, "full")}).ok());
  EXPECT_EQ(store.load().value().samples.at(0).document, "");
  EXPECT_EQ(store.load().value().samples.at(1).document, "d0");
  ASSERT_TRUE(store.finish_sample(sample(0), std::vector<Outcome>{outcome(0, "q8_0")}).ok());
  EXPECT_EQ(store.load().value().samples.at(0).document, "d0");
  EXPECT_EQ(store.load().value().samples.at(0).question, "Which number?");
}

// A repeated command knows what its samples are about, also where nothing is left to run.
TEST_F(StoreTest, DocumentsOfOldSamplesAreNotedInBothPositions) {
  Store store = open(run()).value();
  SampleRecord unseen = sample(0);
  unseen.key.position = QuestionPosition::kUnseen;
  for (SampleRecord old : {sample(0), unseen, sample(1)}) {
    old.document.clear();
    Outcome done = outcome(0, "full");
    done.key = old.key;
    ASSERT_TRUE(store.finish_sample(old, {&done, 1}).ok());
  }
  SampleRecord another = sample(1, "bb");  // another prompt under its name tells nothing
  ASSERT_TRUE(store.note_document(another).ok());
  ASSERT_TRUE(store.note_document(unseen).ok());
  const StoredResults noted = store.load().value();
  for (const SampleRecord& s : noted.samples) EXPECT_EQ(s.document, s.key.sample == "n0" ? "d0" : "");
  unseen.document = "other";
  ASSERT_TRUE(store.note_document(unseen).ok());
  EXPECT_EQ(store.load().value().samples.at(0).document, "d0");
}

// docs/decisions/0012: questions about one document are not independent, so it counts once.
TEST_F(StoreTest, EvidenceCountsDocuments) {
  Store store = open(run()).value();
  ASSERT_TRUE(store.add_task("needle", "contains").ok());
  for (int i = 0; i < 6; ++i) {
    const std::vector<Outcome> done = {outcome(i, "full", 1), outcome(i, "kivi", i == 0 || i == 2 || i == 3 ? 0 : 1)};
    ASSERT_TRUE(store.finish_sample(sample(i), done).ok());
  }
  const std::vector<EvidenceCell> cells = store.evidence().value();
  ASSERT_EQ(cells.size(), 1U);
  Moments expected;
  for (const double loss : {0.5, 1.0, 0.0}) expected.add(loss);  // documents d0, d1, d2
  EXPECT_EQ(cells[0].score, expected);
  EXPECT_EQ(cells[0].nats.n, 3);
}

// The same prompt with its question seen and unseen: two samples, which resume, count and pair each by itself.
TEST_F(StoreTest, PositionsOfTheQuestionAreApart) {
  Store store = open(run()).value();
  ASSERT_TRUE(store.add_task("needle", "contains").ok());
  SampleRecord unseen = sample(0);
  unseen.key.position = QuestionPosition::kUnseen;
  Outcome later = outcome(0, "full", 0.5);
  later.key = unseen.key;
  const std::vector<Outcome> first = {outcome(0, "full"), outcome(0, "kivi")};
  ASSERT_TRUE(store.finish_sample(sample(0), first).ok());
  const std::vector<std::string> specs = {"full", "kivi"};
  EXPECT_EQ(store.missing(unseen.key, "aa", specs).value(), specs);
  EXPECT_EQ(store.missing(unseen.key, "bb", specs).status().code(), Code::kUsage);  // the prompt must be the same
  Outcome lossy = later;
  lossy.spec = "kivi";
  lossy.score = 0;
  const std::vector<Outcome> second = {later, lossy};
  ASSERT_TRUE(store.finish_sample(unseen, second).ok());
  EXPECT_TRUE(store.missing(unseen.key, "aa", specs).value().empty());
  EXPECT_EQ(store.load().value().outcomes.size(), 4U);
  const std::vector<EvidenceCell> cells = store.evidence().value();
  ASSERT_EQ(cells.size(), 2U);
  EXPECT_EQ(cells[0].parameters, "question=seen");
  EXPECT_DOUBLE_EQ(cells[0].score.mean, 0);
  EXPECT_EQ(cells[1].parameters, "question=unseen");
  EXPECT_DOUBLE_EQ(cells[1].score.mean, 0.5);
}

// An answer of one token comes from the exact prompt pass where the question was seen: it is no evidence about a cache.
TEST_F(StoreTest, AnswersOfOneTokenAreEvidenceOnlyWhereTheQuestionWasUnseen) {
  Store store = open(run()).value();
  ASSERT_TRUE(store.add_task("needle", "contains").ok());
  for (const QuestionPosition position : {QuestionPosition::kSeen, QuestionPosition::kUnseen}) {
    SampleRecord one = sample(0);
    one.gold_tokens = 1;
    one.key.position = position;
    std::vector<Outcome> done = {outcome(0, "full"), outcome(0, "kivi")};
    for (Outcome& o : done) o.key = one.key;
    ASSERT_TRUE(store.finish_sample(one, done).ok());
  }
  const std::vector<EvidenceCell> cells = store.evidence().value();
  ASSERT_EQ(cells.size(), 1U);
  EXPECT_EQ(cells[0].parameters, "question=unseen");
}

SoloRun solo_run(const SampleKey& key, const std::string& spec, int repeat) {
  SoloRun s;
  s.key = key;
  s.spec = spec;
  s.repeat = repeat;
  s.text = "forty \"two\"";
  s.finish_reason = "length";
  s.completion_tokens = 7;
  s.ttft_s = 1.25;
  s.prefill_s = 1;
  s.compress_s = 0.125;
  s.decode_tokens_per_s = 20.5;
  s.end_to_end_tokens_per_s = 4.5;
  s.token_gaps_json = "[1,2.5]";
  s.peak_rss_bytes = 123456789012;
  s.weight_bytes = 99;
  return s;
}

TEST_F(StoreTest, KeepsRunsAloneAndMergesThem) {
  {
    Store store = open(run()).value();
    ASSERT_TRUE(store.add_task("needle", "contains").ok());
    const std::vector<Outcome> done = {outcome(0, "full"), outcome(0, "kivi")};
    ASSERT_TRUE(store.finish_sample(sample(0), done).ok());
    SoloRun failed = solo_run(sample(0).key, "kivi", 1);
    failed.error = "killed";
    for (const SoloRun& s : {solo_run(sample(0).key, "kivi", 0), failed, solo_run(sample(0).key, "full", 0)})
      ASSERT_TRUE(store.finish_solo(s).ok());
  }
  Store other = Store::open(FileSystem::real(), folder("other"), run()).value();
  const std::vector<Outcome> done = {outcome(0, "full"), outcome(0, "kivi")};
  ASSERT_TRUE(other.finish_sample(sample(0), done).ok());
  ASSERT_TRUE(other.finish_solo(solo_run(sample(0).key, "kivi", 1)).ok());
  ASSERT_TRUE(open(run()).value().merge(FileSystem::real(), folder("other")).ok());

  const StoredResults r = Store::open_for_reading(FileSystem::real(), folder()).value().load().value();
  ASSERT_EQ(r.solo.size(), 3U);
  EXPECT_EQ(r.solo[0].spec, "full");
  EXPECT_EQ(r.solo[1].repeat, 0);
  EXPECT_EQ(r.solo[2].repeat, 1);
  EXPECT_FALSE(r.solo[2].failed());  // a success takes the place of a failure
  const SoloRun& s = r.solo[0];
  EXPECT_EQ(s.key, sample(0).key);
  EXPECT_EQ(s.text, "forty \"two\"");
  EXPECT_EQ(s.finish_reason, "length");
  EXPECT_EQ(s.completion_tokens, 7);
  EXPECT_EQ(s.ttft_s, 1.25);
  EXPECT_EQ(s.compress_s, 0.125);
  EXPECT_EQ(s.decode_tokens_per_s, 20.5);
  EXPECT_EQ(s.end_to_end_tokens_per_s, 4.5);
  EXPECT_EQ(s.token_gaps_json, "[1,2.5]");
  EXPECT_EQ(s.peak_rss_bytes, 123456789012);
  EXPECT_EQ(s.weight_bytes, 99);
  EXPECT_EQ(s.run, r.runs[0].id);
}

// Neither written nor read: axes of a report would have no end.
TEST_F(StoreTest, FiguresThatCannotBeAreRefused) {
  Store store = open(run()).value();
  const std::vector<Outcome> sound = {outcome(0, "full")};
  ASSERT_TRUE(store.finish_sample(sample(0), sound).ok());
  const std::vector<std::function<void(Outcome&)>> changes = {
      [](Outcome& o) { o.score = 1.5; },
      [](Outcome& o) { o.gold_log_likelihood = std::numeric_limits<double>::infinity(); },
      [](Outcome& o) { o.gold_log_likelihood = 1; },
      [](Outcome& o) { o.ttft_s = -1; },
      [](Outcome& o) { o.decode_tokens_per_s = 1e300; },
      [](Outcome& o) { o.live_bytes = -5; },
      [](Outcome& o) { o.rows_kept = std::numeric_limits<double>::infinity(); },
      [](Outcome& o) { o.token_gaps_json = "[10.25,1"; }};
  for (const auto& change : changes) {
    std::vector<Outcome> odd = {outcome(1, "full")};
    change(odd[0]);
    EXPECT_EQ(store.finish_sample(sample(1), odd).code(), Code::kInternal);
    odd[0].error = "it failed";  // then they mean nothing
    EXPECT_TRUE(store.finish_sample(sample(1), odd).ok());
  }
  EXPECT_TRUE(store.load().ok());
  const std::string path = folder() + "/results.sqlite";
  for (const char* sql : {"UPDATE outcomes SET score = 9e999", "UPDATE outcomes SET score = 1, ttft_s = -1"}) {
    ASSERT_TRUE(Database::open(path, Access::kReadWrite).value().execute(std::string(sql) + " WHERE sample = 'n0'").ok());
    const Status status = Store::open_for_reading(FileSystem::real(), folder()).value().load().status();
    EXPECT_EQ(status.code(), Code::kBadInput);
    EXPECT_NE(status.message().find("sample n0 of needle through full"), std::string::npos) << status.message();
  }
}

// A damaged list must not read as none, wherever it stands.
TEST_F(StoreTest, DamagedListsAreNamedWithTheirSample) {
  {
    Store store = open(run()).value();
    const std::vector<Outcome> done = {outcome(0, "full"), outcome(0, "kivi")};
    ASSERT_TRUE(store.finish_sample(sample(0), done).ok());
    ASSERT_TRUE(store.finish_solo(solo_run(sample(0).key, "kivi", 2)).ok());
    SoloRun odd = solo_run(sample(0).key, "kivi", 3);
    odd.token_gaps_json = "[1,2.5";
    EXPECT_EQ(store.finish_solo(odd).code(), Code::kInternal);
    SampleRecord nowhere = sample(1);
    nowhere.depths_json = "[null]";
    const std::vector<Outcome> other = {outcome(1, "full")};
    EXPECT_EQ(store.finish_sample(nowhere, other).code(), Code::kInternal);
    nowhere = sample(1);
    nowhere.answers_json = "[\"cut off";
    EXPECT_EQ(store.finish_sample(nowhere, other).code(), Code::kInternal);
    ASSERT_EQ(store.load()->samples.size(), 1U);
  }
  const std::string path = folder() + "/results.sqlite";
  const auto execute = [&](const std::string& sql) { return Database::open(path, Access::kReadWrite).value().execute(sql).ok(); };
  struct DamagedList {
    const char* table;
    const char* column;
    const char* sound;
    const char* about;
    std::vector<const char*> damaged = {"[10.25,1", "10.25", "{}", "[\"1\"]", "[1e999]", "[-1]"};
  };
  const std::vector<const char*> no_texts = {"", "[\"42\"", "\"42\"", "[42]", "{}", "nothing", "[[\"42\"]]"};
  const DamagedList lists[] = {
      {"outcomes", "token_gaps_ms", "[10.25,11]", "sample n0 of needle through full cannot be"},
      {"solo", "token_gaps_ms", "[1,2.5]", "sample n0 of needle through kivi alone, run 3, cannot be"},
      {"samples", "depths", "[0.5]", "the depths of sample n0 of needle cannot be"},
      {"samples", "answers", "[\"42\"]", "the answers or classes of sample n0 of needle cannot be", no_texts},
      {"samples", "classes", "null", "the answers or classes of sample n0 of needle cannot be", no_texts}};
  for (const auto& list : lists) {
    for (const char* damaged : list.damaged) {
      const auto put = [&](const char* text) {
        return execute(std::string("UPDATE ") + list.table + " SET " + list.column + " = '" + text + "'");
      };
      ASSERT_TRUE(put(damaged));
      const Status status = Store::open_for_reading(FileSystem::real(), folder()).value().load().status();
      EXPECT_EQ(status.code(), Code::kBadInput) << list.table << damaged;
      EXPECT_NE(status.message().find(list.about), std::string::npos) << status.message();
      ASSERT_TRUE(put(list.sound));
      EXPECT_TRUE(Store::open_for_reading(FileSystem::real(), folder()).value().load().ok());
    }
  }
}

// What a disk leaves that is full before the first byte.
TEST_F(StoreTest, AnEmptyFileHoldsNoResultsAndIsNoObstacle) {
  std::filesystem::create_directories(folder());
  fclose(fopen((folder() + "/results.sqlite").c_str(), "w"));
  const Status status = Store::open_for_reading(FileSystem::real(), folder()).status();
  EXPECT_EQ(status.code(), Code::kBadInput);
  EXPECT_NE(status.message().find("holds no results"), std::string::npos) << status.message();
  EXPECT_TRUE(open(run()).ok());
}

TEST_F(StoreTest, TablesThatAreNotOursAreBadInput) {
  const std::string path = folder() + "/results.sqlite";
  for (const char* sql : {"DROP TABLE runs", "ALTER TABLE runs RENAME COLUMN cpu TO processor", "CREATE VIEW extra AS SELECT 1",
                          "CREATE TRIGGER extra BEFORE INSERT ON runs BEGIN SELECT RAISE(IGNORE); END",
                          "DROP TABLE runs; CREATE TABLE runs AS SELECT 1 AS run"}) {
    std::filesystem::remove_all(folder());
    ASSERT_TRUE(open(run()).ok());
    ASSERT_TRUE(Database::open(path, Access::kReadWrite).value().execute(sql).ok()) << sql;
    Result<Store> reader = Store::open_for_reading(FileSystem::real(), folder());
    EXPECT_EQ(reader.ok() ? reader->load().status().code() : reader.status().code(), Code::kBadInput) << sql;
    EXPECT_EQ(open(run()).status().code(), Code::kBadInput) << sql;
  }
}

TEST_F(StoreTest, AFormatOfTheFutureIsRefused) {
  ASSERT_TRUE(open(run()).ok());
  ASSERT_TRUE(Database::open(folder() + "/results.sqlite", Access::kReadWrite).value().execute("PRAGMA user_version = 5").ok());
  const Result<Store> r = Store::open_for_reading(FileSystem::real(), folder());
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kBadInput);
  EXPECT_NE(r.status().message().find("format 5"), std::string::npos);
  EXPECT_EQ(open(run()).status().code(), Code::kBadInput);
}

TEST_F(StoreTest, AKilledProcessKeepsItsFinishedSamples) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    Store store = open(run()).value();
    if (!store.add_task("needle", "contains").ok()) _exit(1);
    for (int i = 0;; ++i) {
      const std::vector<Outcome> done = {outcome(i, "full"), outcome(i, "q8_0")};
      if (!store.finish_sample(sample(i), done).ok()) _exit(1);
      const char byte = 1;
      if (write(pipe_ends[1], &byte, 1) != 1) _exit(1);
    }
  }
  char byte = 0;
  int finished = 0;
  while (finished < 5 && read(pipe_ends[0], &byte, 1) == 1) ++finished;
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  close(pipe_ends[1]);
  while (read(pipe_ends[0], &byte, 1) == 1) ++finished;
  close(pipe_ends[0]);

  const StoredResults r = open(run()).value().load().value();
  EXPECT_GE(r.samples.size(), static_cast<std::size_t>(finished));
  EXPECT_EQ(r.outcomes.size(), 2 * r.samples.size());  // whole samples only
}

TEST_F(StoreTest, AFullDiskIsAnIoErrorAndKeepsWhatWasFinished) {
  const int code = in_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {200000, 200000};  // a file of at most 200 kB stands for a full disk
    setrlimit(RLIMIT_FSIZE, &limit);
    Store store = open(run()).value();
    for (int i = 0; i < 1000; ++i) {
      Outcome big = outcome(i, "full");
      big.prediction.assign(5000, 'x');
      const std::vector<Outcome> done = {big};
      const Status status = store.finish_sample(sample(i), done);
      if (!status.ok()) return status.code() == Code::kIo && i > 0 ? 10 : 11;
    }
    return 12;
  });
  ASSERT_EQ(code, 10);
  const StoredResults r = open(run()).value().load().value();
  EXPECT_GT(r.outcomes.size(), 0U);
  EXPECT_EQ(r.outcomes.size(), r.samples.size());
}

TEST_F(StoreTest, AFolderThatCannotBeWrittenIsAnIoError) {
  ASSERT_TRUE(open(run()).ok());
  std::filesystem::permissions(folder() + "/results.sqlite", std::filesystem::perms(0444));
  std::filesystem::permissions(folder(), std::filesystem::perms(0555));
  std::filesystem::permissions(root_, std::filesystem::perms(0755));
  const int code = in_child([&] {
    if (getuid() == 0 && setuid(65534) != 0) return 12;  // root may write anywhere
    const Result<Store> r = open(run());
    if (r.ok()) return 11;
    return r.status().code() == Code::kIo ? 10 : 13;
  });
  std::filesystem::permissions(folder(), std::filesystem::perms(0755));
  EXPECT_EQ(code, 10);
}

TEST_F(StoreTest, AFileInPlaceOfTheFolderIsAnIoError) {
  FILE* f = fopen(folder().c_str(), "w");
  ASSERT_NE(f, nullptr);
  fclose(f);
  EXPECT_EQ(open(run()).status().code(), Code::kIo);
}

TEST_F(StoreTest, PartialStoresMergeByKey) {
  {
    Store b = Store::open(FileSystem::real(), folder("b"), run()).value();
    ASSERT_TRUE(b.add_task("needle", "contains").ok());
    const std::vector<Outcome> zero = {outcome(0, "full", 0.25), outcome(0, "q8_0", 0.5)};
    const std::vector<Outcome> one = {outcome(1, "full", 0.75)};
    ASSERT_TRUE(b.finish_sample(sample(0), zero).ok());
    ASSERT_TRUE(b.finish_sample(sample(1), one).ok());
  }
  RunRecord other_machine = run();
  other_machine.machine.cpu = "other";
  Store a = open(other_machine).value();
  Outcome failed = outcome(0, "q8_0");
  failed.error = "killed";
  const std::vector<Outcome> mine = {outcome(0, "full", 1), failed};
  ASSERT_TRUE(a.finish_sample(sample(0), mine).ok());
  ASSERT_TRUE(a.merge(FileSystem::real(), folder("b")).ok());
  ASSERT_TRUE(a.merge(FileSystem::real(), folder("b")).ok());  // twice changes nothing

  const StoredResults r = a.load().value();
  EXPECT_EQ(r.runs.size(), 2U);
  ASSERT_EQ(r.outcomes.size(), 3U);
  EXPECT_EQ(r.outcomes[0].score, 1.0);  // ours stays
  EXPECT_EQ(r.outcomes[1].score, 0.5);  // success replaces failure
  EXPECT_EQ(r.outcomes[2].score, 0.75);
  EXPECT_NE(r.outcomes[0].run, r.outcomes[2].run);

  ASSERT_TRUE(Store::open(FileSystem::real(), folder("c"), run(9)).ok());
  EXPECT_EQ(a.merge(FileSystem::real(), folder("c")).code(), Code::kUsage);
}

}  // namespace
}  // namespace kvartet
