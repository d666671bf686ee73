// The custom operator `Linear` of the domain hybridge.cpu, and the function that registers it.
//
// Inputs: x float32 [..., columns], weight uint8: [rows, bytes] of floats, [tiles, bytes] of integers (linear::Weight).
// Output: float32 [..., rows]. Attributes: rows, type, scale_type (linear::Type), group, block, exact: inputs are rounded
// to 8 bits by blocks unless exact or the numbers are floats; instructions (linear::Choice).
#include <cstdlib>
#include <memory>
#include <vector>

#include "linear.h"
#include "ort_api.h"

namespace {

using linear::Weight;

// Tasks of one product: enough that threads finish together, each large enough to pay for its start.
constexpr int64_t most_tasks = 16, task_bytes = 1 << 16;

struct FreeMemory {
    void operator()(uint8_t* p) const { std::free(p); }
};

// Memory of one thread, 64-byte aligned, which only grows.
class Memory {
  public:
    uint8_t* bytes(int64_t count) {
        if (count > size_) {
            memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(64, static_cast<size_t>(linear::pad(count, 64)))));
            size_ = memory_ ? count : 0;
        }
        return memory_.get();
    }

  private:
    std::unique_ptr<uint8_t, FreeMemory> memory_;
    int64_t size_ = 0;
};

thread_local Memory scratch_memory, input_memory;

struct Product {
    const linear::Kernels& kernels;
    const Weight& weight;
    const float* x;
    float* y;
    int64_t count, task_rows;
    bool rounds, uses_panels;
    linear::Rounded rounded;
    bool failed = false;

    void round_inputs(size_t task) {
        int64_t first = static_cast<int64_t>(task) * 16, last = first + 16 < count ? first + 16 : count;
        for (int64_t m = first; m < last; ++m) kernels.round(weight, x + m * weight.columns, m, rounded);
    }

    void run(size_t task) {
        int64_t first = static_cast<int64_t>(task) * task_rows;
        int64_t last = first + task_rows < weight.rows ? first + task_rows : weight.rows;
        if (rounds) return kernels.rounded(weight, rounded, y, first, last);
        if (!uses_panels) return kernels.dots(weight, x, count, y, first, last);
        uint8_t* scratch = scratch_memory.bytes(kernels.scratch_bytes(weight));
        if (!scratch) {
            __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
        } else {
            kernels.panels(weight, x, count, y, first, last, scratch);
        }
    }
};

class Linear {
  public:
    static ort::Status* create(const ort::CustomOp*, const ort::Api* api, const ort::Info* info, void** out) {
        auto made = std::make_unique<Linear>();
        made->api_ = api;
        int64_t choice = 0;
        struct {
            const char* name;
            int64_t* value;
        } const attributes[] = {{"rows", &made->rows_},   {"type", &made->type_},   {"scale_type", &made->scale_type_},
                                {"group", &made->group_}, {"block", &made->block_}, {"exact", &made->exact_},
                                {"instructions", &choice}};
        for (auto [name, value] : attributes) {
            if (auto* status = api->attribute(info, name, value)) return status;
        }
        made->kernels_ = linear::chosen_kernels(choice);
        if (!made->kernels_) return api->status(ort::fail, "Linear: expected instructions that this processor has");
        *out = made.release();
        return nullptr;
    }

    ort::Status* compute(ort::Context* context) {
        std::vector<int64_t> x_sizes, sizes;
        void *x = nullptr, *data = nullptr, *y = nullptr;
        if (auto* status = read(context, 0, x_sizes, &x)) return status;
        if (auto* status = read(context, 1, sizes, &data)) return status;
        Weight weight{};
        if (x_sizes.empty() || sizes.size() != 2 || !describe(weight, x_sizes.back(), sizes)) {
            return api_->status(ort::invalid_argument, "Linear: expected x and a weight of one matrix");
        }
        weight.data = static_cast<const uint8_t*>(data);
        int64_t count = 1;
        for (size_t i = 0; i + 1 < x_sizes.size(); ++i) count *= x_sizes[i];
        x_sizes.back() = weight.rows;
        ort::Value* output = nullptr;
        if (auto* status = api_->output(context, 0, x_sizes.data(), x_sizes.size(), &output)) return status;
        if (auto* status = api_->data(output, &y)) return status;
        if (count == 0 || weight.rows == 0) return nullptr;
        return multiply(context, weight, static_cast<const float*>(x), static_cast<float*>(y), count);
    }

  private:
    ort::Status* read(const ort::Context* context, size_t index, std::vector<int64_t>& sizes, void** data) const {
        const ort::Value* value = nullptr;
        ort::Shape* shape = nullptr;
        size_t rank = 0;
        if (auto* status = api_->input(context, index, &value)) return status;
        if (auto* status = api_->shape(value, &shape)) return status;
        auto* status = api_->rank(shape, &rank);
        if (!status) {
            sizes.resize(rank);
            status = api_->sizes(shape, sizes.data(), rank);
        }
        api_->release(shape);
        return status ? status : api_->data(const_cast<ort::Value*>(value), data);
    }

