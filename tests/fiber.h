/*: # A grid of fibers

No card is needed to run the kernels. A CUDA thread is a function call with its own stack and a name, `threadIdx`;
this header gives every thread of the grid a stack of its own on one CPU core, a **fiber**, and lets them
take turns. The kernels' text is the same for both compilers:

    #ifdef __CUDACC__
    #include <cuda_runtime.h>
    #else
    #include "fiber.h"
    #endif

    g++ -std=c++17 -O1 -g -Wno-unknown-pragmas -x c++ tiles_kernel.cu

It is slow and it is worth it. Continuous integration runs the kernels on any machine; AddressSanitizer sees each access
to global and shared memory, UndefinedBehaviorSanitizer each shift and each misaligned vector load; and a debugger
steps through a kernel: `break gemv_dot if threadIdx.x == 3 && blockIdx.x == 1`.

A fiber runs until it must wait or polls a flag, then another runs. *Which* other is a choice, and no correct kernel
may depend on it. So the choice is ours to vary: in order, in reverse order, or at random with a seed. A barrier that was
forgotten shows as a result that differs between orders: often it never would on a card, where neighbours run
nearly in step. What can't show here is the other half of
a GPU's freedom: its memory lets a store be seen later than the next one. Fibers share one core, so every store is seen at once and a
missing *fence* is never caught. Fences are argued for in the text, barriers are tested here.

What is provided, all under CUDA's own names:

| | |
|---|---|
| qualifiers | `__global__ __device__ __host__ __constant__ __forceinline__ __noinline__ __launch_bounds__ __grid_constant__ __align__ __restrict__` |
| indices | `threadIdx blockIdx blockDim gridDim warpSize`; grids and blocks have one dimension |
| types | `dim3 uint3 int2 int4 uint2 uint4 float2 float4` and their `make_` functions |
| block | `__syncthreads __syncthreads_or __syncthreads_and __syncthreads_count bar_sync bar_sync_or bar_arrive DYNAMIC_SHARED` |
| warp | `__syncwarp __shfl_sync __shfl_xor_sync __shfl_up_sync __shfl_down_sync __ballot_sync __any_sync __all_sync __activemask` |
| memory | `load_stream load_l2 store_l2 load_acquire store_release load_relaxed load_relaxed4 load_relaxed64 store_relaxed store_relaxed64 load_shared_acquire store_shared_release add_shared_release add_release atomic_add_acq_rel fence_gpu __threadfence __threadfence_block __ldg __ldcg __stcg` |
| copies | `mbarrier_init mbarrier_init_fence mbarrier_arrive mbarrier_expect mbarrier_test bulk_copy fence_async_proxy fence_async_shared tape_begin tape_copy tape_copy_rows tape_end TAPE_FULL_ARRIVALS` |
| time | `global_nanoseconds nanosleep_short __nanosleep __trap` |
| numbers | `f16_to_float float_to_f16 __float_as_uint __uint_as_float __float_as_int __int_as_float rsqrtf __expf __logf __sinf __cosf __fdividef __fmaf_rn __fmul_rn __fadd_rn min max __popc __clz __ffs`, and all of `<math.h>` |
| launch | `launch_cooperative cudaLaunchCooperativeKernel cudaLaunchKernel` (the last two with the kernel itself, not cast to a pointer) |
| kernel | `cudaFuncSetAttribute cudaFuncGetAttributes cudaOccupancyMaxActiveBlocksPerMultiprocessor` |
| device | `cudaGetDeviceCount cudaGetDevice cudaSetDevice cudaGetDeviceProperties cudaDeviceGetAttribute cudaMemGetInfo cudaDriverGetVersion cudaRuntimeGetVersion cudaDeviceSynchronize cudaDeviceReset` |
| memory | `cudaMalloc cudaFree cudaMallocHost cudaHostAlloc cudaFreeHost cudaHostGetDevicePointer cudaMemcpy cudaMemcpyAsync cudaMemset cudaMemsetAsync` |
| streams | `cudaStreamCreate cudaStreamCreateWithFlags cudaStreamDestroy cudaStreamSynchronize cudaStreamQuery cudaEventCreate cudaEventRecord cudaEventSynchronize cudaEventElapsedTime cudaEventDestroy` |
| graphs | `cudaStreamBeginCapture cudaStreamEndCapture cudaGraphInstantiateWithFlags cudaGraphLaunch cudaGraphGetNodes cudaGraphDestroy cudaGraphExecDestroy`, of launches that are not cooperative |
| errors | `cudaGetLastError cudaPeekAtLastError cudaGetErrorString cudaGetErrorName` |

Not provided: `<<<>>>`, and static `__shared__` (a compile error here: every fiber of every block would share it).
Barriers are stricter than a GPU's: a thread that has exited has not arrived. :*/
#ifndef FIBER_H
#define FIBER_H

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <functional>
#include <map>
#include <memory> // uses the word __noinline__, which becomes a macro below
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__) // gcc
#define FIBER_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) // clang
#define FIBER_ASAN
#endif
#endif
#ifdef FIBER_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(FIBER_UCONTEXT) && !(defined(__x86_64__) && defined(__ELF__))
#define FIBER_UCONTEXT
#endif
#ifdef FIBER_UCONTEXT
#include <ucontext.h>
#endif

/*: ## What the compiler must be told

Most of CUDA's words for a compiler mean nothing here. :*/
//> fiber_words
#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static_assert(false, "fiber.h has no static __shared__: use DYNAMIC_SHARED");

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
#define FIBER_VECTORS(T, pair, four)                                                               \
  struct alignas(8) pair {                                                                         \
    T x, y;                                                                                        \
  };                                                                                               \
  struct alignas(16) four {                                                                        \
    T x, y, z, w;                                                                                  \
  };                                                                                               \
  inline pair make_##pair(T x, T y) { return {x, y}; }                                             \
  inline four make_##four(T x, T y, T z, T w) { return {x, y, z, w}; }
FIBER_VECTORS(int, int2, int4)
FIBER_VECTORS(unsigned, uint2, uint4)
FIBER_VECTORS(float, float2, float4)

// Of the fiber that runs now; the scheduler sets them.
inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// With CUDA's numbers.
#define FIBER_ERRORS(E)                                                                            \
  E(Success, 0)                                                                                    \
  E(ErrorInvalidValue, 1)                                                                          \
  E(ErrorMemoryAllocation, 2)                                                                      \
  E(ErrorInvalidConfiguration, 9)                                                                  \
  E(ErrorInvalidDeviceFunction, 98)                                                                \
  E(ErrorNoDevice, 100)                                                                            \
  E(ErrorInvalidDevice, 101)                                                                       \
  E(ErrorInvalidResourceHandle, 400)                                                               \
  E(ErrorIllegalState, 401)                                                                        \
  E(ErrorNotReady, 600)                                                                            \
  E(ErrorLaunchOutOfResources, 701)                                                                \
  E(ErrorLaunchTimeout, 702)                                                                       \
  E(ErrorLaunchFailure, 719)                                                                       \
  E(ErrorCooperativeLaunchTooLarge, 720)                                                           \
  E(ErrorStreamCaptureUnsupported, 900)
#define FIBER_ERROR(name, number) cuda##name = number,
enum cudaError_t { FIBER_ERRORS(FIBER_ERROR) };
//< fiber_words

