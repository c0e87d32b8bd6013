/*: # Raise a counter, watch a counter

A wave ends when every worker has finished its tiles. All blocks of a cooperative launch are resident together, so
they may wait for each other: one counter in L2, which each block raises by one when it is done and then
watches until all have.

The wait is split in two, *arrive* and *wait*, because a worker has something better to do in between: the
weights of its next tile depend on nothing, and their first loads can be on the way while the last worker of
this wave is still busy.

What each fence must make visible. `arrive`: the block-wide barrier collects the stores of all the block's
threads before thread 0; its release then puts them before the raised counter for everybody on the
GPU. `wait`: thread 0's acquire load that sees the full count puts all those stores before what follows; the
block-wide barrier after it hands that on to the other threads. Neither half is enough: without the release a
value may still sit in flight when the count is seen; without the acquire a load may have been answered
early.

The counter only grows during a launch and is zeroed before it. The comparison is of the signed difference, so that
it may wrap.

A worker that never arrives must not hang the machine. Whoever has waited for longer than `patience_ns` writes
down where it stood and leaves; the others see the status and leave too. The launch then ends as an error. :*/
#ifndef BARRIER_CUH
#define BARRIER_CUH
#include "device.cuh"

//> barrier
// To be called now and then by who waits: true when that has been too long, for this thread or for another one. begin: 0 at first.
__device__ __forceinline__ bool gave_up(const Params &p, uint32_t step, uint32_t wave,
                                        unsigned long long &begin) {
  const unsigned long long now = global_nanoseconds();
  if (!begin) begin = now;
  if (now - begin <= p.patience_ns) return load_acquire(&p.status->code) == STATUS_TIMEOUT;
  p.status->step = step;
  p.status->wave = wave;
  __threadfence(); // where it stood, before the word that says so
  p.status->code = STATUS_TIMEOUT;
  __threadfence(); // both, before this block leaves
  return true;
}

struct GridBarrier {
  uint32_t target = 0;

  __device__ __forceinline__ void arrive(const Params &p) {
    target += p.workers;
    __syncthreads(); // the stores of all threads are now behind thread 0's next step
    if (threadIdx.x == 0) add_release(p.barrier_count, 1);
  }

  // False when the launch has failed and the block must leave.
  __device__ __forceinline__ bool wait(const Params &p, uint32_t step, uint32_t wave) {
    bool failed = false;
    if (threadIdx.x == 0) {
      unsigned long long begin = 0;
      for (uint32_t polls = 1; (int32_t)(load_acquire(p.barrier_count) - target) < 0; polls++) {
        if (polls % 1024) continue;
        failed = gave_up(p, step, wave, begin);
        if (failed) break;
      }
    }
    return !__syncthreads_or(failed); // what thread 0 acquired, to all threads
  }
};
//< barrier
#endif
