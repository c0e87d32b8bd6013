/*: # Rows times a vector

Nearly all of a token's bytes pass through this file. A tile owns some rows of a matrix and multiplies each with
the same vector; what the rows are called differs, the loop does not.

**Layout.** A warp takes two rows at a time, a *unit*, and of each row a *segment* of at most 2,048 columns. A lane reads 16
bytes, eight weights, so that a warp's load is 512 contiguous bytes and eight of them are a segment.

**Bytes on the way.** With both rows a lane has sixteen loads on the way before it uses the first, in registers: eight warps then ask for
[64 KB]{.fact} at a time. On an H200 an SM's share of the memory's rate is `=target("h200","read_gbs")/target("h200","workers")|%.0f` KB a microsecond, so that much on
the way covers a latency of `=65.536*target("h200","workers")/target("h200","read_gbs")|%.1f` µs. The first unit is asked for before the barrier is over, because weights depend on nothing.

**No stack.** The acquire at a barrier empties L1, so whatever the compiler keeps in local memory is a trip to L2 in every wave. Kernels of 384 and of 512 threads, whose registers did not hold all,
[were far slower](A3-probes.md#A3-waves). Hence 256 threads, with room for 255 registers each.

**The vector** is staged in shared memory once a tile, in an order that suits the lanes' reads.

**Order.** A dot product is summed over the lane's eight columns and its steps, then over the lanes by a fixed butterfly, then
over segments from left to right. Nothing depends on timing, so the bits are the same in every run. :*/
//> gemv_head
#ifndef GEMV_CUH
#define GEMV_CUH
#include "device.cuh"
//< gemv_head

//> gemv_rows
enum { STEPS = 8, STEP_COLUMNS = WARP * 8, SEGMENT_COLUMNS = STEPS * STEP_COLUMNS };

// The rows of one tile, in pairs. Unit u is the rows at first + u * step and second + u * step.
struct Rows {
  const uint8_t *first, *second;
  uint32_t step;       // bytes from unit to unit
  uint32_t units;      // 0: nothing to multiply
  uint32_t seconds;    // units that have a second row: units, or one less
  DeviceMatrix matrix; // by value: behind a pointer, every field would be a load again and again
};

// Rows [row0, row1) of one matrix: neighbours make a unit.
__device__ __forceinline__ Rows matrix_rows(const Params &p, const DeviceMatrix &m, uint32_t layer,
                                            uint32_t row0, uint32_t row1) {
  const uint8_t *w = p.weights + m.offset + layer * p.layer_bytes + (uint64_t)row0 * m.stride;
  const uint32_t n = row1 - row0;
  return {w, w + m.stride, 2 * m.stride, (n + 1) / 2, n / 2, m};
}

// Row r of gate together with row r of up.
__device__ __forceinline__ Rows gate_up_rows(const Params &p, uint32_t layer, uint32_t row0,
                                             uint32_t row1) {
  const uint64_t at = layer * p.layer_bytes + (uint64_t)row0 * p.gate.stride;
  return {p.weights + p.gate.offset + at,
          p.weights + p.up.offset + at,
          p.gate.stride,
          row1 - row0,
          row1 - row0,
          p.gate};
}
//< gemv_rows

/*: ## The loads

A warp's units are dealt out in turn: warp w takes unit-segments w, w + WARPS, w + 2 WARPS, … :*/
//> gemv_load
struct Cursor { // a place in the warp's list
  uint32_t unit, segment;
};

__device__ __forceinline__ void advance(const DeviceMatrix &m, Cursor &c) {
  c.unit += m.unit_stride;
  c.segment += m.segment_stride;
  if (c.segment >= m.segments) {
    c.segment -= m.segments;
    c.unit++;
  }
}

__device__ __forceinline__ Cursor first_of_warp(const DeviceMatrix &m) {
  const uint32_t warp = threadIdx.x / WARP, unit = warp * m.warp_unit >> 16;
  return {unit, warp - unit * m.segments};
}

struct Loaded { // what a lane has asked for: a unit's segment
  uint4 a[STEPS], b[STEPS];
};

// Beyond a row's end and where a unit has no second row, zeros.
__device__ __forceinline__ void gemv_load(const Rows &r, const Cursor &c, Loaded &w) {
  const DeviceMatrix &m = r.matrix;
  const uint32_t column = c.segment * m.steps * STEP_COLUMNS + threadIdx.x % WARP * 8;
  const uint64_t at = (uint64_t)c.unit * r.step + column * 2;
  const uint4 *a = (const uint4 *)(r.first + at), *b = (const uint4 *)(r.second + at);
  const bool pair = c.unit < r.seconds;
#pragma unroll
  for (uint32_t j = 0; j < STEPS; j++) {
    const bool inside = j < m.steps && column + j * STEP_COLUMNS < m.columns;
    w.a[j] = inside ? load_stream(a + j * WARP) : make_uint4(0, 0, 0, 0);
    w.b[j] = inside && pair ? load_stream(b + j * WARP) : make_uint4(0, 0, 0, 0);
  }
}

// This warp's first unit.
__device__ __forceinline__ void gemv_begin(const Rows &r, Loaded &w) {
  const Cursor c = first_of_warp(r.matrix);
  if (c.unit < r.units) gemv_load(r, c, w);
}
//< gemv_load