    // Fills all but the address; false where the sizes or attributes do not fit each other.
    bool describe(Weight& w, int64_t columns, const std::vector<int64_t>& sizes) const {
        if (type_ < linear::int4 || type_ > linear::float32 || columns <= 0 || rows_ < 0) return false;
        w.type = static_cast<linear::Type>(type_);
        w.rows = rows_, w.columns = columns, w.group = w.block = columns;
        if (!w.is_integer()) return sizes[0] == rows_ && sizes[1] == w.row_bytes();
        if (scale_type_ < linear::float16 || scale_type_ > linear::float32) return false;
        if (block_ != 16 && block_ != 32 && block_ != 64 && block_ != 128) return false;
        if (group_ <= 0 || columns % group_ || group_ % block_) return false;
        w.scale_type = static_cast<linear::Type>(scale_type_);
        w.group = group_, w.block = block_;
        return sizes[0] * linear::tile_rows == linear::pad(rows_, linear::tile_rows) && sizes[1] == w.tile_bytes();
    }

    ort::Status* multiply(ort::Context* context, const Weight& w, const float* x, float* y, int64_t count) const {
        const bool rounds = w.is_integer() && !exact_;
        const bool uses_panels = !rounds && (w.is_integer() || count >= kernels_->panel_inputs);
        Product product{*kernels_, w, x, y, count, 0, rounds, uses_panels, {}};
        if (auto* status = prepare(context, product)) return status;
        // Whole tiles, in tasks of about equal size.
        int64_t units = linear::pad(w.rows, linear::tile_rows) / linear::tile_rows;
        int64_t wanted = uses_panels || count > 1 ? most_tasks : w.rows * w.row_bytes() / task_bytes + 1;
        int64_t tasks = wanted < most_tasks ? wanted : most_tasks;
        product.task_rows = (units + tasks - 1) / tasks * linear::tile_rows;
        auto run = [](void* data, size_t task) { static_cast<Product*>(data)->run(task); };
        int64_t used = (w.rows + product.task_rows - 1) / product.task_rows;
        if (auto* status = spread(context, run, used, &product)) return status;
        return product.failed ? api_->status(ort::fail, "Linear: expected scratch memory, found none") : nullptr;
    }

    // Rounds or arranges the inputs of `product`.
    ort::Status* prepare(ort::Context* context, Product& product) const {
        const Weight& w = product.weight;
        const int64_t count = product.count, stride = linear::pad(w.columns, linear::dot_columns);
        if (product.uses_panels) return nullptr;
        uint8_t* memory = input_memory.bytes(count * (product.rounds ? stride + 8 * w.blocks() : 4 * stride));
        if (!memory) return api_->status(ort::fail, "Linear: expected memory for inputs, found none");
        if (product.rounds) {
            product.rounded.numbers = reinterpret_cast<int8_t*>(memory);
            product.rounded.scales = reinterpret_cast<float*>(memory + count * stride);
            product.rounded.offsets = reinterpret_cast<int32_t*>(product.rounded.scales + count * w.blocks());
            product.rounded.count = count;
            auto round = [](void* data, size_t task) { static_cast<Product*>(data)->round_inputs(task); };
            return spread(context, round, (count + 15) / 16, &product);
        }
        float* arranged = reinterpret_cast<float*>(memory);
        for (int64_t m = 0; m < count; ++m) kernels_->arrange(w, product.x + m * w.columns, arranged + m * stride);
        product.x = arranged;
        return nullptr;
    }

    ort::Status* spread(ort::Context* context, void (*run)(void*, size_t), int64_t tasks, void* data) const {
        if (tasks == 1) {
            run(data, 0);
            return nullptr;
        }
        return api_->parallel_for(context, run, static_cast<size_t>(tasks), data);
    }

    const ort::Api* api_ = nullptr;
    const linear::Kernels* kernels_ = nullptr;
    int64_t rows_ = 0, type_ = 0, scale_type_ = 0, group_ = 0, block_ = 0, exact_ = 0;
};

const ort::CustomOp& linear_op() {
    static const ort::CustomOp op = [] {
        ort::CustomOp made{};
        made.op_version = ort::version;
        made.name = [](const ort::CustomOp*) { return "Linear"; };
        made.provider = [](const ort::CustomOp*) -> const char* { return nullptr; };
        made.input_count = [](const ort::CustomOp*) { return size_t{2}; };
        made.input_type = [](const ort::CustomOp*, size_t index) { return index ? ort::uint8_type : ort::float32_type; };
        made.input_kind = [](const ort::CustomOp*, size_t) { return 0; };
        made.input_memory = [](const ort::CustomOp*, size_t) { return 0; };
        made.output_count = [](const ort::CustomOp*) { return size_t{1}; };
        made.output_type = [](const ort::CustomOp*, size_t) { return ort::float32_type; };
        made.output_kind = [](const ort::CustomOp*, size_t) { return 0; };
        made.create_checked = Linear::create;
        made.compute_checked = [](void* kernel, ort::Context* context) {
            return static_cast<Linear*>(kernel)->compute(context);
        };
        made.destroy = [](void* kernel) { delete static_cast<Linear*>(kernel); };
        return made;
    }();
    return op;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) ort::Status* RegisterCustomOps(ort::SessionOptions* options,
                                                                                const ort::ApiBase* base) {
    const ort::Api* api = base->get(ort::version);
    if (!api) return nullptr;  // its sessions then refuse the operator by name
    // The domain has to live as long as the sessions: one for the process.
    static ort::Domain* domain = nullptr;
    if (!domain) {
        if (auto* status = api->create_domain("hybridge.cpu", &domain)) return status;
        if (auto* status = api->add_op(domain, &linear_op())) return status;
    }
    return api->add_domain(options, domain);
}
