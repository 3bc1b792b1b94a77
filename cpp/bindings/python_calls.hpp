// Python's lock, given up and taken back, and Python functions that are called from a round, which runs without it.
//
// From the end of the interpreter on, a thread that wants the lock never gets it. Up to 3.13 Python ends it by
// pthread_exit, whose unwinding no destructor may let through and no catch (...) may keep: the process would abort.
// From 3.14 on it never returns, and that is what all versions do here: the thread stays where it is, with all it
// holds.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

namespace specllama {

[[noreturn]] inline void stay_for_good() {
    for (;;) {
        std::this_thread::sleep_for(std::chrono::hours(1));
    }
}

// Whether the interpreter ends, or has ended. Needs no lock.
inline bool python_ends() { return Py_IsInitialized() == 0; }

// A block without the lock.
class GilReleased {
public:
    GilReleased() : state_(PyEval_SaveThread()) {}
    GilReleased(const GilReleased &) = delete;
    GilReleased & operator=(const GilReleased &) = delete;
    ~GilReleased() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            stay_for_good();
        }
    }

private:
    PyThreadState * state_;
};

// Not for a constructor: pybind11 would enter the new object in its table of all objects without the GIL.
using ReleaseGil = pybind11::call_guard<GilReleased>;

// A block with the lock, on any thread.
class GilHeld {
public:
    GilHeld() {
        if (python_ends() && PyGILState_GetThisThreadState() == nullptr) {
            stay_for_good();  // Python knows nothing of this thread, and there is nothing left to make it known to
        }
        try {
            gil_.emplace();
        } catch (...) {
            stay_for_good();
        }
    }

private:
    std::optional<pybind11::gil_scoped_acquire> gil_;
};

// A Python function that may be let go of by a thread without the GIL.
struct OwnedByPython {
    explicit OwnedByPython(pybind11::object given) : function(std::move(given)) {}
    OwnedByPython(const OwnedByPython &) = delete;
    OwnedByPython & operator=(const OwnedByPython &) = delete;
    ~OwnedByPython() {
        const GilHeld gil;
        function = pybind11::object();
    }
    pybind11::object function;
};

// Calls a Python function, with the lock. Python may end the thread within, as it ends one that wants the lock.
template <typename... Arguments>
pybind11::object called(const pybind11::object & function, Arguments &&... arguments) {
    const pybind11::tuple given = pybind11::make_tuple(std::forward<Arguments>(arguments)...);
    PyObject * result = nullptr;
    try {
        result = PyObject_CallObject(function.ptr(), given.ptr());
    } catch (...) {
        stay_for_good();
    }
    if (result == nullptr) {
        throw pybind11::error_already_set();
    }
    return pybind11::reinterpret_steal<pybind11::object>(result);
}

// Ctrl-C in a drafter and any error in a logits processor end the round, where an error would only end the drafting: no
// std::exception, which is caught.
struct PythonError {
    pybind11::error_already_set error;
};

// Does with the lock what may run code of Python's.
template <typename Call>
auto with_gil(Call call) {
    const GilHeld gil;
    try {
        return call();
    } catch (const pybind11::error_already_set & error) {
        throw PythonError{error};  // NOLINT(bugprone-std-exception-baseclass): so that it is not caught
#ifdef __GLIBCXX__
    } catch (const abi::__forced_unwind &) {
        stay_for_good();
#endif
    }
}

// Does without the lock what a Python function may end.
template <typename Call>
auto without_gil(Call call) {
    try {
        const GilReleased released;
        return call();
    } catch (const PythonError & raised) {
        throw raised.error;
    }
}

}  // namespace specllama
