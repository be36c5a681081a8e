#include "quantize/turboquant_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/float16.h"
#include "core/rng.h"
#include "core/uz.h"
#include "quantize/codebook_row.h"
#include "quantize/lloyd_codebook.h"
#include "quantize/planar_rows.h"
#include "quantize/rotated_format.h"

namespace kvartet {
namespace {

constexpr std::size_t kMaxDim = 1024;
constexpr std::uint64_t kSketchStream = 100;  // the rotations have streams 0 and 1: S must not depend on P (3.8, test 6)

// ---- codebooks

// The levels for a unit vector of `dim` rotated coordinates.
CodeLevels codebook_levels(int bits, int dim) {
  const LloydCodebook& book = lloyd_codebook_for_rows(bits, dim);
  const double unit_length = 1.0 / std::sqrt(static_cast<double>(dim));
  CodeLevels levels;
  levels.bits = bits;
  if (bits <= 4) {
    levels.kind = LevelKind::kTable;
    levels.bias = 128.0F;
    levels.unit = static_cast<float>(book.levels.back() / 127.0 * unit_length);
    for (std::size_t i = 0; i < book.levels.size(); ++i) {
      const double grid = std::nearbyint(book.levels[i] / book.levels.back() * 127.0);
      levels.bytes[i] = static_cast<std::uint8_t>(128 + static_cast<int>(grid));
      levels.values[i] = levels.unit * static_cast<float>(grid);
    }
  } else {
    levels.kind = LevelKind::kWide;
    levels.unit = static_cast<float>(book.levels.back() / 32767.0 * unit_length);
    for (std::size_t i = 0; i < book.levels.size(); ++i) {
      const int grid = static_cast<int>(std::nearbyint(book.levels[i] / book.levels.back() * 32767.0));
      levels.low_bytes[i] = static_cast<std::uint8_t>(grid & 0xff);
      levels.high_bytes[i] = static_cast<std::uint8_t>((grid >> 8) & 0xff);
      levels.values[i] = levels.unit * static_cast<float>(grid);
    }
  }
  for (std::size_t i = 0; i + 1 < book.levels.size(); ++i) levels.borders[i] = (levels.values[i] + levels.values[i + 1]) / 2;
  return levels;
}

// Signs of a sketch of `rows` rows: each stands for -+ sqrt(pi / 2) / rows (3.3).
CodeLevels sign_levels(int rows) {
  CodeLevels levels;
  levels.bits = 1;
  levels.bias = 128.0F;
  levels.bytes[0] = 1;
  levels.bytes[1] = 255;
  levels.unit = static_cast<float>(std::sqrt(std::numbers::pi / 2) / rows / 127.0);
  levels.values[0] = levels.unit * -127.0F;
  levels.values[1] = levels.unit * 127.0F;
  return levels;
}

// ---- rows

Status encode_parts(const TileFormat& format, std::byte* tile, int begin, MatView<const float> rows) {
  for (std::size_t r = 0; r < rows.rows; ++r) {
    for (int p = 0; p < format.planar->part_count; ++p) {
      const CodePart& part = format.planar->parts[p];
      std::uint8_t codes[kMaxDim];
      const std::uint16_t norm = code_codebook_row(part, rows.row(r) + part.first, codes, nullptr);
      write_coded_row(part, format.side, tile, begin + static_cast<int>(r), {codes, &norm, nullptr});
    }
  }
  return {};
}

// ---- the sketch of the error (3.3)

const float* sketch_matrix(const TileFormat& format) { return float_tables(format) + format.rotated->table_floats(); }

Status encode_with_signs(const TileFormat& format, std::byte* tile, int begin, MatView<const float> rows) {
  const std::size_t dim = rows.cols;
  const CodePart& signs = format.planar->parts[format.planar->part_count - 1];
  const float* const sketch = sketch_matrix(format);
  for (std::size_t r = 0; r < rows.rows; ++r) {
    const int row = begin + static_cast<int>(r);
    std::uint8_t codes[kMaxDim];
    float error[kMaxDim] = {};
    if (format.planar->part_count == 2) {
      const CodePart& part = format.planar->parts[0];
      const std::uint16_t norm = code_codebook_row(part, rows.row(r), codes, error);
      write_coded_row(part, format.side, tile, row, {codes, &norm, nullptr});
    }
    for (std::size_t c = 0; c < dim; ++c) error[c] = rows.row(r)[c] - error[c];
    for (std::size_t j = 0; j < dim; ++j) codes[j] = dot_product(sketch + j * dim, error, dim) >= 0.0F ? 1 : 0;
    const std::uint16_t length = f16_from_float(std::sqrt(sum_of_squares(error, dim)));
    write_coded_row(signs, format.side, tile, row, {codes, &length, nullptr});
  }
  return {};
}

void decode_with_signs(const TileFormat& format, const std::byte* tile, int begin, int end, MatView<float> out) {
  const std::size_t dim = uz(format.head_dim);
  const CodePart& signs = format.planar->parts[format.planar->part_count - 1];
  const float* const sketch = sketch_matrix(format);
  for (int row = begin; row < end; ++row) {
    float* const x = out.row(uz(row - begin));
    std::fill_n(x, dim, 0.0F);
    if (format.planar->part_count == 2) decode_planar_part(format.planar->parts[0], format.side, tile, row, x);
    float weights[kMaxDim];
    decode_planar_part(signs, format.side, tile, row, weights);
    for (std::size_t j = 0; j < dim; ++j) {
      for (std::size_t c = 0; c < dim; ++c) x[c] += weights[j] * sketch[j * dim + c];
    }
  }
}

// [queries, D] becomes [queries, 2 D]: the rotated query u, and S u.
void append_sketch(const TileFormat& format, float* q, int queries) {
  const std::size_t dim = uz(format.head_dim);
  const float* const sketch = sketch_matrix(format);
  for (std::size_t k = uz(queries); k > 0; --k) {
    float* const to = q + (k - 1) * 2 * dim;
    std::memmove(to, q + (k - 1) * dim, dim * sizeof(float));
    for (std::size_t j = 0; j < dim; ++j) to[dim + j] = dot_product(sketch + j * dim, to, dim);
  }
}

// ---- making

std::string format_name(const FormatRequest& request) {
  const double rate = request.bits + request.quarters / 4.0;
  return fmt::format("turboquant{}{}", rate, request.residual_signs ? "-prod" : "");
}

Status check_request(const FormatRequest& request, Side side, int head_dim) {
  if (request.bits < 1 || request.bits > 8 || request.quarters < 0 || request.quarters > 3 ||
      (request.bits == 8 && request.quarters > 0)) {
    return usage_error(
        fmt::format("turboquant with {} bits is not available; take 1 to 8", request.bits + request.quarters / 4.0));
  }
  if (head_dim % 32 != 0) {
    return usage_error(
        fmt::format("turboquant needs a head dimension that is a multiple of 32, this model has {}; use full", head_dim));
  }
  if (head_dim * request.quarters % 128 != 0) {
    return usage_error(fmt::format(
        "turboquant with {} bits cuts a head dimension of {} into {} and {} channels, which are no multiples of 32; take {} bits",
        request.bits + request.quarters / 4.0, head_dim, head_dim * request.quarters / 4,
        head_dim - head_dim * request.quarters / 4,
        head_dim % 64 == 0 ? fmt::format("{}.5", request.bits) : fmt::format("{}", request.bits)));
  }
  if (request.residual_signs && side == Side::kValue) {
    return usage_error("turboquant's variant=prod makes unbiased logits and is for keys; values take variant=mse");
  }
  if (request.residual_signs && request.quarters > 0) {
    return usage_error("turboquant's variant=prod takes a whole number of bits");
  }
  return {};
}

CodePart codebook_part(int first, int channels, int bits) {
  CodePart part;
  part.first = first;
  part.channels = channels;
  part.bits = bits;
  part.group = channels;
  part.levels = codebook_levels(bits, channels);
  return part;
}

TileFormat with_sketch(const FormatRequest& request, Side side, int head_dim) {
  PlanarRows rows;
  rows.inputs = 2 * head_dim;
  if (request.bits > 1) rows.parts[rows.part_count++] = codebook_part(0, head_dim, request.bits - 1);
  CodePart& signs = rows.parts[rows.part_count++];
  signs.first = head_dim;
  signs.channels = head_dim;
  signs.bits = 1;
  signs.group = head_dim;
  signs.levels = sign_levels(head_dim);
  TileFormat format = planar_format(format_name(request), side, head_dim, rows);
  format.kernels.encode = encode_with_signs;
  format.kernels.decode = decode_with_signs;
  format.kernels.prepare_queries = append_sketch;
  auto sketch = std::make_shared<std::vector<float>>(uz(head_dim) * uz(head_dim));
  Rng rng(request.seed, kSketchStream);
  for (float& x : *sketch) x = static_cast<float>(rng.normal());
  format.table_bytes = sketch->size() * sizeof(float);
  const std::byte* const bytes = reinterpret_cast<const std::byte*>(sketch->data());
  format.tables = std::shared_ptr<const std::byte>(std::move(sketch), bytes);
  return format;
}

TileFormat with_parts(const FormatRequest& request, Side side, int head_dim) {
  const int outliers = head_dim * request.quarters / 4;
  PlanarRows rows;
  rows.inputs = head_dim;
  if (outliers > 0) rows.parts[rows.part_count++] = codebook_part(0, outliers, request.bits + 1);
  rows.parts[rows.part_count++] = codebook_part(outliers, head_dim - outliers, request.bits);
  TileFormat format = planar_format(format_name(request), side, head_dim, rows);
  format.kernels.encode = encode_parts;
  return format;
}

}  // namespace

Result<TileFormat> make_turboquant_format(const FormatRequest& request, Side side, int head_dim) {
  KV_TRY(check_request(request, side, head_dim));
  TileFormat format = request.residual_signs ? with_sketch(request, side, head_dim) : with_parts(request, side, head_dim);
  format.bits = request.bits;
  const int outliers = head_dim * request.quarters / 4;
  RotatedRows rows{request.rotation, {head_dim, 0}, 1, {}};
  if (outliers > 0) rows = {request.rotation, {outliers, head_dim - outliers}, 2, {}};
  return with_rotation(std::move(format), rows, request.seed);
}

}  // namespace kvartet