/*: ## The machine we pretend to be

Four SMs, so that a grid barrier has somebody to wait for. The environment can make it another machine. A
program can, too, between launches. :*/
//> fiber_settings
namespace fiber {

enum Order { FORWARD, REVERSE, RANDOM };
inline const char *const order_names[] = {"forward", "reverse", "random"};
// When a bulk copy lands: as the order has it, at once, or when nothing else can happen.
enum Copies { BY_ORDER, AT_ONCE, LATE };
inline const char *const copies_names[] = {"order", "now", "late"};

// A number, or one of three names, of which the first is the default.
inline uint64_t environment(const char *name, uint64_t otherwise, const char *const *names = NULL) {
  const char *text = getenv(name);
  if (!text || !*text) return otherwise;
  for (uint64_t i = 0; names && i < 3; i++)
    if (!strcmp(text, names[i])) return i;
  char *end;
  uint64_t value = strtoull(text, &end, 0);
  if (!names && !*end && *text != '-') return value;
  fprintf(stderr, "fiber: %s=%s is ignored: it is not ", name, text);
  if (names) fprintf(stderr, "%s, %s or %s\n", names[0], names[1], names[2]);
  else fprintf(stderr, "a number\n");
  return otherwise;
}

struct Settings {
  unsigned sms = (unsigned)environment("FIBER_SMS", 4);
  size_t memory = environment("FIBER_MEMORY", (size_t)8 << 30); // bytes of the device
  size_t shared = environment("FIBER_SHARED", 232448);          // bytes a block may have
  Order order = (Order)environment("FIBER_ORDER", FORWARD, order_names);
  Copies copies = (Copies)environment("FIBER_COPIES", BY_ORDER, copies_names);
  uint64_t seed = environment("FIBER_SEED", 1);
  uint64_t patience = environment("FIBER_PATIENCE", 100000000); // switches without a store
};
inline Settings settings;
//< fiber_settings

/*: ## Fibers

A fiber that does not run is a stack and the address of its top. Switching saves the registers that a called function must
preserve on the stack that we leave, changes the stack pointer, and takes the registers of the other from
there. The library's `swapcontext` does the same but asks the kernel for the signal mask each time, which costs
more than everything else together; it remains for other processors. :*/
//> fiber_switch
struct Block;
struct Fiber {
  void *sp;           // while another runs
  char *stack;        // its lowest byte
  void *fake_stack;   // AddressSanitizer's own business
  Block *block;       // NULL: the host
  unsigned thread;    // threadIdx.x
  bool blocked, done; // neither: it runs or is ready
  const char *call;   // what it is in: the name of a CUDA function, or NULL
  const void *polled; // the address, in a load
  unsigned barrier;   // the number, in a barrier
  unsigned mask;      // the lanes that must meet, in a shuffle or a vote
  unsigned source;    // the lane whose value it wants
  uint64_t round;     // the last round of polling it was in
  unsigned loads;     // load_l2 lets others run now and then
  uint64_t value;     // what it brings
  uint64_t result;    // what it gets
};

enum : size_t { STACK = 128 << 10, GUARD = 4096, GUARDED_STACKS = 16384 };

#ifndef FIBER_UCONTEXT
extern "C" void fiber_switch(void **from, void *to);
asm(R"(
  .pushsection .text.fiber_switch, "axG", @progbits, fiber_switch, comdat
  .weak fiber_switch
  .type fiber_switch, @function
fiber_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
  .size fiber_switch, . - fiber_switch
  .popsection
)");
// A stack from which fiber_switch returns into `entry`: six registers, its address, and no caller.
inline void *first_frame(char *top, void (*entry)()) {
  uintptr_t frame[8] = {0, 0, 0, 0, 0, 0, (uintptr_t)entry, 0};
  return memcpy(top - sizeof frame, frame, sizeof frame);
}
#else
// Here Fiber.sp is a ucontext_t that lies at the top of the stack; the host's is one of its own.
inline ucontext_t host_context;
inline void fiber_switch(void **from, void *to) {
  if (!*from) *from = &host_context;
  swapcontext((ucontext_t *)*from, (ucontext_t *)to);
}
inline void *first_frame(char *top, void (*entry)()) {
  ucontext_t *c = (ucontext_t *)(top - (sizeof *c + 15) / 16 * 16);
  getcontext(c);
  c->uc_stack.ss_sp = top - STACK / 2; // how far down does not matter
  c->uc_stack.ss_size = (size_t)((char *)c - (top - STACK / 2));
  makecontext(c, entry, 0);
  return c;
}
#endif
//< fiber_switch

/*: AddressSanitizer must be told when the stack under it changes, that a stack which is used again is
clean, and which bytes of shared memory are still on their way. :*/
//> fiber_sanitizer
#ifdef FIBER_ASAN
inline void leave_stack(void **fake, const void *to, size_t bytes) {
  __sanitizer_start_switch_fiber(fake, to, bytes);
}
inline void reach_stack(void *fake, const void **from, size_t *bytes) {
  __sanitizer_finish_switch_fiber(fake, from, bytes);
}
inline void clean_stack(char *stack, size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(stack, bytes); }
inline void hide(void *p, size_t bytes) { ASAN_POISON_MEMORY_REGION(p, bytes); }
inline void reveal(void *p, size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(p, bytes); }
// Reads the first byte that may not be read, if there is one: the report comes from here.
inline void touch(const void *p, size_t bytes) {
  const void *bad = __asan_region_is_poisoned((void *)p, bytes);
  if (bad) (void)*(const volatile char *)bad;
}
#else
inline void leave_stack(void **, const void *, size_t) {}
inline void reach_stack(void *, const void **, size_t *) {}
inline void clean_stack(char *, size_t) {}
inline void hide(void *, size_t) {}
inline void reveal(void *, size_t) {}
inline void touch(const void *, size_t) {}
#endif
//< fiber_sanitizer

/*: ## The grid, and whose turn it is

The ready fibers stand in a queue. *Forward* and *reverse* take its head: the order is that of the threads, or the
opposite, and whoever polls goes to the end. *Random* takes anyone. But hundreds of fibers drawn evenly all advance at about the
same pace, and the errors that we look for need somebody who is far behind. So half of the blocks, or half of the
warps, are slow: passed over nearly always, until other ones are. The seed also decides how often a fiber that could go on after
touching global memory is interrupted.

**Time** is not the machine's. It advances a little with each switch, and a lot when everybody who could run has polled in vain, so
that a time-out of two seconds takes milliseconds, and the same number of steps in every run.

When nobody is ready and somebody is left, they all wait for ever: a deadlock. When nobody has stored or
finished anything for a long time while some poll, it is as bad. Either way the launch ends with an error, and
stderr names every thread and what it waits for. (A loop that polls through an ordinary load is never interrupted, and
does hang.) :*/
//> fiber_grid
struct Barrier {
  unsigned expected, arrived; // threads
  unsigned votes;             // of them, those that brought a value other than 0
};
struct Block {
  unsigned index;
  unsigned live;                 // fibers that have not exited
  Fiber *fiber;                  // [blockDim.x]
  unsigned char *shared;         // [grid.shared]
  Barrier barrier[16];           // 0 is __syncthreads
  std::vector<unsigned> meeting; // [warps] the lanes that wait for others of their warp
};
struct Copy { // a bulk copy that has not landed
  Block *block;
  unsigned char *to; // [bytes] in the block's shared memory
  const void *from;  // [bytes]
  size_t bytes;
  uint64_t *barrier;
};

enum : uint64_t {
  SWITCH_NS = 20,
  IDLE_NS = 200000,
  PATIENCE_NS = 60000000000, // without a store, while everybody polls
  CALM = 4096                // switches between two choices of who is slow
};

inline struct Grid {
  const std::function<void()> *kernel;
  std::vector<Block> blocks; // those that are resident
  std::vector<Fiber> fibers; // [blocks * blockDim.x]
  Fiber host;
  const void *host_stack; // AddressSanitizer wants it when the last fiber leaves
  size_t host_bytes;
  std::vector<Fiber *> ready; // [fibers] a ring
  size_t head, count;
  size_t live;              // fibers that have not exited
  size_t shared;            // bytes a block
  std::vector<Copy> copies; // in the order in which they were asked for
  uint64_t random;
  uint64_t switches, nanoseconds;           // since the launch
  uint64_t last_switches, last_nanoseconds; // at the last progress
  uint64_t round;                           // of polling in vain
  size_t pollers;                           // that took part in it
  cudaError_t error;
} grid;
inline Fiber *now; // NULL: the host

inline uint64_t mix(uint64_t z) { // splitmix64's
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}
inline uint64_t draw() { return mix(grid.random += 0x9e3779b97f4a7c15); }

inline bool slow(const Fiber *f) {
  uint64_t period = grid.switches / CALM, of = f->block->index;
  if (period % 2) of = of * 64 + f->thread / 32;
  return mix(mix(settings.seed * 64 + period) + of) & 1;
}

inline void make_ready(Fiber *f) {
  f->blocked = false;
  size_t at = grid.head + grid.count++;
  grid.ready[at < grid.ready.size() ? at : at - grid.ready.size()] = f;
}

// All i of [0, n), in the order that the setting asks for.
template <class F> inline void in_order(size_t n, F f) {
  for (size_t i = 0; i < n; i++) f(settings.order == REVERSE ? n - 1 - i : i);
}

inline void new_round() {
  grid.round++;
  grid.pollers = 0;
}

// Something happened that others may wait for.
inline void progress() {
  grid.last_switches = grid.switches;
  grid.last_nanoseconds = grid.nanoseconds;
  new_round();
}
//< fiber_grid

/*: ## What lands by itself

A bulk copy runs beside the threads that asked for it, and an **mbarrier**, eight bytes of shared memory, tells when its bytes are there. A
phase of an mbarrier ends when as many threads have arrived as it was made for, and as many bytes have landed as they said to
expect. The next phase then begins with the same number of arrivals, and no bytes. Bytes may land before anybody said that they
would come: their count goes below zero for a while.

When a copy lands is a choice like whose turn it is. *Forward* lands the oldest at the next switch. *Reverse* lands none while a thread
can do anything but poll, and then the newest. *Random* takes any of them at any time, in a hurry or hardly ever, as the seed
decides. Until then its destination holds 0xFF bytes, which are NaNs, and AddressSanitizer lets nobody touch it. :*/
//> fiber_copies
[[noreturn]] __attribute__((format(printf, 2, 3))) inline void stop(cudaError_t error,
                                                                    const char *format, ...);

enum : int64_t { MBARRIER_MAX = (1 << 20) - 1 }; // arrivals or bytes: the hardware's limit
struct __attribute__((may_alias)) Mbarrier {
  uint64_t pending : 20, arrivals : 20; // threads: still to come, and of a whole phase
  uint64_t phase : 1, never : 1;        // never: 0, but in memory that nobody has written
  int64_t bytes : 22;                   // still to come
};
static_assert(sizeof(Mbarrier) == 8, "an mbarrier is 8 bytes");

// After each change.
inline void settle(Mbarrier &m) {
  if (!m.pending && !m.bytes) {
    m.phase ^= 1;
    m.pending = m.arrivals;
  }
  progress();
}
inline void expect(Mbarrier &m, int64_t bytes) {
  int64_t sum = m.bytes + bytes;
  if (sum > MBARRIER_MAX || sum < -MBARRIER_MAX)
    stop(cudaErrorLaunchFailure, "mbarrier %p: %lld bytes to come", (void *)&m, (long long)sum);
  m.bytes = sum;
}

inline void land() { // one copy
  std::vector<Copy> &list = grid.copies;
  size_t i = settings.order == FORWARD ? 0 : list.size() - 1;
  if (settings.order == RANDOM) i = draw() % list.size();
  Copy c = list[i];
  list.erase(list.begin() + (ptrdiff_t)i);
  reveal(c.to, c.bytes);
  memcpy(c.to, c.from, c.bytes);
  Mbarrier &m = *(Mbarrier *)c.barrier;
  expect(m, -(int64_t)c.bytes);
  settle(m);
}
// Whether a copy lands at this switch. The first line is for warps that meet between their polls: none of them ever
// polls in vain by itself.
inline bool landing() {
  if (grid.switches - grid.last_switches > 8 * grid.fibers.size()) return true;
  if (settings.copies == LATE) return false;
  if (settings.order != RANDOM) return settings.order == FORWARD;
  uint64_t pace = mix(settings.seed * 64 + grid.switches / CALM) % 4;
  return pace < 3 && !(draw() & ((1u << 3 * pace) - 1));
}
//< fiber_copies

//> fiber_report
inline void describe(const Fiber *f, char *out, size_t bytes) {
  if (f->done) snprintf(out, bytes, "has exited");
  else if (f->blocked && f->mask)
    snprintf(out, bytes, "waits in %s(0x%08x) for lanes 0x%08x", f->call, f->mask,
             f->mask & ~f->block->meeting[f->thread / 32]);
  else if (f->blocked) {
    const Barrier &b = f->block->barrier[f->barrier];
    snprintf(out, bytes, "waits in %s, barrier %u, where %u of %u threads have come", f->call,
             f->barrier, b.arrived, b.expected);
  } else if (f->call && !strcmp(f->call, "mbarrier_test")) {
    const Mbarrier &m = *(const Mbarrier *)f->polled;
    snprintf(out, bytes, "polls in %s(%p), phase %u, which lacks %u of %u arrivals and %d bytes",
             f->call, f->polled, (unsigned)m.phase, (unsigned)m.pending, (unsigned)m.arrivals,
             (int)m.bytes);
  } else if (f->call && f->polled) snprintf(out, bytes, "polls in %s(%p)", f->call, f->polled);
  else if (f->call) snprintf(out, bytes, "polls in %s", f->call);
  else snprintf(out, bytes, "is ready");
}

// One line for neighbours in the same state.
inline void report(const char *what) {
  fprintf(stderr, "fiber: %s\n", what);
  int lines = 0;
  for (Block &b : grid.blocks)
    for (unsigned t = 0, first = 0; t < blockDim.x; t++) {
      char state[200], next[200] = "";
      describe(&b.fiber[t], state, sizeof state);
      if (t + 1 < blockDim.x) describe(&b.fiber[t + 1], next, sizeof next);
      if (!strcmp(state, next)) continue;
      if (++lines <= 40)
        fprintf(stderr, "fiber:   block %u thread%s %u%s%.0u: %s\n", b.index, first < t ? "s" : "",
                first, first < t ? "-" : "", first < t ? t : 0, state);
      first = t + 1;
    }
  if (lines > 40) fprintf(stderr, "fiber:   and %d lines more\n", lines - 40);
  grid.error = cudaErrorLaunchTimeout;
}
//< fiber_report

//> fiber_next
inline Fiber *next() {
  Grid &g = grid;
  g.switches++;
  g.nanoseconds += SWITCH_NS;
  if (g.error) return &g.host;
  if (!g.copies.empty() && landing()) land();
  if (!g.count) {
    if (g.live) report("deadlock: every thread that is left waits for another");
    return &g.host;
  }
  if (g.nanoseconds - g.last_nanoseconds > PATIENCE_NS ||
      g.switches - g.last_switches > settings.patience) {
    report("no progress: threads poll, and nobody stores");
    return &g.host;
  }
  size_t n = g.ready.size();
  if (settings.order == RANDOM)
    for (int tries = 0; tries < 6; tries++) {
      size_t at = (g.head + draw() % g.count) % n;
      Fiber *f = g.ready[at];
      g.ready[at] = g.ready[g.head];
      g.ready[g.head] = f;
      if (!slow(f)) break;
    }
  Fiber *f = g.ready[g.head];
  g.head = g.head + 1 < n ? g.head + 1 : 0;
  g.count--;
  return f;
}

// `leaving`: the fiber never runs again.
inline void run_another(bool leaving = false) {
  Fiber *from = now ? now : &grid.host, *to = next();
  if (to == from) return;
  now = to->block ? to : NULL;
  if (now) {
    threadIdx.x = to->thread;
    blockIdx.x = to->block->index;
    leave_stack(leaving ? NULL : &from->fake_stack, to->stack, STACK);
  } else leave_stack(leaving ? NULL : &from->fake_stack, grid.host_stack, grid.host_bytes);
  fiber_switch(&from->sp, to->sp);
  // Some time later `from` runs again: here.
  reach_stack(from->fake_stack, NULL, NULL);
}

// Where a fiber's stack begins.
inline void enter() {
  if (grid.host_stack) reach_stack(NULL, NULL, NULL);
  else reach_stack(NULL, &grid.host_stack, &grid.host_bytes);
  (*grid.kernel)();
  now->done = true;
  now->call = NULL;
  grid.live--;
  now->block->live--;
  for (const Copy &c : grid.copies)
    if (c.block == now->block && !c.block->live)
      stop(cudaErrorLaunchFailure, "the last of its block exits, and a copy to %p is in flight",
           (void *)c.to);
  progress();
  run_another(true);
}

// The grid ends here, with one line on stderr: what no GPU would survive either.
[[noreturn]] inline void stop(cudaError_t error, const char *format, ...) {
  fprintf(stderr, "fiber: block %u thread %u: ", now->block->index, now->thread);
  va_list ap;
  va_start(ap, format);
  vfprintf(stderr, format, ap);
  va_end(ap);
  fputc('\n', stderr);
  grid.error = error;
  run_another(true);
  abort();
}

// Waits until somebody makes this fiber ready.
inline void block_in(const char *call) {
  now->call = call;
  new_round();
  run_another();
  now->call = NULL;
}

// A look at something that may not have happened yet: everybody else first.
inline void poll(const char *call, const void *address) {
  now->call = call;
  now->polled = address;
  if (now->round != grid.round) {
    now->round = grid.round;
    grid.pollers++;
  }
  if (grid.pollers > grid.count) { // all who are ready, and this one
    if (grid.copies.empty()) grid.nanoseconds += IDLE_NS;
    else land();
    new_round();
  }
  make_ready(now);
  run_another();
  now->call = NULL;
  now->polled = NULL;
}

// A place where the adversary may interrupt: once in 2, 4, 8 or 16 times.
inline void interrupt() {
  if (settings.order != RANDOM || draw() & ((2u << settings.seed % 4) - 1)) return;
  make_ready(now);
  run_another();
}
//< fiber_next

/*: ## Where threads meet

The last to come does the work for all: it counts the votes or hands each lane the value that it asked for, makes everyone ready in
order, and stands in line itself. So no value can be overwritten before its reader has it.

In a block they meet at one of sixteen barriers. `bar_arrive` counts and goes on; a producer tells a consumer without waiting
for it. In a warp they meet by mask: a shuffle is complete when each lane that the mask names is in that same
call with that same mask. :*/
//> fiber_meet
inline unsigned block_meet(const char *call, unsigned id, unsigned threads, bool waits, bool vote) {
  Block *block = now->block;
  bool whole = id == 0 && threads == blockDim.x;
  if (id > 15 || threads == 0 || threads > blockDim.x || (threads % 32 && !whole))
    stop(cudaErrorLaunchFailure, "%s: barrier %u of %u threads", call, id, threads);
  Barrier &b = block->barrier[id];
  if (b.arrived && b.expected != threads)
    stop(cudaErrorLaunchFailure, "%s: barrier %u is of %u threads here and of %u elsewhere", call,
         id, threads, b.expected);
  b.expected = threads;
  b.votes += vote;
  now->barrier = id;
  now->mask = 0;
  now->blocked = waits;
  if (++b.arrived == threads) {
    unsigned votes = b.votes;
    b = Barrier{};
    in_order(blockDim.x, [&](size_t t) {
      Fiber *f = &block->fiber[t];
      if (!f->blocked || f->mask || f->barrier != id) return;
      f->result = votes;
      make_ready(f);
    });
  }
  if (!waits) return 0;
  block_in(call);
  return (unsigned)now->result;
}

inline uint64_t warp_meet(const char *call, unsigned mask, uint64_t value, unsigned source,
                          bool vote) {
  Fiber *me = now;
  unsigned lane = me->thread % 32, lanes = blockDim.x - (me->thread - lane);
  Fiber *warp = me - lane;
  unsigned &waiting = me->block->meeting[me->thread / 32];
  if (!(mask >> lane & 1) || (lanes < 32 && mask >> lanes))
    stop(cudaErrorLaunchFailure, "%s: mask 0x%08x in lane %u of %u", call, mask, lane,
         lanes < 32 ? lanes : 32);
  if (!vote && !(mask >> source & 1))
    stop(cudaErrorLaunchFailure, "%s: mask 0x%08x does not name lane %u, which is read", call, mask,
         source);
  me->mask = mask;
  me->value = value;
  me->source = source;
  me->call = call;
  me->blocked = true;
  waiting |= 1u << lane;
  if ((waiting & mask) == mask) {
    unsigned votes = 0;
    for (unsigned l = 0; l < 32; l++) {
      if (!(mask >> l & 1)) continue;
      if (warp[l].mask != mask || (warp[l].call != call && strcmp(warp[l].call, call)))
        stop(cudaErrorLaunchFailure, "%s(0x%08x): lane %u is in %s(0x%08x)", call, mask, l,
             warp[l].call, warp[l].mask);
      votes |= (unsigned)(warp[l].value != 0) << l;
    }
    waiting &= ~mask;
    in_order(32, [&](size_t l) {
      if (!(mask >> l & 1)) return;
      warp[l].result = vote ? votes : warp[warp[l].source].value;
      make_ready(&warp[l]);
    });
  }
  block_in(call);
  return me->result;
}

template <class T> inline T shuffle(const char *call, unsigned mask, T value, unsigned source) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "shuffles move 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = warp_meet(call, mask, bits, source, false);
  memcpy(&value, &bits, sizeof value);
  return value;
}
} // namespace fiber
//< fiber_meet

