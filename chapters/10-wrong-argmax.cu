/*: ### Wrong: the first to come wins

One word for the whole grid, and whoever has a larger logit replaces it. :*/
#include "argmax.cuh"

/*: **Wrong**, in three ways. Between its look and its store another worker may have stored a larger logit, which is lost. Among equals the winner is whoever came
first, not the lowest id. And a NaN is larger than nothing, so a broken model answers as if nothing had happened. :*/
//> wrong_argmax
__device__ __forceinline__ void first_come_best(uint64_t *best, float logit, int32_t id) {
  const float now = __uint_as_float((uint32_t)load_relaxed64(best));
  if (logit > now) store_relaxed64(best, (uint64_t)(uint32_t)id << 32 | __float_as_uint(logit));
}
//< wrong_argmax
