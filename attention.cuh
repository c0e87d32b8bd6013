/*: # The cache as a matrix

At batch size one attention is two more matrix-vector products, with the K/V cache as the matrix: scores are K times a
query, the output is V-transposed times the weights. Four to eight query heads share a K/V head, so a tile owns one K/V head, reads
its rows once and uses them for the whole group. It is the only cost that grows with the position.

**Chunks.** The context is cut into chunks, a tile each, so that many workers share the reading. In *one pass* a tile does
everything for its chunk: scores, exponentials relative to the chunk's own largest score, weighted values; Wo brings the partials to
one scale when it adds them. In *two passes* a scores tile stops at the scores, and after a barrier a values tile takes the largest over all
chunks, so that the partials share one scale from the start. Up to `fused_context` positions the two-pass plan lets the tile of chunk 0 do
all of it, which is the one pass again.

**Layout.** A row of K is as wide as a head: 64 elements are 128 bytes, eight lanes with 16 bytes each. So a warp reads four rows at once, 512 contiguous bytes, and a
lane keeps its eight elements of the group's queries in registers. After a butterfly over its eight lanes each of them knows the four rows' scores, which is
just where the weights are needed: the same lanes read the same row of V and add it, weighted, to eight outputs of every head.

**No waiting inside.** Every four rows' worth of lanes keeps a running state of its own: the largest score so far, the sum of the weights relative to it, and the weighted sum of values. Two
states of different scale add up after the smaller scale is brought to the larger one. So the warps, and the row groups within them, never look at each other before the
last position; then the states are merged in a fixed order, row groups by a butterfly and warps from left to right.

**Two passes** read the cache in the same layout. :*/
//> attention_head
#ifndef ATTENTION_CUH
#define ATTENTION_CUH
#include "device.cuh"
//< attention_head

//> attention_layout
enum { HEADS_AT_ONCE = 4, ROWS_AHEAD = 2, ROWS_TOGETHER = 4, EXPS_AT_ONCE = 1024 };

struct HeadLanes { // how a warp's lanes share rows of the cache
  uint32_t lanes;  // of a row, a power of two
  uint32_t rows;   // a warp reads at once
  uint32_t row, d; // this lane's row and first element
  bool inside;     // it has elements
};

__device__ __forceinline__ HeadLanes head_lanes(uint32_t head_dim) {
  HeadLanes h;
  h.lanes = 1;
  while (h.lanes * 8 < head_dim) h.lanes *= 2;
  h.rows = WARP / h.lanes;
  uint32_t lane = threadIdx.x % WARP;
  h.row = lane / h.lanes;
  h.d = lane % h.lanes * 8;
  h.inside = h.d < head_dim;
  return h;
}

__device__ __forceinline__ void chunk_range(uint32_t positions, uint32_t part, uint32_t chunks,
                                            uint32_t *p0, uint32_t *p1) {
  *p0 = (uint32_t)((uint64_t)positions * part / chunks);
  *p1 = (uint32_t)((uint64_t)positions * (part + 1) / chunks);
}

// Chunks that hold any of the first position + 1 positions.
__device__ __forceinline__ uint32_t chunks_in_use(const Params &p, uint32_t position) {
  if (p.one_pass) return min(p.chunks, position / p.fused_context + 1);
  return position < p.fused_context ? 1 : p.chunks;
}

__device__ __forceinline__ uint64_t cache_row(const Params &p, uint32_t layer, uint32_t kv,
                                              uint32_t position) {
  return (((uint64_t)layer * p.kv_heads + kv) * p.context + position) * p.head_dim;
}

// Shared memory of an attention tile.
struct AttentionShared {
  float2 *rotation; // [head_dim / 2] of the newest position
  float *heads;     // [group, head_dim] queries
  uint4 *fresh;     // [2, head_dim / 8] the newest key and value, as the cache holds them
  float *max;       // two passes: [WARPS, group]; one pass: [WARPS, HEADS_AT_ONCE, 2]
  float *exps;      // two passes: [HEADS_AT_ONCE, EXPS_AT_ONCE]
  float *sums;      // [WARPS, HEADS_AT_ONCE, head_dim]
  uint4 *rows;      // one pass: [2 buffers, keys then values, kv_rows, head_dim / 8]
};