//> fiber_device
inline void bar_sync(unsigned id, unsigned threads) {
  fiber::block_meet("bar_sync", id, threads, true, false);
}
inline bool bar_sync_or(unsigned id, unsigned threads, bool p) {
  return fiber::block_meet("bar_sync_or", id, threads, true, p) != 0;
}
inline void bar_arrive(unsigned id, unsigned threads) {
  fiber::block_meet("bar_arrive", id, threads, false, false);
}
inline void __syncthreads() { fiber::block_meet("__syncthreads", 0, blockDim.x, true, false); }
inline int __syncthreads_count(int p) {
  return (int)fiber::block_meet("__syncthreads_count", 0, blockDim.x, true, p != 0);
}
inline int __syncthreads_or(int p) {
  return fiber::block_meet("__syncthreads_or", 0, blockDim.x, true, p != 0) != 0;
}
inline int __syncthreads_and(int p) {
  return fiber::block_meet("__syncthreads_and", 0, blockDim.x, true, p != 0) == blockDim.x;
}

// Within `width` lanes, as on the GPU: what lies outside gives the lane its own value back.
template <class T> inline T __shfl_sync(unsigned mask, T v, int source, int width = 32) {
  unsigned lane = threadIdx.x % 32, w = (unsigned)width;
  return fiber::shuffle("__shfl_sync", mask, v, (lane & ~(w - 1)) + ((unsigned)source & (w - 1)));
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32) {
  unsigned lane = threadIdx.x % 32, w = (unsigned)width, from = lane ^ (unsigned)bits;
  return fiber::shuffle("__shfl_xor_sync", mask, v, from >= (lane & ~(w - 1)) + w ? lane : from);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32) {
  unsigned lane = threadIdx.x % 32, w = (unsigned)width;
  return fiber::shuffle("__shfl_up_sync", mask, v, by > (lane & (w - 1)) ? lane : lane - by);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32) {
  unsigned lane = threadIdx.x % 32, w = (unsigned)width;
  return fiber::shuffle("__shfl_down_sync", mask, v, (lane & (w - 1)) + by >= w ? lane : lane + by);
}
inline unsigned __ballot_sync(unsigned mask, int p) {
  return (unsigned)fiber::warp_meet("__ballot_sync", mask, p != 0, 0, true);
}
inline int __any_sync(unsigned mask, int p) {
  return fiber::warp_meet("__any_sync", mask, p != 0, 0, true) != 0;
}
inline int __all_sync(unsigned mask, int p) {
  return fiber::warp_meet("__all_sync", mask, p != 0, 0, true) == mask;
}
inline void __syncwarp(unsigned mask = 0xffffffff) {
  unsigned lanes = blockDim.x - threadIdx.x / 32 * 32; // the default names all that there are
  if (mask == 0xffffffff && lanes < 32) mask = (1u << lanes) - 1;
  fiber::warp_meet("__syncwarp", mask, 0, 0, true);
}
// The lanes that have not exited: which of them run together is a GPU's own affair.
inline unsigned __activemask() {
  unsigned mask = 0, first = threadIdx.x / 32 * 32;
  for (unsigned l = 0; l < 32 && first + l < blockDim.x; l++)
    mask |= (unsigned)!fiber::now->block->fiber[first + l].done << l;
  return mask;
}
//< fiber_device

