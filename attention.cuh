/*: # Attention

At batch size one attention is two more matrix-vector products, with the K/V cache as the matrix: scores are K times a
query, the output is V-transposed times the weights. Four to eight query heads share a K/V head, so a tile owns one K/V head, reads
its rows once and uses them for the whole group. It is the only cost that grows with the position.

**Chunks.** The context is cut into as many chunks as the workers can use. A *scores* tile turns its queries, computes
its chunk's scores and notes the chunk's largest. After the barrier a *values* tile takes the largest over all chunks, so that
all partials of a head share one scale, and sums the weighted values of its chunk. Wo adds the partials and divides by the
summed weights. Up to `fused_context` positions the tile of chunk 0 does both halves, and the barrier between them is skipped.

**Layout.** A row of K or V is `head_dim` two-byte numbers: 128 bytes for a head of 64. Lanes take 16 bytes each, so eight
lanes hold a row and a warp reads four rows at once. The dot product is finished by a butterfly over the lanes of a row. :*/
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

__device__ __forceinline__ uint64_t cache_row(const Params &p, uint32_t layer, uint32_t kv,
                                              uint32_t position) {
  return (((uint64_t)layer * p.kv_heads + kv) * p.context + position) * p.head_dim;
}

// Shared memory of an attention tile.
struct AttentionShared {
  float *heads; // [group + 1, head_dim] queries and the new key
  float *max;   // [WARPS, group]
  float *exps;  // [HEADS_AT_ONCE, EXPS_AT_ONCE]
  float *sums;  // [WARPS, HEADS_AT_ONCE, head_dim]
};

__host__ __device__ inline uint32_t attention_floats(uint32_t group, uint32_t head_dim) {
  return (group + 1) * head_dim + WARPS * group + HEADS_AT_ONCE * EXPS_AT_ONCE +
         WARPS * HEADS_AT_ONCE * head_dim;
}

__device__ __forceinline__ AttentionShared attention_shared(const Params &p, float *room) {
  AttentionShared s;
  s.heads = room;
  s.max = s.heads + (p.group + 1) * p.head_dim;
  s.exps = s.max + WARPS * p.group;
  s.sums = s.exps + HEADS_AT_ONCE * EXPS_AT_ONCE;
  return s;
}
//< attention_layout

/*: ## Queries and the new key

A warp a head: norm it where the family says so, turn it, keep it in shared memory. The tile that holds the newest
position does the same with the key and writes it to the cache, where the block's other threads find it after the next
block-wide barrier. :*/
//> attention_heads
template <DType T>
__device__ __forceinline__ void make_heads(const Params &p, uint32_t layer, uint32_t kv,
                                           uint32_t position, bool newest, float *heads) {
  uint32_t lane = threadIdx.x % WARP, half = p.head_dim / 2;
  const float *vectors = p.vectors + (uint64_t)layer * p.layer_floats;
  for (uint32_t h = threadIdx.x / WARP; h < p.group + newest; h += WARPS) {
    bool key = h == p.group;
    uint32_t from = key ? p.heads + kv : kv * p.group + h;
    const float *in = p.qkv_out + (uint64_t)from * p.head_dim;
    float *out = heads + h * p.head_dim;
    const float2 *rotation = p.rotation + (uint64_t)position * half;
    float scale = 1;
    if (p.qk_norm) {
      float squares = 0;
      for (uint32_t d = lane; d < p.head_dim; d += WARP) {
        float v = load_l2(in + d);
        squares += v * v;
      }
      scale = 1.0f / sqrtf(warp_sum(squares) / (float)p.head_dim + p.rms_eps);
    }
    for (uint32_t d = lane; d < half; d += WARP) {
      float a = load_l2(in + d), b = load_l2(in + d + half);
      if (p.qk_norm) {
        const float *norm = vectors + (key ? p.k_norm : p.q_norm);
        a *= scale * norm[d];
        b *= scale * norm[d + half];
      }
      float2 r = rotation[d];
      out[d] = a * r.x - b * r.y;
      out[d + half] = b * r.x + a * r.y;
    }
    if (!key) continue;
    __syncwarp();
    uint16_t *row = p.keys + cache_row(p, layer, kv, position);
    for (uint32_t d = lane; d < p.head_dim; d += WARP) row[d] = narrow<T>(out[d]);
  }
  __syncthreads();
}
//< attention_heads

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
    store_l2(p.score_max + (uint64_t)(kv * p.group + h) * p.chunks + part, m);
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
        float m = load_l2(p.score_max + (uint64_t)(head0 + mine) * p.chunks + c);
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

What Wo multiplies is the sum of the partials over the summed weights, in the order of the chunks. Every Wo tile merges for
itself; the partials come from L2. :*/
//> attention_merge
__device__ __forceinline__ void stage_attention(const Params &p, uint32_t chunks, uint32_t columns,
                                                float *staged) {
  uint32_t width = p.heads * p.head_dim;
  for (uint32_t e = threadIdx.x * 4; e < columns; e += BLOCK * 4) {
    float4 sum = make_float4(0, 0, 0, 0);
    float v[4] = {0, 0, 0, 0}, weight = 0;
    if (e < width) {
#pragma unroll 4
      for (uint32_t c = 0; c < chunks; c++) {
        // head_dim is even, so four elements may straddle two heads only where head_dim is no multiple of 4
        const float *a = p.attention + (uint64_t)c * width + e;
        float4 w = load_l2((const float4 *)a);
        v[0] += w.x, v[1] += w.y, v[2] += w.z, v[3] += w.w;
        weight += load_l2(p.denominator + (uint64_t)c * p.heads + e / p.head_dim);
      }
      sum = make_float4(v[0] / weight, v[1] / weight, v[2] / weight, v[3] / weight);
    }
    *(float4 *)(staged + plane_index(e, columns / 2)) = sum;
  }
  __syncthreads();
}
//< attention_merge
#endif