__host__ __device__ inline uint32_t attention_floats(bool one_pass, uint32_t group,
                                                     uint32_t head_dim) {
  uint32_t n =
      head_dim + (group + 1) * head_dim + (WARPS * (group + 2 * HEADS_AT_ONCE) + 3) / 4 * 4;
  if (!one_pass) n += HEADS_AT_ONCE * EXPS_AT_ONCE;
  return n + WARPS * HEADS_AT_ONCE * head_dim;
}

__device__ __forceinline__ AttentionShared attention_shared(const Params &p, float *room,
                                                            uint4 *ahead) {
  AttentionShared s;
  s.rotation = (float2 *)room;
  s.heads = room + p.head_dim;
  s.fresh = (uint4 *)(s.heads + p.group * p.head_dim);
  s.max = s.heads + (p.group + 1) * p.head_dim;
  s.exps = s.max + (WARPS * (p.group + 2 * HEADS_AT_ONCE) + 3) / 4 * 4;
  s.sums = s.exps + (p.one_pass ? 0 : HEADS_AT_ONCE * EXPS_AT_ONCE);
  s.rows = ahead;
  return s;
}
//< attention_layout

/*: ## Queries, the new key and the new value

A warp a head: norm it where the family says so, turn it, keep it in shared memory. The tile that holds the newest position does the same with
the key and writes it to the cache, rounded to two bytes; it keeps the key and the value at hand, for the cache's copy is not read again by
this token. `load` fetches what the QKV wave wrote, two elements at once. :*/
//> attention_heads
__device__ __forceinline__ float2 load_pair(const float *a, const float *b) {
  return make_float2(load_l2(a), load_l2(b));
}

template <DType T, class Load>
__device__ __forceinline__ void make_heads(const Params &p, uint32_t layer, uint32_t kv,
                                           uint32_t position, bool newest, const AttentionShared &s,
                                           Load load) {
  const uint32_t lane = threadIdx.x % WARP, half = p.head_dim / 2;
  const float *vectors = p.vectors + (uint64_t)layer * p.layer_floats;
#pragma unroll 1
  for (uint32_t h = threadIdx.x / WARP; h < p.group + 2 * newest; h += WARPS) {
    const bool key = h == p.group, value = h == p.group + 1;
    const uint32_t from = key ? p.heads + kv : value ? p.heads + p.kv_heads + kv : kv * p.group + h;
    const float *in = p.qkv_out + (uint64_t)from * p.head_dim;
    float *out = s.heads + h * p.head_dim, scale = key ? 1 : p.score_scale;
    uint16_t *fresh = (uint16_t *)s.fresh + (value ? p.head_dim : 0);
    const uint64_t at = cache_row(p, layer, kv, position);
    uint16_t *row = (value ? p.values : p.keys) + at;
    if (p.qk_norm && !value) {
      float squares = 0;
      for (uint32_t d = lane; d < half; d += WARP) {
        const float2 v = load(in + d, in + d + half);
        squares += v.x * v.x + v.y * v.y;
      }
      scale *= 1.0f / sqrtf(warp_sum(squares) / (float)p.head_dim + p.rms_eps);
    }
#pragma unroll 1
    for (uint32_t d = lane; d < half; d += WARP) {
      const float2 ab = load(in + d, in + d + half);
      float a = ab.x, b = ab.y;
      if (!value) {
        const float2 r = s.rotation[d];
        if (p.qk_norm) {
          const float *norm = vectors + (key ? p.k_norm : p.q_norm);
          a *= norm[d];
          b *= norm[d + half];
        }
        const float x = a * r.x - b * r.y, y = b * r.x + a * r.y;
        a = x * scale;
        b = y * scale;
      }
      if (h < p.group) {
        out[d] = a;
        out[d + half] = b;
        continue;
      }
      row[d] = fresh[d] = narrow<T>(a);
      row[d + half] = fresh[d + half] = narrow<T>(b);
    }
  }
  sync_block();
}
//< attention_heads

