#include "ggml_plugin/offer.hpp"

#if defined(__linux__)
#include <malloc.h>
#endif

#include <atomic>
#include <cstring>
#include <vector>

#include "kernels/this_decode.hpp"

// The class of theirs is ggml's, which has the same virtual functions and another name.
#if defined(__GNUC__)
#define SPECLLAMA_CALLS_THEIRS __attribute__((no_sanitize("vptr")))
#else
#define SPECLLAMA_CALLS_THEIRS
#endif

namespace specllama {

namespace {

using Types = std::vector<ggml::BufferType *>;

// A word of ggml's that other threads may be reading: they find what it was or what it is now.
template <class Word>
void write(Word * place, Word value) {
    static_assert(sizeof(std::atomic<Word>) == sizeof(Word) && std::atomic<Word>::is_always_lock_free);
    reinterpret_cast<std::atomic<Word> *>(place)->store(value, std::memory_order_release);
}

// One of ggml's own buffer types, as before but that we hear of what it computes: it is asked before ours.
class Heard : public ggml::ExtraBufferType {
public:
    explicit Heard(ggml::ExtraBufferType * theirs) : theirs_(theirs) {}

    SPECLLAMA_CALLS_THEIRS bool supports_op(void * device, const ggml::Tensor * op) override {
        return theirs_->supports_op(device, op);
    }

    SPECLLAMA_CALLS_THEIRS ggml::TensorTraits * get_tensor_traits(const ggml::Tensor * op) override {
        ggml::TensorTraits * traits = theirs_->get_tensor_traits(op);
        operations_seen.foreign |= traits != nullptr;
        return traits;
    }

private:
    ggml::ExtraBufferType * theirs_;
};

void hear_of(const Types & types, int place_of_context) {
    for (ggml::BufferType * type : types) {
        void ** context = type == nullptr ? nullptr : reinterpret_cast<void **>(type) + place_of_context;
        if (context != nullptr && *context != nullptr) {
            write<void *>(context, new Heard(static_cast<ggml::ExtraBufferType *>(*context)));
        }
    }
}

// How many types can stand where the list has its own.
std::size_t room_of(const Types & types) {
#if defined(__linux__)
    auto * begin = const_cast<ggml::BufferType **>(types.data());
    return malloc_usable_size(static_cast<void *>(begin)) / sizeof(ggml::BufferType *);
#else
    return types.capacity();
#endif
}

// Puts it at the end of a list that other threads may be going through. It stays where it is if there is room, as
// there always is after what glibc allocates. The end is written last.
void append(Types & types, ggml::BufferType * type) {
    if (room_of(types) > types.size()) {
        auto *** ends = reinterpret_cast<ggml::BufferType ***>(&types) + 1;  // of what is there, and of the room
        ggml::BufferType ** end = ends[0];
        *end = type;
        if (ends[1] == end) {
            ends[1] = end + 1;
        }
        write(ends, end + 1);
    } else {
        auto * before = new Types(types);
        before->push_back(type);
        types.swap(*before);  // never freed: a thread that has begun goes through it to its end
    }
}

constexpr const char * kOffered = "ggml_backend_dev_get_extra_bufts";

void * (*find_before)(void *, const char *) = nullptr;
ggml::BufferType ** (*offered_before)(void *) = nullptr;
ggml::BufferType * first = nullptr;

// What ggml offers, and ours before it. ggml's own list is a copy, made when it was first asked for: by whichever
// model was the first.
ggml::BufferType ** offered(void * device) {
    thread_local Types types;
    types.assign(1, first);
    for (ggml::BufferType ** type = offered_before(device); type != nullptr && *type != nullptr; ++type) {
        if (*type != first) {  // as it is if nobody asked before
            types.push_back(*type);
        }
    }
    types.push_back(nullptr);
    return types.data();
}

// The CPU backend's function of some name, for llama.cpp.
void * find(void * registry, const char * name) {
    return std::strcmp(name, kOffered) == 0 ? reinterpret_cast<void *>(&offered) : find_before(registry, name);
}

}  // namespace

void offer(const ggml::Insides & insides, const BufferTypeLists & lists, ggml::BufferType * type) {
    auto & own = reinterpret_cast<Types & (*)()>(lists.own)();
    hear_of(own, insides.buffer_type.context());
    append(own, type);
    first = type;
    offered_before = reinterpret_cast<decltype(offered_before)>(lists.offered);
    void ** function = reinterpret_cast<void **>(lists.registry) + insides.find_function;
    find_before = reinterpret_cast<decltype(find_before)>(*function);
    write(function, reinterpret_cast<void *>(&find));
}

}  // namespace specllama
