// What a decoder and the kernels tell each other about the decode of this thread. Neither knows the other.
#pragma once

#include <cstdint>

namespace specllama {

// Whether what is computed comes out the same, to the last bit, in any batch. The kernels' side says what it sees while
// llama.cpp plans a graph; a decoder asks after a decode.
struct OperationsSeen {
    bool ours = false;     // products whose results do not depend on the batch
    bool foreign = false;  // operations of llama.cpp's whose results may
};

inline thread_local OperationsSeen operations_seen;

// Which rows of its output matrix the decode needs. A decoder says it before. ggml's first thread is the one that
// decodes; it tells the others within the one product (see Product). So no decode of another context, in whatever
// thread, can see what this one wants.
struct WantedPanels {
    const int32_t * panels = nullptr;  // [count], ascending: the numbers of panels, of kPanelRows rows each
    int64_t count = 0;
    int64_t num_rows = 0;  // of the whole matrix; 0: it may have any number
    bool heeded = false;   // no other row was computed: there is no logit where it would be
};

inline thread_local WantedPanels * wanted_panels = nullptr;  // null: all rows

// For as long as it is there, what this thread decodes needs these; null: all rows.
class PanelsOfThread {
public:
    explicit PanelsOfThread(WantedPanels * wanted) : before_(wanted_panels) { wanted_panels = wanted; }
    ~PanelsOfThread() { wanted_panels = before_; }
    PanelsOfThread(const PanelsOfThread &) = delete;
    PanelsOfThread & operator=(const PanelsOfThread &) = delete;

private:
    WantedPanels * before_;
};

}  // namespace specllama