/*: ## One pass

A lane's state of its rows, for H heads. Nothing seen yet: -infinity, 0, 0. :*/
//> attention_state
template <int H> struct HeadStates { float max[H], sum[H], value[H][8]; };

template <int H> __device__ __forceinline__ void clear(HeadStates<H> &st) {
#pragma unroll
  for (int h = 0; h < H; h++) {
    st.max[h] = -INFINITY;
    st.sum[h] = 0;
#pragma unroll
    for (int e = 0; e < 8; e++) st.value[h][e] = 0;
  }
}

// What scores are taken relative to: no NaN where nothing has been seen.
__device__ __forceinline__ float origin(float max) { return max == -INFINITY ? 0 : max; }

// Rows i0 + a * stride of keys and values for a < AT, each row group its own, join the state. The first row of a buffer is position b0; the
// newest position's rows are in `fresh`.
template <DType T, int H, int AT>
__device__ __forceinline__ void attend_step(const float (&q)[H][8], const HeadLanes &lanes,
                                            uint32_t vectors, uint32_t i0, uint32_t n,
                                            uint32_t newest, const uint4 *keys, const uint4 *values,
                                            const uint4 *fresh, HeadStates<H> &st) {
  const uint32_t v = lanes.d / 8, stride = WARPS * lanes.rows;
  float score[AT][H];
#pragma unroll
  for (int a = 0; a < AT; a++) {
    const uint32_t i = i0 + a * stride + lanes.row;
    const uint4 *row = i == newest ? fresh : keys + i * vectors;
    float k[8];
    widen8<T>(i < n && lanes.inside ? row[v] : make_uint4(0, 0, 0, 0), k);
#pragma unroll
    for (int h = 0; h < H; h++) {
      score[a][h] = 0;
#pragma unroll
      for (int e = 0; e < 8; e++) score[a][h] = fmaf(k[e], q[h][e], score[a][h]);
    }
  }
  for (uint32_t o = lanes.lanes / 2; o; o >>= 1)
#pragma unroll
    for (int a = 0; a < AT; a++)
#pragma unroll
      for (int h = 0; h < H; h++) score[a][h] += __shfl_xor_sync(0xffffffffu, score[a][h], o);
#pragma unroll
  for (int h = 0; h < H; h++) {
    float most = st.max[h];
#pragma unroll
    for (int a = 0; a < AT; a++) {
      if (i0 + a * stride + lanes.row >= n) score[a][h] = -INFINITY;
      if (!(score[a][h] <= most)) most = score[a][h]; // NaN takes over
    }
    const float scale = __expf(st.max[h] - origin(most));
    st.max[h] = most;
    st.sum[h] *= scale;
#pragma unroll
    for (int e = 0; e < 8; e++) st.value[h][e] *= scale;
#pragma unroll
    for (int a = 0; a < AT; a++) {
      score[a][h] = __expf(score[a][h] - origin(most));
      st.sum[h] += score[a][h];
    }
  }
#pragma unroll
  for (int a = 0; a < AT; a++) {
    const uint32_t i = i0 + a * stride + lanes.row;
    const uint4 *row = i == newest ? fresh + vectors : values + i * vectors;
    float x[8];
    widen8<T>(i < n && lanes.inside ? row[v] : make_uint4(0, 0, 0, 0), x);
#pragma unroll
    for (int h = 0; h < H; h++)
#pragma unroll
      for (int e = 0; e < 8; e++) st.value[h][e] = fmaf(x[e], score[a][h], st.value[h][e]);
  }
}

