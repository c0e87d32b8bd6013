/*: # What kernels are built from

Every load, store and wait that a kernel cannot say in plain C++ is named here once, as PTX for a GPU and, in `fiber.h`,
as ordinary C++ for a CPU. The rest of the kernels is the same text for both.

Three kinds of load matter. **Weights** are read once a token by one worker: they go around L1, and around the
coherence that nobody needs. **Results of other workers** must come from L2, because L1 is private to
an SM and may hold an old line. **Flags** are acquire loads: whatever was stored before the matching
release is visible after them. :*/
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
// Ends a group of copies.
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ __forceinline__ unsigned long long global_nanoseconds() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
//< device_memory

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
#include "fiber.h"

inline void copy_async(uint4 *shared, const uint4 *global) { *shared = *global; }
inline void copy_async_wait() {}
inline void copy_async_commit() {}

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
  bool qk_norm, one_pass;
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
  float *residual;      // [hidden]
  float *qkv_out;       // [heads + 2 kv_heads, head_dim]
  float *scores;        // [heads, context]
  float *score_max;     // [chunks, heads]
  float *attention;     // [chunks, heads, head_dim]
  float *denominator;   // [chunks, heads]
  float *partials;      // [ffn_parts, hidden]
  float *activation;    // [inter]
  float *normed;        // [hidden]
  float *logits;        // [vocab]
  Candidate *candidate; // [slots]
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
//< device_widen

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