/*: ## Memory

A load is a load. What matters is who may run before it. A polling loop must let others run or it would poll for ever, so
acquire loads and relaxed ones always do. `load_l2` reads data far more often than it polls and does so at every eighth call.

Shared memory is a piece of the heap of exactly the size that was asked for, so that AddressSanitizer sees the first byte
behind it. It begins as 0xFF, a NaN in any floating-point type: who reads what nobody wrote gets something that spreads. :*/
//> fiber_memory
#define DYNAMIC_SHARED(T, name) T *const name = (T *)(void *)fiber::now->block->shared

inline uint4 load_stream(const uint4 *p) { return *p; }
template <class T> inline T __ldg(const T *p) { return *p; }

template <class T> inline T load_l2(const T *p) {
  if (++fiber::now->loads % 8 == 0) fiber::poll("load_l2", p);
  else fiber::interrupt();
  return *p;
}
template <class T> inline void store_l2(T *p, T v) {
  fiber::interrupt();
  *p = v;
  fiber::progress();
}
template <class T> inline T __ldcg(const T *p) { return load_l2(p); }
template <class T> inline void __stcg(T *p, T v) { store_l2(p, v); }

inline uint32_t load_acquire(const uint32_t *p) {
  fiber::poll("load_acquire", p);
  uint32_t v = *p;
  fiber::interrupt();
  return v;
}
inline void store_release(uint32_t *p, uint32_t v) { store_l2(p, v); }

