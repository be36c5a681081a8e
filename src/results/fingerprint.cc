#include "results/fingerprint.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>

namespace kvartet {

static_assert(std::endian::native == std::endian::little, "hashes are defined over little-endian integers");

std::string hash_tokens(std::span<const std::int32_t> tokens) {
  return fmt::format("{:016x}", XXH64(tokens.data(), tokens.size_bytes(), 0));
}

std::string hash_bytes(std::string_view bytes) { return fmt::format("{:016x}", XXH64(bytes.data(), bytes.size(), 0)); }

Result<std::string> model_fingerprint(FileSystem& files, const std::string& path) {
  KV_ASSIGN(const std::unique_ptr<MappedFile> file, files.map_file(path));
  const std::span<const std::byte> bytes = file->bytes();
  const std::uint64_t size = bytes.size();

  constexpr std::uint64_t kEdge = 1 << 20;
  constexpr std::uint64_t kPiece = 64 << 10;
  constexpr std::uint64_t kPieces = 64;
  XXH64_state_t* state = XXH64_createState();
  KV_CHECK(state != nullptr);
  XXH64_reset(state, 0);
  const auto add = [&](std::uint64_t begin, std::uint64_t length) {
    const std::uint64_t end = std::min(begin + length, size);
    if (begin < end) XXH64_update(state, bytes.data() + begin, end - begin);
  };
  XXH64_update(state, &size, sizeof size);
  if (size <= 2 * kEdge + kPieces * kPiece) {
    add(0, size);
  } else {
    add(0, kEdge);
    const std::uint64_t step = (size - 2 * kEdge) / kPieces;
    for (std::uint64_t i = 0; i < kPieces; ++i) add(kEdge + i * step, kPiece);
    add(size - kEdge, kEdge);
  }
  const std::uint64_t hash = XXH64_digest(state);
  XXH64_freeState(state);
  return fmt::format("{:016x}", hash);
}

}  // namespace kvartet
