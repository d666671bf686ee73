// The custom operator `UpdateSsmState` of the domain hybridge.cpu.
//
// Inputs: x, A, B, C, D, dt, dt_bias and state of cpu::SsmUpdate in float32, and lengths int32, which may be left out.
// x and the output y have one axis of heads * head_dim, B and C one of groups * state_size. Second output: new_state.
// Attributes: heads, groups, dt_softplus, time_step_min, time_step_max; instructions (cpu::Choice).
#include "kernel_table.h"
#include "library.h"
#include "op_call.h"

namespace {

// Bytes of state in a task.
constexpr int64_t task_bytes = 1 << 16;

class UpdateSsmState {
  public:
    static constexpr const char* name = "UpdateSsmState";
    static constexpr ort::Input number{ort::float32_type};
    static constexpr ort::Input inputs[] = {number, number, number, number,
                                            number, number, number, number, {ort::int32_type, true}};
    static constexpr size_t outputs = 2;

    ort::Status* create(const ort::Api* api, const ort::Info* info) {
        api_ = api;
        int64_t choice = 0;
        if (auto* status = api->attribute(info, "heads", &heads_)) return status;
        if (auto* status = api->attribute(info, "groups", &groups_)) return status;
        if (auto* status = api->attribute(info, "dt_softplus", &softplus_)) return status;
        if (auto* status = api->attribute(info, "time_step_min", &lowest_)) return status;
        if (auto* status = api->attribute(info, "time_step_max", &highest_)) return status;
        if (auto* status = api->attribute(info, "instructions", &choice)) return status;
        kernels_ = cpu::chosen_kernels(choice);
        if (kernels_) return nullptr;
        return api->status(ort::fail, "UpdateSsmState: expected instructions that this processor has");
    }

    ort::Status* compute(ort::Context* context) {
        ort::Tensor in[9], y, state;
        for (size_t i = 0; i < 9; ++i) {
            if (auto* status = ort::read(*api_, context, i, in[i])) return status;
        }
        const auto& [x, A, B, C, D, dt, dt_bias, past, lengths] = in;
        if (!fit(in)) return api_->status(ort::invalid_argument, "UpdateSsmState: expected inputs whose sizes agree");
        y.sizes = x.sizes, state.sizes = past.sizes;
        if (auto* status = ort::make(*api_, context, 0, y)) return status;
        if (auto* status = ort::make(*api_, context, 1, state)) return status;
        const cpu::SsmUpdate update{x.floats(), A.floats(), B.floats(), C.floats(), D.floats(), dt.floats(),
                                    dt_bias.floats(), past.floats(), static_cast<const int32_t*>(lengths.data),
                                    static_cast<float*>(y.data), static_cast<float*>(state.data),
                                    x.sizes[0], x.sizes[1], heads_, x.sizes[2] / heads_, groups_, B.sizes[2] / groups_,
                                    softplus_ != 0, lowest_, highest_};
        const int64_t heads = update.rows * update.heads;
        if (heads == 0) return nullptr;
        const int64_t bytes = 4 * heads * update.head_dim * update.state_size * (update.time + 1) / 2;
        return ort::spread_ranges(*api_, context, heads, bytes, task_bytes, [&](int64_t first, int64_t last) {
            kernels_->update_ssm(update, first, last);
        });
    }

  private:
    bool fit(const ort::Tensor (&in)[9]) const {
        const auto& [x, A, B, C, D, dt, dt_bias, past, lengths] = in;
        if (x.sizes.size() != 3 || past.sizes.size() != 4 || heads_ <= 0 || groups_ <= 0 || heads_ % groups_) return false;
        const int64_t rows = x.sizes[0], time = x.sizes[1], state_size = past.sizes[2], head_dim = past.sizes[3];
        return x.sizes[2] == heads_ * head_dim && B.is({rows, time, groups_ * state_size}) && C.is(B.sizes) &&
               dt.is({rows, time, heads_}) && A.is({heads_}) && D.is({heads_}) && dt_bias.is({heads_}) &&
               past.is({rows, heads_, state_size, head_dim}) && (!lengths.data || lengths.is({rows}));
    }

    const ort::Api* api_ = nullptr;
    const cpu::Kernels* kernels_ = nullptr;
    int64_t heads_ = 0, groups_ = 0, softplus_ = 0;
    float lowest_ = 0, highest_ = 0;
};

}  // namespace

const ort::CustomOp& cpu::ssm_op() { return ort::described<UpdateSsmState>(); }
