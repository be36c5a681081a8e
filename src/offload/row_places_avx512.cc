// `higgs4` rows, keys and values, decoded by byte permutations (as quantize/table_scan_avx512.cc looks tables up).
//
// A point of the grid is two integers of 16 bits: its four bytes come from four tables of 256 bytes, which stay in 16 registers
// while the codes of 16 rows are looked up. A key's Hadamard transform stays in whole numbers, which floats hold exactly: the
// tables have its first stage in them, and a dot product of pairs of 16 bits with ones of either sign is the second stage and the
// widening in one. The scale and all powers of two multiply the logit.
#include <cstddef>
#include <cstdint>

#include "offload/row_places_kernels.h"
#include "quantize/integer_products_avx512.h"
#include "simd/avx512.h"

#if KVARTET_HAS_AVX512
KVARTET_BEGIN_VNNI
namespace kvartet {
namespace {

constexpr std::size_t kRows = 16;         // whose codes are looked up together, and whose logits fill a vector
constexpr std::size_t kAhead = 32;        // rows, as in row_places.cc
constexpr std::size_t kMostQueries = 8;   // that share a decoded key
constexpr std::size_t kMostDim = 256;     // channels
constexpr std::size_t kWords = 32;        // numbers of 16 bits in a vector
constexpr float kWidened = 268435456.0F;  // 2^28: the grid's unit and the 16 bits that widening shifts by
constexpr float kUnit = 1.0F / 4096.0F;

// What a kernel knows of one call.
struct Walk {
  const PlacesLayout* layout;
  const RowPlaces* places;
  const std::uint8_t (*order)[64];
  std::size_t begin;
  std::size_t end;
};

inline const std::uint8_t* codes_at(const Walk& walk, std::size_t r) {
  return reinterpret_cast<const std::uint8_t*>(walk.places->rows[r] + walk.layout->side.at);
}

// ---- looking up

struct Planes {
  __m512i of[16];
};

inline Planes load_planes(const std::uint8_t* planes) {
  Planes loaded;
  for (std::size_t i = 0; i < 16; ++i) loaded.of[i] = _mm512_loadu_si512(planes + 64 * i);
  return loaded;
}

inline __m512i bytes_of(const __m512i* table, __m512i code, __mmask64 upper) {
  return _mm512_mask_blend_epi8(upper, _mm512_permutex2var_epi8(table[0], code, table[1]),
                                _mm512_permutex2var_epi8(table[2], code, table[3]));
}

// Of 64 codes both numbers: first those of the codes in the lower halves of blocks of 16 bytes, `second` words on the others'.
inline void look_up(const Planes& planes, __m512i code, std::int16_t* words, std::size_t second) {
  const __mmask64 upper = _mm512_movepi8_mask(code);
  const __m512i x_low = bytes_of(planes.of, code, upper);
  const __m512i x_high = bytes_of(planes.of + 4, code, upper);
  const __m512i y_low = bytes_of(planes.of + 8, code, upper);
  const __m512i y_high = bytes_of(planes.of + 12, code, upper);
  _mm512_storeu_si512(words, _mm512_unpacklo_epi8(x_low, x_high));
  _mm512_storeu_si512(words + kWords, _mm512_unpacklo_epi8(y_low, y_high));
  _mm512_storeu_si512(words + second, _mm512_unpackhi_epi8(x_low, x_high));
  _mm512_storeu_si512(words + second + kWords, _mm512_unpackhi_epi8(y_low, y_high));
}

// Both numbers of `count` rows' codes: [row][kHalves][2][32] words, rows `stride` words apart.
template <int kHalves>
inline void look_rows_up(const Walk& walk, std::size_t first, std::size_t count, std::int16_t* words) {
  const Planes planes = load_planes(walk.layout->tables->planes[0]);
  const __m512i from = _mm512_load_si512(walk.order[0]);
  if constexpr (kHalves == 1) {
    for (std::size_t r = 0; r < count; r += 2) {
      const std::uint8_t* const other = codes_at(walk, first + (r + 1 < count ? r + 1 : r));
      const __m512i lower =
          _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes_at(walk, first + r))));
      const __m512i both = _mm512_inserti64x4(lower, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(other)), 1);
      look_up(planes, _mm512_permutexvar_epi8(from, both), words + r * 2 * kWords, 2 * kWords);
    }
  } else if constexpr (kHalves == 2) {
    for (std::size_t r = 0; r < count; ++r) {
      const __m512i code = _mm512_permutexvar_epi8(from, _mm512_loadu_si512(codes_at(walk, first + r)));
      look_up(planes, code, words + r * 4 * kWords, 2 * kWords);
    }
  } else {
    const __m512i from_second = _mm512_load_si512(walk.order[1]);
    for (std::size_t r = 0; r < count; ++r) {
      const __m512i lower = _mm512_loadu_si512(codes_at(walk, first + r));
      const __m512i upper = _mm512_loadu_si512(codes_at(walk, first + r) + 64);
      std::int16_t* const here = words + r * 8 * kWords;
      look_up(planes, _mm512_permutex2var_epi8(lower, from, upper), here, 2 * kWords);
      look_up(planes, _mm512_permutex2var_epi8(lower, from_second, upper), here + 4 * kWords, 2 * kWords);
    }
  }
}

