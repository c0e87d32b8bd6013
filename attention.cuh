/*: # Attention

At batch size one attention is two more matrix-vector products, with the K/V cache as the matrix: scores are K times a
query, the output is V-transposed times the weights. Four to eight query heads share a K/V head, so a tile owns one K/V head, reads
its rows once and uses them for the whole group. It is the only cost that grows with the position.

**Chunks.** The context is cut into chunks, a tile each, so that many workers share the reading. In *one pass* a tile does
everything for its chunk: scores, exponentials relative to the chunk's own largest score, weighted values; Wo brings the partials to
one scale when it adds them. In *two passes* a scores tile stops at the scores, and after a barrier a values tile takes the largest over all
chunks, so that the partials share one scale from the start. Up to `fused_context` positions the two-pass plan lets the tile of chunk 0 do
all of it, which is the one pass again.

**Layout.** In one pass the chunk's rows are staged in shared memory, a block of positions at a time. For the scores a thread takes a position and four
heads: it reads the key's row once and the queries as broadcasts. For the weighted values a lane takes two elements and four heads, and its warp every
eighth position. Both are plain sums with nothing exchanged between lanes. In two passes the rows come from the cache; eight lanes hold a row of 128
bytes, and a butterfly finishes the dot product.

**Small code.** At a short context this tile has next to no work, and what it takes is the time to walk through its instructions once. A version that
unrolled four heads into one long straight line was slower (`threads_256` beside `attend_blocks` in `measured/h200-probes.tsv`). So the loops here are rolled where they
can be. :*/
#ifndef ATTENTION_CUH
#define ATTENTION_CUH
#include "device.cuh"

//> attention_layout
enum { HEADS_AT_ONCE = 4, ROWS_AHEAD = 2, EXPS_AT_ONCE = 1024 };

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

// Shared memory of an attention tile. B is kv_rows, the positions of a block.
struct AttentionShared {
  float2 *rotation; // [head_dim / 2] of the newest position
  float *heads;     // [group + 2, head_dim] queries, the new key and the new value
  float *max;  // [WARPS, group]; one pass: [group, 3] largest score, summed weights, last rescaling
  float *exps; // one pass: [B, HEADS_AT_ONCE]; two passes: [HEADS_AT_ONCE, EXPS_AT_ONCE]
  float *sums; // [WARPS, HEADS_AT_ONCE, head_dim]
  float *out;  // one pass: [group, head_dim]
  uint4 *rows; // one pass: [2 buffers, keys then values, B, head_dim / 8], swizzled
};

__host__ __device__ inline uint32_t attention_floats(bool one_pass, uint32_t group,
                                                     uint32_t head_dim, uint32_t kv_rows) {
  uint32_t n = head_dim + (group + 2) * head_dim + (WARPS * group + 3 * group + 3) / 4 * 4;
  n += HEADS_AT_ONCE * (one_pass ? kv_rows : (uint32_t)EXPS_AT_ONCE);
  return n + WARPS * HEADS_AT_ONCE * head_dim + group * head_dim;
}

__device__ __forceinline__ AttentionShared attention_shared(const Params &p, float *room,
                                                            uint4 *ahead) {
  AttentionShared s;
  s.rotation = (float2 *)room;
  s.heads = room + p.head_dim;
  s.max = s.heads + (p.group + 2) * p.head_dim;
  s.exps = s.max + (WARPS * p.group + 3 * p.group + 3) / 4 * 4;
  s.sums = s.exps + HEADS_AT_ONCE * (p.one_pass ? p.kv_rows : (uint32_t)EXPS_AT_ONCE);
  s.out = s.sums + WARPS * HEADS_AT_ONCE * p.head_dim;
  s.rows = ahead;
  return s;
}
//< attention_layout

