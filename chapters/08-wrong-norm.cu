/*: ### Wrong: sums of squares

A norm is one number that all threads of a block need, and there are two ways to get it nearly right. :*/
#include "gemv.cuh"

/*: **Wrong.** The barrier between the warps' sums and their addition is missing. A fast warp adds what the slow ones have not written yet, and each warp may
get another scale. :*/
//> wrong_norm_early
__device__ __forceinline__ float early_sum(float v, float *scratch) {
  v = warp_sum(v);
  if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = v;
  float sum = 0; // no __syncthreads() before this loop
  for (int i = 0; i < WARPS; i++) sum += scratch[i];
  return sum;
}
//< wrong_norm_early

/*: **Wrong.** Everybody adds to one number. On a card two warps read it at the same moment and one addition is lost; an atomic would save it, and still the order
of the additions, and with it the last bits, would be another in every run. :*/
//> wrong_norm_arrival
__device__ __forceinline__ float arrival_sum(float v, float *scratch) {
  if (threadIdx.x == 0) *scratch = 0;
  __syncthreads();
  v = warp_sum(v);
  if (threadIdx.x % WARP == 0) *scratch += v; // in the order in which the warps come
  __syncthreads();
  return *scratch;
}
//< wrong_norm_arrival
