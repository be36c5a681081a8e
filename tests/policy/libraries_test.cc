// DESIGN 2: which folder may include which library.
#include <gtest/gtest.h>

#include "source_tree.h"

namespace kvartet::policy {
namespace {

struct Rule {
  std::string library;
  std::regex include;                // the header's name as included
  std::vector<std::string> allowed;  // beginnings of paths
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = {
      {"Highway", std::regex("hwy/.*"), {"src/simd/"}},
      {"ggml", std::regex("(ggml|gguf)[^/]*\\.h"), {"src/model/"}},
      {"libllama", std::regex("(llama|mtmd)[^/]*\\.h"), {"src/model/"}},
      {"CLI11", std::regex("CLI/.*"), {"src/cli/"}},
      {"nlohmann-json", std::regex("nlohmann/.*"), {"src/bench/", "src/report/", "src/cli/"}},
      {"SQLite", std::regex("sqlite3.*\\.h"), {"src/results/"}},
      {"xxHash", std::regex("xxh.*\\.h"), {"src/results/", "src/offload/", "src/engine/"}},
      {"liburing", std::regex("liburing.*"), {"src/offload/"}},
      {"OpenMP", std::regex("omp\\.h"), {"src/core/"}},
      {"iostream", std::regex("iostream"), {"src/cli/"}},
  };
  return all;
}

std::vector<std::string> violations(const std::vector<SourceFile>& files) {
  std::vector<std::string> found;
  for (const SourceFile& file : files) {
    for (const Include& include : includes_of(file)) {
      const std::string where = file.path + ":" + std::to_string(include.line) + ": ";
      for (const Rule& rule : rules()) {
        if (!std::regex_match(include.name, rule.include)) continue;
        if (rule.library == "iostream" && file.test()) continue;  // tests may say what they skip
        const bool allowed =
            std::ranges::any_of(rule.allowed, [&](const std::string& start) { return file.path.starts_with(start); });
        if (!allowed)
          found.push_back(where + rule.library + " (" + include.name + ") is for " + joined(rule.allowed).substr(3) + " only");
      }
      // One door for kernels, so that a newer Highway is one file's work. The folder's tests and per-target test frame may look
      // behind it.
      const bool door =
          file.path == "src/simd/dispatch.h" || file.name().find("test") != std::string::npos || file.name() == "targets.cc";
      if (include.name.starts_with("hwy/") && !door)
        found.push_back(where + "include \"simd/dispatch.h\" instead of " + include.name);
    }
  }
  return found;
}

TEST(Libraries, AreIncludedOnlyWhereTheyLive) { EXPECT_EQ(joined(violations(read_sources(KVARTET_SOURCE_DIR))), ""); }

TEST(LibrariesRule, CatchesWhatItIsThereFor) {
  const auto found = [](const std::string& path, const std::string& line) { return violations({{path, line}}).size(); };
  EXPECT_EQ(found("src/simd/dispatch.h", "#include \"hwy/highway.h\"\n"), 0U);
  EXPECT_EQ(found("src/quantize/q8_0_format.cc", "#include \"simd/dispatch.h\"\n"), 0U);
  EXPECT_EQ(found("src/quantize/q8_0_format.cc", "#include <hwy/highway.h>\n"), 2U);
  EXPECT_EQ(found("src/simd/lanes-inl.h", "#include \"hwy/highway.h\"\n"), 1U);
  EXPECT_EQ(found("src/model/graph.cc", "#include <ggml-cpu.h>\n#include \"llama.h\"\n"), 0U);
  EXPECT_EQ(found("src/engine/engine.cc", "#include \"ggml.h\"\n"), 1U);
  EXPECT_EQ(found("src/engine/engine.cc", "#include \"llama-cpp.h\"\n"), 1U);
  EXPECT_EQ(found("src/bench/a.cc", "#include <CLI/CLI.hpp>\n"), 1U);
  EXPECT_EQ(found("src/model/a.cc", "#include <nlohmann/json.hpp>\n"), 1U);
  EXPECT_EQ(found("src/cli/a.cc", "#include <sqlite3.h>\n"), 1U);
  EXPECT_EQ(found("src/cache/a.cc", "#include <iostream>\n"), 1U);
  EXPECT_EQ(found("src/cache/a_test.cc", "#include <iostream>\n"), 0U);
}

}  // namespace
}  // namespace kvartet::policy
