// Charts as inline SVG: readable with scripts off, on a phone, in the dark (colours are CSS classes s0, s1, ...), by screen
// readers (title and description), and without any library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "report/html.h"

namespace kvartet {

struct ChartPoint {
  double x = 0;
  double y = 0;
  std::optional<double> low;  // an interval of y
  std::optional<double> high;
};

struct ChartSeries {
  std::string spec;   // for the page's filters
  std::string label;  // empty: in a scatter a faint dot, without a place in the description
  int style = 0;      // colour and mark
  bool reference = false;
  std::vector<ChartPoint> points;
};

enum class XScale : std::uint8_t {
  kLinear,
  kDoublings,  // equal steps for equal factors; every x is above 0
};

struct Chart {
  std::string id;     // unique on the page
  std::string title;  // for screen readers, and the caption's beginning
  std::string caption;
  std::string x_label;
  std::string y_label;
  XScale x_scale = XScale::kLinear;
  int x_decimals = 1;
  int y_decimals = 2;
  std::optional<double> margin;  // differences within +-margin count as the same: drawn as a band
  std::vector<ChartSeries> series;
  std::vector<std::string> x_names;  // names of x = 0, 1, ... in place of numbers
};

// One point a series, with the frontier: what no other point beats in both directions (up and right).
void write_scatter(Html& out, const Chart& chart);

// One line a series, labelled at its right end.
void write_lines(Html& out, const Chart& chart);

// The mark of a series for tables and legends.
void write_mark(Html& out, int style, bool reference);

inline constexpr int kChartStyles = 8;

// Round steps over [low, high]: about `wanted` values.
std::vector<double> axis_ticks(double low, double high, int wanted);

}  // namespace kvartet
