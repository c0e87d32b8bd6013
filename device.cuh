/*: # What kernels are built from

Every load, store and wait that a kernel cannot say in plain C++ is named here once, as PTX for a GPU and, in `tests/fiber.h`,
as ordinary C++ for a CPU. The rest of the kernels is the same text for both.

Three kinds of load matter. **Weights** are read once a token by one worker: they go around L1, and around the
coherence that nobody needs. **Results of other workers** must come from L2, because L1 is private to
an SM and may hold an old line. **Flags** are acquire loads: whatever was stored before the matching
release is visible after them. :*/
//> device_head
#ifndef DEVICE_CUH
#define DEVICE_CUH

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <type_traits>

#define DYNAMIC_SHARED(T, name) extern __shared__ __align__(128) T name[]

// A cooperative launch that knows its kernel's types: all blocks are resident together, or none starts.
template <class... P>
cudaError_t launch_cooperative(void (*kernel)(P...), unsigned blocks, unsigned threads,
                               size_t shared, cudaStream_t stream,
                               std::common_type_t<P>... arguments) {
  void *list[] = {(void *)&arguments..., nullptr};
  return cudaLaunchCooperativeKernel((const void *)kernel, dim3(blocks), dim3(threads), list,
                                     shared, stream);
}
//< device_head

//> device_memory
// 16 bytes of weights. Volatile, so that a load that we place before a barrier stays before it.
__device__ __forceinline__ uint4 load_stream(const uint4 *p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
// What another worker wrote in an earlier wave.
template <class T> __device__ __forceinline__ T load_l2(const T *p) { return __ldcg(p); }
template <class T> __device__ __forceinline__ void store_l2(T *p, T v) { __stcg(p, v); }

__device__ __forceinline__ uint32_t load_acquire(const uint32_t *p) {
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void add_release(uint32_t *p, uint32_t n) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(n) : "memory");
}
// 16 bytes into shared memory, around the registers; done for this thread after copy_async_wait.
__device__ __forceinline__ void copy_async(uint4 *shared, const uint4 *global) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
      "l"(global)
      : "memory");
}
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
__device__ __forceinline__ unsigned long long global_nanoseconds() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
//< device_memory

/*: ## A tape's machinery

A warp that does nothing else fetches weights and K/V rows into slots of shared memory, and the other warps compute from them.
Two **mbarriers** a slot keep them apart. *Full* ends a phase when a slot's bytes are all there; it is initialised with
`TAPE_FULL_ARRIVALS`. *Empty* ends a phase when each consumer is done with them; it is initialised with as many
arrivals as consumers make. Phases have parities 0, 1, 0, …, and `mbarrier_test` is true when the phase of that parity has ended and the next one has not. So
on a fresh mbarrier parity 1 is true at once: a producer that begins with it finds each slot empty.

Who must see what. `mbarrier_arrive` is a release and `mbarrier_test`, when true, an acquire, both within the block: what a consumer read
from a slot or wrote to shared memory before it arrived at *empty* comes before what the producer does after its test. What was copied into a slot is
seen by every thread whose test of *full* was true, and by nobody else.

From sm_90 on, one lane asks for the whole slot, or each lane for a row (`tape_copy_rows`), and the copy is made by a unit beside the SM's threads, the **async proxy**. To it the order of
ordinary loads and stores means nothing without a fence. Three cases need one. A consumer that *wrote* into a slot runs
`fence_async_shared` before it arrives at *empty*: otherwise its store may land on top of the next bytes. (One that only read need not:
its loads have their values when it arrives.) The lane that copies from global memory which other threads wrote with ordinary stores, the
K/V cache, runs `fence_async_proxy` after the acquire that told it of them and before the copy; all lanes may. (That one is for all memory, so it
serves the consumer too, but it waits until the thread's stores have reached the whole GPU.) And initialising an mbarrier is a store: the thread
that did it runs `mbarrier_init_fence`, and `__syncthreads` after that shows it to the other threads.

Below sm_90, all lanes copy 16 bytes at a time with `cp.async`, which knows no proxy, and each lane's arrival at *full* happens when its own copies have
landed.

So one text serves both. All lanes of a converged warp call `tape_begin` with the bytes of the whole slot, `tape_copy` or `tape_copy_rows` for each
part of it, and `tape_end`. `tape_begin` begins with a `__syncwarp`: what any lane waited for is then over for
each of them. Addresses and sizes are multiples of 16, and no size is zero. A block must not exit before all that it asked for has landed. :*/
//> device_tape
__device__ __forceinline__ uint32_t shared_address(const void *p) {
  return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void mbarrier_init(uint64_t *b, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals)
               : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint64_t *b) {
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(shared_address(b))
      : "memory");
}
__device__ __forceinline__ bool mbarrier_test(const uint64_t *b, uint32_t parity) {
  uint32_t over;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;"
               " selp.u32 %0, 1, 0, p; }"
               : "=r"(over)
               : "r"(shared_address(b)), "r"(parity)
               : "memory");
  return over;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
