// DESIGN 3: a folder of src/ may include any folder reachable along the arrows of layers.txt, and nothing else.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <sstream>

#include "source_tree.h"

namespace kvartet::policy {
namespace {

using Arrows = std::map<std::string, std::set<std::string>>;

// Lines of the form "cache -> quantize evict", # starts a comment. Nothing: a line that is neither.
std::optional<Arrows> parse_layers(std::string_view text) {
  Arrows arrows;
  for (const std::string& line : lines_of(text)) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string from;
    std::string arrow;
    if (!(words >> from)) continue;
    if (!(words >> arrow) || arrow != "->") return std::nullopt;
    for (std::string to; words >> to;) {
      arrows[from].insert(to);
      arrows[to];
    }
  }
  return arrows;
}

// Every folder that `from` may include, itself among them.
std::set<std::string> reachable(const Arrows& arrows, const std::string& from) {
  std::set<std::string> seen = {from};
  std::vector<std::string> open = {from};
  while (!open.empty()) {
    const auto next = arrows.find(open.back());
    open.pop_back();
    if (next == arrows.end()) continue;
    for (const std::string& to : next->second) {
      if (seen.insert(to).second) open.push_back(to);
    }
  }
  return seen;
}

std::vector<std::string> cycles(const Arrows& arrows) {
  std::vector<std::string> found;
  for (const auto& [from, targets] : arrows) {
    for (const std::string& to : targets) {
      if (reachable(arrows, to).contains(from)) found.push_back(from + " -> " + to + " closes a cycle");
    }
  }
  return found;
}

std::vector<std::string> violations(const Arrows& arrows, const std::vector<SourceFile>& files) {
  std::set<std::string> paths;
  for (const SourceFile& file : files) paths.insert(file.path);
  std::vector<std::string> found;
  for (const SourceFile& file : files) {
    const std::string from = file.folder();
    if (!arrows.contains(from)) {
      found.push_back(file.path + ": the folder '" + from + "' is not in layers.txt");
      continue;
    }
    const std::set<std::string> allowed = reachable(arrows, from);
    for (const Include& include : includes_of(file)) {
      const std::string to = include.name.substr(0, include.name.find('/'));
      const std::string where = file.path + ":" + std::to_string(include.line) + ": ";
      if (!arrows.contains(to) || to == include.name) {
        // Not one of ours, unless it is written so that we cannot tell: "arena.h", "../core/arena.h".
        const bool hidden = paths.contains("src/" + from + "/" + include.name) || include.name.starts_with(".");
        if (hidden) found.push_back(where + "write \"" + include.name + "\" from src/ on: \"folder/file.h\"");
        continue;
      }
      if (!paths.contains("src/" + include.name)) found.push_back(where + "there is no src/" + include.name);
      if (!include.quoted) found.push_back(where + "write <" + include.name + "> with quotes");
      if (!allowed.contains(to))
        found.push_back(where + from + " may not include " + to + " (" + include.name + "); see layers.txt");
    }
  }
  return found;
}

class Layers : public ::testing::Test {
 protected:
  const std::string root_ = KVARTET_SOURCE_DIR;
  const std::optional<Arrows> arrows_ = parse_layers(read_text(root_ + "/layers.txt"));
};

TEST_F(Layers, TheFileReadsAsArrowsWithoutCycles) {
  ASSERT_TRUE(arrows_.has_value());
  EXPECT_GE(arrows_->size(), 14U);
  EXPECT_EQ(joined(cycles(*arrows_)), "");
}

TEST_F(Layers, EveryIncludeFollowsThem) {
  ASSERT_TRUE(arrows_.has_value());
  const std::vector<SourceFile> files = read_sources(root_);
  ASSERT_GT(files.size(), 20U);
  EXPECT_EQ(joined(violations(*arrows_, files)), "");
}

// DESIGN 3: cache and attention meet only in model; eviction and merging know no formats.
TEST_F(Layers, TheBordersOfTheDesignStand) {
  ASSERT_TRUE(arrows_.has_value());
  EXPECT_FALSE(reachable(*arrows_, "cache").contains("attention"));
  EXPECT_FALSE(reachable(*arrows_, "attention").contains("cache"));
  EXPECT_FALSE(reachable(*arrows_, "evict").contains("quantize"));
  EXPECT_FALSE(reachable(*arrows_, "merge").contains("quantize"));
  EXPECT_FALSE(reachable(*arrows_, "results").contains("bench"));
  EXPECT_EQ(reachable(*arrows_, "core"), std::set<std::string>{"core"});
}

TEST(LayersRule, CatchesWhatItIsThereFor) {
  const Arrows arrows = *parse_layers("# top first\nmodel -> cache attention\ncache -> core\nattention -> core\n");
  const auto found = [&](const std::string& path, const std::string& line) {
    return violations(arrows, {{path, line}, {"src/core/a.h", ""}, {"src/cache/b.h", ""}, {"src/attention/c.h", ""}}).size();
  };
  EXPECT_EQ(found("src/model/m.cc", "#include \"core/a.h\"\n#include <vector>\n#include \"llama.h\"\n"), 0U);
  EXPECT_EQ(found("src/core/x.cc", "#include \"cache/b.h\"\n"), 1U) << "upwards";
  EXPECT_EQ(found("src/cache/x.cc", "#include \"attention/c.h\"\n"), 1U) << "sideways";
  EXPECT_EQ(found("src/cache/x.cc", "  #  include \"attention/c.h\"  // just once\n"), 1U) << "spaces and comments";
  EXPECT_EQ(found("src/cache/x.cc", "#include \"core/gone.h\"\n"), 1U) << "a missing file";
  EXPECT_EQ(found("src/cache/x.cc", "#include <core/a.h>\n"), 1U) << "angle brackets";
  EXPECT_EQ(found("src/cache/x.cc", "#include \"../attention/c.h\"\n"), 1U) << "a relative path";
  EXPECT_EQ(found("src/cache/x.cc", "#include \"b.h\"\n"), 1U) << "a neighbour without its folder";
  EXPECT_EQ(found("src/extra/x.cc", ""), 1U) << "an unknown folder";
  EXPECT_EQ(cycles(*parse_layers("a -> b\nb -> c\nc -> a\n")).size(), 3U);
  EXPECT_FALSE(parse_layers("a b\n").has_value());
}

}  // namespace
}  // namespace kvartet::policy
