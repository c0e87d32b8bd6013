/*: # Tests of the fibers

Kernels small enough to know their answers, in every order; the same kernels with one barrier taken out, which some
order must betray; and everything that may not hang, but must end with a line that names the threads. :*/
#include "fiber.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

static int tests, failures;
static bool failed; // the test that runs

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition)) {                                                                            \
      printf("# %s:%d: %s\n", __FILE__, __LINE__, #condition);                                     \
      failed = true;                                                                               \
    }                                                                                              \
  } while (0)

static void run(const char *name, void (*test)()) {
  fiber::settings = fiber::Settings{};
  failed = false;
  test();
  failures += failed;
  printf("%s %d - %s\n", failed ? "not ok" : "ok", ++tests, name);
  fflush(stdout);
}

/*: ## Helpers :*/
//> test_fiber_helpers
// Device memory that frees itself. Zeros, or copied from `from`.
template <class T> struct Device {
  T *p;
  size_t n;
  explicit Device(size_t n_, const T *from = NULL) : n(n_) {
    CHECK(cudaMalloc(&p, n * sizeof(T)) == cudaSuccess);
    if (from) cudaMemcpy(p, from, n * sizeof(T), cudaMemcpyHostToDevice);
    else cudaMemset(p, 0, n * sizeof(T));
  }
  Device(const Device &) = delete;
  ~Device() { cudaFree(p); }
  std::vector<T> host() const {
    std::vector<T> v(n);
    cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost);
    return v;
  }
};

// What `f` writes to stderr.
template <class F> static std::string stderr_of(F f) {
  FILE *file = tmpfile();
  fflush(stderr);
  int saved = dup(2);
  if (!file || saved < 0 || dup2(fileno(file), 2) < 0) exit(99);
  f();
  fflush(stderr);
  dup2(saved, 2);
  close(saved);
  std::string text((size_t)ftell(file) + 65536, 0);
  rewind(file);
  text.resize(fread(&text[0], 1, text.size(), file));
  fclose(file);
  return text;
}
static bool has(const std::string &text, const char *needle) {
  if (text.find(needle) != std::string::npos) return true;
  printf("# no \"%s\" in: %s\n", needle, text.c_str());
  return false;
}

// True when `f`, in a process of its own, dies.
template <class F> static bool dies(F f) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    if (!freopen("/dev/null", "w", stderr)) _exit(0);
    f();
    _exit(0);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) exit(99);
  return WIFSIGNALED(status) || WEXITSTATUS(status) != 0; // a sanitizer chooses its own
}

// All orders: forward, reverse, and 50 seeds of random.
enum { ORDERS = 52 };
static void set_order(int i) {
  fiber::settings.order = i == 0 ? fiber::FORWARD : i == 1 ? fiber::REVERSE : fiber::RANDOM;
  fiber::settings.seed = (uint64_t)i;
}
//< test_fiber_helpers

/*: ## Warps :*/
//> test_fiber_warps
template <class T> __global__ void shuffles(T *out, int width) {
  unsigned t = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
  T v = (T)(t * 3 + 1);
  for (unsigned by = 0; by < 32; by++) {
    T *o = out + (size_t)by * 4 * n + t;
    o[0] = __shfl_sync(0xffffffff, v, (int)by, width);
    o[n] = __shfl_xor_sync(0xffffffff, v, (int)by, width);
    o[2 * n] = __shfl_up_sync(0xffffffff, v, by, width);
    o[3 * n] = __shfl_down_sync(0xffffffff, v, by, width);
  }
}

template <class T> static void check_shuffles() {
  const unsigned n = 128;
  for (int width = 2; width <= 32; width *= 2)
    for (int order = 0; order < 5; order++) {
      set_order(order);
      Device<T> out(32 * 4 * n);
      CHECK(launch_cooperative(shuffles<T>, 2, n / 2, 0, NULL, out.p, width) == cudaSuccess);
      std::vector<T> got = out.host();
      for (int by = 0; by < 32; by++)
        for (int t = 0; t < (int)n; t++) {
          int lane = t % 32, first = lane / width * width, end = first + width;
          int want[4] = {first + by % width, lane ^ by, lane - by, lane + by};
          if (want[1] >= end) want[1] = lane;
          if (want[2] < first) want[2] = lane;
          if (want[3] >= end) want[3] = lane;
          for (int k = 0; k < 4; k++)
            CHECK(got[(size_t)(by * 4 + k) * n + (size_t)t] == (T)((t - lane + want[k]) * 3 + 1));
        }
    }
}
static void test_shuffles() {
  check_shuffles<float>();
  check_shuffles<int>();
  check_shuffles<unsigned>();
  check_shuffles<long long>();
  check_shuffles<double>();
}

// Halves and quarters of a warp meet by themselves, at different times.
__global__ void parts(unsigned *out) {
  unsigned t = threadIdx.x, sum = t;
  unsigned mask = t < 16 ? 0xffffu : t < 24 ? 0xff0000u : 0xff000000u;
  for (unsigned i = 0; i < (t < 16 ? 7u : 1u); i++)
    for (int o = t < 16 ? 8 : 4; o; o >>= 1) sum += __shfl_xor_sync(mask, sum, o);
  __syncwarp();
  unsigned odd = __ballot_sync(0xffffffff, t % 2);
  bool any = __any_sync(0xffffffff, t == 9), none = __any_sync(0xffffffff, t == 99);
  bool all = __all_sync(mask, t < 16 || t > 20);
  out[t] = sum;
  out[32 + t] = odd;
  out[64 + t] = any | none << 1 | all << 2;
  out[96 + t] = __activemask();
}
static void test_parts() {
  for (int order = 0; order < ORDERS; order++) {
    set_order(order);
    Device<unsigned> out(128);
    CHECK(launch_cooperative(parts, 1, 32, 0, NULL, out.p) == cudaSuccess);
    std::vector<unsigned> got = out.host();
    for (unsigned t = 0; t < 32; t++) {
      unsigned sum = t < 16 ? 120u << 24 : t < 24 ? 156 : 220; // seven rounds: times 16 six times
      CHECK(got[t] == sum);
      CHECK(got[32 + t] == 0xaaaaaaaa);
      CHECK(got[64 + t] == (1u | (t < 16 || t >= 24 ? 4u : 0u)));
    }
  }
}

__global__ void ragged(unsigned *out) { // 40 threads: the last warp has 8 lanes
  unsigned t = threadIdx.x;
  __syncwarp();
  out[t] = __shfl_xor_sync(t < 32 ? 0xffffffffu : 0xffu, t, 7) + __activemask() * 64;
  __syncthreads();
}
static void test_ragged() {
  Device<unsigned> out(40);
  CHECK(launch_cooperative(ragged, 1, 40, 0, NULL, out.p) == cudaSuccess);
  std::vector<unsigned> got = out.host();
  for (unsigned t = 0; t < 40; t++) CHECK(got[t] == (t ^ 7) + (t < 32 ? 0xffffffffu : 0xffu) * 64);
}
//< test_fiber_warps

/*: ## Blocks :*/
//> test_fiber_blocks
__global__ void votes(int *out) {
  int t = (int)threadIdx.x, n = (int)blockDim.x;
  out[t] = __syncthreads_count(t % 3 == 0);
  out[t] += 1000 * __syncthreads_or(t == n - 1);
  out[t] += 10000 * __syncthreads_or(t == n);
  out[t] += 100000 * __syncthreads_and(t < n);
  out[t] += 1000000 * __syncthreads_and(t < n - 1);
}
static void test_votes() {
  for (int order = 0; order < ORDERS; order++) {
    set_order(order);
    Device<int> out(96);
    CHECK(launch_cooperative(votes, 1, 96, 0, NULL, out.p) == cudaSuccess);
    for (int v : out.host()) CHECK(v == 101032);
  }
}

