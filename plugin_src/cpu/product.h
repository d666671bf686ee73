// One product y = x W^T in steps that threads share: its inputs are prepared first, then ranges of its rows computed.
#pragma once

#include "kernel_table.h"

namespace cpu {

class Product {
  public:
    // exact: inputs of a weight in tiles are not rounded to 8 bits.
    Product(const Kernels& kernels, const Weight& weight, int64_t inputs, bool exact)
        : kernels_(&kernels), weight_(weight), count_(inputs), rounds_(weight.is_tiled() && !exact),
          uses_panels_(!rounds_ && (weight.is_tiled() || inputs >= kernels.panel_inputs)) {}

    // Bytes of memory for prepared inputs, a multiple of 64.
    int64_t input_bytes() const {
        const int64_t parts = (weight_.columns + panel_columns - 1) / panel_columns;
        const int64_t floats = 4 * (uses_panels_ ? parts * packed_stride : stride());
        return pad(count_ * (rounds_ ? stride() + 12 * weight_.blocks() : floats), 64);
    }

    void use(uint8_t* memory) {
        arranged_ = reinterpret_cast<float*>(memory);
        rounded_.numbers = reinterpret_cast<int8_t*>(memory);
        rounded_.scales = reinterpret_cast<float*>(memory + count_ * stride());
        rounded_.offsets = reinterpret_cast<int32_t*>(rounded_.scales + count_ * weight_.blocks());
        rounded_.totals = rounded_.offsets + count_ * weight_.blocks();
        rounded_.count = count_;
    }

    // Prepares x [columns], which is input m.
    void prepare(const float* x, int64_t m) {
        if (rounds_) {
            kernels_->round(weight_, x, m, rounded_);
        } else if (uses_panels_) {
            kernels_->pack(x, weight_.columns, m, count_, arranged_);
        } else {
            kernels_->arrange(weight_, x, arranged_ + m * stride());
        }
    }

    // y[:, first:last] of y [inputs, rows]; first is a multiple of task_rows.
    void run(float* y, int64_t first, int64_t last) const {
        multiply(weight_, y, first, last);
    }

    // The same as y [inputs, last - first].
    void run_alone(float* y, int64_t first, int64_t last) const {
        multiply(weight_.part(first, last - first), y, 0, last - first);
    }

    // Rows that are computed at once: a multiple of those of a tile and of a panel.
    int64_t unit_rows() const {
        return uses_panels_ && kernels_->panel_rows > tile_rows ? kernels_->panel_rows : tile_rows;
    }

    // Rows of each of about `tasks` tasks of equal size: whole tiles and panels.
    int64_t task_rows(int64_t tasks) const {
        const int64_t unit = unit_rows(), units = pad(weight_.rows, unit) / unit;
        return (units + tasks - 1) / tasks * unit;
    }

    // About as many tasks as let threads finish together, each large enough to pay for its start.
    int64_t useful_tasks() const {
        constexpr int64_t most = 16, most_of_prompts = 64, task_bytes = 1 << 16;
        if (uses_panels_ && count_ >= most_of_prompts) return most_of_prompts;
        const int64_t wanted = count_ > 1 || uses_panels_ ? most : weight_.rows * weight_.row_bytes() / task_bytes + 1;
        return wanted < most ? wanted : most;
    }

    const Weight& weight() const { return weight_; }
    int64_t count() const { return count_; }

  private:
    void multiply(const Weight& weight, float* y, int64_t first, int64_t last) const {
        if (rounds_) return kernels_->rounded(weight, rounded_, y, first, last);
        (uses_panels_ ? kernels_->panels : kernels_->dots)(weight, arranged_, count_, y, first, last);
    }

    int64_t stride() const { return pad(weight_.columns, dot_columns); }

    const Kernels* kernels_;
    Weight weight_;
    int64_t count_;
    bool rounds_, uses_panels_;
    Rounded rounded_{};
    float* arranged_ = nullptr;
};

}  // namespace cpu
