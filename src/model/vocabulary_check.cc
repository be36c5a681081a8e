#include "model/vocabulary_check.h"

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

namespace kvartet {
namespace {

// Far above any vocabulary there is; keeps what libllama builds from one (a few hundred bytes a piece) inside a few GB.
constexpr std::size_t kMostTokens = std::size_t{1} << 22;
constexpr std::size_t kMostMerges = std::size_t{1} << 23;
constexpr std::size_t kLongestToken = 65'535;  // bytes
constexpr std::int32_t kByteTokenType = 6;
constexpr std::int32_t kLastTokenType = 6;       // 0 undefined, 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
constexpr std::uint64_t kNoToken = 0xffffffffU;  // all bits set is how some files say "none"

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kTypes = "tokenizer.ggml.token_type";
constexpr const char* kScores = "tokenizer.ggml.scores";
constexpr const char* kMerges = "tokenizer.ggml.merges";

// Those that libllama reads; whether it ignores one that is out of range differs from version to version.
constexpr const char* kSpecialTokens[] = {"bos",     "eos",     "eot",     "eom",     "unknown", "seperator",
                                          "padding", "cls",     "mask",    "fim_pre", "fim_suf", "fim_mid",
                                          "fim_pad", "fim_rep", "fim_sep", "prefix",  "suffix",  "middle"};

class VocabularyCheck {
 public:
  explicit VocabularyCheck(const GgufFile& file) : file_(file) {}

  Result<int> size() {
    KV_TRY(check_kind());
    KV_ASSIGN(const std::size_t count, file_.text_count(kTokens));
    KV_TRY(check_size(count));
    return static_cast<int>(count);
  }

  Result<int> run() {
    KV_TRY(check_kind());
    KV_TRY(check_texts());
    KV_TRY(check_types());
    KV_TRY(check_scores());
    KV_TRY(check_special_tokens());
    if (kind_ == "gpt2") KV_TRY(check_merges());
    return static_cast<int>(tokens_.size());
  }

 private:
  Status damaged(const std::string& what) const {
    return bad_input(fmt::format("the vocabulary of '{}' is damaged: {}", file_.path(), what));
  }

  // Other kinds are not of our architectures, and abort in libllama when they are damaged.
  Status check_kind() {
    KV_ASSIGN(kind_, file_.text_or("tokenizer.ggml.model", ""));
    if (kind_.empty() || kind_ == "no_vocab" || kind_ == "none" || !file_.has(kTokens)) {
      return bad_input(fmt::format("'{}' has no vocabulary: convert the model together with its tokenizer", file_.path()));
    }
    if (kind_ == "gpt2" || kind_ == "llama") return {};
    return bad_input(
        fmt::format("the tokenizer kind '{}' of '{}' is not supported; supported are gpt2 and llama", kind_, file_.path()));
  }

  Status check_size(std::size_t tokens) const {
    if (tokens >= 1 && tokens <= kMostTokens) return {};
    return bad_input(
        fmt::format("'{}' has a vocabulary of {} tokens, but 1 to {} are possible", file_.path(), tokens, kMostTokens));
  }

  // libllama asserts that no two tokens are equal (as C strings), and gives an empty one a name of its own.
  Status check_texts() {
    KV_ASSIGN(tokens_, file_.texts(kTokens));
    KV_TRY(check_size(tokens_.size()));
    std::unordered_map<std::string_view, std::size_t> seen;
    seen.reserve(tokens_.size());
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const std::string_view text = tokens_[i];
      if (text.empty()) return damaged(fmt::format("token {} is empty", i));
      if (text.size() > kLongestToken)
        return damaged(fmt::format("token {} has {} bytes, at most {} are possible", i, text.size(), kLongestToken));
      const auto [other, inserted] = seen.emplace(text, i);
      if (!inserted) return damaged(fmt::format("tokens {} and {} are both '{}'", other->second, i, text));
    }
    return {};
  }

  // libllama reads a table as far as there are tokens.
  Status check_length(const char* key) const {
    const std::size_t entries = file_.array_size(key);
    if (entries == tokens_.size()) return {};
    return damaged(fmt::format("'{}' has {} entries for {} tokens", key, entries, tokens_.size()));
  }

  Status check_types() const {
    if (!file_.has(kTypes)) return {};
    KV_TRY(check_length(kTypes));
    KV_ASSIGN(const std::span<const std::int32_t> types, file_.whole_numbers(kTypes));
    for (std::size_t i = 0; i < types.size(); ++i) {
      if (types[i] < 0 || types[i] > kLastTokenType) {
        return damaged(fmt::format("token {} has the type {}, but 0 to {} are known", i, types[i], kLastTokenType));
      }
      if (types[i] == kByteTokenType && kind_ == "llama" && !names_a_byte(tokens_[i])) {
        return damaged(fmt::format("token {} is of the type for bytes, but '{}' names none as <0x41> does", i, tokens_[i]));
      }
    }
    return {};
  }

  static bool names_a_byte(std::string_view text) {
    const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F') || (c >= 'a' && c <= 'f'); };
    return text.size() == 6 && text.starts_with("<0x") && is_digit(text[3]) && is_digit(text[4]) && text[5] == '>';
  }

  // A NaN would leave the order of merges to chance.
  Status check_scores() const {
    if (!file_.has(kScores)) return {};
    KV_TRY(check_length(kScores));
    KV_ASSIGN(const std::span<const float> scores, file_.reals(kScores));
    for (std::size_t i = 0; i < scores.size(); ++i) {
      if (std::isnan(scores[i])) return damaged(fmt::format("the score of token {} is not a number", i));
    }
    return {};
  }

  Status check_special_tokens() const {
    for (const char* name : kSpecialTokens) {
      const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
      KV_ASSIGN(const std::uint64_t id, file_.integer_or(key, 0));
      if (id < tokens_.size() || id == kNoToken) continue;
      return damaged(fmt::format("{} is {}, but there are {} tokens", key, id, tokens_.size()));
    }
    return {};
  }

  Status check_merges() const {
    KV_ASSIGN(const std::vector<const char*> merges, file_.texts(kMerges));
    if (merges.size() > kMostMerges) {
      return damaged(fmt::format("'{}' has {} entries, but at most {} are possible", kMerges, merges.size(), kMostMerges));
    }
    for (std::size_t i = 0; i < merges.size(); ++i) {
      const std::string_view merge = merges[i];
      const std::size_t space = merge.find(' ', 1);
      if (space == merge.npos || space + 1 == merge.size()) {
        return damaged(fmt::format("merge {} is '{}', but must be two pieces with a space between them", i, merge));
      }
    }
    return {};
  }

  const GgufFile& file_;
  std::string kind_;
  std::vector<const char*> tokens_;
};

}  // namespace

Result<int> check_vocabulary(const GgufFile& file) { return VocabularyCheck(file).run(); }

Result<int> vocabulary_size(const GgufFile& file) { return VocabularyCheck(file).size(); }

}  // namespace kvartet
