// A map of one figure by layer and head as inline SVG, drawn like the other charts (report/chart.h): colour is a CSS class, and
// every layer's mean stands in the description, too.
#pragma once

#include <string>
#include <vector>

#include "report/html.h"

namespace kvartet {

struct HeatMap {
  std::string id;  // unique on the page
  std::string title;
  std::string caption;
  std::vector<std::vector<double>> values;  // [layers][heads]; NaN: nothing to show there
  double low = 0;                           // drawn pale
  double high = 1;                          // drawn dark
  int decimals = 2;
};

void write_heat_map(Html& out, const HeatMap& map);

}  // namespace kvartet
