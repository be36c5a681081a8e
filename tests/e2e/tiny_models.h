// Tiny random models as files, and ways to spoil them.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "model/tiny_model.h"
#include "program.h"

namespace kvartet::e2e {

inline std::string tiny_model(const ScratchFolder& folder, const TinyModelOptions& options = {},
                              const std::string& name = "tiny.gguf") {
  const std::string path = folder.path(name);
  const Status written = write_tiny_model(path, options);
  EXPECT_TRUE(written.ok()) << written.message();
  return path;
}

// Wide enough for every format: groups of 32 along the head.
inline TinyModelOptions wide_heads() {
  TinyModelOptions o;
  o.head_dim = 32;
  o.context = 1024;
  return o;
}

// So much work per token that whoever wants to interrupt it is in time.
inline TinyModelOptions slow_model() {
  TinyModelOptions o = wide_heads();
  o.layers = 8;
  o.hidden = 256;
  o.ffn = 1024;
  o.context = 100'000;
  return o;
}

// Writes `value` over all of the last `count` floats of an F32 model's file: they are weights of the last layer.
inline void spoil_last_weights(const std::string& path, float value, std::size_t count) {
  std::string bytes = read_text(path);
  ASSERT_GT(bytes.size(), count * sizeof(float));
  for (std::size_t i = 1; i <= count; ++i) std::memcpy(bytes.data() + bytes.size() - i * sizeof(float), &value, sizeof(float));
  write_text(path, bytes);
}

// Replaces the first occurrence of `from`; both of the same length, so that the file's structure stays.
inline void patch(const std::string& path, const std::string& from, const std::string& to) {
  ASSERT_EQ(from.size(), to.size());
  std::string bytes = read_text(path);
  const std::size_t at = bytes.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  bytes.replace(at, from.size(), to);
  write_text(path, bytes);
}

}  // namespace kvartet::e2e