namespace fiber {
template <class T> inline T polled(const char *call, const T *p) {
  poll(call, p);
  return *p;
}
} // namespace fiber
inline float load_relaxed(const float *p) { return fiber::polled("load_relaxed", p); }
inline float4 load_relaxed4(const float4 *p) { return fiber::polled("load_relaxed4", p); }
inline uint64_t load_relaxed64(const uint64_t *p) { return fiber::polled("load_relaxed64", p); }
inline void store_relaxed(float *p, float v) { store_l2(p, v); }
inline void store_relaxed64(uint64_t *p, uint64_t v) { store_l2(p, v); }
inline uint32_t load_shared_acquire(const uint32_t *p) {
  return fiber::polled("load_shared_acquire", p);
}
inline void store_shared_release(uint32_t *p, uint32_t v) { store_l2(p, v); }
inline void fewer_registers() {}
inline void more_registers() {}
inline void add_shared_release(uint32_t *p, uint32_t n) {
  fiber::interrupt();
  *p += n;
  fiber::progress();
}
inline void add_shared(uint32_t *p, uint32_t n) {
  fiber::interrupt();
  *p += n;
  fiber::progress();
}

inline uint32_t atomic_add_acq_rel(uint32_t *p, uint32_t n) {
  fiber::interrupt();
  uint32_t old = *p;
  *p = old + n;
  fiber::progress();
  fiber::interrupt();
  return old;
}
inline void add_release(uint32_t *p, uint32_t n) { atomic_add_acq_rel(p, n); }
inline void fence_gpu() {
  fiber::interrupt();
  fiber::progress(); // a fence is there for what was stored before it
}
inline void __threadfence() { fence_gpu(); }
inline void __threadfence_block() { fiber::interrupt(); }

inline unsigned long long global_nanoseconds() {
  fiber::poll("global_nanoseconds", NULL);
  return fiber::grid.nanoseconds;
}
inline void nanosleep_short() { fiber::poll("nanosleep_short", NULL); }
inline void __nanosleep(unsigned) { fiber::poll("__nanosleep", NULL); }
[[noreturn]] inline void __trap() { fiber::stop(cudaErrorLaunchFailure, "__trap"); }
//< fiber_memory

/*: An mbarrier is looked at, never waited in: `mbarrier_test` is true when the phase of that parity has ended, that is, when the
running one has the other. A copy is refused where the hardware would fault, and where two in flight have a byte in common. :*/
//> fiber_tape
namespace fiber {
inline Mbarrier &shared_mbarrier(const char *call, const uint64_t *b, bool initialised = true) {
  size_t at = (uintptr_t)b - (uintptr_t)now->block->shared;
  if (at % 8 || at >= grid.shared || grid.shared - at < 8)
    stop(cudaErrorLaunchFailure, "%s(%p): not 8 aligned bytes of shared memory", call, (void *)b);
  Mbarrier &m = *(Mbarrier *)b;
  if (initialised && (m.never || !m.arrivals || m.pending > m.arrivals))
    stop(cudaErrorLaunchFailure, "%s(%p): not an mbarrier", call, (void *)b);
  return m;
}
inline void arrive(const char *call, uint64_t *b, uint32_t bytes) {
  interrupt();
  Mbarrier &m = shared_mbarrier(call, b);
  if (!m.pending)
    stop(cudaErrorLaunchFailure, "%s(%p): an arrival more than the %u of a phase", call, (void *)b,
         (unsigned)m.arrivals);
  expect(m, bytes);
  m.pending--;
  settle(m);
  interrupt();
}
} // namespace fiber

