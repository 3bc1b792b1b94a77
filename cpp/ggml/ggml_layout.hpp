// ggml's internal structures, as far as a buffer type of weights needs them.
//
// ggml does not promise to keep these structures. tests/kernels/test_ggml_layout.py compares them with ggml's own
// headers, and ggml_probe checks them in the loaded library before anything relies on them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace specllama::ggml {

constexpr int kMaxDims = 4;
constexpr int kMaxSources = 10;
constexpr int kMaxOpParams = 64;  // bytes
constexpr int kMaxName = 64;

// The numbers of tensor types. GGUF files hold these numbers, so the numbers do not change.
constexpr int kFloat = 0;   // GGML_TYPE_F32
constexpr int kHalf = 1;    // GGML_TYPE_F16
constexpr int kQ8 = 8;      // GGML_TYPE_Q8_0
constexpr int kQ4 = 2;      // GGML_TYPE_Q4_0
constexpr int kIq4 = 20;    // GGML_TYPE_IQ4_NL
constexpr int kInt32 = 26;  // GGML_TYPE_I32
constexpr int kInt64 = 27;  // GGML_TYPE_I64

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

// The places of the functions in ggml's structure of a buffer type, counted in pointers. The pointer to the device
// follows the functions, and the pointer to the context follows the device.
struct BufferTypeLayout {
    int name;
    int alloc_buffer;
    int alloc_buffer_n;  // -1 if there is none
    int alignment;
    int max_size;
    int alloc_size;
    int alloc_size_n;  // -1 if there is none
    int is_host;
    int device;

    constexpr int context() const { return device + 1; }
    constexpr bool operator==(const BufferTypeLayout & other) const {
        return name == other.name && alloc_buffer == other.alloc_buffer && alignment == other.alignment &&
               max_size == other.max_size && alloc_size == other.alloc_size && is_host == other.is_host &&
               device == other.device;
    }
};

// The layout for some versions of the interface between ggml and its backends. The version is the first field of a
// backend's registry.
struct KnownInterface {
    int first_version;
    int last_version;
    BufferTypeLayout buffer_type;
};
constexpr KnownInterface kInterfaces[] = {
    {1, 2, {0, 1, -1, 2, 3, 4, -1, 5, 6}},
    {3, 3, {0, 1, 2, 3, 4, 5, 6, 7, 8}},  // ggml 0.26 has two more functions, for several tensors, which may be null
};
// An upper bound of the number of pointers in a buffer type.
constexpr int kMostPointers = 16;

// The first functions of a buffer, by their places. The pointer to the buffer's type follows the last function.
enum BufferFunction { kFree, kGetBase, kInitTensor, kMemset, kSetTensor };
// How many functions a buffer has: newer releases have two more, for strided data, before the last three.
constexpr int kNumFunctions[] = {9, 11};

// The first fields of ggml_compute_params, which each thread that computes a graph gets.
struct ComputeParams {
    int ith;
    int nth;
    std::size_t wsize;
    void * wdata;
    void * threadpool;
};

// These classes stand for ggml::cpu::tensor_traits and ggml::cpu::extra_buffer_type: they have ggml's virtual
// functions, in ggml's order.
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
