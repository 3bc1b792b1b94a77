// Hints to the system about the pages that weights are in. Where a system takes no hints, these functions do nothing.
#pragma once

#include <cstddef>

namespace specllama {

// Releases the whole pages in this range that are a shared mapping of a file. If they are read again, the same data
// comes from the system's cache of the file. Other memory is left as it is.
void let_go_of_file(const void * data, std::size_t size);

// Asks for large pages in a range that will be written from end to end. The system has fewer large pages to clear than
// small ones, and the processor translates their addresses faster.
void prefer_large_pages(void * data, std::size_t size);

}  // namespace specllama
