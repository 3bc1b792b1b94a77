// Compiles only if cpp/llama_api.hpp says of libllama's functions and of llama_batch what a real llama.h says.
#include <cstddef>
#include <type_traits>

#include "llama.h"
#include "llama_api.hpp"

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

#define CHECK_FIELD(field)                                                                                 \
    static_assert(std::is_same_v<decltype(::llama_batch::field), decltype(specllama::llama_batch::field)>, \
                  "llama_batch." #field " has another type in this llama.h");                              \
    static_assert(offsetof(::llama_batch, field) == offsetof(specllama::llama_batch, field),               \
                  "llama_batch." #field " lies elsewhere in this llama.h");
CHECK_FIELD(n_tokens)
CHECK_FIELD(token)
CHECK_FIELD(embd)
CHECK_FIELD(pos)
CHECK_FIELD(n_seq_id)
CHECK_FIELD(seq_id)
CHECK_FIELD(logits)

static_assert(sizeof(::llama_batch) == sizeof(specllama::llama_batch), "llama_batch has another size in this llama.h");
static_assert(alignof(::llama_batch) == alignof(specllama::llama_batch), "llama_batch is aligned otherwise");
// Passed by value: how depends on this too.
static_assert(std::is_trivially_copyable_v<specllama::llama_batch> &&
              std::is_standard_layout_v<specllama::llama_batch>);

// Neither has a field that the list above leaves out.
template <typename Batch>
void name_every_field(Batch & batch) {
    auto & [n_tokens, token, embd, pos, n_seq_id, seq_id, logits] = batch;
    (void)n_tokens, (void)token, (void)embd, (void)pos, (void)n_seq_id, (void)seq_id, (void)logits;
}
template void name_every_field(::llama_batch &);
template void name_every_field(specllama::llama_batch &);
