// Reads and changes ggml's list of buffer types in place.
#include "ggml_plugin/extra_buffer_types.hpp"

#include <stdexcept>

namespace specllama {

namespace {

// ggml's std::vector has the layout that this code expects if both use one C++ library and one calling convention.
#if defined(__linux__) && defined(__x86_64__) && defined(__GLIBCXX__)
constexpr bool kKnowsVectors = true;
#else
constexpr bool kKnowsVectors = false;
#endif

}  // namespace

ExtraBufferTypes::ExtraBufferTypes(const Addresses & addresses)
    : list_(kKnowsVectors ? reinterpret_cast<decltype(list_)>(addresses.list) : nullptr),
      offered_(reinterpret_cast<decltype(offered_)>(addresses.offered)),
      name_(reinterpret_cast<decltype(name_)>(addresses.name)),
      device_(reinterpret_cast<void *>(addresses.device)) {
    if (offered_ == nullptr || name_ == nullptr || device_ == nullptr) {
        throw std::invalid_argument("a function of ggml, or its CPU device, has the address 0");
    }
}

bool ExtraBufferTypes::has_list() const { return list_ != nullptr; }

std::vector<std::string> ExtraBufferTypes::names() const {
    if (list_ == nullptr) {
        return offered();
    }
    std::vector<std::string> names;
    for (const Type type : list_()) {
        names.push_back(name_of(type));
    }
    return names;
}

std::vector<std::string> ExtraBufferTypes::offered() const {
    std::vector<std::string> names;
    for (const Type * type = offered_types(); type != nullptr && *type != nullptr; ++type) {
        names.push_back(name_of(*type));
    }
    return names;
}

bool ExtraBufferTypes::remove(const std::string & name) {
    Type * types = offered_types();
    if (types == nullptr) {
        return false;
    }
    Type * kept = types;
    for (const Type * type = types; *type != nullptr; ++type) {
        if (name_of(*type) != name) {
            *kept++ = *type;
        }
    }
    const bool removed = *kept != nullptr;
    *kept = nullptr;
    return removed;
}

ExtraBufferTypes::Type * ExtraBufferTypes::offered_types() const { return offered_(device_); }

std::string ExtraBufferTypes::name_of(Type type) const {
    const char * name = name_(type);
    return name == nullptr ? "" : name;
}

}  // namespace specllama