/*: ## Queries, the new key and the new value

A warp a head: norm it where the family says so, turn it, keep it in shared memory. The tile that holds the newest position does the same with
the key and writes it to the cache, rounded to two bytes. :*/
//> attention_heads
template <DType T>
__device__ __forceinline__ void make_heads(const Params &p, uint32_t layer, uint32_t kv,
                                           uint32_t position, bool newest, float *heads,
                                           const float2 *rotation) {
  const uint32_t lane = threadIdx.x % WARP, half = p.head_dim / 2;
  const float *vectors = p.vectors + (uint64_t)layer * p.layer_floats;
#pragma unroll 1
  for (uint32_t h = threadIdx.x / WARP; h < p.group + 2 * newest; h += WARPS) {
    const bool key = h == p.group, value = h == p.group + 1;
    const uint32_t from = key ? p.heads + kv : value ? p.heads + p.kv_heads + kv : kv * p.group + h;
    const float *in = p.qkv_out + (uint64_t)from * p.head_dim;
    float *out = heads + h * p.head_dim, scale = key ? 1 : p.score_scale;
    if (p.qk_norm && !value) {
      float squares = 0;
      for (uint32_t d = lane; d < p.head_dim; d += WARP) {
        float v = load_l2(in + d);
        squares += v * v;
      }
      scale *= 1.0f / sqrtf(warp_sum(squares) / (float)p.head_dim + p.rms_eps);
    }
    uint16_t *row = p.keys + cache_row(p, layer, kv, position);
#pragma unroll 1
    for (uint32_t d = lane; d < half; d += WARP) {
      float a = load_l2(in + d), b = load_l2(in + d + half);
      if (!value) {
        const float2 r = rotation[d];
        if (p.qk_norm) {
          const float *norm = vectors + (key ? p.k_norm : p.q_norm);
          a *= norm[d];
          b *= norm[d + half];
        }
        const float x = a * r.x - b * r.y, y = b * r.x + a * r.y;
        a = x * scale;
        b = y * scale;
      }
      out[d] = a;
      out[d + half] = b;
      if (!key) continue;
      row[d] = narrow<T>(a);
      row[d + half] = narrow<T>(b);
    }
  }
  __syncthreads();
}
//< attention_heads

/*: ## One pass

All earlier positions of the cache are known before the wave begins: `attend_begin` copies the chunk's first block into shared memory while the
barrier is still waited for. Later blocks are copied while the one before is worked on. The newest position's rows come from this token's QKV wave; they
are put into their place when they are known.

Sixteen bytes of row i that belong to lane-group v lie at v ^ (i % 8): threads that read the same piece of neighbouring rows would otherwise meet in the same
banks. :*/
//> attention_one_pass
__device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t vector, uint32_t vectors) {
  return row * vectors + (vector ^ (vectors % 8 ? 0 : row % 8));
}