// Warp 0 produces into two slots, warps 1 and 2 consume: barriers 1 and 2 say "full", 3 and 4 "empty".
__global__ void hand_over(unsigned *out, unsigned rounds) {
  DYNAMIC_SHARED(unsigned, slot); // [2, 32]
  unsigned t = threadIdx.x, lane = t % 32, sum = 0;
  for (unsigned r = 0; r < rounds; r++) {
    unsigned s = r % 2;
    if (t < 32) {
      if (r >= 2) bar_sync(3 + s, 96);
      slot[s * 32 + lane] = r * 100 + lane;
      bar_arrive(1 + s, 96);
    } else {
      bar_sync(1 + s, 96);
      sum = sum * 31 + slot[s * 32 + (lane + 1) % 32];
      if (r + 2 < rounds) bar_arrive(3 + s, 96);
    }
  }
  out[t] = sum;
}
static void test_named_barriers() {
  for (int order = 0; order < ORDERS; order++) {
    set_order(order);
    Device<unsigned> out(96);
    CHECK(launch_cooperative(hand_over, 1, 96, 256, NULL, out.p, 9) == cudaSuccess);
    std::vector<unsigned> got = out.host();
    for (unsigned t = 32; t < 96; t++) {
      unsigned sum = 0;
      for (unsigned r = 0; r < 9; r++) sum = sum * 31 + r * 100 + (t + 1) % 32;
      CHECK(got[t] == sum);
    }
  }
}

__global__ void look_at_shared(unsigned *out, unsigned bytes) {
  DYNAMIC_SHARED(unsigned char, s);
  unsigned poison = 0;
  for (unsigned i = 0; i < bytes; i++) poison += s[i] == 0xff;
  __syncthreads();
  s[threadIdx.x] = (unsigned char)(blockIdx.x * 16 + threadIdx.x);
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] =
      poison + s[(threadIdx.x + 1) % blockDim.x] * 1000u + ((uintptr_t)s % 128 == 0) * 1000000u;
}
static void test_shared() {
  Device<unsigned> out(64);
  for (int again = 0; again < 2; again++) {
    CHECK(launch_cooperative(look_at_shared, 4, 16, 37, NULL, out.p, 37) == cudaSuccess);
    std::vector<unsigned> got = out.host();
    for (unsigned i = 0; i < 64; i++)
      CHECK(got[i] == 1000037 + (i / 16 * 16 + (i + 1) % 16) * 1000);
  }
}
//< test_fiber_blocks

/*: ## Barriers that were forgotten

In each kernel `FLAW` takes out one synchronisation. Without a flaw all orders give the reference's bits; with
it, some must not; how many is printed. Most of these errors never show on a card: its warps run nearly in step. :*/
//> test_fiber_flaws
enum Flaw {
  NONE,
  NO_READ_WRITE,  // between the reads of a round and its writes
  NO_WRITE_READ,  // between the writes of a round and the next round's reads
  NO_WARP_SYNC,   // the same, within a warp
  NO_BARRIER,     // one grid barrier of eight is skipped
  ONE_SHORT,      // the grid barrier opens before the last block has come
  NO_SYNC_BEFORE, // thread 0 announces the block before the other threads are done
  NO_SYNC_AFTER,  // thread 0 waits for the grid, the others do not wait for it
  ONE_BUFFER,     // the grid overwrites what others still read
  FLAG_FIRST      // a flag is raised before its data is stored
};

template <Flaw FLAW> __global__ void smooth(float *out, int rounds) {
  DYNAMIC_SHARED(float, s);
  unsigned t = threadIdx.x, n = blockDim.x;
  s[t] = (float)(t * t % 17);
  __syncthreads();
  for (int r = 0; r < rounds; r++) {
    float v = 0.5f * (s[(t + 1) % n] + s[(t + n - 3) % n]);
    if (FLAW != NO_READ_WRITE) __syncthreads();
    s[t] = v;
    if (FLAW != NO_WRITE_READ) __syncthreads();
  }
  out[t] = s[t];
}

template <Flaw FLAW> __global__ void warp_turns(float *out, int rounds) {
  DYNAMIC_SHARED(float, s);
  unsigned t = threadIdx.x;
  float v = (float)(t % 5);
  for (int r = 0; r < rounds; r++) {
    s[t] = v;
    if (FLAW != NO_WARP_SYNC) __syncwarp();
    float w = s[t ^ 5] + 0.25f * v;
    __syncwarp();
    v = w;
  }
  out[t] = v;
}

struct Grids {
  float *x; // [2, blocks * threads]
  uint32_t *arrived;
  int rounds;
};

// With `PLAIN`, results travel through ordinary loads and stores, where nobody is ever interrupted.
template <Flaw FLAW, bool PLAIN> __global__ void relax(const Grids g) {
  unsigned n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x, target = 0;
  for (int r = 0; r < g.rounds; r++) {
    const float *from = g.x + (FLAW == ONE_BUFFER ? 0 : (unsigned)(r & 1) * n);
    float *to = g.x + (FLAW == ONE_BUFFER ? 0 : (unsigned)(~r & 1) * n);
    unsigned left = (i + n - blockDim.x - 1) % n, right = (i + blockDim.x / 2) % n;
    float v = PLAIN ? from[left] + from[right] : load_l2(from + left) + load_l2(from + right);
    v = fmaf(v, 0.375f, (float)(i % 3));
    if (PLAIN) to[i] = v;
    else store_l2(to + i, v);
    if (FLAW == NO_BARRIER && r == 3) continue;
    target += gridDim.x;
    if (FLAW != NO_SYNC_BEFORE) __syncthreads();
    if (threadIdx.x == 0) {
      add_release(g.arrived, 1);
      while (load_acquire(g.arrived) < target - (FLAW == ONE_SHORT)) {}
    }
    if (FLAW != NO_SYNC_AFTER) __syncthreads();
  }
}

// Block 0 hands numbers to block 1, a flag behind each.
template <Flaw FLAW> __global__ void flags(float *data, uint32_t *flag, float *out, int rounds) {
  if (threadIdx.x) return;
  float sum = 0;
  for (int r = 0; r < rounds; r++)
    if (blockIdx.x == 0) {
      if (FLAW == FLAG_FIRST) store_release(flag + r, 1u);
      store_l2(data + r, (float)(r + 1));
      if (FLAW != FLAG_FIRST) store_release(flag + r, 1u);
    } else {
      while (!load_acquire(flag + r)) {}
      sum += load_l2(data + r);
    }
  if (blockIdx.x == 1) *out = sum;
}

template <Flaw FLAW> static std::vector<float> run_smooth() {
  Device<float> out(96);
  CHECK(launch_cooperative(smooth<FLAW>, 1, 96, 384, NULL, out.p, 6) == cudaSuccess);
  return out.host();
}
template <Flaw FLAW> static std::vector<float> run_warp_turns() {
  Device<float> out(64);
  CHECK(launch_cooperative(warp_turns<FLAW>, 1, 64, 256, NULL, out.p, 6) == cudaSuccess);
  return out.host();
}
template <Flaw FLAW, bool PLAIN> static std::vector<float> run_relax() {
  Device<float> x(2 * 4 * 64);
  Device<uint32_t> arrived(1);
  Grids g = {x.p, arrived.p, 8};
  CHECK(launch_cooperative(relax<FLAW, PLAIN>, 4, 64, 0, NULL, g) == cudaSuccess);
  std::vector<float> v = x.host();
  v.resize(4 * 64); // the last of eight rounds wrote here
  return v;
}
template <Flaw FLAW> static std::vector<float> run_flags() {
  Device<float> data(8), out(1);
  Device<uint32_t> flag(8);
  CHECK(launch_cooperative(flags<FLAW>, 2, 32, 0, NULL, data.p, flag.p, out.p, 8) == cudaSuccess);
  return out.host();
}

static int differing(const char *name, const std::vector<float> &want, std::vector<float> (*f)()) {
  int n = 0;
  std::string which;
  for (int order = 0; order < ORDERS; order++) {
    set_order(order);
    if (f() == want) continue;
    n++;
    if (order < 2) which += order ? " reverse" : " forward";
  }
  if (n) printf("# %s: %d of %d orders betray it%s\n", name, n, ORDERS, which.c_str());
  return n;
}