// ---- keys

// The vectors of a decoded key: [block of 16 pairs][first, second of the pair]. Neighbours: pair 16 * block + lane. Halves: block
// 2t + s has the pairs 32t + 2 * lane + s.
enum class Turning : int { kNone, kNeighbours, kHalves };

struct Numbers32 {
  __m512 first;
  __m512 second;
};

// 32 numbers side by side: those in even places, then those in odd ones; and back.
inline Numbers32 split(const float* from) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  const __m512 lower = _mm512_loadu_ps(from);
  const __m512 upper = _mm512_loadu_ps(from + 16);
  return {_mm512_permutex2var_ps(lower, even, upper), _mm512_permutex2var_ps(lower, odd, upper)};
}

inline void interleave(const Numbers32& numbers, float* to) {
  const __m512i lower = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i upper = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  _mm512_storeu_ps(to, _mm512_permutex2var_ps(numbers.first, lower, numbers.second));
  _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(numbers.first, upper, numbers.second));
}

// Queries as keys are ordered, [query][head_dim].
inline void order_queries(bool halves, std::size_t head_dim, const float* q, std::size_t queries, float* ordered) {
  for (std::size_t k = 0; k < queries; ++k, q += head_dim, ordered += head_dim) {
    for (std::size_t c = 0; c < head_dim; c += 32) {
      const Numbers32 numbers = split(q + c);
      // Halves: 32 channels are one side of two blocks of pairs. Neighbours: both sides of one.
      float* const to = halves ? ordered + (c < head_dim / 2 ? 2 * c : 2 * c - head_dim + 16) : ordered + c;
      _mm512_store_ps(to, numbers.first);
      _mm512_store_ps(to + (halves ? 32 : 16), numbers.second);
    }
  }
}

// Lanes whose number has this bit become partner - x, the others partner + x.
inline __m512 butterfly(__m512 x, __m512 partner, __m512 signs) { return _mm512_fmadd_ps(x, signs, partner); }

struct Signs {
  __m512 of[4];
};

inline Signs load_signs() {
  alignas(64) static constexpr float kSigns[4][16] = {{1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1},
                                                      {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1},
                                                      {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1},
                                                      {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1}};
  Signs signs;
  for (std::size_t i = 0; i < 4; ++i) signs.of[i] = _mm512_load_ps(kSigns[i]);
  return signs;
}

inline __m512 stages_in_vector(__m512 x, const Signs& signs) {
  x = butterfly(x, _mm512_permute_ps(x, 0xb1), signs.of[0]);
  x = butterfly(x, _mm512_permute_ps(x, 0x4e), signs.of[1]);
  x = butterfly(x, _mm512_shuffle_f32x4(x, x, 0xb1), signs.of[2]);
  return butterfly(x, _mm512_shuffle_f32x4(x, x, 0x4e), signs.of[3]);
}

template <std::size_t kVectors, std::size_t kHalf>
inline void stage_across(__m512* x) {
  for (std::size_t first = 0; first < kVectors; first += 2 * kHalf) {
    for (std::size_t i = first; i < first + kHalf; ++i) {
      const __m512 a = x[i];
      const __m512 b = x[i + kHalf];
      x[i] = _mm512_add_ps(a, b);
      x[i + kHalf] = _mm512_sub_ps(a, b);
    }
  }
}

