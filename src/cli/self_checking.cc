#include "cli/self_checking.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "bench/self_check.h"
#include "cache/spec_grammar.h"
#include "cli/planning.h"
#include "core/file_system.h"
#include "results/fingerprint.h"
#include "results/self_check_memory.h"

namespace kvartet {
namespace {

// What is known of this model, and where new checks go. Without a folder, or with a file that cannot be read, nothing is known
// and nothing kept, which is said where there was something to keep: the same checks will run again.
class Memory {
 public:
  static Result<Memory> open(const std::string& model_path) {
    Memory memory;
    KV_ASSIGN(memory.model_, model_fingerprint(FileSystem::real(), model_path));
    const std::string home = planner_home();
    if (home.empty()) {
      memory.why_not_ = "neither KVARTET_HOME nor HOME is set";
      return memory;
    }
    Result<SelfCheckMemory> file = SelfCheckMemory::load(FileSystem::real(), home + "/" + kSelfCheckFile, self_check_probe());
    if (file.ok()) {
      memory.file_ = std::move(*file);
    } else {
      memory.why_not_ = file.status().message();
    }
    return memory;
  }
  const SelfCheck* find(const std::string& spec) const { return file_ ? file_->find(model_, spec) : nullptr; }
  void keep(std::span<const SelfCheck> checks) {
    if (checks.empty()) return;
    std::string why_not = why_not_;
    if (file_) why_not = file_->add(FileSystem::real(), model_, checks).message();
    if (!why_not.empty()) print_note(fmt::format("note: the self-check is not kept and will run again: {}", why_not));
  }

 private:
  std::string model_;
  std::optional<SelfCheckMemory> file_;
  std::string why_not_;  // there is none
};

// What --strict has to know of all checks.
struct Failures {
  std::vector<std::string> poor;
  std::vector<std::string> unchecked;
};

enum class Age { kNew, kRemembered };

void report(const SelfCheck& check, Age age, SelfCheckMode mode, Failures* failures) {
  switch (verdict_of(check)) {
    case SelfCheckVerdict::kGood: return;
    case SelfCheckVerdict::kPoor:
      print_note("warning: " + self_check_sentence(check));
      failures->poor.push_back(check.spec);
      return;
    case SelfCheckVerdict::kIdle:
      if (age == Age::kNew || mode == SelfCheckMode::kStrict) print_note("note: " + self_check_sentence(check));
      failures->unchecked.push_back(check.spec);
      return;
  }
}

Result<std::vector<SelfCheck>> run_checks(Engine& engine, const std::string& model_path, std::span<const CacheSpec> specs) {
  KV_ASSIGN(const ModelSuspects suspects, model_suspects(model_path));
  Result<std::vector<SelfCheck>> checks =
      self_check(engine, specs, suspects, [](double share) { show_progress("checking the cache with this model", share); });
  show_progress("", 1);
  return checks;
}

// All in one prefill; where one spoils that, each alone.
Result<std::vector<SelfCheck>> check_new(Engine& engine, const std::string& model_path, std::span<const CacheSpec> specs,
                                         Failures* failures) {
  Result<std::vector<SelfCheck>> together = run_checks(engine, model_path, specs);
  if (together.ok() || together.status().code() == Code::kCancelled) return together;
  std::vector<SelfCheck> checks;
  for (const CacheSpec& spec : specs) {
    Result<std::vector<SelfCheck>> alone = run_checks(engine, model_path, {&spec, 1});
    if (alone.ok()) {
      checks.push_back(std::move(alone->front()));
      continue;
    }
    if (alone.status().code() == Code::kCancelled) return alone;
    print_note(fmt::format("note: {} was not checked with this model: {}", spec.canonical, alone.status().message()));
    failures->unchecked.push_back(spec.canonical);
  }
  return checks;
}

Status strict_verdict(const Failures& failures) {
  if (!failures.poor.empty()) {
    return internal_error(fmt::format("--strict: {} did not pass the self-check; leave it out, or run without --strict",
                                      fmt::join(failures.poor, ", ")));
  }
  if (failures.unchecked.empty()) return {};
  return internal_error(fmt::format("--strict: {} could not be checked; measure with 'kvartet fidelity', or run without --strict",
                                    fmt::join(failures.unchecked, ", ")));
}

}  // namespace

void add_self_check_flags(CLI::App* command, SelfCheckFlags* flags) {
  CLI::Option* const strict =
      command->add_flag("--strict", flags->strict, "a cache that fails the self-check with this model ends the command");
  command
      ->add_flag("--no-self-check", flags->off,
                 "do not look whether cache and model go together, which is done the first time the two are used")
      ->excludes(strict);
}

Result<SelfCheckMode> self_check_mode(const SelfCheckFlags& flags) {
  if (flags.strict) return SelfCheckMode::kStrict;
  if (flags.off) return SelfCheckMode::kOff;
  const char* const text = std::getenv("KVARTET_SELF_CHECK");
  const std::string_view value = text == nullptr ? "" : text;
  if (value.empty() || value == "on") return SelfCheckMode::kWarn;
  if (value == "off") return SelfCheckMode::kOff;
  return usage_error(
      fmt::format("the environment's KVARTET_SELF_CHECK is {}, and takes on or off; change it, or give --no-self-check",
                  kvartet::quoted(value)));
}

Status check_caches(Engine& engine, const std::string& model_path, std::span<const CacheSpec> specs, SelfCheckMode mode) {
  if (mode == SelfCheckMode::kOff || std::none_of(specs.begin(), specs.end(), needs_self_check)) return {};
  KV_ASSIGN(Memory memory, Memory::open(model_path));
  Failures failures;
  std::vector<CacheSpec> unknown;
  for (const CacheSpec& spec : specs) {
    if (!needs_self_check(spec)) continue;
    const SelfCheck* const known = memory.find(spec.canonical);
    if (known != nullptr) {
      report(*known, Age::kRemembered, mode, &failures);
    } else {
      unknown.push_back(spec);
    }
  }
  if (!unknown.empty()) {
    KV_ASSIGN(const std::vector<SelfCheck> checks, check_new(engine, model_path, unknown, &failures));
    memory.keep(checks);
    for (const SelfCheck& check : checks) report(check, Age::kNew, mode, &failures);
  }
  return mode == SelfCheckMode::kStrict ? strict_verdict(failures) : Status();
}

}  // namespace kvartet
