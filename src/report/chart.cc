#include "report/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/frontier.h"
#include "report/names.h"

namespace kvartet {
namespace {

constexpr double kWidth = 440;
constexpr double kHeight = 280;
constexpr double kLeft = 58;
constexpr double kTop = 14;
constexpr double kBottom = 46;
constexpr double kLetter = 7.9;  // mean width of a letter of a label in a wide bold font
constexpr double kLine = 13;     // its height

std::string px(double x) { return fmt::format("{:.1f}", x); }

struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;
  bool overlaps(const Box& o) const { return left < o.right && o.left < right && top < o.bottom && o.top < bottom; }
};

// The plot: where a value lies, axes, and labels that do not cover each other.
class Plot {
 public:
  Plot(Html& out, const Chart& chart, double right_margin) : out_(out), chart_(chart), right_(kWidth - right_margin) {
    set_ranges();
  }

  double x(double value) const { return kLeft + (scaled(value) - x_low_) / (x_high_ - x_low_) * (right_ - kLeft); }
  double y(double value) const { return kHeight - kBottom - (value - y_low_) / (y_high_ - y_low_) * (kHeight - kBottom - kTop); }

  void open();
  void axes();
  void interval(const ChartPoint& p, double shift = 0);
  void mark(double cx, double cy, int style, bool reference);
  void occupy(const Box& box) { taken_.push_back(box); }
  void label(double cx, double cy, const std::string& text);
  void text(double cx, double cy, const std::string& text, const char* css, const char* anchor);
  void line(double x1, double y1, double x2, double y2, const char* css);
  void close();

