#include "report/page.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "report/page_parts.h"

namespace kvartet {
namespace {

// Nothing may be loaded from anywhere, whatever the page says.
constexpr const char* kPolicy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

// JSON may stand in a script element once nothing in it can end that element.
std::string json_for_script(const nlohmann::json& json) {
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

std::string headline(const StoredResults& results) {
  if (results.runs.empty()) return "Kvartet report";
  const RunIdentity& id = results.runs.front().identity;
  return fmt::format("Key-value caches on {}", id.model_name);
}

void write_head(Html& out, const std::string& title) {
  out.open("head");
  out.empty("meta", {{"charset", "utf-8"}});
  out.empty("meta", {{"http-equiv", "Content-Security-Policy"}, {"content", kPolicy}});
  out.empty("meta", {{"name", "viewport"}, {"content", "width=device-width, initial-scale=1"}});
  out.empty("meta", {{"name", "color-scheme"}, {"content", "light dark"}});
  out.element("title", title + " - Kvartet report");
  out.open("style").constant(kPageStyle).close();
  out.close();
}

void write_header(Html& out, const StoredResults& results, const std::string& title) {
  out.open("header");
  out.element("h1", title);
  if (!results.runs.empty()) {
    const RunRecord& run = results.runs.front();
    std::set<std::string> machines;
    for (const RunRecord& r : results.runs) machines.insert(r.machine.cpu);
    std::string where = machines.size() == 1 ? run.machine.cpu : fmt::format("{} kinds of machine", machines.size());
    out.element(
        "p",
        fmt::format("{}. {} {} and {} {}, measured on {}, from {} on. Kvartet {}.", run.identity.model_shape,
                    grouped(static_cast<double>(results.samples.size())), results.samples.size() == 1 ? "sample" : "samples",
                    grouped(static_cast<double>(results.outcomes.size())), results.outcomes.size() == 1 ? "answer" : "answers",
                    where, run.started.substr(0, 10), run.identity.version));
  }
  out.close();
}

// One entry for each task, with its lengths as links: a study has dozens of tables.
void write_table_links(Html& out, const PageContext& page) {
  std::vector<std::string> tasks;
  for (const PageTable& t : page.tables)
    if (std::ranges::find(tasks, t.task) == tasks.end()) tasks.push_back(t.task);
  for (const std::string& task : tasks) {
    out.open("li").text(task + ": ");
    for (const PageTable& t : page.tables) {
      if (t.task != task) continue;
      const std::string length = grouped(t.context);
      const std::string suffix = question_suffix(t.position);
      out.element("a", length + suffix,
                  {{"href", "#" + t.id}, {"aria-label", fmt::format("{}, {} tokens{}", task, length, suffix)}})
          .text(" ");
    }
    out.close();
  }
}

void write_contents(Html& out, const PageContext& page, bool depth, const PageRequest& request) {
  out.open("nav", {{"aria-label", "Contents"}}).open("ul");
  const auto link = [&](const std::string& id, const std::string& text) {
    out.open("li").element("a", text, {{"href", "#" + id}}).close();
  };
  link("answers", "Short answer");
  if (!request.decisions.empty()) link("decisions", "Which cache to take");
  if (!request.claims.empty()) link("claims", "Claims of the papers");
  write_table_links(out, page);
  link("contexts", "By length");
  if (depth) link("depths", "By depth");
  if (!request.diagnoses.empty()) link("selection", "Which rows are found");
  if (!request.speeds.empty()) link("speed", "Speed by depth");
  link("run", "What was run");
  link("guide", "How to read this");
  out.close().close();
}

void filter_group(Html& out, const std::string& kind, const std::string& legend,
                  const std::vector<std::pair<std::string, std::string>>& choices) {
  if (choices.size() < 2) return;
  out.open("fieldset").element("legend", legend);
  for (const auto& [value, label] : choices) {
    out.open("label");
    out.empty("input", {{"type", "checkbox"}, {"name", kind}, {"value", value}, {"checked", ""}});
    out.text(" " + label).close();
  }
  out.close();
}

// Hidden until the script shows it: without scripts it could do nothing.
void write_filters(Html& out, const PageContext& page) {
  std::vector<std::pair<std::string, std::string>> tasks, contexts, caches;
  std::set<std::string> seen;
  std::set<int> lengths;
  for (const PageTable& t : page.tables) {
    if (seen.insert(t.task).second) tasks.emplace_back(t.task, t.task);
    lengths.insert(t.context);
  }
  for (const int length : lengths) contexts.emplace_back(std::to_string(length), grouped(length));
  for (const std::string& spec : page.specs) caches.emplace_back(spec, page.name(spec));
  out.open("form", {{"id", "filters"}, {"hidden", ""}, {"aria-label", "Choose what is shown"}});
  out.open("details").element("summary", "Choose what is shown");
  filter_group(out, "task", "Tasks", tasks);
  filter_group(out, "context", "Room for prompt and answer, in tokens", contexts);
  filter_group(out, "spec", "Caches", caches);
  out.element("button", "Show everything", {{"type", "reset"}});
  out.close();
  out.element("p", "", {{"id", "shown"}, {"role", "status"}});
  out.close();
}

void write_caveats(Html& out, const PageContext& page, const PageRequest& request) {
  std::vector<std::string> caveats = request.notes;
  for (std::string& caveat : report_caveats(page.results, page.rows)) caveats.push_back(std::move(caveat));
  if (caveats.empty()) return;
  out.open("section", {{"aria-labelledby", "caveats"}});
  out.element("h2", "Know before you compare", {{"id", "caveats"}});
  out.open("ul");
  for (const std::string& caveat : caveats) out.element("li", caveat);
  out.close().close();
}

}  // namespace

PageContext::PageContext(const StoredResults& stored, std::span<const ReportRow> all)
    : results(stored), rows(all), specs(specs_of(stored)), names(short_names(specs)), positions(position_rows(stored)) {
  for (std::size_t i = 0; i < specs.size(); ++i) styles[specs[i]] = static_cast<int>(i);
  for (RowTable& table : tables_of(rows)) {
    std::ranges::stable_sort(table.rows, {}, [&](const ReportRow* row) { return styles.at(row->spec); });
    const Cell& at = table.cell;
    tables.push_back({at.task, at.context, at.position, fmt::format("table-{}", tables.size() + 1), std::move(table.rows)});
  }
}

std::string report_page(const StoredResults& results, std::span<const ReportRow> rows, const PageRequest& request) {
  const PageContext page(results, rows);
  const std::string title = headline(results);
  const bool depth = !depth_rows(results).empty();
  Html out;
  out.constant("<!DOCTYPE html>\n");
  out.open("html", {{"lang", "en"}});
  write_head(out, title);
  out.open("body");
  out.element("a", "Skip to the short answer", {{"class", "skip"}, {"href", "#answers"}});
  write_header(out, results, title);
  write_contents(out, page, depth, request);
  out.open("main");
  write_answers(out, page);
  write_caveats(out, page, request);
  write_decisions_section(out, request.decisions);
  write_claims_section(out, page, request.claims);
  write_filters(out, page);
  for (const PageTable& table : page.tables) write_task_section(out, page, table);
  write_context_section(out, page);
  if (depth) write_depth_section(out, page);
  if (!request.diagnoses.empty()) write_diagnosis_section(out, request.diagnoses);
  if (!request.speeds.empty()) write_speed_section(out, request.speeds);
  write_run_section(out, page, request.folders);
  write_guide(out);
  out.close();
  out.open("script", {{"type", "application/json"}, {"id", "data"}})
      .constant(json_for_script(report_json(results, rows)))
      .close();
  out.open("script").constant(kPageScript).close();
  out.close().close();
  return out.take();
}

}  // namespace kvartet
