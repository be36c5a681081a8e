#include "results/store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "results/store_fixture.h"
#include "results/store_schema.h"

namespace kvartet {
namespace {

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

// A second question has the id and the document of the same question seen, but a prompt of its own.
TEST_F(StoreTest, SecondQuestionsAreApartAndHaveTheirOwnPrompts) {
  Store store = open(run()).value();
  ASSERT_TRUE(store.add_task("needle", "contains").ok());
  const std::vector<std::string> specs = {"full", "kivi"};
  const auto lossy = [](const SampleRecord& s, double loss) {
    std::vector<Outcome> both = {outcome(0, "full", 1), outcome(0, "kivi", 1 - loss)};
    for (Outcome& o : both) o.key = s.key;
    return both;
  };
  SampleRecord second = sample(0, "cc");
  second.key.position = QuestionPosition::kSecond;
  second.prompt_tokens = 2222;
  SampleRecord unseen = sample(0);
  unseen.key.position = QuestionPosition::kUnseen;
  EXPECT_EQ(store.missing(second.key, "cc", specs).value(), specs);
  ASSERT_TRUE(store.finish_sample(second, lossy(second, 0.75)).ok());
  EXPECT_EQ(store.missing(sample(0).key, "aa", specs).value(), specs);
  ASSERT_TRUE(store.finish_sample(unseen, lossy(unseen, 0.5)).ok());
  ASSERT_TRUE(store.finish_sample(sample(0), lossy(sample(0), 0.25)).ok());
  EXPECT_TRUE(store.missing(second.key, "cc", specs).value().empty());
  EXPECT_EQ(store.missing(second.key, "aa", specs).status().code(), Code::kUsage);
  EXPECT_EQ(store.missing(sample(0).key, "cc", specs).status().code(), Code::kUsage);

  const StoredResults r = Store::open_for_reading(FileSystem::real(), folder()).value().load().value();
  ASSERT_EQ(r.samples.size(), 3U);
  ASSERT_EQ(r.outcomes.size(), 6U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(r.samples[i].key.position, kQuestionPositions[i]);
    EXPECT_EQ(r.outcomes[2 * i].key.position, kQuestionPositions[i]);
  }
  EXPECT_EQ(r.samples[2].prompt_hash, "cc");
  EXPECT_EQ(parameters_text(r), "question=seen+unseen+second");

  std::vector<EvidenceCell> cells = store.evidence().value();
  ASSERT_EQ(cells.size(), 3U);
  std::vector<EvidenceCell> in_memory = evidence_of(r);
  EXPECT_EQ(in_memory, cells);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(cells[i].parameters, std::string("question=") + question_position_name(kQuestionPositions[i]));
    EXPECT_DOUBLE_EQ(cells[i].score.mean, 0.25 * static_cast<double>(i + 1));
    EXPECT_EQ(cells[i].prompt_tokens, i == 2 ? 2222 : sample(0).prompt_tokens);
  }
  EXPECT_EQ(find_question_position("second"), QuestionPosition::kSecond);
}

// Format 4 is format 5 without second questions: read as it is, and renewed so that programs of then do not take them for others.
TEST_F(StoreTest, Format4IsReadAndRenewed) {
  const std::vector<Outcome> done = {outcome(0, "full"), outcome(0, "kivi", 0.5)};
  ASSERT_TRUE(open(run()).value().finish_sample(sample(0), done).ok());
  const std::string path = folder() + "/results.sqlite";
  ASSERT_TRUE(Database::open(path, Access::kReadWrite).value().execute("PRAGMA user_version = 4").ok());
  {
    Store old = Store::open_for_reading(FileSystem::real(), folder()).value();
    EXPECT_EQ(old.load().value().outcomes.size(), 2U);
    EXPECT_EQ(old.evidence().value().size(), 1U);
  }
  EXPECT_EQ(open(run()).value().load().value().outcomes.size(), 2U);
  Database database = Database::open(path, Access::kReadOnly).value();
  EXPECT_EQ(format_of(database, path).value(), 5);
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
  // What is written after that token goes through the cache: where other samples make a cell, its score counts with theirs.
  const std::vector<Outcome> done = {outcome(2, "full"), outcome(2, "kivi", 0.5)};
  ASSERT_TRUE(store.finish_sample(sample(2), done).ok());
  const std::vector<EvidenceCell> both = store.evidence().value();
  ASSERT_EQ(both.size(), 2U);
  EXPECT_EQ(both[0].parameters, "question=seen");
  EXPECT_EQ(both[0].nats.n, 1);
  EXPECT_EQ(both[0].score.n, 2);
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
