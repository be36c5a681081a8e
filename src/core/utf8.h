// UTF-8 as the Unicode standard defines it (3.9, table 3-7): no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvartet {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Kind : std::uint8_t {
  kCharacter,   // a whole character
  kIncomplete,  // the text ends inside a character that more bytes could complete
  kInvalid,     // these bytes can begin no character: the "maximal subpart" that one U+FFFD stands for
};

struct Utf8Piece {
  Utf8Kind kind = Utf8Kind::kInvalid;
  std::size_t bytes = 0;  // at least 1
};

// What `text`, which is not empty, begins with.
Utf8Piece next_utf8(std::string_view text);

// Bytes of the longest prefix made of whole characters; equals text.size() exactly when all of it is valid.
std::size_t valid_utf8_prefix(std::string_view text);
inline bool is_valid_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }

// Bytes that no further byte can change: all but a character cut off by the end of the text. Invalid bytes count.
std::size_t complete_utf8_prefix(std::string_view text);

// Every invalid piece, a cut-off character at the end too, becomes one U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

// Bytes as they come, valid UTF-8 as it becomes certain: an incomplete tail is held back until it is completed or refuted.
// Joined, the pieces equal replace_invalid_utf8 of all bytes, wherever these were cut.
class Utf8Stream {
 public:
  std::string push(std::string_view bytes);
  std::string finish();  // the held tail, if any, as U+FFFD

 private:
  std::string tail_;
};

}  // namespace kvartet
