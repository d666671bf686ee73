// Recurrent states of 8 bits: numbers times one float32 for each row.
#pragma once

#include <cstdint>

namespace cpu {

// Matrices [rows, columns], one for each head of a sequence, as `values` times `scales` and as floats. The numbers of a
// column share a scale if `by_column`, else those of a row: each matrix has as many scales as columns, or as rows.
struct State8 {
    int8_t* values;
    float *scales, *wide;
    int64_t rows, columns;
    bool by_column;

    int64_t numbers() const { return rows * columns; }
    int64_t scale_count() const { return by_column ? columns : rows; }
};

}  // namespace cpu
