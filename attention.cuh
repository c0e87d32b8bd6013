/*: # Attention

At batch size one attention is two more matrix-vector products, with the K/V cache as the matrix: scores are K times a
query, the output is V-transposed times the weights. Four to eight query heads share a K/V head, so a tile owns one K/V head, reads
its rows once and uses them for the whole group. It is the only cost that grows with the position.

**Chunks.** The context is cut into chunks, a tile each, so that many workers share the reading. In *one pass* a tile does
everything for its chunk: scores, exponentials relative to the chunk's own largest score, weighted values; Wo brings the partials to
one scale when it adds them. In *two passes* a scores tile stops at the scores, and after a barrier a values tile takes the largest over all
chunks, so that the partials share one scale from the start. Up to `fused_context` positions the two-pass plan lets the tile of chunk 0 do
all of it, which is the one pass again.

**Layout.** A row of K or V is `head_dim` two-byte numbers: 128 bytes for a head of 64. Lanes take 16 bytes each, so eight
lanes hold a row and a warp reads four rows at once. The dot product is finished by a butterfly over the lanes of a row. In one pass a warp works
for one query head, and the heads of the group find the rows in shared memory.

**Small code.** At a short context this tile has next to no work, and what it takes is the time to walk through its instructions once. An early
version unrolled four heads into one long straight line: 8 µs a layer, most of it spent fetching instructions. So the loops here are
rolled. :*/
#ifndef ATTENTION_CUH
#define ATTENTION_CUH
#include "device.cuh"

//> attention_layout
enum { HEADS_AT_ONCE = 4, ROWS_AHEAD = 4, EXPS_AT_ONCE = 1024 };

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
  float *heads;   // [group, head_dim] queries
  float *max;     // [WARPS, group] or [2, WARPS]
  float *exps;    // [HEADS_AT_ONCE, EXPS_AT_ONCE], two passes only
  float *sums;    // [WARPS, HEADS_AT_ONCE, head_dim], or [WARPS, head_dim]
  uint16_t *rows; // one pass: [2, kv_rows, head_dim] the chunk's first keys, then its first values
};

__host__ __device__ inline uint32_t attention_floats(bool one_pass, uint32_t group,
                                                     uint32_t head_dim) {
  uint32_t n = (group + 1) * head_dim + WARPS * (group < 2 ? 2 : group);
  n = (n + 3) / 4 * 4;
  return one_pass ? n + WARPS * head_dim
                  : n + HEADS_AT_ONCE * EXPS_AT_ONCE + WARPS * HEADS_AT_ONCE * head_dim;
}

__device__ __forceinline__ AttentionShared attention_shared(const Params &p, float *room) {
  AttentionShared s;
  s.heads = room;
  s.max = s.heads + (p.group + 1) * p.head_dim;
  s.exps = room + ((p.group + 1) * p.head_dim + WARPS * max(p.group, 2u) + 3) / 4 * 4;
  s.sums = p.one_pass ? s.exps : s.exps + HEADS_AT_ONCE * EXPS_AT_ONCE;
  s.rows = (uint16_t *)(room + attention_floats(p.one_pass, p.group, p.head_dim));
  return s;
}
//< attention_layout

