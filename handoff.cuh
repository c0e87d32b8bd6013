/*: # Hand-offs that need no barrier

A barrier answers a question that nobody asked. A worker that wants the residual does not care whether everybody has arrived; it wants 2,048 numbers. So
let the numbers answer. Every hand-off buffer is filled with a bit pattern that no arithmetic produces, *empty*; who needs a value reads
it, and reads it again until it is no longer empty. The value and the news that it is there are one and the same four bytes, so there is nothing
to order: no fence, no flag, no second trip to L2. The method is Lamport's, and collective libraries use it between GPUs.

**Copies.** A vector of 2,048 numbers is 64 lines of L2, and all workers ask for all of them, again and again: while they wait, 132 workers send some 30,000 questions a round to the few L2
slices that hold these lines, and the values that everybody waits for arrive through the same doors. So who hands on a value of a residual or of the attention output stores it in `HANDOFF_COPIES` places, and a
worker asks its own one of them. For the same reason a short list that many ask for is bad: a chunk's largest score and summed weights stand behind the chunk's own output, not in a short list of such pairs.

What the method costs is care with the second use. A buffer must be empty again before anyone reads it for the next layer, and no value may be made
empty that someone still wants. Both follow from reads of a whole vector. Every worker has rows in every matrix, so who has read all of a layer's
activation knows that every worker has handed on its rows of it, and is done with all that came before.

So each worker ends a layer in this order:

1. Its warps begin the down tile: together they have read the whole activation.
2. In the long shadow of the down projection's weights, a warp that has nothing else to do *empties* what the worker wrote for this layer up to the residual
   after Wo. The activation and the residual after down are not done with at that moment. They have two copies *by turns*, each of them, if it is a residual, in HANDOFF_COPIES places, and what it
   empties of them is the layer before's.
3. The same warp *fences*. Who must see what: the emptied slots, and the K/V rows that the worker's attend tiles have written, must be there for everybody who reads
   what comes next.
4. Only then does the worker *hand on* its rows of the residual. Whoever has read all of it may look at the emptied buffers again, whoever wrote them, and may copy those K/V rows.

The fence and the store are two threads', joined by a release and an acquire within the block, and the reader has no fence of its own. So this rests on one place, L2, where all relaxed loads and stores of the card meet in order, and not on a pattern that PTX's model promises by name.

Waiting must end when a worker is lost. Whoever has waited longer than `patience_ns` says so in the status and leaves. The others see it there: every thread that waits looks at
the status after each 1,024 polls (`gave_up`), and leaves too. :*/
#ifndef HANDOFF_CUH
#define HANDOFF_CUH
#include "barrier.cuh"
#include "device.cuh"

//> handoff
enum { HANDOFF_COPIES = 2 };

enum : uint32_t {
  EMPTY = 0xffffffffu
}; // a NaN; arithmetic makes only 0x7fffffff, and hand_on makes sure

__device__ __forceinline__ void hand_on(float *p, float v) {
  store_relaxed(p, __float_as_uint(v) == EMPTY ? __uint_as_float(0x7fffffffu) : v);
}
// stride: floats from copy to copy.
__device__ __forceinline__ void hand_on_copies(float *p, uint32_t stride, float v) {
#pragma unroll
  for (int c = 0; c < HANDOFF_COPIES; c++) hand_on(p + c * stride, v);
}
__device__ __forceinline__ void make_empty(float *p) { store_relaxed(p, __uint_as_float(EMPTY)); }

__device__ __forceinline__ bool there(float v) { return __float_as_uint(v) != EMPTY; }
__device__ __forceinline__ bool there(float4 v) {
  return there(v.x) && there(v.y) && there(v.z) && there(v.w);
}
__device__ __forceinline__ bool there(uint64_t v) { return v != ~0ull; }
__device__ __forceinline__ float fetch(const float *p) { return load_relaxed(p); }
__device__ __forceinline__ float4 fetch(const float4 *p) { return load_relaxed4(p); }
__device__ __forceinline__ uint64_t fetch(const uint64_t *p) { return load_relaxed64(p); }

// One thread's waiting. After it has failed nothing is waited for any more, and the values are worthless.
struct Waiter {
  const Params &p;
  uint32_t step, wave;
  bool failed;

  // Rare, and not inlined: its registers are none of the loop's. Returns when the waiting began, or GAVE_UP.
  static constexpr unsigned long long GAVE_UP = ~0ull;
  __device__ __noinline__ static unsigned long long since(const Params &p, uint32_t step,
                                                          uint32_t wave, unsigned long long begin) {
    return gave_up(p, step, wave, begin) ? GAVE_UP : begin;
  }

  // Those of N values that `wanted(i)` says, all asked for at once; what was not there is asked for again. The others are zero.
  template <int N, class V, class At, class Wanted>
  __device__ __forceinline__ void take(V (&v)[N], At at, Wanted wanted) {
    unsigned long long begin = 0;
    bool have[N];
#pragma unroll
    for (int i = 0; i < N; i++) v[i] = V{}, have[i] = !wanted(i);
#pragma unroll 1
    for (uint32_t polls = 1;; polls++) {
#pragma unroll
      for (int i = 0; i < N; i++)
        if (!have[i]) v[i] = fetch(at(i));
      bool all = true;
#pragma unroll
      for (int i = 0; i < N; i++) have[i] = there(v[i]), all = all && have[i];
      if (all || failed) return;
      if (polls % 1024 == 0) {
        begin = since(p, step, wave, begin);
        failed = begin == GAVE_UP;
      }
    }
  }
};
//< handoff
#endif
