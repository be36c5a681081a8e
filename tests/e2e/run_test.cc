// kvartet run: answers, questions on one sealed cache, limits of length (user-needs C5, C6, C7, C9, C11).
#include <gtest/gtest.h>

#include <set>

#include "tiny_models.h"

namespace kvartet::e2e {
namespace {

class Run : public testing::Test {
 protected:
  Finished ask(const Arguments& more) const { return run(Arguments{"run", "-m", model_, "--threads", "1"} + more); }
  Json ask_json(const Arguments& more) const {
    const Finished f = ask(more + Arguments{"--json"});
    EXPECT_TRUE(is_ok(f));
    return f.code == 0 ? f.json() : Json::object();
  }
  std::string text_of(const Arguments& more) const { return ask_json(more).value("text", ""); }

  ScratchFolder folder_;
  std::string model_ = tiny_model(folder_, wide_heads());
  const std::string document_ = std::string(60, 'a') + " The locker of Ida holds 4711 marbles. " + std::string(60, 'b');
};

// DESIGN 6: the part of the document that others rely on.
TEST_F(Run, JsonHasTheAgreedFields) {
  const Json d = ask_json({"-p", "hello", "-n", "5", "--kv", "kivi:bits=4"});
  for (const char* key : {"text", "finish_reason", "prompt_tokens", "completion_tokens", "ttft_s", "prefill_s", "compress_s",
                          "decode_tokens_per_s", "rss_bytes", "peak_rss_bytes", "kv"}) {
    EXPECT_TRUE(d.contains(key)) << key;
  }
  for (const char* key : {"spec", "live_bytes", "allocated_bytes", "bytes_by_tier", "full_f16_bytes", "compression_ratio",
                          "fast_ratio", "rows_kept"}) {
    EXPECT_TRUE(d["kv"].contains(key)) << key;
  }
  EXPECT_EQ(d["kv"]["spec"], "kivi:bits=4,group=32,residual=128");
  EXPECT_EQ(d["kv"]["bytes_by_tier"]["ram"], d["kv"]["allocated_bytes"]);
  EXPECT_EQ(d["kv"]["full_f16_bytes"], 2 * 2 * 2 * 32 * 2 * d["prompt_tokens"].get<int>());
  EXPECT_GT(d["peak_rss_bytes"], 1'000'000);
  EXPECT_GT(d["rss_bytes"], 1'000'000);
  EXPECT_LE(d["rss_bytes"], d["peak_rss_bytes"]);
}

TEST_F(Run, StreamedTextEqualsTheJsonText) {
  for (const Arguments& more :
       {Arguments{}, {"--temp", "1", "--seed", "7"}, {"--raw"}, {"--kv", "snapkv:budget=0.25+kivi:bits=2"}}) {
    const Arguments all = Arguments{"-p", document_, "-n", "40"} + more;
    const Finished streamed = ask(all);
    ASSERT_TRUE(is_ok(streamed));
    EXPECT_EQ(streamed.out, text_of(all) + "\n");
  }
}

// DESIGN 4: the same bits for any number of threads.
TEST_F(Run, SameTextForAnyNumberOfThreads) {
  std::set<std::string> texts;
  for (const char* threads : {"1", "2", "3"}) {
    const Finished f =
        run({"run", "-m", model_, "--threads", threads, "--kv", "kivi:bits=2", "-p", document_, "-n", "24", "--json"});
    ASSERT_TRUE(is_ok(f));
    texts.insert(f.json()["text"].get<std::string>());
  }
  EXPECT_EQ(texts.size(), 1U);
}

TEST_F(Run, SeedDecidesTheSampledText) {
  const Arguments hot = {"-p", document_, "-n", "40", "--temp", "1", "--seed"};
  EXPECT_EQ(text_of(hot + Arguments{"3"}), text_of(hot + Arguments{"3"}));
  EXPECT_NE(text_of(hot + Arguments{"3"}), text_of(hot + Arguments{"4"}));
}

// Forks of a sealed cache are independent: what was asked before does not matter.
TEST_F(Run, QuestionsDoNotDisturbEachOther) {
  for (const char* kv :
       {"full", "kivi:bits=4,residual=32", "snapkv:budget=0.25+kivi:bits=2,residual=32", "streamingllm:window=64"}) {
    const Arguments base = {"--kv", kv, "-p", document_, "-n", "30"};
    const Arguments first = {"--question", "Who has marbles?"};
    const Arguments second = {"--question", "How many are there?"};
    const Json both = ask_json(base + first + second);
    const Json alone = ask_json(base + second);
    ASSERT_EQ(both["answers"].size(), 2U) << kv;
    const Json& later = both["answers"][1];
    EXPECT_EQ(later["question"], "How many are there?");
    for (const char* key : {"text", "finish_reason", "prompt_tokens", "completion_tokens", "kv_end"}) {
      EXPECT_EQ(later[key], alone["answers"][0][key]) << kv << " " << key;
    }
    EXPECT_EQ(both["kv"], alone["kv"]) << kv;
    EXPECT_NE(both["answers"][0]["text"], later["text"]) << "the questions make no difference, so this test shows nothing";
  }
}

TEST_F(Run, QuestionsArePrintedWithTheirAnswers) {
  const Arguments all = {"-p", document_, "-n", "10", "--question", "One?", "--question", "Two?"};
  const Json d = ask_json(all);
  const Finished f = ask(all);
  ASSERT_TRUE(is_ok(f));
  EXPECT_EQ(f.out, "Question: One?\n" + d["answers"][0]["text"].get<std::string>() + "\nQuestion: Two?\n" +
                       d["answers"][1]["text"].get<std::string>() + "\n");
}

// C9: the answer ends in front of the stop text, and nothing of it leaks, printed or not.
TEST_F(Run, C9StopTextEndsTheAnswer) {
  const Arguments base = {"-p", document_, "-n", "40", "--temp", "1", "--seed", "5"};
  const std::string whole = text_of(base);
  std::string stop;  // two plain characters that follow each other somewhere behind the beginning
  for (std::size_t i = 3; i + 1 < whole.size() && stop.empty(); ++i) {
    if (std::isgraph(static_cast<unsigned char>(whole[i])) != 0 && std::isgraph(static_cast<unsigned char>(whole[i + 1])) != 0) {
      stop = whole.substr(i, 2);
    }
  }
  ASSERT_FALSE(stop.empty()) << whole;
  const std::string expected = whole.substr(0, whole.find(stop));
  for (const Arguments& stops : {Arguments{"--stop", stop}, {"--stop", stop + "no such text", "--stop", stop}}) {
    const Json d = ask_json(base + stops);
    EXPECT_EQ(d["text"], expected);
    EXPECT_EQ(d["finish_reason"], "stop");
    EXPECT_EQ(ask(base + stops).out, expected + "\n");
  }
  EXPECT_EQ(text_of(base + Arguments{"--stop", "no such text"}), whole);
}

// C6: exactly that many tokens, also none; the cache is filled all the same.
TEST_F(Run, C6ZeroOneAndTwoTokens) {
  const Json more = ask_json({"-p", document_, "-n", "3"});
  ASSERT_EQ(more["completion_tokens"], 3);
  for (int n : {0, 1, 2}) {
    const Arguments all = {"-p", document_, "-n", std::to_string(n)};
    const Json d = ask_json(all);
    EXPECT_EQ(d["completion_tokens"], n);
    EXPECT_EQ(d["finish_reason"], "length");
    EXPECT_EQ(d["kv"], more["kv"]);
    EXPECT_EQ(d["text"] == "", n == 0);
    EXPECT_EQ(ask(all).out, d["text"].get<std::string>() + "\n");
  }
}

// C5: prompt + completion <= context. Without a template every byte is a token.
TEST_F(Run, C5PromptAtTheLimitOfTheContext) {
  const int context = wide_heads().context;
  const auto prompt = [&](int tokens) { return folder_.file("prompt.txt", std::string(static_cast<std::size_t>(tokens), 'x')); };
  const Json last = ask_json({"--raw", "-f", prompt(context - 1), "-n", "9"});
  EXPECT_EQ(last["prompt_tokens"], context - 1);
  EXPECT_EQ(last["completion_tokens"], 1);
  EXPECT_EQ(last["finish_reason"], "length");

  for (int tokens : {context, context + 1}) {
    const Finished f = ask({"--raw", "-f", prompt(tokens), "-n", "9"});
    EXPECT_TRUE(is_refused(f, 4, std::to_string(tokens)));
    EXPECT_TRUE(is_refused(f, 4, std::to_string(context)));
  }
  // Nothing is asked for, and the prompt fits.
  EXPECT_EQ(ask_json({"--raw", "-f", prompt(context), "-n", "0"})["completion_tokens"], 0);
}

TEST_F(Run, QuestionBeyondTheContextIsRefusedBeforeAnythingIsPrinted) {
  const std::string document = folder_.file("document.txt", std::string(1000, 'x'));
  const Finished f = ask({"--raw", "-f", document, "--question", "short?", "--question", std::string(100, 'y'), "-n", "2"});
  EXPECT_TRUE(is_refused(f, 4, "1024"));
}

// C11: control words in a user's text are text; the template's own stay special.
TEST_F(Run, C11ControlWordsInTextStayText) {
  for (const Arguments& how : {Arguments{}, {"--raw"}}) {
    const Json words = ask_json(Arguments{"-p", "<|im_end|><|im_start|>", "-n", "1"} + how);
    const Json plain = ask_json(Arguments{"-p", "+~mn_zbc~~-~un_tuert~-", "-n", "1"} + how);
    EXPECT_EQ(words["prompt_tokens"], plain["prompt_tokens"]);
  }
  const Json words = ask_json({"-p", "text", "--question", "<|im_end|>", "-n", "1"});
  const Json plain = ask_json({"-p", "text", "--question", "+~mn_zbc~~", "-n", "1"});
  EXPECT_EQ(words["prompt_tokens"], plain["prompt_tokens"]);
  // Otherwise the comparison above shows nothing: the template does add tokens.
  EXPECT_GT(ask_json({"-p", "text", "-n", "1"})["prompt_tokens"], 4);
  EXPECT_EQ(ask_json({"-p", "text", "-n", "1", "--raw"})["prompt_tokens"], 4);
}

// DESIGN 2: a model without a template gets the plain text, and says so.
TEST_F(Run, ModelWithoutTemplateGetsPlainTextAndSaysSo) {
  TinyModelOptions options = wide_heads();
  options.chat_template = false;
  const std::string model = tiny_model(folder_, options, "plain.gguf");
  const Arguments base = {"run", "-m", model, "--threads", "1", "-p", "text", "-n", "1", "--json"};
  const Finished f = run(base);
  ASSERT_TRUE(is_ok(f));
  EXPECT_EQ(f.json()["prompt_tokens"], 4);
  EXPECT_NE(f.err.find("no chat template"), std::string::npos) << f.err;
  EXPECT_EQ(run(base + Arguments{"--raw"}).err, "");
  EXPECT_TRUE(is_refused(run(base + Arguments{"--chat"}), 2, "--chat"));
}

// C19: a budget of at least the length is bit-equal to full; one row runs.
TEST_F(Run, C19BudgetAgainstLength) {
  const std::string full = text_of({"-p", document_, "-n", "20"});
  const Arguments base = {"-p", document_, "-n", "20", "--kv"};
  for (const char* kv :
       {"snapkv:budget=1000", "streamingllm:window=900", "snapkv:budget=401,window=400", "streamingllm:budget=1020"}) {
    const Json d = ask_json(base + Arguments{kv});
    EXPECT_EQ(d["text"], full) << kv;
    EXPECT_EQ(d["kv"]["acted"], false) << kv;
  }
  for (const char* kv : {"snapkv:budget=1", "streamingllm:budget=1"}) {
    const Json d = ask_json(base + Arguments{kv});
    EXPECT_EQ(d["kv"]["acted"], true) << kv;
    EXPECT_EQ(d["kv"]["rows_kept"], 1.0) << kv;
  }
}

// A cache that did nothing on so short a text says so instead of looking harmless.
TEST_F(Run, SaysWhenACacheDidNotAct) {
  const Finished f = ask({"-p", "short", "-n", "2", "--kv", "kivi:bits=2", "--json"});
  ASSERT_TRUE(is_ok(f));
  EXPECT_EQ(f.json()["kv"]["acted"], false);
  EXPECT_NE(f.err.find("did not act"), std::string::npos);
}

TEST_F(Run, InterruptedAnswerIsKept) {
  const std::string model = tiny_model(folder_, slow_model(), "slow.gguf");
  Program program({"run", "-m", model, "--threads", "1", "-p", "text", "-n", "90000", "--temp", "1"});
  while (program.running() && program.out_so_far().size() < 10) usleep(1000);
  ASSERT_TRUE(program.running());
  program.kill(SIGINT);
  const Finished f = program.wait();
  EXPECT_EQ(f.code, 130) << f.err;
  EXPECT_EQ(f.out.back(), '\n');
  EXPECT_NE(f.err.find("kvartet: interrupted"), std::string::npos) << f.err;
}

TEST_F(Run, InterruptedPrefillPrintsNothing) {
  const std::string model = tiny_model(folder_, slow_model(), "slow.gguf");
  Program program(
      {"run", "-m", model, "--threads", "1", "--raw", "-f", folder_.file("long.txt", std::string(90'000, 'x')), "--json"});
  usleep(500'000);
  ASSERT_TRUE(program.running());
  program.kill(SIGTERM);
  EXPECT_TRUE(is_refused(program.wait(), 130, "interrupted"));
}

}  // namespace
}  // namespace kvartet::e2e
