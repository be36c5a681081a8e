// kvartet solo-child: one cache alone, ordered by kvartet bench --solo (bench/runner/solo_child.h). Not for people.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <iostream>
#include <iterator>

#include "bench/runner/solo_child.h"
#include "cli/command.h"

namespace kvartet {
namespace {

Status solo_child() {
  // However the benchmark ends, nobody computes for nobody.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  KV_ASSIGN(const SoloOrder order, read_solo_order(text));
  if (getppid() != order.parent_process) return cancelled("the benchmark that ordered this run has ended");
  KV_ASSIGN(const SoloRun run, measure_alone(order, &interrupted()));
  print(solo_answer_text(order, run) + "\n");
  return {};
}

}  // namespace

void add_solo_child(CLI::App& app, Action* action) {
  CLI::App* command = app.add_subcommand(kSoloCommand, "one cache alone, for kvartet bench --solo");
  command->group("");  // in no help
  command->callback([action] { *action = solo_child; });
}

}  // namespace kvartet