// All n rows of a block; `newest` counts from its first. TOGETHER rows at once hide latencies where there are many, one keeps a short context short.
template <DType T, int H, int TOGETHER>
__device__ __forceinline__ void attend_rows(const Params &p, const float (&q)[H][8],
                                            const HeadLanes &lanes, uint32_t n, uint32_t newest,
                                            const uint4 *keys, const uint4 *values,
                                            const uint4 *fresh, HeadStates<H> &st) {
  const uint32_t vectors = p.head_dim / 8, stride = WARPS * lanes.rows;
  uint32_t i0 = threadIdx.x / WARP * lanes.rows;
#pragma unroll 1
  for (; TOGETHER > 1 && i0 + (TOGETHER - 1) * stride < n; i0 += TOGETHER * stride)
    attend_step<T, H, TOGETHER>(q, lanes, vectors, i0, n, newest, keys, values, fresh, st);
#pragma unroll 1
  for (; i0 < n; i0 += stride)
    attend_step<T, H, 1>(q, lanes, vectors, i0, n, newest, keys, values, fresh, st);
}

// The row groups of every warp, then the warps. finish(head, element, total, largest score, summed weights), once for each of heads h0
// to h0 + H that exists and each element.
template <int H, class Finish>
__device__ __forceinline__ void merge_states(const Params &p, uint32_t h0, const HeadLanes &lanes,
                                             HeadStates<H> &st, const AttentionShared &s,
                                             Finish finish) {
  const uint32_t warp = threadIdx.x / WARP;
  float most[H];
#pragma unroll
  for (int h = 0; h < H; h++) most[h] = st.max[h];
  for (uint32_t o = lanes.lanes; o < WARP; o *= 2)
#pragma unroll
    for (int h = 0; h < H; h++) {
      const float other = __shfl_xor_sync(0xffffffffu, most[h], o);
      if (!(other <= most[h])) most[h] = other;
    }
#pragma unroll
  for (int h = 0; h < H; h++) {
    const float scale = __expf(st.max[h] - origin(most[h]));
    st.sum[h] *= scale;
#pragma unroll
    for (int e = 0; e < 8; e++) st.value[h][e] *= scale;
  }
  for (uint32_t o = lanes.lanes; o < WARP; o *= 2)
#pragma unroll
    for (int h = 0; h < H; h++) {
      st.sum[h] += __shfl_xor_sync(0xffffffffu, st.sum[h], o);
#pragma unroll
      for (int e = 0; e < 8; e++) st.value[h][e] += __shfl_xor_sync(0xffffffffu, st.value[h][e], o);
    }
#pragma unroll
  for (int h = 0; h < H; h++) {
    if (lanes.row == 0 && lanes.inside) {
      float4 *to = (float4 *)(s.sums + (warp * H + h) * p.head_dim + lanes.d);
      to[0] = make_float4(st.value[h][0], st.value[h][1], st.value[h][2], st.value[h][3]);
      to[1] = make_float4(st.value[h][4], st.value[h][5], st.value[h][6], st.value[h][7]);
    }
    if (threadIdx.x % WARP == 0)
      *(float2 *)(s.max + (warp * H + h) * 2) = make_float2(most[h], st.sum[h]);
  }
  sync_block();
  const uint32_t heads = min(p.group - h0, (uint32_t)H);
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < heads * p.head_dim; i += BLOCK) {
    const uint32_t h = i / p.head_dim, d = i - h * p.head_dim;
    const float2 *of = (const float2 *)s.max + h;
    float largest = of[0].x, total = 0, weights = 0;
#pragma unroll
    for (uint32_t w = 1; w < WARPS; w++) {
      const float other = of[w * H].x;
      if (!(other <= largest)) largest = other;
    }
#pragma unroll
    for (uint32_t w = 0; w < WARPS; w++) {
      const float2 state = of[w * H];
      const float scale = __expf(state.x - origin(largest));
      total = fmaf(s.sums[w * H * p.head_dim + i], scale, total);
      weights = fmaf(state.y, scale, weights);
    }
    finish(h0 + h, d, total, largest, weights);
  }
}