 private:
  void set_ranges();
  void x_ticks();
  double scaled(double value) const { return chart_.x_scale == XScale::kDoublings ? std::log2(value) : value; }
  std::string describe() const;
  Html& out_;
  const Chart& chart_;
  double right_;
  double x_low_ = 0, x_high_ = 1;  // scaled
  double y_low_ = 0, y_high_ = 1;
  std::vector<Box> taken_;
};

void widen(double& low, double& high, double least) {
  if (high - low < least) {
    const double middle = 0.5 * (low + high);
    low = middle - 0.5 * least;
    high = middle + 0.5 * least;
  }
  const double pad = 0.07 * (high - low);
  low -= pad;
  high += pad;
}

void Plot::set_ranges() {
  bool first = true;
  for (const ChartSeries& s : chart_.series) {
    for (const ChartPoint& p : s.points) {
      if (first) {
        x_low_ = x_high_ = scaled(p.x);
        y_low_ = y_high_ = p.y;
      }
      first = false;
      x_low_ = std::min(x_low_, scaled(p.x));
      x_high_ = std::max(x_high_, scaled(p.x));
      y_low_ = std::min({y_low_, p.y, p.low.value_or(p.y)});
      y_high_ = std::max({y_high_, p.y, p.high.value_or(p.y)});
    }
  }
  if (chart_.margin) {
    y_low_ = std::min(y_low_, -*chart_.margin);
    y_high_ = std::max(y_high_, *chart_.margin);
  }
  widen(x_low_, x_high_, std::max(1e-3, 0.1 * std::abs(x_high_)));
  widen(y_low_, y_high_, std::pow(10, -chart_.y_decimals) * 4);
}

// Every point in words, so that the picture is not the only place that shows it.
std::string Plot::describe() const {
  std::string out = fmt::format("{} upwards, {} to the right.", chart_.y_label, chart_.x_label);
  const auto dots = std::ranges::count_if(chart_.series, [](const ChartSeries& s) { return s.label.empty(); });
  for (const ChartSeries& s : chart_.series) {
    if (s.label.empty()) continue;
    out += fmt::format(" {}:", s.label);
    for (const ChartPoint& p : s.points) {
      const bool named = !chart_.x_names.empty();
      const std::string at =
          named ? chart_.x_names[static_cast<std::size_t>(p.x)] : fmt::format("{:.{}f}", p.x, chart_.x_decimals);
      out += fmt::format(" {} at {}{}", fmt::format("{:.{}f}", p.y, chart_.y_decimals), at, &p == &s.points.back() ? "." : ",");
    }
  }
  if (dots > 0) out += fmt::format(" And {} more as dots.", dots);
  return out;
}

void Plot::open() {
  out_.open("svg", {{"viewBox", fmt::format("0 0 {:.0f} {:.0f}", kWidth, kHeight)},
                    {"role", "img"},
                    {"aria-labelledby", chart_.id + "-t"},
                    {"aria-describedby", chart_.id + "-d"}});
  out_.element("title", chart_.title, {{"id", chart_.id + "-t"}});
  out_.element("desc", describe(), {{"id", chart_.id + "-d"}});
}

void Plot::close() { out_.close(); }

void Plot::line(double x1, double y1, double x2, double y2, const char* css) {
  out_.element("line", "", {{"class", css}, {"x1", px(x1)}, {"y1", px(y1)}, {"x2", px(x2)}, {"y2", px(y2)}});
}

void Plot::text(double cx, double cy, const std::string& text, const char* css, const char* anchor) {
  out_.element("text", text, {{"class", css}, {"x", px(cx)}, {"y", px(cy)}, {"text-anchor", anchor}});
}

void Plot::axes() {
  const double bottom = kHeight - kBottom;
  if (chart_.margin) {
    const double upper = y(*chart_.margin);
    const double lower = y(-*chart_.margin);
    out_.element(
        "rect", "",
        {{"class", "band"}, {"x", px(kLeft)}, {"y", px(upper)}, {"width", px(right_ - kLeft)}, {"height", px(lower - upper)}});
  }
  for (double tick : axis_ticks(y_low_, y_high_, 5)) {
    line(kLeft, y(tick), right_, y(tick), std::abs(tick) < 1e-12 && chart_.margin ? "zero" : "grid");
    const std::string value =
        chart_.margin ? signed_text(tick, chart_.y_decimals) : fmt::format("{:.{}f}", tick, chart_.y_decimals);
    text(kLeft - 6, y(tick) + 4, value, "tick", "end");
  }
  x_ticks();
  line(kLeft, bottom, right_, bottom, "axis");
  text(0.5 * (kLeft + right_), kHeight - 8, chart_.x_label, "name", "middle");
  const double middle = 0.5 * (kTop + bottom);
  out_.element("text", chart_.y_label,
               {{"class", "name"},
                {"x", "13"},
                {"y", px(middle)},
                {"text-anchor", "middle"},
                {"transform", fmt::format("rotate(-90 13 {:.1f})", middle)}});
}

void Plot::x_ticks() {
  const double bottom = kHeight - kBottom;
  const auto tick = [&](double value, const std::string& name) {
    line(x(value), bottom, x(value), bottom + 4, "axis");
    text(x(value), bottom + 17, name, "tick", "middle");
  };
  if (chart_.x_scale == XScale::kDoublings) {
    for (double power = std::ceil(x_low_); power <= x_high_; ++power)
      tick(std::exp2(power), fmt::format("{:g}", std::exp2(power)));
  } else if (chart_.x_names.empty()) {
    for (const double value : axis_ticks(x_low_, x_high_, 5)) tick(value, fmt::format("{:.{}f}", value, chart_.x_decimals));
  } else {
    for (std::size_t i = 0; i < chart_.x_names.size(); ++i)
      text(x(static_cast<double>(i)), bottom + 17, chart_.x_names[i], "tick", "middle");
  }
}

void Plot::interval(const ChartPoint& p, double shift) {
  if (p.low && p.high) line(x(p.x) + shift, y(*p.low), x(p.x) + shift, y(*p.high), "interval");
}

void draw_mark(Html& out, double cx, double cy, int style, bool reference) {
  if (reference) {
    out.element("circle", "", {{"class", "mark ring"}, {"cx", px(cx)}, {"cy", px(cy)}, {"r", "6.5"}});
    out.element("circle", "", {{"class", "mark"}, {"cx", px(cx)}, {"cy", px(cy)}, {"r", "2.5"}});
    return;
  }
  switch (style % 4) {
    case 0: out.element("circle", "", {{"class", "mark"}, {"cx", px(cx)}, {"cy", px(cy)}, {"r", "4.5"}}); return;
    case 1:
      out.element("rect", "", {{"class", "mark"}, {"x", px(cx - 4)}, {"y", px(cy - 4)}, {"width", "8"}, {"height", "8"}});
      return;
    case 2: out.element("path", "", {{"class", "mark"}, {"d", fmt::format("M{:.1f} {:.1f}l5.2 9h-10.4z", cx, cy - 5.5)}}); return;
    default:
      out.element("path", "",
                  {{"class", "mark"}, {"d", fmt::format("M{:.1f} {:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z", cx, cy - 5.5)}});
  }
}

void Plot::mark(double cx, double cy, int style, bool reference) { draw_mark(out_, cx, cy, style, reference); }

// The nearest free place around a point; a thin line leads there when it is not beside it.
void Plot::label(double cx, double cy, const std::string& text_of_label) {
  const double width = kLetter * static_cast<double>(text_of_label.size());
  Box best;
  bool found = false;
  double shift_of_best = 0;
  for (int step = 0; step < 16 && !found; ++step) {
    const double shift = kLine * ((step + 1) / 2) * (step % 2 == 1 ? 1 : -1);
    for (const bool right : {true, false}) {
      Box box;
      box.left = right ? cx + 10 : cx - 10 - width;
      box.right = box.left + width;
      box.top = cy + shift - 0.5 * kLine;
      box.bottom = box.top + kLine;
      if (box.left < kLeft || box.right > kWidth - 2 || box.top < 0 || box.bottom > kHeight - kBottom + 2) continue;
      if (std::ranges::any_of(taken_, [&](const Box& b) { return b.overlaps(box); })) continue;
      best = box;
      shift_of_best = shift;
      found = true;
      break;
    }
  }
  if (!found) {
    const double left = std::clamp(cx + 10, kLeft, std::max(kLeft, kWidth - width - 2));
    best = {left, cy - 0.5 * kLine, left + width, cy + 0.5 * kLine};
  }
  taken_.push_back(best);
  const bool right = best.left > cx;
  if (std::abs(shift_of_best) > kLine) {
    line(cx, cy, right ? best.left - 2 : best.right + 2, cy + shift_of_best, "leader");
  }
  text(right ? best.left : best.right, cy + shift_of_best + 4, text_of_label, "label", right ? "start" : "end");
}

void caption(Html& out, const Chart& chart) {
  out.open("figcaption").element("b", chart.title + ". ").text(chart.caption).close();
}

std::string style_class(const ChartSeries& s) { return fmt::format("s{}", s.style % kChartStyles); }

}  // namespace

