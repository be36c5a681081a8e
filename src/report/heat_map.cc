#include "report/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvartet {
namespace {

constexpr double kWidth = 440;
constexpr double kLeft = 44;
constexpr double kTop = 8;
constexpr double kBottom = 64;  // head numbers, axis name, scale
constexpr double kRight = 8;
constexpr double kTallest = 13;  // of a cell
constexpr double kPale = 0.06;   // opacity at the low end: there is something, and it is little

std::string px(double x) { return fmt::format("{:.1f}", x); }

// A step that leaves room for every n-th number.
int label_step(int count, double room, double needed) {
  for (const int step : {1, 2, 5, 10, 20, 50, 100}) {
    if (room * step >= needed || step >= count) return step;
  }
  return count;
}

class Drawing {
 public:
  Drawing(Html& out, const HeatMap& map)
      : out_(out),
        map_(map),
        layers_(static_cast<int>(map.values.size())),
        heads_(map.values.empty() ? 0 : static_cast<int>(map.values.front().size())),
        cell_width_((kWidth - kLeft - kRight) / std::max(heads_, 1)),
        cell_height_(std::min(kTallest, cell_width_)) {}

  void draw() {
    out_.open("svg", {{"viewBox", fmt::format("0 0 {:.0f} {:.0f}", kWidth, bottom() + kBottom)},
                      {"role", "img"},
                      {"aria-labelledby", map_.id + "-t"},
                      {"aria-describedby", map_.id + "-d"}});
    out_.element("title", map_.title, {{"id", map_.id + "-t"}});
    out_.element("desc", describe(), {{"id", map_.id + "-d"}});
    out_.open("g", {{"class", "s1"}});
    for (int l = 0; l < layers_; ++l)
      for (int h = 0; h < heads_; ++h) draw_cell(l, h);
    draw_scale();
    out_.close();
    draw_labels();
    out_.close();
  }

 private:
  double bottom() const { return kTop + layers_ * cell_height_; }
  double value(int layer, int head) const { return map_.values[static_cast<std::size_t>(layer)][static_cast<std::size_t>(head)]; }

  double opacity(double x) const {
    const double range = map_.high - map_.low;
    const double share = range > 0 ? std::clamp((x - map_.low) / range, 0.0, 1.0) : 1;
    return kPale + (1 - kPale) * share;
  }

  void draw_cell(int layer, int head) {
    const double x = value(layer, head);
    const bool known = !std::isnan(x);
    Html::Attributes attributes = {{"class", known ? "heat" : "cold"},
                                   {"x", px(kLeft + head * cell_width_)},
                                   {"y", px(kTop + layer * cell_height_)},
                                   {"width", px(cell_width_ - 0.5)},
                                   {"height", px(cell_height_ - 0.5)}};
    if (known) attributes.emplace_back("fill-opacity", fmt::format("{:.3f}", opacity(x)));
    out_.element("rect", "", attributes);
  }

  void text(double x, double y, const std::string& words, const char* css, const char* anchor) {
    out_.element("text", words, {{"class", css}, {"x", px(x)}, {"y", px(y)}, {"text-anchor", anchor}});
  }

  // From the pale to the dark end, with their values.
  void draw_scale() {
    constexpr int kSteps = 10;
    const double y = bottom() + 40;
    for (int i = 0; i < kSteps; ++i) {
      const double at = map_.low + (map_.high - map_.low) * (i + 0.5) / kSteps;
      out_.element("rect", "",
                   {{"class", "heat"},
                    {"x", px(kWidth - kRight - 170 + i * 11.0)},
                    {"y", px(y)},
                    {"width", "10.5"},
                    {"height", "10"},
                    {"fill-opacity", fmt::format("{:.3f}", opacity(at))}});
    }
    text(kWidth - kRight - 175, y + 9, fmt::format("{:.{}f}", map_.low, map_.decimals), "tick", "end");
    text(kWidth - kRight - 54, y + 9, fmt::format("{:.{}f}", map_.high, map_.decimals), "tick", "start");
  }

  void draw_labels() {
    for (int l = 0; l < layers_; l += label_step(layers_, cell_height_, 11))
      text(kLeft - 5, kTop + (l + 0.5) * cell_height_ + 4, std::to_string(l), "tick", "end");
    for (int h = 0; h < heads_; h += label_step(heads_, cell_width_, 18))
      text(kLeft + (h + 0.5) * cell_width_, bottom() + 13, std::to_string(h), "tick", "middle");
    text(kLeft, bottom() + 32, "query head", "name", "start");
    const double middle = 0.5 * (kTop + bottom());
    out_.element("text", "layer",
                 {{"class", "name"},
                  {"x", "13"},
                  {"y", px(middle)},
                  {"text-anchor", "middle"},
                  {"transform", fmt::format("rotate(-90 13 {:.1f})", middle)}});
  }

  // In words: each layer's mean, and its least and largest head.
  std::string describe() const {
    std::string words = "Layers downwards, query heads to the right.";
    for (int l = 0; l < layers_; ++l) {
      double sum = 0;
      int count = 0;
      int least = 0;
      int most = 0;
      for (int h = 0; h < heads_; ++h) {
        if (std::isnan(value(l, h))) continue;
        sum += value(l, h);
        if (count == 0 || value(l, h) < value(l, least)) least = h;
        if (count == 0 || value(l, h) > value(l, most)) most = h;
        ++count;
      }
      if (count == 0) {
        words += fmt::format(" Layer {}: nothing is selected.", l);
        continue;
      }
      words += fmt::format(" Layer {}: mean {:.{}f}, least {:.{}f} in head {}, largest {:.{}f} in head {}.", l, sum / count,
                           map_.decimals, value(l, least), map_.decimals, least, value(l, most), map_.decimals, most);
    }
    return words;
  }

  Html& out_;
  const HeatMap& map_;
  int layers_;
  int heads_;
  double cell_width_;
  double cell_height_;
};

}  // namespace

void write_heat_map(Html& out, const HeatMap& map) {
  out.open("figure", {{"class", "chart"}});
  Drawing(out, map).draw();
  out.open("figcaption").element("b", map.title + ". ").text(map.caption).close();
  out.close();
}

}  // namespace kvartet
