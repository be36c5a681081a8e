// kvartet score: any prediction file in LongBench's form, by LongBench's own metrics.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "bench/score.h"
#include "cli/command.h"
#include "cli/json_output.h"
#include "core/counted.h"
#include "core/file_system.h"

namespace kvartet {
namespace {

struct ScoreFlags {
  std::string task;
  std::string metric;
  std::string file;
  bool json = false;
};

Status score(const ScoreFlags& flags) {
  KV_ASSIGN(std::unique_ptr<Task> task, make_task(flags.task, flags.metric));
  KV_ASSIGN(std::string text, FileSystem::real().read_file(flags.file));
  KV_ASSIGN(ScoreReport report, score_predictions(*task, text, flags.file));
  if (report.n == 0 && !report.skipped.empty() && !flags.json) {  // JSON names every line
    return bad_input(fmt::format("none of the {} of {} could be scored; the first: {}: {}",
                                 counted(report.skipped.size(), "line"), flags.file, report.skipped.front().where(),
                                 report.skipped.front().reason));
  }
  if (flags.json) {
    nlohmann::ordered_json document = {
        {"task", report.task}, {"metric", report.metric}, {"n", report.n}, {"score", report.score}};
    document["skipped"] = nlohmann::ordered_json::array();
    for (const SkippedLine& line : report.skipped) document["skipped"].push_back(line.where() + ": " + line.reason);
    for (const ScorePartMean& p : report.parts) document["parts"][p.name] = p.percent;
    for (const ScoreBucket& b : report.buckets) document["buckets"][b.name] = {{"n", b.n}, {"score", b.score}};
    print(json_text(document));
  } else {
    print(fmt::format("{} ({}): {:.2f} over {}\n", report.task, report.metric, report.score, counted(report.n, "prediction")));
    for (const ScorePartMean& p : report.parts) print(fmt::format("  {:20} {:.2f}\n", p.name, p.percent));
  }
  for (const SkippedLine& line : report.skipped) print_note(line.where() + ": " + line.reason);
  if (report.skipped.empty()) return {};
  return bad_input(fmt::format("{}: {} of {} could not be scored, and the score is without them; mend the lines named above",
                               flags.file, report.skipped.size(),
                               counted(report.skipped.size() + static_cast<std::size_t>(report.n), "line")));
}

}  // namespace

void add_score(CLI::App& app, Action* action) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App* command = app.add_subcommand("score", "score a file of predictions in LongBench's form");
  command->add_option("--task", flags->task, "whose metric to use, for example longbench/hotpotqa (kvartet tasks)")->required();
  command->add_option("--metric", flags->metric, "for your own task file: the metric");
  command->add_option("PREDICTIONS", flags->file, "JSON lines with pred and answers")->required();
  command->add_flag("--json", flags->json, "one JSON document on standard output");
  command->callback([flags, action] { *action = [flags] { return score(*flags); }; });
}

}  // namespace kvartet
