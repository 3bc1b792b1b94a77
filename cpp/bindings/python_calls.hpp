// Releases and takes Python's lock (the GIL), and calls Python functions from a round, which runs without the lock.
//
// When the interpreter ends, a thread that wants the lock never gets it. Up to Python 3.13, the thread is ended by
// pthread_exit. If this unwinds through a destructor or a catch (...), the process aborts. From 3.14 on, the call never
// returns. This file does the same for all versions: the thread sleeps for good, and keeps all that it holds.
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

// Whether the interpreter is ending, or has ended. The lock is not needed.
inline bool python_ends() { return Py_IsInitialized() == 0; }

// Releases the lock as long as this object lives.
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

// A guard for functions that run without the lock. It must not be used for a constructor: pybind11 would enter the new
// object in its table of all objects without the lock.
using ReleaseGil = pybind11::call_guard<GilReleased>;

// Holds the lock as long as this object lives, in any thread.
class GilHeld {
public:
    GilHeld() {
        if (python_ends() && PyGILState_GetThisThreadState() == nullptr) {
            stay_for_good();  // Python does not know this thread, and registers no more threads
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

// A reference to a Python object. The thread that drops it need not hold the lock.
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

// Calls a Python function; the lock must be held. If the interpreter ends during the call, Python may end this thread
// as described at the top of this file.
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

// An exception of Python that ends the round: Ctrl-C in a drafter, or any error in a logits processor. It is no
// std::exception: if a drafter throws a std::exception, the loop catches it, ends the drafting, and goes on.
struct PythonError {
    pybind11::error_already_set error;
};

// Calls call() with the lock, for code that may run Python. A Python exception becomes a PythonError.
template <typename Call>
auto with_gil(Call call) {
    const GilHeld gil;
    try {
        return call();
    } catch (const pybind11::error_already_set & error) {
        throw PythonError{error};  // NOLINT(bugprone-std-exception-baseclass): so that the loop does not catch it
#ifdef __GLIBCXX__
    } catch (const abi::__forced_unwind &) {
        stay_for_good();
#endif
    }
}

// Calls call() without the lock. A PythonError becomes the Python exception again.
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
