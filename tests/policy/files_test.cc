// A file tells one story, its name says which, and a header opens by saying it.
#include <gtest/gtest.h>

#include <sstream>

#include "source_tree.h"

namespace kvartet::policy {
namespace {

constexpr std::size_t kMostLines = 600;

std::vector<std::string> words_of(const std::string& name) {
  std::string spaced = name;
  std::ranges::replace_if(spaced, [](char c) { return c == '_' || c == '-' || c == '.' || c == '/'; }, ' ');
  std::istringstream stream(spaced);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::vector<std::string> violations(const std::vector<SourceFile>& files) {
  static const std::set<std::string> vague = {"util",    "utils",  "utility", "utilities", "helper",
                                              "helpers", "common", "manager", "misc"};
  std::vector<std::string> found;
  for (const SourceFile& file : files) {
    for (const std::string& word : words_of(file.path)) {
      if (vague.contains(word)) found.push_back(file.path + ": '" + word + "' says nothing about what is inside");
    }
    const std::size_t lines = lines_of(file.text).size();
    if (!file.test() && lines > kMostLines) {
      found.push_back(file.path + ": " + std::to_string(lines) + " lines, at most " + std::to_string(kMostLines) +
                      "; cut it where the story turns");
    }
    if (!file.header()) continue;
    if (!file.text.starts_with("//")) found.push_back(file.path + ": begin with a comment that says what this is for");
    const bool guarded = file.text.find("#pragma once") != std::string::npos;
    if (!guarded && !file.per_target()) found.push_back(file.path + ": #pragma once is missing");
    if (guarded && file.per_target()) found.push_back(file.path + ": is read once per SIMD target, so #pragma once breaks it");
  }
  return found;
}

TEST(Files, AreShortNamedAndIntroduced) { EXPECT_EQ(joined(violations(read_sources(KVARTET_SOURCE_DIR))), ""); }

TEST(FilesRule, CatchesWhatItIsThereFor) {
  const auto found = [](const std::string& path, const std::string& text) { return violations({{path, text}}).size(); };
  const std::string header = "// What it is.\n#pragma once\n";
  EXPECT_EQ(found("src/core/arena.h", header), 0U);
  EXPECT_EQ(found("src/core/string_util.h", header), 1U);
  EXPECT_EQ(found("src/common/arena.h", header), 1U);
  EXPECT_EQ(found("src/cache/cache_manager.cc", ""), 1U);
  EXPECT_EQ(found("src/cache/commonest.cc", ""), 0U);
  EXPECT_EQ(found("src/core/arena.h", "#pragma once\n"), 1U);
  EXPECT_EQ(found("src/core/arena.h", "// What it is.\n"), 1U);
  EXPECT_EQ(found("src/simd/dispatch.h", header), 1U);
  std::string longest;
  for (std::size_t i = 0; i < kMostLines; ++i) longest += "\n";
  EXPECT_EQ(found("src/core/a.cc", longest), 0U);
  EXPECT_EQ(found("src/core/a.cc", longest + "\n"), 1U);
  EXPECT_EQ(found("src/core/a_test.cc", longest + "\n"), 0U);
}

}  // namespace
}  // namespace kvartet::policy
