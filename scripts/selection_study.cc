// What selecting caches could do beyond the papers, measured on the exact attention of a model over a text: budgets that adapt to
// the head, rows guessed from the layer before, rows placed in pages by what is chosen together (docs/decisions/0026).
// Build and run: cmake --build build/release --target selection_study && build/release/selection_study MODEL TEXT [TOKENS STEPS]
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/diagnose_view.h"
#include "core/file_system.h"
#include "core/rope_table.h"
#include "core/uz.h"
#include "engine/engine.h"

namespace kvartet {
namespace {

constexpr int kLocal = 64;                  // newest prompt rows, always attended
constexpr double kShare = 32;               // of the prompt's rows one in so many is selected
constexpr int kBudgetBlock = 8;             // rows by which budgets of heads differ
constexpr int kPagedRows[] = {1, 2, 4, 8};  // times the budget
constexpr double kMore[] = {1.125, 1.25, 2, 4};

using Rows = std::vector<int>;  // positions, ascending

struct Mean {
  double sum = 0;
  double count = 0;
  void add(double x) { sum += x, count += 1; }
  double value() const { return count > 0 ? sum / count : 0; }
};

// What attending to a set of rows misses.
struct Loss {
  Mean missed_mass;
  Mean output_error;  // relative, of a query head
  Mean rows;
};

// The largest softmax weight that any query of the group gives a row.
std::vector<double> scores_of(const DenseHead& head, int candidates) {
  std::vector<double> scores(uz(candidates));
  for (const std::vector<double>& weights : head.weights)
    for (std::size_t j = 0; j < scores.size(); ++j) scores[j] = std::max(scores[j], weights[j]);
  return scores;
}

Rows best_of(const std::vector<double>& scores, int count) {
  Rows rows(scores.size());
  std::iota(rows.begin(), rows.end(), 0);
  count = std::min(count, static_cast<int>(rows.size()));
  std::nth_element(rows.begin(), rows.begin() + count, rows.end(), [&](int a, int b) { return scores[uz(a)] > scores[uz(b)]; });
  rows.resize(uz(count));
  std::sort(rows.begin(), rows.end());
  return rows;
}

void add_loss(const DenseHead& head, const Rows& selected, int candidates, Loss* loss) {
  Rows attended = selected;
  for (int j = candidates; j < head.rows; ++j) attended.push_back(j);
  for (std::size_t q = 0; q < head.weights.size(); ++q) {
    double mass = 0;
    std::vector<double> out(uz(head.dim));
    for (const int j : attended) {
      const double weight = head.weights[q][uz(j)];
      mass += weight;
      for (std::size_t c = 0; c < out.size(); ++c) out[c] += weight * static_cast<double>(head.values[uz(j) * uz(head.dim) + c]);
    }
    double error = 0;
    double size = 0;
    for (std::size_t c = 0; c < out.size(); ++c) {
      error += std::pow(out[c] / mass - head.outputs[q][c], 2);
      size += std::pow(head.outputs[q][c], 2);
    }
    loss->missed_mass.add(1 - mass);
    loss->output_error.add(std::sqrt(error / size));
  }
  loss->rows.add(static_cast<double>(selected.size()));
}

Rows without(const Rows& rows, const Rows& others) {
  Rows left;
  std::set_difference(rows.begin(), rows.end(), others.begin(), others.end(), std::back_inserter(left));
  return left;
}

std::size_t shared(const Rows& a, const Rows& b) { return a.size() - without(a, b).size(); }

// Rows in the order of their clusters: place[row]. Lloyd's algorithm over [rows, dim] from evenly spread rows.
std::vector<int> clustered_places(const std::vector<float>& keys, int rows, int dim, int per_cluster) {
  const int clusters = rows / per_cluster;
  std::vector<float> centers(uz(clusters * dim));
  for (int c = 0; c < clusters; ++c) std::copy_n(&keys[uz(c * per_cluster * dim)], dim, &centers[uz(c * dim)]);
  std::vector<int> of(uz(rows));
  for (int pass = 0; pass < 6; ++pass) {
    for (int r = 0; r < rows; ++r) {
      float least = INFINITY;
      for (int c = 0; c < clusters; ++c) {
        float distance = 0;
        for (int i = 0; i < dim; ++i) {
          const float d = keys[uz(r * dim + i)] - centers[uz(c * dim + i)];
          distance += d * d;
        }
        if (distance < least) least = distance, of[uz(r)] = c;
      }
    }
    std::vector<float> sums(centers.size());
    std::vector<int> counts(uz(clusters));
    for (int r = 0; r < rows; ++r) {
      ++counts[uz(of[uz(r)])];
      for (int i = 0; i < dim; ++i) sums[uz(of[uz(r)] * dim + i)] += keys[uz(r * dim + i)];
    }
    for (int c = 0; c < clusters; ++c)
      for (int i = 0; counts[uz(c)] > 0 && i < dim; ++i)
        centers[uz(c * dim + i)] = sums[uz(c * dim + i)] / static_cast<float>(counts[uz(c)]);
  }
  std::vector<int> order(uz(rows));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return of[uz(a)] < of[uz(b)]; });
  std::vector<int> place(uz(rows));
  for (int i = 0; i < rows; ++i) place[uz(order[uz(i)])] = i;
  return place;
}