std::vector<double> axis_ticks(double low, double high, int wanted) {
  const double rough = (high - low) / wanted;
  if (!(rough > 0) || !std::isfinite(rough)) return {};
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = power;
  for (double factor : {1.0, 2.0, 5.0, 10.0}) {
    step = factor * power;
    if (step >= rough) break;
  }
  std::vector<double> out;
  for (double i = std::ceil(low / step); i * step <= high; ++i) out.push_back(i * step + 0.0);  // never -0
  return out;
}

void write_mark(Html& out, int style, bool reference) {
  out.open("svg", {{"class", fmt::format("key s{}", style % kChartStyles)}, {"viewBox", "0 0 16 16"}, {"aria-hidden", "true"}});
  draw_mark(out, 8, 8, style, reference);
  out.close();
}

void write_scatter(Html& out, const Chart& chart) {
  std::vector<Tradeoff> points;
  for (const ChartSeries& s : chart.series) points.push_back({s.points.front().x, s.points.front().y});
  out.open("figure", {{"class", "chart"}});
  Plot plot(out, chart, 14);
  plot.open();
  plot.axes();
  std::string path;
  for (const std::size_t i : frontier(points))
    path += fmt::format("{:.1f},{:.1f} ", plot.x(points[i].cheap), plot.y(points[i].good));
  out.element("polyline", "", {{"class", "frontier"}, {"points", path}});
  for (const ChartSeries& s : chart.series) {
    const ChartPoint& p = s.points.front();
    const double cx = plot.x(p.x);
    if (s.label.empty()) {
      const std::string cy = px(plot.y(p.y));
      out.element("circle", "",
                  {{"class", "point dot"}, {"cx", px(cx)}, {"cy", cy}, {"r", "2.2"}, {"data-px", px(cx)}, {"data-py", cy}});
      continue;
    }
    plot.occupy({cx - 7, plot.y(p.y) - 7, cx + 7, plot.y(p.y) + 7});
    if (p.low && p.high) plot.occupy({cx - 1, plot.y(*p.high), cx + 1, plot.y(*p.low)});
  }
  for (const ChartSeries& s : chart.series) {
    if (s.label.empty()) continue;
    const double cx = plot.x(s.points.front().x);
    const double cy = plot.y(s.points.front().y);
    out.open("g", {{"class", "point " + style_class(s)}, {"data-spec", s.spec}, {"data-px", px(cx)}, {"data-py", px(cy)}});
    plot.interval(s.points.front());
    plot.mark(cx, cy, s.style, s.reference);
    plot.label(cx, cy, s.label);
    out.close();
  }
  plot.close();
  caption(out, chart);
  out.close();
}