/*: ## Queries and the new key

A warp a head: norm it where the family says so, turn it, keep it in shared memory. The tile that holds the newest position does the same with
the key and writes it to the cache, rounded to two bytes. :*/
//> attention_heads
template <DType T>
__device__ __forceinline__ void make_heads(const Params &p, uint32_t layer, uint32_t kv,
                                           uint32_t position, bool newest, float *heads) {
  const uint32_t lane = threadIdx.x % WARP, half = p.head_dim / 2;
  const float *vectors = p.vectors + (uint64_t)layer * p.layer_floats;
  for (uint32_t h = threadIdx.x / WARP; h < p.group + newest; h += WARPS) {
    const bool key = h == p.group;
    const uint32_t from = key ? p.heads + kv : kv * p.group + h;
    const float *in = p.qkv_out + (uint64_t)from * p.head_dim;
    float *out = heads + h * p.head_dim, scale = 1;
    if (p.qk_norm) {
      float squares = 0;
      for (uint32_t d = lane; d < p.head_dim; d += WARP) {
        float v = load_l2(in + d);
        squares += v * v;
      }
      scale = 1.0f / sqrtf(warp_sum(squares) / (float)p.head_dim + p.rms_eps);
    }
    uint16_t *row = p.keys + cache_row(p, layer, kv, position);
#pragma unroll 1
    for (uint32_t d = lane; d < half; d += WARP) {
      float a = load_l2(in + d), b = load_l2(in + d + half);
      float2 r = p.rotation[(uint64_t)position * half + d];
      if (p.qk_norm) {
        const float *norm = vectors + (key ? p.k_norm : p.q_norm);
        a *= scale * norm[d];
        b *= scale * norm[d + half];
      }
      out[d] = a * r.x - b * r.y;
      out[d + half] = b * r.x + a * r.y;
      if (!key) continue;
      row[d] = narrow<T>(out[d]);
      row[d + half] = narrow<T>(out[d + half]);
    }
  }
  __syncthreads();
}
//< attention_heads

/*: ## One pass

All earlier positions of the cache are known before the wave begins: `attend_begin` copies the chunk's first rows into shared memory while the
barrier is still waited for, with no register held. The newest position's row comes from this token's QKV wave, so it is read after it, as are
rows beyond what shared memory holds.

A warp takes one query head and every n-th group of rows. Each row's lanes keep their own largest score, sum of weights and weighted values in
registers, and rescale them when a larger score comes: no thread waits for another until the end, where a warp's rows and then a head's warps
are brought to one scale. :*/
//> attention_one_pass
__device__ __forceinline__ void attend_begin(const Params &p, uint32_t layer, uint32_t kv,
                                             uint32_t newest, uint32_t p0, uint32_t p1,
                                             const AttentionShared &s) {
  const uint32_t vectors = p.head_dim / 8, rows = min(min(p1, newest) - p0, p.kv_rows);
  const uint4 *k = (const uint4 *)(p.keys + cache_row(p, layer, kv, p0));
  const uint4 *v = (const uint4 *)(p.values + cache_row(p, layer, kv, p0));
  uint4 *to = (uint4 *)s.rows;
  for (uint32_t i = threadIdx.x; i < rows * vectors; i += BLOCK) {
    copy_async(to + i, k + i);
    copy_async(to + p.kv_rows * vectors + i, v + i);
  }
}

// What one row's lanes know of the positions that they have seen.
struct Seen {
  float max, weight, sum[8];
};

// Brings `b` to the scale of both and adds it.
__device__ __forceinline__ void merge(Seen &a, const Seen &b) {
  float m = b.max <= a.max ? a.max : b.max; // NaN takes over
  float mine = a.max == -INFINITY ? 0 : expf(a.max - m),
        theirs = b.max == -INFINITY ? 0 : expf(b.max - m);
  a.max = m;
  a.weight = a.weight * mine + b.weight * theirs;
#pragma unroll
  for (int e = 0; e < 8; e++) a.sum[e] = a.sum[e] * mine + b.sum[e] * theirs;
}

