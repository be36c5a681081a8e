// The section that holds the papers' claims against these results.
#include "report/page_parts.h"

namespace kvartet {
namespace {

const char* result_class(ClaimResult result) {
  switch (result) {
    case ClaimResult::kReproduced: return "verdict same";
    case ClaimResult::kNotReproduced: return "verdict worse";
    case ClaimResult::kNotMeasurable: return "verdict open";
  }
  return "";
}

std::string interval_of(const ClaimRow& row) {
  return row.low && row.high ? interval_text(*row.low, *row.high, row.decimals) : "–";
}

void write_claim(Html& out, const ClaimRow& row) {
  out.open("tr");
  out.open("th", {{"scope", "row"}, {"class", "words"}}).text(row.claim).close();
  out.element("td", claim_result_name(row.result), {{"class", result_class(row.result)}});
  cell(out, interval_of(row));
  cell(out, row.n > 0 ? std::to_string(row.n) : "–");
  out.open("td", {{"class", "words"}});
  if (!row.figure.empty()) out.text(row.figure + ": ");
  out.text(row.reason);
  out.close();
  out.close();
}

void write_study(Html& out, const PageContext& page, const StudyClaims& study) {
  out.element("h3", study.title);
  out.element("p", study.form);
  open_table(out, "Each claim, decided by its rule on the stored outcomes",
             {"claim", "here", "95 % interval", "n", "of what, and why"});
  for (const ClaimRow& row : study.rows) write_claim(out, row);
  close_table(out);
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