struct Placement {
  std::string name;
  int page_rows = 0;
  std::vector<std::vector<int>> place = {};  // [layer * heads + head][row]
  Mean pages = {};
  Mean new_pages = {};  // of rows that the step before had not selected
  // The best whole pages of so many rows, how many that are and how many the step before had not.
  std::vector<Loss> whole_pages = std::vector<Loss>(std::size(kPagedRows));
  std::vector<Mean> whole_pages_new = std::vector<Mean>(std::size(kPagedRows));
  std::map<std::pair<std::size_t, std::size_t>, std::set<int>> pages_before = {};  // by which of kPagedRows, layer and head
  Loss all_used = {};                                                              // the selection, and what else its pages hold
  Loss read_used = {};  // the selection, and what else the pages of its new rows hold
};

std::set<int> pages_of(const Rows& rows, const std::vector<int>& place, int page_rows) {
  std::set<int> pages;
  for (const int r : rows) pages.insert(place[uz(r)] / page_rows);
  return pages;
}

Rows rows_of(const std::set<int>& pages, const std::vector<int>& place, int page_rows) {
  Rows rows;
  for (std::size_t r = 0; r < place.size(); ++r)
    if (pages.contains(place[r] / page_rows)) rows.push_back(static_cast<int>(r));
  return rows;
}

// The pages with the largest scores, as long as they hold no more than `count` rows.
std::set<int> best_pages(const std::vector<double>& scores, const std::vector<int>& place, int page_rows, int count) {
  std::vector<double> of_page(place.size() / uz(page_rows) + 1);
  for (std::size_t r = 0; r < place.size(); ++r) {
    double& best = of_page[uz(place[r] / page_rows)];
    best = std::max(best, scores[r]);
  }
  const Rows best = best_of(of_page, count / page_rows);
  return {best.begin(), best.end()};
}

class Study {
 public:
  Study(const ModelShape& shape, int prompt) : shape_(shape), candidates_(prompt - kLocal) {
    budget_ = static_cast<int>(std::lround(prompt / kShare));
    for (const int page : {16, 56})  // rows of f16 and of higgs4 with 64 channels in 4 KiB
      for (const char* name : {"by position", "by rotated key", "by unrotated key"})
        placements_.push_back({.name = name, .page_rows = page});
  }

  // Before the first step: where rows lie.
  void place(const std::vector<DenseHead>& heads) {
    for (const DenseHead& head : heads) {
      std::vector<float> plain(head.keys.begin(), head.keys.begin() + candidates_ * head.dim);
      for (int r = 0; r < candidates_; ++r) RopeTurn(shape_.rope, -r).apply(&plain[uz(r * head.dim)]);
      for (Placement& p : placements_) {
        if (p.name == "by position") {
          p.place.emplace_back(uz(candidates_));
          std::iota(p.place.back().begin(), p.place.back().end(), 0);
        } else {
          p.place.push_back(clustered_places(p.name == "by rotated key" ? head.keys : plain, candidates_, head.dim, p.page_rows));
        }
      }
    }
  }

  // One layer of one step. `learning`: budgets of heads are still learned, nothing is compared.
  void add(int layer, const std::vector<DenseHead>& heads, bool learning) {
    std::vector<std::vector<double>> scores;
    std::vector<Rows> chosen;
    for (const DenseHead& head : heads) {
      scores.push_back(scores_of(head, candidates_));
      chosen.push_back(best_of(scores.back(), budget_));
    }
    for (std::size_t h = 0; h < heads.size(); ++h) {
      const auto place = std::pair(layer, static_cast<int>(h));
      if (learning) {
        learn(place, heads[h], scores[h]);
      } else {
        compare(place, heads[h], scores[h], chosen[h]);
      }
    }
    if (!learning) compare_joint(heads, scores);
    if (!learning && layer > 0) guess(layer, chosen);
    for (std::size_t h = 0; h < heads.size(); ++h) before_[{layer, static_cast<int>(h)}] = chosen[h];
    layer_before_ = chosen;
  }

