// Which tokens of a call belong to which row.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cpu {

// Rows of `time` tokens, of which the first lengths[row] count, all of them where that is null. With starts [rows + 1]
// rows follow each other without padding: row r has the tokens starts[r] to starts[r + 1] - 1, and `time` is their
// largest number.
struct RowTokens {
    const int32_t *lengths = nullptr, *starts = nullptr;
    int64_t time = 0;

    int64_t first(int64_t row) const { return starts ? starts[row] : row * time; }
    // Tokens that count.
    int64_t count(int64_t row) const {
        if (starts) return starts[row + 1] - starts[row];
        return lengths ? std::clamp<int64_t>(lengths[row], 0, time) : time;
    }
    // Tokens with padding.
    int64_t padded(int64_t row) const { return starts ? count(row) : time; }
};

}  // namespace cpu
