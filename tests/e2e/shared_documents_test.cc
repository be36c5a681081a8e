// Several questions about one document: computed once, and nobody can tell from the results (docs/decisions/0012).
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "bench_fixture.h"

namespace kvartet::e2e {
namespace {

class SharedDocuments : public BenchFixture {
 protected:
  Arguments arguments(const std::string& name, const Arguments& more) const {
    return Arguments{"bench",
                     "-m",
                     model_,
                     "--threads",
                     "1",
                     "--kv",
                     "full",
                     "--kv",
                     "snapkv:budget=100",
                     "--kv",
                     "h2o:budget=100",
                     "--kv",
                     "kivi:bits=2,residual=32",
                     "--context",
                     "900",
                     "--data",
                     folder_.path(),
                     "-o",
                     out(name)} +
           more;
  }
  // Prediction and likelihood by sample (its record's id) and cache.
  std::map<std::pair<std::string, std::string>, std::pair<std::string, double>> answers(const std::string& name) const {
    std::map<std::pair<std::string, std::string>, std::pair<std::string, double>> found;
    Result<Store> store = Store::open_for_reading(FileSystem::real(), out(name));
    EXPECT_TRUE(store.ok()) << store.status().message();
    if (!store.ok()) return found;
    const Result<StoredResults> results = store->load();
    EXPECT_TRUE(results.ok());
    if (!results.ok()) return found;
    for (const Outcome& o : results->outcomes) {
      EXPECT_FALSE(o.failed()) << o.error;
      found[{o.key.sample, o.spec}] = {o.prediction, o.gold_log_likelihood.value_or(1)};
    }
    return found;
  }
  static std::string record(const std::string& id, const std::string& context, const std::string& input) {
    return Json{{"_id", id}, {"context", context}, {"input", input}, {"answers", Json::array({"August"})}}.dump() + "\n";
  }

  const std::string first_ = haystack_text().substr(0, 500);
  const std::string second_ = haystack_text().substr(600, 450);
};

TEST_F(SharedDocuments, RecordsOfTheUsersOwnFile) {
  const std::vector<std::string> records = {record("a", first_, "When does mill 3 grind?"), record("b", first_, "And mill 5?"),
                                            record("c", second_, "When does the last mill grind?"),
                                            record("d", first_, "Which mill grinds in August?")};
  std::string all;
  for (const std::string& line : records) all += line;
  folder_.file("all.jsonl", all);
  const Arguments own = {"--metric", "contains", "--task"};
  const Finished together = run(arguments("together", own + Arguments{folder_.path("all.jsonl"), "--json"}));
  ASSERT_TRUE(is_ok(together));
  EXPECT_NE(together.err.find("2 prompts began like an earlier one"), std::string::npos) << together.err;
  EXPECT_EQ(together.json()["rows"][0]["n"], 4);
  EXPECT_EQ(together.json()["rows"][0]["documents"], 2);
  EXPECT_EQ(together.json()["rows"][1]["likelihood_verdict"], "not measurable");
  EXPECT_NE(together.out.find("4 prompts about 2 documents"), std::string::npos) << together.out;

  auto expected = answers("together");
  EXPECT_EQ(expected.size(), 16U);
  for (const std::string& line : records) {
    const std::string id = Json::parse(line)["_id"];
    folder_.file(id + ".jsonl", line);
    const Finished alone = run(arguments(id, own + Arguments{folder_.path(id + ".jsonl")}));
    ASSERT_TRUE(is_ok(alone));
    EXPECT_EQ(alone.err.find("began like"), std::string::npos) << alone.err;
    for (const auto& [key, answer] : answers(id)) EXPECT_EQ(expected.at(key), answer) << key.first << " " << key.second;
  }
}

// Seen, unseen and asked second, in one command or in one folder after the other: the same rows, side by side in the reports.
TEST_F(SharedDocuments, SecondQuestionsAboutADocument) {
  std::string all;
  const std::vector<std::pair<std::string, std::string>> asked = {
      {"a", "When does mill 3 grind?"}, {"b", "And mill 5, when does it grind?"}, {"d", "Which mill grinds in August?"}};
  for (const auto& [id, question] : asked) all += record(id, first_, question);
  all += record("c", second_, "When does the last mill grind?");
  const Arguments own = {"--metric", "contains", "--task", folder_.file("all.jsonl", all), "--json"};
  const Arguments both = {"--question-position", "both"};
  const Arguments second = {"--question-position", "second"};
  const Finished together = run(arguments("together", own + both + second));
  ASSERT_TRUE(is_ok(together));
  EXPECT_NE(together.err.find("1 question is the only one about the document"), std::string::npos) << together.err;
  const Json expected = rows(together);
  ASSERT_EQ(expected.size(), 12U);
  EXPECT_EQ(expected[0]["n"], 4);
  EXPECT_EQ(expected[8]["question_position"], "second");
  EXPECT_EQ(expected[8]["n"], 3);
  EXPECT_GT(expected[8]["prompt_tokens"], expected[0]["prompt_tokens"]);
  EXPECT_GT(expected[9]["rows_kept"], expected[1]["rows_kept"]);  // snapkv: what follows the seal stays
  const Json positions = together.json()["positions"];
  ASSERT_EQ(positions.size(), 8U);
  EXPECT_EQ(positions[5]["question_position"], "second");
  EXPECT_EQ(positions[5]["n"], 3);
  EXPECT_TRUE(positions[5]["likelihood_difference"].is_number());

  ASSERT_TRUE(is_ok(run(arguments("apart", own))));
  ASSERT_TRUE(is_ok(run(arguments("apart", own + second))));
  const Finished added = run(arguments("apart", own + Arguments{"--question-position", "unseen"}));
  ASSERT_TRUE(is_ok(added));
  EXPECT_EQ(rows(added), expected);
  const Finished resumed = run(arguments("apart", own + second));
  EXPECT_NE(resumed.err.find("samples: 3 in "), std::string::npos) << resumed.err;
  bool written = false;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(out("apart") + "/predictions"))
    written = written || entry.path().filename() == "900-second";
  EXPECT_TRUE(written);

