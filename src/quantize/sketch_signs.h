// Signs of a sketch: what qjl keeps of a row.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvartet {

inline constexpr std::size_t kSketchRows = 16;  // rows that are sketched together, one per lane

// signs[row * count + j] = 1 if dot_product(sketch + j * dim, row, dim) >= 0 (quantize/row_rotation.h), with that function's
// order of sums, so that a row has the same signs on every instruction set. columns: [dim, kSketchRows], 64-byte aligned: the
// rows' channels side by side. dim: a multiple of 8.
void sketch_signs(const float* sketch, std::size_t count, std::size_t dim, const float* columns, std::uint8_t* signs);

}  // namespace kvartet