static void test_flaws_block() {
  std::vector<float> s(96), v(96);
  for (unsigned t = 0; t < 96; t++) s[t] = (float)(t * t % 17);
  for (int r = 0; r < 6; r++, s = v)
    for (unsigned t = 0; t < 96; t++) v[t] = 0.5f * (s[(t + 1) % 96] + s[(t + 93) % 96]);
  CHECK(differing("correct", s, run_smooth<NONE>) == 0);
  CHECK(differing("no __syncthreads before writing", s, run_smooth<NO_READ_WRITE>) > 0);
  CHECK(differing("no __syncthreads before reading", s, run_smooth<NO_WRITE_READ>) > 0);
}
static void test_flaws_warp() {
  std::vector<float> s(64), v(64);
  for (unsigned t = 0; t < 64; t++) s[t] = (float)(t % 5);
  for (int r = 0; r < 6; r++, s = v)
    for (unsigned t = 0; t < 64; t++) v[t] = s[t ^ 5] + 0.25f * s[t];
  CHECK(differing("correct", s, run_warp_turns<NONE>) == 0);
  CHECK(differing("no __syncwarp", s, run_warp_turns<NO_WARP_SYNC>) > 0);
}
template <bool PLAIN> static void flaws_grid() {
  const unsigned n = 4 * 64;
  std::vector<float> x(n), y(n);
  for (int r = 0; r < 8; r++, x = y)
    for (unsigned i = 0; i < n; i++)
      y[i] = fmaf(x[(i + n - 65) % n] + x[(i + 32) % n], 0.375f, (float)(i % 3));
  CHECK(differing("correct", x, run_relax<NONE, PLAIN>) == 0);
  CHECK(differing("one grid barrier missing", x, run_relax<NO_BARRIER, PLAIN>) > 0);
  CHECK(differing("a grid barrier that is one short", x, run_relax<ONE_SHORT, PLAIN>) > 0);
  CHECK(differing("no __syncthreads before arriving", x, run_relax<NO_SYNC_BEFORE, PLAIN>) > 0);
  CHECK(differing("no __syncthreads after waiting", x, run_relax<NO_SYNC_AFTER, PLAIN>) > 0);
  CHECK(differing("one buffer for old and new", x, run_relax<ONE_BUFFER, PLAIN>) > 0);
}
static void test_flaws_grid() { flaws_grid<false>(); }
static void test_flaws_grid_plain() { flaws_grid<true>(); }
static void test_flaws_flag() {
  std::vector<float> want = {36};
  CHECK(differing("correct", want, run_flags<NONE>) == 0);
  CHECK(differing("flag before data", want, run_flags<FLAG_FIRST>) > 0);
}
//< test_fiber_flaws

/*: ## A ring

One warp fetches pieces into a ring of slots, the others add them up and spoil the slot before they give it back. Without a flaw every order and
every time of landing gives the same sums. Each order of a flawed ring runs in a process of its own, because it may die: of AddressSanitizer,
which stands guard over bytes that have not landed, or of a refused copy. It is found out when it dies or its sums are wrong. :*/
//> test_fiber_ring
enum RingFlaw {
  RING_RIGHT,
  NO_FULL,      // consumers do not wait for the bytes
  WRONG_PARITY, // they wait for the phase before
  NO_EMPTY,     // the producer does not wait until a slot is free
  EARLY_EMPTY,  // a consumer gives the slot back before it has read it
  ONE_CONSUMER, // a slot counts as empty when the first warp has left it
  TOO_MANY,     // more bytes are announced than come
  NO_ARRIVE,    // a consumer never gives the slots back
  NO_DRAIN      // nobody waits for the last piece
};
enum {
  RING_CONSUMERS = 2,
  RING_SLOTS = 3,
  RING_FLOATS = 4 * 32 * RING_CONSUMERS,
  RING_PIECES = 11
};

template <RingFlaw FLAW> __global__ void ring(const float *from, float *out, uint32_t *nans) {
  DYNAMIC_SHARED(unsigned char, shared);
  uint64_t *full = (uint64_t *)shared, *empty = full + RING_SLOTS; // [RING_SLOTS] each
  uint32_t *fetched = (uint32_t *)(empty + RING_SLOTS);
  float *slots = (float *)(shared + 128); // [RING_SLOTS, RING_FLOATS]
  unsigned t = threadIdx.x, warp = t / 32;
  if (t == 0) {
    for (unsigned s = 0; s < RING_SLOTS; s++) {
      mbarrier_init(full + s, TAPE_FULL_ARRIVALS);
      mbarrier_init(empty + s, FLAW == ONE_CONSUMER ? 1 : RING_CONSUMERS);
    }
    mbarrier_init_fence();
    *fetched = 0;
  }
  __syncthreads();
  const float *mine = from + (size_t)blockIdx.x * RING_PIECES * RING_FLOATS;
  if (warp == RING_CONSUMERS) {
    for (unsigned i = 0; i < RING_PIECES; i++) {
      unsigned s = i % RING_SLOTS, parity = i / RING_SLOTS % 2;
      const unsigned bytes = RING_FLOATS * 4, first = i % 4 * 16 + 16; // in two copies
      if (FLAW != NO_EMPTY)
        while (!mbarrier_test(empty + s, parity ^ 1)) {}
      unsigned char *to = (unsigned char *)(slots + (size_t)s * RING_FLOATS);
      const unsigned char *piece = (const unsigned char *)(mine + (size_t)i * RING_FLOATS);
      fence_async_proxy();
      tape_begin(full + s, bytes + (FLAW == TOO_MANY) * 16);
      tape_copy(to, piece, first, full + s);
      tape_copy(to + first, piece + first, bytes - first, full + s);
      tape_end(full + s);
      if (t % 32 == 0) store_shared_release(fetched, i + 1);
    }
    return;
  }
  float sum = 0;
  for (unsigned i = 0; i < RING_PIECES; i++) {
    unsigned s = i % RING_SLOTS, parity = i / RING_SLOTS % 2;
    if (FLAW == NO_DRAIN && i + 1 == RING_PIECES) break;
    if (FLAW != NO_FULL)
      while (!mbarrier_test(full + s, FLAW == WRONG_PARITY ? parity ^ 1 : parity)) {}
    bool back = t % 32 == 0 && !(FLAW == NO_ARRIVE && warp == 1);
    if (FLAW == EARLY_EMPTY && back) mbarrier_arrive(empty + s);
    float *four = slots + (size_t)s * RING_FLOATS + t * 4;
    for (unsigned k = 0; k < 4; k++) {
      sum = fmaf(four[k], (float)(k + i % 3), sum);
      four[k] = 1e6f;
    }
    fence_async_shared();
    __syncwarp();
    if (FLAW != EARLY_EMPTY && back) mbarrier_arrive(empty + s);
  }
  while (load_shared_acquire(fetched) < RING_PIECES) {}
  bool nan = bar_sync_or(1, 32 * RING_CONSUMERS, isnan(sum));
  if (t == 0) store_l2(nans + blockIdx.x, (uint32_t)nan);
  store_relaxed(out + blockIdx.x * 32 * RING_CONSUMERS + t, sum);
}

