// The custom operator `CausalConv1d` of the domain hybridge.cpu.
//
// Inputs: x, weight [channels, 1, taps] and state of cpu::Convolution in float32; then bias float32 and lengths int32,
// which may be left out. Outputs: y and new_state. Attributes: silu; instructions (cpu::Choice).
#include "kernel_table.h"
#include "library.h"
#include "op_call.h"

namespace {

// Products in a task: fewer are finished before another thread has started.
constexpr int64_t most_tasks = 16, task_products = 1 << 14;

struct Work {
    const cpu::Kernels& kernels;
    const cpu::Convolution& convolution;
    int64_t row_tasks, task_channels;

    void run(size_t task) const {
        const int64_t row = static_cast<int64_t>(task) / row_tasks, all = convolution.channels;
        const int64_t first = static_cast<int64_t>(task) % row_tasks * task_channels;
        kernels.convolve(convolution, row, first, first + task_channels < all ? first + task_channels : all);
    }
};

class CausalConv1d {
  public:
    static constexpr const char* name = "CausalConv1d";
    static constexpr ort::Input inputs[] = {
        {ort::float32_type}, {ort::float32_type}, {ort::float32_type}, {ort::float32_type, true}, {ort::int32_type, true}};
    static constexpr size_t outputs = 2;

    ort::Status* create(const ort::Api* api, const ort::Info* info) {
        api_ = api;
        int64_t choice = 0;
        if (auto* status = api->attribute(info, "silu", &silu_)) return status;
        if (auto* status = api->attribute(info, "instructions", &choice)) return status;
        kernels_ = cpu::chosen_kernels(choice);
        return kernels_ ? nullptr : api->status(ort::fail, "CausalConv1d: expected instructions that this processor has");
    }

    ort::Status* compute(ort::Context* context) {
        ort::Tensor x, weight, past, bias, lengths, y, state;
        ort::Tensor* const in[] = {&x, &weight, &past, &bias, &lengths};
        for (size_t i = 0; i < 5; ++i) {
            if (auto* status = ort::read(*api_, context, i, *in[i])) return status;
        }
        if (x.sizes.size() != 3 || past.sizes.size() != 3) return refusal();
        const int64_t rows = x.sizes[0], time = x.sizes[1], channels = x.sizes[2], taps = past.sizes[2];
        if (taps < 1 || taps > cpu::most_taps || !weight.is({channels, 1, taps}) || !past.is({rows, channels, taps}) ||
            (bias.data && !bias.is({channels})) || (lengths.data && !lengths.is({rows}))) {
            return refusal();
        }
        y.sizes = x.sizes, state.sizes = past.sizes;
        if (auto* status = ort::make(*api_, context, 0, y)) return status;
        if (auto* status = ort::make(*api_, context, 1, state)) return status;
        const cpu::Convolution convolution{x.floats(), weight.floats(), bias.floats(), past.floats(),
                                           static_cast<const int32_t*>(lengths.data), static_cast<float*>(y.data),
                                           static_cast<float*>(state.data), rows, time, channels, taps, silu_ != 0};
        if (rows == 0 || channels == 0) return nullptr;
        const int64_t blocks = (channels + cpu::conv_channels - 1) / cpu::conv_channels;
        int64_t tasks = (time + 1) * channels * taps / task_products + 1;
        tasks = tasks < most_tasks ? tasks : most_tasks;
        tasks = tasks < blocks ? tasks : blocks;
        const int64_t task_channels = (blocks + tasks - 1) / tasks * cpu::conv_channels;
        Work work{*kernels_, convolution, (channels + task_channels - 1) / task_channels, task_channels};
        auto run = [](void* data, size_t task) { static_cast<const Work*>(data)->run(task); };
        return ort::spread(*api_, context, run, rows * work.row_tasks, &work);
    }

  private:
    ort::Status* refusal() const {
        return api_->status(ort::invalid_argument, "CausalConv1d: expected inputs whose sizes agree, and at most 16 taps");
    }

    const ort::Api* api_ = nullptr;
    const cpu::Kernels* kernels_ = nullptr;
    int64_t silu_ = 0;
};

}  // namespace

const ort::CustomOp& cpu::conv_op() { return ort::described<CausalConv1d>(); }
