// What a decoder and the kernels tell each other about the decode of this thread. Neither includes the other.
#pragma once

#include <cstdint>

namespace specllama {

// Which operations a graph has. They say whether its results are the same, to the last bit, in any batch. The kernels'
// side records what it sees while llama.cpp plans a graph; a decoder reads it after a decode.
struct OperationsSeen {
    bool ours = false;     // products of ours, whose results do not depend on the batch
    bool foreign = false;  // operations of llama.cpp whose results may depend on it
};

inline thread_local OperationsSeen operations_seen;

// Which rows of its output matrix a decode needs. A decoder sets this before the decode. ggml's first thread is the
// thread that decodes, and it tells the other threads within the product (see Product). So a decode of another context,
// in any thread, never sees what this decode wants.
struct WantedPanels {
    const int32_t * panels = nullptr;  // [count], ascending: the numbers of panels, of kPanelRows rows each
    int64_t count = 0;
    int64_t num_rows = 0;     // rows of the whole matrix; 0: any number
    bool was_obeyed = false;  // set if only these rows were computed: the other logits were not written then
};

inline thread_local WantedPanels * wanted_panels = nullptr;  // null: all rows

// Sets what the decodes of this thread need, as long as this object lives; null: all rows.
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