enum { RING_BLOCKS = 2, RING_SUMS = RING_BLOCKS * 32 * RING_CONSUMERS };
// Whether the sums are the right ones.
template <RingFlaw FLAW> static bool ring_works() {
  std::vector<float> x((size_t)RING_BLOCKS * RING_PIECES * RING_FLOATS);
  for (size_t i = 0; i < x.size(); i++) x[i] = (float)(i * 2654435761u % 1000 % 17);
  std::vector<float> want(RING_SUMS);
  for (size_t j = 0; j < RING_SUMS; j++) {
    size_t block = j / (32 * RING_CONSUMERS), t = j % (32 * RING_CONSUMERS);
    for (size_t i = 0; i < RING_PIECES; i++)
      for (size_t k = 0; k < 4; k++)
        want[j] += x[(block * RING_PIECES + i) * RING_FLOATS + t * 4 + k] * (float)(k + i % 3);
  }
  Device<float> from(x.size(), x.data()), out(RING_SUMS);
  Device<uint32_t> nans(RING_BLOCKS);
  fiber::settings.patience = 100000;
  size_t shared = 128 + RING_SLOTS * RING_FLOATS * 4;
  cudaError_t e = launch_cooperative(ring<FLAW>, RING_BLOCKS, 32 * (RING_CONSUMERS + 1), shared,
                                     NULL, from.p, out.p, nans.p);
  return e == cudaSuccess && out.host() == want && nans.host() == std::vector<uint32_t>{0, 0};
}

static const fiber::Copies all_copies[] = {fiber::BY_ORDER, fiber::AT_ONCE, fiber::LATE};

static void test_ring() {
  for (fiber::Copies copies : all_copies)
    for (int order = 0; order < ORDERS; order++) {
      set_order(order);
      fiber::settings.copies = copies;
      CHECK(ring_works<RING_RIGHT>());
    }
}

enum { FORKS = 12 }; // orders; to fork under AddressSanitizer takes its time
template <RingFlaw FLAW> static int found_out(const char *name) {
  int n = 0;
  std::string which;
  for (int order = 0; order < FORKS; order++) {
    set_order(order);
    if (!dies([] {
          if (!ring_works<FLAW>()) _exit(1);
        }))
      continue;
    n++;
    if (order < 2) which += order ? " reverse" : " forward";
  }
  printf("# %s: %d of %d orders betray it%s\n", name, n, FORKS, which.c_str());
  return n;
}
static void test_flaws_ring() {
  CHECK(found_out<RING_RIGHT>("a ring that is right") == 0);
  CHECK(found_out<NO_FULL>("no waiting for the bytes") > 0);
  CHECK(found_out<WRONG_PARITY>("waiting for the phase before") > 0);
  CHECK(found_out<NO_EMPTY>("no waiting for a free slot") > 0);
  CHECK(found_out<EARLY_EMPTY>("a slot given back before it is read") > 0);
  CHECK(found_out<ONE_CONSUMER>("a slot that one consumer's arrival frees") > 0);
  CHECK(found_out<TOO_MANY>("too many bytes announced") == FORKS);
  CHECK(found_out<NO_ARRIVE>("a slot that is not given back") == FORKS);
  CHECK(found_out<NO_DRAIN>("no waiting for the last piece") > 0);
  // What never ends is reported, with what is missing.
  for (int order = 0; order < 3; order++) {
    set_order(order);
    std::string text = stderr_of([] { CHECK(!ring_works<NO_ARRIVE>()); });
    CHECK(has(text, "no progress") && has(text, "polls in mbarrier_test(0x"));
    CHECK(has(text, "which lacks 1 of 2 arrivals and 0 bytes"));
    text = stderr_of([] { CHECK(!ring_works<TOO_MANY>()); });
    CHECK(has(text, "no progress") && has(text, "which lacks 0 of 1 arrivals and 16 bytes"));
  }
}

// One warp alone with an mbarrier: each line is one step, and what the test says of both parities after it.
__global__ void phases(const uint32_t *from, uint32_t *out) {
  DYNAMIC_SHARED(uint64_t, b); // at 16 bytes, 32 bytes to copy to
  if (threadIdx.x) return;
  unsigned n = 0;
  uint32_t *to = (uint32_t *)(b + 2);
  auto look = [&] {
    bool even = mbarrier_test(b, 0), odd = mbarrier_test(b, 1);
    out[n++] = even + 2u * odd;
  };
  mbarrier_init(b, 2), look();
  mbarrier_arrive(b), look();
  mbarrier_arrive(b), look(); // ends phase 0
  mbarrier_expect(b, 32), look();
  mbarrier_arrive(b), look(); // all have come, the bytes have not
  bulk_copy(to, from, 16, b), bulk_copy(to + 4, from, 16, b);
  while (mbarrier_test(b, 0)) {}
  look(); // ends phase 1
  out[n++] = to[0] + to[7];
  bulk_copy(to, from + 4, 16, b); // before anybody expects it
  for (int i = 0; i < 10; i++) nanosleep_short();
  look();
  mbarrier_arrive(b), look(); // a phase does not end while bytes are below zero
  mbarrier_expect(b, 16);
  while (!mbarrier_test(b, 0)) {}
  look(); // ends phase 2
  out[n++] = to[0] + to[7];
}
static void test_phases() {
  const uint32_t x[8] = {1, 2, 3, 4, 50, 60, 70, 80};
  const uint32_t want[11] = {2, 2, 1, 1, 1, 2, 5, 2, 2, 1, 54};
  for (fiber::Copies copies : all_copies)
    for (int order = 0; order < ORDERS; order++) {
      set_order(order);
      fiber::settings.copies = copies;
      Device<uint32_t> from(8, x), out(11);
      CHECK(launch_cooperative(phases, 1, 32, 48, NULL, from.p, out.p) == cudaSuccess);
      CHECK(out.host() == std::vector<uint32_t>(want, want + 11));
    }
}

// What a thread finds that does not wait: NaNs, unless copies land at once. And time does not pass while one is in flight, so that
// nobody's patience ends.
__global__ void hasty(const float *from, uint32_t *out) {
  DYNAMIC_SHARED(float, s); // [4] and an mbarrier
  uint64_t *b = (uint64_t *)(s + 4);
  s[0] = 1;
  mbarrier_init(b, 1);
  mbarrier_expect(b, 16);
  bulk_copy(s, from, 16, b);
  unsigned long long begin = fiber::grid.nanoseconds;
  *out = isnan(s[0]);
  while (!mbarrier_test(b, 0)) {}
  *out += 2 * (s[0] == 7) + 4 * (fiber::grid.nanoseconds - begin > 2 * fiber::IDLE_NS);
}
static void test_hasty() {
  const float x[4] = {7, 7, 7, 7};
  Device<float> from(4, x);
  Device<uint32_t> out(1);
  auto go = [&] { return launch_cooperative(hasty, 1, 1, 24, NULL, from.p, out.p); };
  fiber::settings.copies = fiber::AT_ONCE;
  CHECK(go() == cudaSuccess && out.host()[0] == 2);
  fiber::settings.copies = fiber::LATE;
#ifdef FIBER_ASAN
  CHECK(dies(go));
#else
  CHECK(go() == cudaSuccess && out.host()[0] == 3);
#endif
}

// Warps that meet between their polls: none of them ever polls twice in a row.
__global__ void meeting(const float *from, float *out) {
  DYNAMIC_SHARED(float, s); // [4] and an mbarrier
  uint64_t *b = (uint64_t *)(s + 4);
  unsigned t = threadIdx.x;
  if (t == 0) mbarrier_init(b, 1);
  __syncthreads();
  if (t == 0) {
    mbarrier_expect(b, 16);
    bulk_copy(s, from, 16, b);
  }
  while (!__any_sync(0xffffffff, t % 32 == 0 && mbarrier_test(b, 0))) {}
  while (!bar_sync_or(1, 64, mbarrier_test(b, 0))) {}
  out[t] = s[t % 4];
}
static void test_meeting() {
  std::vector<float> want(64, 5);
  Device<float> from(4, want.data());
  for (fiber::Copies copies : all_copies)
    for (int order = 0; order < ORDERS; order++) {
      set_order(order);
      fiber::settings.copies = copies;
      Device<float> out(64);
      CHECK(launch_cooperative(meeting, 1, 64, 24, NULL, from.p, out.p) == cudaSuccess);
      CHECK(out.host() == want);
    }
}

