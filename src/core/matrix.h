// Views of numbers that somebody else owns. Shapes are [rows, cols]; `stride` is in elements.
#pragma once

#include <cstddef>
#include <span>

#include "core/check.h"

namespace kvartet {

template <typename T>
struct MatView {
  T* data = nullptr;
  std::size_t rows = 0;
  std::size_t cols = 0;
  std::size_t stride = 0;  // elements from one row to the next, >= cols

  MatView() = default;
  MatView(T* d, std::size_t r, std::size_t c) : data(d), rows(r), cols(c), stride(c) {}
  MatView(T* d, std::size_t r, std::size_t c, std::size_t s) : data(d), rows(r), cols(c), stride(s) {}
  operator MatView<const T>() const { return {data, rows, cols, stride}; }  // NOLINT: as a pointer converts

  T* row(std::size_t r) const {
    KV_DCHECK(r < rows);
    return data + r * stride;
  }
  std::span<T> row_span(std::size_t r) const { return {row(r), cols}; }
  MatView row_range(std::size_t begin, std::size_t end) const {
    KV_DCHECK(begin <= end && end <= rows);
    return {data + begin * stride, end - begin, cols, stride};
  }
};

// Rows of several heads for one layer: element (token, head, channel) is data[token*token_stride + head*head_dim + channel].
template <typename T>
struct HeadRows {
  T* data = nullptr;
  std::size_t tokens = 0;
  std::size_t heads = 0;
  std::size_t head_dim = 0;
  std::size_t token_stride = 0;  // elements

  operator HeadRows<const T>() const { return {data, tokens, heads, head_dim, token_stride}; }  // NOLINT: as a pointer converts

  T* row(std::size_t token, std::size_t head) const {
    KV_DCHECK(token < tokens && head < heads);
    return data + token * token_stride + head * head_dim;
  }
  // One head as a matrix [tokens, head_dim].
  MatView<T> head(std::size_t h) const { return {data + h * head_dim, tokens, head_dim, token_stride}; }
  HeadRows token_range(std::size_t begin, std::size_t end) const {
    KV_DCHECK(begin <= end && end <= tokens);
    return {data + begin * token_stride, end - begin, heads, head_dim, token_stride};
  }
};

}  // namespace kvartet
