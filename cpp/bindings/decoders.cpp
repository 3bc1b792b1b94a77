// Decoders and their sequences.
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/bindings.hpp"
#include "bindings/python_calls.hpp"
#include "llama/sequence.hpp"
#include "llama/taps.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

using Row = py::array_t<float>;

const char * name_of(Rollback rollback) {
    switch (rollback) {
        case Rollback::seq_rm:
            return "seq_rm";
        case Rollback::sliding_window:
            return "seq_rm (sliding window)";
        case Rollback::snapshot:
            return "snapshot";
        case Rollback::checkpoint:
            return "checkpoint";
        case Rollback::none:
            break;
    }
    return "none";
}

// listed: the tokens whose logits are computed; null: all tokens. The list must not change during the call.
void decode(Sequence & self, const Tokens & tokens, std::size_t first_output, const TokenList * listed,
            bool keeps_states) {
    if (keeps_states && self.decoder().state_size() == 0) {
        throw std::invalid_argument("this context was not made to show hidden states");
    }
    const std::vector<int32_t> added = to_vector(tokens);
    const GilReleased released;
    const Decoder::Use in_use(self.decoder());
    Sequence::Addition addition{{added.data(), added.size(), first_output, listed}, &self};
    addition.keeps_states = keeps_states;
    Sequence::decode_together(&addition, 1);
}

// Returns the hidden states [count][state_size] of the first `count` tokens of the last batch, which must have been
// decoded with keeps_states.
py::array_t<float> states(const Sequence & self, std::size_t count) {
    std::vector<float> found;
    self.copy_states(0, count, found);
    const auto rows = static_cast<py::ssize_t>(count), size = static_cast<py::ssize_t>(self.decoder().state_size());
    return py::array_t<float>({rows, size}, found.data());
}

using Bytes = py::array_t<std::uint8_t, py::array::c_style>;

// An array that owns these bytes; None if there are none.
std::optional<Bytes> owned_array(StateBytes state) {
    if (state.size == 0) {
        return std::nullopt;
    }
    std::uint8_t * data = state.data.release();
    const py::capsule owner(data, [](void * bytes) { delete[] static_cast<std::uint8_t *>(bytes); });
    return Bytes(static_cast<py::ssize_t>(state.size), data, owner);
}

// Calls a function of the sequence without the GIL, while no other thread decodes.
template <typename Function>
auto exclusively(Sequence & self, Function function) {
    const GilReleased released;
    const Decoder::Use in_use(self.decoder());
    return function();
}

std::optional<Bytes> copy_range(Sequence & self, std::size_t first, std::size_t end) {
    return owned_array(exclusively(self, [&] { return self.copy_range(first, end); }));
}

std::optional<Bytes> copy_point(Sequence & self, std::size_t count) {
    return owned_array(exclusively(self, [&] { return self.copy_point(count); }));
}

bool put_range(Sequence & self, const Bytes & data, const Tokens & tokens) {
    const std::vector<int32_t> added = to_vector(tokens);
    const std::uint8_t * bytes = data.data();
    const auto size = static_cast<std::size_t>(data.size());
    return exclusively(self, [&] { return self.put_range(bytes, size, added); });
}

bool put_point(Sequence & self, const Bytes & data, const Tokens & tokens) {
    const std::vector<int32_t> text = to_vector(tokens);
    const std::uint8_t * bytes = data.data();
    const auto size = static_cast<std::size_t>(data.size());
    return exclusively(self, [&] { return self.put_point(bytes, size, text); });
}

unsigned long interpreter_thread = 0;  // the main thread: it ends the interpreter, and runs until then

bool nobody_waits() { return python_ends() && PyThread_get_thread_ident() != interpreter_thread; }

Row logits(Sequence & self, std::size_t i) {
    return Row(static_cast<py::ssize_t>(self.decoder().n_vocab()), self.logits(i));
}

// Makes the taps of hidden states. llama.cpp may call the taps as long as the context that was made with them exists.
std::shared_ptr<Taps> make_taps(const std::map<std::string, std::uintptr_t> & functions,
                                std::vector<std::string> names) {
    const auto function = [&functions](const char * name) { return functions.at(name); };
    return std::make_shared<Taps>(
        Taps::Functions{reinterpret_cast<decltype(Taps::Functions::name)>(function("ggml_get_name")),
                        reinterpret_cast<decltype(Taps::Functions::num_bytes)>(function("ggml_nbytes")),
                        reinterpret_cast<decltype(Taps::Functions::get)>(function("ggml_backend_tensor_get"))},
        std::move(names));
}

void bind_taps(py::module_ & module) {
    py::class_<Taps, std::shared_ptr<Taps>>(module, "Taps",
                                            "Reads the values of some tensors of a graph, by their names.")
        .def(py::init(&make_taps), py::arg("functions"), py::arg("names"))
        .def_property_readonly("callback",
                               [](const Taps &) { return reinterpret_cast<std::uintptr_t>(&Taps::on_tensor); })
        .def_property_readonly("address", [](Taps & self) { return reinterpret_cast<std::uintptr_t>(&self); });
}

