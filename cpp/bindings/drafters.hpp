// How Python makes drafters: the class Drafter has a static method for each line of the table in drafters/source.hpp.
// Each method is in a file of its own.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "drafters/drafter.hpp"

namespace specllama {

using DrafterClass = pybind11::class_<Drafter, std::shared_ptr<Drafter>>;

#define SPECLLAMA_BIND(name, origin, summary) \
    void bind_##name##_drafter(pybind11::module_ & module, DrafterClass & drafter);
SPECLLAMA_DRAFTERS(SPECLLAMA_BIND)
#undef SPECLLAMA_BIND

template <typename Kind, typename... Parts>
std::shared_ptr<Drafter> made(const Parts &... parts) {
    return std::make_shared<Kind>(parts...);
}

}  // namespace specllama
