#include "ggml_plugin/offer.hpp"

#if defined(__linux__)
#include <malloc.h>
#endif

#include <atomic>
#include <cstring>
#include <vector>

#include "kernels/this_decode.hpp"

// ggml's objects are called through our classes, which have the same virtual functions and other names. UBSan would
// report such calls.
#if defined(__GNUC__)
#define SPECLLAMA_CALLS_THEIRS __attribute__((no_sanitize("vptr")))
#else
#define SPECLLAMA_CALLS_THEIRS
#endif

namespace specllama {

namespace {

using Types = std::vector<ggml::BufferType *>;

// Writes a word of ggml's that other threads may be reading: they find the old value or the new one.
template <class Word>
void write(Word * place, Word value) {
    static_assert(sizeof(std::atomic<Word>) == sizeof(Word) && std::atomic<Word>::is_always_lock_free);
    reinterpret_cast<std::atomic<Word> *>(place)->store(value, std::memory_order_release);
}

// Takes the place of one of ggml's own buffer types, and records whether that type computes operations. ggml asks its
// own types before ours, so ours would not notice these operations.
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

// How many types fit into the memory that the list has now.
std::size_t room_of(const Types & types) {
#if defined(__linux__)
    auto * begin = const_cast<ggml::BufferType **>(types.data());
    return malloc_usable_size(static_cast<void *>(begin)) / sizeof(ggml::BufferType *);
#else
    return types.capacity();
#endif
}

// Appends a type to a list that other threads may be reading. The list stays in its place if there is room after it, as
// there always is in memory from glibc. The pointer to the list's end is written last, when the type is already there.
void append(Types & types, ggml::BufferType * type) {
    if (room_of(types) > types.size()) {
        // The end of the elements, and the end of the memory.
        auto *** ends = reinterpret_cast<ggml::BufferType ***>(&types) + 1;
        ggml::BufferType ** end = ends[0];
        *end = type;
        if (ends[1] == end) {
            ends[1] = end + 1;
        }
        write(ends, end + 1);
    } else {
        auto * before = new Types(types);
        before->push_back(type);
        types.swap(*before);  // the old memory is never freed: a thread may be reading it
    }
}

constexpr const char * kOffered = "ggml_backend_dev_get_extra_bufts";

void * (*find_before)(void *, const char *) = nullptr;
ggml::BufferType ** (*offered_before)(void *) = nullptr;
ggml::BufferType * first = nullptr;

// Returns our buffer type, then those that ggml offers. ggml's offered list is a copy of its own list, made when the
// first model asked for it.
ggml::BufferType ** offered(void * device) {
    thread_local Types types;
    types.assign(1, first);
    for (ggml::BufferType ** type = offered_before(device); type != nullptr && *type != nullptr; ++type) {
        if (*type != first) {  // our type is in ggml's copy if the copy was made after append()
            types.push_back(*type);
        }
    }
    types.push_back(nullptr);
    return types.data();
}

// Replaces the function of the CPU backend that finds other functions by their names. llama.cpp calls it.
void * find(void * registry, const char * name) {
    return std::strcmp(name, kOffered) == 0 ? reinterpret_cast<void *>(&offered) : find_before(registry, name);
}

}  // namespace

void offer(const ggml::Insides & insides, const BufferTypeLists & lists, ggml::BufferType * type) {
    auto & used = reinterpret_cast<Types & (*)()>(lists.used)();
    hear_of(used, insides.buffer_type.context());
    append(used, type);
    first = type;
    offered_before = reinterpret_cast<decltype(offered_before)>(lists.offered);
    void ** function = reinterpret_cast<void **>(lists.registry) + insides.find_function;
    find_before = reinterpret_cast<decltype(find_before)>(*function);
    write(function, reinterpret_cast<void *>(&find));
}

}  // namespace specllama
