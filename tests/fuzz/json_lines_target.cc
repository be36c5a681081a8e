// JSON lines in every form that is read: no line may vanish, every score lies in [0, 100].
//
// The first byte chooses the reader, the second one the metric or data set, the rest is the file.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/json_lines.h"
#include "bench/metrics/metric.h"
#include "bench/score.h"
#include "bench/tasks/data_check.h"
#include "bench/tasks/longbench.h"
#include "bench/tasks/task.h"
#include "core/check.h"
#include "core/memory_file_system.h"
#include "targets.h"

namespace kvartet::fuzz {
namespace {

constexpr const char* kFile = "f.jsonl";
constexpr const char* kRecord = R"({"input":"q","context":"c","answers":["a"]})";

// Lines that hold anything, as docs/formats/predictions.md counts them.
std::size_t lines_with_content(std::string_view text) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) return 1;  // UTF-16 is one defect
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  std::size_t count = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (text.substr(0, end).find_first_not_of(" \t\r\v\f") != text.npos) ++count;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return count;
}

void check_refusal(const Status& status) {
  KV_CHECK(status.code() == Code::kBadInput || status.code() == Code::kUsage);
  KV_CHECK(!status.message().empty());
}

void feed_fields(std::string_view text) {
  std::size_t used = 0;
  const std::vector<SkippedLine> skipped = read_json_lines(text, kFile, [&](int, const nlohmann::json& object) -> Status {
    KV_TRY(id_field(object).status());
    KV_TRY(length_field(object).status());
    KV_ASSIGN(const auto list, json_list_field(object, "answers"));
    KV_ASSIGN(const auto texts, text_or_list_field(object, "answers"));
    KV_CHECK(list.size() == texts.size() || texts.empty());  // null is no text, but a JSON value
    KV_ASSIGN(const auto strict, text_list_field(object, "answers"));
    KV_CHECK(strict == texts);
    ++used;
    return {};
  });
  KV_CHECK(used + skipped.size() == lines_with_content(text));
}

TaskRequest request_of(FileSystem& files) {
  TaskRequest request;
  request.data_dir = "data";
  request.files = &files;
  request.count_tokens = [](std::string_view words) -> Result<int> { return static_cast<int>(words.size()); };
  return request;
}

void put(FileSystem& files, const std::string& path, std::string_view text) {
  KV_CHECK(files.make_directories(path.substr(0, path.rfind('/'))).ok());
  KV_CHECK(write_file_atomically(files, path, text).ok());
}

// `every_line`: each line with content is a sample or a skipped line.
void read_samples(const Task& task, FileSystem& files, std::string_view text, bool every_line) {
  const Result<SampleSet> set = task.samples(request_of(files));
  if (!set.ok()) return check_refusal(set.status());
  KV_CHECK(!every_line || set->samples.size() + set->skipped.size() == lines_with_content(text));
  for (const Sample& sample : set->samples) KV_CHECK(!sample.answers.empty() && !sample.id.empty());
}

std::string_view metric_at(unsigned char choice) { return metrics()[choice % metrics().size()].name; }

void feed_own_file(unsigned char choice, std::string_view text) {
  MemoryFileSystem files;
  put(files, "data/f.jsonl", text);
  const Result<std::unique_ptr<Task>> task = make_task("data/f.jsonl", metric_at(choice));
  KV_CHECK(task.ok());
  read_samples(**task, files, text, true);
}

void feed_longbench(unsigned char choice, std::string_view text) {
  const std::string set(longbench_sets()[choice % longbench_sets().size()].name);
  MemoryFileSystem files;
  put(files, "data/longbench/" + set + ".jsonl", text);
  nlohmann::json prompts;
  prompts[set] = "Read {context} and answer: {input}";
  nlohmann::json lengths;
  lengths[set] = 32;
  put(files, "data/longbench/config/dataset2prompt.json", prompts.dump());
  put(files, "data/longbench/config/dataset2maxlen.json", lengths.dump());
  const Result<std::unique_ptr<Task>> task = make_task("longbench/" + set);
  KV_CHECK(task.ok());
  read_samples(**task, files, text, true);
}

void feed_longbench_configuration(unsigned char choice, std::string_view text) {
  MemoryFileSystem files;
  put(files, "data/longbench/qasper.jsonl", kRecord);
  put(files, "data/longbench/config/dataset2prompt.json", choice % 2 == 0 ? text : R"({"qasper":"{context} {input}"})");
  put(files, "data/longbench/config/dataset2maxlen.json", choice % 2 == 1 ? text : R"({"qasper":32})");
  const Result<std::unique_ptr<Task>> task = make_task("longbench/qasper");
  KV_CHECK(task.ok());
  read_samples(**task, files, kRecord, true);
}

void feed_predictions(unsigned char choice, std::string_view text) {
  const std::size_t sets = longbench_sets().size();
  const std::size_t index = choice % (sets + metrics().size());
  const Result<std::unique_ptr<Task>> task = index < sets ? make_task("longbench/" + std::string(longbench_sets()[index].name))
                                                          : make_task("data/f.jsonl", metrics()[index - sets].name);
  KV_CHECK(task.ok());
  const Result<ScoreReport> report = score_predictions(**task, text, kFile);
  if (!report.ok()) return check_refusal(report.status());
  KV_CHECK(static_cast<std::size_t>(report->n) + report->skipped.size() == lines_with_content(text));
  KV_CHECK(std::isfinite(report->score) && report->score >= 0 && report->score <= 100);
  for (const ScorePartMean& part : report->parts) KV_CHECK(std::isfinite(part.percent));
}

// The text under every name at which some reader looks; the check of a data folder reads them all.
void feed_data_folder(std::string_view text) {
  MemoryFileSystem files;
  KV_CHECK(files.make_directories("data").ok());
  const Result<std::vector<DataSetCheck>> known = check_data(files, "data", "models/haystack");
  KV_CHECK(known.ok());
  for (const DataSetCheck& set : *known) {
    if (set.path != "haystack") put(files, "data/" + set.path, text);  // that is a folder
  }
  const Result<std::vector<DataSetCheck>> found = check_data(files, "data", "models/haystack");
  if (!found.ok()) return check_refusal(found.status());
  for (const DataSetCheck& set : *found) KV_CHECK(set.records >= 0 && set.unusable >= 0);
}

}  // namespace

void feed_json_lines(std::string_view bytes) {
  if (bytes.size() < 2) return;
  const auto choice = static_cast<unsigned char>(bytes[1]);
  const std::string_view text = bytes.substr(2);
  switch (bytes[0]) {
    case 'o': return feed_own_file(choice, text);
    case 'l': return feed_longbench(choice, text);
    case 'c': return feed_longbench_configuration(choice, text);
    case 'p': return feed_predictions(choice, text);
    case 'd': return feed_data_folder(text);
    default: return feed_fields(text);
  }
}

}  // namespace kvartet::fuzz
