// kvartet: one program, one subcommand per job. Errors are one sentence on standard error and an exit code (DESIGN 6).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include "cli/command.h"
#include "results/machine.h"

namespace kvartet {
namespace {

void warn_about_passive_waiting() {
  const char* policy = std::getenv("OMP_WAIT_POLICY");
  if (policy != nullptr && strcasecmp(policy, "passive") == 0) {
    print_note("note: OMP_WAIT_POLICY=passive makes every token about three times slower; unset it");
  }
}

int fail(const Status& status) {
  print_note("kvartet: " + status.message());
  return exit_code(status.code());
}

int run(int argc, char** argv) {
  CLI::App app(
      "Kvartet measures what a cheaper KV cache costs you: quantize, evict, merge, offload, side by side on your own model and "
      "text.",
      "kvartet");
  app.set_version_flag("--version", "kvartet " + kvartet_version());
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  Action action;
  add_run(app, &action);
  add_bench(app, &action);
  add_solo_child(app, &action);
  add_fidelity(app, &action);
  add_speed(app, &action);
  add_score(app, &action);
  add_explain(app, &action);
  add_report(app, &action);
  add_plan(app, &action);
  add_calibrate(app, &action);
  add_lists(app, &action);
  add_data(app, &action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForAllHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForVersion& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    return fail(usage_error(usage_sentence(app, e, {argv + 1, argv + argc})));
  }
  warn_about_passive_waiting();
  install_interrupt_handler();
  const Status status = action();
  if (!status.ok()) return fail(status);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    return fail(io_error("standard output could not be written to its end; is the disk full, or has its reader left?"));
  }
  return 0;
}

}  // namespace
}  // namespace kvartet

int main(int argc, char** argv) {
  try {
    return kvartet::run(argc, argv);
  } catch (const std::bad_alloc&) {
    return kvartet::fail(kvartet::exhausted("the machine has no memory left; choose a smaller context, cache or model"));
  } catch (const std::exception& e) {
    return kvartet::fail(kvartet::internal_error(std::string("unexpected: ") + e.what()));
  }
}
