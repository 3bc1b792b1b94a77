// The buffer types of ggml's CPU backend that hold weights in a layout of their own, such as AMX and CPU_REPACK.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace specllama {

// ggml has them twice. Its own list says whose kernels multiply a tensor. What it offers is a copy of that list, made
// when it is first asked for and ended by a null pointer, which llama.cpp goes through whenever it loads a model. An
// entry that is taken off what is offered gets no weights any more, while those that it has got are multiplied as
// before.
class ExtraBufferTypes {
public:
    // Addresses of ggml's functions, and the device of its CPU backend. `list` may be 0: ggml exports it for its own
    // use.
    struct Addresses {
        std::uintptr_t list = 0;     // ggml_backend_cpu_get_extra_buffer_types()
        std::uintptr_t offered = 0;  // ggml_backend_dev_get_extra_bufts(device)
        std::uintptr_t name = 0;     // ggml_backend_buft_name(type)
        std::uintptr_t device = 0;
    };

    // Throws std::invalid_argument if an address other than `list` is 0.
    explicit ExtraBufferTypes(const Addresses & addresses);

    // Whether ggml's own list can be read: it is a std::vector, of which only some platforms' layout is known here.
    bool has_list() const;

    // ggml's own list; what is offered where that cannot be read.
    std::vector<std::string> names() const;

    // What the next model's weights can be put into, in the order in which llama.cpp tries them.
    std::vector<std::string> offered() const;

    // Offers it no longer; false if it was not offered. No model may be loading meanwhile, and our own buffer type not
    // be offered yet: what is offered then is made anew each time.
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
