// The custom operator `CachedAttention` of the domain hybridge.cpu.
//
// Inputs: query, key, value [rows, time, heads * size], past_keys, past_values, last int32, cos and sin of
// cpu::Attention in float32. Left out may be cos and sin, and value, past_values and the output values, where keys are
// the values too.
// Outputs: y [rows, time, heads * size], keys and values, which may be the memory of the past ones. Attributes: scale,
// window; instructions (cpu::Choice).
#include <atomic>

#include "kernel_table.h"
#include "library.h"
#include "memory.h"
#include "op_call.h"

namespace {

constexpr ort::Input floats{ort::float32_type}, optional_floats{ort::float32_type, true};

thread_local cpu::Memory memory;

class CachedAttention : ort::KernelOp {
  public:
    static constexpr const char* name = "CachedAttention";
    static constexpr ort::Input inputs[] = {floats, floats, optional_floats, floats, optional_floats, {ort::int32_type},
                                            optional_floats, optional_floats};
    static constexpr size_t outputs = 3, needed_outputs = 2;

    ort::Status* create(const ort::Api* api, const ort::Info* info) {
        if (auto* status = start(api, info, name)) return status;
        if (auto* status = api->attribute(info, "scale", &scale_)) return status;
        return api->attribute(info, "window", &window_);
    }

    ort::Status* compute(ort::Context* context) {
        ort::Tensor in[8], y, keys, values;
        if (auto* status = ort::read_all(*api_, context, in)) return status;
        cpu::Attention a{};
        if (!describe(in, a)) {
            return api_->status(ort::invalid_argument, "CachedAttention: expected inputs whose sizes agree");
        }
        y.sizes = in[0].sizes, keys.sizes = values.sizes = in[3].sizes;
        if (auto* status = ort::make(*api_, context, 0, y)) return status;
        if (auto* status = ort::make(*api_, context, 1, keys)) return status;
        const bool has_values = !in[4].sizes.empty();
        if (has_values) {
            if (auto* status = ort::make(*api_, context, 2, values)) return status;
        }
        a.y = static_cast<float*>(y.data);
        a.keys = static_cast<float*>(keys.data), a.values = static_cast<float*>(values.data);
        if (a.rows * a.time * a.heads == 0) return nullptr;
        if (has_values && !a.values) {
            return api_->status(ort::invalid_argument, "CachedAttention: expected the output values, found none");
        }
        return run(context, a);
    }

  private:
    bool describe(const ort::Tensor (&in)[8], cpu::Attention& a) const {
        const auto& [query, key, value, past_keys, past_values, last, cos, sin] = in;
        if (query.sizes.size() != 3 || past_keys.sizes.size() != 4) return false;
        if (value.sizes.empty() != past_values.sizes.empty()) return false;
        if (!past_values.sizes.empty() && !past_values.is(past_keys.sizes)) return false;
        a.rows = query.sizes[0], a.time = query.sizes[1];
        a.kv_heads = past_keys.sizes[1], a.capacity = past_keys.sizes[2], a.size = past_keys.sizes[3];
        if (a.kv_heads <= 0 || a.size <= 0 || a.size % cpu::tile_rows || query.sizes[2] % (a.kv_heads * a.size))
            return false;
        a.heads = query.sizes[2] / a.size;
        const std::vector<int64_t> expected{a.rows, a.time, a.kv_heads * a.size};
        if (past_keys.sizes[0] != a.rows || !key.is(expected) || !last.is({a.rows})) return false;
        if (!value.sizes.empty() && !value.is(expected)) return false;
        if (!cos.data != !sin.data) return false;
        if (cos.data) {
            if (cos.sizes.size() != 3) return false;
            a.angles = cos.sizes[2];
            if (!cos.is({a.rows, a.time, a.angles}) || !sin.is(cos.sizes) || 2 * a.angles > a.size) return false;
        }
        a.query = query.floats(), a.key = key.floats(), a.value = value.floats();
        a.past_keys = past_keys.floats(), a.past_values = past_values.floats();
        a.cos = cos.floats(), a.sin = sin.floats(), a.last = static_cast<const int32_t*>(last.data);
        a.scale = scale_, a.window = window_;
        for (int64_t row = 0; row < a.rows; ++row) {
            if (a.last[row] < a.time - 1 || a.last[row] >= a.capacity) return false;
        }
        return window_ >= 0;
    }

    ort::Status* run(ort::Context* context, const cpu::Attention& a) const {
        const int64_t heads = a.rows * a.kv_heads;
        const bool is_step = a.time == 1;
        std::atomic<bool> failed{false};
        if (!is_step) {
            auto* status = ort::spread_tasks(*api_, context, heads,
                                             [&](int64_t head) { kernels_->store_keys(a, head, head + 1); });
            if (status) return status;
        }
        auto* status = ort::spread_tasks(*api_, context, a.tasks(), [&](int64_t task) {
            uint8_t* own = memory.bytes(a.task_bytes());
            if (!own) {
                failed = true;
                return;
            }
            if (is_step) kernels_->store_keys(a, task, task + 1);
            kernels_->attend(a, task, own);
        });
        if (status) return status;
        return failed ? api_->status(ort::fail, "CachedAttention: expected memory for scores, found none") : nullptr;
    }

    float scale_ = 0;
    int64_t window_ = 0;
};

}  // namespace

const ort::CustomOp& cpu::attention_op() { return ort::described<CachedAttention>(); }
