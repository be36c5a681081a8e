#include "model/vocabulary.h"

#include <algorithm>
#include <climits>
#include <exception>
#include <mutex>
#include <utility>

#include <fmt/format.h>
#include <llama.h>

#include "core/utf8.h"
#include "model/chat_template.h"
#include "model/ggml_runtime.h"
#include "model/gguf_file.h"
#include "model/vocabulary_check.h"

namespace kvartet {

namespace {

// libllama explains a failed load only in its log: the first error line of this thread, which says
// why, becomes part of our sentence.
thread_local std::string first_log_error;

void keep_first_error(ggml_log_level level, const char* text, void* /*user*/) {
  if (level == GGML_LOG_LEVEL_ERROR && first_log_error.empty()) first_log_error = text;
}

void listen_to_libllama() {
  start_ggml();
  static std::once_flag once;
  std::call_once(once, [] { llama_log_set(keep_first_error, nullptr); });
}

struct ModelDeleter {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
using LlamaModel = std::unique_ptr<llama_model, ModelDeleter>;

class LlamaVocabulary final : public Vocabulary {
 public:
  LlamaVocabulary(LlamaModel model, std::string chat_template)
      : model_(std::move(model)),
        vocab_(llama_model_get_vocab(model_.get())),
        size_(llama_vocab_n_tokens(vocab_)),
        chat_template_(std::move(chat_template)),
        family_(recognize_chat_family(chat_template_)) {
    // SentencePiece puts a space before the first word; asking once is surer than repeating libllama's defaults.
    strips_leading_space_ = joined_pieces(run_tokenizer("a", ParseSpecial::kNo)) == " a";
  }

  int size() const override { return size_; }
  bool adds_bos() const override { return llama_vocab_get_add_bos(vocab_) && bos() >= 0; }
  Token bos() const override { return llama_vocab_bos(vocab_); }
  bool is_end(Token token) const override { return in_range(token) && llama_vocab_is_eog(vocab_, token); }

  Result<std::vector<Token>> tokenize(std::string_view text) const override {
    const std::size_t valid = valid_utf8_prefix(text);
    if (valid != text.size()) {
      return bad_input(
          fmt::format("the text is not valid UTF-8: byte {} (0x{:02x}) of {} begins no character; convert it to UTF-8 first",
                      valid, static_cast<unsigned char>(text[valid]), text.size()));
    }
    if (text.size() > INT_MAX / 2)
      return bad_input(fmt::format("the text has {} bytes; at most {} can be tokenized", text.size(), INT_MAX / 2));
    std::vector<Token> tokens = run_tokenizer(text, ParseSpecial::kNo);
    if (tokens.empty() && !text.empty())
      return bad_input("the vocabulary has no tokens for some bytes of the text; the model file is damaged");
    return tokens;
  }

  std::vector<Token> tokenize_special(std::string_view text) const override { return run_tokenizer(text, ParseSpecial::kYes); }

  std::string piece(Token token) const override {
    if (!in_range(token)) return {};  // libllama throws here
    try {
      char buffer[64];
      int bytes = llama_token_to_piece(vocab_, token, buffer, sizeof(buffer), 0, false);
      if (bytes >= 0) return {buffer, static_cast<std::size_t>(bytes)};
      std::string longer(static_cast<std::size_t>(-bytes), '\0');
      bytes = llama_token_to_piece(vocab_, token, longer.data(), -bytes, 0, false);
      longer.resize(static_cast<std::size_t>(std::max(bytes, 0)));
      return longer;
    } catch (const std::exception&) {
      return {};
    }
  }

  std::string detokenize(std::span<const Token> tokens) const override {
    std::string text = joined_pieces(tokens);
    if (strips_leading_space_ && text.starts_with(' ')) text.erase(0, 1);
    return text;
  }

  std::string chat_family() const override { return family_; }
  std::string chat_template() const override { return chat_template_; }

 private:
  enum class ParseSpecial : bool { kNo, kYes };

  bool in_range(Token token) const { return token >= 0 && token < size_; }

  std::string joined_pieces(std::span<const Token> tokens) const {
    std::string text;
    for (const Token token : tokens) text += piece(token);
    return text;
  }

  // Empty when libllama fails: it throws on vocabularies that lack byte tokens.
  std::vector<Token> run_tokenizer(std::string_view text, ParseSpecial parse) const {
    try {
      const auto bytes = static_cast<std::int32_t>(text.size());
      std::vector<Token> tokens(text.size() / 3 + 16);  // enough for prose; the needed size comes back negative otherwise
      for (int attempt = 0; attempt < 2; ++attempt) {
        const std::int32_t count = llama_tokenize(vocab_, text.data(), bytes, tokens.data(),
                                                  static_cast<std::int32_t>(tokens.size()), false, parse == ParseSpecial::kYes);
        if (count == INT32_MIN) return {};
        tokens.resize(static_cast<std::size_t>(count < 0 ? -count : count));
        if (count >= 0) return tokens;
      }
      return {};
    } catch (const std::exception&) {
      return {};
    }
  }

  LlamaModel model_;
  const llama_vocab* vocab_;
  int size_;
  std::string chat_template_;
  std::string family_;
  bool strips_leading_space_ = false;
};

// libllama catches what it cannot allocate and logs it as if the file were at fault.
Status load_failure(const std::string& path, std::string_view reason) {
  if (reason.find("bad_alloc") != std::string_view::npos) {
    return exhausted(fmt::format("no memory for the vocabulary of {}: close other programs or choose a smaller model", path));
  }
  return bad_input(fmt::format("the vocabulary of {} cannot be loaded ({}); convert the model again", path,
                               reason.empty() ? "no reason given" : reason));
}

Result<std::unique_ptr<Vocabulary>> load_from_libllama(const std::string& path, std::string chat_template) {
  first_log_error.clear();
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  LlamaModel model(llama_model_load_from_file(path.c_str(), params));
  if (model == nullptr) {
    while (first_log_error.ends_with('\n')) first_log_error.pop_back();
    return load_failure(path, first_log_error);
  }
  auto vocabulary = std::make_unique<LlamaVocabulary>(std::move(model), std::move(chat_template));
  if (vocabulary->size() <= 0) return bad_input(fmt::format("the vocabulary of {} is empty; convert the model again", path));
  return std::unique_ptr<Vocabulary>(std::move(vocabulary));
}

}  // namespace

Result<std::unique_ptr<Vocabulary>> Vocabulary::load(const std::string& gguf_path) {
  listen_to_libllama();
  KV_ASSIGN(const std::shared_ptr<const GgufFile> file, GgufFile::open(gguf_path));
  KV_TRY(check_vocabulary(*file).status());
  KV_ASSIGN(std::string chat_template, file->text_or("tokenizer.chat_template", ""));
  try {
    return load_from_libllama(gguf_path, std::move(chat_template));
  } catch (const std::exception& e) {
    return load_failure(gguf_path, e.what());
  }
}

}  // namespace kvartet
