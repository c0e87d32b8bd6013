/*: # The wrong versions are wrong

The chapters show some kernels in a first, wrong version. Each runs here beside the right one, in order, in reverse and in random orders: the right one must give one
answer in all of them, and some order must betray the wrong one. :*/
#include "chapters/06-wrong-barrier.cu"
#include "chapters/08-wrong-norm.cu"
#include "chapters/10-wrong-argmax.cu"

static int tests, failures;
static void result(bool right, const char *name) {
  printf("%s %d - %s\n", right ? "ok" : "not ok", ++tests, name);
  fflush(stdout);
  failures += !right;
}

typedef std::vector<uint32_t> Bits; // what a run leaves
enum { ORDERS = 24 };
template <class F> static int orders_that_differ(const Bits &want, F f) {
  int n = 0;
  for (uint64_t order = 0; order < ORDERS; order++) {
    fiber::settings = fiber::Settings{};
    fiber::settings.order = order == 0   ? fiber::FORWARD
                            : order == 1 ? fiber::REVERSE
                                         : fiber::RANDOM;
    fiber::settings.seed = order;
    n += f() != want;
  }
  return n;
}
template <class F> static void right(const char *name, const Bits &want, F f) {
  const int n = orders_that_differ(want, f);
  if (n) printf("# %d of %d orders differ\n", n, ORDERS);
  result(n == 0, name);
}
template <class F> static void wrong(const char *name, const Bits &want, F f) {
  const int n = orders_that_differ(want, f);
  printf("# %d of %d orders betray it\n", n, ORDERS);
  result(n > 0, name);
}

template <class T> struct Device { // zeros
  T *p = nullptr;
  explicit Device(size_t n) {
    if (cudaMalloc(&p, n * sizeof(T)) != cudaSuccess) abort();
    cudaMemset(p, 0, n * sizeof(T));
  }
  Device(const Device &) = delete;
  ~Device() { cudaFree(p); }
};

//> test_wrong_barrier
enum { ROUNDS = 6, WORKERS = 4, ALL = WORKERS * BLOCK };

// Each thread makes its value from two of the round before, one of another block and one of another warp.
template <class Barrier>
__global__ void rounds_kernel(const __grid_constant__ Params p, uint32_t *x) {
  Barrier barrier;
  const uint32_t i = blockIdx.x * BLOCK + threadIdx.x;
  for (uint32_t r = 0; r < ROUNDS; r++) {
    const uint32_t *from = x + r % 2 * ALL;
    const uint32_t v = load_l2(from + (i + ALL - BLOCK - 40) % ALL) * 3 +
                       load_l2(from + (i + BLOCK / 2) % ALL) + i;
    store_l2(x + (r + 1) % 2 * ALL + i, v);
    barrier.arrive(p);
    if (!barrier.wait(p, r, 0)) return;
  }
}
template <class Barrier> static Bits run_rounds() {
  Device<uint32_t> x(2 * ALL), count(1);
  Device<Status> status(1);
  Params p = {};
  p.workers = WORKERS, p.barrier_count = count.p, p.status = status.p;
  p.patience_ns = 20000000;
  if (launch_cooperative(rounds_kernel<Barrier>, WORKERS, BLOCK, 0, NULL, p, x.p) != cudaSuccess ||
      status.p->code != STATUS_OK)
    return {};
  return Bits(x.p, x.p + ALL);
}

static void barriers() {
  Bits x(ALL), y(ALL);
  for (uint32_t r = 0; r < ROUNDS; r++, x = y)
    for (uint32_t i = 0; i < ALL; i++)
      y[i] = x[(i + ALL - BLOCK - 40) % ALL] * 3 + x[(i + BLOCK / 2) % ALL] + i;
  right("the barrier", x, run_rounds<GridBarrier>);
  wrong("a barrier that collects one thread's stores", x, run_rounds<BarrierForOneThread>);
  wrong("a barrier that resets its counter", x, run_rounds<BarrierThatResets>);
}
//< test_wrong_barrier

//> test_wrong_norm
typedef float (*Sum)(float, float *);
template <Sum SUM> __global__ void sum_kernel(uint32_t *out) {
  DYNAMIC_SHARED(float, scratch);
  const float v = 1.0f / (float)(threadIdx.x * threadIdx.x + 3);
  out[threadIdx.x] = __float_as_uint(SUM(v, scratch));
}
template <Sum SUM> static Bits run_sum() {
  Device<uint32_t> out(BLOCK);
  if (launch_cooperative(sum_kernel<SUM>, 1, BLOCK, WARPS * sizeof(float), NULL, out.p) !=
      cudaSuccess)
    return {};
  return Bits(out.p, out.p + BLOCK);
}

