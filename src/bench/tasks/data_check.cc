#include "bench/tasks/data_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "bench/metrics/metric.h"
#include "bench/metrics/structured_answer.h"
#include "bench/tasks/longbench.h"
#include "bench/tasks/needle_haystack.h"
#include "bench/tasks/records.h"
#include "core/counted.h"
#include "results/fingerprint.h"

namespace kvartet {
namespace {

constexpr const char* kLongBench = "LongBench (THUDM/LongBench), data.zip";
constexpr const char* kLongBenchConfig = "LongBench (THUDM/LongBench), folder config";
constexpr const char* kNeedleBench = "NeedleBench v2 (OpenCompass)";
constexpr const char* kLongProc = "LongProc (princeton-pli/LongProc), html_to_tsv";
constexpr const char* kLoong = "Loong (MozerWang/Loong)";
constexpr const char* kText2Json = "Text2JSON, the file published with YAKV";
constexpr const char* kHaystack = "any essays as .txt; set-up puts some into models/haystack";

class Checker {
 public:
  Checker(FileSystem& files, std::string directory) : files_(files), directory_(std::move(directory)) {}

  // The file's text when it is there; the entry is appended in any case and stays the last one while it is filled in.
  Result<std::string> open(std::string task, std::string path, const char* source) {
    checks_.push_back({.task = std::move(task), .path = std::move(path), .source = source});
    const std::string full = directory_ + "/" + last().path;
    if (!files_.exists(full)) return std::string();
    KV_ASSIGN(std::string text, files_.read_file(full));
    last().state = DataState::kFound;
    last().hash = hash_bytes(text);
    return text;
  }

  void records(std::string_view text, const std::function<Status(const nlohmann::json&)>& use) {
    last().skipped = read_json_lines(text, directory_ + "/" + last().path, [&](int, const nlohmann::json& object) -> Status {
      KV_TRY(use(object));
      ++last().records;
      return {};
    });
    count_unusable();
  }

  void count_unusable() {
    last().unusable = static_cast<int>(last().skipped.size());
    if (last().unusable > 0 || last().records == 0) last().state = DataState::kDamaged;
    if (last().unusable > 0) last().note = fmt::format("line {}: {}", last().skipped.front().line, last().skipped.front().reason);
    if (last().unusable == 0 && last().records == 0) last().note = "it holds no records";
  }

  void damaged(std::string note) {
    last().state = DataState::kDamaged;
    last().note = std::move(note);
  }

  void add(DataSetCheck check) { checks_.push_back(std::move(check)); }
  bool found() const { return checks_.back().state != DataState::kMissing; }
  DataSetCheck& last() { return checks_.back(); }
  bool exists(const std::string& path) { return files_.exists(directory_ + "/" + path); }
  FileSystem& files() { return files_; }
  const std::string& directory() const { return directory_; }
  std::vector<DataSetCheck> take() { return std::move(checks_); }

 private:
  FileSystem& files_;
  std::string directory_;
  std::vector<DataSetCheck> checks_;
};

// compression.md 13.1, column n.
int published_records(std::string_view set) {
  if (set == "multifieldqa_en") return 150;
  return set == "lcc" || set == "repobench-p" ? 500 : 200;
}

Status check_longbench_set(Checker& checker, std::string_view set, std::string_view metric, bool chinese) {
  KV_ASSIGN(const std::string text,
            checker.open(fmt::format("longbench/{}", set), fmt::format("longbench/{}.jsonl", set), kLongBench));
  if (!checker.found()) return {};
  DataSetCheck& check = checker.last();
  RecordFile file = parse_records(text, checker.directory() + "/" + check.path, metric);
  check.records = static_cast<int>(file.records.size());
  check.skipped = std::move(file.skipped);
  checker.count_unusable();
  if (check.state == DataState::kDamaged) return {};
  if (chinese) {
    check.state = DataState::kRefused;
    check.note = "its score needs the word segmenter jieba, which is not part of Kvartet";
  } else if (check.records != published_records(set)) {
    check.note = fmt::format("the published file has {}", counted(published_records(set), "record"));
  }
  return {};
}

Status check_longbench_config(Checker& checker, const char* name, std::string_view what) {
  KV_ASSIGN(const std::string text, checker.open("longbench", fmt::format("longbench/config/{}", name), kLongBenchConfig));
  if (!checker.found()) {
    checker.last().note = fmt::format("without it no LongBench set has its {}", what);
    return {};
  }
  const nlohmann::json config = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    checker.damaged("it is not a JSON object");
    return {};
  }
  std::vector<std::string_view> lacking;
  for (const LongBenchSet& set : longbench_sets()) {
    if (!config.contains(set.name)) lacking.push_back(set.name);
  }
  checker.last().records = static_cast<int>(config.size());
  if (!lacking.empty()) checker.damaged(fmt::format("no {} for {}", what, fmt::join(lacking, ", ")));
  return {};
}

Status check_longbench(Checker& checker) {
  KV_TRY(check_longbench_config(checker, "dataset2prompt.json", "prompt"));
  KV_TRY(check_longbench_config(checker, "dataset2maxlen.json", "answer length"));
  for (const LongBenchSet& set : longbench_sets()) KV_TRY(check_longbench_set(checker, set.name, set.metric, /*chinese=*/false));
  for (const std::string_view set : longbench_chinese_sets())
    KV_TRY(check_longbench_set(checker, set, "rouge", /*chinese=*/true));
  return {};
}

Status check_needlebench(Checker& checker) {
  KV_ASSIGN(const std::string needles, checker.open("needlebench/multineedle", "needlebench/needles.jsonl", kNeedleBench));
  if (checker.found()) {
    checker.records(needles, [](const nlohmann::json& object) -> Status {
      for (const char* field : {"needle", "retrieval_question", "arg1", "arg2", "language"})
        KV_TRY(text_field(object, field).status());
      return {};
    });
  }
  KV_ASSIGN(const std::string essays,
            checker.open("needlebench/multineedle", "needlebench/PaulGrahamEssays.jsonl", kNeedleBench));
  if (checker.found()) checker.records(essays, [](const nlohmann::json& object) { return text_field(object, "text").status(); });
  return {};
}

Status check_longproc(Checker& checker) {
  for (const char* group : {"0.5k", "2k", "8k"}) {
    KV_ASSIGN(const std::string text, checker.open(fmt::format("longproc/html_to_tsv:group={}", group),
                                                   fmt::format("longproc/html_to_tsv_{}.json", group), kLongProc));
    if (!checker.found()) continue;
    const nlohmann::json list = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!list.is_array()) {
      checker.damaged("it is not a JSON list of records");
      continue;
    }
    int without_page = 0;
    for (const nlohmann::json& record : list) {
      const bool readable = record.is_object() && text_field(record, "html_path").ok() && text_field(record, "gt").ok();
      if (!readable) {
        ++checker.last().unusable;
        continue;
      }
      ++checker.last().records;
      without_page += checker.exists("longproc/" + record["html_path"].get<std::string>()) ? 0 : 1;
    }
    if (checker.last().unusable > 0) checker.damaged("records without html_path or gt");
    if (without_page > 0) checker.damaged(fmt::format("the pages of {} are not there", counted(without_page, "record")));
  }
  KV_ASSIGN(const std::string prompts, checker.open("longproc/html_to_tsv", "longproc/prompts.yaml", kLongProc));
  return {};
}

