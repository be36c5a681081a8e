#include "bench/tasks/needle_haystack.h"

#include <fmt/format.h>

#include <string_view>

#include "core/utf8.h"

namespace kvartet {
namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool begins_sentence(char c) {
  return (c >= 'A' && c <= 'Z') || c == '"' || c == '(' || c == '[' || (static_cast<unsigned char>(c) & 0x80U) != 0;
}

// End of a sentence that ends at `at` (its stop), closing marks included; npos: not the end of one.
std::size_t sentence_end(const std::string& text, std::size_t at) {
  if (std::string_view(".!?").find(text[at]) == std::string_view::npos) return std::string::npos;
  std::size_t end = at + 1;
  while (end < text.size() && std::string_view("\"')]").find(text[end]) != std::string_view::npos) ++end;
  return end < text.size() && is_space(text[end]) ? end : std::string::npos;
}

std::string haystack_folder(FileSystem& files, const std::string& data_dir, const std::string& essays_dir) {
  if (!data_dir.empty() && files.exists(data_dir + "/haystack")) return data_dir + "/haystack";
  return essays_dir;
}

}  // namespace

std::vector<std::string> split_sentences(const std::string& text) {
  std::vector<std::string> out;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t end = sentence_end(text, i);
    if (end == std::string::npos) continue;
    std::size_t next = end;
    while (next < text.size() && is_space(text[next])) ++next;
    if (next < text.size() && !begins_sentence(text[next])) continue;
    out.push_back(text.substr(begin, next - begin));
    begin = next;
    i = next - 1;
  }
  if (begin < text.size()) out.push_back(text.substr(begin));
  return out;
}

Filler essay_filler(const Haystack& haystack, std::size_t start) {
  const std::vector<std::string>& sentences = haystack.sentences;
  return {.piece = [&sentences, start](std::size_t i) { return sentences[(start + i) % sentences.size()]; }, .starts_block = {}};
}

Result<Haystack> load_haystack(FileSystem& files, const std::string& data_dir, const std::string& essays_dir) {
  const std::string folder = haystack_folder(files, data_dir, essays_dir);
  Haystack out;
  if (files.exists(folder)) {
    KV_ASSIGN(const std::vector<std::string> names, files.list(folder));
    for (const std::string& name : names) {
      if (!name.ends_with(".txt")) continue;
      const std::string path = folder + "/" + name;
      KV_ASSIGN(std::string text, files.read_file(path));
      if (!is_valid_utf8(text))
        return bad_input(fmt::format("The haystack text {} is not valid UTF-8; remove or convert it.", path));
      if (!text.empty() && !is_space(text.back())) text += "\n\n";
      for (std::string& sentence : split_sentences(text)) out.sentences.push_back(std::move(sentence));
    }
  }
  if (out.sentences.empty()) {
    return bad_input(
        fmt::format("There is no haystack text: {} holds no .txt files; run 'make setup', or put essays into a folder "
                    "haystack/ and name the folder above it with --data.",
                    folder));
  }
  return out;
}

}  // namespace kvartet
