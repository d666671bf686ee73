// The custom operator `PagedTokenAttention` of the domain hybridge.cpu.
//
// Inputs: q, key, value and pool of cpu::TokenAttention in float32, slots, table and lengths int32, and sinks float32.
// Heads and head_dim may be one axis. Left out may be sinks, and value where keys are the values too.
// Outputs: y like q, and the pool with the new tokens, which may be the memory of the one before.
// Attributes: window, scale, softcap; instructions (cpu::Choice).
#include <atomic>
#include <cstring>

#include "kernel_table.h"
#include "library.h"
#include "op_call.h"

namespace {

// Bytes of keys and values in a task.
constexpr int64_t task_bytes = 1 << 16;
constexpr ort::Input floats{ort::float32_type}, optional_floats{ort::float32_type, true}, integers{ort::int32_type};

thread_local cpu::Memory score_memory;

class PagedTokenAttention : ort::KernelOp {
  public:
    static constexpr const char* name = "PagedTokenAttention";
    static constexpr ort::Input inputs[] = {floats, floats, optional_floats, floats, integers, integers, integers,
                                            optional_floats};
    static constexpr size_t outputs = 2;

    ort::Status* create(const ort::Api* api, const ort::Info* info) {
        if (auto* status = start(api, info, name)) return status;
        if (auto* status = api->attribute(info, "window", &window_)) return status;
        if (auto* status = api->attribute(info, "scale", &scale_)) return status;
        return api->attribute(info, "softcap", &softcap_);
    }

    ort::Status* compute(ort::Context* context) {
        ort::Tensor in[8], y, pool;
        if (auto* status = ort::read_all(*api_, context, in)) return status;
        cpu::TokenAttention a{};
        if (!describe(in, a)) {
            return api_->status(ort::invalid_argument,
                                "PagedTokenAttention: expected inputs whose sizes agree, and blocks of the pool");
        }
        y.sizes = in[0].sizes, pool.sizes = in[3].sizes;
        if (auto* status = ort::make(*api_, context, 0, y)) return status;
        if (auto* status = ort::make(*api_, context, 1, pool)) return status;
        a.y = static_cast<float*>(y.data), a.pool = static_cast<float*>(pool.data);
        if (pool.data != in[3].data) std::memcpy(pool.data, in[3].data, static_cast<size_t>(4 * in[3].count()));
        if (a.rows == 0) return nullptr;
        int64_t keys = 0;
        for (int64_t row = 0; row < a.rows; ++row) keys += a.lengths[row] - a.first(row);
        std::atomic<bool> has_memory{true};
        auto run = [&](int64_t first, int64_t last) {
            for (int64_t task = first; task < last; ++task) {
                auto* memory = reinterpret_cast<float*>(score_memory.bytes(a.task_bytes(task / a.kv_heads)));
                if (memory || a.lengths[task / a.kv_heads] == 0) {
                    kernels_->attend_token(a, task, memory);
                } else {
                    has_memory = false;
                }
            }
        };
        const int64_t bytes = 4 * keys * a.kv_heads * a.parts * a.head_dim;
        if (auto* status = ort::spread_ranges(*api_, context, a.rows * a.kv_heads, bytes, task_bytes, run))
            return status;
        return has_memory ? nullptr
                          : api_->status(ort::fail, "PagedTokenAttention: expected memory for scores, found none");
    }

  private:
    bool describe(const ort::Tensor (&in)[8], cpu::TokenAttention& a) const {
        const auto& [q, key, value, pool, slots, table, lengths, sinks] = in;
        if (q.sizes.size() < 2 || pool.sizes.size() != 5 || table.sizes.size() != 2 || window_ < 0) return false;
        a.rows = q.sizes[0], a.columns = table.sizes[1], a.window = window_, a.scale = scale_, a.softcap = softcap_;
        a.parts = pool.sizes[0], a.blocks = pool.sizes[1], a.kv_heads = pool.sizes[2], a.block_size = pool.sizes[3];
        a.head_dim = pool.sizes[4];
        if (a.parts < 1 || a.parts > 2 || a.kv_heads <= 0 || a.head_dim <= 0 || a.block_size <= 0) return false;
        const int64_t width = a.kv_heads * a.head_dim, queries = a.rows ? q.count() / a.rows : width;
        if (queries <= 0 || queries % width) return false;
        a.heads = queries / a.head_dim;
        const bool has_values = a.parts == 2;
        if (key.sizes.empty() || key.sizes[0] != a.rows || key.count() != a.rows * width) return false;
        if (has_values == value.sizes.empty() || (has_values && value.count() != key.count())) return false;
        if (!slots.is({a.rows}) || !lengths.is({a.rows}) || table.sizes[0] != a.rows) return false;
        if (sinks.data && !sinks.is({a.heads})) return false;
        a.q = q.floats(), a.key = key.floats(), a.value = value.floats(), a.sinks = sinks.floats();
        a.slots = static_cast<const int32_t*>(slots.data), a.table = static_cast<const int32_t*>(table.data);
        a.lengths = static_cast<const int32_t*>(lengths.data);
        for (int64_t row = 0; row < a.rows; ++row) {
            if (a.slots[row] >= a.blocks * a.block_size) return false;
            if (a.lengths[row] < 0 || a.lengths[row] > a.columns * a.block_size) return false;
            for (int64_t i = a.first(row) / a.block_size; i * a.block_size < a.lengths[row]; ++i) {
                const int32_t block = a.table[row * a.columns + i];
                if (block < 0 || block >= a.blocks) return false;
            }
        }
        return true;
    }

    int64_t window_ = 0;
    float scale_ = 0, softcap_ = 0;
};

}  // namespace

const ort::CustomOp& cpu::token_attention_op() { return ort::described<PagedTokenAttention>(); }
