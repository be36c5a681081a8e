#include "model/peer_llama.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <llama.h>

#include "core/clock.h"
#include "model/ggml_runtime.h"
#include "model/gguf_file.h"
#include "model/vocabulary_check.h"

namespace kvartet {
namespace {

constexpr int kBatch = 512;  // libllama's default for a compute batch

struct ModelDeleter {
  void operator()(llama_model* m) const {
    if (m != nullptr) llama_model_free(m);
  }
};
struct ContextDeleter {
  void operator()(llama_context* c) const { llama_free(c); }
};
using ModelPointer = std::shared_ptr<llama_model>;  // sessions keep it alive
using ContextPointer = std::unique_ptr<llama_context, ContextDeleter>;

ggml_type cache_type(PeerCache cache) {
  switch (cache) {
    case PeerCache::kF32: return GGML_TYPE_F32;
    case PeerCache::kF16: return GGML_TYPE_F16;
    case PeerCache::kQ8_0: return GGML_TYPE_Q8_0;
    case PeerCache::kQ4_0: return GGML_TYPE_Q4_0;
  }
  return GGML_TYPE_F16;
}

// libllama throws through its C interface.
template <typename Call>
auto guarded(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::exception& e) {
    return internal_error(fmt::format("llama.cpp failed: {}", e.what()));
  }
}

// What libllama asks between two operations of a graph; a step over a long prompt takes seconds, a prefill minutes.
bool is_cancelled(void* flag) { return static_cast<const std::atomic<bool>*>(flag)->load(); }

// A batch of one sequence whose storage is ours.
class Batch {
 public:
  explicit Batch(int capacity) : batch_(llama_batch_init(capacity, 0, 1)) {}
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() { llama_batch_free(batch_); }

  enum class Logits : std::uint8_t { kLast, kAll };
  void fill(std::span<const std::int32_t> tokens, int first_position, Logits logits) {
    batch_.n_tokens = static_cast<std::int32_t>(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      batch_.token[i] = tokens[i];
      batch_.pos[i] = first_position + static_cast<int>(i);
      batch_.n_seq_id[i] = 1;
      batch_.seq_id[i][0] = 0;
      batch_.logits[i] = logits == Logits::kAll || i + 1 == tokens.size();
    }
  }
  const llama_batch& get() const { return batch_; }

 private:
  llama_batch batch_;
};

class Session : public PeerSession {
 public:
  Session(ModelPointer model, ContextPointer context, int vocab, const std::atomic<bool>* cancel)
      : model_(std::move(model)), context_(std::move(context)), vocab_(vocab), cancel_(cancel), batch_(kBatch) {}

  int depth() const override { return depth_; }

  Status prefill(std::span<const std::int32_t> tokens) override {
    for (std::size_t begin = 0; begin < tokens.size(); begin += kBatch) {
      KV_TRY(append(tokens.subspan(begin, std::min<std::size_t>(kBatch, tokens.size() - begin)), Batch::Logits::kLast));
    }
    return {};
  }

  Status decode(std::int32_t token) override { return append({&token, 1}, Batch::Logits::kLast); }

  std::span<const float> logits() const override {
    const float* row = llama_get_logits_ith(context_.get(), -1);
    return row == nullptr ? std::span<const float>() : std::span<const float>(row, static_cast<std::size_t>(vocab_));
  }

  Status rewind(int depth) override {
    KV_CHECK(depth >= 0 && depth <= depth_);
    return guarded([&]() -> Status {
      if (!llama_memory_seq_rm(llama_get_memory(context_.get()), 0, depth, -1))
        return internal_error("llama.cpp cannot rewind its cache");
      depth_ = depth;
      return {};
    });
  }

  Status forget_before(int position) override {
    KV_CHECK(position >= 0 && position <= depth_);
    if (position == 0) return {};  // libllama takes an empty range for everything
    return guarded([&]() -> Status {
      if (!llama_memory_seq_rm(llama_get_memory(context_.get()), 0, 0, position))
        return internal_error("llama.cpp cannot forget the start of its cache");
      return {};
    });
  }

  // Appends the tokens and gives the logits of all of them, [tokens, vocab].
  Status append_with_logits(std::span<const std::int32_t> tokens, std::vector<float>& all) {
    for (std::size_t begin = 0; begin < tokens.size(); begin += kBatch) {
      const auto piece = tokens.subspan(begin, std::min<std::size_t>(kBatch, tokens.size() - begin));
      KV_TRY(append(piece, Batch::Logits::kAll));
      const float* rows = llama_get_logits(context_.get());
      all.insert(all.end(), rows, rows + piece.size() * static_cast<std::size_t>(vocab_));
    }
    return {};
  }

 private:
  Status append(std::span<const std::int32_t> tokens, Batch::Logits logits) {
    const auto limit = static_cast<int>(llama_n_ctx(context_.get()));
    if (depth_ + static_cast<int>(tokens.size()) > limit) {
      return exhausted(fmt::format("llama.cpp's context of {} tokens is full: ask for a longer one", limit));
    }
    for (const std::int32_t t : tokens) {
      if (t < 0 || t >= vocab_)
        return bad_input(fmt::format("token {} is out of range: the vocabulary has {} tokens", t, vocab_));
    }
    return guarded([&]() -> Status {
      batch_.fill(tokens, depth_, logits);
      const std::int32_t code = llama_decode(context_.get(), batch_.get());
      if (code != 0 && cancel_ != nullptr && cancel_->load()) return cancelled("interrupted while llama.cpp was computing");
      if (code != 0)
        return internal_error(
            fmt::format("llama.cpp failed to run {} tokens at position {} (code {})", tokens.size(), depth_, code));
      depth_ += static_cast<int>(tokens.size());
      return {};
    });
  }

