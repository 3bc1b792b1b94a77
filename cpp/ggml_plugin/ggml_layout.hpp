// What is known here of ggml's insides: the structures that a buffer type of weights deals with, as far as it does.
//
// None of it is promised by ggml. tests/test_abi_headers.py compares it with ggml's own headers, and
// KernelBufferType looks at it in the library that is loaded before it relies on it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace specllama::ggml {

constexpr int kMaxDims = 4;
constexpr int kMaxSources = 10;
constexpr int kMaxOpParams = 64;  // bytes
constexpr int kMaxName = 64;

// Types of tensors, which files depend on.
constexpr int kFloat = 0;  // GGML_TYPE_F32
constexpr int kHalf = 1;   // GGML_TYPE_F16

struct Buffer;
struct BufferType;

struct Tensor {
    int32_t type;
    Buffer * buffer;
    int64_t ne[kMaxDims];
    std::size_t nb[kMaxDims];
    int32_t op;
    int32_t op_params[kMaxOpParams / 4];
    int32_t flags;
    Tensor * src[kMaxSources];
    Tensor * view_src;
    std::size_t view_offs;
    void * data;
    char name[kMaxName];
    void * extra;
    char padding[8];
};

struct BufferTypeInterface {
    const char * (*get_name)(BufferType *);
    Buffer * (*alloc_buffer)(BufferType *, std::size_t);
    std::size_t (*get_alignment)(BufferType *);
    std::size_t (*get_max_size)(BufferType *);
    std::size_t (*get_alloc_size)(BufferType *, const Tensor *);
    bool (*is_host)(BufferType *);
};

struct BufferType {
    BufferTypeInterface iface;
    void * device;
    void * context;
};

// The first functions of a buffer, by their places.
enum BufferFunction { kFree, kGetBase, kInitTensor, kMemset, kSetTensor, kGetTensor };
// The last three are those that copy a tensor, clear and reset the buffer. Its type stands right behind them.
constexpr int kCopyTensorFromEnd = 3;
// How many there are: newer releases have two more, for strided data, before the last three.
constexpr int kNumFunctions[] = {9, 11};

// The first fields of what a thread of a graph's computation gets.
struct ComputeParams {
    int ith;
    int nth;
    std::size_t wsize;
    void * wdata;
    void * threadpool;
};

// ggml::cpu::tensor_traits and ggml::cpu::extra_buffer_type: the same virtual functions in the same order.
class TensorTraits {
public:
    virtual ~TensorTraits() = default;
    virtual bool work_size(int n_threads, const Tensor * op, std::size_t & size) = 0;
    virtual bool compute_forward(ComputeParams * params, Tensor * op) = 0;
};

class ExtraBufferType {
public:
    virtual ~ExtraBufferType() = default;
    virtual bool supports_op(void * device, const Tensor * op) = 0;
    virtual TensorTraits * get_tensor_traits(const Tensor * op) = 0;
};

}  // namespace specllama::ggml
