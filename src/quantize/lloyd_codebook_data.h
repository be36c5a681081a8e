// The codebooks of rows as scripts/make_lloyd_codebooks.cc wrote them: nobody who only counts bytes should compute them.
#pragma once

#include <span>

namespace kvartet {

struct LloydCodebookData {
  std::span<const double> positive;  // the upper half of the levels, ascending; the others are their negatives
  double distortion = 0;
};
// bits from 1 to 8. `of_32`: the law of 32 channels, else the limit.
const LloydCodebookData& lloyd_codebook_data(int bits, bool of_32);

}  // namespace kvartet
