// The custom operators `WidenState` and `RoundState` of the domain hybridge.cpu, over matrices [..., rows, columns].
//
// WidenState: inputs values int8 and scales float32; output their products, float32. RoundState: input float32; outputs
// values int8 and scales, the largest magnitudes over 127. Attributes: by_column (cpu::State8), whether scales are
// [..., columns] or [..., rows]; instructions (cpu::Choice).
#include "kernel_table.h"
#include "library.h"
#include "op_call.h"

namespace {

// Numbers in a task.
constexpr int64_t task_numbers = 1 << 14;

class StateOp : public ort::KernelOp {
  public:
    ort::Status* create(const ort::Api* api, const ort::Info* info) {
        if (auto* status = start(api, info, "state in 8 bits")) return status;
        return api->attribute(info, "by_column", &by_column_);
    }

  protected:
    // The sizes of the scales of matrices of `sizes`, which has two axes at least.
    std::vector<int64_t> scale_sizes(std::vector<int64_t> sizes) const {
        sizes.erase(sizes.end() - (by_column_ ? 2 : 1));
        return sizes;
    }

    ort::Status* run(ort::Context* context, const ort::Tensor& values, const ort::Tensor& scales,
                     const ort::Tensor& wide, void (*kernel)(const cpu::State8&, int64_t, int64_t)) const {
        const size_t rank = wide.sizes.size();
        const cpu::State8 state{static_cast<int8_t*>(values.data), static_cast<float*>(scales.data),
                                static_cast<float*>(wide.data), wide.sizes[rank - 2], wide.sizes[rank - 1],
                                by_column_ != 0};
        int64_t matrices = 1;
        for (size_t i = 0; i + 2 < rank; ++i) matrices *= wide.sizes[i];
        if (matrices * state.numbers() == 0) return nullptr;
        return ort::spread_ranges(*api_, context, matrices, matrices * state.numbers(), task_numbers,
                                  [&](int64_t first, int64_t last) { kernel(state, first, last); });
    }

    ort::Status* refusal() const {
        return api_->status(ort::invalid_argument, "state in 8 bits: expected inputs whose sizes agree");
    }

    int64_t by_column_ = 0;
};

class WidenState : public StateOp {
  public:
    static constexpr const char* name = "WidenState";
    static constexpr ort::Input inputs[] = {{ort::int8_type}, {ort::float32_type}};
    static constexpr size_t outputs = 1;

    ort::Status* compute(ort::Context* context) {
        ort::Tensor values, scales, wide;
        if (auto* status = ort::read(*api_, context, 0, values)) return status;
        if (auto* status = ort::read(*api_, context, 1, scales)) return status;
        if (values.sizes.size() < 2 || !scales.is(scale_sizes(values.sizes))) return refusal();
        wide.sizes = values.sizes;
        if (auto* status = ort::make(*api_, context, 0, wide)) return status;
        return run(context, values, scales, wide, kernels_->widen_states);
    }
};

class RoundState : public StateOp {
  public:
    static constexpr const char* name = "RoundState";
    static constexpr ort::Input inputs[] = {{ort::float32_type}};
    static constexpr size_t outputs = 2;
    static constexpr int output_types[] = {ort::int8_type, ort::float32_type};

    ort::Status* compute(ort::Context* context) {
        ort::Tensor values, scales, wide;
        if (auto* status = ort::read(*api_, context, 0, wide)) return status;
        if (wide.sizes.size() < 2) return refusal();
        values.sizes = wide.sizes, scales.sizes = scale_sizes(wide.sizes);
        if (auto* status = ort::make(*api_, context, 0, values)) return status;
        if (auto* status = ort::make(*api_, context, 1, scales)) return status;
        return run(context, values, scales, wide, kernels_->round_states);
    }
};

}  // namespace

const ort::CustomOp& cpu::widen_state_op() { return ort::described<WidenState>(); }
const ort::CustomOp& cpu::round_state_op() { return ort::described<RoundState>(); }
