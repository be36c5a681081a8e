#include "quantize/qjl_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/float16.h"
#include "core/uz.h"
#include "quantize/planar_rows.h"
#include "quantize/row_check.h"
#include "quantize/row_rotation.h"
#include "quantize/sketch_signs.h"

namespace kvartet {
namespace {

constexpr std::size_t kMaxSketch = kPlanarMaxChannels;
constexpr std::size_t kMaxDim = 1024;
constexpr std::uint64_t kStream = 200;

const float* sketch_of(const TileFormat& format) { return reinterpret_cast<const float*>(format.tables.get()); }

Status encode(const TileFormat& format, std::byte* tile, int begin, MatView<const float> rows) {
  KV_TRY(check_lengths(rows, "qjl", 65500.0F));
  const CodePart& part = format.planar->parts[0];
  const std::size_t count = uz(part.channels);
  alignas(64) float columns[kMaxDim * kSketchRows];
  std::uint8_t signs[kSketchRows * kMaxSketch];
  for (std::size_t first = 0; first < rows.rows; first += kSketchRows) {
    const std::size_t some = std::min(kSketchRows, rows.rows - first);
    for (std::size_t c = 0; c < rows.cols; ++c) {
      for (std::size_t r = 0; r < kSketchRows; ++r) columns[c * kSketchRows + r] = r < some ? rows.row(first + r)[c] : 0.0F;
    }
    sketch_signs(sketch_of(format), count, rows.cols, columns, signs);
    for (std::size_t r = first; r < first + some; ++r) {
      const std::uint16_t length = f16_from_float(std::sqrt(sum_of_squares(rows.row(r), rows.cols)));
      write_coded_row(part, format.side, tile, begin + static_cast<int>(r), {signs + (r - first) * count, &length, nullptr});
    }
  }
  return {};
}

// The row whose product with q is the logit: S^T of the scaled signs.
void decode(const TileFormat& format, const std::byte* tile, int begin, int end, MatView<float> out) {
  const CodePart& part = format.planar->parts[0];
  for (int row = begin; row < end; ++row) {
    float signs[kMaxSketch];
    decode_planar_part(part, format.side, tile, row, signs);
    float* const x = out.row(uz(row - begin));
    std::fill_n(x, out.cols, 0.0F);
    for (std::size_t j = 0; j < uz(part.channels); ++j) {
      for (std::size_t c = 0; c < out.cols; ++c) x[c] += signs[j] * sketch_of(format)[j * out.cols + c];
    }
  }
}

// [queries, D] becomes [queries, sketch]. A longer sketch is written from the last query on, a shorter one from the first.
void sketch_queries(const TileFormat& format, float* q, int queries) {
  const std::size_t dim = uz(format.head_dim);
  const std::size_t sketch = uz(format.prepared_floats());
  for (std::size_t i = 0; i < uz(queries); ++i) {
    const std::size_t k = sketch >= dim ? uz(queries) - 1 - i : i;
    float query[kMaxDim];
    std::memcpy(query, q + k * dim, dim * sizeof(float));
    for (std::size_t j = 0; j < sketch; ++j) q[k * sketch + j] = dot_product(sketch_of(format) + j * dim, query, dim);
  }
}

std::shared_ptr<std::vector<float>> draw_sketch(int sketch, int head_dim, std::uint64_t seed) {
  const std::size_t dim = uz(head_dim);
  auto rows = std::make_shared<std::vector<float>>();
  std::vector<float> block(dim * dim);
  for (std::uint64_t b = 0; rows->size() < uz(sketch) * dim; ++b) {
    fill_rotation(Rotation::kDense, head_dim, seed, kStream + b, block.data());
    const std::size_t take = std::min(block.size(), uz(sketch) * dim - rows->size());
    rows->insert(rows->end(), block.begin(), block.begin() + static_cast<std::ptrdiff_t>(take));
  }
  for (float& x : *rows) x *= std::sqrt(static_cast<float>(head_dim));
  return rows;
}

// sqrt(D) E |u_1| of a uniform unit vector u (3.2, the closed form for one bit).
double sign_constant(int dim) { return std::sqrt(dim / M_PI) * std::exp(std::lgamma(dim / 2.0) - std::lgamma((dim + 1) / 2.0)); }

// The sketch drawn last is kept: a planner counts the bytes of hundreds of caches, and nearly all have the same one.
std::shared_ptr<const std::vector<float>> shared_sketch(int sketch, int head_dim, std::uint64_t seed) {
  static std::mutex mutex;
  static std::tuple<int, int, std::uint64_t> last_of;
  static std::shared_ptr<const std::vector<float>> last;
  const std::lock_guard lock(mutex);
  const std::tuple<int, int, std::uint64_t> of(sketch, head_dim, seed);
  if (last == nullptr || last_of != of) {
    last = draw_sketch(sketch, head_dim, seed);
    last_of = of;
  }
  return last;
}

}  // namespace

Result<TileFormat> make_qjl_format(const FormatRequest& request, Side side, int head_dim) {
  if (side == Side::kValue) {
    return usage_error("qjl estimates logits and is for keys; write a pair such as qjl/kivi:bits=2");
  }
  if (request.sketch < 32 || request.sketch > static_cast<int>(kMaxSketch) || request.sketch % 32 != 0) {
    return usage_error(
        fmt::format("a qjl sketch of {} signs is not available; take a multiple of 32 up to {}, such as sketch=256",
                    request.sketch, kMaxSketch));
  }
  if (head_dim % 8 != 0) {
    return usage_error(fmt::format("qjl needs a head dimension that is a multiple of 8, this model has {}; use full", head_dim));
  }
  PlanarRows rows;
  rows.part_count = 1;
  rows.inputs = request.sketch;
  CodePart& part = rows.parts[0];
  part.channels = request.sketch;
  part.bits = 1;
  part.group = request.sketch;
  part.levels.bits = 1;
  part.levels.bias = 128.0F;
  part.levels.bytes[0] = 1;
  part.levels.bytes[1] = 255;
  part.levels.unit = static_cast<float>(1.0 / (sign_constant(head_dim) * request.sketch * 127.0));
  part.levels.values[0] = part.levels.unit * -127.0F;
  part.levels.values[1] = part.levels.unit * 127.0F;
  TileFormat format = planar_format("qjl", side, head_dim, rows);
  format.bits = 1;
  format.kernels.encode = encode;
  format.kernels.decode = decode;
  format.kernels.prepare_queries = sketch_queries;
  std::shared_ptr<const std::vector<float>> sketch = shared_sketch(request.sketch, head_dim, request.seed);
  format.table_bytes = sketch->size() * sizeof(float);
  const std::byte* const bytes = reinterpret_cast<const std::byte*>(sketch->data());
  format.tables = std::shared_ptr<const std::byte>(std::move(sketch), bytes);
  return format;
}

}  // namespace kvartet
