// What the system is told about the pages that weights are in. Nothing happens where it cannot be told.
#pragma once

#include <cstddef>

namespace specllama {

// Lets go of the whole pages of a file that lie in this range, as far as the process has the file mapped there. What
// is read again afterwards is the same, and comes from the system's cache of the file. Other memory is left as it is.
void let_go_of_file(const void * data, std::size_t size);

// Asks for large pages in a range that will be written from end to end: there are fewer of them to make empty, and a
// processor finds their addresses sooner.
void prefer_large_pages(void * data, std::size_t size);

}  // namespace specllama
