/*: # The GEMV tile

Nearly all of a token's bytes pass through this file. A tile owns some rows of a matrix and multiplies each with
the same vector; what the rows are called differs, the loop does not.

**Layout.** A warp takes two rows at a time, a *unit*, and of each row a *segment* of at most 2,048 columns. A lane reads 16
bytes, eight weights, so that a warp's load is 512 contiguous bytes and eight of them are a segment. With
both rows a lane has sixteen loads on the way before it uses the first: 16 warps then ask for 128 KB at a time,
several times what an SM needs in flight to keep its share of the memory busy.

**The vector** is staged in shared memory once a tile. Lane `l` needs elements 8 l to 8 l + 7: two 16-byte reads. Side by
side they would hit the same banks twice, so the first and second halves of each eight lie in two planes.

**Order.** A dot product is summed over the lane's eight columns and its steps, then over the lanes by a fixed butterfly, then
over segments from left to right. Nothing depends on timing, so the bits are the same in every run. :*/
#ifndef GEMV_CUH
#define GEMV_CUH
#include "device.cuh"

//> gemv_rows
enum { STEPS = 8, STEP_COLUMNS = WARP * 8, SEGMENT_COLUMNS = STEPS * STEP_COLUMNS };

// The rows of one tile, in pairs. Unit u is the rows at first + u * step and second + u * step.
struct Rows {
  const uint8_t *first, *second;
  uint32_t step;     // bytes from unit to unit
  uint32_t units;    // 0: nothing to multiply
  uint32_t seconds;  // units that have a second row: units, or one less
  uint32_t columns;  // a multiple of 8
  uint32_t segments; // of a row
  uint32_t steps;    // 16-byte loads a lane and row of one segment, at most STEPS
};

__device__ __forceinline__ Rows make_rows(const uint8_t *first, const uint8_t *second,
                                          uint32_t step, uint32_t units, uint32_t seconds,
                                          uint32_t columns) {
  Rows r = {first, second, step, units, seconds, columns, 1, 0};
  uint32_t steps = (columns + STEP_COLUMNS - 1) / STEP_COLUMNS;
  if (steps > STEPS) r.segments = (steps + STEPS - 1) / STEPS;
  r.steps = (steps + r.segments - 1) / r.segments;
  return r;
}

// Rows [row0, row1) of one matrix: neighbours make a unit.
__device__ __forceinline__ Rows matrix_rows(const Params &p, const DeviceMatrix &m, uint32_t layer,
                                            uint32_t row0, uint32_t row1) {
  const uint8_t *w = p.weights + m.offset + layer * p.layer_bytes + (uint64_t)row0 * m.stride;
  uint32_t n = row1 - row0;
  return make_rows(w, w + m.stride, 2 * m.stride, (n + 1) / 2, n / 2, m.columns);
}

// Row r of gate together with row r of up.
__device__ __forceinline__ Rows gate_up_rows(const Params &p, uint32_t layer, uint32_t row0,
                                             uint32_t row1) {
  uint64_t at = layer * p.layer_bytes + (uint64_t)row0 * p.gate.stride;
  return make_rows(p.weights + p.gate.offset + at, p.weights + p.up.offset + at, p.gate.stride,
                   row1 - row0, row1 - row0, p.gate.columns);
}
//< gemv_rows

//> gemv_load
struct Loaded { // what a lane has asked for: a unit's segment
  uint4 a[STEPS], b[STEPS];
};

__device__ __forceinline__ void gemv_load(const Rows &r, uint32_t unit, uint32_t segment,
                                          Loaded &w) {
  uint32_t column = segment * r.steps * STEP_COLUMNS + threadIdx.x % WARP * 8;
  const uint8_t *a = r.first + (uint64_t)unit * r.step + column * 2;
  const uint8_t *b = r.second + (uint64_t)unit * r.step + column * 2;
  bool pair = unit < r.seconds;
#pragma unroll
  for (uint32_t j = 0; j < STEPS; j++) {
    bool inside = j < r.steps && column + j * STEP_COLUMNS < r.columns;
    w.a[j] =
        inside ? load_stream((const uint4 *)(a + j * STEP_COLUMNS * 2)) : make_uint4(0, 0, 0, 0);
    w.b[j] = inside && pair ? load_stream((const uint4 *)(b + j * STEP_COLUMNS * 2))
                            : make_uint4(0, 0, 0, 0);
  }
}
//< gemv_load

