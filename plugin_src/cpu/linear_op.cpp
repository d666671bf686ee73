// The custom operator `Linear` of the domain hybridge.cpu, and the function that registers it.
//
// Inputs: x float32 [..., columns], numbers uint8 [rows, bytes], and for integers scales uint8 [bytes]: both as stored.
// Output: float32 [..., rows]. Attributes: type and scale_type (linear::Type), block and exact: inputs are rounded to 8
// bits by blocks unless exact or the numbers are floats; instructions (linear::Choice).
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
        uint8_t* scratch = scratch_memory.bytes(kernels.scratch_bytes(weight));
        if (!scratch) {
            __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
        } else if (rounds) {
            (uses_panels ? kernels.rounded_panels : kernels.rounded_dots)(weight, rounded, count, y, first, last, scratch);
        } else {
            (uses_panels ? kernels.panels : kernels.dots)(weight, x, count, y, first, last, scratch);
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
        } const attributes[] = {{"type", &made->type_},       {"scale_type", &made->scale_type_}, {"block", &made->block_},
                                {"exact", &made->exact_},     {"instructions", &choice}};
        for (auto [name, value] : attributes) {
            if (auto* status = api->attribute(info, name, value)) return status;
        }
        made->kernels_ = linear::chosen_kernels(choice);
        if (!made->kernels_) return api->status(ort::fail, "Linear: expected instructions that this processor has");
        *out = made.release();
        return nullptr;
    }

    ort::Status* compute(ort::Context* context) {
        std::vector<int64_t> x_sizes, sizes, scale_sizes{0};
        void *x = nullptr, *numbers = nullptr, *scales = nullptr, *y = nullptr;
        if (auto* status = read(context, 0, x_sizes, &x)) return status;
        if (auto* status = read(context, 1, sizes, &numbers)) return status;
        const bool has_scales = is_integer();
        if (has_scales) {
            if (auto* status = read(context, 2, scale_sizes, &scales)) return status;
        }
        Weight weight{};
        if (x_sizes.empty() || sizes.size() != 2 || !describe(weight, x_sizes.back(), sizes, scale_sizes.back())) {
            return api_->status(ort::invalid_argument, "Linear: expected x, numbers and scales of one matrix");
        }
        weight.numbers = static_cast<const uint8_t*>(numbers);
        weight.scales = static_cast<const uint8_t*>(scales);
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
    bool is_integer() const { return type_ == linear::int4 || type_ == linear::int8; }

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

    // Fills all but the addresses; false where the sizes or attributes do not fit each other.
    bool describe(Weight& w, int64_t columns, const std::vector<int64_t>& sizes, int64_t scale_bytes) const {
        if (type_ < linear::int4 || type_ > linear::float32 || columns <= 0) return false;
        w.type = static_cast<linear::Type>(type_);
        w.rows = sizes[0], w.columns = columns, w.block = columns;
        if (columns * linear::bits_of(type_) != 8 * sizes[1]) return false;
        if (!is_integer()) return true;
        if (scale_type_ < linear::float16 || scale_type_ > linear::float32) return false;
        w.scale_type = static_cast<linear::Type>(scale_type_);
        w.block = block_;
        int64_t one = linear::bits_of(scale_type_) / 8, scales = scale_bytes / one;
        if (block_ != 16 && block_ != 32 && block_ != 64 && block_ != 128) return false;
        if (columns % block_ || scale_bytes % one || scales == 0) return false;
        if (scales == 1 && w.rows != 1) return true;  // group 0: one for all
        if (scales % (w.rows ? w.rows : 1)) return false;
        int64_t groups = w.rows ? scales / w.rows : 1;
        if (groups == 0 || columns % groups) return false;
        w.group = columns / groups;
        return w.group % block_ == 0;
    }

    ort::Status* multiply(ort::Context* context, const Weight& w, const float* x, float* y, int64_t count) const {
        Product product{*kernels_, w, x, y, count, 0, is_integer() && !exact_, count >= kernels_->panel_inputs, {}};
        if (product.rounds) {
            auto& rounded = product.rounded;
            rounded.stride = linear::pad(w.columns, 128), rounded.padded_blocks = linear::pad(w.blocks(), 16) + 16;
            int64_t scales = 4 * count * rounded.padded_blocks;
            uint8_t* memory = input_memory.bytes(count * rounded.stride + 2 * scales + 64);
            if (!memory) return api_->status(ort::fail, "Linear: expected memory for rounded inputs, found none");
            rounded.scales = reinterpret_cast<float*>(memory);
            rounded.offsets = reinterpret_cast<int32_t*>(memory + scales);
            rounded.numbers = reinterpret_cast<int8_t*>(memory + 2 * scales);
            auto round = [](void* data, size_t task) { static_cast<Product*>(data)->round_inputs(task); };
            if (auto* status = spread(context, round, (count + 15) / 16, &product)) return status;
        }
        // Whole panels, and rows by fours, in tasks of about equal size.
        int64_t unit = product.uses_panels ? kernels_->panel : 16, units = (w.rows + unit - 1) / unit;
        int64_t wanted = product.uses_panels ? most_tasks : w.rows * w.row_bytes() / task_bytes + 1;
        int64_t tasks = wanted < most_tasks ? wanted : most_tasks;
        product.task_rows = (units + tasks - 1) / tasks * unit;
        auto run = [](void* data, size_t task) { static_cast<Product*>(data)->run(task); };
        int64_t used = (w.rows + product.task_rows - 1) / product.task_rows;
        if (auto* status = spread(context, run, used, &product)) return status;
        return product.failed ? api_->status(ort::fail, "Linear: expected scratch memory, found none") : nullptr;
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
    int64_t type_ = 0, scale_type_ = 0, block_ = 0, exact_ = 0;
};

const ort::CustomOp& linear_op() {
    static const ort::CustomOp op = [] {
        ort::CustomOp made{};
        made.op_version = ort::version;
        made.name = [](const ort::CustomOp*) { return "Linear"; };
        made.provider = [](const ort::CustomOp*) -> const char* { return nullptr; };
        made.input_count = [](const ort::CustomOp*) { return size_t{3}; };
        made.input_type = [](const ort::CustomOp*, size_t index) { return index ? ort::uint8_type : ort::float32_type; };
        made.input_kind = [](const ort::CustomOp*, size_t index) { return index == 2 ? 1 : 0; };  // scales are optional
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
