// Edges of what is asked and answered (user-needs C7, C10, C19, C20), through the program.
#include <gtest/gtest.h>

#include "bench_fixture.h"
#include "core/utf8.h"
#include "tiny_models.h"

namespace kvartet::e2e {
namespace {

class AnswerEdges : public BenchFixture {
 protected:
  Finished ask(const Arguments& more) const { return run(Arguments{"run", "-m", model_, "--threads", "1"} + more); }
  Json ask_json(const Arguments& more) const {
    const Finished f = ask(more + Arguments{"--json"});
    EXPECT_TRUE(is_ok(f));
    return f.code == 0 ? f.json() : Json::object();
  }
  static std::string prompt(std::size_t tokens) { return std::string(tokens / 2, 'a') + std::string(tokens - tokens / 2, 'b'); }
};

// Nothing to evaluate is said to be nothing, with a BOS in front or without one; no command waits or answers at random.
TEST_F(AnswerEdges, C7NothingToEvaluateWithAndWithoutBos) {
  const std::string with_bos = tiny_model(folder_, wide_heads(), "bos.gguf");
  std::string bytes = read_text(with_bos);
  const std::string key = "tokenizer.ggml.add_bos_token";
  bytes[bytes.find(key) + key.size() + 4] = 1;  // behind the type
  write_text(with_bos, bytes);
  for (const std::string& model : {model_, with_bos}) {
    model_ = model;
    for (const Arguments& how : {Arguments{}, {"--raw"}, {"--json"}, {"--question", "why?"}, {"-n", "0"}}) {
      EXPECT_TRUE(is_refused(ask(Arguments{"-p", ""} + how), 3, "empty"));
    }
    EXPECT_TRUE(is_refused(run({"fidelity", "-m", model, "--kv", "q8_0", "-f", folder_.file("empty.txt", "")}), 3));
    // A record without document and question: the task is left with nothing, or with what can be said of it.
    const std::string records = folder_.file("nothing.jsonl", R"({"input": "", "context": "", "answers": ["a"]})");
    const Finished f = run({"bench", "-m", model, "--threads", "1", "--kv", "full", "--task", records + ":max_new=2", "--metric",
                            "f1", "--context", "300", "-o", out(model == with_bos ? "bos" : "plain")});
    EXPECT_EQ(f.signal, 0);
    EXPECT_TRUE(f.code == 0 || is_sentence(f, 3, "empty")) << f.err;
  }
  // The flag does what it says, so that the refusals above mean something.
  model_ = with_bos;
  EXPECT_EQ(ask_json({"-p", "text", "--raw", "-n", "1"})["prompt_tokens"], 5);
}

// Random bytes come out of a random model: what is printed is valid wherever it is cut, and the same as in the document.
TEST_F(AnswerEdges, C10OutputIsUtf8WhereverItIsCut) {
  int replaced = 0;
  for (int n = 1; n <= 24; ++n) {
    const Arguments all = {
        "-p", "caf\xc3\xa9 \xf0\x9f\x98\x80 \xed\x95\x9c\xea\xb5\xad", "--temp", "2", "--seed", "11", "-n", std::to_string(n)};
    const Finished streamed = ask(all);
    ASSERT_TRUE(is_ok(streamed));
    EXPECT_EQ(valid_utf8_prefix(streamed.out), streamed.out.size()) << n;
    const Json d = ask_json(all);
    EXPECT_EQ(streamed.out, d["text"].get<std::string>() + "\n") << n;
    EXPECT_EQ(d["completion_tokens"], n);
    replaced += streamed.out.find("\xef\xbf\xbd") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(replaced, 0) << "no byte that is none of a character came up, so this test shows nothing";
}

const std::vector<std::string> kEvictors = {
    "streamingllm:budget=", "h2o:budget=", "tova:budget=", "snapkv:budget=", "pyramidkv:budget=", "adakv:budget="};

TEST_F(AnswerEdges, C19BudgetsOfEveryEvictor) {
  const std::string text = prompt(160);
  const Arguments base = {"--raw", "-p", text, "--temp", "1", "--seed", "3"};
  const std::string twenty = ask_json(base + Arguments{"-n", "20"})["text"];
  const std::string one = ask_json(base + Arguments{"-n", "1"})["text"];
  for (const std::string& evictor : kEvictors) {
    const Json above = ask_json(base + Arguments{"-n", "20", "--kv", evictor + "500"});
    EXPECT_EQ(above["text"], twenty) << evictor;
    EXPECT_EQ(above["kv"]["acted"], false) << evictor;
    const Json equal = ask_json(base + Arguments{"-n", "1", "--kv", evictor + "160"});
    EXPECT_EQ(equal["text"], one) << evictor;
    EXPECT_EQ(equal["kv"]["rows_kept"], 160.0) << evictor;
    const Json least = ask_json(base + Arguments{"-n", "20", "--kv", evictor + "1"});
    EXPECT_EQ(least["completion_tokens"], 20) << evictor;
    EXPECT_GE(least["kv"]["rows_kept"], 1.0) << evictor;
    EXPECT_LE(least["kv"]["rows_kept"], 2.0) << evictor;
    for (const char* bad : {"0", "-1", "-0.5"})
      EXPECT_TRUE(is_refused(ask({"-p", text, "--kv", evictor + bad}), 2, bad)) << evictor;
  }
}

// Prompts shorter than the observation window, and pyramids whose first layers would like more rows than there are.
TEST_F(AnswerEdges, C19ShortPromptsAndSteepPyramids) {
  for (const std::size_t tokens : {1U, 4U, 31U, 32U, 33U}) {
    const Arguments base = {"--raw", "-p", prompt(tokens), "-n", "5"};
    const std::string full = ask_json(base)["text"];
    for (const char* spec : {"snapkv:budget=64,window=32", "pyramidkv:budget=64,window=32", "adakv:budget=64,window=32"}) {
      EXPECT_EQ(ask_json(base + Arguments{"--kv", spec})["text"], full) << spec << ", " << tokens;
    }
  }
  for (const int budget : {100, 120, 129}) {
    const Json d =
        ask_json({"--raw", "-p", prompt(130), "-n", "5", "--kv", "pyramidkv:window=8,beta=5,budget=" + std::to_string(budget)});
    EXPECT_EQ(d["kv"]["rows_kept"], static_cast<double>(budget));
    EXPECT_EQ(d["completion_tokens"], 5);
  }
}

// A record file as people have it: what can be used is used, the rest is named, and the counts add up.
TEST_F(AnswerEdges, C20DirtyRecordFile) {
  const auto record = [](const std::string& id) {
    return R"({"_id": ")" + id + R"(", "input": "What?", "context": "The mill grinds.", "answers": ["corn"]})";
  };
  const auto spoilt = [&](const std::string& id, char byte) {
    std::string line = record(id);
    line[30] = byte;
    return line;
  };
  const std::string text = "\xef\xbb\xbf" + record("a") + "\r\n" +           // 1
                           "\n \t\r\n" +                                     // 2, 3: blank
                           record("b") + "\n" +                              // 4
                           R"({"input": "What?", "context": "c"})" + "\n" +  // 5: no answers
                           spoilt("c", '\0') + "\n" +                        // 6
                           spoilt("d", '\xff') + "\n" +                      // 7
                           record("a") + "\n" +                              // 8: repeated
                           R"({"input": "What?", "context": ")" + std::string(5'000'000, 'x') + R"(", "answers": 5})" +
                           "\n" +        // 9
                           record("e");  // 10, without an end of line
  const std::string file = folder_.file("dirty.jsonl", text);
  const Finished f = run({"bench", "-m", model_, "--threads", "1", "--kv", "full", "--task", file + ":max_new=4", "--metric",
                          "f1", "--context", "300", "-o", out("out"), "--json"});
  ASSERT_TRUE(is_ok(f));
  EXPECT_EQ(f.json()["rows"][0]["n"], 3);
  for (const int line : {5, 6, 7, 8, 9})
    EXPECT_NE(f.err.find("dirty.jsonl:" + std::to_string(line) + ": "), std::string::npos) << f.err;
  for (const int line : {1, 2, 3, 4, 10})
    EXPECT_EQ(f.err.find("dirty.jsonl:" + std::to_string(line) + ": "), std::string::npos) << f.err;
  EXPECT_NE(f.err.find("3 records used, 5 lines left out"), std::string::npos) << f.err;
}

}  // namespace
}  // namespace kvartet::e2e