/*: The vector's two planes: element e lies in plane (e / 4) % 2 at e / 8 * 4 + e % 4. :*/
//> gemv_dot
__device__ __forceinline__ uint32_t plane_index(uint32_t e, uint32_t plane_size) {
  return (e / 4 % 2) * plane_size + e / 8 * 4 + e % 4;
}

template <DType T>
__device__ __forceinline__ float2 gemv_dot(const Rows &r, uint32_t segment, const Loaded &w,
                                           const float *x) {
  uint32_t column = segment * r.steps * STEP_COLUMNS + threadIdx.x % WARP * 8;
  const float4 *low = (const float4 *)x + column / 8, *high = low + r.columns / 8;
  float a = 0, b = 0;
#pragma unroll
  for (uint32_t j = 0; j < STEPS; j++) {
    if (!(j < r.steps && column + j * STEP_COLUMNS < r.columns)) continue;
    float4 l = low[j * WARP], h = high[j * WARP];
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

/*: The whole tile. `w` already holds this warp's first unit, asked for before the barrier. `emit(unit, a, b)` is called once a
unit with both dot products, by one thread: a lane of the warp where rows are one segment, otherwise a thread of the
block once all segments are in `partial`. :*/
//> gemv
template <DType T, class Emit>
__device__ __forceinline__ void gemv(const Rows &r, const float *x, float *partial, Loaded &w,
                                     Emit emit) {
  uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  uint32_t unit = warp / r.segments, segment = warp % r.segments;
  const uint32_t unit_stride = WARPS / r.segments, segment_stride = WARPS % r.segments;
  bool more = unit < r.units;
  while (more) {
    float2 y = gemv_dot<T>(r, segment, w, x);
    uint32_t done_unit = unit, done_segment = segment;
    unit += unit_stride;
    segment += segment_stride;
    if (segment >= r.segments) {
      segment -= r.segments;
      unit++;
    }
    more = unit < r.units;
    if (more) gemv_load(r, unit, segment, w);
    if (lane == 0) {
      if (r.segments == 1) emit(done_unit, y.x, y.y);
      else ((float2 *)partial)[done_unit * r.segments + done_segment] = y;
    }
  }
  if (r.segments == 1) return;
  __syncthreads();
  for (uint32_t u = threadIdx.x; u < r.units; u += BLOCK) {
    float a = 0, b = 0;
    for (uint32_t s = 0; s < r.segments; s++) {
      float2 y = ((const float2 *)partial)[u * r.segments + s];
      a += y.x;
      b += y.y;
    }
    emit(u, a, b);
  }
}

// The first unit of this warp.
__device__ __forceinline__ void gemv_begin(const Rows &r, Loaded &w) {
  uint32_t warp = threadIdx.x / WARP, unit = warp / r.segments;
  if (unit < r.units) gemv_load(r, unit, warp % r.segments, w);
}
//< gemv

/*: ## Staging the vector

RMSNorm is recomputed by every worker that needs it: 8 KB from L2 and a block-wide sum, instead of a wave and
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

// x: [columns], zero from n on; weight: [columns]. The normed vector into `staged` as planes.
__device__ __forceinline__ void stage_normed(const float *x, const float *weight, uint32_t n,
                                             uint32_t columns, float eps, float *staged,
                                             float *scratch) {
  float squares = 0;
  for (uint32_t e = threadIdx.x * 4; e < columns; e += BLOCK * 4) {
    float4 v = load_l2((const float4 *)(x + e)), g = *(const float4 *)(weight + e);
    squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    *(float4 *)(staged + plane_index(e, columns / 2)) =
        make_float4(v.x * g.x, v.y * g.y, v.z * g.z, v.w * g.w);
  }
  float scale = 1.0f / sqrtf(block_sum(squares, scratch) / (float)n + eps);
  for (uint32_t e = threadIdx.x * 4; e < columns; e += BLOCK * 4) {
    float4 *s = (float4 *)(staged + plane_index(e, columns / 2));
    *s = make_float4(s->x * scale, s->y * scale, s->z * scale, s->w * scale);
  }
  __syncthreads();
}

__device__ __forceinline__ void stage_plain(const float *x, uint32_t columns, float *staged) {
  for (uint32_t e = threadIdx.x * 4; e < columns; e += BLOCK * 4)
    *(float4 *)(staged + plane_index(e, columns / 2)) = load_l2((const float4 *)(x + e));
  __syncthreads();
}
//< stage
#endif
