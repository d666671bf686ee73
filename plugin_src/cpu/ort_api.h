// The part of ONNX Runtime's C interface that a custom operator needs, declared here because its Python package ships
// no headers. The interface is a table of functions to which versions only append: these indices are those of version
// 17 (the first with ParallelFor) and of every later one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ort {

struct Status;
struct Info;
struct Context;
struct Value;
struct Shape;
struct Domain;
struct SessionOptions;
struct CustomOp;

constexpr uint32_t version = 17;

// Error codes and element types of the interface.
constexpr int fail = 1, invalid_argument = 2;
constexpr int float32_type = 1, uint8_type = 2, int8_type = 3, int32_type = 6, int64_type = 7;

// A table of functions, called by index.
struct Api {
    void* functions[300];

    template <int place, class Result, class... Arguments>
    Result call(Arguments... arguments) const {
        return reinterpret_cast<Result (*)(Arguments...)>(functions[place])(arguments...);
    }

    Status* status(int code, const char* message) const { return call<0, Status*>(code, message); }
    Status* create_domain(const char* name, Domain** out) const { return call<26, Status*>(name, out); }
    Status* add_op(Domain* domain, const CustomOp* op) const { return call<27, Status*>(domain, op); }
    Status* add_domain(SessionOptions* options, Domain* domain) const { return call<28, Status*>(options, domain); }
    Status* element_type(const Shape* shape, int* out) const { return call<60, Status*>(shape, out); }
    Status* rank(const Shape* shape, size_t* out) const { return call<61, Status*>(shape, out); }
    Status* sizes(const Shape* shape, int64_t* out, size_t count) const { return call<62, Status*>(shape, out, count); }
    Status* data(Value* value, void** out) const { return call<51, Status*>(value, out); }
    Status* shape(const Value* value, Shape** out) const { return call<65, Status*>(value, out); }
    void release(Status* status) const { call<93, void>(status); }
    void release(Shape* shape) const { call<99, void>(shape); }
    Status* attribute(const Info* info, const char* name, float* out) const {
        return call<85, Status*>(info, name, out);
    }
    Status* attribute(const Info* info, const char* name, int64_t* out) const {
        return call<86, Status*>(info, name, out);
    }
    // The attribute, or what `out` has where a node leaves it out.
    void optional_attribute(const Info* info, const char* name, int64_t* out) const {
        const int64_t absent = *out;
        if (auto* status = attribute(info, name, out)) *out = absent, release(status);
    }
    Status* input(const Context* context, size_t index, const Value** out) const {
        return call<90, Status*>(context, index, out);
    }
    Status* output(Context* context, size_t index, const int64_t* sizes, size_t rank, Value** out) const {
        return call<91, Status*>(context, index, sizes, rank, out);
    }
    // Calls run(data, i) for every i below count on the session's threads.
    Status* parallel_for(const Context* context, void (*run)(void*, size_t), size_t count, void* data) const {
        return call<274, Status*>(context, run, count, size_t{0}, data);
    }
};

struct ApiBase {
    const Api* (*get)(uint32_t version);
    const char* (*version_text)();
};

// Of version 17; members that stay null have a default.
struct CustomOp {
    uint32_t op_version;
    void* (*create)(const CustomOp*, const Api*, const Info*);
    const char* (*name)(const CustomOp*);
    const char* (*provider)(const CustomOp*);
    int (*input_type)(const CustomOp*, size_t);
    size_t (*input_count)(const CustomOp*);
    int (*output_type)(const CustomOp*, size_t);
    size_t (*output_count)(const CustomOp*);
    void (*compute)(void*, Context*);
    void (*destroy)(void*);
    int (*input_kind)(const CustomOp*, size_t);
    int (*output_kind)(const CustomOp*, size_t);
    int (*input_memory)(const CustomOp*, size_t);
    int (*fewest_inputs)(const CustomOp*);
    int (*inputs_are_alike)(const CustomOp*);
    int (*fewest_outputs)(const CustomOp*);
    int (*outputs_are_alike)(const CustomOp*);
    Status* (*create_checked)(const CustomOp*, const Api*, const Info*, void**);
    Status* (*compute_checked)(void*, Context*);
    Status* (*infer_shape)(const CustomOp*, void*);
    int (*first_version)(const CustomOp*);
    int (*last_version)(const CustomOp*);
};

}  // namespace ort
