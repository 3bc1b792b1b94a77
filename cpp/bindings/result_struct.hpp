// A read-only struct for Python. Its fields have documentation, and its repr shows all of them.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace specllama {

template <typename T>
class ResultStruct {
public:
    ResultStruct(pybind11::handle scope, const char * name, const char * documentation)
        : class_(scope, name, documentation) {
        class_.def("__repr__", [names = names_](const pybind11::object & self) {
            std::string text = pybind11::str(pybind11::type::of(self).attr("__name__"));
            std::string separator = "(";
            for (const char * field : *names) {
                text += separator + field + "=" + std::string(pybind11::repr(self.attr(field)));
                separator = ", ";
            }
            return text + ")";
        });
    }

    // get: a member of T, or a function that takes a T.
    template <typename Get>
    ResultStruct & field(const char * name, Get get, const char * documentation) {
        names_->push_back(name);
        if constexpr (std::is_member_object_pointer_v<Get>) {
            class_.def_readonly(name, get, documentation);
        } else {
            class_.def_property_readonly(name, std::move(get), documentation);
        }
        return *this;
    }

    pybind11::class_<T> & type() { return class_; }

private:
    std::shared_ptr<std::vector<const char *>> names_ = std::make_shared<std::vector<const char *>>();
    pybind11::class_<T> class_;
};

}  // namespace specllama
