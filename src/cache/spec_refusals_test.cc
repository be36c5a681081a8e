// What is refused, in which words, and that what they name instead is accepted.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cache/spec.h"

namespace kvartet {
namespace {

struct Refusal {
  std::string text;
  std::string value;    // the message names it
  std::string nearest;  // and this valid choice
};

TEST(SpecRefusals, NameTheValueAndTheNearestChoice) {
  const std::vector<Refusal> cases = {
      {"", "empty", "full"},
      {"kvi", "'kvi'", "kivi"},
      {"KIVI", "'KIVI'", "kivi"},
      {"snapkv:budget=0.25+", "empty stage", "snapkv+kivi"},
      {"+kivi", "empty stage", "stage+stage"},
      {":bits=4", "without a name", "name"},
      {"kivi:bit=4", "'bit'", "bits"},
      {"kivi:", "''", "key=value"},
      {"kivi:bits", "'bits'", "key=value"},
      {"kivi:bits=", "'bits='", "key=value"},
      {"kivi:bits=4,bits=2", "'bits' is set twice", "keep one"},
      {"kivi:bits=4/2/1", "3 parts", "keys/values"},
      {"kivi:bits=4/", "empty side", "keys/values"},
      {"kivi:bits=5", "bits=5", "bits=4"},
      {"kivi:bits=16", "bits=16", "bits=8"},
      {"kivi:bits=four", "bits='four'", "whole number"},
      {"kivi:group=48", "group=48", "group=32"},
      {"kivi:residual=100", "residual=100", "residual=96 and residual=128"},
      {"kivi:residual=0", "residual='0'", "residual=32"},
      {"kivi:residual=99999999999999999999", "residual=", "residual=16777216"},
      {"kivi:residual=-1", "residual='-1'", "residual=32"},
      {"kivi:residual=32,group=64", "residual='32'", "residual=64"},
      {"kivi:residual=64/128", "residual", "residual=64"},
      {"turboqant:bits=4", "'turboqant'", "turboquant"},
      {"turboquant:bits=9", "bits=9", "bits=8"},
      {"turboquant:bits=2.7", "bits='2.7'", "bits=2.5"},
      {"turboquant:bits=0.5", "bits='0.5'", "bits=2.5"},
      {"turboquant:variant=qjl", "variant='qjl'", "prod"},
      {"turboquant:rotation=none", "rotation='none'", "dense"},
      {"turboquant:seed=0", "seed='0'", "seed=1"},
      {"q4_0/turboquant:variant=prod", "variant=prod", "variant=mse"},
      {"q4_0:rotate=haar", "rotate='haar'", "hadamard"},
      {"q4_0/full:rotate=hadamard/none", "only one side", "rotate=hadamard"},
      {"q8_0/qjl", "qjl estimates logits", "qjl/q8_0"},
      {"qjl:sketch=100", "sketch=100", "sketch=96"},
      {"qjl:sketch=2048", "sketch='2048'", "sketch=1024"},
      {"streamingllm+qjl", "single rows", "streamingllm+qjl/full:residual=0"},
      {"polar-angle:bits=4", "'bits'", "center"},
      {"fp8:scale=2", "scale='2'", "choose 1 or calibrated"},
      {"kivi:rotate=hadamard", "'rotate'", "residual"},  // 7.2: do not rotate before KIVI keys
      {"full/q4_0:center=mean", "'center'", "keep"},
      {"full:keep=0", "'keep'", "write full alone"},
      {"kivi:center=median", "center='median'", "mean"},
      {"kivi:keep=3-1", "keep='3-1'", "keep=0-1.28-29"},
      {"kivi:keep=0-4.4", "keep='0-4.4'", "'4'"},
      {"kivi:keep=a", "keep='a'", "whole number"},
      {"kivi:keep=1.", "keep='1.'", "keep=0-1.28-29"},
      {"streamingllm+turboquant:residual=8", "residual=8", "residual=0"},
      {"full:bits=4", "'bits'", "write full alone"},
      {"q8_0/kivi:bits=4/2", "only one side", "bits=2"},
      {"kivi/q8_0:bits=4/2", "only one side", "bits=4"},
      {"snapkv/kivi", "'snapkv'", "pairs are made of full"},
      {"full/kivi/q8_0", "3 parts", "keys/values"},
      {"snapkv:budget=0", "budget='0'", "budget=1"},
      {"snapkv:budget=-5", "budget='-5'", "budget=1"},
      {"snapkv:budget=-0.5", "budget='-0.5'", "0.25"},
      {"snapkv:budget=0.0", "budget='0.0'", "0.25"},
      {"snapkv:budget=nan", "budget='nan'", "0.25"},
      {"snapkv:budget=inf", "budget='inf'", "0.25"},
      {"snapkv:budget=1.0", "budget='1.0'", "full"},
      {"snapkv:budget=25%", "budget='25%'", "0.25"},
      {"snapkv:budget=1e-999", "budget='1e-999'", "0.25"},
      {"snapkv:budget=32,window=32", "window=32", "window=31 or budget=33"},
      {"snapkv:window=0", "window='0'", "window=1"},
      {"snapkv:kernel=6", "kernel=6", "kernel=5 and kernel=7"},
      {"snapkv:pool=mean", "pool='mean'", "pool=m"},
      {"snapkv:rope=absolute", "'rope'", "pool"},
      {"streamingllm:rope=relative", "rope='relative'", "rope=rerotate"},
      {"streamingllm:window=0", "window='0'", "window=1"},
      {"streamingllm:window=100,budget=50", "both window and budget", "keep one"},
      {"streamingllm:sinks=4,budget=4", "sinks=4", "sinks=3 or budget=5"},
      {"streamingllm+kivi", "streamingllm+kivi", "streamingllm+q8_0"},
      {"streamingllm+q8_0/kivi", "streamingllm+kivi", "streamingllm+q8_0"},
      // Section 8.
      {"h2o+kivi", "'h2o' cannot be combined with kivi", "h2o+q8_0"},
      {"tova+full/kivi", "'tova' cannot be combined with kivi", "tova+q8_0"},
      {"cam+kivi", "'cam' cannot be combined with kivi", "snapkv+kivi"},
      {"cam+q8_0", "round them again", "cam+q8_0/full"},
      {"cam+full/q8_0", "round them again", "cam+q8_0/full"},
      {"h2o:recent=1.5", "recent='1.5'", "recent=0.5"},
      {"h2o:recent=x", "recent='x'", "recent=0.5"},
      {"adakv:alpha=-1", "alpha='-1'", "alpha=0.2"},
      {"adakv:beta=3", "'beta'", "alpha"},
      {"pyramidkv:beta=0", "beta='0'", "beta=1"},
      {"cam:target=0.25", "target='0.25'", "whole number"},
      {"cam:target=1", "target='1'", "target=2"},
      {"cam:base=adakv", "base='adakv'", "base=snapkv"},
      {"cam:window=16", "'window'", "base=snapkv"},
      {"cam:target=16,base=snapkv,window=16", "window=16", "window=15 or target=17"},
      {"cam:interval=0", "interval='0'", "interval=1"},
      {"h2o+cam", "both evict", "snapkv+kivi"},
      {"snapkv+streamingllm", "both evict", "snapkv+kivi"},
      {"kivi+q8_0", "both quantize", "evict+quantize"},
      {"kivi:bits=4+snapkv", "quantizes before it evicts", "snapkv+kivi"},
      {"snapkv+full", "'+full'", "snapkv alone"},
      {"snapkv+kivi+q8_0", "both quantize", "keep one"},
      {std::string(5000, 'x'), "5000 characters", "1000"},
      {"ki\nvi\x01", "'ki?vi?'", "kivi"},
  };
  for (const Refusal& refusal : cases) {
    const Result<CacheSpec> spec = parse_spec(refusal.text);
    ASSERT_FALSE(spec.ok()) << refusal.text;
    const std::string& message = spec.status().message();
    EXPECT_EQ(spec.status().code(), Code::kUsage) << message;
    EXPECT_NE(message.find(refusal.value), std::string::npos) << refusal.text << "\n" << message;
    EXPECT_NE(message.find(refusal.nearest), std::string::npos) << refusal.text << "\n" << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

// Nothing of a text that is refused may steer a terminal, wherever in the sentence it stands.
TEST(SpecRefusals, HoldNoControlCharacters) {
  const std::string bad = "a\x1b[2J\x01\x7f";
  for (const std::string& text :
       {bad, bad + ":x=1", "kivi:" + bad, "kivi:" + bad + "=1", "kivi:" + bad + "=/", "kivi:" + bad + "=1/2/3",
        "kivi:bits=" + bad, "turboquant:seed=1/" + bad, "q8_0/kivi:bits=" + bad + "/2", "snapkv:budget=" + bad,
        "snapkv:pool=" + bad + "/x", "q4_0:keep=" + bad, "select:tier=" + bad, bad + "/kivi"}) {
    const Result<CacheSpec> spec = parse_spec(text);
    ASSERT_FALSE(spec.ok());
    for (const char c : spec.status().message()) {
      EXPECT_TRUE(static_cast<unsigned char>(c) >= 32 && c != 127) << spec.status().message();
    }
  }
}

// What a refusal says to write instead is not refused: of every pair of methods, and of residual windows.
TEST(SpecRefusals, HintsCanBeFollowed) {
  int followed = 0;
  for (const MethodInfo& first : methods()) {
    for (const MethodInfo& second : methods()) {
      for (const char* more : {"", ":residual=32", ":residual=0"}) {
        const std::string text = first.name + "+" + second.name + more;
        const Result<CacheSpec> spec = parse_spec(text);
        const std::string message = spec.ok() ? "" : spec.status().message();
        const std::size_t write = message.rfind("; write ");
        if (write == std::string::npos) continue;
        std::string hint = message.substr(write + 8);
        while (!hint.empty()) {
          const std::size_t next = hint.find(" or ");
          std::string piece = hint.substr(0, next);
          hint = next == std::string::npos ? "" : hint.substr(next + 4);
          if (piece.ends_with(" alone")) piece.resize(piece.size() - 6);
          if (piece.find(' ') != std::string::npos) continue;
          if (piece.starts_with("residual=")) piece = first.name + "+" + second.name + ":" + piece;
          EXPECT_TRUE(parse_spec(piece).ok()) << text << ": " << message;
          ++followed;
        }
      }
    }
  }
  EXPECT_GT(followed, 100);
  EXPECT_NE(parse_spec("quest:budget=8").status().message().find("the nearest is budget=16"), std::string::npos);
}

ModelShape shape_with(int head_dim, int window = 0) {
  ModelShape shape;
  shape.context = 8192;
  shape.layers = {{.heads = 4, .kv_heads = 2, .head_dim = head_dim, .window = window}};
  return shape;
}

TEST(SpecRefusals, CheckAgainstTheModel) {
  EXPECT_TRUE(check_spec(*parse_spec("kivi:group=64"), shape_with(64)).ok());
  const Status group = check_spec(*parse_spec("kivi:group=128"), shape_with(64));
  EXPECT_EQ(group.code(), Code::kUsage);
  EXPECT_NE(group.message().find("the nearest is group=64"), std::string::npos) << group.message();
  EXPECT_NE(check_spec(*parse_spec("kivi"), shape_with(80)).message().find("use full"), std::string::npos);
  EXPECT_EQ(check_spec(*parse_spec("q8_0"), shape_with(80)).code(), Code::kUsage);
  EXPECT_TRUE(check_spec(*parse_spec("full"), shape_with(80)).ok());
  EXPECT_TRUE(check_spec(*parse_spec("full"), shape_with(64, 4096)).ok());
  EXPECT_TRUE(check_spec(*parse_spec("full"), shape_with(64, 8192)).ok());
  EXPECT_NE(check_spec(*parse_spec("q4_0:keep=1"), shape_with(64)).message().find("layers 0 to 0"), std::string::npos);
  EXPECT_EQ(check_spec(*parse_spec("turboquant:bits=3.25"), shape_with(64)).code(), Code::kUsage);
  EXPECT_TRUE(check_spec(*parse_spec("turboquant:bits=3.25"), shape_with(128)).ok());
}

// And what a refusal of a model names instead fits that model.
TEST(SpecRefusals, WhatIsNamedInsteadFitsTheModel) {
  int refused = 0;
  for (const int head_dim : {8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 256}) {
    for (const MethodInfo& method : methods()) {
      for (const char* more : {"", ":group=128", ":bits=2.5", ":bits=3.25", ":variant=prod"}) {
        const Result<CacheSpec> spec = parse_spec(method.name + more);
        const Status fits = spec.ok() && !spec->offload ? check_spec(*spec, shape_with(head_dim)) : Status();
        if (fits.ok()) continue;
        ++refused;
        const std::string& message = fits.message();
        const std::size_t use = message.rfind("; use ");
        const std::size_t nearest = message.rfind("; the nearest is ");
        if (use != std::string::npos) {
          const Result<CacheSpec> other = parse_spec(message.substr(use + 6));
          EXPECT_TRUE(other.ok() && check_spec(*other, shape_with(head_dim)).ok()) << method.name << more << ": " << message;
        } else if (nearest != std::string::npos) {
          const Result<CacheSpec> other = parse_spec(method.name + ":" + message.substr(nearest + 17));
          EXPECT_TRUE(other.ok() && check_spec(*other, shape_with(head_dim)).ok()) << method.name << more << ": " << message;
        }
      }
    }
  }
  EXPECT_GT(refused, 20);
}

}  // namespace
}  // namespace kvartet
