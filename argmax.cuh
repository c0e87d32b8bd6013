/*: # The better of two

Greedy decoding takes the largest logit, and the lowest id among equals. The order is total, so it does not matter who
compares what with what first: each lm_head tile leaves its best candidate in its own slot, and after the
barrier every worker combines all slots for itself. All reach the same token and the same decision to
stop, with no counter, no atomic and no second barrier.

A logit that is not finite has no place in that order. A NaN loses every comparison, and an argmax that
only compares would answer with id 0 as if nothing had happened. So a tile that meets one marks its slot with the id -1,
which wins over everything. :*/
#ifndef ARGMAX_CUH
#define ARGMAX_CUH
#include "device.cuh"

//> argmax
__device__ __forceinline__ Candidate no_candidate() { return {-INFINITY, 0x7fffffff}; }

__device__ __forceinline__ Candidate better(Candidate a, Candidate b) {
  if (a.id < 0 || b.id < 0) return {0, -1};
  if (a.logit != b.logit) return a.logit > b.logit ? a : b;
  return a.id < b.id ? a : b;
}

__device__ __forceinline__ Candidate candidate(float logit, int32_t id) {
  return {logit, isfinite(logit) ? id : -1};
}

__device__ __forceinline__ Candidate warp_best(Candidate c) {
#pragma unroll
  for (int o = WARP / 2; o; o >>= 1)
    c = better(c,
               {__shfl_xor_sync(0xffffffffu, c.logit, o), __shfl_xor_sync(0xffffffffu, c.id, o)});
  return c;
}

// The best of all threads' candidates, to all threads. scratch: [WARPS]
__device__ __forceinline__ Candidate block_best(Candidate c, Candidate *scratch) {
  c = warp_best(c);
  sync_block(); // the scratch may still be read from an earlier use
  if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = c;
  sync_block();
  c = scratch[0];
  for (int i = 1; i < WARPS; i++) c = better(c, scratch[i]);
  return c;
}

// After lm_head's barrier: the token that all slots agree on, or -1.
__device__ __forceinline__ int32_t combine_slots(const Params &p, Candidate *scratch) {
  Candidate best = no_candidate();
  for (uint32_t i = threadIdx.x; i < p.slots; i += BLOCK) {
    const uint2 *slot = (const uint2 *)&p.candidate[i];
    Candidate c = {load_l2(&((const float *)slot)[0]),
                   (int32_t)load_l2(&((const uint32_t *)slot)[1])};
    best = better(best, c);
  }
  return block_best(best, scratch).id;
}
//< argmax
#endif
