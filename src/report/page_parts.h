// The sections of the page (report/page.h) and what they share.
#pragma once

#include <fmt/format.h>

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/bytes_text.h"
#include "report/breakdown.h"
#include "report/cautions.h"
#include "report/chart.h"
#include "report/claims.h"
#include "report/decisions.h"
#include "report/diagnosis.h"
#include "report/findings.h"
#include "report/html.h"
#include "report/names.h"
#include "report/positions.h"
#include "report/rows.h"
#include "report/speed_curves.h"

namespace kvartet {

// One cell: the unit of a section and of its tables.
struct PageTable {
  std::string task;
  int context = 0;
  QuestionPosition position = QuestionPosition::kSeen;
  std::string id;
  std::vector<const ReportRow*> rows;  // `full` first

  Cell cell() const { return {task, context, position}; }
};

struct PageContext {
  const StoredResults& results;
  std::span<const ReportRow> rows;
  std::vector<std::string> specs;            // `full` first
  std::map<std::string, std::string> names;  // short
  std::map<std::string, int> styles;
  std::vector<PageTable> tables;
  std::vector<PositionRow> positions;  // of the questions that ran seen and in another position

  PageContext(const StoredResults& stored, std::span<const ReportRow> all);
  const std::string& name(const std::string& spec) const { return names.at(spec); }
  bool reference(const std::string& spec) const { return spec == kReference; }
};

// A table that scrolls sideways by itself, also by keyboard.
void open_table(Html& out, std::string_view caption, const std::vector<std::string>& columns);
void close_table(Html& out);
void open_cache_row(Html& out, const PageContext& page, const std::string& spec);  // <tr> with its <th scope=row>
void write_name(Html& out, std::string_view name);                                 // of a cache, which may break behind its parts
void cell(Html& out, std::string_view text);
void verdict_cell(Html& out, Verdict verdict);
std::string interval_or_dash(const Measured& m, int decimals);
std::string number_or_dash(const std::optional<double>& x, int decimals);

// The chart of one measure against one price. Fewer than two caches that have both give none.
struct ScatterWish {
  std::string id;
  std::string title;
  bool likelihood = true;     // else the score
  bool against_rate = false;  // decode rate, else compression ratio
};
void write_tradeoff(Html& out, const PageContext& page, const PageTable& table, const ScatterWish& wish);

void write_answers(Html& out, const PageContext& page);
void write_solo_table(Html& out, const PageContext& page, const PageTable& table);
void write_position_table(Html& out, const PageContext& page, const PageTable& table);
void write_task_section(Html& out, const PageContext& page, const PageTable& table);
void write_samples(Html& out, const PageContext& page, const PageTable& table);
void write_context_section(Html& out, const PageContext& page);
void write_depth_section(Html& out, const PageContext& page);
void write_claims_section(Html& out, const PageContext& page, std::span<const StudyClaims> studies);
void write_decisions_section(Html& out, const Decisions& decisions);
void write_diagnosis_section(Html& out, std::span<const SelectionDiagnosis> diagnoses);
void write_speed_section(Html& out, std::span<const SpeedCurves> speeds);
void write_run_section(Html& out, const PageContext& page, const std::vector<std::string>& folders);
void write_guide(Html& out);

extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;

}  // namespace kvartet
