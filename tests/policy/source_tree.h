// The project's own sources as data, for tests that check rules over all of them.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kvartet::policy {

struct SourceFile {
  std::string path;  // from the root of the checkout: "src/core/arena.h"
  std::string text;

  // "core" for src/core/arena.h, "" for files outside src/.
  std::string folder() const {
    constexpr std::string_view kSource = "src/";
    if (!path.starts_with(kSource)) return "";
    const std::size_t end = path.find('/', kSource.size());
    return end == std::string::npos ? "" : path.substr(kSource.size(), end - kSource.size());
  }
  std::string name() const { return std::filesystem::path(path).filename().string(); }
  bool header() const { return path.ends_with(".h"); }
  bool test() const { return path.ends_with("_test.cc") || path.ends_with("_bench.cc"); }
  bool per_target() const { return path.ends_with("-inl.h") || path == "src/simd/dispatch.h"; }  // read once per SIMD target
};

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// All .h and .cc files below src/, sorted by path.
inline std::vector<SourceFile> read_sources(const std::filesystem::path& root) {
  std::vector<SourceFile> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "src")) {
    const std::string extension = entry.path().extension().string();
    if (!entry.is_regular_file() || (extension != ".h" && extension != ".cc")) continue;
    files.push_back({std::filesystem::relative(entry.path(), root).generic_string(), read_text(entry.path())});
  }
  std::ranges::sort(files, {}, &SourceFile::path);
  return files;
}

inline std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

struct Include {
  int line = 0;
  std::string name;  // "core/arena.h", "vector"
  bool quoted = false;
};

inline std::vector<Include> includes_of(const SourceFile& file) {
  static const std::regex pattern(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"].*)");
  std::vector<Include> found;
  int number = 0;
  for (const std::string& line : lines_of(file.text)) {
    ++number;
    std::smatch match;
    if (line.find("include") != std::string::npos && std::regex_match(line, match, pattern)) {
      found.push_back({number, match[2].str(), match[1].str() == "\""});
    }
  }
  return found;
}

// The text with comments, string literals and character literals blanked out; line borders stay.
inline std::string code_of(std::string_view text) {
  enum class Inside { kCode, kLine, kBlock, kString, kCharacter };
  Inside inside = Inside::kCode;
  std::string code(text);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    if (inside == Inside::kCode) {
      const bool digit_separator = i > 0 && (std::isalnum(static_cast<unsigned char>(text[i - 1])) != 0);
      if (rest.starts_with("R\"")) {  // raw string: skip to its own end mark
        const std::string mark = std::string(")").append(rest.substr(2, rest.find('(') - 2)) + "\"";
        const std::size_t end = std::min(text.find(mark, i), text.size() - mark.size()) + mark.size();
        for (; i < end; ++i) code[i] = text[i] == '\n' ? '\n' : ' ';
        --i;
        continue;
      }
      if (rest.starts_with("//"))
        inside = Inside::kLine;
      else if (rest.starts_with("/*"))
        inside = Inside::kBlock;
      else if (text[i] == '"')
        inside = Inside::kString;
      else if (text[i] == '\'' && !digit_separator)
        inside = Inside::kCharacter;
      else
        continue;
      code[i] = ' ';
      continue;
    }
    const bool closes = (inside == Inside::kLine && text[i] == '\n') || (inside == Inside::kBlock && rest.starts_with("*/")) ||
                        (inside == Inside::kString && text[i] == '"') || (inside == Inside::kCharacter && text[i] == '\'');
    const bool escapes = (inside == Inside::kString || inside == Inside::kCharacter) && text[i] == '\\';
    if (text[i] != '\n') code[i] = ' ';
    if (inside == Inside::kBlock && closes) code[++i] = ' ';
    if (escapes && i + 1 < text.size()) code[++i] = ' ';
    if (closes) inside = Inside::kCode;
  }
  return code;
}

inline std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
}

}  // namespace kvartet::policy
