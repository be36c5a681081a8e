#include "results/self_check_memory.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace kvartet {
namespace {

constexpr std::size_t kFields = 11;

std::vector<std::string_view> fields_of(std::string_view line) {
  std::vector<std::string_view> fields;
  while (true) {
    const std::size_t tab = line.find('\t');
    fields.push_back(line.substr(0, tab));
    if (tab == std::string_view::npos) return fields;
    line.remove_prefix(tab + 1);
  }
}

template <typename Number>
bool read_number(std::string_view text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

std::string one_field(std::string text) {
  std::replace_if(text.begin(), text.end(), [](char c) { return c == '\t' || c == '\n' || c == '\r'; }, ' ');
  return text;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

}  // namespace

Result<SelfCheckMemory> SelfCheckMemory::load(FileSystem& files, const std::string& path, std::string probe) {
  SelfCheckMemory memory(path, one_field(std::move(probe)));
  if (!files.exists(path)) return memory;
  KV_ASSIGN(const std::string text, files.read_file(path));
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) break;  // cut off while it was written
    memory.read_line(rest.substr(0, end));
    rest.remove_prefix(end + 1);
  }
  return memory;
}

void SelfCheckMemory::read_line(std::string_view line) {
  const std::vector<std::string_view> f = fields_of(line);
  if (f.size() != kFields || f[0] != probe_) return;
  SelfCheck check;
  check.spec = f[2];
  int acted = 0;
  if (!read_number(f[3], &check.seen) || !read_number(f[4], &check.tokens) || !read_number(f[5], &check.top1_agreement) ||
      !read_number(f[6], &check.kl_mean) || !read_number(f[7], &acted) || !read_number(f[10], &check.safe_agreement))
    return;
  check.acted = acted != 0;
  check.cause = f[8];
  check.safe_spec = f[9];
  known_[{std::string(f[1]), check.spec}] = std::move(check);
}

const SelfCheck* SelfCheckMemory::find(const std::string& model_hash, const std::string& spec) const {
  const auto found = known_.find({model_hash, spec});
  return found == known_.end() ? nullptr : &found->second;
}

Status SelfCheckMemory::add(FileSystem& files, const std::string& model_hash, std::span<const SelfCheck> checks) {
  std::string lines;
  for (const SelfCheck& c : checks) {
    lines +=
        fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{}\t{:d}\t{}\t{}\t{}\n", probe_, one_field(model_hash), one_field(c.spec), c.seen,
                    c.tokens, c.top1_agreement, c.kl_mean, c.acted, one_field(c.cause), one_field(c.safe_spec), c.safe_agreement);
    known_[{model_hash, c.spec}] = c;
  }
  KV_TRY(files.make_directories(folder_of(path_)));
  KV_ASSIGN(const std::unique_ptr<WritableFile> file, files.open_append(path_));
  KV_TRY(file->append(lines));
  return file->close();
}

}  // namespace kvartet