enum : uint32_t { TAPE_FULL_ARRIVALS = 1 };
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async;" ::: "memory");
}
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// One arrival, and the phase does not end before so many bytes have landed.
__device__ __forceinline__ void mbarrier_expect(uint64_t *b, uint32_t bytes) {
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(
          shared_address(b)),
      "r"(bytes)
      : "memory");
}
// For one thread. Returns at once; the bytes count at `b` when they have landed. In L2 they are the first to go: nobody reads them twice in a token.
__device__ __forceinline__ void bulk_copy(void *shared, const void *global, uint32_t bytes,
                                          uint64_t *b) {
  asm volatile("{ .reg .b64 policy; createpolicy.fractional.L2::evict_first.b64 policy, 1.0;"
               " cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
               " [%0], [%1], %2, [%3], policy; }" ::"r"(shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(b))
               : "memory");
}
__device__ __forceinline__ void tape_begin(uint64_t *b, uint32_t bytes) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) mbarrier_expect(b, bytes);
}
__device__ __forceinline__ void tape_copy(void *shared, const void *global, uint32_t bytes,
                                          uint64_t *b) {
  if (threadIdx.x % 32 == 0) bulk_copy(shared, global, bytes, b);
}
// n rows of `bytes`, `stride` apart in memory, go side by side into the slot. A lane asks for every 32nd.
__device__ __forceinline__ void tape_copy_rows(void *shared, const uint8_t *global, uint32_t n,
                                               uint32_t bytes, uint64_t stride, uint64_t *b) {
#pragma unroll 1
  for (uint32_t r = threadIdx.x % 32; r < n; r += 32)
    bulk_copy((char *)shared + r * bytes, global + r * stride, bytes, b);
}
__device__ __forceinline__ void tape_end(uint64_t *) {}
#else
enum : uint32_t { TAPE_FULL_ARRIVALS = 32 };
__device__ __forceinline__ void mbarrier_init_fence() {}
__device__ __forceinline__ void fence_async_proxy() {}
__device__ __forceinline__ void fence_async_shared() {}
__device__ __forceinline__ void tape_begin(uint64_t *, uint32_t) { __syncwarp(); }
__device__ __forceinline__ void tape_copy(void *shared, const void *global, uint32_t bytes,
                                          uint64_t *) {
  for (uint32_t at = threadIdx.x % 32 * 16; at < bytes; at += 32 * 16)
    copy_async((uint4 *)((char *)shared + at), (const uint4 *)((const char *)global + at));
}
__device__ __forceinline__ void tape_copy_rows(void *shared, const uint8_t *global, uint32_t n,
                                               uint32_t bytes, uint64_t stride, uint64_t *b) {
  for (uint32_t r = 0; r < n; r++)
    tape_copy((char *)shared + r * bytes, global + r * stride, bytes, b);
}
// This lane arrives when all that it has copied so far is there. noinc: the arrival is one of the 32 of the phase.
__device__ __forceinline__ void tape_end(uint64_t *b) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(b))
               : "memory");
}
#endif
//< device_tape

/*: Values that say themselves whether they are there need no flag, and no order among them: a relaxed load that comes from L2 each
time is enough, and of the 16 bytes of `load_relaxed4` each float counts for itself. Eight bytes are read and written whole.

Within a block, one word of shared memory tells how far somebody has come. `add_shared_release` puts all that this thread has loaded and stored
before it ahead of the word, in the block's eyes, and `load_shared_acquire` all that this thread does later behind it. So a thread that reads the word sees what its
writer did before. That is for ordinary loads and stores: before a copy of the async proxy a `fence_async_proxy` is still due. :*/
//> device_words
__device__ __forceinline__ void fence_gpu() { __threadfence(); }
__device__ __forceinline__ void nanosleep_short() { __nanosleep(100); }

