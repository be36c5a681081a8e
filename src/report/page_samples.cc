// Samples on which caches disagree, side by side, with the reference answer marked.
#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "core/counted.h"
#include "core/utf8.h"
#include "report/page_parts.h"

namespace kvartet {
namespace {

constexpr std::size_t kShownSamples = 5;
constexpr std::size_t kShownBytes = 700;  // of an answer before it has to be unfolded

std::vector<std::string> answers_of(const SampleRecord& sample) {
  const nlohmann::json list = nlohmann::json::parse(sample.answers_json, nullptr, false);
  std::vector<std::string> out;
  if (!list.is_array()) return out;
  for (const nlohmann::json& answer : list) {
    if (answer.is_string()) out.push_back(answer.get<std::string>());
  }
  return out;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](char c) {
    return static_cast<unsigned char>(c) < 128 ? std::tolower(static_cast<unsigned char>(c)) : c;
  });
  return out;
}

// The text with every place marked where a reference answer stands in it, letter case aside.
void write_marked(Html& out, std::string_view text, const std::vector<std::string>& answers) {
  const std::string small = lower(text);
  std::size_t at = 0;
  while (at < text.size()) {
    std::size_t next = std::string::npos;
    std::size_t length = 0;
    for (const std::string& answer : answers) {
      if (answer.empty()) continue;
      const std::size_t found = small.find(lower(answer), at);
      if (found < next || (found == next && found != std::string::npos && answer.size() > length)) {
        next = found;
        length = answer.size();
      }
    }
    if (next == std::string::npos) break;
    out.text(text.substr(at, next - at));
    out.element("mark", text.substr(next, length));
    at = next + length;
  }
  out.text(text.substr(std::min(at, text.size())));
}

void write_answer_text(Html& out, const std::string& raw, const std::vector<std::string>& answers) {
  const std::string text = replace_invalid_utf8(raw);
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    out.element("p", "(nothing)", {{"class", "small"}});
    return;
  }
  if (text.size() <= kShownBytes + 100) {
    out.open("p", {{"class", "words"}, {"dir", "auto"}});
    write_marked(out, text, answers);
    out.close();
    return;
  }
  const std::size_t cut = complete_utf8_prefix(std::string_view(text).substr(0, kShownBytes));
  out.open("p", {{"class", "words"}, {"dir", "auto"}});
  write_marked(out, std::string_view(text).substr(0, cut), answers);
  out.text(" …").close();
  out.open("details").element("summary", "The rest");
  out.open("p", {{"class", "words"}, {"dir", "auto"}});
  write_marked(out, std::string_view(text).substr(cut), answers);
  out.close().close();
}

void write_sample(Html& out, const PageContext& page, const Disagreement& d) {
  const SampleRecord& sample = *d.sample;
  const std::vector<std::string> answers = answers_of(sample);
  out.open("article", {{"class", "sample"}});
  out.element("h4", fmt::format("Sample {}", sample.key.sample));
  out.element("p",
              fmt::format("{} prompt token{}, prompt hash {}", grouped(sample.prompt_tokens),
                          sample.prompt_tokens == 1 ? "" : "s", sample.prompt_hash),
              {{"class", "small"}});
  if (!sample.question.empty()) out.element("p", sample.question, {{"class", "words question"}, {"dir", "auto"}});
  out.open("div", {{"class", "side-by-side"}});
  out.open("div", {{"class", "reply gold"}}).element("h5", answers.size() == 1 ? "Reference answer" : "Reference answers");
  if (answers.size() == 1) {
    write_answer_text(out, answers.front(), answers);
  } else {
    out.open("ul");
    for (const std::string& answer : answers) out.open("li").element("mark", answer).close();
    out.close();
  }
  out.close();
  for (const Outcome* o : d.outcomes) {
    out.open("div", {{"class", "reply"}, {"data-spec", o->spec}});
    out.open("h5");
    write_mark(out, page.styles.at(o->spec), page.reference(o->spec));
    out.text(page.name(o->spec)).close();
    std::string figures = o->score ? fmt::format("{:.0f} points", 100 * *o->score) : "no score";
    if (o->gold_log_likelihood) figures += fmt::format(", {} nats", signed_text(*o->gold_log_likelihood, 3));
    figures +=
        fmt::format(", {}{}", counted(o->completion_tokens, "token"), o->finish_reason == "length" ? ", cut at the limit" : "");
    out.element("p", figures, {{"class", "small"}});
    write_answer_text(out, o->prediction, answers);
    out.close();
  }
  out.close().close();
}

}  // namespace

void write_samples(Html& out, const PageContext& page, const PageTable& table) {
  const std::vector<Disagreement> all = disagreements(page.results, table.cell());
  if (all.empty()) return;
  const std::size_t shown = std::min(kShownSamples, all.size());
  out.open("details");
  out.element("summary", fmt::format("Samples on which the caches disagree: {}{}", all.size(),
                                     shown < all.size() ? fmt::format(", the {} widest apart shown", shown) : ""));
  for (std::size_t i = 0; i < shown; ++i) write_sample(out, page, all[i]);
  out.close();
}

}  // namespace kvartet
