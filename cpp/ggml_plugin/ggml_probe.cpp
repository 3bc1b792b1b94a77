#include "ggml_plugin/ggml_probe.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "ggml_plugin/flash_attention.hpp"

namespace specllama::ggml {

namespace {

[[noreturn]] void differs(const std::string & what) {
    throw std::runtime_error("this llama.cpp is built otherwise than is known here: " + what);
}

void require(bool holds, const char * what) {
    if (!holds) {
        differs(what);
    }
}

// Whether this release has the type.
bool is_known(const Api & api, kernels::QuantizedType type) {
    switch (type) {
        case kernels::QuantizedType::nvfp4:
            return api.dequantize_row_nvfp4 != nullptr;
        case kernels::QuantizedType::q1_0:
            return api.dequantize_row_q1_0 != nullptr;
        case kernels::QuantizedType::q2_0:
            return api.dequantize_row_q2_0 != nullptr;
        default:
            return true;
    }
}

// Bytes of a block as ggml sees it: floats have blocks of one value there.
int bytes_in_ggml(const kernels::Layout & layout) {
    return layout.is_float() ? layout.block_bytes / layout.values : layout.block_bytes;
}

void learn_types(const Api & api, void * context, Insides & insides) {
    Tensor * weights = api.ggml_new_tensor_2d(context, kFloat, 96, 5);
    Tensor * x = api.ggml_new_tensor_2d(context, kFloat, 96, 3);
    Tensor * product = api.ggml_mul_mat(context, weights, x);
    api.ggml_set_name(product, "specllama");
    product->data = &insides;
    require(weights->type == kFloat && weights->ne[0] == 96 && weights->ne[1] == 5 && weights->ne[2] == 1 &&
                weights->ne[3] == 1 && weights->nb[0] == 4 && weights->nb[1] == 384 && weights->buffer == nullptr,
            "a tensor's shape is elsewhere");
    require(product->src[0] == weights && product->src[1] == x && product->src[2] == nullptr,
            "a tensor's sources are elsewhere");
    require(api.ggml_get_name(product) == product->name && std::strcmp(product->name, "specllama") == 0,
            "a tensor's name is elsewhere");
    require(api.ggml_get_data(product) == &insides && product->view_src == nullptr && product->extra == nullptr,
            "a tensor's data are elsewhere");
    require(std::strcmp(api.ggml_op_name(product->op), "MUL_MAT") == 0, "a tensor's operation is elsewhere");
    insides.mul_mat = product->op;
    for (int i = 0; i < kernels::kNumTypes; ++i) {
        const auto type = static_cast<kernels::QuantizedType>(i);
        const kernels::Layout layout = kernels::layout_of(type);
        if (!is_known(api, type)) {
            continue;
        }
        const char * found = api.ggml_type_name(layout.number);
        const auto same = [](char a, char b) { return (a | 32) == (b | 32); };  // ignores case: ggml writes q4_K
        const std::string expected = kernels::kTypeNames[i];
        require(found != nullptr && std::strlen(found) == expected.size() &&
                    std::equal(expected.begin(), expected.end(), found, same) &&
                    api.ggml_type_size(layout.number) == static_cast<std::size_t>(bytes_in_ggml(layout)),
                kernels::kTypeNames[i]);
        insides.types[layout.number] = type;
    }
}

void learn_experts(const Api & api, void * context, Insides & insides) {
    Tensor * weights = api.ggml_new_tensor_3d(context, kFloat, 96, 5, 7);
    Tensor * x = api.ggml_new_tensor_3d(context, kFloat, 96, 1, 3);
    Tensor * ids = api.ggml_new_tensor_2d(context, kInt32, 2, 3);
    const Tensor * product = api.ggml_mul_mat_id(context, weights, x, ids);
    require(std::strcmp(api.ggml_op_name(product->op), "MUL_MAT_ID") == 0 && product->src[0] == weights &&
                product->src[1] == x && product->src[2] == ids && product->src[3] == nullptr && ids->type == kInt32 &&
                ids->nb[0] == 4 && ids->nb[1] == 8 && product->ne[0] == 5 && product->ne[1] == 2 &&
                product->ne[2] == 3 && product->ne[3] == 1,
            "products of experts are described otherwise");
    insides.mul_mat_id = product->op;
}

void learn_attention(const Api & api, void * context, Insides & insides) {
    Tensor * q = api.ggml_new_tensor_3d(context, kFloat, 32, 5, 4);
    Tensor * k = api.ggml_new_tensor_3d(context, kHalf, 32, 64, 2);
    Tensor * v = api.ggml_new_tensor_3d(context, kHalf, 48, 64, 2);
    Tensor * mask = api.ggml_new_tensor_2d(context, kHalf, 64, 64);
    const Tensor * attention = api.ggml_flash_attn_ext(context, q, k, v, mask, 0.25F, 0.0F, 0.0F);
    constexpr std::array<float, 3> expected{0.25F, 0.0F, 0.0F};
    std::array<float, 3> found{};
    std::memcpy(found.data(), attention->op_params, sizeof found);
    require(std::strcmp(api.ggml_op_name(attention->op), "FLASH_ATTN_EXT") == 0 && attention->src[0] == q &&
                attention->src[1] == k && attention->src[2] == v && attention->src[3] == mask &&
                attention->src[4] == nullptr && attention->ne[0] == 48 && attention->ne[1] == 4 &&
                attention->ne[2] == 5 && found == expected && FlashAttention::fits(attention),
            "attention is described otherwise");
    insides.flash_attention = attention->op;
}

// The place of the last function that was called in a made-up structure; -1: none. A made-up structure has, at each
// place, a function that records its own place here.
thread_local int called = -1;

template <int place>
std::size_t say(void * /*structure*/, const void * /*argument*/) {
    called = place;
    return 1 << 20;  // ggml may take this for a tensor's size, for which it is large enough
}

template <int... places>
std::array<void *, sizeof...(places)> sayers(std::integer_sequence<int, places...> /*each*/) {
    return {reinterpret_cast<void *>(&say<places>)...};
}

std::array<void *, kMostPointers> made_up() { return sayers(std::make_integer_sequence<int, kMostPointers>()); }

// The place of the function that ask() calls in a made-up structure.
template <class Ask>
int place(Ask && ask) {
    called = -1;
    ask();
    return called;
}

// Finds the layout of buffer types: passes a made-up buffer type to ggml's functions, and records which of its
// functions they call.
BufferTypeLayout asked_layout(const Api & api, const Tensor * tensor) {
    std::array<void *, kMostPointers> words = made_up();
    auto * type = reinterpret_cast<BufferType *>(words.data());
    BufferTypeLayout found = {};
    found.name = place([&] { api.ggml_backend_buft_name(type); });
    found.alloc_buffer = place([&] { api.ggml_backend_buft_alloc_buffer(type, 1); });
    found.alignment = place([&] { api.ggml_backend_buft_get_alignment(type); });
    found.max_size = place([&] { api.ggml_backend_buft_get_max_size(type); });
    found.alloc_size = place([&] { api.ggml_backend_buft_get_alloc_size(type, tensor); });
    found.is_host = place([&] { api.ggml_backend_buft_is_host(type); });
    const auto * device = std::find(words.begin(), words.end(), api.ggml_backend_buft_get_device(type));
    found.device = static_cast<int>(device - words.begin());
    return found;
}

void learn_buffer_types(const Api & api, const void * registry, void * context, Insides & insides) {
    require(registry != nullptr, "its CPU backend is not registered");
    const int version = *static_cast<const int *>(registry);
    const auto * known = std::find_if(std::begin(kInterfaces), std::end(kInterfaces), [version](const auto & each) {
        return each.first_version <= version && version <= each.last_version;
    });
    if (known == std::end(kInterfaces)) {
        differs("its backends' interface has the version " + std::to_string(version));
    }
    require(asked_layout(api, api.ggml_new_tensor_2d(context, kFloat, 4, 4)) == known->buffer_type,
            "a buffer type's functions are elsewhere");
    insides.buffer_type = known->buffer_type;
}

// Finds how many functions ggml's buffers have. A buffer begins with the pointers to its functions, and the pointer to
// its type follows. So the place of the type is the number of functions.
void learn_buffers(const Api & api, Insides & insides) {
    BufferType * cpu = api.ggml_backend_cpu_buffer_type();
    require(cpu != nullptr, "there is no buffer type of the CPU");
    Buffer * buffer = api.ggml_backend_buft_alloc_buffer(cpu, 4096);
    require(buffer != nullptr, "no buffer can be allocated");
    auto * words = reinterpret_cast<void **>(buffer);
    for (const int count : kNumFunctions) {
        if (words[count] == cpu) {
            insides.num_buffer_functions = count;
            break;
        }
    }
    const bool known =
        insides.num_buffer_functions != 0 && api.ggml_backend_buffer_get_type(buffer) == cpu &&
        api.ggml_backend_buffer_get_base(buffer) == reinterpret_cast<void * (*)(Buffer *)>(words[kGetBase])(buffer);
    api.ggml_backend_buffer_free(buffer);
    require(known, "a buffer's functions are elsewhere");
}

}  // namespace

// Makes tensors as llama.cpp does, and looks at their fields.
Insides probe(const Api & api, const void * registry) {
    require(api.ggml_tensor_overhead() >= sizeof(Tensor), "a tensor is smaller");
    const auto free = [&api](void * made) { api.ggml_free(made); };
    const std::unique_ptr<void, decltype(free)> context(
        api.ggml_init({24 * api.ggml_tensor_overhead() + 4096, nullptr, true}), free);
    require(context != nullptr, "ggml_init gave no context");
    Insides insides;
    learn_types(api, context.get(), insides);
    learn_experts(api, context.get(), insides);
    learn_attention(api, context.get(), insides);
    learn_buffer_types(api, registry, context.get(), insides);
    learn_buffers(api, insides);
    return insides;
}

std::optional<kernels::QuantizedType> Insides::type_of(const Tensor * tensor) const {
    const auto found = types.find(tensor->type);
    if (found == types.end() || tensor->ne[2] < 1 || tensor->ne[3] != 1 || tensor->ne[1] < 1 ||
        !kernels::fits(found->second, tensor->ne[0])) {
        return std::nullopt;
    }
    return found->second;
}

bool is_loading(const Api & api, const Tensor * op) {
    const Tensor * weights = op->src[0];
    return weights != nullptr && weights->buffer != nullptr && api.ggml_backend_buffer_get_size(weights->buffer) == 0;
}

}  // namespace specllama::ggml