// Sixteen bytes as one, eight as one, and the votes of a part of the block.
__global__ void words(float *f, uint64_t *u, uint32_t *votes) {
  unsigned t = threadIdx.x, block = blockIdx.x;
  if (block == 0) {
    store_relaxed(f + t, (float)t + 1);
    store_relaxed64(u + t, (uint64_t)t << 40 | 1);
  } else {
    float4 v;
    do v = load_relaxed4((const float4 *)f + t / 4);
    while (!(v.x != 0 && v.y != 0 && v.z != 0 && v.w != 0));
    while (load_relaxed(f + t) == 0) {}
    uint64_t w;
    while (!(w = load_relaxed64(u + t))) {}
    bool right = v.x == (float)(t / 4 * 4 + 1) && v.w == v.x + 3 && w >> 40 == t;
    bool some = t < 64 && bar_sync_or(2, 64, right && t == 9), none = true;
    if (t < 64) none = bar_sync_or(2, 64, !right);
    votes[t] = right + 2u * some + 4u * none;
  }
}
static void test_words() {
  for (int order = 0; order < ORDERS; order++) {
    set_order(order);
    Device<float> f(96);
    Device<uint64_t> u(96);
    Device<uint32_t> votes(96);
    CHECK(launch_cooperative(words, 2, 96, 0, NULL, f.p, u.p, votes.p) == cudaSuccess);
    for (unsigned t = 0; t < 96; t++) CHECK(votes.host()[t] == (t < 64 ? 3 : 5));
  }
}
//< test_fiber_ring

/*: ## Orders :*/
//> test_fiber_orders
__global__ void sign_in(uint32_t *next, uint32_t *list) {
  for (int i = 0; i < 2; i++) {
    uint32_t at = *next; // nothing may run between these two lines: no wait, no load that polls
    *next = at + 1;
    list[at] = blockIdx.x * blockDim.x + threadIdx.x;
    __syncthreads();
  }
}
static std::vector<uint32_t> signed_in() {
  Device<uint32_t> next(1), list(512);
  CHECK(launch_cooperative(sign_in, 4, 64, 0, NULL, next.p, list.p) == cudaSuccess);
  return list.host();
}
static void test_orders() {
  set_order(0);
  std::vector<uint32_t> forward = signed_in();
  for (uint32_t i = 0; i < 512; i++) CHECK(forward[i] == i % 256);
  set_order(1);
  std::vector<uint32_t> reverse = signed_in();
  for (uint32_t i = 0; i < 512; i++) CHECK(reverse[i] == 255 - i % 256);
  set_order(2);
  std::vector<uint32_t> random = signed_in();
  CHECK(random == signed_in());
  CHECK(random != forward && random != reverse);
  set_order(3);
  CHECK(random != signed_in());
}

__global__ void race(uint32_t *counter, uint32_t *sum) {
  for (int i = 0; i < 10; i++) {
    uint32_t got = atomic_add_acq_rel(counter, 3);
    if (got % 3) __trap();
    add_release(sum, got);
    fence_gpu();
  }
}
static void test_atomics() {
  for (int order = 0; order < ORDERS; order++) {
    set_order(order);
    Device<uint32_t> counter(1), sum(1);
    CHECK(launch_cooperative(race, 4, 33, 0, NULL, counter.p, sum.p) == cudaSuccess);
    CHECK(counter.host()[0] == 4 * 33 * 10 * 3);
    CHECK(sum.host()[0] == 3u * (1320 * 1319 / 2));
  }
}
//< test_fiber_orders

/*: ## What must not hang :*/
//> test_fiber_hangs
enum Hang {
  EXIT_BEFORE_SYNC,
  LANE_MISSING,
  LANE_LATE,
  MASKS_DIFFER,
  CALLS_DIFFER,
  NOT_IN_MASK,
  READ_OUTSIDE,
  NO_SUCH_LANE,
  BARRIER_NUMBER,
  BARRIER_COUNT,
  BARRIER_ODD,
  BARRIER_SHORT,
  POLL_FOR_EVER,
  POLL_WITH_WARPS,
  BLOCK_MISSING,
  TRAP,
  COPY_IN_FLIGHT,
  COPY_ODD,
  COPY_FROM_ODD,
  COPY_TO_ODD,
  COPY_NOTHING,
  COPY_OUTSIDE,
  COPY_TWICE,
  COPY_LANES,
  COPY_ONE_LANE,
  COPY_TOO_MUCH,
  ARRIVE_TOO_OFTEN,
  ARRIVE_NOWHERE,
  ARRIVE_OUTSIDE,
  ARRIVE_TOO_FEW,
  TEST_PARITY,
  INIT_NOBODY
};
// Thread 40 makes the mistake.
template <Hang HANG> __device__ void hang_copy(const uint32_t *from, uint64_t *b, uint32_t *to) {
  unsigned t = threadIdx.x;
  if (t == 40 && HANG != ARRIVE_NOWHERE) mbarrier_init(b, HANG == INIT_NOBODY ? 0 : 2);
  __syncthreads();
  switch (HANG) {
  case COPY_LANES: // the lanes of a warp mean different things
    if (t >= 32) tape_copy(to + (t == 40) * 4, from, 16, b);
    return;
  case COPY_ONE_LANE:
    if (t == 32) tape_begin(b, 16);
    return;
  case ARRIVE_TOO_FEW:
    if (t == 40) mbarrier_arrive(b);
    while (!mbarrier_test(b, 0)) {}
    return;
  default: break;
  }
  if (t != 40) return;
  switch (HANG) {
  case COPY_IN_FLIGHT: bulk_copy(to, from, 16, b); break;
  case COPY_ODD: bulk_copy(to, from, 24, b); break;
  case COPY_FROM_ODD: bulk_copy(to, from + 1, 16, b); break;
  case COPY_TO_ODD: bulk_copy(to + 2, from, 16, b); break;
  case COPY_NOTHING: bulk_copy(to, from, 0, b); break;
  case COPY_OUTSIDE: bulk_copy(to + 248, from, 32, b); break;
  case COPY_TWICE:
    bulk_copy(to, from, 32, b);
    bulk_copy(to + 4, from, 16, b);
    break;
  case COPY_TOO_MUCH: mbarrier_expect(b, 1 << 20); break;
  case ARRIVE_TOO_OFTEN:
    mbarrier_expect(b, 16); // holds the phase back
    mbarrier_arrive(b);
    mbarrier_arrive(b);
    break;
  case ARRIVE_NOWHERE: mbarrier_arrive(b); break;
  case ARRIVE_OUTSIDE: mbarrier_arrive(b + 128); break;
  case TEST_PARITY: mbarrier_test(b, 2); break;
  default: break;
  }
}

template <Hang HANG> __global__ void hang(uint32_t *flag) {
  DYNAMIC_SHARED(uint32_t, s);
  unsigned t = threadIdx.x, all = 0xffffffff;
  if (blockIdx.x == 0) return;
  switch (HANG) {
  case EXIT_BEFORE_SYNC:
    if (t == 5) return;
    __syncthreads();
    break;
  case LANE_MISSING:
    if (t != 37) s[t] = __shfl_xor_sync(all, t, 1);
    break;
  case LANE_LATE: // lane 5 skips one of two shuffles, and stands in the second when others need it
    if (t != 5) s[t] = __shfl_xor_sync(all, t, 1);
    s[t] = __shfl_xor_sync(all, t, 1);
    break;
  case MASKS_DIFFER: s[t] = __shfl_xor_sync(t % 32 < 16 ? all : 0xffff0001u, t, 1); break;
  case CALLS_DIFFER:
    if (t % 2) s[t] = __shfl_xor_sync(all, t, 1);
    else s[t] = __ballot_sync(all, 1);
    break;
  case NOT_IN_MASK: s[t] = __shfl_xor_sync(0xfu, t, 1); break;
  case READ_OUTSIDE:
    if (t < 4) s[t] = __shfl_sync(0xfu, t, 4);
    break;
  case NO_SUCH_LANE:
    if (t >= 64) s[0] = __shfl_sync(all, t, 0);
    break;
  case BARRIER_NUMBER: bar_sync(16, 64); break;
  case BARRIER_COUNT: bar_sync(1, t % 2 ? 64 : 96); break;
  case BARRIER_ODD: bar_sync(1, 40); break;
  case BARRIER_SHORT:
    if (t < 32) bar_sync(1, 64);
    break;
  case POLL_FOR_EVER:
    while (!load_acquire(flag)) {}
    break;
  case POLL_WITH_WARPS:
    while (!__any_sync(all, t < 32 && load_l2(flag))) {}
    break;
  case BLOCK_MISSING:
    if (t == 0) {
      add_release(flag, 1);
      while (load_acquire(flag) < gridDim.x) {}
    }
    __syncthreads();
    break;
  case TRAP:
    if (t == 3) __trap();
    break;
  default: hang_copy<HANG>(flag, (uint64_t *)s, s + 4); break;
  }
}

