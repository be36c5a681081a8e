// Heads as models have them (user-needs C13, C14): a size that a format's groups do not divide, and groups of query heads.
#include <gtest/gtest.h>

#include <map>

#include "tiny_models.h"

namespace kvartet::e2e {
namespace {

class HeadShapes : public testing::Test {
 protected:
  std::string model(int heads, int kv_heads, int head_dim) const {
    TinyModelOptions o;
    o.heads = heads;
    o.kv_heads = kv_heads;
    o.head_dim = head_dim;
    return tiny_model(folder_, o, "heads.gguf");
  }

  // How far each cache is from the reference, by its spec as given; refused ones are left out.
  std::map<std::string, double> divergences(const std::string& model, const std::vector<std::string>& specs) const {
    Arguments arguments = {"fidelity", "-m",        model, "--threads", "1",  "-f",
                           text_,      "--context", "200", "--tokens",  "40", "--json"};
    for (const std::string& spec : specs) arguments = arguments + Arguments{"--kv", spec};
    const Finished f = run(arguments);
    EXPECT_TRUE(is_ok(f));
    std::map<std::string, double> out;
    if (f.code != 0) return out;
    const Json rows = f.json()["rows"];
    EXPECT_EQ(rows.size(), specs.size());
    for (std::size_t i = 0; i < rows.size(); ++i) out[specs[i]] = rows[i]["kl_mean"].get<double>();
    return out;
  }

  ScratchFolder folder_;
  std::string text_ = [this] {
    std::string text;
    for (int i = 0; text.size() < 400; ++i) text += "The mill number " + std::to_string(i) + " grinds corn. ";
    return folder_.file("text.txt", text);
  }();
};

const std::vector<std::string> kSpecs = {"q8_0",
                                         "q5_0",
                                         "q4_1",
                                         "q4_0",
                                         "q3_0",
                                         "fp8",
                                         "kivi:bits=4,group=32,residual=32",
                                         "kivi:bits=2,group=64,residual=64",
                                         "turboquant:bits=4",
                                         "polar-angle",
                                         "qjl:residual=32"};

// Refused before weights load, naming what fits instead; or as good as with heads of 64. Never 16 bits under another name.
TEST_F(HeadShapes, C13HeadSizeThatTheBlockDoesNotDivide) {
  const std::map<std::string, double> of_64 = divergences(model(4, 2, 64), {"q8_0", "q4_0", "fp8", "turboquant:bits=4"});
  int refused = 0;
  int worked = 0;
  for (const int head_dim : {72, 80, 96}) {
    const std::string tiny = model(4, 2, head_dim);
    std::vector<std::string> fitting;
    for (const std::string& spec : kSpecs) {
      const std::string about = spec + " with heads of " + std::to_string(head_dim);
      const Finished f = run({"run", "-m", tiny, "--threads", "1", "-f", text_, "-n", "2", "--raw", "--kv", spec, "--json"});
      if (f.code != 0) {
        ++refused;
        EXPECT_TRUE(is_refused(f, 2, std::to_string(head_dim))) << about;
        EXPECT_TRUE(f.err.find("use ") != std::string::npos || f.err.find("nearest is ") != std::string::npos)
            << about << ": " << f.err;
        EXPECT_TRUE(is_refused(run({"explain", "-m", tiny, "--kv", spec, "--prompt-tokens", "200"}), 2)) << about;
        continue;
      }
      ++worked;
      fitting.push_back(spec);
      const Json kv = f.json()["kv"];
      EXPECT_LT(kv["live_bytes"].get<double>(), 0.8 * kv["full_f16_bytes"].get<double>()) << about << " takes 16 bits";
      EXPECT_EQ(kv["acted"], true) << about;
    }
    if (fitting.empty()) continue;
    for (const auto& [spec, kl] : divergences(tiny, fitting)) {
      const auto divisible = of_64.find(spec);
      EXPECT_TRUE(std::isfinite(kl)) << spec;
      if (divisible == of_64.end()) continue;
      EXPECT_LT(kl, 4 * divisible->second + 1e-5) << spec << " with heads of " << head_dim;
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(worked, 0);
}

// The exact caches equal the reference whatever the group; the others stay as near as with one query head per KV head.
// (tests/oracle, C14Groups: the exact cache against libllama.)
TEST_F(HeadShapes, C14GroupsOfQueryHeads) {
  std::vector<std::string> specs = {"f32"};
  specs.insert(specs.end(), kSpecs.begin(), kSpecs.end());
  const std::map<std::string, double> alone = divergences(model(4, 4, 64), specs);
  for (const auto& [heads, kv_heads] : {std::pair{9, 3}, {14, 2}, {16, 2}}) {
    for (const auto& [spec, kl] : divergences(model(heads, kv_heads, 64), specs)) {
      if (spec == "f32") {
        EXPECT_LT(kl, 1e-4) << heads << "/" << kv_heads;
      } else {
        EXPECT_LT(kl, 4 * alone.at(spec) + 1e-4) << spec << ", " << heads << "/" << kv_heads;
      }
    }
  }

  const std::string odd = model(4, 2, 32);
  std::string bytes = read_text(odd);
  const std::size_t count = bytes.find("llama.attention.head_count") + std::string("llama.attention.head_count").size() + 4;
  bytes[count] = 33;
  for (const char* kv : {"full", "kivi:bits=4"}) {
    const Finished f = run({"run", "-m", folder_.file("odd.gguf", bytes), "--threads", "1", "-p", "text", "--kv", kv});
    EXPECT_TRUE(is_refused(f, 3, "33 attention heads, which its 2 KV heads do not divide"));
  }
}

}  // namespace
}  // namespace kvartet::e2e