void write_lines(Html& out, const Chart& chart) {
  out.open("figure", {{"class", "chart"}});
  std::size_t longest = 0;
  for (const ChartSeries& s : chart.series) longest = std::max(longest, s.label.size());
  const double label_room = std::min(200.0, kLetter * static_cast<double>(longest) + 22);
  Plot plot(out, chart, label_room);
  plot.open();
  plot.axes();
  // Labels at the right end, pushed down where they would cover each other.
  std::vector<std::pair<double, std::size_t>> ends;
  for (std::size_t i = 0; i < chart.series.size(); ++i) ends.emplace_back(plot.y(chart.series[i].points.back().y), i);
  std::ranges::sort(ends);
  std::vector<double> label_y(chart.series.size());
  double free = 0;
  for (const auto& [end, i] : ends) {
    label_y[i] = std::max(end, free);
    free = label_y[i] + kLine;
  }
  const double overflow = free - kLine - (kHeight - kBottom);
  for (double& y : label_y) y -= std::max(0.0, overflow);
  // Marks over one name, and intervals at one place, would hide each other: they stand side by side.
  const bool side_by_side = !chart.x_names.empty() || std::ranges::any_of(chart.series, [](const ChartSeries& s) {
    return std::ranges::any_of(s.points, [](const ChartPoint& p) { return p.low && p.high; });
  });
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const ChartSeries& s = chart.series[i];
    const double shift =
        !side_by_side ? 0.0 : 3.0 * (static_cast<double>(i) - 0.5 * static_cast<double>(chart.series.size() - 1));
    out.open("g", {{"class", "series " + style_class(s)}, {"data-spec", s.spec}});
    std::string path;
    for (const ChartPoint& p : s.points) path += fmt::format("{:.1f},{:.1f} ", plot.x(p.x) + shift, plot.y(p.y));
    out.element("polyline", "", {{"class", "line"}, {"points", path}});
    for (const ChartPoint& p : s.points) {
      plot.interval(p, shift);
      plot.mark(plot.x(p.x) + shift, plot.y(p.y), s.style, s.reference);
    }
    const double end_x = plot.x(s.points.back().x) + shift;
    const double end_y = plot.y(s.points.back().y);
    const double label_x = kWidth - label_room + 14;
    if (std::abs(label_y[i] - end_y) > 3) plot.line(end_x + 6, end_y, label_x - 2, label_y[i], "leader");
    plot.text(label_x, label_y[i] + 4, s.label, "label", "start");
    out.close();
  }
  plot.close();
  caption(out, chart);
  out.close();
}

}  // namespace kvartet