Status check_loong(Checker& checker) {
  KV_ASSIGN(const std::string text, checker.open("loong", "loong/loong.jsonl", kLoong));
  if (!checker.found()) return {};
  int judged = 0;
  checker.records(text, [&](const nlohmann::json& object) -> Status {
    for (const char* field : {"type", "language", "question", "instruction", "prompt_template"})
      KV_TRY(text_field(object, field).status());
    const auto answer = object.find("answer");
    if (answer == object.end()) return bad_input("field answer is missing");
    judged += is_structured(answer->is_string() ? answer->get<std::string>() : answer->dump()) ? 0 : 1;
    return {};
  });
  if (checker.last().note.empty() && judged > 0)
    checker.last().note = fmt::format("only a judge model can rate {}", counted(judged, "record"));
  if (!checker.exists("loong/doc")) checker.damaged("its documents, loong/doc, are not there");
  return {};
}

Status check_text2json(Checker& checker) {
  std::string path = "text2json/text2json.jsonl";
  if (checker.exists("text2json")) {
    KV_ASSIGN(const std::vector<std::string> names, checker.files().list(checker.directory() + "/text2json"));
    const auto found = std::find_if(names.begin(), names.end(), [](const std::string& name) { return name.ends_with(".jsonl"); });
    if (found != names.end()) path = "text2json/" + *found;
  }
  KV_ASSIGN(const std::string text, checker.open("text2json/released", path, kText2Json));
  if (!checker.found()) return {};
  checker.records(text, [](const nlohmann::json& object) -> Status {
    KV_TRY(text_field(object, "problem").status());
    KV_ASSIGN(const std::string answer, text_field(object, "answer"));
    return check_answer("text2json", "", std::vector<std::string>{answer}, {});
  });
  return {};
}

Status check_haystack(Checker& checker, const std::string& essays_dir) {
  if (!checker.exists("haystack")) {
    KV_TRY(checker.open("needle, ruler, text2json", "haystack", kHaystack).status());
    const Status essays = load_haystack(checker.files(), "", essays_dir).status();
    checker.last().note = essays.ok() ? fmt::format("the essays in {} are used", essays_dir) : essays.message();
    return {};
  }
  KV_ASSIGN(const std::vector<std::string> names, checker.files().list(checker.directory() + "/haystack"));
  DataSetCheck check = {.task = "needle, ruler, text2json", .path = "haystack", .source = kHaystack, .state = DataState::kFound};
  std::string hashes;
  for (const std::string& name : names) {
    if (!name.ends_with(".txt")) continue;
    KV_ASSIGN(const std::string text, checker.files().read_file(checker.directory() + "/haystack/" + name));
    hashes += name + hash_bytes(text);
    ++check.records;
  }
  check.hash = hash_bytes(hashes);
  if (const Result<Haystack> haystack = load_haystack(checker.files(), checker.directory(), essays_dir); !haystack.ok()) {
    check.state = DataState::kDamaged;
    check.note = haystack.status().message();
  }
  checker.add(std::move(check));
  return {};
}

}  // namespace

std::string_view data_state_name(DataState state) {
  switch (state) {
    case DataState::kFound: return "found";
    case DataState::kMissing: return "missing";
    case DataState::kDamaged: return "damaged";
    case DataState::kRefused: return "refused";
  }
  KV_CHECK(false);
}

Result<std::vector<DataSetCheck>> check_data(FileSystem& files, const std::string& directory, const std::string& essays_dir) {
  if (!files.exists(directory)) {
    return bad_input(fmt::format("The folder {} is not there; name the one that holds longbench/, longproc/, ...", directory));
  }
  Checker checker(files, directory);
  KV_TRY(check_haystack(checker, essays_dir));
  KV_TRY(check_text2json(checker));
  KV_TRY(check_longbench(checker));
  KV_TRY(check_needlebench(checker));
  KV_TRY(check_longproc(checker));
  KV_TRY(check_loong(checker));
  return checker.take();
}

}  // namespace kvartet
