// The sampler chain's parameters, and their descriptions for Python.
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>

#include "bindings/bindings.hpp"
#include "bindings/result_struct.hpp"
#include "math/sampler_params.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

[[noreturn]] void refuse_type(const std::string & name, const py::handle & value, bool is_whole) {
    const std::string given = py::repr(value);
    throw py::type_error(name + "=" + given + " must be a " + (is_whole ? "whole number" : "number"));
}

void set(SamplerParams & params, const std::string & key, const py::handle & value) {
#define SPECLLAMA_SET(type, name, ...)                          \
    if (key == #name) {                                         \
        try {                                                   \
            params.name = value.cast<type>();                   \
        } catch (const py::cast_error &) {                      \
            refuse_type(key, value, std::is_same_v<type, int>); \
        }                                                       \
        return;                                                 \
    }
    SPECLLAMA_SAMPLERS(SPECLLAMA_SET)
#undef SPECLLAMA_SET
    throw py::type_error("the sampler chain has no parameter " + key);
}

SamplerParams make_params(const std::map<int32_t, float> & logit_bias, std::shared_ptr<SequenceBreakers> dry_breakers,
                          std::vector<int32_t> dry_prompt, const py::kwargs & numbers) {
    SamplerParams params;
    for (const auto & [key, value] : numbers) {
        set(params, key.cast<std::string>(), value);
    }
    params.logit_bias.assign(logit_bias.begin(), logit_bias.end());
    params.dry_breakers = std::move(dry_breakers);
    params.dry_prompt = std::move(dry_prompt);
    params.validate();
    return params;
}

py::object initial(const SamplerAbout & self) {
    return self.is_whole ? py::object(py::int_(static_cast<int>(self.initial))) : py::object(py::float_(self.initial));
}

}  // namespace

void bind_samplers(py::module_ & module) {
    const py::class_<SequenceBreakers, std::shared_ptr<SequenceBreakers>> breakers(
        module, "SequenceBreakers", "The tokens after which DRY counts a repetition anew.");
    py::class_<SamplerParams>(
        module, "SamplerParams",
        "The parameters of the sampler chain. The numbers are named in cpp/math/sampler_params.hpp.")
        .def(py::init(&make_params), py::kw_only(), py::arg("logit_bias") = std::map<int32_t, float>(),
             py::arg("dry_breakers") = nullptr, py::arg("dry_prompt") = std::vector<int32_t>());
    ResultStruct<SamplerAbout>(module, "Sampler", "A parameter of a sampler that llama-server has and llama_cpp lacks.")
        .field(
            "name", [](const SamplerAbout & self) { return self.name; }, "The argument's name.")
        .field("default", &initial, "The default: an int if the parameter must be a whole number, else a float.")
        .field(
            "switches", [](const SamplerAbout & self) { return self.switches; },
            "Whether a value above 0 turns the sampler on.")
        .field(
            "option", [](const SamplerAbout & self) { return self.option; }, "llama.cpp's command-line option for it.")
        .field("summary", [](const SamplerAbout & self) { return self.summary; }, "What the parameter does.");
    module.def("server_samplers", &server_samplers,
               "Returns the parameters of llama-server's samplers. All of these samplers are off by default.");
}

}  // namespace specllama
