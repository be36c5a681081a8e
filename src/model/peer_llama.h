// llama.cpp through libllama in this process: the oracle of the model tests and the peer of the speed table.
//
// Its OpenMP regions are on the calling thread: use it on the thread that runs everything else (a second thread with a
// team of its own would slow both several times).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"

namespace kvartet {

enum class PeerCache : std::uint8_t { kF32, kF16, kQ8_0, kQ4_0 };
const char* peer_cache_name(PeerCache cache);  // "f32", "f16", "q8_0", "q4_0"

enum class FlashAttention : std::uint8_t { kOff, kOn };
// Whether weights may be stored anew in the form its fastest kernels want (Q4_0, Q4_K, IQ4_NL): its default, not bit-exact.
enum class PeerRepack : std::uint8_t { kOff, kOn };

struct PeerOptions {
  int threads = 1;
  PeerRepack repack = PeerRepack::kOn;
  const std::atomic<bool>* cancel = nullptr;  // once true, whatever its sessions compute ends with kCancelled
};

struct PeerSessionOptions {
  PeerCache cache = PeerCache::kF16;
  FlashAttention flash = FlashAttention::kOff;  // a quantized cache needs kOn
  int context = 0;                              // tokens; more than the model was trained for is allowed
};

// One sequence in a cache of its own. Prefill to a depth, rewind, decode, as often as wanted.
class PeerSession {
 public:
  virtual ~PeerSession() = default;
  virtual int depth() const = 0;  // tokens in the cache
  // Appends the tokens, 512 at a time. kExhausted: more than the context holds. kCancelled: in the middle of them; rewind.
  virtual Status prefill(std::span<const std::int32_t> tokens) = 0;
  // Appends one token.
  virtual Status decode(std::int32_t token) = 0;
  // Logits [vocab] of the token appended last; valid until the next call.
  virtual std::span<const float> logits() const = 0;
  // Forgets everything from position `depth` on. The logits are gone.
  virtual Status rewind(int depth) = 0;
  // Forgets everything before `position`; depth() stays. With it a sliding window can be enforced token by token.
  virtual Status forget_before(int position) = 0;
};

class PeerLlama {
 public:
  // kBadInput: libllama cannot load the model.
  static Result<std::unique_ptr<PeerLlama>> open(const std::string& path, const PeerOptions& options);
  virtual ~PeerLlama() = default;

  virtual int vocab() const = 0;
  // kUsage: a combination libllama does not have; kExhausted: no memory.
  virtual Result<std::unique_ptr<PeerSession>> session(const PeerSessionOptions& options) = 0;

  // Logits [tokens, vocab] of every position. With the default repack off, an f32 cache and flash attention off this is
  // the oracle.
  virtual Result<std::vector<float>> logits(std::span<const std::int32_t> tokens, const PeerSessionOptions& options) = 0;
  // Greedy continuation, ties to the lower token id; stops before an end-of-generation token.
  virtual Result<std::vector<std::int32_t>> generate(std::span<const std::int32_t> prompt, int max_tokens,
                                                     const PeerSessionOptions& options) = 0;
};

// Seconds of one measurement: `tokens` appended to an empty session by prefill.
Result<double> time_prefill(PeerSession& session, std::span<const std::int32_t> tokens);
// Seconds for decoding `count` tokens after position `depth`, where the session is left again. The session must hold at
// least `depth` tokens.
Result<double> time_decode(PeerSession& session, int depth, int count);

}  // namespace kvartet
