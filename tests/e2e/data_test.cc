// kvartet data check DIR: every known set found or missing, damaged ones by exit code 3.
#include <gtest/gtest.h>

#include "program.h"

namespace kvartet::e2e {
namespace {

class Data : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_.path("longbench/config"));
    folder_.file("longbench/qasper.jsonl", R"({"input":"q","context":"c","answers":["a"]})");
  }
  static const Json& set_of(const Json& document, const std::string& path) {
    for (const Json& set : document["sets"]) {
      if (set["path"] == path) return set;
    }
    static const Json none;
    ADD_FAILURE() << path << " is not in the document";
    return none;
  }
  ScratchFolder folder_;
};

TEST_F(Data, CheckListsEverySetAsJsonAndAsTable) {
  const Finished f = run({"data", "check", folder_.path(), "--json"});
  ASSERT_TRUE(is_ok(f));
  const Json document = f.json();
  EXPECT_EQ(document["directory"], folder_.path());
  EXPECT_EQ(set_of(document, "longbench/qasper.jsonl")["state"], "found");
  EXPECT_EQ(set_of(document, "longbench/qasper.jsonl")["records"], 1);
  EXPECT_EQ(set_of(document, "longbench/qasper.jsonl")["hash"].get<std::string>().size(), 16U);
  EXPECT_EQ(set_of(document, "longbench/lcc.jsonl")["state"], "missing");
  const Finished table = run({"data", "check", folder_.path()});
  ASSERT_TRUE(is_ok(table));
  EXPECT_NE(table.out.find("longbench/lcc.jsonl"), std::string::npos);
}

TEST_F(Data, DamagedFilesAndMissingFoldersEndWithCode3) {
  folder_.file("longbench/trec.jsonl", "{broken\n");
  const Finished f = run({"data", "check", folder_.path()});
  EXPECT_EQ(f.code, 3);
  EXPECT_NE(f.err.find("trec.jsonl:1"), std::string::npos);
  EXPECT_EQ(run({"data", "check", folder_.path("nowhere")}).code, 3);
  EXPECT_EQ(run({"data"}).code, 2);
}

}  // namespace
}  // namespace kvartet::e2e