template <Hang HANG>
static void must_end(cudaError_t want, const char *first, const char *second = "",
                     unsigned threads = 64) {
  for (int order = 0; order < 3; order++) {
    set_order(order);
    Device<uint32_t> flag(16);
    cudaError_t got = cudaSuccess;
    std::string text =
        stderr_of([&] { got = launch_cooperative(hang<HANG>, 3, threads, 1024, NULL, flag.p); });
    CHECK(got == want);
    CHECK(has(text, first));
    CHECK(has(text, second));
    CHECK(cudaGetLastError() == want && cudaPeekAtLastError() == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == want && cudaGetLastError() == want);
  }
  set_order(0); // and the next launch finds everything in order
  Device<uint32_t> next(1), list(512);
  CHECK(launch_cooperative(sign_in, 4, 64, 0, NULL, next.p, list.p) == cudaSuccess);
  CHECK(next.host()[0] == 512 && cudaDeviceSynchronize() == cudaSuccess);
}

static void test_deadlocks() {
  must_end<EXIT_BEFORE_SYNC>(
      cudaErrorLaunchTimeout, "block 1 thread 5: has exited",
      "block 2 threads 6-63: waits in __syncthreads, barrier 0, where 63 of 64");
  must_end<LANE_MISSING>(cudaErrorLaunchTimeout, "block 1 thread 37: has exited",
                         "block 1 threads 38-63: waits in __shfl_xor_sync(0xffffffff) for lanes "
                         "0x00000020");
  must_end<LANE_LATE>(cudaErrorLaunchTimeout, "block 1 thread 5: has exited",
                      "waits in __shfl_xor_sync(0xffffffff) for lanes 0x00000020");
  must_end<BARRIER_SHORT>(cudaErrorLaunchTimeout,
                          "block 1 threads 0-31: waits in bar_sync, barrier 1, where 32 of 64");
}
static void test_livelocks() {
  must_end<BLOCK_MISSING>(cudaErrorLaunchTimeout, "block 1 thread 0: polls in load_acquire(0x",
                          "block 1 threads 1-63: waits in __syncthreads");
  fiber::settings.patience = 1000000;
  must_end<POLL_FOR_EVER>(cudaErrorLaunchTimeout, "no progress", "polls in load_acquire(0x");
}
static void test_warp_livelock() {
  fiber::settings.patience = 1000000;
  must_end<POLL_WITH_WARPS>(cudaErrorLaunchTimeout, "no progress", "block 2");
}
static void test_misuse() {
  must_end<MASKS_DIFFER>(cudaErrorLaunchFailure, "__shfl_xor_sync(0x", "0xffff0001");
  must_end<CALLS_DIFFER>(cudaErrorLaunchFailure, "__ballot_sync(0xffffffff)",
                         "__shfl_xor_sync(0xffffffff)");
  must_end<NOT_IN_MASK>(cudaErrorLaunchFailure, "mask 0x0000000f in lane");
  must_end<READ_OUTSIDE>(cudaErrorLaunchFailure, "mask 0x0000000f does not name lane 4");
  must_end<NO_SUCH_LANE>(cudaErrorLaunchFailure, "mask 0xffffffff in lane", "of 16", 80);
  must_end<BARRIER_NUMBER>(cudaErrorLaunchFailure, "barrier 16");
  must_end<BARRIER_COUNT>(cudaErrorLaunchFailure, "bar_sync: barrier 1 is of", "elsewhere", 96);
  must_end<BARRIER_ODD>(cudaErrorLaunchFailure, "barrier 1 of 40 threads");
  must_end<TRAP>(cudaErrorLaunchFailure, "thread 3: __trap");
}

static void test_copy_misuse() {
  fiber::settings.copies = fiber::LATE; // so that what is in flight stays there
  must_end<COPY_IN_FLIGHT>(cudaErrorLaunchFailure, "exits, and a copy to 0x");
  must_end<COPY_ODD>(cudaErrorLaunchFailure, "thread 40: bulk_copy: 24 bytes from 0x");
  must_end<COPY_FROM_ODD>(cudaErrorLaunchFailure, "are not multiples of 16");
  must_end<COPY_TO_ODD>(cudaErrorLaunchFailure, "are not multiples of 16");
  must_end<COPY_NOTHING>(cudaErrorLaunchFailure, "bulk_copy: 0 bytes from 0x");
  must_end<COPY_OUTSIDE>(cudaErrorLaunchFailure, "outside of shared memory");
  must_end<COPY_TWICE>(cudaErrorLaunchFailure, "where another is in flight");
  must_end<COPY_LANES>(cudaErrorLaunchFailure, "tape_copy: other arguments than lane 0's");
  must_end<COPY_ONE_LANE>(cudaErrorLaunchTimeout, "block 1 thread 32: waits in tape_begin");
  must_end<COPY_TOO_MUCH>(cudaErrorLaunchFailure, "1048576 bytes to come");
  must_end<ARRIVE_TOO_OFTEN>(cudaErrorLaunchFailure, "an arrival more than the 2 of a phase");
  must_end<ARRIVE_NOWHERE>(cudaErrorLaunchFailure, "): not an mbarrier");
  must_end<ARRIVE_OUTSIDE>(cudaErrorLaunchFailure, "not 8 aligned bytes of shared memory");
  must_end<TEST_PARITY>(cudaErrorLaunchFailure, "parity 2");
  must_end<INIT_NOBODY>(cudaErrorLaunchFailure, "0 arrivals");
  fiber::settings.patience = 100000;
  must_end<ARRIVE_TOO_FEW>(cudaErrorLaunchTimeout, "no progress",
                           "block 1 threads 0-63: polls in mbarrier_test(0x");
}

// A kernel that times its wait out gets to do so, and finds the same time in every run.
__global__ void time_out(uint32_t *flag, unsigned long long *waited) {
  if (threadIdx.x == 0 && blockIdx.x != 2) {
    unsigned long long begin = global_nanoseconds();
    while (!load_acquire(flag)) {
      nanosleep_short();
      waited[blockIdx.x] = global_nanoseconds() - begin;
      if (waited[blockIdx.x] > 2000000000) break;
    }
  }
  __syncthreads();
}
static void test_time() {
  for (int order = 0; order < 4; order++) {
    set_order(order);
    Device<uint32_t> flag(1);
    Device<unsigned long long> a(4), b(4);
    CHECK(launch_cooperative(time_out, 4, 64, 0, NULL, flag.p, a.p) == cudaSuccess);
    CHECK(launch_cooperative(time_out, 4, 64, 0, NULL, flag.p, b.p) == cudaSuccess);
    CHECK(a.host() == b.host());
    CHECK(a.host()[0] > 2000000000 && a.host()[0] < 2100000000);
  }
}

