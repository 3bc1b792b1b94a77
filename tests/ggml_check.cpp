// Compared by the compiler: what cpp/ggml_plugin knows of ggml's structures, and ggml's own headers.
#include <cstddef>
#include <type_traits>

#include "ggml-backend-impl.h"
#include "ggml-cpu/ggml-cpu-impl.h"
#include "ggml/ggml_layout.hpp"

namespace ours = specllama::ggml;

#define SAME_PLACE(theirs, mine, field) \
    static_assert(offsetof(theirs, field) == offsetof(mine, field), #theirs "." #field " lies elsewhere")

SAME_PLACE(ggml_tensor, ours::Tensor, type);
SAME_PLACE(ggml_tensor, ours::Tensor, buffer);
SAME_PLACE(ggml_tensor, ours::Tensor, ne);
SAME_PLACE(ggml_tensor, ours::Tensor, nb);
SAME_PLACE(ggml_tensor, ours::Tensor, op);
SAME_PLACE(ggml_tensor, ours::Tensor, op_params);
SAME_PLACE(ggml_tensor, ours::Tensor, src);
SAME_PLACE(ggml_tensor, ours::Tensor, view_src);
SAME_PLACE(ggml_tensor, ours::Tensor, data);
SAME_PLACE(ggml_tensor, ours::Tensor, name);
SAME_PLACE(ggml_tensor, ours::Tensor, extra);
static_assert(sizeof(ggml_tensor) == sizeof(ours::Tensor), "ggml_tensor has another size");

constexpr ours::BufferTypeLayout buffer_type() {
    for (const ours::KnownInterface & known : ours::kInterfaces) {
        if (known.first_version <= GGML_BACKEND_API_VERSION && GGML_BACKEND_API_VERSION <= known.last_version) {
            return known.buffer_type;
        }
    }
    return {};
}
static_assert(offsetof(ggml_backend_reg, api_version) == 0, "a registry begins otherwise");
static_assert(buffer_type().device != 0, "this version of the backends' interface is not known");
#define SAME_FUNCTION(field, place) \
    static_assert(offsetof(ggml_backend_buffer_type_i, field) == (place) * sizeof(void *), #field " lies elsewhere")
SAME_FUNCTION(get_name, buffer_type().name);
SAME_FUNCTION(alloc_buffer, buffer_type().alloc_buffer);
SAME_FUNCTION(get_alignment, buffer_type().alignment);
SAME_FUNCTION(get_max_size, buffer_type().max_size);
SAME_FUNCTION(get_alloc_size, buffer_type().alloc_size);
#if GGML_BACKEND_API_VERSION >= 3
SAME_FUNCTION(alloc_buffer_n, buffer_type().alloc_buffer_n);
SAME_FUNCTION(get_alloc_size_n, buffer_type().alloc_size_n);
#endif
SAME_FUNCTION(is_host, buffer_type().is_host);
static_assert(offsetof(ggml_backend_buffer_type, device) == buffer_type().device * sizeof(void *),
              "device lies elsewhere");
static_assert(offsetof(ggml_backend_buffer_type, context) == buffer_type().context() * sizeof(void *),
              "context lies elsewhere");

constexpr std::size_t place(int index) { return static_cast<std::size_t>(index) * sizeof(void *); }
constexpr std::size_t kFunctions = offsetof(ggml_backend_buffer, buft) / sizeof(void *);
static_assert(kFunctions == ours::kNumFunctions[0] || kFunctions == ours::kNumFunctions[1],
              "a buffer has another number of functions");
static_assert(offsetof(ggml_backend_buffer, iface) == 0, "a buffer begins otherwise");
static_assert(offsetof(ggml_backend_buffer_i, get_base) == place(ours::kGetBase), "get_base lies elsewhere");
static_assert(offsetof(ggml_backend_buffer_i, init_tensor) == place(ours::kInitTensor), "init_tensor lies elsewhere");
static_assert(offsetof(ggml_backend_buffer_i, set_tensor) == place(ours::kSetTensor), "set_tensor lies elsewhere");

SAME_PLACE(ggml_compute_params, ours::ComputeParams, ith);
SAME_PLACE(ggml_compute_params, ours::ComputeParams, nth);
SAME_PLACE(ggml_compute_params, ours::ComputeParams, wsize);
SAME_PLACE(ggml_compute_params, ours::ComputeParams, wdata);
SAME_PLACE(ggml_compute_params, ours::ComputeParams, threadpool);
