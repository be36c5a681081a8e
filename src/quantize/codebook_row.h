// Codes and norm of one row by nearest level, for codebooks of unit vectors (turboquant, compression.md 3.2 and 3.4).
#pragma once

#include <cstdint>

#include "quantize/planar_rows.h"

namespace kvartet {

// Codes [part.channels] of a rotated part x [part.channels], and the f16 norm that makes its decoded form the least-squares
// fit; `decoded`, if not null, gets what they stand for. A row of zeros has codes and norm 0. The same to the bit on every
// instruction set: every sum has one order and no product is fused.
std::uint16_t code_codebook_row(const CodePart& part, const float* x, std::uint8_t* codes, float* decoded);

}  // namespace kvartet
