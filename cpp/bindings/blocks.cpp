// Records which threads are in a block of Python code, for callers that must not enter the block, or must not free what
// the block uses, while another thread is in the block.
#include <algorithm>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "bindings/bindings.hpp"
#include "bindings/python_calls.hpp"

namespace py = pybind11;

namespace specllama {

namespace {

// Records which threads are in a block; a thread that entered several times is recorded as many times. The GIL guards
// the record.
//
// For Python, entering and leaving are one step each: the exception of a signal comes before or after the step. In a
// Python function the exception could come in the middle, too, and a thread that has left would stay recorded.
class Block {
public:
    explicit Block(py::object refuse) : refuse_(std::move(refuse)) {}

    void refuse_by(py::object refuse) { refuse_ = std::move(refuse); }

    void enter() {
        if (!refuse_.is_none() && has_others()) {
            called(refuse_);
        }
        threads_.push_back(std::this_thread::get_id());
    }

    void leave() {
        const auto found = std::find(threads_.begin(), threads_.end(), std::this_thread::get_id());
        if (found != threads_.end()) {  // absent if another thread entered: a generator can end in a different thread
            threads_.erase(found);
        }
    }

    std::size_t depth() const {
        return static_cast<std::size_t>(std::count(threads_.begin(), threads_.end(), std::this_thread::get_id()));
    }

    bool has_others() const { return depth() < threads_.size(); }

    void leave_parent() { threads_.assign(depth(), std::this_thread::get_id()); }

private:
    py::object refuse_;
    std::vector<std::thread::id> threads_;
};

}  // namespace

void bind_blocks(py::module_ & module) {
    py::class_<Block>(module, "Block", "Records which threads are in a block of Python code.")
        .def(py::init<py::object>(), py::arg("refuse") = py::none())
        .def("refuse_by", &Block::refuse_by, py::arg("refuse"))
        .def("__enter__", &Block::enter)
        .def("__exit__", [](Block & self, const py::args &) { self.leave(); })
        .def_property_readonly("depth", &Block::depth)
        .def_property_readonly("has_others", &Block::has_others)
        .def("leave_parent", &Block::leave_parent);
}

}  // namespace specllama