inline void mbarrier_init(uint64_t *b, uint32_t arrivals) {
  fiber::Mbarrier &m = fiber::shared_mbarrier("mbarrier_init", b, false);
  if (!arrivals || arrivals > fiber::MBARRIER_MAX)
    fiber::stop(cudaErrorLaunchFailure, "mbarrier_init(%p): %u arrivals", (void *)b, arrivals);
  m = fiber::Mbarrier{};
  m.pending = m.arrivals = arrivals & fiber::MBARRIER_MAX;
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(uint64_t *b) { fiber::arrive("mbarrier_arrive", b, 0); }
inline void mbarrier_expect(uint64_t *b, uint32_t bytes) {
  fiber::arrive("mbarrier_expect", b, bytes);
}
inline bool mbarrier_test(const uint64_t *b, uint32_t parity) {
  const fiber::Mbarrier &m = fiber::shared_mbarrier("mbarrier_test", b);
  if (parity > 1)
    fiber::stop(cudaErrorLaunchFailure, "mbarrier_test(%p): parity %u", (void *)b, parity);
  fiber::poll("mbarrier_test", b);
  return m.phase != parity;
}
inline void fence_async_proxy() { fiber::interrupt(); }
inline void fence_async_shared() { fiber::interrupt(); }

inline void bulk_copy(void *shared, const void *global, uint32_t bytes, uint64_t *b) {
  fiber::Grid &g = fiber::grid;
  fiber::Block *block = fiber::now->block;
  fiber::shared_mbarrier("bulk_copy", b);
  unsigned char *to = (unsigned char *)shared;
  size_t at = (uintptr_t)to - (uintptr_t)block->shared;
  if (!bytes || (bytes | (uintptr_t)to | (uintptr_t)global) % 16)
    fiber::stop(cudaErrorLaunchFailure, "bulk_copy: %u bytes from %p to %p are not multiples of 16",
                bytes, global, shared);
  if (at >= g.shared || g.shared - at < bytes)
    fiber::stop(cudaErrorLaunchFailure, "bulk_copy: %u bytes to %p, outside of shared memory",
                bytes, shared);
  for (const fiber::Copy &c : g.copies)
    if (to < c.to + c.bytes && c.to < to + bytes)
      fiber::stop(cudaErrorLaunchFailure, "bulk_copy to %p, where another is in flight", shared);
  fiber::touch(global, bytes);
  memset(shared, 0xff, bytes);
  fiber::hide(shared, bytes);
  g.copies.push_back({block, to, global, bytes, b});
  if (fiber::settings.copies == fiber::AT_ONCE) fiber::land();
  fiber::interrupt();
}

//< fiber_tape

/*: A slot of a tape is filled by a whole warp, because that is what a GPU without bulk copies needs. Here all lanes must call as well, with
the same arguments, though lane 0 does all of it. :*/
//> fiber_tape_slot
enum : uint32_t { TAPE_FULL_ARRIVALS = 1 };
namespace fiber {
inline bool tape_leader(const char *call, uint64_t same) {
  if (shuffle(call, 0xffffffff, same, 0) != same)
    stop(cudaErrorLaunchFailure, "%s: other arguments than lane 0's", call);
  return threadIdx.x % 32 == 0;
}
} // namespace fiber
inline void tape_begin(uint64_t *b, uint32_t bytes) {
  if (fiber::tape_leader("tape_begin", (uintptr_t)b + bytes)) mbarrier_expect(b, bytes);
}
inline void tape_copy(void *shared, const void *global, uint32_t bytes, uint64_t *b) {
  if (fiber::tape_leader("tape_copy", (uintptr_t)shared * 31 + (uintptr_t)global * 7 + bytes))
    bulk_copy(shared, global, bytes, b);
}
inline void tape_copy_rows(void *shared, const uint8_t *global, uint32_t n, uint32_t bytes,
                           uint64_t stride, uint64_t *b) {
  for (uint32_t r = threadIdx.x % 32; r < n; r += 32)
    bulk_copy((char *)shared + r * bytes, global + r * stride, bytes, b);
}
inline void tape_end(uint64_t *b) { fiber::tape_leader("tape_end", (uintptr_t)b); }
//< fiber_tape_slot

/*: ## Numbers

The GPU's fast functions are the exact ones here, so results agree within their error, not to the bit. :*/
//> fiber_numbers
template <class To, class From> inline To fiber_bits(From from) {
  To to;
  static_assert(sizeof to == sizeof from, "the same bits");
  memcpy(&to, &from, sizeof to);
  return to;
}
inline unsigned __float_as_uint(float f) { return fiber_bits<unsigned>(f); }
inline float __uint_as_float(unsigned u) { return fiber_bits<float>(u); }
inline int __float_as_int(float f) { return fiber_bits<int>(f); }
inline float __int_as_float(int i) { return fiber_bits<float>(i); }

inline float f16_to_float(uint16_t h) {
  unsigned sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000 | fraction << 13);
  if (exponent) return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
  float f = (float)fraction * 0x1p-24f; // subnormal or zero
  return sign ? -f : f;
}
inline uint16_t float_to_f16(float f) { // to nearest, ties to even
  unsigned u = __float_as_uint(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
  if (a > 0x7f800000) return 0x7fff;                     // the GPU's one NaN
  if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00); // 65,520 and above
  if (a < 0x38800000) // subnormal: adding 0.5 moves the fraction into place and rounds it
    return (uint16_t)(sign | (__float_as_uint(__uint_as_float(a) + 0.5f) - 0x3f000000));
  return (uint16_t)(sign | (a + 0xfff + (a >> 13 & 1) - 0x38000000) >> 13);
}

// glibc declares some of these names for itself, hence macros.
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline int __popc(unsigned u) { return __builtin_popcount(u); }
inline int __clz(int i) { return i ? __builtin_clz((unsigned)i) : 32; }
inline int __ffs(int i) { return __builtin_ffs(i); }

template <class A, class B> inline std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point<T>::value) return (T)fmin((T)a, (T)b);
  else return (T)b < (T)a ? (T)b : (T)a;
}
template <class A, class B> inline std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point<T>::value) return (T)fmax((T)a, (T)b);
  else return (T)a < (T)b ? (T)b : (T)a;
}
//< fiber_numbers

/*: ## The host's side

What a program calls around its launches. All is done at once, so a stream is a queue that is always empty. The
device's memory is the heap's, each piece of exactly its size, and begins as 0xFF like shared memory; what is allocated is
counted, so that a device can be too small. :*/
//> fiber_host
struct CUstream_st {
  char unused;
};
struct CUevent_st {
  timespec when;
};
typedef CUstream_st *cudaStream_t;
typedef CUevent_st *cudaEvent_t;

// A graph is the launches that were captured, in their order.
struct CUgraph_st {
  std::vector<std::function<cudaError_t()>> launches;
};
typedef CUgraph_st *cudaGraph_t;
typedef CUgraph_st *cudaGraphExec_t;
typedef void *cudaGraphNode_t;

namespace fiber {
inline cudaGraph_t capturing; // NULL: launches run at once
inline cudaError_t last_error = cudaSuccess;
inline std::map<void *, size_t> allocated; // bytes of each piece of device memory
inline size_t allocated_bytes;

inline cudaError_t result(cudaError_t e) {
  if (e) last_error = e;
  return e;
}

inline void *poisoned(size_t bytes, size_t alignment) { // NULL: no memory
  void *p = NULL;
  return posix_memalign(&p, alignment, bytes) ? NULL : memset(p, 0xff, bytes);
}
} // namespace fiber

#define FIBER_ERROR_NAME(name, number)                                                             \
  case cuda##name: return "cuda" #name;
inline const char *cudaGetErrorName(cudaError_t e) {
  switch (e) { FIBER_ERRORS(FIBER_ERROR_NAME) }
  return "unrecognized error code";
}
inline const char *cudaGetErrorString(cudaError_t e) { return cudaGetErrorName(e); }
inline cudaError_t cudaPeekAtLastError() { return fiber::last_error; }
inline cudaError_t cudaGetLastError() { return std::exchange(fiber::last_error, cudaSuccess); }
//< fiber_host