template <int H>
__device__ __forceinline__ void lane_queries(const Params &p, uint32_t h0, const HeadLanes &lanes,
                                             const AttentionShared &s, float (&q)[H][8]) {
#pragma unroll
  for (uint32_t h = 0; h < H; h++) {
    const float4 zero = make_float4(0, 0, 0, 0),
                 *from = (const float4 *)(s.heads + (h0 + h) * p.head_dim + lanes.d);
    const bool there = h0 + h < p.group && lanes.inside;
    const float4 a = there ? from[0] : zero, b = there ? from[1] : zero;
    q[h][0] = a.x, q[h][1] = a.y, q[h][2] = a.z, q[h][3] = a.w;
    q[h][4] = b.x, q[h][5] = b.y, q[h][6] = b.z, q[h][7] = b.w;
  }
}
//< attention_state

/*: All earlier positions of the cache are known before the wave begins: `attend_begin` copies the chunk's first block into shared memory while the
barrier is still waited for. Later blocks are copied while the one before is worked on. The newest position's rows come from this token's QKV wave. :*/
//> attention_one_pass
// Positions [b0, b0 + n) into a buffer, but for the newest.
__device__ __forceinline__ void stage_rows(const Params &p, uint32_t layer, uint32_t kv,
                                           uint32_t newest, uint32_t b0, uint32_t n, uint4 *to) {
  const uint32_t vectors = p.head_dim / 8, rows = min(b0 + n, newest) - b0;
  const uint4 *k = (const uint4 *)(p.keys + cache_row(p, layer, kv, b0));
  const uint4 *v = (const uint4 *)(p.values + cache_row(p, layer, kv, b0));
#pragma unroll 2
  for (uint32_t i = threadIdx.x; i < rows * vectors; i += BLOCK) {
    copy_async(to + i, k + i);
    copy_async(to + p.kv_rows * vectors + i, v + i);
  }
}

__device__ __forceinline__ void attend_begin(const Params &p, uint32_t layer, uint32_t kv,
                                             uint32_t newest, uint32_t p0, uint32_t p1,
                                             const AttentionShared &s) {
  const uint4 *turn = (const uint4 *)(p.rotation + (uint64_t)newest * (p.head_dim / 2));
  if (threadIdx.x < p.head_dim / 4)
    copy_async((uint4 *)s.rotation + threadIdx.x, turn + threadIdx.x);
  stage_rows(p, layer, kv, newest, p0, min(p1 - p0, p.kv_rows), s.rows);
}

// The heads from h0 on. The first block is staged, or on its way.
template <DType T, int H>
__device__ __forceinline__ void
attend_heads(const Params &p, uint32_t layer, uint32_t kv, uint32_t part, uint32_t chunks,
             uint32_t h0, uint32_t newest, uint32_t p0, uint32_t p1, const AttentionShared &s) {
  const uint32_t buffer = 2 * p.kv_rows * (p.head_dim / 8);
  const HeadLanes lanes = head_lanes(p.head_dim);
  HeadStates<H> st;
  clear(st);
  float q[H][8];
  lane_queries<H>(p, h0, lanes, s, q);
  uint4 *rows = s.rows, *next = s.rows + buffer;
#pragma unroll 1
  for (uint32_t b0 = p0; b0 < p1; b0 += p.kv_rows) {
    const uint32_t n = min(p1 - b0, p.kv_rows), after = b0 + n;
    if (after < p1) stage_rows(p, layer, kv, newest, after, min(p1 - after, p.kv_rows), next);
    attend_rows<T, H, ROWS_TOGETHER>(p, q, lanes, n, newest - b0, rows, rows + buffer / 2, s.fresh,
                                     st);
    copy_async_wait();
    if (after < p1)
      sync_block(); // the next block, to all threads; and this one's buffer may be filled again
    uint4 *done = rows;
    rows = next;
    next = done;
  }
  const uint64_t head0 = (uint64_t)part * p.heads + kv * p.group;
  merge_states<H>(
      p, h0, lanes, st, s, [&](uint32_t h, uint32_t d, float total, float most, float weights) {
        // A chunk that is the only one leaves nothing for Wo to do.
        store_l2(p.attention + (head0 + h) * p.head_dim + d, chunks == 1 ? total / weights : total);
        if (d || chunks == 1) return;
        store_l2(p.score_max + head0 + h, most);
        store_l2(p.denominator + head0 + h, weights);
      });
}