// Time must not run away from a block that is busy while the others wait for it.
__global__ void busy(uint32_t *flag, float *out, unsigned long long *waited) {
  if (blockIdx.x == 0) {
    float v = (float)threadIdx.x;
    for (int i = 0; i < 20000; i++) v = 0.5f * (v + __shfl_xor_sync(0xffffffffu, v, 1 << i % 5));
    out[threadIdx.x] = v;
    __syncthreads();
    if (threadIdx.x == 0) store_release(flag, 1u);
  } else if (threadIdx.x == 0) {
    unsigned long long begin = global_nanoseconds();
    while (!load_acquire(flag)) {}
    waited[blockIdx.x] = global_nanoseconds() - begin;
  }
}
static void test_busy() {
  for (int order = 0; order < 4; order++) {
    set_order(order);
    Device<uint32_t> flag(1);
    Device<float> out(64);
    Device<unsigned long long> waited(4);
    CHECK(launch_cooperative(busy, 4, 64, 0, NULL, flag.p, out.p, waited.p) == cudaSuccess);
    for (int b = 1; b < 4; b++) CHECK(waited.host()[b] < 500000000);
  }
}
//< test_fiber_hangs

/*: ## Memory :*/
//> test_fiber_memory
__global__ void touch(const unsigned char *p, size_t at, bool shared, unsigned char *out) {
  DYNAMIC_SHARED(unsigned char, s);
  if (threadIdx.x == 0) *out = shared ? s[at] : p[at];
}
__device__ int deep(volatile int *n) {
  char room[512];
  memset(room, *n, sizeof room);
  return ++*n > 0 ? deep(n) + room[*n % 512] : 0;
}
__global__ void overflow(int *out) {
  volatile int n = 0;
  if (threadIdx.x == 0) *out = deep(&n);
}
static void test_bounds() {
  Device<unsigned char> p(100), out(1);
  CHECK(launch_cooperative(touch, 2, 32, 37, NULL, p.p, 36, true, out.p) == cudaSuccess);
  CHECK(out.host()[0] == 0xff);
  Device<int> n(1);
  CHECK(dies([&] { launch_cooperative(overflow, 2, 32, 0, NULL, n.p); }));
  CHECK(dies([&] { launch_cooperative(touch, 2, 32, 0, NULL, p.p, 0, true, out.p); }));
#ifdef FIBER_ASAN
  CHECK(dies([&] { launch_cooperative(touch, 2, 32, 37, NULL, p.p, 37, true, out.p); }));
  CHECK(dies([&] { launch_cooperative(touch, 2, 32, 0, NULL, p.p, 100, false, out.p); }));
  CHECK(dies([&] { launch_cooperative(touch, 2, 32, 0, NULL, p.p, (size_t)-1, false, out.p); }));
  CHECK(dies([&] { cudaMemcpy(p.p, p.p + 1, 100, cudaMemcpyDeviceToDevice); }));
#endif
}

static void test_allocation() {
  size_t left, total;
  fiber::settings.memory = 1000;
  CHECK(cudaMemGetInfo(&left, &total) == cudaSuccess && left == 1000 && total == 1000);
  unsigned char *p, *q;
  CHECK(cudaMalloc(&p, 600) == cudaSuccess && p && (uintptr_t)p % 256 == 0);
  for (int i = 0; i < 600; i++) CHECK(p[i] == 0xff);
  CHECK(cudaMalloc(&q, 401) == cudaErrorMemoryAllocation && !q);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
  CHECK(cudaMalloc(&q, 400) == cudaSuccess);
  CHECK(cudaMemGetInfo(&left, &total) == cudaSuccess && left == 0);
  CHECK(cudaFree(p + 1) == cudaErrorInvalidValue);
  CHECK(cudaFree(p) == cudaSuccess && cudaFree(q) == cudaSuccess && cudaFree(NULL) == cudaSuccess);
  CHECK(cudaMemGetInfo(&left, &total) == cudaSuccess && left == 1000);
  CHECK(cudaMalloc(&p, 0) == cudaSuccess && !p);
  CHECK(cudaMalloc(&p, SIZE_MAX) == cudaErrorMemoryAllocation);
  CHECK(cudaMallocHost(&p, 5) == cudaSuccess && p[4] == 0xff);
  CHECK(cudaMemset(p, 7, 5) == cudaSuccess && p[4] == 7 && cudaFreeHost(p) == cudaSuccess);
  cudaGetLastError();
}
//< test_fiber_memory

/*: ## Launches and the device :*/
//> test_fiber_launches
struct Three {
  int a, b, c;
};
__global__ void arguments(int *out, double d, Three three, uint8_t small) {
  int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  out[i] = (int)d + three.a + three.b * 10 + three.c * 100 + small * 1000 + i * 100000 +
           (gridDim.x == 100) * 10000;
}
__global__ void nothing() {}

static void test_launches() {
  Device<int> out(100 * 3);
  double d = 7;
  Three three = {1, 2, 3};
  uint8_t small = 9;
  void *args[] = {&out.p, &d, &three, &small};
  CHECK(cudaLaunchKernel(arguments, dim3(100), dim3(3), args, 0, NULL) == cudaSuccess);
  std::vector<int> got = out.host();
  for (int i = 0; i < 300; i++) CHECK(got[(size_t)i] == 7 + 321 + 9000 + 10000 + i * 100000);
  CHECK(cudaLaunchCooperativeKernel(arguments, dim3(4), dim3(3), args, 0, NULL) == cudaSuccess);
  CHECK(out.host()[11] == 7 + 321 + 9000 + 1100000);
  CHECK(launch_cooperative(nothing, 1, 1, 0, NULL) == cudaSuccess);

  CHECK(launch_cooperative(nothing, 5, 1, 0, NULL) == cudaErrorCooperativeLaunchTooLarge);
  CHECK(launch_cooperative(nothing, 0, 1, 0, NULL) == cudaErrorInvalidValue);
  CHECK(launch_cooperative(nothing, 1, 0, 0, NULL) == cudaErrorInvalidValue);
  CHECK(launch_cooperative(nothing, 1, 1025, 0, NULL) == cudaErrorInvalidValue);
  CHECK(cudaLaunchKernel(nothing, dim3(1, 2), dim3(1), NULL) == cudaErrorInvalidConfiguration);
  CHECK(launch_cooperative((void (*)())NULL, 1, 1, 0, NULL) == cudaErrorInvalidDeviceFunction);

  // More than 48 KB must be asked for, and cannot be more than there is.
  cudaFuncAttributes a;
  CHECK(launch_cooperative(nothing, 1, 1, 49153, NULL) == cudaErrorCooperativeLaunchTooLarge);
  CHECK(cudaLaunchKernel(nothing, dim3(1), dim3(1), NULL, 49153) == cudaErrorInvalidValue);
  fiber::settings.shared = 101376;
  auto ask = [](int bytes) {
    return cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  CHECK(ask(101377) == cudaErrorInvalidValue && ask(101376) == cudaSuccess);
  CHECK(launch_cooperative(nothing, 1, 1, 101376, NULL) == cudaSuccess);
  CHECK(launch_cooperative(nothing, 1, 1, 101377, NULL) == cudaErrorCooperativeLaunchTooLarge);
  CHECK(cudaFuncGetAttributes(&a, nothing) == cudaSuccess && a.maxDynamicSharedSizeBytes == 101376);
  int blocks = -1;
  auto fits = [&](int threads, size_t bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nothing, threads, bytes);
  };
  CHECK(fits(1024, 101376) == cudaSuccess && blocks == 1);
  CHECK(fits(128, 101377) == cudaSuccess && blocks == 0);
  CHECK(fits(0, 0) == cudaErrorInvalidValue && blocks == 0);
  CHECK(ask(49152) == cudaSuccess && fits(128, 49153) == cudaSuccess && blocks == 0);
  CHECK(fits(128, 49152) == cudaSuccess && blocks == 1);
  cudaGetLastError();
}