  ModelPointer model_;
  ContextPointer context_;
  int vocab_;
  const std::atomic<bool>* cancel_;
  Batch batch_;
  int depth_ = 0;
};

class LibllamaPeer : public PeerLlama {
 public:
  LibllamaPeer(ModelPointer model, const PeerOptions& options)
      : model_(std::move(model)), threads_(options.threads), cancel_(options.cancel) {
    vocab_ = llama_vocab_n_tokens(llama_model_get_vocab(model_.get()));
  }

  int vocab() const override { return vocab_; }

  Result<std::unique_ptr<PeerSession>> session(const PeerSessionOptions& options) override {
    KV_ASSIGN(std::unique_ptr<Session> made, make_session(options));
    return std::unique_ptr<PeerSession>(std::move(made));
  }

  Result<std::vector<float>> logits(std::span<const std::int32_t> tokens, const PeerSessionOptions& options) override {
    KV_ASSIGN(auto session, make_session(options));
    std::vector<float> all;
    KV_TRY(session->append_with_logits(tokens, all));
    return all;
  }

  Result<std::vector<std::int32_t>> generate(std::span<const std::int32_t> prompt, int max_tokens,
                                             const PeerSessionOptions& options) override {
    KV_ASSIGN(auto session, make_session(options));
    KV_TRY(session->prefill(prompt));
    std::vector<std::int32_t> tokens;
    const llama_vocab* vocabulary = llama_model_get_vocab(model_.get());
    while (static_cast<int>(tokens.size()) < max_tokens) {
      const std::span<const float> row = session->logits();
      const auto best = static_cast<std::int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
      if (llama_vocab_is_eog(vocabulary, best)) break;
      tokens.push_back(best);
      if (static_cast<int>(tokens.size()) < max_tokens) KV_TRY(session->decode(best));
    }
    return tokens;
  }

 private:
  Result<std::unique_ptr<Session>> make_session(const PeerSessionOptions& options) {
    const bool quantized = options.cache == PeerCache::kQ8_0 || options.cache == PeerCache::kQ4_0;
    if (quantized && options.flash == FlashAttention::kOff) {
      return usage_error(fmt::format("llama.cpp has no {} cache without flash attention", peer_cache_name(options.cache)));
    }
    return guarded([&]() -> Result<std::unique_ptr<Session>> {
      llama_context_params params = llama_context_default_params();
      params.n_ctx = static_cast<std::uint32_t>(std::max(options.context, 1));
      params.n_batch = params.n_ubatch = kBatch;
      params.n_seq_max = 1;
      params.n_threads = params.n_threads_batch = threads_;
      params.type_k = params.type_v = cache_type(options.cache);
      params.flash_attn_type =
          options.flash == FlashAttention::kOn ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
      params.no_perf = true;
      ContextPointer context(llama_init_from_model(model_.get(), params));
      if (context == nullptr) {
        return exhausted(fmt::format("llama.cpp cannot make a context of {} tokens with a {} cache", options.context,
                                     peer_cache_name(options.cache)));
      }
      // Not in the parameters: making a context computes nothing that could be given up.
      if (cancel_ != nullptr) llama_set_abort_callback(context.get(), is_cancelled, const_cast<std::atomic<bool>*>(cancel_));
      return std::make_unique<Session>(model_, std::move(context), vocab_, cancel_);
    });
  }

  ModelPointer model_;
  int threads_;
  const std::atomic<bool>* cancel_;
  int vocab_ = 0;
};

}  // namespace

const char* peer_cache_name(PeerCache cache) { return ggml_type_name(cache_type(cache)); }

Result<std::unique_ptr<PeerLlama>> PeerLlama::open(const std::string& path, const PeerOptions& options) {
  start_ggml();
  // libllama aborts on some damaged files and vocabularies.
  KV_ASSIGN(const auto file, GgufFile::open(path));
  KV_ASSIGN([[maybe_unused]] const int tokens, check_vocabulary(*file));
  return guarded([&]() -> Result<std::unique_ptr<PeerLlama>> {
    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    params.use_extra_bufts = options.repack == PeerRepack::kOn;
    ModelPointer model(llama_model_load_from_file(path.c_str(), params), ModelDeleter());
    if (model == nullptr) return bad_input(fmt::format("llama.cpp cannot load '{}'", path));
    return std::unique_ptr<PeerLlama>(std::make_unique<LibllamaPeer>(std::move(model), options));
  });
}

Result<double> time_prefill(PeerSession& session, std::span<const std::int32_t> tokens) {
  KV_TRY(session.rewind(0));
  const double start = Clock::real().seconds();
  KV_TRY(session.prefill(tokens));
  return Clock::real().seconds() - start;
}

Result<double> time_decode(PeerSession& session, int depth, int count) {
  KV_TRY(session.rewind(depth));
  const double start = Clock::real().seconds();
  for (int i = 0; i < count; ++i) KV_TRY(session.decode(i % 100));  // any tokens: the work is the same
  const double seconds = Clock::real().seconds() - start;
  KV_TRY(session.rewind(depth));
  return seconds;
}

}  // namespace kvartet