__device__ __forceinline__ float load_relaxed(const float *p) {
  float v;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ float4 load_relaxed4(const float4 *p) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
__device__ __forceinline__ uint64_t load_relaxed64(const uint64_t *p) {
  uint64_t v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void store_relaxed(float *p, float v) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory");
}
__device__ __forceinline__ void store_relaxed64(uint64_t *p, uint64_t v) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ __forceinline__ uint32_t load_shared_acquire(const uint32_t *p) {
  uint32_t v;
  asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(v) : "r"(shared_address(p)) : "memory");
  return v;
}
__device__ __forceinline__ void add_shared_release(uint32_t *p, uint32_t n) {
  asm volatile("red.release.cta.shared.add.u32 [%0], %1;" ::"r"(shared_address(p)), "r"(n)
               : "memory");
}
// For who only wants to know how far somebody is: it orders nothing.
__device__ __forceinline__ void add_shared(uint32_t *p, uint32_t n) {
  asm volatile("red.relaxed.cta.shared.add.u32 [%0], %1;" ::"r"(shared_address(p)), "r"(n)
               : "memory");
}

// Where the hardware can: the four warps that run this give registers back, or take them. A launch deals out the same number to all.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
}
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
}
#else
__device__ __forceinline__ void fewer_registers() {}
__device__ __forceinline__ void more_registers() {}
#endif

// Some of a block's warps meet: `threads` is a multiple of 32, and each warp comes whole.
__device__ __forceinline__ void bar_sync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ bool bar_sync_or(uint32_t id, uint32_t threads, bool vote) {
  uint32_t any;
  asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %3, 0; bar.red.or.pred q, %1, %2, p;"
               " selp.u32 %0, 1, 0, q; }"
               : "=r"(any)
               : "r"(id), "r"(threads), "r"((uint32_t)vote)
               : "memory");
  return any;
}
//< device_words

__device__ __forceinline__ float f16_to_float(uint16_t h) {
  return __half2float(__ushort_as_half(h));
}
__device__ __forceinline__ uint16_t float_to_f16(float f) {
  return __half_as_ushort(__float2half_rn(f));
}

// A launch whose blocks need not be resident together.
template <class... P>
cudaError_t launch_plain(void (*kernel)(P...), unsigned blocks, unsigned threads,
                         std::common_type_t<P>... arguments) {
  void *list[] = {(void *)&arguments..., nullptr};
  return cudaLaunchKernel((const void *)kernel, dim3(blocks), dim3(threads), list, 0, 0);
}
#else
#include "tests/fiber.h"

inline void copy_async(uint4 *shared, const uint4 *global) { *shared = *global; }
inline void copy_async_wait() {}

template <class... P>
cudaError_t launch_plain(void (*kernel)(P...), unsigned blocks, unsigned threads,
                         std::common_type_t<P>... arguments) {
  void *list[] = {(void *)&arguments..., nullptr};
  return cudaLaunchKernel(kernel, dim3(blocks), dim3(threads), list, 0, 0);
}
#endif

#include "tiles.h"

/*: ## The launch's arguments

One struct, passed by value into constant memory. It is the plan and the model as addresses: the kernel looks things
up and decides nothing. All matrices lie in one allocation, every layer the same distance after the one before, rows
padded to 16 bytes. :*/
//> device_params
enum { WARP = 32, BLOCK = 256, WARPS = BLOCK / WARP };
enum { STOP_IDS = 16 };
enum { NO_VECTOR = 0xffffffffu };

struct DeviceMatrix {
  uint64_t offset; // bytes from Params.weights, of layer 0
  uint32_t stride; // bytes a row
  uint32_t columns;
  // How a warp walks its rows; divisions are dear in a kernel, so the host makes them.
  uint32_t segments, steps;             // of a row, and 16-byte loads a lane of one of them
  uint32_t unit_stride, segment_stride; // WARPS / segments, WARPS % segments
  uint32_t warp_unit; // 2^16 / segments, rounded up: w / segments = w * warp_unit >> 16
  // How rows pass through a ring (tape_cut).
  uint32_t tape_rows, tape_columns, tape_blocks; // of a piece, of a block, and blocks of a row
  float per_column;                              // 1 / columns, without those that only pad
};

struct Candidate {
  float logit;
  int32_t id; // -1: a logit of the tile was not finite
};

enum StatusCode : uint32_t { STATUS_OK, STATUS_NONFINITE, STATUS_TIMEOUT };
struct Status { // written by worker 0, or by whoever met the error
  uint32_t code;
  uint32_t step, wave; // where
  uint32_t tokens;     // generated
  uint32_t stopped;    // 1: the last of them is followed by a stop id
};