// As the butterfly adds: by halves.
static float by_halves(std::vector<float> v) {
  for (size_t half = v.size() / 2; half; half /= 2)
    for (size_t i = 0; i < half; i++) v[i] += v[i + half];
  return v[0];
}
static void norms() {
  float sum = 0;
  for (uint32_t w = 0; w < WARPS; w++) {
    std::vector<float> v;
    for (uint32_t t = w * WARP; t < (w + 1) * WARP; t++) v.push_back(1.0f / (float)(t * t + 3));
    sum += by_halves(v);
  }
  const Bits want(BLOCK, __float_as_uint(sum));
  right("a block's sum", want, run_sum<block_sum>);
  wrong("a sum that is read before the barrier", want, run_sum<early_sum>);
  wrong("a sum in the order of arrival", want, run_sum<arrival_sum>);
}
//< test_wrong_norm

//> test_wrong_argmax
enum { LOGITS = 64 };
// A block has every WORKERS-th logit, as its best candidate.
__global__ void slots_kernel(const __grid_constant__ Params p) {
  DYNAMIC_SHARED(Candidate, scratch);
  Candidate best = no_candidate();
  for (uint32_t i = blockIdx.x; i < LOGITS; i += gridDim.x)
    if (i / gridDim.x == threadIdx.x) best = better(best, candidate(p.logits[i], (int32_t)i));
  best = block_best(best, scratch);
  if (threadIdx.x == 0) p.candidate[blockIdx.x] = best;
}
__global__ void combine_kernel(const __grid_constant__ Params p, uint32_t *token) {
  DYNAMIC_SHARED(Candidate, scratch);
  const int32_t id = combine_slots(p, scratch);
  if (threadIdx.x == 0) *token = (uint32_t)id;
}
__global__ void first_come_kernel(const __grid_constant__ Params p, uint64_t *best) {
  for (uint32_t i = blockIdx.x; threadIdx.x == 0 && i < LOGITS; i += gridDim.x)
    first_come_best(best, p.logits[i], (int32_t)i);
}

static Bits run_slots(const std::vector<float> &logit) {
  Device<Candidate> candidate(WORKERS);
  Device<uint32_t> token(1);
  Params p = {};
  p.logits = (float *)logit.data(), p.candidate = candidate.p, p.slots = WORKERS;
  const size_t shared = WARPS * sizeof(Candidate);
  if (launch_cooperative(slots_kernel, WORKERS, BLOCK, shared, NULL, p) != cudaSuccess ||
      launch_cooperative(combine_kernel, 1, BLOCK, shared, NULL, p, token.p) != cudaSuccess)
    return {};
  return {*token.p};
}
static Bits run_first_come(const std::vector<float> &logit) {
  Device<uint64_t> best(1);
  Params p = {};
  p.logits = (float *)logit.data();
  *best.p = __float_as_uint(-INFINITY);
  if (launch_cooperative(first_come_kernel, WORKERS, WARP, 0, NULL, p, best.p) != cudaSuccess)
    return {};
  return {(uint32_t)(*best.p >> 32)};
}

static void argmaxes() {
  std::vector<float> falling(LOGITS), ties(LOGITS, 0.0f), broken(LOGITS, 0.0f);
  for (int i = 0; i < LOGITS; i++) falling[(size_t)i] = (float)-i;
  const Bits largest = {0};
  ties[17] = ties[34] = ties[51] = 5;
  broken[8] = NAN;
  broken[9] = 1;
  right("the largest logit", largest, [&] { return run_slots(falling); });
  right("the lowest id among equals", {17}, [&] { return run_slots(ties); });
  right("a NaN is told", {UINT32_MAX}, [&] { return run_slots(broken); });
  wrong("first come, first served loses the largest logit", largest,
        [&] { return run_first_come(falling); });
  wrong("first come, first served takes any of the equals", {17},
        [&] { return run_first_come(ties); });
  wrong("first come, first served is silent about a NaN", {UINT32_MAX},
        [&] { return run_first_come(broken); });
}
//< test_wrong_argmax

int main() {
  barriers();
  norms();
  argmaxes();
  printf("1..%d\n# %d passed, %d failed\n", tests, tests - failures, failures);
  return failures > 0;
}
