#include "bench/tasks/loong.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/json_lines.h"
#include "bench/metrics/structured_answer.h"
#include "bench/tasks/generated_document.h"
#include "bench/tasks/generated_task.h"
#include "bench/tasks/whole_records.h"
#include "core/counted.h"

namespace kvartet {
namespace {

constexpr std::string_view kLanguages[] = {"en", "zh", "all"};
constexpr std::string_view kDocsMark = "{docs}";
constexpr int kNewTokens = 512;

struct LoongRecord {
  int line = 0;
  std::string id;
  std::string type;  // financial, legal, paper
  int level = 0;
  std::string question;
  std::string instruction;
  std::string prompt_template;
  std::vector<std::string> docs;
  std::string answer;  // JSON
};

Result<int> number_field(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found != object.end() && found->is_number_integer()) return found->get<int>();
  if (found != object.end() && found->is_string() && found->get<std::string>().size() == 1)
    return found->get<std::string>()[0] - '0';
  return bad_input(fmt::format("field {} is missing or no number", key));
}

Result<LoongRecord> record_of(const nlohmann::json& object, int line) {
  LoongRecord record;
  record.line = line;
  KV_ASSIGN(record.id, id_field(object));
  if (record.id.empty()) record.id = fmt::format("line {}", line);
  KV_ASSIGN(record.type, text_field(object, "type"));
  KV_ASSIGN(record.level, number_field(object, "level"));
  KV_ASSIGN(record.question, text_field(object, "question"));
  KV_ASSIGN(record.instruction, text_field(object, "instruction"));
  KV_ASSIGN(record.prompt_template, text_field(object, "prompt_template"));
  KV_ASSIGN(record.docs, text_or_list_field(object, "doc"));
  const auto answer = object.find("answer");
  if (answer == object.end()) return bad_input("field answer is missing");
  record.answer = answer->is_string() ? answer->get<std::string>() : answer->dump();
  if (record.prompt_template.find(kDocsMark) == std::string::npos)
    return bad_input(fmt::format("the prompt_template has no {}", kDocsMark));
  return record;
}

std::string replaced(std::string text, std::string_view mark, std::string_view value) {
  const std::size_t at = text.find(mark);
  return at == std::string::npos ? text : text.replace(at, mark.size(), value);
}

// The three ways in which Loong stores its documents.
class Documents {
 public:
  Documents(FileSystem& files, std::string folder) : files_(files), folder_(std::move(folder)) {}

  Result<std::string> text(const LoongRecord& record) {
    std::string out;
    for (std::size_t i = 0; i < record.docs.size(); ++i) {
      KV_ASSIGN(const std::string document, one(record, record.docs[i], i));
      out += document + "\n\n";
    }
    return out;
  }

 private:
  Result<std::string> one(const LoongRecord& record, const std::string& name, std::size_t index) {
    if (name.empty() || name.find('/') != std::string::npos) return bad_input(fmt::format("doc {} is no file name", index + 1));
    if (record.type == "financial") return financial(record, name);
    if (record.type == "paper") return paper(name);
    if (record.type == "legal") return legal(name, index);
    return bad_input(fmt::format("type {} is none of financial, legal, paper", record.type));
  }

  // Named by a part of the file name; below level 4 the year 2024 is meant.
  Result<std::string> financial(const LoongRecord& record, const std::string& name) {
    const std::string part = record.level == 4 ? name : "2024-" + name;
    if (financial_names_.empty()) {
      KV_ASSIGN(financial_names_, files_.list(folder_ + "/financial"));
    }
    for (const std::string& file : financial_names_) {
      if (!file.ends_with(".txt") || file.find(part) == std::string::npos) continue;
      KV_ASSIGN(const std::string text, files_.read_file(folder_ + "/financial/" + file));
      const std::string stem = file.substr(0, file.size() - 4);
      const std::size_t dash = stem.rfind('-');
      return fmt::format("\xE3\x80\x8A{}\xE3\x80\x8B\n{}", dash == std::string::npos ? stem : stem.substr(dash + 1), text);
    }
    return bad_input(fmt::format("no file of {}/financial has {} in its name", folder_, part));
  }

  Result<std::string> paper(const std::string& name) {
    KV_ASSIGN(const std::string text, files_.read_file(folder_ + "/paper/" + name));
    std::string title = text.substr(0, text.find('\n'));
    title.erase(0, std::min(title.find_first_not_of("# \t"), title.size()));
    return title + "\n" + text;
  }

