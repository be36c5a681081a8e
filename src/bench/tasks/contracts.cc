#include "bench/tasks/contracts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "bench/tasks/draw.h"
#include "bench/tasks/generated_document.h"
#include "bench/tasks/generated_task.h"

namespace kvartet {
namespace {

using Words = std::string_view;

constexpr std::array<Words, 20> kActs = {"delivery", "storage",   "repair",   "sale",    "lease",    "transport", "inspection",
                                         "packing",  "insurance", "disposal", "import",  "cleaning", "labeling",  "purchase",
                                         "loading",  "testing",   "drying",   "cutting", "sorting",  "export"};
constexpr std::array<Words, 20> kGoods = {"timber", "grain",   "glass",  "cotton", "copper",   "paper", "cement",
                                          "sugar",  "leather", "coffee", "rubber", "bricks",   "oil",   "salt",
                                          "fruit",  "wool",    "tiles",  "rice",   "machines", "books"};
constexpr std::array<Words, 16> kPlaces = {"Lisbon", "Oslo",   "Vienna", "Dublin", "Prague", "Athens", "Madrid", "Geneva",
                                           "Havana", "Quebec", "Cairo",  "Sydney", "Warsaw", "Naples", "Munich", "Zurich"};
constexpr std::size_t kSubjects = kActs.size() * kGoods.size() * kPlaces.size();

constexpr std::array<Words, 6> kIdle = {"Both parties keep copies of all letters for three years.",
                                        "Neither party may pass this contract on without the consent of the other.",
                                        "Changes to this contract must be made in writing.",
                                        "Each party bears its own costs of legal advice.",
                                        "The headings of the clauses have no legal meaning.",
                                        "Disputes are first brought before a mediator."};

std::string subject_name(std::size_t i) {
  return fmt::format("{} of {} in {}", kActs[i % kActs.size()], kGoods[i / kActs.size() % kGoods.size()],
                     kPlaces[i / (kActs.size() * kGoods.size())]);
}

// A clause without its number. `refers`: its text ends in a clause number that is known only when all have their places.
struct Clause {
  std::string text;
  bool refers = false;
  bool to_gold = false;    // the clause meant: a gold clause or a filler clause ...
  std::size_t target = 0;  // ... and which
};

std::string title(std::string text) {
  text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

Clause ending_clause(const std::string& subject, bool to_gold, std::size_t target) {
  return {fmt::format("{}. Either party may end this part. The days of notice are those of clause ", title(subject)), true,
          to_gold, target};
}

Clause notice_clause(int days) {
  return {fmt::format("Notice period. Wherever a clause refers to this one, {} days of notice apply.", days), false, false, 0};
}

class Contracts : public GeneratedTask {
 public:
  explicit Contracts(int count) : GeneratedTask(fmt::format("contracts:k={}", count), "line_pairs"), count_(count) {}

 protected:
  Result<Sample> make_sample(const TaskRequest& request, const Haystack&, int index) const override {
    Rng rng = draw_rng(request.seed, DrawStream::kContracts, index);
    const std::vector<std::size_t> subjects = draw_distinct(rng, kSubjects, kSubjects);
    const std::vector<std::size_t> days = draw_distinct(rng, 90, static_cast<std::size_t>(count_));
    Sample sample;
    sample.before = "This is a contract. Its clauses refer to each other.\n\n";
    sample.question = "\n\nHow many days of notice are needed to end each of these?\n";
    for (std::size_t j = 0; j < days.size(); ++j) {
      const std::string subject = subject_name(subjects[j]);
      sample.question += subject + "\n";
      sample.answers.push_back(fmt::format("{}: {}", subject, 10 + days[j]));
      sample.gold += (sample.gold.empty() ? "" : "\n") + sample.answers.back();
    }
    sample.question += "Answer with one line for each, in the form part: days.";
    sample.max_new_tokens = 16 + 20 * count_;

    const std::vector<Clause> gold = gold_clauses(subjects, days, rng);
    const std::vector<double> depths = even_depths(request.seed, DrawStream::kContracts, index, static_cast<int>(gold.size()));
    const Rng base = draw_rng(request.seed, DrawStream::kContractsFiller, index);
    const auto filler = [&](std::size_t i) { return filler_clause(i, subjects, base); };
    const FitWish wish = {.task = spec(), .most = 3 * (kSubjects - days.size()), .typical_tokens = 26};
    KV_TRY(fit_units(request, wish, sample, [&](std::size_t clauses) {
             lay_out_clauses(gold, depths, filler, clauses, sample);
           }).status());
    return sample;
  }

 private:
  // Clause 2j ends a part, clause 2j + 1 gives its days, before they are shuffled.
  std::vector<Clause> gold_clauses(const std::vector<std::size_t>& subjects, const std::vector<std::size_t>& days,
                                   Rng& rng) const {
    const std::size_t count = 2 * days.size();
    const std::vector<std::size_t> place_of = draw_distinct(rng, count, count);
    std::vector<Clause> gold(count);
    for (std::size_t j = 0; j < days.size(); ++j) {
      gold[place_of[2 * j]] = ending_clause(subject_name(subjects[j]), /*to_gold=*/true, place_of[2 * j + 1]);
      gold[place_of[2 * j + 1]] = notice_clause(static_cast<int>(10 + days[j]));
    }
    return gold;
  }

  // In threes: days of notice, a part that refers to them, and one that refers to nothing.
  Clause filler_clause(std::size_t i, const std::vector<std::size_t>& subjects, const Rng& base) const {
    Rng rng(base.at(i));
    if (i % 3 == 0) return notice_clause(static_cast<int>(10 + rng.below(90)));
    if (i % 3 == 2) return {draw_one(rng, kIdle), false, false, 0};
    const std::size_t threes_back = rng.below(std::min<std::size_t>(i / 3 + 1, 8));
    return ending_clause(subject_name(subjects[static_cast<std::size_t>(count_) + i / 3]), /*to_gold=*/false,
                         (i / 3 - threes_back) * 3);
  }

  template <typename FillerClause>
  static void lay_out_clauses(const std::vector<Clause>& gold, const std::vector<double>& depths, const FillerClause& filler,
                              std::size_t clauses, Sample& sample) {
    std::vector<GoldPiece> at_depths;
    for (const double depth : depths) at_depths.push_back({depth, {}, {}});
    const std::vector<Place> places = place_pieces({}, clauses, at_depths);
    std::vector<std::size_t> gold_number(gold.size());
    std::vector<std::size_t> filler_number(clauses);
    for (std::size_t n = 0; n < places.size(); ++n) (places[n].gold ? gold_number : filler_number)[places[n].index] = n + 1;

    sample.document.clear();
    sample.gold_spans.clear();
    for (std::size_t n = 0; n < places.size(); ++n) {
      const Clause clause = places[n].gold ? gold[places[n].index] : filler(places[n].index);
      if (n > 0) sample.document += "\n";
      const std::size_t begin = sample.document.size();
      sample.document += fmt::format("{}. {}", n + 1, clause.text);
      if (clause.refers) sample.document += fmt::format("{}.", (clause.to_gold ? gold_number : filler_number)[clause.target]);
      if (places[n].gold) sample.gold_spans.push_back({begin, sample.document.size()});
    }
    sample.length = word_count(sample.document);
  }

  int count_;
};

Result<std::unique_ptr<Task>> make_contracts(const TaskSpec& spec) {
  if (!spec.set.empty()) return usage_error(fmt::format("The task contracts has no set '{}'.", spec.set));
  TaskKeys keys(spec);
  const int count = keys.whole("k", 6, 1, 24);
  KV_TRY(keys.status());
  return std::unique_ptr<Task>(std::make_unique<Contracts>(count));
}

}  // namespace

TaskEntry contracts_task() {
  return {.name = "contracts",
          .keys = "k=6",
          .metric = "line_pairs",
          .summary = "k notice periods of a contract whose clauses refer to each other by number",
          .make = make_contracts};
}

}  // namespace kvartet
