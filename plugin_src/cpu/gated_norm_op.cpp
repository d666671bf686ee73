// The custom operator `GatedNorm` of the domain hybridge.cpu.
//
// Inputs: x [..., columns], gate like x from column gate_at on, and weight [weight_groups * size], all float32. Output:
// y like x.
// Attributes: size (of a group), gate_at, norm_first, epsilon; instructions (cpu::Choice).
#include "gated_norm.h"
#include "kernel_table.h"
#include "library.h"
#include "op_call.h"

namespace {

// Numbers in a task.
constexpr int64_t task_numbers = 1 << 12;

class GatedNormOp : ort::KernelOp {
  public:
    static constexpr const char* name = "GatedNorm";
    static constexpr ort::Input inputs[] = {{ort::float32_type}, {ort::float32_type}, {ort::float32_type}};
    static constexpr size_t outputs = 1;

    ort::Status* create(const ort::Api* api, const ort::Info* info) {
        if (auto* status = start(api, info, name)) return status;
        if (auto* status = api->attribute(info, "size", &size_)) return status;
        if (auto* status = api->attribute(info, "norm_first", &norm_first_)) return status;
        if (auto* status = api->attribute(info, "epsilon", &epsilon_)) return status;
        api->optional_attribute(info, "gate_at", &gate_at_);
        return nullptr;
    }

    ort::Status* compute(ort::Context* context) {
        ort::Tensor x, gate, weight, y;
        if (auto* status = ort::read(*api_, context, 0, x)) return status;
        if (auto* status = ort::read(*api_, context, 1, gate)) return status;
        if (auto* status = ort::read(*api_, context, 2, weight)) return status;
        auto sizes = x.sizes;
        if (sizes.empty() || gate.sizes.empty() || gate_at_ < 0) return refusal();
        const int64_t stride = sizes.back() = gate.sizes.back();
        if (!gate.is(sizes) || gate_at_ > stride - x.sizes.back() || weight.sizes.size() != 1 || size_ <= 0)
            return refusal();
        const int64_t columns = x.sizes.back(), weights = weight.sizes[0];
        if (columns <= 0 || columns % size_ || (weights != size_ && weights != columns)) return refusal();
        y.sizes = x.sizes;
        if (auto* status = ort::make(*api_, context, 0, y)) return status;
        int64_t groups = columns / size_;
        const cpu::GatedNorm norm{x.floats(), gate.floats() + gate_at_, weight.floats(), static_cast<float*>(y.data),
                                  groups, size_, weights / size_, stride, epsilon_, norm_first_ != 0};
        for (size_t i = 0; i + 1 < x.sizes.size(); ++i) groups *= x.sizes[i];
        if (groups == 0) return nullptr;
        return ort::spread_ranges(*api_, context, groups, groups * size_, task_numbers,
                                  [&](int64_t first, int64_t last) { kernels_->gated_norm(norm, first, last); });
    }

  private:
    ort::Status* refusal() const {
        return api_->status(ort::invalid_argument, "GatedNorm: expected inputs whose sizes agree");
    }

    int64_t size_ = 0, norm_first_ = 0, gate_at_ = 0;
    float epsilon_ = 0;
};

}  // namespace

const ort::CustomOp& cpu::gated_norm_op() { return ort::described<GatedNormOp>(); }
