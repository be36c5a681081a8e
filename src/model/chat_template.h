// Chat templates as a small table of families. GGUF files carry Jinja programs; libllama's own renderer drops default
// system messages, so the few forms that our architectures use are written down here and recognized by their markers.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kvartet {

// One user turn is before + user text + after, with the header of the assistant's answer as the end of `after`. A second one
// follows the answer's text with between + user text + after.
struct ChatText {
  std::string before;
  std::string after;
  std::string between;           // ends the answer's turn and begins the next turn of the user
  bool starts_with_bos = false;  // the template itself writes the BOS token, whatever the file's add_bos says
};

// The family of a template's text: "chatml", "qwen3", "llama3", "llama3.1", "llama2", "mistral", "gemma"; "" when it is none of
// them.
std::string recognize_chat_family(std::string_view chat_template);

// The text around a user message. `chat_template` supplies what differs inside a family (ChatML's default system message,
// the spaces around [INST]); it may be empty. False: no such family.
bool chat_text(std::string_view family, std::string_view chat_template, ChatText* out);

std::span<const std::string_view> chat_families();

}  // namespace kvartet
