// Whether what this thread has llama.cpp compute comes out the same, to the last bit, in any batch.
//
// The kernels' side says what it sees while llama.cpp plans a graph; a decoder asks after a decode. Neither knows the
// other.
#pragma once

namespace specllama {

struct OperationsSeen {
    bool ours = false;     // products whose results do not depend on the batch
    bool foreign = false;  // operations of llama.cpp's whose results may
};

inline thread_local OperationsSeen operations_seen;

}  // namespace specllama
