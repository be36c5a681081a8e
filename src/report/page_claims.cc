// The section that holds the papers' claims against these results.
#include <algorithm>
#include <map>

#include "report/evidence.h"
#include "report/page_parts.h"
#include "report/published_figures.h"

namespace kvartet {
namespace {

const char* result_class(ClaimResult result) {
  switch (result) {
    case ClaimResult::kReproduced: return "verdict same";
    case ClaimResult::kNotReproduced: return "verdict worse";
    case ClaimResult::kUndecided: return "verdict open";
    case ClaimResult::kNotRun: return "verdict not-run";
  }
  return "";
}

std::string interval_of(const ClaimRow& row) {
  if (!row.low || !row.high) return "–";
  if (row.is_difference) return interval_text(*row.low, *row.high, row.decimals);
  return range_text(*row.low, *row.high, row.decimals);
}

void write_claim(Html& out, const ClaimRow& row) {
  out.open("tr");
  out.open("th", {{"scope", "row"}, {"class", "words"}}).text(row.claim).close();
  out.open("td", {{"class", result_class(row.result)}}).text(claim_result_name(row.result));
  if (!row.limits.empty()) out.empty("br").element("span", row.limits, {{"class", "small"}});
  out.close();
  cell(out, interval_of(row));
  cell(out, row.n > 0 ? std::to_string(row.n) : "–");
  out.open("td", {{"class", "words"}});
  if (!row.figure.empty()) out.text(row.figure + ": ");
  out.text(row.reason);
  out.close();
  out.close();
}

// Mean scores of the caches over sets, all lengths together: the form of the paper's tables.
std::map<std::string, std::map<std::string, std::pair<double, int>>> score_sums(const StoredResults& results) {
  std::map<std::string, std::map<std::string, std::pair<double, int>>> out;
  const QuestionPosition position = claimed_position(results);
  for (const Outcome& o : results.outcomes) {
    if (o.failed() || !o.score || o.key.position != position) continue;
    auto& [sum, n] = out[o.spec][o.key.task];
    sum += 100 * *o.score;
    ++n;
  }
  return out;
}

void write_scores(Html& out, const PageContext& page, const StudyClaims& study) {
  const auto sums = score_sums(page.results);
  std::vector<std::string> tasks;
  for (const StoredTask& t : page.results.tasks) {
    if (std::ranges::any_of(sums, [&](const auto& entry) { return entry.second.contains(t.task); })) tasks.push_back(t.task);
  }
  if (tasks.empty()) return;
  const std::string published = page.results.runs.empty() ? "" : published_model(page.results.runs.front().identity.model_name);
  std::vector<std::string> columns = {"method"};
  columns.insert(columns.end(), tasks.begin(), tasks.end());
  open_table(out,
             published.empty()
                 ? "Mean score by set, all lengths together"
                 : fmt::format("Mean score by set, all lengths together; in brackets the paper's, of {} in 16 bits", published),
             columns);
  std::vector<std::pair<std::string, std::string>> methods = {{"full", "full"}};
  methods.insert(methods.end(), study.caches.begin(), study.caches.end());
  for (const auto& [method, spec] : methods) {
    const auto own = sums.find(spec);
    if (own == sums.end()) continue;
    out.open("tr").element("th", method, {{"scope", "row"}});
    for (const std::string& task : tasks) {
      const auto found = own->second.find(task);
      std::string text = found == own->second.end() ? "–" : fmt::format("{:.1f}", found->second.first / found->second.second);
      if (const auto paper = published_score(published, method, task)) text += fmt::format(" ({:.2f})", *paper);
      cell(out, text);
    }
    out.close();
  }
  close_table(out);
}

// The commands are long, and one may serve several claims: below the table, where they have room.
void write_to_run(Html& out, const StudyClaims& study) {
  std::vector<std::pair<std::string, std::vector<std::string>>> runs;  // command, claims
  for (const ClaimRow& row : study.rows) {
    if (row.to_run.empty()) continue;
    auto run = std::ranges::find(runs, row.to_run, &std::pair<std::string, std::vector<std::string>>::first);
    if (run == runs.end()) run = runs.insert(run, {row.to_run, {}});
    run->second.push_back(row.claim);
  }
  if (runs.empty()) return;
  out.element("h4", "What was not run here, and what would run it").open("dl");
  for (const auto& [command, claims] : runs) {
    for (const std::string& claim : claims) out.element("dt", claim);
    out.open("dd").element("code", command).close();
  }
  out.close();
}

void write_study(Html& out, const PageContext& page, const StudyClaims& study) {
  out.element("h3", study.title);
  out.element("p", study.form);
  open_table(out, "Each claim, decided by its rule on the stored outcomes",
             {"claim", "here", "95 % interval", "n", "of what, and why"});
  for (const ClaimRow& row : study.rows) write_claim(out, row);
  close_table(out);
  write_to_run(out, study);
  write_scores(out, page, study);
  out.open("details").element("summary", "The rules, and which cache stands for which method");
  out.open("dl");
  for (const ClaimRow& row : study.rows) out.element("dt", row.claim).element("dd", row.rule);
  for (const auto& [method, spec] : study.caches) {
    const auto name = page.names.find(spec);
    out.element("dt", name == page.names.end() ? method : fmt::format("{}: {}", method, name->second));
    out.open("dd").element("code", spec).close();
  }
  out.close().close();
}

}  // namespace

void write_claims_section(Html& out, const PageContext& page, std::span<const StudyClaims> studies) {
  if (studies.empty()) return;
  out.open("section", {{"aria-labelledby", "claims"}}).element("h2", "Claims of the papers", {{"id", "claims"}});
  for (const StudyClaims& study : studies) write_study(out, page, study);
  out.close();
}

}  // namespace kvartet