//> fiber_host_memory
inline cudaError_t cudaMemGetInfo(size_t *left, size_t *total) {
  *total = fiber::settings.memory;
  *left = *total - min(fiber::allocated_bytes, *total);
  return cudaSuccess;
}
template <class T> inline cudaError_t cudaMalloc(T **p, size_t bytes) {
  size_t left, total;
  cudaMemGetInfo(&left, &total);
  *p = bytes && bytes <= left ? (T *)fiber::poisoned(bytes, 256) : NULL;
  if (!*p) return bytes ? fiber::result(cudaErrorMemoryAllocation) : cudaSuccess;
  fiber::allocated[*p] = bytes;
  fiber::allocated_bytes += bytes;
  return cudaSuccess;
}
inline cudaError_t cudaFree(void *p) {
  if (!p) return cudaSuccess;
  auto found = fiber::allocated.find(p);
  if (found == fiber::allocated.end()) return fiber::result(cudaErrorInvalidValue);
  fiber::allocated_bytes -= found->second;
  fiber::allocated.erase(found);
  return free(p), cudaSuccess;
}
enum { cudaHostAllocDefault, cudaHostAllocPortable, cudaHostAllocMapped };
template <class T> inline cudaError_t cudaHostAlloc(T **p, size_t bytes, unsigned) {
  *p = bytes ? (T *)fiber::poisoned(bytes, 256) : NULL;
  return *p || !bytes ? cudaSuccess : fiber::result(cudaErrorMemoryAllocation);
}
template <class T> inline cudaError_t cudaMallocHost(T **p, size_t bytes) {
  return cudaHostAlloc(p, bytes, 0);
}
template <class T> inline cudaError_t cudaHostGetDevicePointer(T **device, void *host, unsigned) {
  return *device = (T *)host, cudaSuccess;
}
inline cudaError_t cudaFreeHost(void *p) { return free(p), cudaSuccess; }

enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind) {
  return bytes ? memmove(to, from, bytes) : NULL, cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t = NULL) {
  if (fiber::capturing) return fiber::result(cudaErrorStreamCaptureUnsupported);
  return cudaMemcpy(to, from, bytes, kind);
}
inline cudaError_t cudaMemset(void *p, int byte, size_t bytes) {
  return bytes ? memset(p, byte, bytes) : NULL, cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void *p, int byte, size_t bytes, cudaStream_t = NULL) {
  if (fiber::capturing) return fiber::result(cudaErrorStreamCaptureUnsupported);
  return cudaMemset(p, byte, bytes);
}
//< fiber_host_memory

//> fiber_host_streams
// What went wrong inside a kernel comes out at the next synchronisation, too.
inline cudaError_t cudaDeviceSynchronize() { return fiber::result(fiber::grid.error); }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaDeviceSynchronize(); }
inline cudaError_t cudaStreamQuery(cudaStream_t) { return cudaDeviceSynchronize(); }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaDeviceSynchronize(); }
inline cudaError_t cudaDeviceReset() { return fiber::grid.error = cudaSuccess; }

enum { cudaStreamDefault, cudaStreamNonBlocking };
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned) {
  return *s = new CUstream_st(), cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithFlags(s, 0); }
inline cudaError_t cudaStreamDestroy(cudaStream_t s) { return delete s, cudaSuccess; }
inline cudaError_t cudaEventCreate(cudaEvent_t *e) { return *e = new CUevent_st(), cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t e) { return delete e, cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t = NULL) {
  return clock_gettime(CLOCK_MONOTONIC, &e->when), cudaSuccess;
}
inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
  *ms = (float)((double)(end->when.tv_sec - begin->when.tv_sec) * 1e3 +
                (double)(end->when.tv_nsec - begin->when.tv_nsec) * 1e-6);
  return cudaSuccess;
}
//< fiber_host_streams

//> fiber_properties
struct cudaDeviceProp {
  char name[256];
  int major, minor, warpSize;
  int multiProcessorCount, maxThreadsPerBlock, maxThreadsPerMultiProcessor;
  int regsPerBlock, regsPerMultiprocessor;
  size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin;
  size_t sharedMemPerMultiprocessor, reservedSharedMemPerBlock;
  int l2CacheSize, memoryBusWidth, cooperativeLaunch;
};
inline cudaError_t cudaGetDeviceCount(int *n) { return *n = 1, cudaSuccess; }
inline cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : fiber::result(cudaErrorInvalidDevice);
}
inline cudaError_t cudaDriverGetVersion(int *v) { return *v = 0, cudaSuccess; } // there is none
inline cudaError_t cudaRuntimeGetVersion(int *v) { return *v = 0, cudaSuccess; }

inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
  if (device != 0) return fiber::result(cudaErrorInvalidDevice);
  bool large = fiber::settings.shared > 101376; // 99 KB: what cards have, and 227 KB an H100
  *p = cudaDeviceProp{};
  snprintf(p->name, sizeof p->name, "fibers");
  p->major = large ? 9 : 8;
  p->minor = large ? 0 : 6;
  p->warpSize = 32;
  p->multiProcessorCount = (int)fiber::settings.sms;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = large ? 2048 : 1536;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->totalGlobalMem = fiber::settings.memory;
  p->sharedMemPerBlock = 48 << 10;
  p->sharedMemPerBlockOptin = fiber::settings.shared;
  p->reservedSharedMemPerBlock = 1024;
  p->sharedMemPerMultiprocessor = fiber::settings.shared + 1024;
  p->l2CacheSize = 4 << 20;
  p->memoryBusWidth = 128;
  p->cooperativeLaunch = 1;
  return cudaSuccess;
}

#define FIBER_ATTRIBUTES(A)                                                                        \
  A(MaxThreadsPerBlock, 1, maxThreadsPerBlock)                                                     \
  A(MaxSharedMemoryPerBlock, 8, sharedMemPerBlock)                                                 \
  A(WarpSize, 10, warpSize)                                                                        \
  A(MultiProcessorCount, 16, multiProcessorCount)                                                  \
  A(GlobalMemoryBusWidth, 37, memoryBusWidth)                                                      \
  A(L2CacheSize, 38, l2CacheSize)                                                                  \
  A(MaxThreadsPerMultiProcessor, 39, maxThreadsPerMultiProcessor)                                  \
  A(ComputeCapabilityMajor, 75, major)                                                             \
  A(ComputeCapabilityMinor, 76, minor)                                                             \
  A(MaxSharedMemoryPerMultiprocessor, 81, sharedMemPerMultiprocessor)                              \
  A(MaxRegistersPerMultiprocessor, 82, regsPerMultiprocessor)                                      \
  A(CooperativeLaunch, 95, cooperativeLaunch)                                                      \
  A(MaxSharedMemoryPerBlockOptin, 97, sharedMemPerBlockOptin)                                      \
  A(ReservedSharedMemoryPerBlock, 111, reservedSharedMemPerBlock)
#define FIBER_ATTRIBUTE(name, number, field) cudaDevAttr##name = number,
#define FIBER_ATTRIBUTE_VALUE(name, number, field)                                                 \
  case cudaDevAttr##name: return *value = (int)p.field, cudaSuccess;
enum cudaDeviceAttr { FIBER_ATTRIBUTES(FIBER_ATTRIBUTE) };
inline cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  cudaError_t e = cudaGetDeviceProperties(&p, device);
  if (e) return e;
  switch (attribute) { FIBER_ATTRIBUTES(FIBER_ATTRIBUTE_VALUE) }
  return fiber::result(cudaErrorInvalidValue);
}
//< fiber_properties

/*: A kernel must ask before it gets more than 48 KB of shared memory, as on a GPU. Without that its occupancy
is zero, and no launch fits. :*/
//> fiber_attributes
namespace fiber {
inline std::map<const void *, size_t> shared_limits; // by kernel, where it asked
inline size_t shared_limit(const void *kernel) {
  auto found = shared_limits.find(kernel);
  return found == shared_limits.end() ? 48 << 10 : found->second;
}
} // namespace fiber

struct cudaFuncAttributes {
  size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
  int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, maxDynamicSharedSizeBytes;
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

template <class F>
inline cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute, int bytes) {
  if (!kernel || bytes < 0 || (size_t)bytes > fiber::settings.shared)
    return fiber::result(cudaErrorInvalidValue);
  fiber::shared_limits[(const void *)kernel] = (size_t)bytes;
  return cudaSuccess;
}
template <class F> inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, F *kernel) {
  *a = cudaFuncAttributes{};
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->maxDynamicSharedSizeBytes = (int)fiber::shared_limit((const void *)kernel);
  return cudaSuccess;
}
template <class F>
inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, F *kernel,
                                                                 int threads, size_t shared) {
  if (threads < 1) return fiber::result(cudaErrorInvalidValue);
  *blocks = threads <= 1024 && shared <= fiber::shared_limit((const void *)kernel);
  return cudaSuccess;
}
//< fiber_attributes

