// Lloyd-Max codebooks for one coordinate of a random unit vector (compression.md 3.1, 3.2), in units of 1 / sqrt(dim).
#pragma once

#include <vector>

namespace kvartet {

struct LloydCodebook {
  std::vector<double> levels;  // 2^bits, ascending, symmetric about 0
  double distortion = 0;       // E (s - level(s))^2; the variance of s is 1
};

// The law is (1 - s^2 / dim)^((dim - 3) / 2) on |s| <= sqrt(dim), and its limit N(0, 1) for dim = 0. bits from 1 to 8; dim is 0
// or at least 4. Computed by Lloyd's fixed-point iteration; levels are good to about 1e-6 up to 4 bits.
LloydCodebook lloyd_codebook(int bits, int dim);

// The codebook to use for rows of `dim` channels: the limit from 64 on (it loses less than 0.5 %), the exact law below (3.2).
// A table (lloyd_codebook_data.h); dim is a multiple of 32.
const LloydCodebook& lloyd_codebook_for_rows(int bits, int dim);

// E (s - level(s))^2 of any symmetric ascending levels under the same law, with nearest-level coding.
double coding_distortion(const std::vector<double>& levels, int dim);

}  // namespace kvartet