// One key's words become its channels, in the order of Turning, without scale.
template <int kHalves, Turning kTurning>
inline void transform(const std::int16_t* words, const Signs& signs, __m512* x) {
  const __m512i sum = _mm512_set1_epi32(0x00010001);
  const __m512i difference = _mm512_set1_epi32(static_cast<int>(0xffff0001U));  // first - second
  for (std::size_t t = 0; t < kHalves; ++t) {
    const __m512i first = _mm512_loadu_si512(words + t * 2 * kWords);
    const __m512i second = _mm512_loadu_si512(words + t * 2 * kWords + kWords);
    // Block and channel of the pair: neighbours have the pair's channels in a code, halves in two.
    constexpr std::size_t kOfCode = kTurning == Turning::kHalves ? 2 : 1;
    constexpr std::size_t kOfCodes = 3 - kOfCode;
    __m512* const here = x + 4 * t;
    here[0] = stages_in_vector(_mm512_cvtepi32_ps(_mm512_madd_epi16(first, sum)), signs);
    here[kOfCode] = stages_in_vector(_mm512_cvtepi32_ps(_mm512_madd_epi16(second, sum)), signs);
    here[kOfCodes] = stages_in_vector(_mm512_cvtepi32_ps(_mm512_madd_epi16(first, difference)), signs);
    here[3] = stages_in_vector(_mm512_cvtepi32_ps(_mm512_madd_epi16(second, difference)), signs);
  }
  if constexpr (kHalves >= 2) stage_across<4 * kHalves, 4>(x);
  if constexpr (kHalves == 4) stage_across<4 * kHalves, 8>(x);
}

inline void turn_block(__m512 cosine, __m512 sine, __m512* x) {
  const __m512 a = x[0];
  const __m512 b = x[1];
  x[0] = _mm512_fnmadd_ps(b, sine, _mm512_mul_ps(a, cosine));
  x[1] = _mm512_fmadd_ps(a, sine, _mm512_mul_ps(b, cosine));
}

struct PairTurns {
  __m512 cosine;
  __m512 sine;
};

// Of 16 pairs of a position.
inline PairTurns turns_at(const RopeTable::Turn& parts, std::size_t padded, std::size_t pair) {
  const __m512 a = _mm512_loadu_ps(parts.multiple + pair);
  const __m512 b = _mm512_loadu_ps(parts.multiple + padded + pair);
  const __m512 c = _mm512_loadu_ps(parts.rest + pair);
  const __m512 d = _mm512_loadu_ps(parts.rest + padded + pair);
  return {_mm512_fnmadd_ps(b, d, _mm512_mul_ps(a, c)), _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, d))};
}

template <int kHalves, Turning kTurning>
inline void turn_key(const RopeTable& rope, std::int32_t position, __m512* x) {
  const RopeTable::Turn parts = rope.of(position);
  const std::size_t padded = static_cast<std::size_t>(rope.padded_pairs());
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  for (std::size_t t = 0; t < kHalves; ++t) {
    if (kTurning == Turning::kNeighbours && 32 * t >= padded) break;
    const PairTurns first = turns_at(parts, padded, 32 * t);
    if (kTurning == Turning::kNeighbours) {
      turn_block(first.cosine, first.sine, x + 4 * t);
      if (32 * t + 16 >= padded) break;
    }
    const PairTurns second = turns_at(parts, padded, 32 * t + 16);
    if (kTurning == Turning::kNeighbours) {
      turn_block(second.cosine, second.sine, x + 4 * t + 2);
    } else {
      turn_block(_mm512_permutex2var_ps(first.cosine, even, second.cosine), _mm512_permutex2var_ps(first.sine, even, second.sine),
                 x + 4 * t);
      turn_block(_mm512_permutex2var_ps(first.cosine, odd, second.cosine), _mm512_permutex2var_ps(first.sine, odd, second.sine),
                 x + 4 * t + 2);
    }
  }
}

// The sum of a and b's lanes in pairs: a's in even places.
inline __m512 pair_sums(__m512 a, __m512 b) { return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); }
inline __m512 pair_sums_64(__m512 a, __m512 b) {
  const __m512d c = _mm512_castps_pd(a);
  const __m512d e = _mm512_castps_pd(b);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(c, e)), _mm512_castpd_ps(_mm512_unpackhi_pd(c, e)));
}

