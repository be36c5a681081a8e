// kvartet data check DIR: which data sets a folder holds.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "bench/tasks/data_check.h"
#include "cli/command.h"
#include "cli/json_output.h"
#include "core/counted.h"
#include "core/file_system.h"

namespace kvartet {
namespace {

struct DataFlags {
  std::string directory;
  bool json = false;
};

nlohmann::ordered_json document_of(const DataFlags& flags, const std::vector<DataSetCheck>& checks) {
  nlohmann::ordered_json document = {{"directory", flags.directory}, {"sets", nlohmann::ordered_json::array()}};
  for (const DataSetCheck& c : checks) {
    document["sets"].push_back({{"task", c.task},
                                {"path", c.path},
                                {"source", c.source},
                                {"state", data_state_name(c.state)},
                                {"records", c.records},
                                {"unusable", c.unusable},
                                {"hash", c.hash},
                                {"note", c.note}});
  }
  return document;
}

std::string table_of(const std::vector<DataSetCheck>& checks) {
  std::string text =
      fmt::format("{:44} {:8} {:>7} {:>8}  {:16}  {}\n", "file", "state", "records", "unusable", "hash", "source; note");
  for (const DataSetCheck& c : checks) {
    const bool there = c.state != DataState::kMissing;
    text += fmt::format("{:44} {:8} {:>7} {:>8}  {:16}  {}{}{}\n", c.path, data_state_name(c.state),
                        there ? std::to_string(c.records) : "-", there ? std::to_string(c.unusable) : "-",
                        c.hash.empty() ? "-" : c.hash, c.source, c.note.empty() ? "" : "; ", c.note);
  }
  return text;
}

Status check(const DataFlags& flags) {
  KV_ASSIGN(const std::vector<DataSetCheck> checks, check_data(FileSystem::real(), flags.directory, essays_directory()));
  print(flags.json ? json_text(document_of(flags, checks)) : table_of(checks));
  int damaged = 0;
  for (const DataSetCheck& c : checks) {
    damaged += c.state == DataState::kDamaged ? 1 : 0;
    for (const SkippedLine& line : c.skipped) print_note(fmt::format("{}: {}", line.where(), line.reason));
  }
  if (damaged == 0) return {};
  return bad_input(fmt::format("damaged or incomplete in {}: {}; the table says how", flags.directory, counted(damaged, "file")));
}

}  // namespace

void add_data(CLI::App& app, Action* action) {
  auto flags = std::make_shared<DataFlags>();
  CLI::App* data = app.add_subcommand("data", "your own copies of benchmark data");
  data->require_subcommand(1);
  CLI::App* command = data->add_subcommand("check", "which sets a data folder holds, with record counts and hashes");
  command->add_option("DIR", flags->directory, "the folder that --data names")->required();
  command->add_flag("--json", flags->json, "one JSON document on standard output");
  command->callback([flags, action] { *action = [flags] { return check(*flags); }; });
}

}  // namespace kvartet
