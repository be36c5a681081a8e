// DESIGN 3: src/cli is the only place that prints or exits; a library that does would take its host down with it.
#include <gtest/gtest.h>

#include "source_tree.h"

namespace kvartet::policy {
namespace {

bool word_character(char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Whether the line calls a free function of this name: "exit (1)", "std::exit(1)", but not "on_exit(1)" or "door.exit(1)".
bool calls(std::string_view line, std::string_view function) {
  for (std::size_t at = line.find(function); at != std::string_view::npos; at = line.find(function, at + 1)) {
    const char before = at == 0 ? ' ' : line[at - 1];
    const std::size_t after = line.find_first_not_of(' ', at + function.size());
    const bool free = !word_character(before) && before != '.' && before != '>';
    if (free && after != std::string_view::npos && line[after] == '(') return true;
  }
  return false;
}

std::vector<std::string> violations(const std::vector<SourceFile>& files) {
  static const std::vector<std::string> functions = {"printf", "fprintf", "vprintf", "vfprintf",   "dprintf",   "puts",
                                                     "fputs",  "putchar", "putc",    "fputc",      "perror",    "abort",
                                                     "exit",   "_exit",   "_Exit",   "quick_exit", "terminate", "assert"};
  static const std::vector<std::string> names = {"std::cout", "std::cerr", "std::clog", "stdout", "stderr", "fmt::print"};
  std::vector<std::string> found;
  for (const SourceFile& file : files) {
    if (file.folder() == "cli" || file.test()) continue;
    if (file.path == "src/core/status.cc") continue;  // check_failed: a bug may end the process, and says so
    int number = 0;
    for (const std::string& line : lines_of(code_of(file.text))) {
      ++number;
      const auto report = [&](const std::string& word) {
        found.push_back(file.path + ":" + std::to_string(number) + ": " + word + " is for src/cli only; return a Status");
      };
      for (const std::string& function : functions) {
        if (calls(line, function)) report(function);
      }
      for (const std::string& name : names) {
        if (line.find(name) != std::string::npos) report(name);
      }
    }
  }
  return found;
}

TEST(Output, LibrariesNeitherPrintNorExit) { EXPECT_EQ(joined(violations(read_sources(KVARTET_SOURCE_DIR))), ""); }

TEST(OutputRule, CatchesWhatItIsThereFor) {
  const auto found = [](const std::string& code) { return violations({{"src/cache/a.cc", code}}).size(); };
  for (const char* code : {"printf(\"x\");", "std::printf (\"x\");", "  std::fprintf(file, text);", "std::cerr << 1;",
                           "fmt::print(\"x\");", "if (bad) exit(1);", "std::abort();", "::_exit(3);", "assert(x);", "f(stderr);",
                           "/* a */ puts(x);", "const char c = '\"'; puts(x);", "n = 1'000; puts(x);"}) {
    EXPECT_EQ(found(code), 1U) << code;
  }
  for (const char* code :
       {"// printf(x)", "/* exit(1)\n abort() */ int a;", "text = \"call exit(1)\";", "door.exit(1);", "door->exit(1);",
        "on_exit(1);", "exit_code(code);", "snprintf(b, n, f);", "static_assert(sizeof(int) == 4);", "text = R\"(puts(\"x\"))\";",
        "text = \"\\\" puts(x)\";", "int inputs(int);"}) {
    EXPECT_EQ(found(code), 0U) << code;
  }
  EXPECT_EQ(violations({{"src/cli/main.cc", "std::exit(2);"}, {"src/cache/a_test.cc", "std::abort();"}}).size(), 0U);
}

}  // namespace
}  // namespace kvartet::policy