template <DType T>
__device__ __forceinline__ void attend(const Params &p, uint32_t layer, uint32_t kv, uint32_t part,
                                       uint32_t chunks, uint32_t newest, uint32_t p0, uint32_t p1,
                                       const AttentionShared &s) {
  copy_async_wait();
  sync_block(); // the first block and the rotation, to all threads
  make_heads<T>(p, layer, kv, newest, newest < p1, s, load_pair);
#pragma unroll 1
  for (uint32_t h0 = 0; h0 < p.group; h0 += HEADS_AT_ONCE) {
    if (h0) {
      sync_block();
      if (p1 - p0 > p.kv_rows) { // the first block is no longer there
        stage_rows(p, layer, kv, newest, p0, p.kv_rows, s.rows);
        copy_async_wait();
        sync_block();
      }
    }
    attend_heads<T, HEADS_AT_ONCE>(p, layer, kv, part, chunks, h0, newest, p0, p1, s);
  }
}
//< attention_one_pass

/*: ## Two passes :*/

//> attention_scores
template <DType T>
__device__ __forceinline__ void chunk_scores(const Params &p, uint32_t layer, uint32_t kv,
                                             uint32_t part, uint32_t p0, uint32_t p1,
                                             const AttentionShared &s) {
  HeadLanes at = head_lanes(p.head_dim);
  uint32_t warp = threadIdx.x / WARP;
  const uint16_t *k = p.keys + cache_row(p, layer, kv, 0) + at.d;
  for (uint32_t h0 = 0; h0 < p.group; h0 += HEADS_AT_ONCE) {
    float q[HEADS_AT_ONCE][8], max[HEADS_AT_ONCE];
#pragma unroll
    for (uint32_t i = 0; i < HEADS_AT_ONCE; i++) {
      max[i] = -INFINITY;
#pragma unroll
      for (int e = 0; e < 8; e++)
        q[i][e] = at.inside && h0 + i < p.group ? s.heads[(h0 + i) * p.head_dim + at.d + e] : 0;
    }
    const uint32_t stride = WARPS * at.rows;
    for (uint32_t base = p0 + warp * at.rows; base < p1; base += stride * ROWS_AHEAD) {
      uint4 row[ROWS_AHEAD];
#pragma unroll
      for (uint32_t a = 0; a < ROWS_AHEAD; a++) {
        uint32_t position = base + a * stride + at.row;
        row[a] = at.inside && position < p1
                     ? load_l2((const uint4 *)(k + (uint64_t)position * p.head_dim))
                     : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (uint32_t a = 0; a < ROWS_AHEAD; a++) {
        uint32_t position = base + a * stride + at.row;
        float w[8];
        widen8<T>(row[a], w);
#pragma unroll
        for (uint32_t i = 0; i < HEADS_AT_ONCE; i++) {
          float dot = 0;
#pragma unroll
          for (int e = 0; e < 8; e++) dot = fmaf(w[e], q[i][e], dot);
          for (uint32_t o = at.lanes / 2; o; o >>= 1) dot += __shfl_xor_sync(0xffffffffu, dot, o);
          if (position < p1 && h0 + i < p.group) {
            if (at.d == 0)
              store_l2(p.scores + (uint64_t)(kv * p.group + h0 + i) * p.context + position, dot);
            if (!(dot <= max[i])) max[i] = dot;
          }
        }
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < HEADS_AT_ONCE; i++) {
      float m = warp_max(max[i]);
      if (threadIdx.x % WARP == 0 && h0 + i < p.group) s.max[warp * p.group + h0 + i] = m;
    }
  }
  __syncthreads();
  for (uint32_t h = threadIdx.x; h < p.group; h += BLOCK) {
    float m = s.max[h];
    for (uint32_t w = 1; w < WARPS; w++)
      if (!(s.max[w * p.group + h] <= m)) m = s.max[w * p.group + h];
    store_l2(p.score_max + (uint64_t)part * p.heads + kv * p.group + h, m);
  }
}
//< attention_scores

//> attention_values
// max over `chunks` chunks; the partial of chunk `part`, unnormalised, with its summed weights.
template <DType T>
__device__ __forceinline__ void chunk_values(const Params &p, uint32_t layer, uint32_t kv,
                                             uint32_t part, uint32_t chunks, uint32_t p0,
                                             uint32_t p1, const AttentionShared &s) {
  HeadLanes at = head_lanes(p.head_dim);
  uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, head0 = kv * p.group;
  const uint16_t *v = p.values + cache_row(p, layer, kv, 0) + at.d;
  for (uint32_t h0 = 0; h0 < p.group; h0 += HEADS_AT_ONCE) {
    float sum[HEADS_AT_ONCE][8], weight = 0; // weight: of the head that this warp exponentiates for
#pragma unroll
    for (uint32_t i = 0; i < HEADS_AT_ONCE; i++)
#pragma unroll
      for (int e = 0; e < 8; e++) sum[i][e] = 0;
    // Warps share the exponentials: warp w works for head w % HEADS_AT_ONCE.
    const uint32_t mine = h0 + warp % HEADS_AT_ONCE, shares = WARPS / HEADS_AT_ONCE;
    float max = -INFINITY;
    if (mine < p.group) {
      for (uint32_t c = lane; c < chunks; c += WARP) {
        float m = load_l2(p.score_max + (uint64_t)c * p.heads + head0 + mine);
        if (!(m <= max)) max = m;
      }
      max = warp_max(max);
    }
    for (uint32_t b0 = p0; b0 < p1; b0 += EXPS_AT_ONCE) {
      uint32_t n = min(p1 - b0, (uint32_t)EXPS_AT_ONCE);
      __syncthreads(); // the exponentials of the last round, and of another use, have been read
      if (mine < p.group)
        for (uint32_t i = warp / HEADS_AT_ONCE * WARP + lane; i < n; i += shares * WARP) {
          float e = __expf(load_l2(p.scores + (uint64_t)(head0 + mine) * p.context + b0 + i) - max);
          s.exps[(mine - h0) * EXPS_AT_ONCE + i] = e;
          weight += e;
        }
      __syncthreads();
      const uint32_t stride = WARPS * at.rows;
      for (uint32_t base = warp * at.rows; base < n; base += stride * ROWS_AHEAD) {
        uint4 row[ROWS_AHEAD];
#pragma unroll
        for (uint32_t a = 0; a < ROWS_AHEAD; a++) {
          uint32_t i = base + a * stride + at.row;
          row[a] = at.inside && i < n
                       ? load_l2((const uint4 *)(v + (uint64_t)(b0 + i) * p.head_dim))
                       : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (uint32_t a = 0; a < ROWS_AHEAD; a++) {
          uint32_t i = base + a * stride + at.row;
          if (!(i < n)) continue;
          float w[8];
          widen8<T>(row[a], w);
#pragma unroll
          for (uint32_t h = 0; h < HEADS_AT_ONCE; h++) {
            if (h0 + h >= p.group) continue;
            float e = s.exps[h * EXPS_AT_ONCE + i];
#pragma unroll
            for (int k = 0; k < 8; k++) sum[h][k] = fmaf(w[k], e, sum[h][k]);
          }
        }
      }
    }
    // Rows of a warp, then warps, in order.
#pragma unroll
    for (uint32_t h = 0; h < HEADS_AT_ONCE; h++)
#pragma unroll
      for (int k = 0; k < 8; k++)
        for (uint32_t o = at.lanes; o < WARP; o *= 2)
          sum[h][k] += __shfl_xor_sync(0xffffffffu, sum[h][k], o);
    weight = warp_sum(weight);
    __syncthreads(); // the sums of the last heads have been read, and s.max too
    if (at.row == 0 && at.inside)
#pragma unroll
      for (uint32_t h = 0; h < HEADS_AT_ONCE; h++)
#pragma unroll
        for (int k = 0; k < 8; k++)
          s.sums[(warp * HEADS_AT_ONCE + h) * p.head_dim + at.d + k] = sum[h][k];
    if (lane == 0) s.max[warp] = weight;
    __syncthreads();
    uint32_t heads = min(p.group - h0, (uint32_t)HEADS_AT_ONCE);
    for (uint32_t i = threadIdx.x; i < heads * p.head_dim; i += BLOCK) {
      float total = 0;
      for (uint32_t w = 0; w < WARPS; w++) total += s.sums[w * HEADS_AT_ONCE * p.head_dim + i];
      store_l2(p.attention + ((uint64_t)part * p.heads + head0 + h0) * p.head_dim + i, total);
    }
    for (uint32_t h = threadIdx.x; h < heads; h += BLOCK) {
      float total = 0;
      for (uint32_t w = 0; w < shares; w++) total += s.max[w * HEADS_AT_ONCE + h];
      store_l2(p.denominator + (uint64_t)part * p.heads + head0 + h0 + h, total);
    }
  }
}
//< attention_values

/*: ## Merging

What Wo multiplies is the sum of the partials over the summed weights, in the order of the chunks. Partials of two passes share a scale; those of
one pass are brought to the largest first. Every Wo tile merges for itself, from L2. With a single chunk in use its tile has divided already. :*/
//> attention_merge
// Several chunks. factors: [3, chunks in use, heads] floats of shared memory.
__device__ __forceinline__ void stage_attention(const Params &p, uint32_t chunks, uint32_t columns,
                                                float *staged, float *factors) {
  const uint32_t width = p.heads * p.head_dim, states = chunks * p.heads;
  float *most = factors, *weight = factors + states, *factor = weight + states;
  // A thread a head and chunk, so that all of them are one trip to L2 away.
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < states; i += BLOCK) {
    most[i] = p.one_pass ? load_l2(p.score_max + i) : 0; // partials of two passes share a scale
    weight[i] = load_l2(p.denominator + i);
  }
  __syncthreads();
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < states; i += BLOCK) {
    const uint32_t h = i % p.heads;
    float m = most[h], total = 0;
#pragma unroll 4
    for (uint32_t c = 1; c < chunks; c++) {
      const float other = most[c * p.heads + h];
      if (!(other <= m)) m = other; // NaN takes over
    }
#pragma unroll 4
    for (uint32_t c = 0; c < chunks; c++)
      total += __expf(most[c * p.heads + h] - m) * weight[c * p.heads + h];
    factor[i] = __expf(most[i] - m) / total;
  }
  __syncthreads();
#pragma unroll 1
  for (uint32_t e = threadIdx.x * 4; e < columns; e += BLOCK * 4) {
    float4 sum = make_float4(0, 0, 0, 0);
    if (e < width) {
      const float *f = factor + e / p.head_dim;
#pragma unroll 8
      for (uint32_t c = 0; c < chunks; c++) {
        const float4 v = load_l2((const float4 *)(p.attention + (uint64_t)c * width + e));
        const float scale = f[c * p.heads];
        sum.x = fmaf(v.x, scale, sum.x);
        sum.y = fmaf(v.y, scale, sum.y);
        sum.z = fmaf(v.z, scale, sum.z);
        sum.w = fmaf(v.w, scale, sum.w);
      }
    }
    *(float4 *)(staged + plane_index(e, columns / 2)) = sum;
  }
  __syncthreads();
}
#endif
//< attention_merge
