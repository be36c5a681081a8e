// --keep-prefill: what it takes, before anything is computed, and what is said about it.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "bench/runner/prepared_sample.h"
#include "core/model_shape.h"
#include "core/status.h"
#include "engine/kept_prefills.h"

namespace kvartet {

// The folder as this model's runs use it; the first files of no use are named on standard error.
// kUsage: no name; else as model_fingerprint.
Result<std::unique_ptr<KeptPrefills>> open_kept_prefills(const std::string& directory, const std::string& model_path);

// For the prompts that will be prefilled: those of these samples, or their documents if the question is unseen.
Result<KeptPrefills::Plan> plan_keeping(const KeptPrefills& kept, const ModelShape& shape,
                                        std::span<const PreparedSample* const> samples);

// The folder, ready for these samples. As KeptPrefills::prepare.
Status prepare_keeping(KeptPrefills& kept, const ModelShape& shape, std::span<const PreparedSample* const> samples);

// For a dry run: files, bytes and free bytes, one line.
std::string keeping_text(const KeptPrefills::Plan& plan, const std::string& directory);

// At the end: a note of what was read, kept and of no use. Not ok where prompts could not be kept, with the first reason.
Status report_keeping(const KeptPrefills& kept, const std::string& directory);

}  // namespace kvartet