/*: ## A launch

Checked as CUDA 13 does, with its error codes: a cooperative grid must fit onto the device at once, one block an SM.
Any other grid runs in parties of as many blocks as fit. The call returns when the grid has ended. Stacks are kept
from launch to launch. One host thread at a time may use all this. :*/
//> fiber_launch
namespace fiber {
inline char *stacks;
inline size_t stack_count;

inline bool have_stacks(size_t n) {
  if (n <= stack_count) return true;
  if (stacks) {
    clean_stack(stacks, stack_count * STACK); // whoever gets these addresses next
    munmap(stacks, stack_count * STACK);
  }
  stack_count = 0;
  void *p = mmap(NULL, n * STACK, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  stacks = p == MAP_FAILED ? NULL : (char *)p;
  if (!stacks) return false;
  stack_count = n;
  // A stack that overflows meets a page without access. Linux gives a process 65,530 mappings: a grid that
  // would need more goes without.
  for (size_t i = 0; i < n && n <= GUARDED_STACKS; i++)
    mprotect(stacks + i * STACK, GUARD, PROT_NONE);
  return true;
}

// Blocks [first, first + n) of the grid, from start to end.
inline cudaError_t run_blocks(unsigned first, unsigned n, size_t shared) {
  Grid &g = grid;
  size_t threads = (size_t)n * blockDim.x;
  if (!have_stacks(threads)) return cudaErrorMemoryAllocation;
  g.blocks.assign(n, Block{});
  g.fibers.assign(threads, Fiber{});
  g.ready.assign(threads, NULL);
  g.head = g.count = 0;
  g.live = threads;
  g.shared = shared;
  g.copies.clear();
  for (unsigned b = 0; b < n; b++) {
    Block &block = g.blocks[b];
    block.index = first + b;
    block.live = blockDim.x;
    block.fiber = &g.fibers[(size_t)b * blockDim.x];
    block.shared = shared ? (unsigned char *)poisoned(shared, 128) : NULL;
    block.meeting.assign((blockDim.x + 31) / 32, 0);
    if (shared && !block.shared) g.error = cudaErrorMemoryAllocation;
  }
  for (size_t i = 0; i < threads; i++) {
    Fiber &f = g.fibers[i];
    f.stack = stacks + i * STACK;
    f.block = &g.blocks[i / blockDim.x];
    f.thread = (unsigned)(i % blockDim.x);
    clean_stack(f.stack + GUARD, STACK - GUARD);
    // Tops at different distances from the end: equal ones would all want the same lines of the cache.
    f.sp = first_frame(f.stack + STACK - i % 16 * 320, enter);
  }
  in_order(threads, [&](size_t i) { make_ready(&g.fibers[i]); });
  progress();
  run_another(); // comes back when all have left, or with an error
  for (Block &b : g.blocks) free(b.shared);
  return g.error;
}

inline cudaError_t launch(const void *kernel, dim3 blocks, dim3 threads, size_t shared,
                          bool cooperative, const std::function<void()> &body) {
  if (!kernel) return result(cudaErrorInvalidDeviceFunction);
  if (blocks.y * blocks.z * threads.y * threads.z != 1)
    return result(cudaErrorInvalidConfiguration);
  if (!blocks.x || !threads.x || threads.x > 1024) return result(cudaErrorInvalidValue);
  bool fits = shared <= shared_limit(kernel);
  if (cooperative && !(fits && blocks.x <= settings.sms))
    return result(cudaErrorCooperativeLaunchTooLarge);
  if (!fits) return result(cudaErrorInvalidValue);
  gridDim = blocks;
  blockDim = threads;
  grid.kernel = &body;
  grid.error = cudaSuccess;
  grid.random = settings.seed;
  grid.switches = grid.nanoseconds = 0;
  grid.host = Fiber{};
  grid.host_stack = NULL;
  cudaError_t error = cudaSuccess;
  for (unsigned b = 0; b < blocks.x && !error; b += settings.sms)
    error = run_blocks(b, min(settings.sms, blocks.x - b), shared);
  return result(error);
}

template <class... P, size_t... I>
inline void call(void (*kernel)(P...), void **args, std::index_sequence<I...>) {
  (void)args;
  kernel(*(P *)args[I]...);
}

// The arguments live no longer than the call that launches: a graph has copies.
template <class... P, size_t... I>
inline std::tuple<P...> keep(void (*)(P...), void **args, std::index_sequence<I...>) {
  (void)args;
  return std::tuple<P...>(*(P *)args[I]...);
}
} // namespace fiber

template <class... P>
inline cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 blocks, dim3 threads, void **args,
                                    size_t shared = 0, cudaStream_t = NULL) {
  if (fiber::capturing) {
    auto kept = fiber::keep(kernel, args, std::index_sequence_for<P...>());
    fiber::capturing->launches.push_back([=] {
      return fiber::launch((const void *)kernel, blocks, threads, shared, false,
                           [&] { std::apply(kernel, kept); });
    });
    return cudaSuccess;
  }
  return fiber::launch((const void *)kernel, blocks, threads, shared, false,
                       [=] { fiber::call(kernel, args, std::index_sequence_for<P...>()); });
}
template <class... P>
inline cudaError_t cudaLaunchCooperativeKernel(void (*kernel)(P...), dim3 blocks, dim3 threads,
                                               void **args, size_t shared = 0,
                                               cudaStream_t = NULL) {
  if (fiber::capturing) return fiber::result(cudaErrorStreamCaptureUnsupported);
  return fiber::launch((const void *)kernel, blocks, threads, shared, true,
                       [=] { fiber::call(kernel, args, std::index_sequence_for<P...>()); });
}

// The same text works with CUDA. `common_type_t` makes each argument take its parameter's type.
template <class... P>
inline cudaError_t launch_cooperative(void (*kernel)(P...), unsigned blocks, unsigned threads,
                                      size_t shared, cudaStream_t stream,
                                      std::common_type_t<P>... args) {
  void *list[] = {(void *)&args..., NULL};
  return cudaLaunchCooperativeKernel(kernel, dim3(blocks), dim3(threads), list, shared, stream);
}
//< fiber_launch

/*: ## Graphs

Between begin and end of a capture nothing runs: the launches are written down, with copies of their arguments. Replaying the graph runs them
one after the other. The first that fails ends it. :*/
//> fiber_graph
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
inline cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  if (fiber::capturing) return fiber::result(cudaErrorIllegalState);
  return fiber::capturing = new CUgraph_st(), cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *graph) {
  *graph = std::exchange(fiber::capturing, (cudaGraph_t)NULL);
  return *graph ? cudaSuccess : fiber::result(cudaErrorIllegalState);
}
inline cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
                                                 unsigned long long) {
  if (!graph) return fiber::result(cudaErrorInvalidValue);
  return *exec = new CUgraph_st(*graph), cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t = NULL) {
  if (!exec) return fiber::result(cudaErrorInvalidValue);
  if (fiber::capturing) return fiber::result(cudaErrorStreamCaptureUnsupported);
  for (const auto &launch : exec->launches) {
    cudaError_t error = launch();
    if (error) return error;
  }
  return cudaSuccess;
}
// Only their number: nodes is NULL.
inline cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
  if (!graph || nodes) return fiber::result(cudaErrorInvalidValue);
  return *count = graph->launches.size(), cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return delete exec, cudaSuccess; }
//< fiber_graph
#endif
