// The custom operators `UpdateSsmState` and `UpdateSsmState8Bit` of the domain hybridge.cpu.
//
// Inputs: x, A, B, C, D, dt, dt_bias and state of cpu::SsmUpdate in float32, and lengths int32, which may be left out.
// x and the output y have one axis of heads * head_dim, B and C one of groups * state_size; these and dt may have one
// axis for all tokens, of equally long rows, or with starts of cpu::RowTokens in the place of lengths. Second output:
// new_state, which may be left out.
// With 8 bits, state and new_state are int8, and the scales of cpu::SsmState8 come behind each. Else, with the last
// input `checkpoint_lengths` int32, the third output has the states of cpu::Checkpoints.
// Attributes: x_at, B_at, C_at and dt_at, the first number in tensors that may have more; heads, groups, dt_softplus,
// time_step_min, time_step_max; instructions (cpu::Choice).
#include "kernel_table.h"
#include "library.h"
#include "op_call.h"

namespace {

// Bytes of state in a task.
constexpr int64_t task_bytes = 1 << 16;
constexpr ort::Input number{ort::float32_type};

class SsmOp : public ort::KernelOp {
  public:
    ort::Status* create(const ort::Api* api, const ort::Info* info) {
        if (auto* status = start(api, info, "UpdateSsmState")) return status;
        if (auto* status = api->attribute(info, "heads", &heads_)) return status;
        if (auto* status = api->attribute(info, "groups", &groups_)) return status;
        api->optional_attribute(info, "x_at", &x_at_);
        api->optional_attribute(info, "B_at", &B_at_);
        api->optional_attribute(info, "C_at", &C_at_);
        api->optional_attribute(info, "dt_at", &dt_at_);
        if (auto* status = api->attribute(info, "dt_softplus", &softplus_)) return status;
        if (auto* status = api->attribute(info, "time_step_min", &lowest_)) return status;
        return api->attribute(info, "time_step_max", &highest_);
    }

  protected:
    // Of a call whose inputs `fit`, into y.
    cpu::SsmUpdate update(const ort::Tensor (&in)[9], const cpu::RowTokens& tokens, const ort::Tensor& y) const {
        const auto& [x, A, B, C, D, dt, dt_bias, past, lengths] = in;
        return {x.floats() + x_at_, A.floats(), B.floats() + B_at_, C.floats() + C_at_, D.floats(),
                dt.floats() + dt_at_, dt_bias.floats(), nullptr, tokens, static_cast<float*>(y.data), nullptr,
                past.sizes[0], heads_, past.sizes[3], groups_, past.sizes[2],
                softplus_ != 0, lowest_, highest_, x.sizes[2], B.sizes[2], dt.sizes[2]};
    }

    // Calls run(first, last) for heads, counted over all rows.
    template <class Run>
    ort::Status* spread(ort::Context* context, const cpu::SsmUpdate& u, const Run& run) const {
        const int64_t heads = u.rows * u.heads;
        if (heads == 0) return nullptr;
        const int64_t bytes = 4 * heads * u.head_dim * u.state_size * (u.tokens.time + 1) / 2;
        return ort::spread_ranges(*api_, context, heads, bytes, task_bytes, run);
    }

    ort::Status* refusal() const {
        return api_->status(ort::invalid_argument, "UpdateSsmState: expected inputs whose sizes agree");
    }

    // Whether the sizes agree; those of tokens have an axis for rows after this.
    bool fit(ort::Tensor (&in)[9], cpu::RowTokens& tokens) const {
        const auto& [x, A, B, C, D, dt, dt_bias, past, lengths] = in;
        if (past.sizes.size() != 4 || !ort::rows_of(x, past.sizes[0], lengths, tokens)) return false;
        for (size_t i : {0, 2, 3, 5}) in[i].divide(past.sizes[0], tokens.starts);
        if (x.sizes.size() != 3 || heads_ <= 0 || groups_ <= 0 || heads_ % groups_) return false;
        const int64_t rows = x.sizes[0], time = x.sizes[1], state_size = past.sizes[2], head_dim = past.sizes[3];
        auto holds = [&](const ort::Tensor& tensor, int64_t at, int64_t width) {
            const auto& sizes = tensor.sizes;
            return sizes.size() == 3 && sizes[0] == rows && sizes[1] == time && at >= 0 && at <= sizes[2] - width;
        };
        const int64_t projections = groups_ * state_size;
        return holds(x, x_at_, heads_ * head_dim) && holds(B, B_at_, projections) && holds(C, C_at_, projections) &&
               C.sizes == B.sizes && holds(dt, dt_at_, heads_) && A.is({heads_}) && D.is({heads_}) &&
               dt_bias.is({heads_}) && past.sizes[1] == heads_ && (tokens.starts || past.sizes[0] == rows);
    }

