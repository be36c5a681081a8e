#include "plan/learning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <set>
#include <utility>

#include "core/bytes_text.h"

namespace kvartet {
namespace {

double normal_share_below(double z) { return 0.5 * std::erfc(-z / std::numbers::sqrt2); }

// What is known of caches that agree in this is known of each other.
std::string family_of(const Candidate& c, int prompt_tokens) {
  const SpecFacts& f = c.facts;
  return fmt::format("{}|{:.0f}|{}{:.0f}|{}{:.0f}", f.evict_method, 2 * std::log2(kept_share(f, prompt_tokens, 0)),
                     f.spec.key.name, f.key_bits, f.spec.value.name, f.value_bits);
}

// What the decisions of one workload leave open, cap after cap.
class OpenQuestions {
 public:
  OpenQuestions(const Workload& workload, double caps) : workload_(workload), caps_(caps) {}

  void add_cap(std::size_t cap, const Plan& plan) {
    if (!plan.feasible) return;  // there is no decision to change
    const Candidate& chosen = plan.first();
    const std::string chosen_family = family_of(chosen, workload_.prompt_tokens);
    const Candidate* next = nullptr;  // the least expected loss of another family: the chosen one's own kin would fall with it
    for (const Candidate& c : plan.candidates) {
      if (!fits(c) || family_of(c, workload_.prompt_tokens) == chosen_family) continue;
      if (next == nullptr || c.loss.expected < next->loss.expected) next = &c;
      const Belief loss = c.loss.belief();
      add(c, expected_gain(chosen.loss.expected, loss), chance_below(chosen.loss.expected, loss), [&] {
        return fmt::format(
            "within {} the choice is {} (expected loss {:.4f}); this one is expected to lose {:.4f} ({:.4f} to {:.4f}, {})",
            bytes_text(cap), chosen.spec, chosen.loss.expected, c.loss.expected, c.loss.low, c.loss.high,
            source_name(c.loss.source));
      });
    }
    if (next == nullptr) return;
    const Belief loss = chosen.loss.belief();
    add(chosen, expected_regret(loss, next->loss.expected), 1 - chance_below(next->loss.expected, loss), [&] {
      return fmt::format(
          "within {} this is the choice, with an expected loss of {:.4f} ({:.4f} to {:.4f}, {}); the next is {} ({:.4f})",
          bytes_text(cap), chosen.loss.expected, chosen.loss.low, chosen.loss.high, source_name(chosen.loss.source), next->spec,
          next->loss.expected);
    });
  }

  // The best of each family, most valuable first.
  std::vector<Lesson> lessons() const {
    std::vector<const Found*> order;
    for (const auto& [spec, found] : found_) {
      if (found.lesson.value >= kLeastValue) order.push_back(&found);
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const Found* a, const Found* b) { return a->lesson.value > b->lesson.value; });
    std::set<std::string> families;
    std::vector<Lesson> out;
    for (const Found* found : order) {
      if (families.insert(found->family).second) out.push_back(found->lesson);
    }
    return out;
  }

 private:
  struct Found {
    Lesson lesson;
    std::string family;
    double largest = 0;  // value under one cap
  };

  static bool fits(const Candidate& c) {
    return c.standing == Standing::kChosen || c.standing == Standing::kRunnerUp || c.standing == Standing::kDominated;
  }

  template <typename Reason>
  void add(const Candidate& c, double value, double chance, const Reason& reason) {
    if (value < kLeastValue / 10) return;
    Found& found = found_[c.spec];
    if (found.family.empty()) {
      found.family = family_of(c, workload_.prompt_tokens);
      found.lesson.spec = c.facts.spec;
      found.lesson.workload = workload_;
    }
    found.lesson.value += value / caps_;
    found.lesson.chance = std::max(found.lesson.chance, chance);
    if (value <= found.largest) return;
    found.largest = value;
    found.lesson.reason = reason();
  }

  Workload workload_;
  double caps_;
  std::map<std::string, Found> found_;  // by spec
};

std::vector<std::size_t> caps_of(const LearnRequest& request, const Weighed& weighed, const Workload& w) {
  if (!request.memory.empty()) return request.memory;
  std::vector<std::size_t> caps;
  for (const double share : request.cap_shares) {
    const double bytes = share * static_cast<double>(weighed.row_bytes) * (w.prompt_tokens + w.answer_tokens());
    caps.push_back(std::max(static_cast<std::size_t>(bytes), weighed.row_bytes));
  }
  return caps;
}

}  // namespace

double expected_gain(double known, const Belief& unknown) {
  return above_zero({known - unknown.mean, unknown.sd}) - above_zero({-unknown.mean, unknown.sd});
}

double expected_regret(const Belief& chosen, double known) { return above_zero({chosen.mean - known, chosen.sd}); }

double chance_below(double known, const Belief& unknown) {
  if (known <= 0) return 0;  // nothing loses less than nothing
  if (unknown.sd <= 0) return unknown.mean < known ? 1 : 0;
  return normal_share_below((known - unknown.mean) / unknown.sd);
}

Result<std::vector<Lesson>> find_lessons(const PlanInputs& inputs, const LearnRequest& request) {
  std::vector<Lesson> all;
  for (const Workload& workload : request.workloads) {
    KV_ASSIGN(const Weighed weighed, weigh(inputs, workload));
    const std::vector<std::size_t> caps = caps_of(request, weighed, workload);
    OpenQuestions open(workload, static_cast<double>(caps.size()));
    for (const std::size_t cap : caps) {
      PlanRequest asked;
      asked.workload = workload;
      asked.memory = cap;
      KV_ASSIGN(const Plan plan, choose(weighed, asked));
      open.add_cap(cap, plan);
    }
    for (Lesson& lesson : open.lessons()) all.push_back(std::move(lesson));
  }
  std::stable_sort(all.begin(), all.end(), [](const Lesson& a, const Lesson& b) { return a.value > b.value; });
  if (all.size() > request.most) all.resize(request.most);
  return all;
}

}  // namespace kvartet