  // Every head's rows by the mass that the next block of rows brings, as many in all as before.
  void fix_budgets() {
    std::vector<std::pair<double, std::pair<int, int>>> gains;
    for (auto& [place, curve] : gain_)
      for (const double gain : curve) gains.emplace_back(gain, place);
    std::sort(gains.rbegin(), gains.rend());
    gains.resize(std::min(gains.size(), gain_.size() * uz(budget_ / kBudgetBlock)));
    for (const auto& [gain, place] : gains) budgets_[place] += kBudgetBlock;
  }

  void print() const {
    const auto line = [](const std::string& name, const Loss& loss) {
      fmt::print("  {:44} {:6.1f} rows  missed mass {:.4f}  output error {:.4f}\n", name, loss.rows.value(),
                 loss.missed_mass.value(), loss.output_error.value());
    };
    fmt::print("budgets, rows per KV head and step\n");
    line("the same for all", same_);
    for (const Loss& more : more_) line("the same for all, but more", more);
    line("shared by the heads of a layer, each step", joint_);
    line("fixed per head, learned on the steps before", learned_);
    fmt::print("rows new to a layer, guessed from the layer before: found {:.3f}, of the guessed ones wanted {:.3f}\n",
               found_.value(), wanted_.value());
    fmt::print("  of a selection, selected in the step before: {:.3f}\n", reused_.value());
    for (const Placement& p : placements_) {
      fmt::print("{} rows a page, {}: pages per selection {:.1f}, of new rows {:.1f}\n", p.page_rows, p.name, p.pages.value(),
                 p.new_pages.value());
      for (std::size_t i = 0; i < std::size(kPagedRows); ++i)
        line(fmt::format("the best whole pages, {:.1f} new", p.whole_pages_new[i].value()), p.whole_pages[i]);
      line("chosen rows and all others of their pages", p.all_used);
      line("chosen rows and all others of new pages", p.read_used);
    }
  }

 private:
  void learn(std::pair<int, int> place, const DenseHead& head, const std::vector<double>& scores) {
    std::vector<double> mass(scores.size());
    for (const std::vector<double>& weights : head.weights)
      for (std::size_t j = 0; j < mass.size(); ++j) mass[j] += weights[j];
    std::vector<double>& curve = gain_[place];
    curve.resize(uz(candidates_ / kBudgetBlock));
    const Rows order = descending(scores);
    for (std::size_t i = 0; i < curve.size() * kBudgetBlock; ++i) curve[i / kBudgetBlock] += mass[uz(order[i])];
  }

