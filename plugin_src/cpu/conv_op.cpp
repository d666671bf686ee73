// The custom operator `CausalConv1d` of the domain hybridge.cpu.
//
// Inputs: x, weight [channels, 1, taps] and state of cpu::Convolution in float32; then bias float32 and lengths int32,
// which may be left out. x and y may be [tokens, channels], of equally long rows, or with starts of cpu::RowTokens in
// the place of lengths. Outputs: y and new_state; with the last input `checkpoint_lengths` int32 also the states of
// cpu::Checkpoints. Attributes: silu; x_at (the first channel in x, which may have more); instructions (cpu::Choice).
#include "kernel_table.h"
#include "library.h"
#include "op_call.h"

namespace {

// Products in a task.
constexpr int64_t task_products = 1 << 14;

class CausalConv1d : ort::KernelOp {
  public:
    static constexpr const char* name = "CausalConv1d";
    static constexpr ort::Input inputs[] = {
        {ort::float32_type},       {ort::float32_type},     {ort::float32_type},
        {ort::float32_type, true}, {ort::int32_type, true}, {ort::int32_type, true}};
    static constexpr size_t outputs = 3;
    static constexpr size_t needed_outputs = 2;

    ort::Status* create(const ort::Api* api, const ort::Info* info) {
        if (auto* status = start(api, info, name)) return status;
        if (auto* status = api->attribute(info, "silu", &silu_)) return status;
        api->optional_attribute(info, "x_at", &x_at_);
        return nullptr;
    }

    ort::Status* compute(ort::Context* context) {
        ort::Tensor x, weight, past, bias, lengths, y, state;
        ort::Tensor* const in[] = {&x, &weight, &past, &bias, &lengths};
        for (size_t i = 0; i < 5; ++i) {
            if (auto* status = ort::read(*api_, context, i, *in[i])) return status;
        }
        if (past.sizes.size() != 3) return refusal();
        y.sizes = x.sizes;
        if (y.sizes.empty()) return refusal();
        y.sizes.back() = past.sizes[1];
        const int64_t rows = past.sizes[0], taps = past.sizes[2];
        cpu::RowTokens tokens;
        if (!ort::rows_of(x, rows, lengths, tokens)) return refusal();
        x.divide(rows, tokens.starts);
        if (x.sizes.size() != 3 || (!tokens.starts && x.sizes[0] != rows)) return refusal();
        const int64_t channels = past.sizes[1], time = tokens.time, stride = x.sizes[2];
        if (x_at_ < 0 || x_at_ > stride - channels) return refusal();
        if (taps < 1 || taps > cpu::most_taps || !weight.is({channels, 1, taps}) || !past.is({rows, channels, taps}) ||
            (bias.data && !bias.is({channels}))) {
            return refusal();
        }
        state.sizes = past.sizes;
        if (auto* status = ort::make(*api_, context, 0, y)) return status;
        if (auto* status = ort::make(*api_, context, 1, state)) return status;
        cpu::Convolution convolution{x.floats() + x_at_, weight.floats(), bias.floats(), past.floats(),
                                     tokens, static_cast<float*>(y.data), static_cast<float*>(state.data), rows,
                                     channels, taps, stride, silu_ != 0};
        bool fits = true;
        auto* status = ort::make_checkpoints(*api_, context, 5, 2, past, time, fits, convolution.checkpoints);
        if (status || !fits) return status ? status : refusal();
        if (rows == 0 || channels == 0) return nullptr;
        // Blocks of channels of a row, counted over all rows.
        const int64_t blocks = (channels + cpu::conv_channels - 1) / cpu::conv_channels;
        const int64_t products = (x.sizes[0] * x.sizes[1] + rows) * channels * taps;
        return ort::spread_ranges(*api_, context, rows * blocks, products, task_products,
                                  [&](int64_t first, int64_t last) {
                                      for (int64_t i = first; i < last; ++i) {
                                          kernels_->convolve(convolution, i / blocks, i % blocks * cpu::conv_channels);
                                      }
                                  });
    }

  private:
    ort::Status* refusal() const {
        return api_->status(ort::invalid_argument,
                            "CausalConv1d: expected inputs whose sizes agree, and at most 16 taps");
    }

    int64_t silu_ = 0, x_at_ = 0;
};

}  // namespace

const ort::CustomOp& cpu::conv_op() { return ort::described<CausalConv1d>(); }
