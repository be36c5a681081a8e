#include "model/ggml_runtime.h"

#include <cstdlib>
#include <mutex>

#include <ggml-cpu.h>
#include <ggml.h>
#include <llama.h>

namespace kvartet {

void quiet_ggml() {
  static std::once_flag once;
  std::call_once(once, [] {
    setenv("GGML_NO_BACKTRACE", "1", 0);  // ggml would fork a debugger onto the process
    const auto silent = [](ggml_log_level, const char*, void*) {};
    ggml_log_set(silent, nullptr);
    llama_log_set(silent, nullptr);  // libllama prints load progress through it
  });
}

void start_ggml() {
  quiet_ggml();
  static std::once_flag once;
  std::call_once(once, [] {
    ggml_cpu_init();
    llama_backend_init();
  });
}

}  // namespace kvartet