/*: In shared memory the vector lies in two planes, element e in plane (e / 4) % 2 at e / 8 * 4 + e % 4. :*/
//> gemv_dot
__device__ __forceinline__ uint32_t plane_index(uint32_t e, uint32_t plane_size) {
  return (e / 4 % 2) * plane_size + e / 8 * 4 + e % 4;
}

// Both rows of a unit-segment times the vector.
template <DType T>
__device__ __forceinline__ float2 gemv_dot(const DeviceMatrix &m, uint32_t segment, const Loaded &w,
                                           const float *x) {
  const uint32_t column = segment * m.steps * STEP_COLUMNS + threadIdx.x % WARP * 8;
  const float4 *low = (const float4 *)x + column / 8, *high = low + m.columns / 8;
  float a = 0, b = 0;
#pragma unroll
  for (uint32_t j = 0; j < STEPS; j++) {
    if (!(j < m.steps && column + j * STEP_COLUMNS < m.columns)) continue;
    const float4 l = low[j * WARP], h = high[j * WARP];
    const float v[8] = {l.x, l.y, l.z, l.w, h.x, h.y, h.z, h.w};
    float wa[8], wb[8];
    widen8<T>(w.a[j], wa);
    widen8<T>(w.b[j], wb);
#pragma unroll
    for (int k = 0; k < 8; k++) {
      a = fmaf(wa[k], v[k], a);
      b = fmaf(wb[k], v[k], b);
    }
  }
  return make_float2(warp_sum(a), warp_sum(b));
}
//< gemv_dot

/*: The whole tile. `w` holds this warp's first unit. `emit(unit, a, b)` is called once a unit with both dot products, by one thread: a lane of
the warp where rows are one segment, otherwise a thread of the block once all segments are in `partial`. :*/
//> gemv
template <DType T, class Emit>
__device__ __forceinline__ void gemv(const Rows &r, const float *x, float *partial, Loaded &w,
                                     Emit emit) {
  const DeviceMatrix &m = r.matrix;
  Cursor at = first_of_warp(m);
#pragma unroll 1
  while (at.unit < r.units) {
    const Cursor done = at;
    const float2 y = gemv_dot<T>(m, at.segment, w, x);
    advance(m, at);
    if (at.unit < r.units) gemv_load(r, at, w);
    if (threadIdx.x % WARP == 0) {
      if (m.segments == 1) emit(done.unit, y.x, y.y);
      else ((float2 *)partial)[done.unit * m.segments + done.segment] = y;
    }
  }
  if (m.segments == 1) return;
  __syncthreads();
#pragma unroll 1
  for (uint32_t u = threadIdx.x; u < r.units; u += BLOCK) {
    float a = 0, b = 0;
#pragma unroll 2
    for (uint32_t s = 0; s < m.segments; s++) {
      float2 y = ((const float2 *)partial)[u * m.segments + s];
      a += y.x;
      b += y.y;
    }
    emit(u, a, b);
  }
}
//< gemv

/*: ## Staging the vector

RMSNorm is recomputed by every worker that needs it: the vector from L2 ([8 KB]{.fact} where it has 2,048 elements) and a block-wide sum, instead of a wave and
its barrier. The sum of squares goes over each thread's elements, the warp's butterfly, and the warps in order. :*/
//> stage
__device__ __forceinline__ float block_sum(float v, float *scratch) {
  v = warp_sum(v);
  if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = v;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < WARPS; i++) sum += scratch[i];
  return sum;
}

// Asks for `columns` floats, each thread for the elements that it will look at first. Ends no group.
__device__ __forceinline__ void ask_vector(const float *x, uint32_t columns, float *raw) {
#pragma unroll 2
  for (uint32_t e = threadIdx.x * 4; e < columns; e += BLOCK * 4)
    copy_async((uint4 *)(raw + e), (const uint4 *)(x + e));
}

// raw, gains: [columns], both as ask_vector brought them, zero from n on. The normed vector into `staged` as planes.
__device__ __forceinline__ void stage_normed(const float *raw, const float *gains, uint32_t n,
                                             uint32_t columns, float eps, float *staged,
                                             float *scratch) {
  float squares = 0;
#pragma unroll 2
  for (uint32_t e = threadIdx.x * 4; e < columns; e += BLOCK * 4) {
    const float4 v = *(const float4 *)(raw + e);
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  float scale = 1.0f / sqrtf(block_sum(squares, scratch) / (float)n + eps);
#pragma unroll 2
  for (uint32_t e = threadIdx.x * 4; e < columns; e += BLOCK * 4) {
    const float4 v = *(const float4 *)(raw + e), g = *(const float4 *)(gains + e);
    *(float4 *)(staged + plane_index(e, columns / 2)) =
        make_float4(v.x * scale * g.x, v.y * scale * g.y, v.z * scale * g.z, v.w * scale * g.w);
  }
  __syncthreads();
}

__device__ __forceinline__ void stage_plain(const float *raw, uint32_t columns, float *staged) {
#pragma unroll 2
  for (uint32_t e = threadIdx.x * 4; e < columns; e += BLOCK * 4)
    *(float4 *)(staged + plane_index(e, columns / 2)) = *(const float4 *)(raw + e);
  __syncthreads();
}
#endif
//< stage