struct Params {
  // shape
  uint32_t vocab, hidden, inter, layers, heads, kv_heads, head_dim, group;
  float rms_eps, score_scale;
  bool qk_norm, one_pass, biased;
  // weights
  const uint8_t *weights;
  uint64_t layer_bytes;
  DeviceMatrix qkv, o, gate, up, down, embedding, lm_head;
  // FP32 vectors; offsets in elements from `vectors` for layer 0, NO_VECTOR where the model has none
  const float *vectors;
  uint32_t layer_floats;
  uint32_t attn_norm, ffn_norm, qkv_bias, o_bias, gate_bias, up_bias, down_bias, q_norm, k_norm;
  const float *final_norm;
  const float2 *rotation; // [context, head_dim / 2] cosine and sine
  // plan
  const Tile *tile;
  const uint32_t *first;   // [workers + 1]
  const uint32_t *barrier; // [waves]
  uint32_t workers, waves, head_wave, chunks, ffn_parts, slots, fused_context;
  uint32_t room_bytes,
      ahead_bytes; // shared memory of a tile in work, and of the next one's weights or K/V rows
  uint32_t gain_floats; // of a norm: hidden, padded
  uint32_t kv_rows;     // rows of K, and of V, that an attend tile may stage
  uint32_t tile_room;   // tiles of one worker that fit into shared memory
  // one token's values
  float *residual;    // [hidden]
  float *qkv_out;     // [heads + 2 kv_heads, head_dim]
  float *scores;      // [heads, context]
  float *score_max;   // [chunks, heads]
  float *attention;   // [chunks, heads, head_dim], on a tape [chunks, heads, head_dim + HEAD_STATE]
  float *denominator; // [chunks, heads]
  float *partials;    // [ffn_parts, hidden]
  float *activation;  // [inter]
  float *normed;      // [hidden]
  float *logits;      // [vocab]
  Candidate *candidate; // [slots]
  // with hand-offs of data; qkv_out and attention serve both
  uint32_t ring_slots, slot_bytes;
  uint32_t pace_ns; // between speculative pieces
  uint32_t ring_at; // bytes from the beginning of shared memory
  uint32_t own_floats, partial_floats;
  float *merged;        // [HANDOFF_COPIES, heads, head_dim]
  float *after_wo;      // [HANDOFF_COPIES, hidden]
  float *after_down;    // [2, HANDOFF_COPIES, hidden]
  float *activations;   // [2, inter]
  uint64_t *candidates; // [2, slots]
  uint16_t *keys;       // [layers, kv_heads, context, head_dim]
  uint16_t *values;
  uint32_t context;
  // the request
  const int32_t *prompt;                   // [prompt_tokens]
  int32_t *output;                         // [GPU_LAUNCH]
  uint32_t prompt_tokens, position, steps; // steps: tokens to run, prompt included
  uint32_t first_logits;                   // the first step whose logits are wanted
  int32_t stop[STOP_IDS];
  uint32_t stops;
  Status *status;
  uint32_t *barrier_count; // zero at launch
  unsigned long long patience_ns;
  uint32_t lost; // a worker that leaves before the first wave: how a test plants a failure
  // trace, or NULL: [workers, waves + 1] nanoseconds of one token
  uint64_t *trace;
  uint32_t trace_step;
};
//< device_params

/*: ## Two-byte floats

Kernels are compiled twice, for BF16 and for FP16. A 16-byte load brings eight weights, and widening them is all that
differs. :*/
//> device_widen
template <DType T> __device__ __forceinline__ float widen(uint16_t h);
template <> __device__ __forceinline__ float widen<DT_BF16>(uint16_t h) {
  return __uint_as_float((uint32_t)h << 16);
}
template <> __device__ __forceinline__ float widen<DT_F16>(uint16_t h) { return f16_to_float(h); }

template <DType T> __device__ __forceinline__ void widen8(uint4 v, float *out) {
  const uint32_t u[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int k = 0; k < 4; k++) {
    if (T == DT_BF16) {
      out[2 * k] = __uint_as_float(u[k] << 16);
      out[2 * k + 1] = __uint_as_float(u[k] & 0xffff0000u);
    } else {
      out[2 * k] = widen<T>((uint16_t)(u[k] & 0xffff));
      out[2 * k + 1] = widen<T>((uint16_t)(u[k] >> 16));
    }
  }
}

