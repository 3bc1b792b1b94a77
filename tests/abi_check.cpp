// Compiles only if cpp/llama/llama_api.hpp says of libllama's functions and structs what a real llama.h says.
#include <cstddef>
#include <type_traits>

#include "llama.h"
#include "llama/llama_api.hpp"

// At global scope the types of the list are llama.h's own, so equality means that both name the same function type.
#define CHECK_FUNCTION(result, name, arguments) \
    static_assert(std::is_same_v<decltype(&::name), result(*) arguments>, #name " has another type in this llama.h");
SPECLLAMA_LLAMA_FUNCTIONS(CHECK_FUNCTION)

// Whether this llama.h has an optional function the test says, by -DHAS_name=0 or 1.
#define CHECK_IF_0(result, name, arguments)
#define CHECK_IF_1(result, name, arguments) CHECK_FUNCTION(result, name, arguments)
#define CHECK_IF(has, result, name, arguments) CHECK_IF_##has(result, name, arguments)
#define CHECK_IF_EXPANDED(has, result, name, arguments) CHECK_IF(has, result, name, arguments)
#define CHECK_OPTIONAL_FUNCTION(result, name, arguments) CHECK_IF_EXPANDED(HAS_##name, result, name, arguments)
SPECLLAMA_OPTIONAL_FUNCTIONS(CHECK_OPTIONAL_FUNCTION)

#define CHECK_PLACE(type, field)                                               \
    static_assert(offsetof(::type, field) == offsetof(specllama::type, field), \
                  #type "." #field " lies elsewhere in this llama.h");
#define CHECK_FIELD(type, field)                                                             \
    static_assert(std::is_same_v<decltype(::type::field), decltype(specllama::type::field)>, \
                  #type "." #field " has another type in this llama.h");                     \
    CHECK_PLACE(type, field)
#define CHECK_WHOLE(type)                                                                                \
    static_assert(sizeof(::type) == sizeof(specllama::type), #type " has another size in this llama.h"); \
    static_assert(alignof(::type) == alignof(specllama::type), #type " is aligned otherwise");

CHECK_FIELD(llama_batch, n_tokens)
CHECK_FIELD(llama_batch, token)
CHECK_FIELD(llama_batch, embd)
CHECK_FIELD(llama_batch, pos)
CHECK_FIELD(llama_batch, n_seq_id)
CHECK_FIELD(llama_batch, seq_id)
CHECK_FIELD(llama_batch, logits)
CHECK_WHOLE(llama_batch)
// Passed by value: how depends on this too.
static_assert(std::is_trivially_copyable_v<specllama::llama_batch> &&
              std::is_standard_layout_v<specllama::llama_batch>);

// None has a field that the lists above leave out.
template <typename Batch>
void name_every_field_of_batch(Batch & batch) {
    auto & [n_tokens, token, embd, pos, n_seq_id, seq_id, logits] = batch;
    (void)n_tokens, (void)token, (void)embd, (void)pos, (void)n_seq_id, (void)seq_id, (void)logits;
}
template void name_every_field_of_batch(::llama_batch &);
template void name_every_field_of_batch(specllama::llama_batch &);
