#include "core/utf8.h"

#include <cstring>

#include "core/check.h"

namespace kvartet {

namespace {

// Table 3-7: the lead byte fixes the length and the range of the second byte; all later bytes are 80..BF.
struct Lead {
  std::size_t length = 0;  // 0: no character begins with this byte
  unsigned char second_low = 0x80;
  unsigned char second_high = 0xBF;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};  // continuation bytes and overlong two-byte forms
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};  // below: overlong
  if (byte == 0xED) return {3, 0x80, 0x9F};  // above: surrogates
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};  // below: overlong
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};  // above: past U+10FFFF
  return {0};
}

// Documents are mostly ASCII: skip it eight bytes at a time.
std::size_t ascii_run(std::string_view text) {
  std::size_t n = 0;
  for (std::uint64_t word = 0; n + sizeof(word) <= text.size(); n += sizeof(word)) {
    std::memcpy(&word, text.data() + n, sizeof(word));
    if ((word & 0x8080808080808080ULL) != 0) break;
  }
  while (n < text.size() && static_cast<unsigned char>(text[n]) < 0x80) ++n;
  return n;
}

std::size_t replace_into(std::string_view text, std::string* out) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Piece piece = next_utf8(text.substr(at));
    if (piece.kind == Utf8Kind::kIncomplete) break;
    out->append(piece.kind == Utf8Kind::kCharacter ? text.substr(at, piece.bytes) : kReplacementCharacter);
    at += piece.bytes;
  }
  return at;
}

}  // namespace

Utf8Piece next_utf8(std::string_view text) {
  KV_CHECK(!text.empty());
  const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
  if (lead.length == 0) return {Utf8Kind::kInvalid, 1};
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Utf8Kind::kIncomplete, i};
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool fits = i == 1 ? byte >= lead.second_low && byte <= lead.second_high : (byte & 0xC0U) == 0x80U;
    if (!fits) return {Utf8Kind::kInvalid, i};
  }
  return {Utf8Kind::kCharacter, lead.length};
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t at = ascii_run(text);
  while (at < text.size()) {
    const Utf8Piece piece = next_utf8(text.substr(at));
    if (piece.kind != Utf8Kind::kCharacter) return at;
    at += piece.bytes;
    at += ascii_run(text.substr(at));
  }
  return at;
}

std::size_t complete_utf8_prefix(std::string_view text) {
  // A cut-off character is at most three bytes long, so only the last three can begin it.
  const std::size_t first = text.size() < 3 ? 0 : text.size() - 3;
  for (std::size_t at = first; at < text.size(); ++at) {
    const Utf8Piece piece = next_utf8(text.substr(at));
    if (piece.kind == Utf8Kind::kIncomplete) return at;
  }
  return text.size();
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  if (replace_into(text, &out) < text.size()) out.append(kReplacementCharacter);
  return out;
}

std::string Utf8Stream::push(std::string_view bytes) {
  tail_.append(bytes);
  std::string out;
  tail_.erase(0, replace_into(tail_, &out));
  return out;
}

std::string Utf8Stream::finish() {
  std::string out = tail_.empty() ? std::string() : std::string(kReplacementCharacter);
  tail_.clear();
  return out;
}

}  // namespace kvartet