    int64_t heads_ = 0, groups_ = 0, softplus_ = 0, x_at_ = 0, B_at_ = 0, C_at_ = 0, dt_at_ = 0;
    float lowest_ = 0, highest_ = 0;
};

class UpdateSsmState : public SsmOp {
  public:
    static constexpr const char* name = "UpdateSsmState";
    static constexpr ort::Input inputs[] = {number, number, number, number,
                                            number, number, number, number, {ort::int32_type, true},
                                            {ort::int32_type, true}};
    static constexpr size_t outputs = 3;
    static constexpr size_t needed_outputs = 1;

    ort::Status* compute(ort::Context* context) {
        ort::Tensor in[9], y, state;
        if (auto* status = ort::read_all(*api_, context, in)) return status;
        cpu::RowTokens tokens;
        y.sizes = in[0].sizes, state.sizes = in[7].sizes;
        if (!fit(in, tokens)) return refusal();
        y.sizes.back() = heads_ * in[7].sizes[3];
        if (auto* status = ort::make(*api_, context, 0, y)) return status;
        if (auto* status = ort::make(*api_, context, 1, state)) return status;
        cpu::SsmUpdate found = update(in, tokens, y);
        found.state = in[7].floats(), found.new_state = static_cast<float*>(state.data);
        bool fits = true;
        auto* status = ort::make_checkpoints(*api_, context, 9, 2, in[7], tokens.time, fits, found.checkpoints);
        if (status || !fits) return status ? status : refusal();
        return spread(context, found, [&](int64_t first, int64_t last) { kernels_->update_ssm(found, first, last); });
    }
};

class UpdateSsmState8Bit : public SsmOp {
  public:
    static constexpr const char* name = "UpdateSsmState8Bit";
    static constexpr ort::Input inputs[] = {number, number, number, number, number, number, number,
                                            {ort::int8_type}, number, {ort::int32_type, true}};
    static constexpr size_t outputs = 3;
    static constexpr int output_types[] = {ort::float32_type, ort::int8_type, ort::float32_type};

    ort::Status* compute(ort::Context* context) {
        ort::Tensor in[9], scales, y, values, new_scales;
        for (size_t i = 0; i < 8; ++i) {
            if (auto* status = ort::read(*api_, context, i, in[i])) return status;
        }
        if (auto* status = ort::read(*api_, context, 8, scales)) return status;
        if (auto* status = ort::read(*api_, context, 9, in[8])) return status;
        y.sizes = in[0].sizes;
        cpu::RowTokens tokens;
        if (!fit(in, tokens) || !scales.is({in[7].sizes[0], heads_, in[7].sizes[3]})) return refusal();
        y.sizes.back() = heads_ * in[7].sizes[3];
        values.sizes = in[7].sizes, new_scales.sizes = scales.sizes;
        if (auto* status = ort::make(*api_, context, 0, y)) return status;
        if (auto* status = ort::make(*api_, context, 1, values)) return status;
        if (auto* status = ort::make(*api_, context, 2, new_scales)) return status;
        const cpu::SsmUpdate found = update(in, tokens, y);
        const cpu::SsmState8 state{static_cast<const int8_t*>(in[7].data), scales.floats(),
                                   static_cast<int8_t*>(values.data), static_cast<float*>(new_scales.data)};
        return spread(context, found, [&](int64_t first, int64_t last) {
            kernels_->update_ssm_8bit(found, state, first, last);
        });
    }
};

}  // namespace

const ort::CustomOp& cpu::ssm_op() { return ort::described<UpdateSsmState>(); }
const ort::CustomOp& cpu::ssm_8bit_op() { return ort::described<UpdateSsmState8Bit>(); }
