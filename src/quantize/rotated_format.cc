#include "quantize/rotated_format.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/uz.h"
#include "quantize/row_check.h"

namespace kvartet {
namespace {

constexpr std::size_t kScratchFloats = 8192;
constexpr std::size_t kMaxDim = 1024;
constexpr float kLongest = 45000.0F;  // a corrected norm may be a third larger than the row is long

const std::uint16_t* channel_order(const TileFormat& format) {
  return reinterpret_cast<const std::uint16_t*>(format.calibration.get());
}

template <class Turn>
void turn_parts(const TileFormat& format, float* row, const Turn& turn) {
  const RotatedRows& rows = *format.rotated;
  const float* table = float_tables(format);
  for (int p = 0; p < rows.part_count; ++p) {
    turn(rows.rotation, rows.parts[p], table, row);
    table += rotation_floats(rows.rotation, rows.parts[p]);
    row += rows.parts[p];
  }
}

void rotate_row(const TileFormat& format, float* row) {
  if (channel_order(format) != nullptr) sort_channels(format, row);
  turn_parts(format, row, rotate);
}

void rotate_row_back(const TileFormat& format, float* row) {
  turn_parts(format, row, rotate_back);
  if (channel_order(format) != nullptr) unsort_channels(format, row);
}

Status encode(const TileFormat& format, std::byte* tile, int begin, MatView<const float> rows) {
  KV_TRY(check_lengths(rows, format.name.c_str(), kLongest));
  float scratch[kScratchFloats];
  const std::size_t chunk = kScratchFloats / rows.cols;
  for (std::size_t r = 0; r < rows.rows; r += chunk) {
    const std::size_t count = std::min(chunk, rows.rows - r);
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(scratch + i * rows.cols, rows.row(r + i), rows.cols * sizeof(float));
      rotate_row(format, scratch + i * rows.cols);
    }
    const Status s = format.rotated->plain.encode(format, tile, begin + static_cast<int>(r), {scratch, count, rows.cols});
    KV_CHECK(s.ok());  // everything that fails was refused above, so that a failure leaves the tile unchanged
  }
  return {};
}

void decode(const TileFormat& format, const std::byte* tile, int begin, int end, MatView<float> out) {
  format.rotated->plain.decode(format, tile, begin, end, out);
  for (int row = begin; row < end; ++row) rotate_row_back(format, out.row(uz(row - begin)));
}

void prepare_queries(const TileFormat& format, float* q, int queries) {
  for (int k = 0; k < queries; ++k) rotate_row(format, q + k * format.head_dim);
  if (format.rotated->plain.prepare_queries != nullptr) format.rotated->plain.prepare_queries(format, q, queries);
}

void finish_output(const TileFormat& format, float* out, int queries) {
  for (int k = 0; k < queries; ++k) rotate_row_back(format, out + k * format.head_dim);
}

// The channels of the first part are those with the largest sums of squares; both parts keep their channels in order.
void calibrate_order(const TileFormat& format, MatView<const float> rows, std::byte* calibration) {
  std::vector<double> energy(rows.cols, 0.0);
  for (std::size_t r = 0; r < rows.rows; ++r) {
    for (std::size_t c = 0; c < rows.cols; ++c)
      energy[c] += static_cast<double>(rows.row(r)[c]) * static_cast<double>(rows.row(r)[c]);
  }
  std::vector<std::uint16_t> order(rows.cols);
  std::iota(order.begin(), order.end(), std::uint16_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::uint16_t a, std::uint16_t b) { return energy[a] > energy[b]; });
  const auto border = order.begin() + format.rotated->parts[0];
  std::sort(order.begin(), border);
  std::sort(border, order.end());
  std::memcpy(calibration, order.data(), order.size() * sizeof(std::uint16_t));
}

}  // namespace

std::size_t RotatedRows::table_floats() const {
  std::size_t floats = 0;
  for (int p = 0; p < part_count; ++p) floats += rotation_floats(rotation, parts[p]);
  return floats;
}

void sort_channels(const TileFormat& format, float* row) {
  float sorted[kMaxDim];
  const std::uint16_t* const order = channel_order(format);
  for (std::size_t c = 0; c < uz(format.head_dim); ++c) sorted[c] = row[order[c]];
  std::memcpy(row, sorted, uz(format.head_dim) * sizeof(float));
}

void unsort_channels(const TileFormat& format, float* row) {
  float unsorted[kMaxDim];
  const std::uint16_t* const order = channel_order(format);
  for (std::size_t c = 0; c < uz(format.head_dim); ++c) unsorted[order[c]] = row[c];
  std::memcpy(row, unsorted, uz(format.head_dim) * sizeof(float));
}

TileFormat with_rotation(TileFormat plain, RotatedRows rows, std::uint64_t seed) {
  struct Layout {
    RotatedRows rotated;
    std::shared_ptr<const void> inner;
  };
  const std::size_t floats = rows.table_floats();
  const std::size_t bytes = floats * sizeof(float) + plain.table_bytes;
  auto tables = std::make_shared<std::vector<float>>(bytes / sizeof(float));
  float* at = tables->data();
  for (int p = 0; p < rows.part_count; ++p) {
    fill_rotation(rows.rotation, rows.parts[p], seed, static_cast<std::uint64_t>(p), at);
    at += rotation_floats(rows.rotation, rows.parts[p]);
  }
  if (plain.table_bytes > 0) std::memcpy(at, plain.tables.get(), plain.table_bytes);

  rows.plain = plain.kernels;
  auto layout = std::make_shared<Layout>(Layout{rows, plain.layout});
  TileFormat format = std::move(plain);
  format.rotated = &layout->rotated;
  format.layout = std::move(layout);
  const std::byte* const table_bytes = reinterpret_cast<const std::byte*>(tables->data());
  format.tables = std::shared_ptr<const std::byte>(std::move(tables), table_bytes);
  format.table_bytes = bytes;
  format.kernels.encode = encode;
  format.kernels.decode = decode;
  if (format.side == Side::kKey) format.kernels.prepare_queries = prepare_queries;
  if (format.side == Side::kValue) format.kernels.finish_output = finish_output;
  if (rows.part_count > 1) {
    format.kernels.calibrate = calibrate_order;
    format.calibration_bytes = uz(format.head_dim) * sizeof(std::uint16_t);
  }
  return format;
}

}  // namespace kvartet