static void test_device() {
  fiber::settings.sms = 20;
  fiber::settings.shared = 101376;
  cudaDeviceProp p;
  int n = -1, device = -1;
  CHECK(cudaGetDeviceCount(&n) == cudaSuccess && n == 1);
  CHECK(cudaGetDevice(&device) == cudaSuccess && device == 0);
  CHECK(cudaSetDevice(0) == cudaSuccess && cudaSetDevice(1) == cudaErrorInvalidDevice);
  CHECK(cudaGetDeviceProperties(&p, 1) == cudaErrorInvalidDevice);
  CHECK(cudaGetDeviceProperties(&p, 0) == cudaSuccess);
  CHECK(p.multiProcessorCount == 20 && p.sharedMemPerBlockOptin == 101376 && p.major == 8);
  CHECK(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0) == cudaSuccess && n == 20);
  CHECK(cudaDeviceGetAttribute(&n, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) == cudaSuccess &&
        n == 101376);
  CHECK(cudaDeviceGetAttribute(&n, (cudaDeviceAttr)2, 0) == cudaErrorInvalidValue);
  CHECK(!strcmp(cudaGetErrorString(cudaErrorCooperativeLaunchTooLarge),
                "cudaErrorCooperativeLaunchTooLarge"));
  cudaStream_t stream;
  cudaEvent_t a = NULL, b = NULL;
  float ms = -1;
  CHECK(cudaStreamCreate(&stream) == cudaSuccess && cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(cudaEventCreate(&a) == cudaSuccess && cudaEventCreate(&b) == cudaSuccess);
  CHECK(cudaEventRecord(a, stream) == cudaSuccess && cudaEventRecord(b, stream) == cudaSuccess);
  CHECK(cudaEventSynchronize(b) == cudaSuccess && cudaEventElapsedTime(&ms, a, b) == cudaSuccess);
  CHECK(ms >= 0);
  CHECK(cudaEventDestroy(a) == cudaSuccess && cudaEventDestroy(b) == cudaSuccess);
  CHECK(cudaStreamDestroy(stream) == cudaSuccess);
  cudaGetLastError();
}

static void test_environment() {
  setenv("FIBER_SMS", "132", 1);
  setenv("FIBER_SHARED", "0x18c00", 1);
  setenv("FIBER_ORDER", "random", 1);
  setenv("FIBER_SEED", "-1", 1);
  setenv("FIBER_MEMORY", "lots", 1);
  setenv("FIBER_COPIES", "late", 1);
  fiber::Settings s;
  std::string text = stderr_of([&] { s = fiber::Settings{}; });
  CHECK(s.sms == 132 && s.shared == 101376 && s.order == fiber::RANDOM && s.seed == 1);
  CHECK(s.memory == (size_t)8 << 30 && s.copies == fiber::LATE);
  CHECK(has(text, "FIBER_SEED=-1 is ignored") && has(text, "FIBER_MEMORY=lots is ignored"));
  setenv("FIBER_COPIES", "never", 1);
  text = stderr_of([&] { s = fiber::Settings{}; });
  CHECK(s.copies == fiber::BY_ORDER && has(text, "it is not order, now or late"));
  for (const char *name :
       {"FIBER_SMS", "FIBER_SHARED", "FIBER_ORDER", "FIBER_SEED", "FIBER_MEMORY", "FIBER_COPIES"})
    unsetenv(name);
}

// As wide as an H200, and with more stacks than can be guarded.
static void test_wide() {
  fiber::settings.sms = 132;
  Device<uint32_t> next(1), list(2 * 132 * 256);
  CHECK(launch_cooperative(sign_in, 132, 256, 0, NULL, next.p, list.p) == cudaSuccess);
  CHECK(next.host()[0] == 2 * 132 * 256 && list.host()[132 * 256 - 1] == 132 * 256 - 1);
}
//< test_fiber_launches

/*: ## Numbers

Every FP16 number goes there and back. Between each and its neighbour, what lies in the middle goes to the even one, and
what lies a little off goes to the nearer. :*/
//> test_fiber_numbers
static void test_f16() {
  for (unsigned h = 0; h < 0x7c00; h++)
    for (unsigned sign = 0; sign <= 0x8000; sign += 0x8000) {
      float f = f16_to_float((uint16_t)(h | sign)), s = sign ? -1.0f : 1.0f;
      CHECK(f == s * ldexpf((float)(h < 1024 ? h : (h & 1023) | 1024),
                            h < 1024 ? -24 : (int)(h >> 10) - 25));
      CHECK(signbit(f) == (sign != 0));
      CHECK(float_to_f16(f) == (h | sign));
      float above = h + 1 < 0x7c00 ? f16_to_float((uint16_t)((h + 1) | sign)) : s * 65536;
      float middle = 0.5f * (f + above);
      CHECK(float_to_f16(middle) == ((h + (h & 1)) | sign));
      CHECK(float_to_f16(nextafterf(middle, f)) == (h | sign));
      CHECK(float_to_f16(nextafterf(middle, above)) == ((h + 1) | sign));
    }
  CHECK(float_to_f16(INFINITY) == 0x7c00 && float_to_f16(-INFINITY) == 0xfc00);
  CHECK(float_to_f16(3e38f) == 0x7c00 && float_to_f16(1e-30f) == 0);
  CHECK(isinf(f16_to_float(0xfc00)) && isnan(f16_to_float(0x7e01)));
  CHECK(isnan(f16_to_float(float_to_f16(NAN))) && isnan(f16_to_float(float_to_f16(-NAN))));
}

static void test_numbers() {
  CHECK(min(3, 4u) == 3u && max(-1, 2) == 2 && min(2.0f, NAN) == 2.0f && max(NAN, 2.0f) == 2.0f);
  CHECK(max(1ull << 40, 3ull) == 1ull << 40 && min(1.5f, -2.5f) == -2.5f);
  CHECK(__uint_as_float(0x3f800000) == 1.0f && __float_as_uint(-0.0f) == 0x80000000);
  CHECK(__float_as_int(-1.0f) == (int)0xbf800000 && __int_as_float(0x40000000) == 2.0f);
  CHECK(rsqrtf(4) == 0.5f && __expf(0) == 1 && __fdividef(1, 4) == 0.25f && fmaf(2, 3, 4) == 10);
  CHECK(__popc(0xf0f) == 8 && __clz(1) == 31 && __clz(0) == 32 && __ffs(8) == 4 && __ffs(0) == 0);
  CHECK(make_float4(1, 2, 3, 4).w == 4 && make_uint2(1, 2).y == 2 && alignof(uint4) == 16);
}
//< test_fiber_numbers

int main() {
  run("shuffles of every type and width", test_shuffles);
  run("parts of a warp meet by themselves", test_parts);
  run("a warp that is not full", test_ragged);
  run("votes of a block", test_votes);
  run("named barriers hand over", test_named_barriers);
  run("shared memory is poisoned, aligned, a block's own", test_shared);
  run("a missing __syncthreads is found", test_flaws_block);
  run("a missing __syncwarp is found", test_flaws_warp);
  run("a missing grid barrier is found", test_flaws_grid);
  run("a missing grid barrier is found between plain loads", test_flaws_grid_plain);
  run("a flag raised too early is found", test_flaws_flag);
  run("a ring of copies works in every order", test_ring);
  run("a ring's flaws are found", test_flaws_ring);
  run("phases of an mbarrier", test_phases);
  run("bytes that have not landed are not there", test_hasty);
  run("copies land for warps that meet between polls", test_meeting);
  run("words that say themselves that they are there", test_words);
  run("orders", test_orders);
  run("atomics", test_atomics);
  run("deadlocks end with names", test_deadlocks);
  run("polling for nothing ends with names", test_livelocks);
  run("warps that poll for nothing end, too", test_warp_livelock);
  run("misuse of barriers and shuffles ends", test_misuse);
  run("misuse of mbarriers and copies ends", test_copy_misuse);
  run("time passes while nobody works, the same in every run", test_time);
  run("time passes slowly while somebody works", test_busy);
  run("accesses out of bounds die", test_bounds);
  run("allocation", test_allocation);
  run("launches and their limits", test_launches);
  run("the device and its streams", test_device);
  run("the environment", test_environment);
  run("a wide device", test_wide);
  run("FP16 to the last number", test_f16);
  run("numbers", test_numbers);
  printf("1..%d\n# %d passed, %d failed\n", tests, tests - failures, failures);
  return failures != 0;
}
