// kvartet report: the table, the page or the JSON of one or more results folders.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cache/spec_grammar.h"
#include "cli/command.h"
#include "cli/decisions.h"
#include "cli/json_output.h"
#include "core/bytes_text.h"
#include "core/counted.h"
#include "core/file_system.h"
#include "report/claims.h"
#include "report/diagnosis.h"
#include "report/page.h"
#include "report/rows.h"
#include "report/speed_curves.h"
#include "report/text_table.h"
#include "results/merge.h"
#include "results/store.h"

namespace kvartet {
namespace {

struct ReportFlags {
  std::vector<std::string> directories;
  std::vector<std::string> beside;
  std::vector<std::string> diagnoses;
  std::vector<std::string> speeds;
  std::string page;
  std::string model;
  bool json = false;
};

Result<MergedResults> load_folders(FileSystem& files, const std::vector<std::string>& directories) {
  std::vector<FolderResults> parts;
  for (const std::string& directory : directories) {
    KV_ASSIGN(Store store, Store::open_for_reading(files, directory));
    KV_ASSIGN(StoredResults results, store.load());
    parts.push_back({directory, std::move(results)});
  }
  return merge_results(std::move(parts));
}

// What another command wrote as JSON, file by file.
template <typename T>
Result<std::vector<T>> load_measurements(FileSystem& files, const std::vector<std::string>& paths,
                                         Result<T> (*parse)(std::string_view text, const std::string& source)) {
  std::vector<T> all;
  for (const std::string& path : paths) {
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
      return bad_input(fmt::format("{} is no ordinary file", path));  // a device may have no end
    }
    KV_ASSIGN(const std::string text, files.read_file(path));
    KV_ASSIGN(T one, parse(text, std::filesystem::path(path).filename().string()));
    all.push_back(std::move(one));
  }
  return all;
}

// The page must not take the place of what it was made from, nor of a folder.
Status check_page_path(const ReportFlags& flags) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_directory(flags.page, ignored)) {
    return usage_error(fmt::format("-o {} is a folder; name a file in it, for example {}/report.html.", flags.page, flags.page));
  }
  // The page is renamed into place, which would put a file where a device was.
  if (fs::exists(flags.page, ignored) && !fs::is_regular_file(flags.page, ignored)) {
    return usage_error(fmt::format("-o {} is no ordinary file; name a file to write the page to", flags.page));
  }
  for (const std::string& directory : flags.directories) {
    if (fs::equivalent(flags.page, directory + "/" + kStoreFile, ignored)) {
      return usage_error(fmt::format("-o {} would overwrite the results themselves; name another file.", flags.page));
    }
  }
  for (const std::vector<std::string>* measured : {&flags.diagnoses, &flags.speeds}) {
    for (const std::string& path : *measured) {
      if (fs::equivalent(flags.page, path, ignored)) {
        return usage_error(fmt::format("-o {} would overwrite what the page is made from; name another file", flags.page));
      }
    }
  }
  return {};
}

// Of one model any trend is the same as itself.
Status check_other_model(const StoredResults& results, const StoredResults& beside) {
  if (results.runs.empty() || beside.runs.empty()) return {};
  const RunIdentity& ours = results.runs.front().identity;
  if (beside.runs.front().identity.model_hash != ours.model_hash) return {};
  return usage_error(
      fmt::format("--beside compares with another model, and both results are of {} (hash {}); name a folder of another one",
                  printable(ours.model_name), printable(ours.model_hash)));
}

Status write_page(FileSystem& files, const ReportFlags& flags, const MergedResults& merged, std::span<const ReportRow> rows,
                  std::vector<StudyClaims> claims, Decisions decisions) {
  PageRequest request;
  request.claims = std::move(claims);
  request.decisions = std::move(decisions);
  request.folders = flags.directories;
  KV_ASSIGN(request.diagnoses, load_measurements(files, flags.diagnoses, parse_diagnosis));
  KV_ASSIGN(request.speeds, load_measurements(files, flags.speeds, parse_speed));
  if (merged.repeated > 0) {
    request.notes.push_back(fmt::format("In more than one of the folders: {}; the first that did not fail was taken.",
                                        counted(merged.repeated, "answer")));
  }
  const std::string page = report_page(merged.results, rows, request);
  KV_TRY(write_file_atomically(files, flags.page, page));
  print_note(fmt::format("{}: {}, one file that needs no network; open it in a browser", flags.page, bytes_text(page.size())));
  return {};
}

Status report(const ReportFlags& flags) {
  FileSystem& files = FileSystem::real();
  if (!flags.page.empty()) KV_TRY(check_page_path(flags));
  if (flags.page.empty() && !(flags.diagnoses.empty() && flags.speeds.empty())) {
    return usage_error(
        fmt::format("{} belongs to the page; name its file with -o", flags.diagnoses.empty() ? "--speed" : "--diagnosis"));
  }
  KV_ASSIGN(const MergedResults merged, load_folders(files, flags.directories));
  if (merged.results.outcomes.empty()) {
    return bad_input(fmt::format("{} holds no finished sample yet; go on with the 'kvartet bench' command that made it.",
                                 flags.directories.front()));
  }
  const std::vector<ReportRow> rows = report_rows(merged.results);
  MergedResults other;
  if (!flags.beside.empty()) {
    KV_ASSIGN(other, load_folders(files, flags.beside));
    KV_TRY(check_other_model(merged.results, other.results));
  }
  const std::vector<StudyClaims> claims = find_claims(merged.results, flags.beside.empty() ? nullptr : &other.results);
  Decisions decisions;
  std::string note;
  if (!flags.page.empty() || flags.json || !flags.model.empty()) {
    KV_ASSIGN(decisions, decisions_of(merged.results, rows, {flags.directories, flags.model}, &note));
  }
  if (!flags.page.empty()) KV_TRY(write_page(files, flags, merged, rows, claims, decisions));
  if (flags.json) {
    nlohmann::json document = report_json(merged.results, rows);
    document["claims"] = claims_json(claims);
    if (!decisions.empty()) document["decisions"] = decisions_json(decisions);
    print(json_text(document));
  } else if (flags.page.empty()) {
    print(text_table(merged.results, rows));
    print(claims_text(claims));
    print_note(fmt::format("for a page with pictures and samples: kvartet report {} -o report.html", flags.directories.front()));
  }
  if (!note.empty()) print_note(note);
  return {};
}

}  // namespace

void add_report(CLI::App& app, Action* action) {
  auto flags = std::make_shared<ReportFlags>();
  CLI::App* command = app.add_subcommand("report", "results as one offline HTML page (-o), a table, or JSON");
  command->add_option("DIR", flags->directories, "results folders of kvartet bench; several are put together")->required();
  command->add_option("-o,--out", flags->page, "write the page to this file, for example report.html");
  command->add_option("--beside", flags->beside,
                      "results folders of another model, for the claim that trends are the same across model families");
  command->add_option("-m,--model", flags->model,
                      "the model of the results, from whose metadata the planner's choices are made for the page and the JSON "
                      "(default: the one that the results name, where it is still there)");
  command->add_option("--diagnosis", flags->diagnoses,
                      "with -o: a file of 'kvartet fidelity --diagnose --json', shown as maps by layer and head; repeatable");
  command->add_option("--speed", flags->speeds,
                      "with -o: a file of 'kvartet speed --json', shown as tokens per second by depth; repeatable");
  command->add_flag("--json", flags->json, "one JSON document on standard output");
  command->callback([flags, action] { *action = [flags] { return report(*flags); }; });
}

}  // namespace kvartet
