#include "ggml_plugin/memory_pages.hpp"

#if defined(__linux__)

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <ios>
#include <limits>
#include <string>

namespace specllama {

namespace {

struct Pages {
    std::uintptr_t begin;
    std::uintptr_t end;
};

Pages pages_within(const void * data, std::size_t size) {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    return {(begin + page - 1) / page * page, (begin + size) / page * page};
}

// Gives the system a hint. Errors are ignored: the pages stay as they are then.
void advise(Pages pages, int advice) {
    if (pages.begin < pages.end) {
        madvise(reinterpret_cast<void *>(pages.begin), pages.end - pages.begin, advice);
    }
}

}  // namespace

// MADV_DONTNEED would empty private memory, such as a buffer that a file was read into. So it is used for shared
// mappings only: their content is in the file, and cannot be lost. The list of mappings is read anew for each tensor.
// The list may change meanwhile, but not for the memory that holds the caller's data.
void let_go_of_file(const void * data, std::size_t size) {
    const Pages pages = pages_within(data, size);
    std::ifstream mappings("/proc/self/maps");
    Pages mapping{};
    char dash = 0;
    std::string permissions;  // such as "r--s"
    while (mappings >> std::hex >> mapping.begin >> dash >> mapping.end >> permissions) {
        mappings.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
        const Pages both{std::max(pages.begin, mapping.begin), std::min(pages.end, mapping.end)};
        if (permissions.back() == 's' && both.begin < both.end) {
            // Without this advice, reading a norm between two weights would load a large page with 2 MiB of the weights
            // again.
            advise(mapping, MADV_NOHUGEPAGE);
            advise(both, MADV_DONTNEED);
        }
    }
}

void prefer_large_pages(void * data, std::size_t size) { advise(pages_within(data, size), MADV_HUGEPAGE); }

}  // namespace specllama

#else

namespace specllama {

void let_go_of_file(const void * /*data*/, std::size_t /*size*/) {}

void prefer_large_pages(void * /*data*/, std::size_t /*size*/) {}

}  // namespace specllama

#endif
