#include "bench/tasks/longproc.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/json_lines.h"
#include "bench/metrics/table_rows.h"
#include "bench/tasks/generated_document.h"
#include "bench/tasks/generated_task.h"
#include "bench/tasks/prompt_template.h"
#include "bench/tasks/whole_records.h"

namespace kvartet {
namespace {

constexpr std::string_view kGroups[] = {"8k", "2k", "0.5k"};
constexpr std::string_view kPageMark = "{html_str}";

// LongProc's limits of its three output groups.
int new_tokens(std::string_view group) { return group == "8k" ? 9216 : group == "2k" ? 3072 : 1024; }

// The prompt, cut where the page comes.
struct PagePrompt {
  std::string before;
  std::string behind;
};

Result<PagePrompt> read_prompt(FileSystem& files, const std::string& path) {
  KV_ASSIGN(const std::string yaml, files.read_file(path));
  Result<std::string> text = yaml_block(yaml, "USER_PROMPT");
  if (!text.ok()) return std::move(text).status().within(path);
  const std::size_t cut = text->find(kPageMark);
  if (cut == std::string::npos) return bad_input(fmt::format("the prompt in {} has no {}", path, kPageMark));
  return PagePrompt{text->substr(0, cut), text->substr(cut + kPageMark.size())};
}

class HtmlToTsv : public Task {
 public:
  explicit HtmlToTsv(std::string group) : group_(std::move(group)) {}
  std::string spec() const override { return fmt::format("longproc/html_to_tsv:group={}", group_); }
  std::string metric() const override { return "tsv_rows"; }

  Result<SampleSet> samples(const TaskRequest& request) const override {
    if (request.data_dir.empty())
      return usage_error(fmt::format("{} reads LongProc's files: give --data DIR, the folder that holds longproc/", spec()));
    FileSystem& files = *request.files;
    const std::string folder = request.data_dir + "/longproc";
    const std::string path = fmt::format("{}/html_to_tsv_{}.json", folder, group_);
    KV_TRY(check_group(files, folder, path));
    KV_ASSIGN(const PagePrompt prompt, read_prompt(files, folder + "/prompts.yaml"));
    KV_ASSIGN(const std::string text, files.read_file(path));
    const nlohmann::json list = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!list.is_array())
      return bad_input(fmt::format("{} is not a JSON list of records; take the file from the LongProc repository", path));
    return whole_records(
        request, path, list.size(), [&](std::size_t i) { return sample_of(files, folder, prompt, list[i]); },
        [](std::size_t i) { return static_cast<int>(i) + 1; });
  }

 private:
  // Another group may be there.
  Status check_group(FileSystem& files, const std::string& folder, const std::string& path) const {
    if (files.exists(path)) return {};
    for (const std::string_view other : kGroups) {
      if (files.exists(fmt::format("{}/html_to_tsv_{}.json", folder, other))) {
        return bad_input(
            fmt::format("{} is not there, but the group {} is: write longproc/html_to_tsv:group={}", path, other, other));
      }
    }
    return bad_input(
        fmt::format("{} is not there; put LongProc's html_to_tsv files, their pages and prompts.yaml into {}", path, folder));
  }

  Result<Sample> sample_of(FileSystem& files, const std::string& folder, const PagePrompt& prompt,
                           const nlohmann::json& record) const {
    if (!record.is_object()) return bad_input(fmt::format("a JSON {} where an object is needed", record.type_name()));
    std::map<std::string, std::string, std::less<>> fields;
    for (const char* name : {"task_topic", "task_description", "filtering_instruction", "tsv_header"}) {
      KV_ASSIGN(fields[name], text_field(record, name));
    }
    Sample sample;
    KV_ASSIGN(sample.id, text_field(record, "task_id"));
    KV_ASSIGN(sample.gold, text_field(record, "gt"));
    KV_ASSIGN(const std::string page, text_field(record, "html_path"));
    if (page.starts_with('/') || page.find("..") != std::string::npos)
      return bad_input(fmt::format("html_path {} leaves the folder", page));
    KV_ASSIGN(sample.document, files.read_file(folder + "/" + page));
    KV_ASSIGN(sample.before, fill_template(prompt.before, fields));
    KV_ASSIGN(sample.question, fill_template(prompt.behind, fields));
    if (score_table(sample.gold, sample.gold).f1 < 1) return bad_input("field gt is not a table with a header and rows");
    sample.answers = {sample.gold};
    sample.length = word_count(sample.document);
    sample.max_new_tokens = new_tokens(group_);
    return sample;
  }

  std::string group_;
};

Result<std::unique_ptr<Task>> make_html_to_tsv(const TaskSpec& spec) {
  TaskKeys keys(spec);
  const std::string group = keys.word("group", kGroups);
  KV_TRY(keys.status());
  return std::unique_ptr<Task>(std::make_unique<HtmlToTsv>(group));
}

}  // namespace

TaskEntry html_to_tsv_task() {
  return {.name = "longproc/html_to_tsv",
          .keys = "group=8k",
          .metric = "tsv_rows",
          .summary = "LongProc: a web page's items as a table, from your own copy of its files (--data)",
          .make = make_html_to_tsv};
}

}  // namespace kvartet
