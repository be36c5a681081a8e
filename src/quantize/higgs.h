// HIGGS: rotate a group with a Hadamard transform, divide by its norm, snap p coordinates at a time to a grid that is
// optimal for a standard Gaussian (offloading.md 2.3). The relative squared error is the grid's distortion D(p, n) whatever
// the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/matrix.h"
#include "core/status.h"
#include "core/uz.h"

namespace kvartet {

// A grid as kernels walk it.
struct GridLanes {
  const float* points = nullptr;  // [p][padded]
  const float* offset = nullptr;  // [padded]: half of each point's squared norm; huge for padding
  std::size_t padded = 0;         // n rounded up to a whole vector
};

// n points in p dimensions. Never more than 256 points: a code is one byte (the pitfall of 2.3).
class HiggsGrid {
 public:
  // One of the shipped grids, made by scripts/make_higgs_grids.cc. kUsage: there is none of this shape, naming those there are.
  static Result<const HiggsGrid*> find(int p, int n);
  static std::span<const HiggsGrid> all();

  // points: [n, p].
  HiggsGrid(int p, MatView<const float> points);

  int p() const { return p_; }
  int n() const { return n_; }
  float point(int code, int channel) const { return points_[uz(code) * uz(p_) + uz(channel)]; }
  const float* point(std::uint8_t code) const { return points_.data() + uz(code) * uz(p_); }  // [p]

  // The nearest point of each of `count` blocks of p numbers; the first of equals.
  void snap(const float* y, std::size_t count, std::uint8_t* codes) const;

  // x = the transform of scale * the points of a group's codes; [group] numbers, a power of two and whole points.
  void decode_group(const std::uint8_t* codes, std::size_t group, float scale, float* x) const;

  GridLanes lanes() const { return {lanes_.data(), offset_.data(), padded_}; }
  float radius() const { return radius_; }  // norm of the point that is farthest out

 private:
  int p_;
  int n_;
  std::size_t padded_;         // n rounded up to a whole vector
  std::vector<float> points_;  // [n][p]
  std::vector<float> lanes_;   // [p][padded]
  std::vector<float> offset_;  // [padded]: half of each point's squared norm; huge for padding
  float radius_ = 0;
};

enum class HiggsSigns : std::uint8_t { kNone, kSeeded };

// The unnormalized Hadamard transform in place, natural order: twice gives n times the input. n: a power of two.
void hadamard_transform(std::span<float> x);

// A vector of `dim` numbers as groups of `group` coordinates: dim is padded with zeros to whole groups, a group to whole
// blocks of p.
class HiggsCodec {
 public:
  // group <= 1024, which bounds the scratch on the stack.
  HiggsCodec(const HiggsGrid* grid, int dim, int group, HiggsSigns signs = HiggsSigns::kNone, std::uint64_t seed = 1);

  const HiggsGrid& grid() const { return *grid_; }
  int dim() const { return dim_; }
  int group() const { return group_; }
  std::size_t groups() const { return groups_; }
  std::size_t code_bytes() const { return groups_ * blocks_; }  // a group's codes are contiguous
  std::size_t row_bytes() const { return code_bytes() + 2 * groups_; }

  // codes: [code_bytes()]; scales: [groups()], bf16. A group of norm 0 has scale 0 and code 0.
  void encode(const float* x, std::uint8_t* codes, std::uint16_t* scales) const;
  void decode(const std::uint8_t* codes, const std::uint16_t* scales, float* x) const;

  // A query turned so that <query, decoded row> is scale * <turned query, grid points> (2.3.4): [dim] in place. Only for one
  // group per vector.
  void turn_query(float* q) const;

 private:
  const HiggsGrid* grid_;
  int dim_;
  int group_;
  std::size_t groups_;
  std::size_t blocks_;        // of p, in a group
  std::vector<float> signs_;  // [dim]; empty: none
};

}  // namespace kvartet
