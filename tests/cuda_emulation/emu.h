/* Runs CUDA kernels on a CPU: a thread block's threads are fibers that switch at barriers and warp operations.
 *
 * For tests of what kernels compute, not of how they synchronise: blocks run one after the other, and fibers never run
 * at the same time, so races do not show here (compute-sanitizer finds them on a GPU).
 */
#pragma once
#define NVCKPT_EMULATED
#include <setjmp.h>
#include <ucontext.h>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __shared__ static
#define __launch_bounds__(...)

struct uint2 { uint32_t x, y; };
struct uint4 { uint32_t x, y, z, w; };
static inline uint2 make_uint2(uint32_t a, uint32_t b) { return {a, b}; }
static inline uint4 make_uint4(uint32_t a, uint32_t b, uint32_t c, uint32_t d) { return {a, b, c, d}; }
struct Dimensions { unsigned x; };

namespace emulated {
/* A context is made once; from then on jumps, which need no system call */
struct Fiber { ucontext_t context; jmp_buf place; bool started, done; char* stack; };
struct Barrier { unsigned waiting = 0, generation = 0; };
static jmp_buf scheduler;
static std::vector<Fiber> fibers;
static unsigned current;
static std::function<void()> body;
static Barrier block_barrier;
static std::vector<Barrier> warp_barriers;
static uint32_t exchanged[32][32];
static char* dynamic_shared;

static void wait(Barrier& barrier, unsigned all) {
    unsigned generation = barrier.generation;
    if (++barrier.waiting == all) {
        barrier.waiting = 0;
        barrier.generation++;
        return;
    }
    while (barrier.generation == generation)
        if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1);
}
/* A fiber does its thread of one block after the other. */
static void run() {
    for (;;) {
        body();
        fibers[current].done = true;
        if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1);
    }
}
static void resume(Fiber& fiber) {
    if (_setjmp(scheduler)) return;
    if (fiber.started) _longjmp(fiber.place, 1);
    fiber.started = true;
    setcontext(&fiber.context);
}
}
static Dimensions blockIdx, blockDim, gridDim;
#define threadIdx (Dimensions{emulated::current})

static inline void __syncthreads() { emulated::wait(emulated::block_barrier, blockDim.x); }
static inline void __syncwarp(unsigned = ~0u) { emulated::wait(emulated::warp_barriers[threadIdx.x / 32], 32); }
/* Every lane gives a value and gets f(all values, lane) */
template <class F> static auto warp_operation(uint32_t value, F f) {
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    emulated::exchanged[warp][lane] = value;
    __syncwarp();
    auto result = f(emulated::exchanged[warp], lane);
    __syncwarp();
    return result;
}
static inline unsigned __ballot_sync(unsigned, int p) {
    return warp_operation(p != 0, [](uint32_t* v, unsigned) { unsigned r = 0; for (int i = 0; i < 32; i++) r |= v[i] << i; return r; });
}
static inline bool __any_sync(unsigned, int p) { return __ballot_sync(~0u, p) != 0; }
static inline unsigned __shfl_sync(unsigned, unsigned v, int from) { return warp_operation(v, [=](uint32_t* all, unsigned) { return all[from & 31]; }); }
static inline unsigned __shfl_up_sync(unsigned, unsigned v, int d) { return warp_operation(v, [=](uint32_t* all, unsigned l) { return all[l >= (unsigned)d ? l - d : l]; }); }
static inline unsigned __shfl_xor_sync(unsigned, unsigned v, int d) { return warp_operation(v, [=](uint32_t* all, unsigned l) { return all[l ^ d]; }); }
static inline unsigned __match_any_sync(unsigned, unsigned v) { return warp_operation(v, [](uint32_t* all, unsigned l) { unsigned r = 0; for (int i = 0; i < 32; i++) r |= (unsigned)(all[i] == all[l]) << i; return r; }); }
static inline unsigned __reduce_add_sync(unsigned, unsigned v) { return warp_operation(v, [](uint32_t* all, unsigned) { unsigned r = 0; for (int i = 0; i < 32; i++) r += all[i]; return r; }); }
static inline unsigned __reduce_max_sync(unsigned, unsigned v) { return warp_operation(v, [](uint32_t* all, unsigned) { unsigned r = 0; for (int i = 0; i < 32; i++) r = all[i] > r ? all[i] : r; return r; }); }
static inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t s) { return (uint32_t)((((uint64_t)high << 32 | low) << (s & 31)) >> 32); }
static inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t s) { return (uint32_t)(((uint64_t)high << 32 | low) >> (s & 31)); }
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    uint64_t v = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) r |= (uint32_t)(v >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return r;
}
static inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint64_t)a * b >> 32; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double a) { return sqrt(a); }
static inline long long __double_as_longlong(double a) { long long r; memcpy(&r, &a, 8); return r; }
static inline double __longlong_as_double(long long a) { double r; memcpy(&r, &a, 8); return r; }
static inline float __uint_as_float(unsigned a) { float r; memcpy(&r, &a, 4); return r; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
template <class T> static inline T atomicAdd(T* p, T v) { T old = *p; *p = old + v; return old; }
template <class T> static inline T atomicMax(T* p, T v) { T old = *p; *p = old > v ? old : v; return old; }
template <class T> static inline T atomicOr(T* p, T v) { T old = *p; *p = old | v; return old; }

namespace emulated {
static void launch(unsigned grid, unsigned threads, size_t shared) {
    blockDim = {threads}, gridDim = {grid};
    dynamic_shared = (char*)aligned_alloc(128, (shared + 255) / 128 * 128);
    for (unsigned b = 0; b < grid; b++) {
        blockIdx = {b};
        memset(dynamic_shared, 0xA5, shared);
        block_barrier = {};
        warp_barriers.assign((threads + 31) / 32, {});
        if (fibers.size() < threads) fibers.resize(threads);
        for (unsigned t = 0; t < threads; t++) {
            Fiber& f = fibers[t];
            f.done = false;
            if (f.stack) continue;
            f.stack = (char*)malloc(1 << 16);
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = f.stack, f.context.uc_stack.ss_size = 1 << 16, f.context.uc_link = nullptr;
            makecontext(&f.context, run, 0);
        }
        for (bool any = true; any;) {
            any = false;
            for (unsigned t = 0; t < threads; t++)
                if (!fibers[t].done) {
                    any = true, current = t;
                    resume(fibers[t]);
                }
        }
    }
    free(dynamic_shared);
}
template <class T> static T argument(uint64_t v) { if constexpr (std::is_pointer_v<T>) return (T)(uintptr_t)v; else return (T)v; }
template <class... A, size_t... I>
static void start(void (*kernel)(A...), unsigned grid, unsigned threads, size_t shared, const uint64_t* a, std::index_sequence<I...>) {
    body = [=] { kernel(emulated::argument<A>(a[I])...); };
    launch(grid, threads, shared);
}
template <class... A> static void start(void (*kernel)(A...), unsigned grid, unsigned threads, size_t shared, const uint64_t* a) {
    start(kernel, grid, threads, shared, a, std::index_sequence_for<A...>{});
}
}
/* A C function that ctypes can call, for one kernel */
#define EMULATE(kernel) \
    extern "C" void emulate_##kernel(unsigned grid, unsigned threads, size_t shared, const uint64_t* arguments) { \
        emulated::start(kernel, grid, threads, shared, arguments); \
    }
