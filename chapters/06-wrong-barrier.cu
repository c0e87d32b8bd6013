/*: ### Wrong: two barriers

Both look right, and one of them works nearly always. `tests/test_wrong.cpp` runs them in orders in which neither does. :*/
#include "barrier.cuh"

/*: **Wrong.** Thread 0 raises the counter as soon as *it* is done. Its release orders its own stores, and none of another warp's: a worker elsewhere
sees the full count and reads rows that are still on their way. `arrive` needs the block-wide barrier first. :*/
//> wrong_barrier_alone
struct BarrierForOneThread {
  uint32_t target = 0;
  __device__ __forceinline__ void arrive(const Params &p) {
    target += p.workers;
    if (threadIdx.x == 0) add_release(p.barrier_count, 1); // no __syncthreads() before it
  }
  __device__ __forceinline__ bool wait(const Params &p, uint32_t step, uint32_t wave) {
    GridBarrier rest;
    rest.target = target;
    return rest.wait(p, step, wave);
  }
};
//< wrong_barrier_alone

/*: **Wrong.** The counter goes back to zero for the next wave, by whoever sees it full first. A worker that looks a moment later sees zero, or the first
arrivals of the next wave, and waits for ever. A counter that only grows has no such moment. :*/
//> wrong_barrier_reset
struct BarrierThatResets {
  __device__ __forceinline__ void arrive(const Params &p) {
    __syncthreads();
    if (threadIdx.x == 0) add_release(p.barrier_count, 1);
  }
  __device__ __forceinline__ bool wait(const Params &p, uint32_t step, uint32_t wave) {
    bool failed = false;
    if (threadIdx.x == 0) {
      unsigned long long begin = 0;
      while (!failed && load_acquire(p.barrier_count) < p.workers)
        failed = gave_up(p, step, wave, begin);
      store_l2(p.barrier_count, 0u);
    }
    return !__syncthreads_or(failed);
  }
};
//< wrong_barrier_reset
