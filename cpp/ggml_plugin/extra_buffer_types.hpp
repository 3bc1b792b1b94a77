// The extra buffer types of ggml's CPU backend, such as AMX and CPU_REPACK. They hold weights in layouts of their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace specllama {

// ggml has two lists of these types. Its own list says whose kernels multiply a tensor. The offered list is a copy,
// which ggml makes at the first request, and which ends with a null pointer. llama.cpp goes through the offered list
// whenever it loads a model. If a type is removed from the offered list, it gets no more weights, and the weights that
// it has are multiplied as before.
class ExtraBufferTypes {
public:
    // The addresses of ggml's functions, and of the device of its CPU backend. `list` may be 0, because ggml exports
    // that function for its own use only.
    struct Addresses {
        std::uintptr_t list = 0;     // ggml_backend_cpu_get_extra_buffer_types()
        std::uintptr_t offered = 0;  // ggml_backend_dev_get_extra_bufts(device)
        std::uintptr_t name = 0;     // ggml_backend_buft_name(type)
        std::uintptr_t device = 0;
    };

    // Throws std::invalid_argument if an address other than `list` is 0.
    explicit ExtraBufferTypes(const Addresses & addresses);

    // Whether ggml's own list can be read. It is a std::vector, whose layout is known here for some platforms only.
    bool has_list() const;

    // The names in ggml's own list; the names in the offered list if ggml's own list cannot be read.
    std::vector<std::string> names() const;

    // The names in the offered list: the types that the next model's weights can be put into, in the order in which
    // llama.cpp tries them.
    std::vector<std::string> offered() const;

    // Removes a type from the offered list. Returns false if it was not offered. No model may be loading meanwhile. To
    // be called before our own buffer type is offered: from then on the offered list is made anew at every request, and
    // the removed type would come back.
    bool remove(const std::string & name);

private:
    using Type = void *;  // ggml_backend_buffer_type_t

    Type * offered_types() const;
    std::string name_of(Type type) const;

    std::vector<Type> & (*list_)() = nullptr;
    Type * (*offered_)(void *) = nullptr;
    const char * (*name_)(Type) = nullptr;
    void * device_ = nullptr;
};

}  // namespace specllama
