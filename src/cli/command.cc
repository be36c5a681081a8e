#include "cli/command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "cache/spec_list.h"
#include "cli/auto_spec.h"
#include "core/clock.h"
#include "core/parallel_for.h"

namespace kvartet {
namespace {

std::atomic<bool> g_interrupted{false};  // a signal handler can reach nothing else

void on_interrupt(int signal) {
  if (g_interrupted.exchange(true)) _exit(128 + signal);
}

}  // namespace

const std::atomic<bool>& interrupted() { return g_interrupted; }

void install_interrupt_handler() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);  // these two: the write fails instead, and is reported
  signal(SIGXFSZ, SIG_IGN);
}

void add_model_flags(CLI::App* command, ModelFlags* flags) {
  command
      ->add_option("-m,--model", flags->model,
                   "a GGUF file, or the name of one in models/: smollm2 (set-up), gemma3-270m (make models)")
      ->required();
  command->add_option("--threads", flags->threads, "compute threads (default: physical cores)")->check(whole_number(1, 1024));
  command->add_option_function<std::string>(
      "--fast-tier-bytes",
      [flags](const std::string& text) {
        Result<std::size_t> bytes = parse_bytes(text);
        if (!bytes.ok()) throw CLI::ValidationError("--fast-tier-bytes", bytes.status().message());
        flags->fast_tier_bytes = *bytes;
      },
      "cap on the bytes of all caches in memory (K, M, G)");
  command
      ->add_option("--tier-dir", flags->tier_directory,
                   "where tier=mmap and tier=disk put their files, which vanish with the program (default: the temporary folder)")
      ->check(CLI::ExistingDirectory);
}

int resolved_threads(const ModelFlags& flags) { return flags.threads > 0 ? flags.threads : physical_cores(); }

Result<EngineOptions> engine_options(const ModelFlags& flags) {
  EngineOptions options;
  KV_ASSIGN(options.model_path, resolve_model(flags.model));
  options.threads = resolved_threads(flags);
  options.fast_tier_bytes = flags.fast_tier_bytes;
  options.tier_directory = flags.tier_directory;
  options.cancel = &interrupted();
  return options;
}

namespace {

namespace fs = std::filesystem;

// "": the variable is not set, or to nothing.
fs::path named_models_folder() {
  const char* dir = std::getenv("KVARTET_MODELS");
  return dir == nullptr ? "" : dir;
}

fs::path checkout_models_folder() {
  std::error_code ignored;
  const fs::path self = fs::read_symlink("/proc/self/exe", ignored);
  return self.empty() ? "" : (self.parent_path() / ".." / ".." / "models").lexically_normal();  // build/release/kvartet
}

// `name` in the first of the folders for models that has it, else "".
std::string found_in_models(const std::string& name) {
  std::error_code ignored;
  for (const fs::path& folder : {named_models_folder(), fs::path("models"), checkout_models_folder()}) {
    if (!folder.empty() && fs::exists(folder / name, ignored)) return (folder / name).string();
  }
  return "";
}

std::string models_there() {
  std::error_code ignored;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(models_directory(), ignored)) {
    if (entry.path().extension() == ".gguf") names.push_back(entry.path().stem().string());
  }
  if (names.empty()) return "give the path of a GGUF file";
  std::sort(names.begin(), names.end());
  return fmt::format("the models there are {}", fmt::join(names, ", "));
}

}  // namespace

Result<std::string> resolve_model(const std::string& name) {
  std::error_code ignored;
  if (fs::exists(name, ignored) || name.find('/') != std::string::npos || name.find('.') != std::string::npos) return name;
  if (name.empty()) return bad_input("the model's name is empty; give -m a GGUF file or the name of one in models/");
  if (std::string found = found_in_models(name + ".gguf"); !found.empty()) return found;
  if (name == "smollm2" || name == "gemma3-270m") {
    return bad_input(fmt::format("the model '{}' is not in {}; 'make {}' fetches it", name, models_directory(),
                                 name == "smollm2" ? "setup" : "models"));
  }
  return bad_input(
      fmt::format("there is neither a file '{}' nor a model of this name in {}; {}", name, models_directory(), models_there()));
}

std::string models_directory() {
  std::error_code ignored;
  if (const fs::path named = named_models_folder(); !named.empty()) return named.string();
  const fs::path beside = checkout_models_folder();
  return !beside.empty() && fs::is_directory(beside, ignored) ? beside.string() : "models";
}

std::string essays_directory() {
  const std::string found = found_in_models("haystack");
  return found.empty() ? (fs::path(models_directory()) / "haystack").string() : found;
}

Result<std::vector<CacheSpec>> parse_specs(const std::vector<std::string>& texts) {
  std::vector<CacheSpec> specs;
  for (const std::string& text : texts) {
    if (is_auto(text)) return usage_error("--kv auto is for 'run' and 'bench', which have a workload to choose by; name a cache");
    KV_ASSIGN(const CacheSpec spec, parse_spec(text));
    if (!add_once(&specs, spec)) return usage_error(fmt::format("--kv {} is given twice; leave one out", spec.canonical));
  }
  return specs;
}

Result<std::size_t> parse_bytes(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, double>, 10> kUnits = {{{"", 1},
                                                                           {"K", 0x1p10},
                                                                           {"k", 0x1p10},
                                                                           {"KiB", 0x1p10},
                                                                           {"M", 0x1p20},
                                                                           {"m", 0x1p20},
                                                                           {"MiB", 0x1p20},
                                                                           {"G", 0x1p30},
                                                                           {"g", 0x1p30},
                                                                           {"GiB", 0x1p30}}};
  double number = 0;
  const char* const behind = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), behind, number);  // unlike strtod decimal only
  const auto unit = std::ranges::find(kUnits, std::string_view(end, behind), &std::pair<std::string_view, double>::first);
  const double bytes = error == std::errc() && unit != kUnits.end() ? number * unit->second : 0;
  if (bytes >= 1 && bytes <= 1e18) return static_cast<std::size_t>(bytes);
  return usage_error(fmt::format("'{}' is not a number of bytes; write for example 300M or 2G", text));
}

nlohmann::ordered_json bytes_by_tier_json(const CacheSpec& spec, const ByteAccount& bytes) {
  const char* slow = "slow";
  if (spec.offload && spec.offload->tier == Tier::kMmap) slow = "mmap";
  if (spec.offload && spec.offload->tier == Tier::kDisk) slow = "disk";
  return {{"ram", bytes.fast_allocated()}, {slow, bytes.slow_allocated}};
}

bool stderr_is_terminal() { return isatty(STDERR_FILENO) != 0; }

void show_progress(std::string_view what, double share) {
  static double last = 0;
  if (!stderr_is_terminal()) return;
  const double now = Clock::real().seconds();
  if (share < 1 && now - last < 0.1) return;
  last = now;
  std::fputs("\r\x1b[K", stderr);
  if (share < 1) std::fputs(fmt::format("{} {:3.0f} %", what, share * 100).c_str(), stderr);
  std::fflush(stderr);
}

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void print_note(std::string_view text) {
  std::string line(text);
  // File names and flags appear in sentences, and may hold anything.
  std::replace_if(line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 127; }, ' ');
  std::fputs((line + "\n").c_str(), stderr);
}

}  // namespace kvartet
