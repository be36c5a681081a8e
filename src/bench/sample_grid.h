// Samples of one figure by layer and query head: as a whole, by layer, by head, by text, and as a map (offloading.md 10).
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace kvartet {

// Of the means of several texts: samples of one text are not independent, texts are.
struct TextMeans {
  int texts = 0;
  double mean = 0;
  double half_width = 0;  // of the 95 % interval, Student's t; 0 for fewer than two texts
};
TextMeans text_means_of(const std::vector<double>& means);

// Mean and 5th and 95th percentile.
struct Spread {
  double mean = 0;
  double p5 = 0;
  double p95 = 0;
  TextMeans by_text = {};  // of a figure as a whole
};
Spread spread_of(std::vector<float> values);  // zeros if there are none

class SampleGrid {
 public:
  void add(int layer, int head, double value) {
    cells_[{layer, head}].push_back(static_cast<float>(value));
    sum_ += value;
    ++count_;
  }
  // What was added since the last call were the samples of one text.
  void end_text();

  bool empty() const { return cells_.empty(); }
  bool has_layer(int layer) const;
  Spread all() const;
  Spread of_layer(int layer) const;
  Spread of_head(int head) const;
  // The value that this share of all samples does not exceed; 0 if there are none.
  double quantile(double share) const;
  // [layers * heads] means; NaN where there are no samples.
  std::vector<double> means(int layers, int heads) const;

 private:
  std::vector<float> gathered(const std::function<bool(int layer, int head)>& wanted) const;

  std::map<std::pair<int, int>, std::vector<float>> cells_;
  std::vector<double> text_means_;
  double sum_ = 0;  // of the text that has not ended
  int count_ = 0;
};

}  // namespace kvartet
