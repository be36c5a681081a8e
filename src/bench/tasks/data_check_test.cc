#include "bench/tasks/data_check.h"

#include <algorithm>
#include <cstdlib>

#include "bench/tasks/task_fixture.h"

namespace kvartet {
namespace {

class DataCheck : public TaskFixture {
 protected:
  DataSetCheck of(const std::string& path) {
    const std::vector<DataSetCheck> checks = check_data(files_, "data", "models/haystack").value();
    const auto found = std::find_if(checks.begin(), checks.end(), [&](const DataSetCheck& c) { return c.path == path; });
    EXPECT_NE(found, checks.end()) << path;
    return found == checks.end() ? DataSetCheck{} : *found;
  }
};

constexpr const char* kRecord = R"({"input":"q","context":"c","answers":["a"],"all_classes":["a"]})";

TEST_F(DataCheck, NamesEverySetFoundOrMissing) {
  const std::vector<DataSetCheck> checks = check_data(files_, "data", "models/haystack").value();
  int longbench = 0;
  for (const DataSetCheck& c : checks) {
    longbench += c.path.starts_with("longbench/") && c.path.ends_with(".jsonl") ? 1 : 0;
    EXPECT_EQ(c.state, c.path == "haystack" ? DataState::kFound : DataState::kMissing) << c.path;
    EXPECT_FALSE(c.source.empty());
    EXPECT_EQ(c.hash.empty(), c.state == DataState::kMissing);
  }
  EXPECT_EQ(longbench, 21);
  EXPECT_EQ(check_data(files_, "nowhere", "models/haystack").status().code(), Code::kBadInput);
}

TEST_F(DataCheck, SaysWhichEssaysAreReadInsteadOfAHaystack) {
  ASSERT_TRUE(files_.make_directories("bare").ok());
  const auto haystack = [&](const std::string& essays) { return check_data(files_, "bare", essays).value().front(); };
  EXPECT_EQ(haystack("data/haystack").state, DataState::kMissing);
  EXPECT_EQ(haystack("data/haystack").note, "the essays in data/haystack are used");
  EXPECT_NE(haystack("gone/haystack").note.find("gone/haystack holds no .txt files"), std::string::npos);
}

TEST_F(DataCheck, CountsRecordsAndHashesFiles) {
  put("data/longbench/hotpotqa.jsonl", std::string(kRecord) + "\n" + kRecord + "\n");
  const DataSetCheck check = of("longbench/hotpotqa.jsonl");
  EXPECT_EQ(check.state, DataState::kFound);
  EXPECT_EQ(check.records, 2);
  EXPECT_EQ(check.task, "longbench/hotpotqa");
  EXPECT_NE(check.note.find("200 records"), std::string::npos);
  EXPECT_EQ(check.hash.size(), 16U);
  put("data/longbench/hotpotqa.jsonl", std::string(kRecord) + "\n");
  EXPECT_NE(of("longbench/hotpotqa.jsonl").hash, check.hash);
}

TEST_F(DataCheck, SaysWhatIsDamagedOrRefused) {
  put("data/longbench/trec.jsonl", std::string(kRecord) + "\n{\"input\":1}\n");
  const DataSetCheck trec = of("longbench/trec.jsonl");
  EXPECT_EQ(trec.state, DataState::kDamaged);
  EXPECT_EQ(trec.unusable, 1);
  EXPECT_NE(trec.note.find("line 2"), std::string::npos);
  put("data/longbench/lsht.jsonl", kRecord);
  EXPECT_EQ(of("longbench/lsht.jsonl").state, DataState::kRefused);
  EXPECT_NE(of("longbench/lsht.jsonl").note.find("jieba"), std::string::npos);
  put("data/longbench/qasper.jsonl", "");
  EXPECT_NE(of("longbench/qasper.jsonl").note.find("no records"), std::string::npos);
  put("data/longbench/config/dataset2prompt.json", R"({"qasper":"{context}"})");
  EXPECT_NE(of("longbench/config/dataset2prompt.json").note.find("no prompt for narrativeqa"), std::string::npos);
  put("data/longproc/html_to_tsv_2k.json", R"([{"html_path":"webpage/x.html","gt":"a\tb"}])");
  EXPECT_NE(of("longproc/html_to_tsv_2k.json").note.find("pages of 1 record are"), std::string::npos);
  put("data/needlebench/needles.jsonl", "{}\n");
  EXPECT_EQ(of("needlebench/needles.jsonl").state, DataState::kDamaged);
  put("data/loong/loong.jsonl",
      R"({"type":"paper","language":"en","question":"","instruction":"","prompt_template":"","answer":"words"})");
  EXPECT_NE(of("loong/loong.jsonl").note.find("loong/doc"), std::string::npos);
  put("data/text2json/any.jsonl", R"({"problem":"p","answer":"[]"})");
  EXPECT_EQ(of("text2json/any.jsonl").state, DataState::kFound);
  put("data/haystack/bad.txt", "\xff");
  EXPECT_EQ(of("haystack").state, DataState::kDamaged);
}

TEST(DataCheckReal, TheRealFolder) {
  const char* data = std::getenv("KVARTET_DATA");
  if (data == nullptr) GTEST_SKIP() << "skipped: set KVARTET_DATA to a data folder";
  const auto checks = check_data(FileSystem::real(), data, "models/haystack");
  ASSERT_TRUE(checks.ok()) << checks.status().message();
  for (const DataSetCheck& c : *checks) {
    EXPECT_NE(c.state, DataState::kDamaged) << c.path << ": " << c.note;
    if (c.path == "longbench/multi_news.jsonl") {
      EXPECT_EQ(c.records, 100);
    }
  }
}

}  // namespace
}  // namespace kvartet
