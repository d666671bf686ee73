// The custom operator `GatedDeltaRule` of the domain hybridge.cpu.
//
// Inputs: q, k, v, g, beta and state of cpu::DeltaRule in float32, and lengths int32, which may be left out. q, k, v, g
// and the output o have one axis for heads and their numbers; these and beta may have one axis for all tokens,
// of equally long rows, or with starts of cpu::RowTokens in the place of lengths. Second output: new_state. With the
// last input `checkpoint_lengths` int32, the third output has the states of cpu::Checkpoints.
// Attributes: key_heads, scale, normed; instructions (cpu::Choice).
#include "kernel_table.h"
#include "library.h"
#include "op_call.h"

namespace {

// Bytes of state in a task.
constexpr int64_t task_bytes = 1 << 16;

class GatedDeltaRule : ort::KernelOp {
  public:
    static constexpr const char* name = "GatedDeltaRule";
    static constexpr ort::Input number{ort::float32_type};
    static constexpr ort::Input inputs[] = {number, number, number, number, number, number, {ort::int32_type, true},
                                            {ort::int32_type, true}};
    static constexpr size_t outputs = 3;
    static constexpr size_t needed_outputs = 2;

    ort::Status* create(const ort::Api* api, const ort::Info* info) {
        if (auto* status = start(api, info, name)) return status;
        if (auto* status = api->attribute(info, "key_heads", &key_heads_)) return status;
        if (auto* status = api->attribute(info, "scale", &scale_)) return status;
        return api->attribute(info, "normed", &normed_);
    }

    ort::Status* compute(ort::Context* context) {
        ort::Tensor in[7], o, state;
        if (auto* status = ort::read_all(*api_, context, in)) return status;
        const auto& [q, k, v, g, beta, past, lengths] = in;
        o.sizes = v.sizes;
        cpu::RowTokens tokens;
        if (!fit(in, tokens)) return refusal();
        state.sizes = past.sizes;
        if (auto* status = ort::make(*api_, context, 0, o)) return status;
        if (auto* status = ort::make(*api_, context, 1, state)) return status;
        const int64_t value_heads = past.sizes[1];
        cpu::DeltaRule rule{q.floats(), k.floats(), v.floats(), g.floats(), beta.floats(), past.floats(),
                            tokens, static_cast<float*>(o.data), static_cast<float*>(state.data), past.sizes[0],
                            key_heads_, past.sizes[2], value_heads, past.sizes[3], g.sizes[2] / value_heads, scale_,
                            normed_ != 0};
        bool fits = true;
        auto* status = ort::make_checkpoints(*api_, context, 7, 2, past, tokens.time, fits, rule.checkpoints);
        if (status || !fits) return status ? status : refusal();
        const int64_t heads = rule.rows * value_heads;
        if (heads == 0) return nullptr;
        const int64_t bytes = 4 * heads * rule.key_size * rule.value_size * (tokens.time + 1) / 2;
        return ort::spread_ranges(*api_, context, heads, bytes, task_bytes, [&](int64_t first, int64_t last) {
            kernels_->delta_rule(rule, first, last);
        });
    }

  private:
    ort::Status* refusal() const {
        return api_->status(ort::invalid_argument,
                            "GatedDeltaRule: expected inputs whose sizes agree, and keys of at most 1024 numbers");
    }

    // Whether the sizes agree; those of tokens have an axis for rows after this.
    bool fit(ort::Tensor (&in)[7], cpu::RowTokens& tokens) const {
        const auto& [q, k, v, g, beta, past, lengths] = in;
        if (past.sizes.size() != 4 || !ort::rows_of(v, past.sizes[0], lengths, tokens)) return false;
        for (size_t i = 0; i < 5; ++i) in[i].divide(past.sizes[0], tokens.starts);
        if (v.sizes.size() != 3 || g.sizes.size() != 3 || key_heads_ <= 0) return false;
        const int64_t rows = v.sizes[0], time = v.sizes[1];
        const int64_t value_heads = past.sizes[1], key_size = past.sizes[2], value_size = past.sizes[3];
        if (value_heads <= 0 || value_heads % key_heads_ || key_size > cpu::most_key_size) return false;
        const bool one_decay = g.is({rows, time, value_heads});
        return q.is({rows, time, key_heads_ * key_size}) && k.is(q.sizes) && v.sizes[2] == value_heads * value_size &&
               (one_decay || g.is({rows, time, value_heads * key_size})) && beta.is({rows, time, value_heads}) &&
               (tokens.starts || past.sizes[0] == rows);
    }

    int64_t key_heads_ = 0, normed_ = 0;
    float scale_ = 0;
};

}  // namespace

const ort::CustomOp& cpu::delta_rule_op() { return ort::described<GatedDeltaRule>(); }