// Round to nearest, ties to even, as the CPU workers do.
template <DType T> __device__ __forceinline__ uint16_t narrow(float f) {
  if (T == DT_F16) return float_to_f16(f);
  uint32_t u = __float_as_uint(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40);
  return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

// Two at once, where there is an instruction for it. The first is the lower half.
template <DType T> __device__ __forceinline__ uint32_t narrow2(float a, float b) {
#ifdef __CUDA_ARCH__
  uint32_t u;
  if (T == DT_BF16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(b), "f"(a));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(b), "f"(a));
  return u;
#else
  return narrow<T>(a) | (uint32_t)narrow<T>(b) << 16;
#endif
}
template <DType T> __device__ __forceinline__ uint4 narrow8(const float *x) {
  return make_uint4(narrow2<T>(x[0], x[1]), narrow2<T>(x[2], x[3]), narrow2<T>(x[4], x[5]),
                    narrow2<T>(x[6], x[7]));
}
//< device_widen

//> device_mma
// d += a b on the tensor cores, of a warp together: a is [16, 16], b is [16, 8], of two-byte numbers; d is [16, 8] in FP32. Lane 4 g + t gives of a the
// elements 2t, 2t + 1 of row g (a.x) and row g + 8 (a.y), and 2t + 8, 2t + 9 of row g (a.z) and row g + 8 (a.w); of b's column g, elements 2t, 2t + 1 (b0)
// and 2t + 8, 2t + 9 (b1). It has of d the columns 2t, 2t + 1 of row g (d[0], d[1]) and of row g + 8 (d[2], d[3]).
#ifdef __CUDACC__
template <DType T>
__device__ __forceinline__ void multiply_add(float (&d)[4], const uint4 &a, uint32_t b0,
                                             uint32_t b1) {
  if (T == DT_BF16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
// Four 8 x 8 matrices of two-byte numbers in shared memory, turned over: lane 8 i + r says where row r of matrix i lies, and lane 4 g + t gets elements
// 2 t and 2 t + 1 of column g of each.
__device__ __forceinline__ void load_transposed(uint32_t (&x)[4], const uint4 *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(shared_address(row))
               : "memory");
}
#else
// Every lane shows the others where its operands lie; the second meeting keeps them there until all have looked.
template <DType T>
inline void multiply_add(float (&d)[4], const uint4 &a, uint32_t b0, uint32_t b1) {
  const uint32_t mine[6] = {a.x, a.y, a.z, a.w, b0, b1}, lane = threadIdx.x % WARP;
  fiber::warp_meet("mma", 0xffffffffu, (uint64_t)(uintptr_t)mine, lane, false);
  const fiber::Fiber *warp = fiber::now - lane;
  auto half = [](uint32_t pair, int k) {
    return widen<T>((uint16_t)(k ? pair >> 16 : pair & 0xffff));
  };
  for (uint32_t i = 0; i < 4; i++)
    for (uint32_t t = 0; t < 4; t++) {
      const uint32_t *row = (const uint32_t *)(uintptr_t)warp[lane / 4 * 4 + t].value + i / 2;
      const uint32_t *column =
          (const uint32_t *)(uintptr_t)warp[(lane % 4 * 2 + i % 2) * 4 + t].value + 4;
      for (int k = 0; k < 4; k++) d[i] += half(row[k / 2 * 2], k % 2) * half(column[k / 2], k % 2);
    }
  fiber::warp_meet("mma", 0xffffffffu, (uint64_t)(uintptr_t)mine, lane, false);
}
inline void load_transposed(uint32_t (&x)[4], const uint4 *row) {
  const uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
  fiber::warp_meet("ldmatrix", 0xffffffffu, (uint64_t)(uintptr_t)row, lane, false);
  const fiber::Fiber *warp = fiber::now - lane;
  for (uint32_t i = 0; i < 4; i++) {
    const uint16_t *first = (const uint16_t *)(uintptr_t)warp[i * 8 + 2 * t].value;
    const uint16_t *second = (const uint16_t *)(uintptr_t)warp[i * 8 + 2 * t + 1].value;
    x[i] = first[g] | (uint32_t)second[g] << 16;
  }
  fiber::warp_meet("ldmatrix", 0xffffffffu, (uint64_t)(uintptr_t)row, lane, false);
}
#endif
//< device_mma

//> device_warp
// The threads that compute: all of a block's, or all but the warp that only fetches.
__device__ __forceinline__ void sync_block() { bar_sync(1, BLOCK); }

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int o = WARP / 2; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int o = WARP / 2; o; o >>= 1) {
    float w = __shfl_xor_sync(0xffffffffu, v, o);
    if (!(w <= v)) v = w; // NaN takes over
  }
  return v;
}
#endif
//< device_warp
