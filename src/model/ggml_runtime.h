// The one place that sets up ggml and libllama for this process.
#pragma once

namespace kvartet {

// Once per process, before any other ggml or libllama call: no messages on standard error, no debugger on an abort.
void start_ggml();
// The last half alone, for those who only read files: nothing is computed, so no tables are made (4 ms).
void quiet_ggml();

}  // namespace kvartet
