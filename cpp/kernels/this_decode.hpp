// What a decoder and the kernels tell each other about the decode of this thread. Neither includes the other's headers.
#pragma once

#include <cstdint>

namespace specllama {

// Which operations a graph has. They decide whether the graph's results are the same, to the last bit, in any batch.
// The kernels' side records them while llama.cpp plans a graph; a decoder reads the record after a decode.
struct OperationsSeen {
    bool ours = false;     // products by our kernels, whose results do not depend on the batch
    bool foreign = false;  // operations of llama.cpp whose results may depend on the batch
};

inline thread_local OperationsSeen operations_seen;

// Which rows of the model's output matrix a decode needs. A decoder sets this before the decode. ggml's first thread is
// the thread that decodes, and it passes this on to the other threads within the product (see Product). So a decode of
// another context, in any thread, never sees what this decode wants.
struct WantedPanels {
    const int32_t * panels = nullptr;  // [count], ascending: the numbers of panels, of kPanelRows rows each
    int64_t count = 0;
    int64_t num_rows = 0;     // rows of the whole matrix; 0: any number
    bool was_obeyed = false;  // set if only these rows were computed: the other logits were not written then
};

inline thread_local WantedPanels * wanted_panels = nullptr;  // null: all rows

// Sets wanted_panels for the decodes of this thread, as long as this object lives.
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