template <DType T>
__device__ __forceinline__ void attend(const Params &p, uint32_t layer, uint32_t kv, uint32_t part,
                                       uint32_t newest, uint32_t p0, uint32_t p1,
                                       const AttentionShared &s) {
  const HeadLanes at = head_lanes(p.head_dim);
  const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const uint32_t splits = p.group < WARPS ? WARPS / p.group : 1, split = warp / p.group;
  const uint32_t vectors = p.head_dim / 8, staged = min(min(p1, newest) - p0, p.kv_rows);
  const uint4 *k = (const uint4 *)(p.keys + cache_row(p, layer, kv, p0) + at.d);
  const uint4 *v = (const uint4 *)(p.values + cache_row(p, layer, kv, p0) + at.d);
  const uint4 *near_k = (const uint4 *)(s.rows + at.d), *near_v = near_k + p.kv_rows * vectors;
  make_heads<T>(p, layer, kv, newest, newest < p1, s.heads);
  copy_async_wait();
  __syncthreads(); // the staged rows, and the new key in the cache, to all threads
#pragma unroll 1
  for (uint32_t h = warp % p.group; h < p.group && split < splits; h += WARPS) {
    float q[8];
    Seen seen = {-INFINITY, 0, {0, 0, 0, 0, 0, 0, 0, 0}};
#pragma unroll
    for (int e = 0; e < 8; e++)
      q[e] = at.inside ? s.heads[h * p.head_dim + at.d + e] * p.score_scale : 0;
    const uint32_t n = p1 - p0, stride = splits * at.rows;
#pragma unroll 2
    for (uint32_t base = split * at.rows; base < n; base += stride) {
      const uint32_t i = base + at.row;
      uint4 kr = make_uint4(0, 0, 0, 0), vr = kr;
      if (at.inside && i < n) {
        kr = i < staged ? near_k[i * vectors] : load_l2(k + (uint64_t)i * vectors);
        vr = i < staged ? near_v[i * vectors] : load_l2(v + (uint64_t)i * vectors);
      }
      float w[8], score = 0;
      widen8<T>(kr, w);
#pragma unroll
      for (int e = 0; e < 8; e++) score = fmaf(w[e], q[e], score);
      for (uint32_t o = at.lanes / 2; o; o >>= 1) score += __shfl_xor_sync(0xffffffffu, score, o);
      if (!(i < n)) continue; // whole rows of lanes; the next shuffle is a round away, and for all
      if (!(score <= seen.max)) {
        float scale = seen.max == -INFINITY ? 0 : expf(seen.max - score);
        seen.max = score;
        seen.weight *= scale;
#pragma unroll
        for (int e = 0; e < 8; e++) seen.sum[e] *= scale;
      }
      const float weight = expf(score - seen.max);
      seen.weight += weight;
      widen8<T>(vr, w);
#pragma unroll
      for (int e = 0; e < 8; e++) seen.sum[e] = fmaf(w[e], weight, seen.sum[e]);
    }
#pragma unroll 1
    for (uint32_t o = at.lanes; o < WARP; o *= 2) { // both sides compute the same
      Seen other;
      other.max = __shfl_xor_sync(0xffffffffu, seen.max, o);
      other.weight = __shfl_xor_sync(0xffffffffu, seen.weight, o);
#pragma unroll
      for (int e = 0; e < 8; e++) other.sum[e] = __shfl_xor_sync(0xffffffffu, seen.sum[e], o);
      if (at.row & (o / at.lanes)) {
        merge(other, seen);
        seen = other;
      } else merge(seen, other);
    }
    const uint64_t head = (uint64_t)part * p.heads + kv * p.group + h;
    if (splits == 1) {
      if (at.row == 0 && at.inside)
#pragma unroll
        for (int e = 0; e < 8; e++)
          store_l2(p.attention + head * p.head_dim + at.d + e, seen.sum[e]);
      if (lane == 0) {
        store_l2(p.denominator + head, seen.weight);
        store_l2(p.score_max + head, seen.max);
      }
    } else {
      if (at.row == 0 && at.inside)
#pragma unroll
        for (int e = 0; e < 8; e++) s.sums[warp * p.head_dim + at.d + e] = seen.sum[e];
      if (lane == 0) {
        s.max[warp] = seen.max;
        s.max[WARPS + warp] = seen.weight;
      }
    }
  }
  if (splits == 1) return;
  __syncthreads();
  // A head's warps to one scale, in their order.
#pragma unroll 1
  for (uint32_t n = threadIdx.x; n < p.group * p.head_dim; n += BLOCK) {
    const uint32_t h = n / p.head_dim, d = n % p.head_dim;
    float m = s.max[h], total = 0, weights = 0;
#pragma unroll 1
    for (uint32_t k2 = 1; k2 < splits; k2++) {
      float other = s.max[k2 * p.group + h];
      if (!(other <= m)) m = other;
    }
#pragma unroll 1
    for (uint32_t k2 = 0; k2 < splits; k2++) {
      const uint32_t w2 = k2 * p.group + h;
      float scale = s.max[w2] == -INFINITY ? 0 : expf(s.max[w2] - m);
      total += scale * s.sums[w2 * p.head_dim + d];
      weights += scale * s.max[WARPS + w2];
    }
    const uint64_t head = (uint64_t)part * p.heads + kv * p.group + h;
    store_l2(p.attention + head * p.head_dim + d, total);
    if (d == 0) {
      store_l2(p.denominator + head, weights);
      store_l2(p.score_max + head, m);
    }
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
          dot *= p.score_scale;
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
          float e = expf(load_l2(p.scores + (uint64_t)(head0 + mine) * p.context + b0 + i) - max);
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
// factors: [chunks in use, heads]
__device__ __forceinline__ void stage_attention(const Params &p, uint32_t chunks, uint32_t columns,
                                                float *staged, float *factors) {
  const uint32_t width = p.heads * p.head_dim;
  if (chunks == 1) { // one partial: nothing to weigh, and one trip to L2
    for (uint32_t e = threadIdx.x * 4; e < columns; e += BLOCK * 4) {
      float4 v = make_float4(0, 0, 0, 0);
      if (e < width) {
        v = load_l2((const float4 *)(p.attention + e));
        float f = 1.0f / load_l2(p.denominator + e / p.head_dim);
        v = make_float4(v.x * f, v.y * f, v.z * f, v.w * f);
      }
      *(float4 *)(staged + plane_index(e, columns / 2)) = v;
    }
    __syncthreads();
    return;
  }
  for (uint32_t h = threadIdx.x; h < p.heads; h += BLOCK) {
    float m = 0, weight = 0;
    if (p.one_pass) {
      m = load_l2(p.score_max + h);
#pragma unroll 4
      for (uint32_t c = 1; c < chunks; c++) {
        float other = load_l2(p.score_max + (uint64_t)c * p.heads + h);
        if (!(other <= m)) m = other;
      }
    }
#pragma unroll 4
    for (uint32_t c = 0; c < chunks; c++) {
      float scale = p.one_pass ? expf(load_l2(p.score_max + (uint64_t)c * p.heads + h) - m) : 1;
      factors[c * p.heads + h] = scale;
      weight += scale * load_l2(p.denominator + (uint64_t)c * p.heads + h);
    }
    for (uint32_t c = 0; c < chunks; c++) factors[c * p.heads + h] /= weight;
  }
  __syncthreads();
  for (uint32_t e = threadIdx.x * 4; e < columns; e += BLOCK * 4) {
    float4 sum = make_float4(0, 0, 0, 0);
    if (e < width) {
#pragma unroll 8
      for (uint32_t c = 0; c < chunks; c++) {
        float4 v = load_l2((const float4 *)(p.attention + (uint64_t)c * width + e));
        float f = factors[c * p.heads + e / p.head_dim];
        sum.x = fmaf(v.x, f, sum.x);
        sum.y = fmaf(v.y, f, sum.y);
        sum.z = fmaf(v.z, f, sum.z);
        sum.w = fmaf(v.w, f, sum.w);
      }
    }
    *(float4 *)(staged + plane_index(e, columns / 2)) = sum;
  }
  __syncthreads();
}
//< attention_merge
#endif
