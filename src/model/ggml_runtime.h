// The one place that sets up ggml and libllama for this process.
#pragma once

namespace kvartet {

// Once per process, before any other ggml or libllama call: no messages on standard error, no debugger on an abort.
void start_ggml();

}  // namespace kvartet
