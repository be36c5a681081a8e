// The self-check as commands have it: which caches were never used with this model, what is kept, what is said.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "cache/spec.h"
#include "cli/command.h"
#include "core/status.h"
#include "engine/engine.h"

namespace kvartet {

struct SelfCheckFlags {
  bool strict = false;
  bool off = false;
};
void add_self_check_flags(CLI::App* command, SelfCheckFlags* flags);

enum class SelfCheckMode : std::uint8_t {
  kWarn,    // what is poor is said
  kStrict,  // and ends the command
  kOff,
};
// The flags decide where one is given, else KVARTET_SELF_CHECK, on or off, for scripts that cannot change the command.
// kUsage: it is something else.
Result<SelfCheckMode> self_check_mode(const SelfCheckFlags& flags);

// Looks each cache up under the model's fingerprint, and checks together those that are not known yet. What is poor gets a
// warning on standard error every time; what could not be checked is said when it was tried. A check that fails for a reason of
// its own (no memory for it beside the caches, no folder to keep it in) is a note and never the end of the command.
// kInternal: strict, and a cache is poor or could not be checked. kCancelled.
Status check_caches(Engine& engine, const std::string& model_path, std::span<const CacheSpec> specs, SelfCheckMode mode);

}  // namespace kvartet
