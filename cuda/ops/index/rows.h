// Reading and writing by index as rows: a dense tensor (what is read, or the updates that are written) is taken for
// `count` rows of `width` elements, and each row lies in one piece in the other tensor, the table, too, at the place
// that its index names. Axes behind the indexed one along which the indices do not change make the width.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/op.h"

namespace ortops {

struct IndexedRows {
  int64_t width = 1;
  int64_t count = 1;
  int64_t size = 0;       // of the indexed axis
  int64_t step = 0;       // from one index to the next, in elements of the table
  int64_t table_row = 1;  // what a row's width is a part of: places are multiples of it
  // The axes that the rows run over, with the strides of the indices and, but for the indexed axis, of the table.
  int rank = 0;
  int64_t sizes[kMaxRank] = {}, index_strides[kMaxRank] = {}, table_strides[kMaxRank] = {};

  void append(int64_t axis_size, int64_t index_stride, int64_t table_stride) {
    count *= axis_size;
    if (axis_size <= 1) return;
    const int last = rank - 1;
    if (rank > 0 && index_strides[last] == index_stride * axis_size &&
        table_strides[last] == table_stride * axis_size) {
      sizes[last] *= axis_size;
      index_strides[last] = index_stride;
      table_strides[last] = table_stride;
      return;
    }
    sizes[rank] = axis_size;
    index_strides[rank] = index_stride;
    table_strides[rank++] = table_stride;
  }

  // The numbers of the table's rows instead of places.
  IndexedRows numbered() const {
    IndexedRows result = *this;
    result.width = table_row;
    return result.in_units(table_row);
  }

  // In units of so many elements.
  IndexedRows in_units(int64_t elements) const {
    IndexedRows result = *this;
    result.width /= elements;
    result.step /= elements;
    result.table_row /= elements;
    for (int i = 0; i < rank; ++i) result.table_strides[i] /= elements;
    return result;
  }
};

inline Strides dense_strides(const Shape& shape) {
  Strides result;
  result.rank = shape.rank;
  int64_t stride = 1;
  for (int i = shape.rank - 1; i >= 0; stride *= shape[i--]) result.strides[i] = stride;
  return result;
}

// Slices of a table of shape `table` along an axis, one for each of `indices` numbers.
inline IndexedRows slices(const Shape& table, int64_t indices, int64_t axis) {
  if (axis < 0) axis += table.rank;
  int64_t outer = 1;
  IndexedRows rows;
  for (int i = 0; i < axis; ++i) outer *= table[i];
  for (int i = static_cast<int>(axis) + 1; i < table.rank; ++i) rows.width *= table[i];
  rows.size = table[static_cast<int>(axis)];
  rows.step = rows.table_row = rows.width;
  rows.append(outer, 0, rows.size * rows.width);
  rows.append(indices, 1, 0);
  return rows;
}

// One index for each element of shape `part`, at these strides.
inline IndexedRows elements(const Shape& table, const Shape& part, const Strides& index_strides, int64_t axis) {
  if (axis < 0) axis += table.rank;
  const Strides table_strides = dense_strides(table);
  IndexedRows rows;
  rows.size = table[static_cast<int>(axis)];
  rows.step = table_strides[static_cast<int>(axis)];
  int last = table.rank - 1;
  for (; last > axis; --last) {
    if (part[last] == 1) continue;
    if (index_strides[last] != 0 || table_strides[last] != rows.width) break;
    rows.width *= part[last];
    rows.table_row = table_strides[last] * table[last];
  }
  for (int i = 0; i <= last; ++i) rows.append(part[i], index_strides[i], i == axis ? 0 : table_strides[i]);
  return rows;
}

// Calls f(row, count, index, place) for runs along the last axis, which together are the rows begin..end: the index of
// a run's first row and its place in the table for index 0.
template <class F>
void for_each_run(const IndexedRows& rows, int64_t begin, int64_t end, F&& f) {
  const int last = rows.rank - 1;
  for (int64_t row = begin; row < end;) {
    int64_t index = 0, place = 0, rest = row, at = 0;
    for (int axis = last; axis >= 0; --axis) {
      at = rest % rows.sizes[axis];
      index += at * rows.index_strides[axis];
      place += at * rows.table_strides[axis];
      rest /= rows.sizes[axis];
    }
    const int64_t size = rows.rank > 0 ? rows.sizes[last] : 1;
    const int64_t count = std::min(size - row % size, end - row);
    f(row, count, index, place);
    row += count;
  }
}

}  // namespace ortops