  static Rows descending(const std::vector<double>& scores) {
    Rows order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int a, int b) { return scores[uz(a)] > scores[uz(b)]; });
    return order;
  }

  void compare(std::pair<int, int> place, const DenseHead& head, const std::vector<double>& scores, const Rows& chosen) {
    add_loss(head, chosen, candidates_, &same_);
    add_loss(head, best_of(scores, budgets_[place]), candidates_, &learned_);
    for (std::size_t i = 0; i < std::size(kMore); ++i)
      add_loss(head, best_of(scores, static_cast<int>(budget_ * kMore[i])), candidates_, &more_[i]);
    const Rows fresh = without(chosen, before_[place]);
    reused_.add(1 - static_cast<double>(fresh.size()) / static_cast<double>(chosen.size()));
    const std::size_t at = uz(place.first * shape_.layers[uz(place.first)].kv_heads + place.second);
    for (Placement& p : placements_) {
      const std::set<int> pages = pages_of(chosen, p.place[at], p.page_rows);
      p.pages.add(static_cast<double>(pages.size()));
      p.new_pages.add(static_cast<double>(pages_of(fresh, p.place[at], p.page_rows).size()));
      for (std::size_t i = 0; i < std::size(kPagedRows); ++i) {
        const std::set<int> best = best_pages(scores, p.place[at], p.page_rows, kPagedRows[i] * budget_);
        add_loss(head, rows_of(best, p.place[at], p.page_rows), candidates_, &p.whole_pages[i]);
        std::set<int>& before = p.pages_before[{i, at}];
        if (!before.empty()) {
          const auto is_new = [&](int page) { return !before.contains(page); };
          p.whole_pages_new[i].add(static_cast<double>(std::count_if(best.begin(), best.end(), is_new)));
        }
        before = best;
      }
      add_loss(head, rows_of(pages, p.place[at], p.page_rows), candidates_, &p.all_used);
      Rows used = rows_of(pages_of(fresh, p.place[at], p.page_rows), p.place[at], p.page_rows);
      const Rows kept = without(chosen, used);
      used.insert(used.end(), kept.begin(), kept.end());
      add_loss(head, used, candidates_, &p.read_used);
    }
  }

  void compare_joint(const std::vector<DenseHead>& heads, const std::vector<std::vector<double>>& scores) {
    std::vector<double> all;
    for (const std::vector<double>& own : scores) all.insert(all.end(), own.begin(), own.end());
    std::vector<Rows> chosen(heads.size());
    for (const int r : best_of(all, budget_ * static_cast<int>(heads.size())))
      chosen[uz(r / candidates_)].push_back(r % candidates_);
    for (std::size_t h = 0; h < heads.size(); ++h) add_loss(heads[h], chosen[h], candidates_, &joint_);
  }

  void guess(int layer, const std::vector<Rows>& chosen) {
    Rows of_layer_before;
    for (const Rows& rows : layer_before_) of_layer_before.insert(of_layer_before.end(), rows.begin(), rows.end());
    std::sort(of_layer_before.begin(), of_layer_before.end());
    of_layer_before.erase(std::unique(of_layer_before.begin(), of_layer_before.end()), of_layer_before.end());
    for (std::size_t h = 0; h < chosen.size(); ++h) {
      const Rows& near = before_[{layer, static_cast<int>(h)}];
      const Rows fresh = without(chosen[h], near);
      const Rows guessed = without(of_layer_before, near);
      if (fresh.empty() || guessed.empty()) continue;
      const auto right = static_cast<double>(shared(fresh, guessed));
      found_.add(right / static_cast<double>(fresh.size()));
      wanted_.add(right / static_cast<double>(guessed.size()));
    }
  }

  const ModelShape& shape_;
  int candidates_ = 0;
  int budget_ = 0;
  std::vector<Placement> placements_;
  Loss same_, joint_, learned_;
  Loss more_[std::size(kMore)];  // the same for all, but more
  Mean found_, wanted_, reused_;
  std::map<std::pair<int, int>, std::vector<double>> gain_;  // per layer and head: mass of the next block of rows
  std::map<std::pair<int, int>, int> budgets_;
  std::map<std::pair<int, int>, Rows> before_;  // selected in the step before
  std::vector<Rows> layer_before_;              // of this step
};

Status study(const std::string& model, const std::string& text_path, int tokens, int steps) {
  EngineOptions options;
  options.model_path = model;
  options.threads = 2;
  KV_ASSIGN(const std::unique_ptr<Engine> engine, Engine::open(options));
  KV_ASSIGN(const std::string text, FileSystem::real().read_file(text_path));
  KV_ASSIGN(const std::vector<Token> all, engine->vocabulary().tokenize(text));
  if (std::ssize(all) < tokens + steps)
    return bad_input(fmt::format("{} has {} tokens, {} are needed", text_path, all.size(), tokens + steps));
  KV_ASSIGN(const CacheSpec full, parse_spec("full"));
  KV_ASSIGN(std::vector<Sequence> sequences, engine->prefill(std::span(all).first(uz(tokens)), std::span(&full, 1)));
  Sequence& dense = sequences.front();
  Study study(engine->shape(), tokens);
  for (int step = 0; step < steps; ++step) {
    if (step == steps / 2) study.fix_budgets();
    KV_TRY(engine->decode_observed(dense, all[uz(tokens + step)], [&](const LayerQuestion& question) -> Status {
      const std::vector<DenseHead> heads = dense_heads(dense.cache, question.layer, question.q);
      if (step == 0) study.place(heads);
      study.add(question.layer, heads, step < steps / 2);
      return {};
    }));
  }
  study.print();
  return {};
}

}  // namespace
}  // namespace kvartet

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("selection_study MODEL TEXT [TOKENS STEPS]\n", stderr);
    return 2;
  }
  const int tokens = argc > 3 ? std::atoi(argv[3]) : 4096;
  const int steps = argc > 4 ? std::atoi(argv[4]) : 64;
  const kvartet::Status status = kvartet::study(argv[1], argv[2], tokens, steps);
  if (!status.ok()) std::fprintf(stderr, "selection_study: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
