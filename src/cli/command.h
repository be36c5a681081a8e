// What the commands share: how they are added to the command line, where they may print, and how Ctrl-C reaches them.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cache/spec.h"
#include "core/arena.h"
#include "core/bytes.h"
#include "core/status.h"
#include "engine/engine.h"

namespace kvartet {

// The command that the command line chose. main runs it after parsing and turns its Status into the exit code.
using Action = std::function<Status()>;

// Flags that every command with a model takes.
struct ModelFlags {
  std::string model;
  int threads = 0;  // 0: physical cores
  std::size_t fast_tier_bytes = Arena::kNoCap;
  std::string tier_directory;  // "": the system's temporary folder
};
void add_model_flags(CLI::App* command, ModelFlags* flags);
int resolved_threads(const ModelFlags& flags);
// What these flags mean to the engine, Ctrl-C included. As resolve_model.
Result<EngineOptions> engine_options(const ModelFlags& flags);

// For flags that hold an int: a whole number in decimal digits, within the bounds. CLI11 alone would read 010 as eight. What is
// no whole number is told apart from what is outside; the same for numbers with a point.
CLI::Validator at_least(int least);
CLI::Validator whole_number(int least, int most);
CLI::Validator number_within(double least, double most);
CLI::Validator seed_number();  // for a std::uint64_t

// What the command line's mistake means to its writer, in one sentence with a hint. `words` are the arguments.
std::string usage_sentence(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& words);

// Words between single blanks, in lines of at most `width` characters; every line but the first begins with `indent` blanks.
// Words longer than a line are broken behind commas where they have some. Ends with a newline.
std::string wrapped(std::string_view text, std::size_t indent, std::size_t width = 120);

// "smollm2" names smollm2.gguf in $KVARTET_MODELS, models/ here or models/ of the checkout, where set-up puts it; what has a
// dot or a slash, or is there, is a path.
// kBadInput when a name names nothing.
Result<std::string> resolve_model(const std::string& name);
// Where models that this program writes belong: $KVARTET_MODELS, or models/ of the checkout, or models/ here.
std::string models_directory();
// Where the haystack's essays are: haystack/ in the first folder that resolve_model() looks into and that has one.
std::string essays_directory();

// kUsage, before anything is loaded, when one of the specs is wrong.
Result<std::vector<CacheSpec>> parse_specs(const std::vector<std::string>& texts);

// K, M, G (or KiB, MiB, GiB) are powers of 1024.
Result<std::size_t> parse_bytes(const std::string& text);

// {"ram": the fast tier, "slow": the slow one}; for a cache with rows in a file the second is called "mmap" or "disk".
nlohmann::ordered_json bytes_by_tier_json(const CacheSpec& spec, const ByteAccount& bytes);

// Set by the first Ctrl-C; the second one ends the process at once.
const std::atomic<bool>& interrupted();
void install_interrupt_handler();

// Progress on standard error when it is a terminal, nothing otherwise (cli/bench_progress.h says more). Call with share 1 to
// take the line away, which after Ctrl-C is no 100 %.
void show_progress(std::string_view what, double share);
bool stderr_is_terminal();
void print(std::string_view text);       // standard output
void print_note(std::string_view text);  // standard error, one line: control characters become blanks

void add_run(CLI::App& app, Action* action);
void add_explain(CLI::App& app, Action* action);
void add_lists(CLI::App& app, Action* action);  // methods, tasks, model
void add_data(CLI::App& app, Action* action);
void add_bench(CLI::App& app, Action* action);
void add_solo_child(CLI::App& app, Action* action);  // for bench --solo only
void add_report(CLI::App& app, Action* action);
void add_fidelity(CLI::App& app, Action* action);
void add_score(CLI::App& app, Action* action);
void add_speed(CLI::App& app, Action* action);
void add_plan(CLI::App& app, Action* action);
void add_calibrate(CLI::App& app, Action* action);

}  // namespace kvartet
