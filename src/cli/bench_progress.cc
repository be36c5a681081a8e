#include "cli/bench_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "cli/command.h"
#include "core/counted.h"
#include "report/rows.h"

namespace kvartet {
namespace {

std::string time_left(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::min(seconds, 1e15));
  if (whole >= 100 * 3600) return fmt::format("{} left", counted(whole / 3600, "hour"));
  return fmt::format("{} min {} s left", whole / 60, whole % 60);
}

void show(const std::string& what, double share, ProgressLines* lines) {
  if (stderr_is_terminal()) {
    show_progress(what, share);
  } else if (share < 1 && lines->due()) {  // behind the last sample come the results
    print_note(fmt::format("{} {:.0f} %", what, share * 100));
  }
}

}  // namespace

void show_bench_progress(const BenchmarkProgress& p, ProgressLines* lines) {
  if (p.total == 0) return;
  std::string left;
  if (p.seconds_left >= 0) {
    left = fmt::format(", {:.0f} tokens/s, {}", p.tokens_per_s, time_left(p.seconds_left));
  }
  show(fmt::format("{}: sample {} of {}{};", cell_name(p.cell), p.done + 1, p.total, left), (p.done + p.sample_share) / p.total,
       lines);
}

void show_solo_progress(const SoloProgress& p, ProgressLines* lines) {
  if (p.total == 0) return;
  std::string left;
  if (p.seconds_left >= 0) left = ", " + time_left(p.seconds_left);
  show(fmt::format("{} alone on {}: run {} of {}{};", p.spec, cell_name(p.cell), p.done + 1, p.total, left),
       static_cast<double>(p.done) / p.total, lines);
}

}  // namespace kvartet
