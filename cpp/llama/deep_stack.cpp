// A thread with a stack of a given size.
#include "llama/deep_stack.hpp"

#include <csignal>
#include <exception>
#include <new>

#ifndef _WIN32
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace specllama {

#ifdef _WIN32

bool has_deep_stacks() { return false; }

std::size_t on_stack(std::size_t /*bytes*/, bool /*measure*/, const std::function<void()> & work) {
    work();
    return 0;
}

#else

namespace {

struct Job {
    const std::function<void()> & work;
    std::exception_ptr error;
};

void * run_job(void * data) {
    auto * job = static_cast<Job *>(data);
    try {
        job->work();
    } catch (...) {
        job->error = std::current_exception();
    }
    return nullptr;
}

// Pages for a stack. The lowest one is protected: an overflow ends the process instead of writing elsewhere.
class Pages {
public:
    explicit Pages(std::size_t bytes) : guard_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
        size_ = (bytes + 2 * guard_ - 1) / guard_ * guard_;
        int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
        flags |= MAP_NORESERVE;
#endif
        void * found = mmap(nullptr, size_, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (found == MAP_FAILED) {
            throw std::bad_alloc();
        }
        at_ = static_cast<char *>(found);
        if (mprotect(at_, guard_, PROT_NONE) != 0) {
            munmap(at_, size_);
            throw std::bad_alloc();
        }
    }
    ~Pages() { munmap(at_, size_); }
    Pages(const Pages &) = delete;
    Pages & operator=(const Pages &) = delete;

    char * begin() const { return at_ + guard_; }
    std::size_t size() const { return size_ - guard_; }

    // Stacks grow downwards, and the pages were zero at first. The used part ends where 64 KiB are still zero.
    std::size_t used() const {
        constexpr std::size_t gap = std::size_t{64} << 10;
        const char * end = begin() + size();
        const char * lowest = end;
        for (const char * at = end; at != begin() && static_cast<std::size_t>(lowest - at) < gap;) {
            if (*--at != 0) {
                lowest = at;
            }
        }
        return static_cast<std::size_t>(end - lowest);
    }

private:
    std::size_t guard_;
    std::size_t size_ = 0;
    char * at_ = nullptr;
};

// Blocks all signals while it lives: a thread created meanwhile inherits the blocking, and leaves signals to Python's
// threads.
class BlockedSignals {
public:
    BlockedSignals() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    BlockedSignals(const BlockedSignals &) = delete;
    BlockedSignals & operator=(const BlockedSignals &) = delete;

private:
    sigset_t before_{};
};

void start(pthread_t * thread, const Pages & pages, Job * job) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    int failed = pthread_attr_setstack(&attributes, pages.begin(), pages.size());
    if (failed == 0) {
        const BlockedSignals blocked;
        failed = pthread_create(thread, &attributes, &run_job, job);
    }
    pthread_attr_destroy(&attributes);
    if (failed != 0) {
        throw std::bad_alloc();
    }
}

}  // namespace

bool has_deep_stacks() { return true; }

std::size_t on_stack(std::size_t bytes, bool measure, const std::function<void()> & work) {
    const Pages pages(bytes);
    Job job{work, nullptr};
    pthread_t thread{};
    start(&thread, pages, &job);
    pthread_join(thread, nullptr);
    if (job.error) {
        std::rethrow_exception(job.error);
    }
    return measure ? pages.used() : 0;
}

#endif

}  // namespace specllama