// Positions [b0, b0 + n) into a buffer, but for the newest.
__device__ __forceinline__ void stage_rows(const Params &p, uint32_t layer, uint32_t kv,
                                           uint32_t newest, uint32_t b0, uint32_t n, uint4 *to) {
  const uint32_t vectors = p.head_dim / 8, rows = min(b0 + n, newest) - b0;
  const uint4 *k = (const uint4 *)(p.keys + cache_row(p, layer, kv, b0));
  const uint4 *v = (const uint4 *)(p.values + cache_row(p, layer, kv, b0));
#pragma unroll 2
  for (uint32_t i = threadIdx.x; i < rows * vectors; i += BLOCK) {
    const uint32_t row = i / vectors, at = swizzled(row, i - row * vectors, vectors);
    copy_async(to + at, k + i);
    copy_async(to + p.kv_rows * vectors + at, v + i);
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

template <DType T> __device__ __forceinline__ uint4 narrow8(const float *x) {
  uint32_t u[4];
#pragma unroll
  for (int k = 0; k < 4; k++) u[k] = narrow<T>(x[2 * k]) | (uint32_t)narrow<T>(x[2 * k + 1]) << 16;
  return make_uint4(u[0], u[1], u[2], u[3]);
}

// Scores of n staged keys for four heads, a thread a position, into exps.
template <DType T>
__device__ __forceinline__ void block_scores(const Params &p, uint32_t h0, uint32_t n,
                                             const uint4 *rows, const AttentionShared &s) {
  const uint32_t vectors = p.head_dim / 8;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < n; i += BLOCK) {
    float score[HEADS_AT_ONCE] = {0, 0, 0, 0};
#pragma unroll 2
    for (uint32_t v = 0; v < vectors; v++) {
      float k[8];
      widen8<T>(rows[swizzled(i, v, vectors)], k);
#pragma unroll
      for (uint32_t h = 0; h < HEADS_AT_ONCE; h++) {
        const float4 *q = (const float4 *)(s.heads + min(h0 + h, p.group - 1) * p.head_dim + v * 8);
        const float4 a = q[0], b = q[1];
        score[h] = fmaf(k[0], a.x, fmaf(k[1], a.y, fmaf(k[2], a.z, fmaf(k[3], a.w, score[h]))));
        score[h] = fmaf(k[4], b.x, fmaf(k[5], b.y, fmaf(k[6], b.z, fmaf(k[7], b.w, score[h]))));
      }
    }
    *(float4 *)(s.exps + i * HEADS_AT_ONCE) = make_float4(score[0], score[1], score[2], score[3]);
  }
}

// A warp a head: the block's largest score joins the head's, scores become weights, and what was summed before is to be rescaled.
__device__ __forceinline__ void block_weights(const Params &p, uint32_t h0, uint32_t n,
                                              const AttentionShared &s) {
  const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  if (warp >= HEADS_AT_ONCE || h0 + warp >= p.group) return;
  float *known = s.max + 3 * (h0 + warp), most = known[0], sum = 0;
#pragma unroll 2
  for (uint32_t i = lane; i < n; i += WARP) {
    const float score = s.exps[i * HEADS_AT_ONCE + warp];
    if (!(score <= most)) most = score; // NaN takes over
  }
  most = warp_max(most);
#pragma unroll 2
  for (uint32_t i = lane; i < n; i += WARP) {
    const float weight = __expf(s.exps[i * HEADS_AT_ONCE + warp] - most);
    s.exps[i * HEADS_AT_ONCE + warp] = weight;
    sum += weight;
  }
  sum = warp_sum(sum);
  if (lane) return;
  const float scale = known[0] == -INFINITY ? 0 : __expf(known[0] - most);
  known[0] = most;
  known[1] = known[1] * scale + sum;
  known[2] = scale;
}

// Weighted values of n staged rows for four heads: a lane two elements, a warp every WARPS-th position; then the warps in order.
template <DType T>
__device__ __forceinline__ void block_values(const Params &p, uint32_t h0, uint32_t n,
                                             const uint4 *rows, const AttentionShared &s) {
  const uint32_t warp = threadIdx.x / WARP, vectors = p.head_dim / 8;
#pragma unroll 1
  for (uint32_t d = threadIdx.x % WARP * 2; d < p.head_dim; d += 2 * WARP) {
    float2 sum[HEADS_AT_ONCE];
#pragma unroll
    for (uint32_t h = 0; h < HEADS_AT_ONCE; h++) sum[h] = make_float2(0, 0);
#pragma unroll 4
    for (uint32_t i = warp; i < n; i += WARPS) {
      const uint32_t pair = ((const uint32_t *)(rows + swizzled(i, d / 8, vectors)))[d % 8 / 2];
      const float a = widen<T>((uint16_t)(pair & 0xffff)), b = widen<T>((uint16_t)(pair >> 16));
      const float4 e = *(const float4 *)(s.exps + i * HEADS_AT_ONCE);
      const float w[HEADS_AT_ONCE] = {e.x, e.y, e.z, e.w};
#pragma unroll
      for (uint32_t h = 0; h < HEADS_AT_ONCE; h++) {
        sum[h].x = fmaf(a, w[h], sum[h].x);
        sum[h].y = fmaf(b, w[h], sum[h].y);
      }
    }
#pragma unroll
    for (uint32_t h = 0; h < HEADS_AT_ONCE; h++)
      *(float2 *)(s.sums + (warp * HEADS_AT_ONCE + h) * p.head_dim + d) = sum[h];
  }
  __syncthreads();
  const uint32_t heads = min(p.group - h0, (uint32_t)HEADS_AT_ONCE);
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < heads * p.head_dim; i += BLOCK) {
    float total = 0;
#pragma unroll
    for (uint32_t w = 0; w < WARPS; w++) total += s.sums[w * HEADS_AT_ONCE * p.head_dim + i];
    float *out = s.out + h0 * p.head_dim + i;
    *out = *out * s.max[3 * (h0 + i / p.head_dim) + 2] + total;
  }
  __syncthreads();
}