void bind_decoder_class(py::module_ & module) {
    py::class_<TokenList>(module, "TokenList", "Some tokens of a vocabulary, in whole groups of 16 neighbours.")
        .def(py::init(&make_list), py::arg("n_vocab"), py::arg("tokens"))
        .def_property_readonly("groups", [](const TokenList & self) { return to_array(self.groups()); });
    py::class_<NoiseBlock>(module, "NoiseBlock", "The input of a head that drafts several tokens in one decode.")
        .def(py::init([](std::size_t size, int32_t mask, std::size_t first, bool is_whole, std::size_t num_candidates) {
                 return NoiseBlock{size, mask, first, is_whole, num_candidates};
             }),
             py::arg("size"), py::arg("mask"), py::arg("first"), py::arg("is_whole"), py::arg("num_candidates"));
    py::class_<Decoder, std::shared_ptr<Decoder>>(module, "Decoder", "One llama_context.")
        .def(py::init([](std::shared_ptr<LlamaApi> api, std::uintptr_t context, std::string name, std::size_t n_ctx,
                         std::shared_ptr<Taps> taps, std::size_t n_features, std::size_t width, bool encodes,
                         bool embeds, std::optional<NoiseBlock> block, bool of_wanted, std::size_t num_layers,
                         std::uintptr_t choose_layer, int32_t spare, bool keeps_window, bool has_parts,
                         std::shared_ptr<Decoder> target) {
                 HiddenStates hidden{std::move(taps), n_features, width, encodes, block, of_wanted, num_layers};
                 hidden.choose_layer = reinterpret_cast<void (*)(llama_context *, int32_t)>(choose_layer);
                 hidden.target = std::move(target);
                 return std::make_shared<Decoder>(std::move(api), at_address<llama_context>(context), std::move(name),
                                                  n_ctx, std::move(hidden), embeds,
                                                  ContextExtras{spare, keeps_window, has_parts});
             }),
             py::arg("api"), py::arg("context"), py::arg("name"), py::arg("n_ctx") = 0, py::arg("taps") = nullptr,
             py::arg("n_features") = 0, py::arg("width") = 0, py::arg("encodes") = false, py::arg("embeds") = false,
             py::arg("block") = py::none(), py::arg("of_wanted") = false, py::arg("num_layers") = 1,
             py::arg("choose_layer") = 0, py::arg("spare") = -1, py::arg("keeps_window") = false,
             py::arg("has_parts") = true, py::arg("target") = py::none(),
             "target: of a head that reads its target's memory: the target's decoder.")
        .def_property_readonly("n_ctx", &Decoder::n_ctx)
        .def_property_readonly("n_vocab", &Decoder::n_vocab)
        .def_property_readonly("num_decoded", &Decoder::num_decoded)
        .def_property_readonly("rollback", [](const Decoder & self) { return name_of(self.rollback()); })
        .def_property_readonly("batch_invariant", &Decoder::is_batch_invariant)
        .def_property_readonly("is_in_use", &Decoder::is_in_use)
        .def_property_readonly("num_cells", &Decoder::num_cells)
        .def_property_readonly("is_head", &Decoder::is_head)
        .def_property_readonly("can_copy", &Decoder::can_copy)
        .def_property_readonly("copies_ranges", &Decoder::copies_ranges)
        .def_property_readonly("needs_points", &Decoder::needs_points)
        .def("close", [](Decoder & self) {
            const Decoder::Use in_use(self);
            self.close();
        });
}

void bind_sequence_class(py::module_ & module) {
    py::class_<Sequence, std::shared_ptr<Sequence>>(module, "Sequence",
                                                    "One sequence of a decoder, and the tokens that its memory holds.")
        .def(py::init<std::shared_ptr<Decoder>, int32_t>(), py::arg("decoder"), py::arg("id"))
        .def_property_readonly(
            "decoder",
            [](const std::shared_ptr<Sequence> & self) { return std::shared_ptr<Decoder>(self, &self->decoder()); })
        .def_property_readonly("num_tokens", &Sequence::num_tokens)
        .def("tokens",
             [](const Sequence & self) {
                 const auto copy = [&self] {
                     const GilReleased released;  // a thread that holds the memory's lock may wait for the GIL
                     return self.copy_tokens();
                 };
                 return to_array(copy());
             })
        .def(
            "assume",
            [](Sequence & self, const Tokens & tokens) {
                std::vector<int32_t> held = to_vector(tokens);
                const GilReleased released;
                const Decoder::Use in_use(self.decoder());
                self.assume(std::move(held));
            },
            py::arg("tokens"))
        .def(
            "keep",
            [](Sequence & self, std::size_t count) {
                const GilReleased released;
                const Decoder::Use in_use(self.decoder());
                self.keep(count);
            },
            py::arg("count"))
        .def("save",
             [](Sequence & self) {
                 const Decoder::Use in_use(self.decoder());
                 self.save(1);
             })
        .def(
            "borrow",
            [](Sequence & self, const Tokens & history) {
                const std::vector<int32_t> wanted = to_vector(history);
                const GilReleased released;
                const Decoder::Use in_use(self.decoder());
                self.borrow(wanted);
            },
            py::arg("history"))
        .def("copy_range", &copy_range, py::arg("first"), py::arg("end"))
        .def("put_range", &put_range, py::arg("data"), py::arg("tokens"))
        .def("copy_point", &copy_point, py::arg("count"))
        .def("put_point", &put_point, py::arg("data"), py::arg("tokens"))
        .def_property_readonly("copied_points", &Sequence::copied_points)
        .def("decode", &decode, py::arg("tokens"), py::arg("first_output"), py::arg("listed") = py::none(),
             py::arg("keeps_states") = false)
        .def("states", &states, py::arg("count"))
        .def("logits", &logits, py::arg("i"));
}

}  // namespace

void bind_decoders(py::module_ & module) {
    interpreter_thread = py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
    Interruption::nobody_waits = &nobody_waits;
    module.attr("FIRST_EMBEDDING") = first_embedding;
    bind_taps(module);
    bind_decoder_class(module);
    bind_sequence_class(module);
}

}  // namespace specllama
