#include "report/findings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/counted.h"
#include "report/cautions.h"
#include "report/pairing.h"
#include "report/positions.h"
#include "results/documents.h"

namespace kvartet {
namespace {

constexpr double kSmaller = 1.05;  // a ratio from which a cache is called smaller than f16

bool good_enough(Verdict verdict) { return verdict == Verdict::kSame || verdict == Verdict::kBetter; }

// How far beyond its margin a loss goes: makes points and nats comparable.
double severity(const Measured& m) { return m.verdict == Verdict::kWorse && m.difference ? -*m.difference / m.margin : 0; }

// Points alone say little where full itself has few of them.
std::string points_text(const Measured& score) {
  const std::string points = fmt::format("{} points", signed_text(*score.difference, 1));
  if (!score.reference || *score.reference <= 0 || *score.reference >= kWeakScore) return points;
  return fmt::format("{}, {} % of full's {:.1f}", points, signed_text(100 * *score.difference / *score.reference, 0),
                     *score.reference);
}

// What was lost of the measure that lost more, and where. That the other one lost nothing makes chance likelier, and is said.
std::string loss_text(const Measured& score, const Measured& likelihood, const std::string& where) {
  if (severity(likelihood) >= severity(score))
    return fmt::format("{} nats per token {}", signed_text(*likelihood.difference, 3), where);
  const std::string lost = fmt::format("{} {}", points_text(score), where);
  if (likelihood.verdict != Verdict::kSame) return lost;
  return fmt::format("{}, by score alone: its likelihood is the same ({} nats per token), so look whether this repeats", lost,
                     signed_text(*likelihood.difference, 3));
}

Loss judge(CacheFinding& finding, std::span<const ReportRow* const> tables) {
  if (finding.spec == kReference) return Loss::kReference;
  if (finding.pairs == 0) return finding.failed > 0 ? Loss::kFailed : Loss::kUndecided;
  const ReportRow* worst = nullptr;
  double most = 0;
  for (const ReportRow* row : tables) {
    const double here = std::max(severity(row->score), severity(row->likelihood));
    if (here <= most) continue;
    most = here;
    worst = row;
  }
  if (worst != nullptr) {
    finding.worst =
        loss_text(worst->score, worst->likelihood, fmt::format("on {} at {} tokens", worst->task, grouped(worst->context)));
    return Loss::kLoses;
  }
  if (std::max(severity(finding.score), severity(finding.likelihood)) > 0) {
    finding.worst = loss_text(finding.score, finding.likelihood, "over all samples");
    return Loss::kLoses;
  }
  const bool no_score = finding.score.verdict == Verdict::kNone;
  const bool no_likelihood = finding.likelihood.verdict == Verdict::kNone;
  const bool score_good = good_enough(finding.score.verdict);
  const bool likelihood_good = good_enough(finding.likelihood.verdict);
  if (no_likelihood) return score_good ? Loss::kAsGood : Loss::kUndecided;
  if (!likelihood_good) return Loss::kUndecided;
  return score_good || no_score ? Loss::kAsGood : Loss::kNoMeasuredLoss;
}

bool ran_alone(const ReportRow& row) { return row.solo && row.solo->runs > 0; }

// A table's row and that of `full` there.
struct CostPair {
  const ReportRow* mine = nullptr;
  const ReportRow* full = nullptr;
};

void add_times(CacheFinding& finding, std::vector<CostPair> pairs) {
  const auto alone = [](const CostPair& p) { return ran_alone(*p.mine) && ran_alone(*p.full); };
  const bool any_alone = std::ranges::any_of(pairs, alone);
  std::erase_if(pairs, [&](const CostPair& p) { return any_alone ? !alone(p) : !shared_times_compare(*p.mine, *p.full); });
  std::vector<double> extra, ttft, decode;
  for (const CostPair& p : pairs) {
    // Two caches compare only by times of one kind.
    const ShownTimes shared_mine = {p.mine->ttft_s, p.mine->decode_tokens_per_s, p.mine->shared};
    const ShownTimes shared_full = {p.full->ttft_s, p.full->decode_tokens_per_s, p.full->shared};
    const ShownTimes mine = any_alone ? shown_times(*p.mine) : shared_mine;
    const ShownTimes full = any_alone ? shown_times(*p.full) : shared_full;
    finding.shared = finding.shared || mine.shared;
    extra.push_back(mine.ttft_s - full.ttft_s);
    if (full.ttft_s > 0) ttft.push_back(mine.ttft_s / full.ttft_s);
    if (mine.decode_tokens_per_s && full.decode_tokens_per_s)
      decode.push_back(*mine.decode_tokens_per_s / *full.decode_tokens_per_s);
  }
  if (!extra.empty()) finding.extra_ttft_s = median(extra);
  if (!ttft.empty()) finding.ttft_factor = median(ttft);
  if (!decode.empty()) finding.decode_factor = median(decode);
}

void add_costs(CacheFinding& finding, std::span<const ReportRow* const> tables, const std::map<Cell, const ReportRow*>& full) {
  std::vector<double> ratios, fast;
  std::vector<CostPair> pairs;
  for (const ReportRow* row : tables) {
    if (row->n == 0) continue;
    ratios.push_back(row->compression_ratio);
    fast.push_back(row->fast_ratio);
    const auto it = full.find(row->cell());
    if (it == full.end() || it->second->n == 0 || it->second == row) continue;
    pairs.push_back({row, it->second});
  }
  if (!ratios.empty()) {
    finding.ratio_low = *std::ranges::min_element(ratios);
    finding.ratio_high = *std::ranges::max_element(ratios);
    for (double r : ratios) finding.ratio += r / static_cast<double>(ratios.size());
    for (double r : fast) finding.fast_ratio += r / static_cast<double>(fast.size());
  }
  add_times(finding, std::move(pairs));
}

std::string ratio_text(const CacheFinding& c) { return range_text(c.ratio_low, c.ratio_high, 1); }

std::string best_claim(const CacheFinding& c, const std::string& name) {
  const std::string loss =
      c.loss == Loss::kAsGood ? "loses nothing: it is shown to be as good as full" : "loses nothing measurable";
  // A loss that is measured, but smaller than what counts as one.
  const bool little = c.likelihood.high && *c.likelihood.high < 0;
  const std::string measured = !little
                                   ? loss
                                   : fmt::format("loses little: {:.3f} nats per token, within the {:.2f} that count as nothing",
                                                 -*c.likelihood.difference, c.likelihood.margin);
  return fmt::format("{} {}, and takes {} times less memory than an f16 cache.", name, measured, ratio_text(c));
}

std::string evidence_of(const CacheFinding& c, std::optional<double> full_score) {
  std::string out;
  if (c.likelihood.difference) {
    out += fmt::format("Likelihood of the reference answers: {} nats per token", signed_text(*c.likelihood.difference, 3));
    if (c.likelihood.low) out += fmt::format(" ({})", interval_text(*c.likelihood.low, *c.likelihood.high, 3));
    out += ". ";
  }
  if (c.score.difference) {
    out += fmt::format("Score: {} points", signed_text(*c.score.difference, 1));
    if (c.score.low) out += fmt::format(" ({})", interval_text(*c.score.low, *c.score.high, 1));
    if (c.score.verdict == Verdict::kNotMeasurable)
      out += fmt::format(", which {} cannot tell from nothing", counted(c.pairs, "sample"));
    if (full_score) out += fmt::format("; full scores {:.1f} of 100, so ±{:.1f} count as nothing", *full_score, c.score.margin);
    out += ".";
  }
  return out;
}

// Points of 100, over all samples of the kind.
std::optional<double> full_score(const WorkloadFinding& finding) {
  const auto full = std::ranges::find(finding.caches, Loss::kReference, &CacheFinding::loss);
  return full == finding.caches.end() ? std::nullopt : full->score.mean;
}

std::string cost_of(const CacheFinding& c) {
  std::string out;
  if (c.extra_ttft_s) {
    out += fmt::format("{} s to the first token", signed_text(*c.extra_ttft_s, 2));
    if (c.ttft_factor) out += fmt::format(" (×{:.2f})", *c.ttft_factor);
  }
  if (c.decode_factor) out += fmt::format("{}{:.2f} times full's rate while writing", out.empty() ? "" : ", ", *c.decode_factor);
  if (out.empty()) return out;
  out = "What it costs beside full: " + out + ".";
  if (c.shared)
    out +=
        " These times come from steps shared by all caches, so they hide differences in speed; runs alone ('kvartet bench ... "
        "--solo 5') show them.";
  else
    out += " Each cache was timed alone.";
  return out;
}

// What decides how near an undecided cache is to harmless; null when nothing was measured.
const Measured* deciding(const CacheFinding& c) {
  for (const Measured* m : {&c.likelihood, &c.score})
    if (m->low) return m;
  for (const Measured* m : {&c.likelihood, &c.score})
    if (m->difference) return m;
  return nullptr;
}

// Nearest first: those with an interval before those with a mean only, and those without either last.
struct Nearness {
  int known = 0;     // 0 an interval, 1 a mean, 2 nothing
  double reach = 0;  // of the loss that is still possible, in margins
  double ratio = 0;  // negative: of equals the smaller cache
  auto operator<=>(const Nearness&) const = default;
};

Nearness nearness_of(const CacheFinding& c) {
  const Measured* m = deciding(c);
  if (m == nullptr) return {2, 0, -c.ratio};
  return {m->low ? 0 : 1, -(m->low ? *m->low : *m->difference) / m->margin, -c.ratio};
}

// Of the caches for which it is decided.
std::string next_question_text(const WorkloadFinding& finding, const std::map<std::string, std::string>& names) {
  std::vector<std::string> lose, same;
  for (const CacheFinding& c : finding.caches) {
    const Measured& m = c.next_question;
    if (m.verdict == Verdict::kWorse) {
      lose.push_back(fmt::format("{} loses {:.3f} nats per token more ({})", names.at(c.spec), -*m.difference,
                                 range_text(-*m.high, -*m.low, 3)));
    } else if (good_enough(m.verdict)) {
      same.push_back(names.at(c.spec));
    }
  }
  if (!same.empty()) {
    lose.push_back(fmt::format("{} {} no more than the {:.2f} that count as nothing", fmt::join(same, ", "),
                               same.size() == 1 ? "loses" : "lose", kLikelihoodMargin));
  }
  if (lose.empty()) return "";
  return fmt::format("What choosing rows for one question cost the next one: asked second instead of seen, {}.",
                     fmt::join(lose, "; "));
}

// Only of caches that are smaller than f16, and only where it is a choice.
std::string nearest_text(const WorkloadFinding& finding, const std::map<std::string, std::string>& names) {
  std::vector<const CacheFinding*> list;
  for (const std::size_t i : finding.undecided) {
    const CacheFinding& c = finding.caches[i];
    if (c.ratio >= kSmaller && deciding(c) != nullptr) list.push_back(&c);
  }
  if (list.empty() || (finding.best && list.size() == 1)) return "";
  const CacheFinding& c = *list.front();
  const Measured& m = *deciding(c);
  const bool nats = &m == &c.likelihood;
  const std::string border = nats ? fmt::format("{:.2f} nats", m.margin) : fmt::format("{:.1f} points", m.margin);
  const std::string among = list.size() == 1 ? "Undecided, and" : fmt::format("Of {} undecided caches,", list.size());
  const bool gained = *m.difference > 0;
  return fmt::format(
      "{} {} is {} ({} times less memory){}: {}. It counts as {}the same once the whole interval lies within ±{}, which takes "
      "more samples.",
      among, gained ? "most promising" : "nearest to harmless", names.at(c.spec), ratio_text(c), gained ? ", which gained" : "",
      difference_text(c), gained ? "better once the whole interval lies above 0, as " : "", border);
}

// "±4.4 to 26.0 points" over the caches; "" where none has an interval.
std::string widths_text(const WorkloadFinding& finding, Measured CacheFinding::* measure, int decimals, const char* unit) {
  std::vector<double> half;
  for (const CacheFinding& c : finding.caches)
    if (const Measured& m = c.*measure; m.low && m.high) half.push_back((*m.high - *m.low) / 2);
  if (half.empty()) return "";
  const auto [low, high] = std::ranges::minmax(half);
  return fmt::format("±{} {}", range_text(low, high, decimals), unit);
}

std::string few_text(const WorkloadFinding& finding) {
  if (finding.documents >= kFewDocuments) return "";
  std::string out = "only " + counted(finding.samples, "sample");
  if (finding.documents != finding.samples) out += " about " + counted(finding.documents, "document");
  std::string widths = widths_text(finding, &CacheFinding::score, 1, "points");
  const std::string nats = widths_text(finding, &CacheFinding::likelihood, 3, "nats per token");
  if (!widths.empty() && !nats.empty()) widths += " and ";
  widths += nats;
  if (widths.empty()) return out + ", too few for any interval";
  return fmt::format("{}: the 95 % intervals of the differences are {} wide, and a smaller loss goes unseen", out, widths);
}

std::string other_text(const CacheFinding& c, const std::string& name) {
  switch (c.loss) {
    case Loss::kLoses: return fmt::format("{} ({} times less memory) loses: {}.", name, ratio_text(c), c.worst);
    case Loss::kAsGood:
    case Loss::kNoMeasuredLoss: return fmt::format("{} ({} times less memory): {}.", name, ratio_text(c), loss_name(c.loss));
    case Loss::kUndecided:
      if (deciding(c) == nullptr)
        return fmt::format("{} ({} times less memory): undecided, nothing to compare.", name, ratio_text(c));
      return fmt::format("{} ({} times less memory): undecided, {}; {} too few.", name, ratio_text(c), difference_text(c),
                         counted(c.pairs, "sample is", "samples are"));
    case Loss::kFailed:
      return c.failed == 1 ? fmt::format("{}: failed on its only sample.", name)
                           : fmt::format("{}: failed on all of its {} samples.", name, c.failed);
    case Loss::kReference: break;
  }
  return {};
}

// All but the reference and the answer: harmless, undecided, losing, failed; the undecided by nearness, the rest smallest first.
std::vector<const CacheFinding*> others_in_order(const WorkloadFinding& finding) {
  const auto group = [](Loss loss) {
    switch (loss) {
      case Loss::kUndecided: return 1;
      case Loss::kLoses: return 2;
      case Loss::kFailed: return 3;
      default: return 0;
    }
  };
  std::vector<const CacheFinding*> out;
  for (std::size_t i = 0; i < finding.caches.size(); ++i) {
    const CacheFinding& c = finding.caches[i];
    if (finding.best != i && c.loss != Loss::kReference && c.loss != Loss::kUndecided) out.push_back(&c);
  }
  std::ranges::stable_sort(out, std::greater<>(), [](const CacheFinding* c) { return c->ratio; });
  for (const std::size_t i : finding.undecided) out.push_back(&finding.caches[i]);
  std::ranges::stable_sort(out, {}, [&](const CacheFinding* c) { return group(c->loss); });
  return out;
}

}  // namespace

std::string difference_text(const CacheFinding& c) {
  const Measured* m = deciding(c);
  if (m == nullptr) return "";
  const bool nats = m == &c.likelihood;
  const int decimals = nats ? 3 : 1;
  const std::string mean = fmt::format("{} {}", signed_text(*m->difference, decimals), nats ? "nats per token" : "points");
  return m->low ? fmt::format("{} ({})", mean, interval_text(*m->low, *m->high, decimals)) : mean;
}

const char* loss_name(Loss loss) {
  switch (loss) {
    case Loss::kReference: return "reference";
    case Loss::kAsGood: return "as good as full";
    case Loss::kNoMeasuredLoss: return "no measured loss";
    case Loss::kLoses: return "loses";
    case Loss::kUndecided: return "undecided";
    case Loss::kFailed: return "failed";
  }
  return "";
}

std::vector<WorkloadFinding> find_answers(const StoredResults& results, std::span<const ReportRow> rows) {
  std::map<std::string, std::string> metric_of;
  for (const StoredTask& t : results.tasks) metric_of[t.task] = t.metric;
  const DocumentNumbers documents(results);
  const References full = references_of(results, kReference);
  const auto next_costs = next_question_costs(results);
  using Kind = std::pair<WorkKind, QuestionPosition>;
  std::map<Kind, std::map<std::string, std::vector<const Outcome*>>> done;
  for (const Outcome& o : results.outcomes) {
    if (o.failed()) continue;
    done[{workload_of(metric_of[o.key.task]), o.key.position}][o.spec].push_back(&o);
  }
  std::map<Cell, const ReportRow*> full_rows;
  std::map<Kind, std::vector<const ReportRow*>> tables;
  for (const ReportRow& row : rows) {
    if (row.spec == kReference) full_rows[row.cell()] = &row;
    tables[{workload_of(row.metric), row.position}].push_back(&row);
  }

  std::vector<WorkloadFinding> out;
  for (const auto& [kind, list] : tables) {
    const WorkKind workload = kind.first;
    WorkloadFinding finding;
    finding.workload = workload;
    finding.position = kind.second;
    std::set<int> contexts;
    for (const ReportRow* row : list) {
      if (std::ranges::find(finding.tasks, row->task) == finding.tasks.end()) finding.tasks.push_back(row->task);
      contexts.insert(row->context);
      finding.has_reference = finding.has_reference || (row->spec == kReference && row->n > 0);
    }
    finding.contexts.assign(contexts.begin(), contexts.end());
    std::set<int> different;
    for (const SampleRecord& s : results.samples) {
      if (Kind(workload_of(metric_of[s.key.task]), s.key.position) != kind) continue;
      ++finding.samples;
      different.insert(documents.of(s.key));
    }
    finding.documents = static_cast<int>(different.size());
    for (const std::string& spec : specs_of(results)) {
      std::vector<const ReportRow*> own;
      std::ranges::copy_if(list, std::back_inserter(own), [&](const ReportRow* row) { return row->spec == spec; });
      if (own.empty()) continue;
      CacheFinding cache;
      cache.spec = spec;
      PairedPool pool;
      for (const Outcome* o : done[kind][spec]) pool.add(*o, full, documents.of(o->key));
      const bool compared = spec != kReference && finding.has_reference;
      const ScoreKind counted_as =
          workload == WorkKind::kSummaries || workload == WorkKind::kCode ? ScoreKind::kMeasurement : ScoreKind::kCount;
      cache.pairs = spec == kReference ? 0 : pool.pairs();
      cache.score = pool.score(compared, counted_as);
      cache.likelihood = pool.likelihood(compared);
      const auto next = next_costs.find({workload, spec});
      if (finding.position == QuestionPosition::kSecond && next != next_costs.end()) cache.next_question = next->second;
      for (const ReportRow* row : own) cache.failed += row->failed;
      add_costs(cache, own, full_rows);
      cache.loss = judge(cache, own);
      finding.caches.push_back(std::move(cache));
    }
    for (std::size_t i = 0; i < finding.caches.size(); ++i) {
      const CacheFinding& c = finding.caches[i];
      const bool harmless = c.loss == Loss::kAsGood || c.loss == Loss::kNoMeasuredLoss;
      if (!harmless || c.ratio < kSmaller) continue;
      if (!finding.best || c.ratio > finding.caches[*finding.best].ratio) finding.best = i;
    }
    for (std::size_t i = 0; i < finding.caches.size(); ++i)
      if (finding.caches[i].loss == Loss::kUndecided) finding.undecided.push_back(i);
    std::ranges::stable_sort(finding.undecided, {}, [&](std::size_t i) { return nearness_of(finding.caches[i]); });
    out.push_back(std::move(finding));
  }
  return out;
}

Answer answer_of(const WorkloadFinding& finding, const std::map<std::string, std::string>& names) {
  Answer answer;
  if (!finding.has_reference) {
    answer.claim = "The cache 'full' was not measured, so nothing can be said about loss; run the same command with --kv full.";
  } else if (finding.best) {
    const CacheFinding& best = finding.caches[*finding.best];
    answer.claim = best_claim(best, names.at(best.spec));
    answer.evidence = evidence_of(best, full_score(finding));
    answer.cost = cost_of(best);
  } else {
    answer.claim = "No cache smaller than f16 is shown to be harmless here.";
  }
  if (!finding.has_reference) return answer;
  answer.few = few_text(finding);
  answer.next = next_question_text(finding, names);
  answer.nearest = nearest_text(finding, names);
  for (const CacheFinding* c : others_in_order(finding)) answer.others.push_back(other_text(*c, names.at(c->spec)));
  return answer;
}

}  // namespace kvartet