  Result<std::string> legal(const std::string& name, std::size_t index) {
    if (judgments_.is_null()) {
      const std::string path = folder_ + "/legal/legal.json";
      KV_ASSIGN(const std::string text, files_.read_file(path));
      judgments_ = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (!judgments_.is_object()) return bad_input(fmt::format("{} is not a JSON object", path));
    }
    const auto found = judgments_.find(name);
    if (found == judgments_.end() || !found->is_object()) return bad_input(fmt::format("legal.json has no document {}", name));
    KV_ASSIGN(const std::string content, text_field(*found, "content"));
    KV_ASSIGN(const std::string result, text_field(*found, "result"));
    return fmt::format("\xE3\x80\x8A\xE5\x88\xA4\xE5\x86\xB3\xE6\x96\x87\xE4\xB9\xA6{}\xE3\x80\x8B\n{}{}", index + 1, content,
                       result);
  }

  FileSystem& files_;
  std::string folder_;
  std::vector<std::string> financial_names_;
  nlohmann::json judgments_;
};

class Loong : public Task {
 public:
  explicit Loong(std::string language) : language_(std::move(language)) {}
  std::string spec() const override { return fmt::format("loong:language={}", language_); }
  std::string metric() const override { return "structured"; }

  Result<SampleSet> samples(const TaskRequest& request) const override {
    if (request.data_dir.empty())
      return usage_error(fmt::format("{} reads Loong's files: give --data DIR, the folder that holds loong/", spec()));
    const std::string path = request.data_dir + "/loong/loong.jsonl";
    KV_ASSIGN(const std::string text, request.files->read_file(path));
    std::vector<LoongRecord> records;
    int judged = 0;
    int first_judged = 0;
    std::vector<SkippedLine> skipped = read_json_lines(text, path, [&](int line, const nlohmann::json& object) -> Status {
      KV_ASSIGN(const std::string language, text_field(object, "language"));
      if (language_ != "all" && language != language_) return {};
      KV_ASSIGN(LoongRecord record, record_of(object, line));
      if (!is_structured(record.answer)) {
        if (judged++ == 0) first_judged = line;
        return {};
      }
      records.push_back(std::move(record));
      return {};
    });
    if (judged > 0) {
      skipped.push_back(
          {path, first_judged,
           fmt::format("from here on {} with an answer in words, which only a judge model can rate", counted(judged, "record"))});
    }
    if (records.empty()) {
      if (skipped.empty()) return bad_input(fmt::format("{} holds no records in the language {}", path, language_));
      return bad_input(fmt::format("{} holds no record that can be scored; the first: {}: {}", path, skipped.front().where(),
                                   skipped.front().reason));
    }
    Documents documents(*request.files, request.data_dir + "/loong/doc");
    KV_ASSIGN(SampleSet set, whole_records(
                                 request, path, records.size(), [&](std::size_t i) { return sample_of(records[i], documents); },
                                 [&](std::size_t i) { return records[i].line; }));
    set.skipped.insert(set.skipped.begin(), skipped.begin(), skipped.end());
    return set;
  }

 private:
  static Result<Sample> sample_of(const LoongRecord& record, Documents& documents) {
    const std::string filled =
        replaced(replaced(record.prompt_template, "{question}", record.question), "{instruction}", record.instruction);
    const std::size_t cut = filled.find(kDocsMark);
    if (cut == std::string::npos) return bad_input(fmt::format("the filled prompt_template has no {}", kDocsMark));
    Sample sample;
    sample.id = record.id;
    sample.before = filled.substr(0, cut);
    KV_ASSIGN(sample.document, documents.text(record));
    sample.question = filled.substr(cut + kDocsMark.size());
    sample.gold = record.answer;
    sample.answers = {record.answer};
    sample.length = word_count(sample.document);
    sample.max_new_tokens = kNewTokens;
    return sample;
  }

  std::string language_;
};

Result<std::unique_ptr<Task>> make_loong(const TaskSpec& spec) {
  if (!spec.set.empty()) return usage_error(fmt::format("The task loong has no set '{}'.", spec.set));
  TaskKeys keys(spec);
  const std::string language = keys.word("language", kLanguages);
  KV_TRY(keys.status());
  return std::unique_ptr<Task>(std::make_unique<Loong>(language));
}

}  // namespace

TaskEntry loong_task() {
  return {.name = "loong",
          .keys = "language=en",
          .metric = "structured",
          .summary = "Loong's records that need no judge, from your own copy of its files (--data)",
          .make = make_loong};
}

}  // namespace kvartet