  constexpr const char* kCost = "hat choosing rows for one question cost the next one";
  EXPECT_NE(run({"report", out("together")}).out.find(kCost), std::string::npos);
  ASSERT_TRUE(is_ok(run({"report", out("together"), "-o", out("page.html")})));
  EXPECT_NE(read_text(out("page.html")).find(kCost), std::string::npos);
}

// One sentence with the way out, and no folder left behind.
TEST_F(SharedDocuments, SecondQuestionsNeedTwoAboutADocument) {
  const Finished f = run(arguments("none", {"--task", "docqa", "--samples", "2", "--question-position", "second"}));
  EXPECT_EQ(f.code, 2);
  EXPECT_NE(f.err.find("give --task docqa:questions=4"), std::string::npos) << f.err;
  EXPECT_FALSE(std::filesystem::exists(out("none")));
}

TEST_F(SharedDocuments, SecondQuestionsRunAloneAndKeepTheirPrefills) {
  std::string all;
  for (const auto& [id, question] :
       {std::pair("a", "When does mill 3 grind?"), std::pair("b", "And mill 5, when does it grind?")})
    all += record(id, first_, question);
  const Arguments task = {"--metric", "contains", "--task", folder_.file("two.jsonl", all), "--keep-prefill", out("kept")};
  ASSERT_TRUE(is_ok(run(arguments("seen", task))));
  // The prompt of the first question, after which the caches are sealed, is one that was kept when it was seen.
  const Finished f = run(arguments("second", task + Arguments{"--question-position", "second", "--solo", "1", "--json"}));
  ASSERT_TRUE(is_ok(f));
  EXPECT_NE(f.err.find("2 read, 0 written"), std::string::npos) << f.err;
  for (const Json& row : f.json()["rows"]) {
    EXPECT_EQ(row["solo"]["runs"], 1);
    EXPECT_EQ(row["solo"]["same_text"], true);
  }
}

// Interrupted among the questions of a document, in either position: the table of an undisturbed run.
TEST_F(SharedDocuments, AnInterruptedRunGoesOnWithinADocument) {
  const Arguments task = {"--task", "needle:questions=2", "--samples", "8", "--question-position", "both", "--json"};
  const Finished undisturbed = run(arguments("whole", task));
  ASSERT_TRUE(is_ok(undisturbed));
  EXPECT_NE(undisturbed.err.find("12 prompts began like an earlier one"), std::string::npos) << undisturbed.err;
  const Json whole = rows(undisturbed);
  for (const int wanted : {1, 2, 5}) {
    const std::string name = "cut" + std::to_string(wanted);
    Program program(arguments(name, task));
    wait_for_samples(program, name, wanted);
    program.kill(SIGINT);
    ASSERT_EQ(program.wait().code, 130);
    const Finished rest = run(arguments(name, task));
    ASSERT_TRUE(is_ok(rest));
    EXPECT_EQ(rows(rest), whole) << wanted;
  }
}

// Where one cache fails each is tried alone: a prompt is still one prompt, and the other caches give what they give in company.
TEST_F(SharedDocuments, PromptsAreCountedOnceWhereACacheFails) {
  const Arguments task = {"--task", "needle:questions=2", "--samples", "4"};
  ASSERT_TRUE(is_ok(run(arguments("sound", task))));
  const Finished f = run(arguments("capped", task + Arguments{"--fast-tier-bytes", "300K"}));
  EXPECT_EQ(f.code, 1);
  EXPECT_NE(f.err.find("4 answers failed"), std::string::npos) << f.err;
  EXPECT_NE(f.err.find("2 prompts began like an earlier one"), std::string::npos) << f.err;
  const auto sound = answers("sound");
  int compared = 0;
  const StoredResults capped = Store::open_for_reading(FileSystem::real(), out("capped")).value().load().value();
  for (const Outcome& o : capped.outcomes) {
    if (o.failed()) continue;
    ++compared;
    EXPECT_EQ(sound.at({o.key.sample, o.spec}), std::pair(o.prediction, o.gold_log_likelihood.value_or(1))) << o.spec;
  }
  EXPECT_EQ(compared, 12);
}

// Runs of a cache alone compute their prompt whole, and write what the cache wrote in company.
TEST_F(SharedDocuments, RunsAloneAreWhole) {
  const Finished f = run(arguments("solo", {"--task", "needle:questions=2", "--samples", "2", "--solo", "1", "--json"}));
  ASSERT_TRUE(is_ok(f));
  for (const Json& row : f.json()["rows"]) {
    EXPECT_EQ(row["solo"]["runs"], 1);
    EXPECT_EQ(row["solo"]["same_text"], true);
  }
}

TEST_F(SharedDocuments, KeptPrefillsGoOnBesideThem) {
  const Arguments task = {"--task", "needle:questions=2", "--samples", "4", "--keep-prefill", out("kept"), "--json"};
  const Finished first = run(arguments("first", task));
  ASSERT_TRUE(is_ok(first));
  EXPECT_NE(first.err.find("0 read, 4 written"), std::string::npos) << first.err;
  EXPECT_NE(first.err.find("2 prompts began like"), std::string::npos) << first.err;
  const Finished later = run(arguments("later", task));
  ASSERT_TRUE(is_ok(later));
  EXPECT_NE(later.err.find("4 read, 0 written"), std::string::npos) << later.err;
  EXPECT_EQ(rows(later), rows(first));
}

TEST_F(SharedDocuments, ADryRunCountsThem) {
  const Finished f = run(arguments("out", {"--task", "needle:questions=2", "--samples", "6", "--dry-run"}));
  ASSERT_TRUE(is_ok(f));
  EXPECT_NE(f.out.find("3 prompts to be computed from where"), std::string::npos) << f.out;
  EXPECT_EQ(run(arguments("out", {"--task", "needle", "--dry-run"})).out.find("computed from where"), std::string::npos);
}

}  // namespace
}  // namespace kvartet::e2e