// The sums of the lanes of 16 vectors.
inline __m512 sums_of_16(const float* from) {
  __m512 four[4];
  for (std::size_t i = 0; i < 4; ++i) {
    const float* const here = from + 64 * i;
    // Rows r, r + 2 before r + 1, r + 3: then the rows come out in order.
    const __m512 first = pair_sums(_mm512_load_ps(here), _mm512_load_ps(here + 16));
    const __m512 second = pair_sums(_mm512_load_ps(here + 32), _mm512_load_ps(here + 48));
    four[i] = pair_sums_64(first, second);  // blocks of four lanes: the four rows' parts
  }
  const __m512 a = _mm512_add_ps(_mm512_shuffle_f32x4(four[0], four[1], 0x44), _mm512_shuffle_f32x4(four[0], four[1], 0xee));
  const __m512 b = _mm512_add_ps(_mm512_shuffle_f32x4(four[2], four[3], 0x44), _mm512_shuffle_f32x4(four[2], four[3], 0xee));
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

inline void prefetch_row(const Walk& walk, std::size_t r) {
  if (r >= static_cast<std::size_t>(walk.places->count)) return;
  const char* const row = reinterpret_cast<const char*>(walk.places->rows[r]);
  const std::size_t bytes = walk.layout->side.row_bytes;
  for (std::size_t line = 0; line < bytes; line += 64) _mm_prefetch(row + line, _MM_HINT_T1);
  _mm_prefetch(row + bytes - 1, _MM_HINT_T1);
}

inline void prefetch_turn(const Walk& walk, std::size_t r) {
  if (r >= static_cast<std::size_t>(walk.places->count)) return;
  walk.places->rope->prefetch(walk.places->positions[r]);
}

// Products of one key with all queries, summed as far as a vector.
template <std::size_t kVectors>
inline void multiply(const __m512* x, const float* q, std::size_t queries, float* sums) {
  for (std::size_t k = 0; k < queries; ++k, q += 16 * kVectors) {
    __m512 even = _mm512_mul_ps(x[0], _mm512_load_ps(q));
    __m512 odd = _mm512_mul_ps(x[1], _mm512_load_ps(q + 16));
    for (std::size_t v = 2; v < kVectors; v += 2) {
      even = _mm512_fmadd_ps(x[v], _mm512_load_ps(q + 16 * v), even);
      odd = _mm512_fmadd_ps(x[v + 1], _mm512_load_ps(q + 16 * v + 16), odd);
    }
    _mm512_store_ps(sums + k * 16 * kRows, _mm512_add_ps(even, odd));
  }
}

struct KeyRoom {
  alignas(64) std::int16_t words[kRows * kMostDim];
  alignas(64) float q[kMostQueries * kMostDim];
  alignas(64) float sums[kMostQueries * kRows * 16];
  alignas(64) float scales[kRows];
};

inline void clear_rest(std::size_t rows, std::size_t queries, KeyRoom* room) {
  for (std::size_t r = rows; r < kRows; ++r) {
    room->scales[r] = 0;
    for (std::size_t k = 0; k < queries; ++k) _mm512_store_ps(room->sums + (k * kRows + r) * 16, _mm512_setzero_ps());
  }
}

template <int kHalves, Turning kTurning>
void score_chunk(const Walk& walk, std::size_t queries, float* logits, std::size_t stride, KeyRoom* room) {
  constexpr std::size_t kDim = 64 * kHalves;
  const Signs signs = load_signs();
  for (std::size_t first = walk.begin; first < walk.end; first += kRows) {
    const std::size_t rows = walk.end - first < kRows ? walk.end - first : kRows;
    for (std::size_t r = 0; r < rows; ++r) {
      prefetch_row(walk, first + r + kAhead);
      if (kTurning != Turning::kNone) prefetch_turn(walk, first + r + kAhead);
      const std::byte* const codes = walk.places->rows[first + r] + walk.layout->side.at;
      room->scales[r] = scale_of(*walk.layout, codes) * (kUnit / static_cast<float>(kDim));
    }
    look_rows_up<kHalves>(walk, first, rows, room->words);
    for (std::size_t r = 0; r < rows; ++r) {
      __m512 x[4 * kHalves];
      transform<kHalves, kTurning>(room->words + r * kDim, signs, x);
      if constexpr (kTurning != Turning::kNone)
        turn_key<kHalves, kTurning>(*walk.places->rope, walk.places->positions[first + r], x);
      multiply<4 * kHalves>(x, room->q, queries, room->sums + 16 * r);
    }
    if (rows < kRows) clear_rest(rows, queries, room);
    const auto there = static_cast<__mmask16>((1U << rows) - 1);
    for (std::size_t k = 0; k < queries; ++k) {
      const __m512 sums = _mm512_mul_ps(sums_of_16(room->sums + k * 16 * kRows), _mm512_load_ps(room->scales));
      _mm512_mask_storeu_ps(logits + k * stride + (first - walk.begin), there, sums);
    }
  }
}

template <int kHalves>
void score_turned(Turning turning, const Walk& walk, std::size_t queries, float* logits, std::size_t stride, KeyRoom* room) {
  switch (turning) {
    case Turning::kNone: return score_chunk<kHalves, Turning::kNone>(walk, queries, logits, stride, room);
    case Turning::kNeighbours: return score_chunk<kHalves, Turning::kNeighbours>(walk, queries, logits, stride, room);
    default: return score_chunk<kHalves, Turning::kHalves>(walk, queries, logits, stride, room);
  }
}

void score(const TileFormat& format, const ScoreArgs& args) {
  const PlacesLayout& layout = layout_of(format);
  const RowPlaces& places = places_of(args.tile);
  const std::size_t head_dim = static_cast<std::size_t>(layout.side.head_dim);
  Turning turning = Turning::kNone;
  if (layout.side.unrotated) turning = places.rope->layout() == RopeLayout::kHalves ? Turning::kHalves : Turning::kNeighbours;
  const bool halves = turning == Turning::kHalves;
  const Walk walk{&layout, &places, layout.tables->orders[halves ? 1 : 0], static_cast<std::size_t>(args.begin),
                  static_cast<std::size_t>(args.end)};
  KeyRoom room;
  for (std::size_t r = walk.begin; r < walk.begin + kAhead; ++r) {
    prefetch_row(walk, r);
    if (turning != Turning::kNone) prefetch_turn(walk, r);
  }
  for (std::size_t query = 0; query < static_cast<std::size_t>(args.queries); query += kMostQueries) {
    const std::size_t left = static_cast<std::size_t>(args.queries) - query;
    const std::size_t queries = left < kMostQueries ? left : kMostQueries;
    order_queries(halves, head_dim, args.q + query * head_dim, queries, room.q);
    float* const logits = args.logits + query * args.logit_stride;
    if (head_dim == 64) score_turned<1>(turning, walk, queries, logits, args.logit_stride, &room);
    if (head_dim == 128) score_turned<2>(turning, walk, queries, logits, args.logit_stride, &room);
    if (head_dim == 256) score_turned<4>(turning, walk, queries, logits, args.logit_stride, &room);
  }
}

// ---- values

constexpr std::size_t kValueWords = 8192;  // of looked-up rows: half of the nearest cache

// out[query, 64 channels] += sum over rows of weights[query, row] * the numbers of 32 codes.
template <int kQueries>
inline void add_rows(const std::int16_t* words, std::size_t stride, std::size_t rows, const float* weights,
                     std::size_t weight_stride, float* out, std::size_t head_dim) {
  __m512 sums[kQueries][4];  // [16 codes, the next 16][first, second number]
  const __m512 widened = _mm512_set1_ps(kWidened);
  const __m512 narrowed = _mm512_set1_ps(1.0F / kWidened);
  for (std::size_t k = 0; k < kQueries; ++k) {
    for (std::size_t g = 0; g < 2; ++g) {
      const Numbers32 numbers = split(out + k * head_dim + 32 * g);
      sums[k][2 * g] = _mm512_mul_ps(numbers.first, widened);
      sums[k][2 * g + 1] = _mm512_mul_ps(numbers.second, widened);
    }
  }
  const __m512i zero = _mm512_setzero_si512();
  for (std::size_t r = 0; r < rows; ++r, words += stride) {
    const __m512i x = _mm512_load_si512(words);
    const __m512i y = _mm512_load_si512(words + kWords);
    __m512 numbers[4];
    numbers[0] = _mm512_cvtepi32_ps(_mm512_unpacklo_epi16(zero, x));
    numbers[1] = _mm512_cvtepi32_ps(_mm512_unpacklo_epi16(zero, y));
    numbers[2] = _mm512_cvtepi32_ps(_mm512_unpackhi_epi16(zero, x));
    numbers[3] = _mm512_cvtepi32_ps(_mm512_unpackhi_epi16(zero, y));
    for (std::size_t k = 0; k < kQueries; ++k) {
      const __m512 weight = _mm512_set1_ps(weights[k * weight_stride + r]);
      for (std::size_t v = 0; v < 4; ++v) sums[k][v] = _mm512_fmadd_ps(weight, numbers[v], sums[k][v]);
    }
  }
  for (std::size_t k = 0; k < kQueries; ++k) {
    for (std::size_t g = 0; g < 2; ++g) {
      interleave({_mm512_mul_ps(sums[k][2 * g], narrowed), _mm512_mul_ps(sums[k][2 * g + 1], narrowed)},
                 out + k * head_dim + 32 * g);
    }
  }
}

struct ValueRoom {
  alignas(64) std::int16_t words[kValueWords + 2 * kWords];  // an odd last row is looked up twice
  alignas(64) float weights[4 * kBlockRows];
  alignas(64) float scales[kBlockRows];
};

// Rows that are looked up in `room`, from the walk's row `first` on.
struct LookedUp {
  std::size_t first;  // of the weights
  std::size_t rows;
  ValueRoom* room;
};

template <int kHalves>
struct AddLookedUp {
  template <int kQueries>
  static inline void run(const LookedUp& of, const AccumulateArgs& args, std::size_t query) {
    constexpr std::size_t kDim = 64 * kHalves;
    float* const weights = of.room->weights;
    for (std::size_t k = 0; k < kQueries; ++k) {
      const float* const own = args.weights + (query + k) * args.weight_stride + of.first;
      for (std::size_t r = 0; r < of.rows; ++r) weights[k * kBlockRows + r] = of.room->scales[r] * own[r];
    }
    for (std::size_t t = 0; t < kHalves; ++t) {
      add_rows<kQueries>(of.room->words + t * 2 * kWords, kDim, of.rows, weights, kBlockRows, args.out + query * kDim + 64 * t,
                         kDim);
    }
  }
};

template <int kHalves>
void accumulate_rows(const Walk& walk, const AccumulateArgs& args, ValueRoom* room) {
  constexpr std::size_t kTogether = kValueWords / (64 * kHalves);
  for (std::size_t first = walk.begin; first < walk.end; first += kTogether) {
    const std::size_t rows = walk.end - first < kTogether ? walk.end - first : kTogether;
    look_rows_up<kHalves>(walk, first, rows, room->words);
    for (std::size_t r = 0; r < rows; ++r) {
      room->scales[r] = scale_of(*walk.layout, walk.places->rows[first + r] + walk.layout->side.at);
    }
    vnni::for_query_chunks<AddLookedUp<kHalves>>(LookedUp{first - walk.begin, rows, room}, args);
  }
}

void accumulate(const TileFormat& format, const AccumulateArgs& args) {
  const PlacesLayout& layout = layout_of(format);
  const Walk walk{&layout, &places_of(args.tile), layout.tables->orders[0], static_cast<std::size_t>(args.begin),
                  static_cast<std::size_t>(args.end)};
  ValueRoom room;
  if (layout.side.head_dim == 64) accumulate_rows<1>(walk, args, &room);
  if (layout.side.head_dim == 128) accumulate_rows<2>(walk, args, &room);
  if (layout.side.head_dim == 256) accumulate_rows<4>(walk, args, &room);
}

}  // namespace
}  // namespace kvartet
KVARTET_END_AVX512
#endif

namespace kvartet {

void choose_higgs4_avx512([[maybe_unused]] Side which, [[maybe_unused]] PlacesLayout* layout) {
#if KVARTET_HAS_AVX512
  if (!Higgs4Tables::exist(layout->side.head_dim) || !uses_extension(SimdExtension::kVnni)) return;
  layout->tables = &Higgs4Tables::of(which, layout->side.head_dim);
  if (which == Side::kKey) {
    layout->score_by_bytes = score;
  } else {
    layout->accumulate = accumulate;
  }
#endif
}

}  // namespace kvartet