template <DType T>
__device__ __forceinline__ void attend(const Params &p, uint32_t layer, uint32_t kv, uint32_t part,
                                       uint32_t newest, uint32_t p0, uint32_t p1,
                                       const AttentionShared &s) {
  const uint32_t vectors = p.head_dim / 8, buffer = 2 * p.kv_rows * vectors;
  for (uint32_t i = threadIdx.x; i < p.group * p.head_dim; i += BLOCK) s.out[i] = 0;
  if (threadIdx.x < p.group) {
    s.max[3 * threadIdx.x] = -INFINITY;
    s.max[3 * threadIdx.x + 1] = 0;
  }
  copy_async_wait();
  __syncthreads(); // the first block and the rotation, to all threads
  make_heads<T>(p, layer, kv, newest, newest < p1, s.heads, s.rotation);
  uint4 *rows = s.rows, *next = s.rows + buffer;
#pragma unroll 1
  for (uint32_t b0 = p0; b0 < p1; b0 += p.kv_rows) {
    const uint32_t n = min(p1 - b0, p.kv_rows), after = b0 + n;
    if (after < p1) stage_rows(p, layer, kv, newest, after, min(p1 - after, p.kv_rows), next);
    if (newest - b0 < n) { // its key and value, rounded as the cache holds them
      const uint32_t v = threadIdx.x % vectors, which = threadIdx.x / vectors;
      if (which < 2)
        rows[which * p.kv_rows * vectors + swizzled(newest - b0, v, vectors)] =
            narrow8<T>(s.heads + (p.group + which) * p.head_dim + v * 8);
      __syncthreads();
    }
#pragma unroll 1
    for (uint32_t h0 = 0; h0 < p.group; h0 += HEADS_AT_ONCE) {
      block_scores<T>(p, h0, n, rows, s);
      __syncthreads();
      block_weights(p, h0, n, s);
      __syncthreads();
      block_values<T>(p, h0, n, rows + p.kv_rows * vectors, s);
    }
    copy_async_wait();
    if (after < p1) __syncthreads(); // the next block, to all threads
    uint4 *done = rows;
    rows = next;
    next = done;
  }
  const uint64_t head0 = (uint64_t)part * p.heads + kv * p.group;
  for (uint32_t i = threadIdx.x; i < p.group * p.head_dim; i += BLOCK)
    store_l2(p.attention + head0 * p.head_dim + i, s.out[i]);
  if (threadIdx.x < p.group) {
    store_l2(p.score_max + head0 + threadIdx.x, s.max[3 * threadIdx.x]);
    store_l2(p.denominator + head0 + threadIdx.x, s.max[3 * threadIdx.x + 1]);
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
one pass are brought to the largest first. Every Wo tile merges for itself, from L2. :*/
//> attention_merge
// One chunk: nothing to bring to one scale. raw: [columns], the partial as this thread asked for it.
__device__ __forceinline__ void scale_attention(const Params &p, uint32_t columns, float *raw) {
#pragma unroll 2
  for (uint32_t e = threadIdx.x * 4; e < columns; e += BLOCK * 4) {
    if (e >= p.heads * p.head_dim) break;
    const float f = 1.0f / load_l2(p.denominator + e / p.head_dim);
    float4 *v = (float4 *)(raw + e);
    *v = make_float4(v->x * f, v->y * f, v->z * f, v->w * f);
  }
}

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
//< attention_merge
#endif
