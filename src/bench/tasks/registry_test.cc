#include <gtest/gtest.h>

#include <set>

#include "bench/tasks/task.h"
#include "core/memory_file_system.h"

namespace kvartet {
namespace {

using Keys = std::vector<std::pair<std::string, std::string>>;

TEST(TaskSpec, Parses) {
  EXPECT_EQ(parse_task_spec("needle")->name, "needle");
  const auto spec = parse_task_spec("multineedle:k=4,depth=0.5");
  EXPECT_EQ(spec->name, "multineedle");
  EXPECT_EQ(spec->keys, (Keys{{"k", "4"}, {"depth", "0.5"}}));
  EXPECT_EQ(parse_task_spec("longbench/multi_news")->set, "multi_news");
  const auto own = parse_task_spec("some/dir:odd/my.jsonl:max_new=64");
  EXPECT_EQ(own->name, "some/dir:odd/my.jsonl");
  EXPECT_EQ(own->keys, (Keys{{"max_new", "64"}}));
}

TEST(TaskSpec, RefusesWhatIsNoSpec) {
  for (const char* text : {"", ":k=4", "multineedle:", "multineedle:k", "multineedle:k=", "multineedle:=4", "multineedle:k=4,,",
                           "multineedle:k=4,k=5"}) {
    EXPECT_EQ(parse_task_spec(text).status().code(), Code::kUsage) << text;
  }
}

TEST(TaskRegistry, NamesAreUniqueAndMetricsKnown) {
  std::set<std::string> names;
  for (const TaskEntry& entry : task_registry()) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    EXPECT_TRUE(find_metric(entry.metric) != nullptr || entry.metric == kLikelihoodMetric) << entry.name;
    EXPECT_FALSE(entry.summary.empty()) << entry.name;
    const auto task = make_task(entry.name);
    ASSERT_TRUE(task.ok()) << task.status().message();
    EXPECT_EQ(task.value()->metric(), entry.metric);
    EXPECT_TRUE(make_task(task.value()->spec()).ok()) << task.value()->spec();  // the canonical form is a spec
  }
  EXPECT_TRUE(names.contains("longbench/multi_news"));
  for (const char* name : {"docqa", "multihop", "fewshot", "chat", "codebase", "contracts", "text2json", "ruler/vt", "loong"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

TEST(TaskRegistry, UnknownNamesGetASuggestion) {
  const auto message = [](std::string_view spec, std::string_view metric = {}) {
    const auto task = make_task(spec, metric);
    EXPECT_EQ(task.status().code(), Code::kUsage) << spec;
    return task.status().message();
  };
  EXPECT_NE(message("hotpotqa").find("the nearest is longbench/hotpotqa"), std::string::npos);
  EXPECT_NE(message("longbnch/hotpotqa").find("the nearest is longbench/hotpotqa"), std::string::npos);
  EXPECT_EQ(message("what-is-this").find("nearest"), std::string::npos);
  EXPECT_NE(message("what-is-this").find("see kvartet tasks"), std::string::npos);
  EXPECT_NE(message("needel").find("the nearest is needle"), std::string::npos);
  EXPECT_NE(message("longbench/mutli_news").find("the nearest is longbench/multi_news"), std::string::npos);
  EXPECT_NE(message("longbench").find("longbench/"), std::string::npos);
  EXPECT_NE(message("longbench/qasper:k=4").find("takes no keys"), std::string::npos);
  EXPECT_NE(message("longbench/qasper", "f1").find("brings its own metric"), std::string::npos);
}

TEST(OwnFile, IsATaskWithAMetric) {
  MemoryFileSystem files;
  ASSERT_TRUE(write_file_atomically(files, "my.jsonl",
                                    "{\"input\":\"Where?\",\"context\":\"In Paris.\",\"answers\":[\"Paris\"],\"id\":7}\n"
                                    "{\"input\":\"No context?\",\"context\":\"\",\"answers\":[\"a\"]}\nbroken\n")
                  .ok());
  const auto task = make_task("my.jsonl:max_new=16", "contains");
  ASSERT_TRUE(task.ok()) << task.status().message();
  EXPECT_EQ(task.value()->spec(), "my.jsonl:max_new=16");
  EXPECT_EQ(task.value()->metric(), "contains");
  TaskRequest request;
  request.files = &files;
  const auto set = task.value()->samples(request);
  ASSERT_TRUE(set.ok()) << set.status().message();
  ASSERT_EQ(set->samples.size(), 2U);
  EXPECT_EQ(set->samples[0].id, "7");
  EXPECT_EQ(set->samples[0].prompt(), "In Paris.\n\nWhere?");
  EXPECT_EQ(set->samples[0].max_new_tokens, 16);
  EXPECT_EQ(set->samples[1].prompt(), "No context?");
  ASSERT_EQ(set->skipped.size(), 1U);
  EXPECT_EQ(set->skipped[0].where(), "my.jsonl:3");
}

// A field of another kind than it has to be is named with its line, never read as something near it.
TEST(OwnFile, FieldsOfAnotherKindAreNamed) {
  MemoryFileSystem files;
  const std::string good = R"("input":"q","context":"c")";
  ASSERT_TRUE(write_file_atomically(files, "my.jsonl",
                                    "{" + good + R"(,"answers":["red"]})" + "\n" +                                //
                                        "{" + good + R"(,"answers":"red"})" + "\n" +                              //
                                        "{" + good + R"(,"answers":["red"],"all_classes":"red, blue"})" + "\n" +  //
                                        "{" + good + R"(,"answers":["red"],"id":{"n":1}})" + "\n" +               //
                                        "{" + good + R"(,"answers":["red"],"length":"12"})" + "\n" +              //
                                        R"({"input":["q"],"context":"c","answers":["red"]})" + "\n")
                  .ok());
  TaskRequest request;
  request.files = &files;
  const auto set = make_task("my.jsonl", "contains").value()->samples(request);
  ASSERT_TRUE(set.ok()) << set.status().message();
  EXPECT_EQ(set->samples.size(), 1U);
  ASSERT_EQ(set->skipped.size(), 5U);
  const char* const fields[] = {"answers", "all_classes", "id", "length", "input"};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(set->skipped[i].where(), "my.jsonl:" + std::to_string(i + 2));
    EXPECT_NE(set->skipped[i].reason.find(std::string("field ") + fields[i]), std::string::npos) << set->skipped[i].reason;
  }
}

// With the metric json answers may be JSON values or texts that hold JSON; every bad line is named.
TEST(OwnFile, JsonAnswers) {
  MemoryFileSystem files;
  ASSERT_TRUE(write_file_atomically(files, "my.jsonl",
                                    "{\"input\":\"q\",\"context\":\"c\",\"answers\":[{\"a\":1},\"[2]\"]}\n"
                                    "{\"input\":\"q\",\"context\":\"c\",\"answers\":{\"b\":2}}\n"
                                    "{\"input\":\"q\",\"context\":\"c\",\"answers\":[\"{broken\"]}\n"
                                    "{\"input\":\"q\",\"context\":\"c\",\"answers\":[]}\n")
                  .ok());
  TaskRequest request;
  request.files = &files;
  const auto set = make_task("my.jsonl", "json").value()->samples(request);
  ASSERT_TRUE(set.ok()) << set.status().message();
  ASSERT_EQ(set->samples.size(), 2U);
  EXPECT_EQ(set->samples[0].answers, (std::vector<std::string>{"{\"a\":1}", "[2]"}));
  EXPECT_EQ(set->samples[1].gold, "{\"b\":2}");
  ASSERT_EQ(set->skipped.size(), 2U);
  EXPECT_NE(set->skipped[0].reason.find("answer 1 is not valid JSON"), std::string::npos);
  EXPECT_NE(set->skipped[1].reason.find("empty"), std::string::npos);
  const auto as_text = make_task("my.jsonl", "contains").value()->samples(request);
  EXPECT_EQ(as_text->samples.size(), 1U);  // answers that are no texts are for json alone
}

TEST(OwnFile, RefusesWhatMakesNoSense) {
  const auto message = [](std::string_view spec, std::string_view metric) {
    const auto task = make_task(spec, metric);
    EXPECT_EQ(task.status().code(), Code::kUsage) << spec;
    return task.status().message();
  };
  EXPECT_NE(message("my.jsonl", "").find("--metric"), std::string::npos);
  EXPECT_NE(message("my.jsonl", "rogue").find("the nearest is rouge"), std::string::npos);
  const std::string far = message("my.jsonl", "accuracy");  // "count" is least far, and another thing
  EXPECT_EQ(far.find("nearest"), std::string::npos) << far;
  EXPECT_NE(far.find("choose f1, em"), std::string::npos) << far;
  EXPECT_NE(far.find("or likelihood"), std::string::npos) << far;
  EXPECT_NE(message("my.jsonl:new=5", "f1").find("max_new"), std::string::npos);
  EXPECT_NE(message("my.jsonl:max_new=0", "f1").find("max_new=0"), std::string::npos);
  EXPECT_NE(message("my.jsonl:max_new=5x", "f1").find("max_new=5x"), std::string::npos);
  EXPECT_TRUE(make_task("my.jsonl", "likelihood").ok());
}

}  // namespace
}  // namespace kvartet
