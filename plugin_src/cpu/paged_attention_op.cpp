// The custom operator `PagedAttention` of the domain hybridge.cpu.
//
// Inputs: q [tokens, heads, head_dim] and pool [parts, blocks, kv_heads, block_size, head_dim] float32, blocks int64
// [rows, kv_heads, row_blocks] and seen int32 [rows] of cpu::PagedAttention, and sinks float32 [heads] and starts int32
// [rows + 1] of cpu::RowTokens, which may be left out, starts if there is one row.
// Output: y like q.
// Attributes: window, scale, softcap; instructions (cpu::Choice).
#include <atomic>
#include <utility>
#include <vector>

#include "kernel_table.h"
#include "library.h"
#include "op_call.h"

namespace {

thread_local cpu::Memory strip_memory;

class PagedAttentionOp : ort::KernelOp {
  public:
    static constexpr const char* name = "PagedAttention";
    static constexpr ort::Input inputs[] = {
        {ort::float32_type}, {ort::float32_type}, {ort::int64_type}, {ort::int32_type}, {ort::float32_type, true},
        {ort::int32_type, true}};
    static constexpr size_t outputs = 1;

    ort::Status* create(const ort::Api* api, const ort::Info* info) {
        if (auto* status = start(api, info, name)) return status;
        if (auto* status = api->attribute(info, "window", &window_)) return status;
        if (auto* status = api->attribute(info, "scale", &scale_)) return status;
        return api->attribute(info, "softcap", &softcap_);
    }

    ort::Status* compute(ort::Context* context) {
        ort::Tensor in[6], y;
        if (auto* status = ort::read_all(*api_, context, in)) return status;
        std::vector<cpu::PagedAttention> rows;
        if (!describe(in, rows)) {
            return api_->status(ort::invalid_argument,
                                "PagedAttention: expected inputs whose sizes agree, and blocks of the pool");
        }
        y.sizes = in[0].sizes;
        if (auto* status = ort::make(*api_, context, 0, y)) return status;
        const int64_t width = kernels_->strip_queries;
        // A row and the first query of a strip. The last strips see the most keys: they come first, so that threads
        // finish together.
        std::vector<std::pair<const cpu::PagedAttention*, int64_t>> strips;
        for (auto& row : rows) {
            row.y = static_cast<float*>(y.data) + (row.q - in[0].floats());
            for (int64_t first = (row.queries() - 1) / width * width; first >= 0 && row.tokens; first -= width) {
                strips.emplace_back(&row, first);
            }
        }
        if (strips.empty()) return nullptr;
        std::atomic<bool> has_memory{true};
        const int64_t kv_heads = rows[0].kv_heads;
        auto run = [&](int64_t task) {
            const auto [row, first] = strips[static_cast<size_t>(task / kv_heads)];
            if (!kernels_->attend_blocks(*row, task % kv_heads, first, strip_memory)) has_memory = false;
        };
        const auto tasks = static_cast<int64_t>(strips.size()) * kv_heads;
        if (auto* status = ort::spread_tasks(*api_, context, tasks, run)) return status;
        return has_memory ? nullptr : api_->status(ort::fail, "PagedAttention: expected memory for scores, found none");
    }

  private:
    bool describe(const ort::Tensor (&in)[6], std::vector<cpu::PagedAttention>& rows) const {
        const auto& [q, pool, blocks, seen, sinks, starts] = in;
        if (q.sizes.size() != 3 || pool.sizes.size() != 5 || blocks.sizes.size() != 3) return false;
        const int64_t count = blocks.sizes[0];
        const int32_t whole[] = {0, static_cast<int32_t>(q.sizes[0])};
        const auto* bounds = starts.data ? static_cast<const int32_t*>(starts.data) : whole;
        if (!seen.is({count}) || (starts.data ? !starts.is({count + 1}) : count != 1)) return false;
        if (bounds[0] != 0 || bounds[count] != q.sizes[0]) return false;
        cpu::PagedAttention a{};
        a.heads = q.sizes[1], a.head_dim = q.sizes[2];
        a.parts = pool.sizes[0], a.kv_heads = pool.sizes[2], a.block_size = pool.sizes[3];
        a.pool_rows = pool.sizes[1] * a.kv_heads;
        a.row_blocks = blocks.sizes[2];
        if (a.parts < 1 || a.parts > 2 || pool.sizes[4] != a.head_dim || blocks.sizes[1] != a.kv_heads) return false;
        if (a.kv_heads <= 0 || a.heads % a.kv_heads || a.block_size <= 0 || window_ < 0) return false;
        if (sinks.data && !sinks.is({a.heads})) return false;
        a.pool = pool.floats(), a.blocks = static_cast<const int64_t*>(blocks.data);
        a.sinks = sinks.floats(), a.window = window_, a.scale = scale_, a.softcap = softcap_;
        for (int64_t i = 0; i < count * a.kv_heads * a.row_blocks; ++i) {
            if (a.blocks[i] < 0 || a.blocks[i] >= a.pool_rows) return false;
        }
        for (int64_t row = 0; row < count; ++row, a.blocks += a.kv_heads * a.row_blocks) {
            a.tokens = bounds[row + 1] - bounds[row], a.seen = static_cast<const int32_t*>(seen.data)[row];
            if (a.tokens < 0 || a.seen < a.tokens || a.seen > a.row_blocks * a.block_size) return false;
            a.q = q.floats() + bounds[row] * a.heads * a.head_dim;
            rows.push_back(a);
        }
        return true;
    }

    int64_t window_ = 0;
    float scale_ = 0, softcap_ = 0;
};

}  // namespace

const ort::CustomOp& cpu::paged_attention_op() { return ort::described<PagedAttentionOp>(); }
