/*: # One kernel for all tiles

One launch decodes up to 64 tokens. Every block is a worker; it copies its tiles into shared memory, and then walks the
plan, token after token: do the tiles of this wave, arrive, look ahead, wait. There is no scheduler in here. What a worker
does next is the next line of its list, and the host only launches and reads. :*/
//> kernel_head
#include "device.cuh"

#include "barrier.cuh"
#include "gemv.cuh"
#include "attention.cuh"
#include "argmax.cuh"
//< kernel_head

/*: ## A block's shared memory

Two large parts. The *room* belongs to the tile in work: the staged vector and what it makes of it, or attention's queries and sums. What lies
*ahead* are rows of K and V for the next tile, filled as soon as this one is done, before the barrier. :*/
//> kernel_shared
struct Shared {
  Tile *tiles;          // [tile_room] this worker's, in order
  Candidate *candidate; // [WARPS]
  float *reduce;        // [WARPS]
  float *gains;         // [gain_floats] weights of a norm
  float *room;          // [room_bytes / 4]
  uint4 *ahead;         // [ahead_bytes / 16]
};

enum { SHARED_FIXED = WARPS * (sizeof(Candidate) + sizeof(float)) };

static __device__ __forceinline__ Shared block_shared(const Params &p, unsigned char *bytes) {
  Shared s;
  s.candidate = (Candidate *)bytes;
  s.reduce = (float *)(s.candidate + WARPS);
  s.gains = s.reduce + WARPS;
  s.room = s.gains + p.gain_floats;
  s.ahead = (uint4 *)((unsigned char *)s.room + p.room_bytes);
  s.tiles = (Tile *)((unsigned char *)s.ahead + p.ahead_bytes);
  return s;
}
//< kernel_shared

/*: ## The tiles

What a tile multiplies is known from the tile alone, before its wave begins. `tile_rows` says it, so that the first
loads can start while others still work; `gemv_tile` and `small_tile` do the rest once the wave before is over. :*/
//> kernel_rows
static __device__ __forceinline__ Rows tile_rows(const Params &p, const Tile &t) {
  switch (t.op) {
  case OP_QKV: return matrix_rows(p, p.qkv, t.layer, t.row0, t.row1);
  case OP_WO: return matrix_rows(p, p.o, t.layer, t.row0, t.row1);
  case OP_FFN:
  case OP_GATE_UP: return gate_up_rows(p, t.layer, t.row0, t.row1);
  case OP_DOWN: return matrix_rows(p, p.down, t.layer, t.row0, t.row1);
  case OP_LM_HEAD: return matrix_rows(p, p.lm_head, 0, t.row0, t.row1);
  default: return Rows{};
  }
}
//< kernel_rows

/*: ## Tiles that multiply

Six opcodes are a GEMV with something before and something after. So there is one GEMV, and two switches: what the staged
vector is, and where a product goes. `emit` is called by one thread a unit, so its switch costs nothing. :*/
//> kernel_stage
static __device__ __forceinline__ const float *layer_vector(const Params &p, uint32_t layer,
                                                            uint32_t at) {
  return at == NO_VECTOR ? nullptr : p.vectors + (uint64_t)layer * p.layer_floats + at;
}

// The residual of the tile's own rows, fetched together with the vector: a load at the end of each product would wait for L2 once
// more. rows: [row1 - row0]
static __device__ __forceinline__ void stage_residual(const Params &p, const Tile &t, float *rows) {
  for (uint32_t i = threadIdx.x; t.row0 + i < t.row1; i += BLOCK)
    rows[i] = load_l2(p.residual + t.row0 + i);
}
// Asks for the vector that the tile's rows are multiplied with and stages it in shared memory.
// raw: [columns]
static __device__ __forceinline__ void stage(const Params &p, const Tile &t, uint32_t chunks,
                                             const Rows &r, const Shared &s, float *raw,
                                             float *own) {
  const uint32_t columns = r.matrix.columns;
  const float *x = t.op == OP_WO        ? p.attention
                   : t.op == OP_DOWN    ? p.activation
                   : t.op == OP_LM_HEAD ? p.normed
                                        : p.residual;
  const bool merged = t.op == OP_WO && chunks > 1;
  if (!merged) ask_vector(x, columns, raw);
  if (t.op == OP_WO || t.op == OP_DOWN) stage_residual(p, t, own);
  if (merged) stage_attention(p, chunks, columns, s.room, own + (t.row1 - t.row0));
  if (merged) return;
  copy_async_wait(); // the vector and its gains
  if (x == p.residual) stage_normed(raw, s.gains, p.hidden, columns, p.rms_eps, s.room, s.reduce);
  else stage_plain(raw, columns, s.room);
}

//< kernel_stage

//> kernel_emit
static __device__ __forceinline__ void emit(const Params &p, const Tile &t, uint32_t unit, float a,
                                            float b, float *own, Candidate &best) {
  if (t.op == OP_GATE_UP || t.op == OP_FFN) { // a unit is one row of gate and the same row of up
    uint32_t row = t.row0 + unit;
    const float *gate_bias = layer_vector(p, t.layer, p.gate_bias);
    const float *up_bias = layer_vector(p, t.layer, p.up_bias);
    if (gate_bias) a += gate_bias[row];
    if (up_bias) b += up_bias[row];
    float v = a / (1.0f + __expf(-a)) * b; // silu(gate) * up
    if (t.op == OP_FFN) own[unit] = v;
    else store_l2(p.activation + row, v);
    return;
  }
  uint32_t row = t.row0 + 2 * unit;
  for (int k = 0; k < 2 && row < t.row1; k++, row++, a = b) {
    if (t.op == OP_LM_HEAD) {
      store_l2(p.logits + row, a);
      best = better(best, candidate(a, (int32_t)row));
    } else if (t.op == OP_QKV) { // attention turns Q and K, and writes K and V into the cache
      const float *bias = layer_vector(p, t.layer, p.qkv_bias);
      store_l2(p.qkv_out + row, bias ? a + bias[row] : a);
    } else { // Wo and down add to the residual
      const float *bias = layer_vector(p, t.layer, t.op == OP_WO ? p.o_bias : p.down_bias);
      store_l2(p.residual + row, own[row - t.row0] + a + (bias ? bias[row] : 0));
    }
  }
}
//< kernel_emit

/*: The fused FFN keeps its activations in shared memory and multiplies them with its columns of the down projection. Stored
transposed, each column is a contiguous row of `hidden` weights: a thread owns eight outputs and runs down the rows; groups
of threads share the rows, and their sums are added in the order of the groups. :*/
//> kernel_ffn
enum { FFN_GROUPS = 4 };

// activation: [row1 - row0]; sums: [FFN_GROUPS, columns]
template <DType T>
static __device__ __forceinline__ void ffn_down(const Params &p, const Tile &t,
                                                const float *activation, float *sums) {
  uint32_t n = t.row1 - t.row0, columns = p.down.columns, vectors = columns / 8;
  const uint8_t *down =
      p.weights + p.down.offset + t.layer * p.layer_bytes + (uint64_t)t.row0 * p.down.stride;
  float *out = p.partials + (uint64_t)t.part * columns;
  uint32_t groups = BLOCK / vectors, group = threadIdx.x / vectors;
  if (groups < 1) groups = 1, group = 0;
  if (groups > FFN_GROUPS) groups = FFN_GROUPS;
  if (groups > n) groups = n;
  uint32_t v = groups > 1 ? threadIdx.x % vectors : threadIdx.x;
  for (; v < vectors && group < groups; v += BLOCK) {
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    uint32_t end = n * (group + 1) / groups;
    for (uint32_t j = n * group / groups; j < end; j += 8) {
      uint4 row[8];
#pragma unroll
      for (uint32_t k = 0; k < 8; k++)
        row[k] = j + k < end
                     ? load_stream((const uint4 *)(down + (uint64_t)(j + k) * p.down.stride) + v)
                     : make_uint4(0, 0, 0, 0);
#pragma unroll
      for (uint32_t k = 0; k < 8; k++) {
        float x[8], a = j + k < end ? activation[j + k] : 0;
        widen8<T>(row[k], x);
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = fmaf(x[i], a, sum[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) sums[group * columns + v * 8 + i] = sum[i];
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < columns; i += BLOCK) {
    float total = 0;
    for (uint32_t g = 0; g < groups; g++) total += sums[g * columns + i];
    store_l2(out + i, total);
  }
}
//< kernel_ffn

//> kernel_gemv_tile
// What a tile needs from far away and can have before the barrier: a norm's weights.
static __device__ __forceinline__ void begin_gains(const Params &p, const Tile &t,
                                                   const Shared &s) {
  if (t.op == OP_QKV || t.op == OP_GATE_UP || t.op == OP_FFN)
    ask_vector(layer_vector(p, t.layer, t.op == OP_QKV ? p.attn_norm : p.ffn_norm), p.qkv.columns,
               s.gains);
}

template <DType T>
static __device__ __forceinline__ void gemv_tile(const Params &p, const Tile &t, uint32_t chunks,
                                                 const Rows &r, Loaded &w, const Shared &s) {
  // Behind the staged vector: the vector as it came, and in its place later the partial sums where rows have several segments; then a value
  // a row that is the tile's own: its residual, or the FFN's activation.
  const uint32_t columns = r.matrix.columns, sums = 2 * r.units * r.matrix.segments;
  float *partial = s.room + columns;
  float *own = partial + (r.matrix.segments > 1 && sums > columns ? sums : columns);
  Candidate best = no_candidate();
  stage(p, t, chunks, r, s, partial, own);
  gemv<T>(r, s.room, partial, w,
          [&](uint32_t unit, float a, float b) { emit(p, t, unit, a, b, own, best); });
  if (t.op == OP_LM_HEAD) {
    best = block_best(best, s.candidate);
    if (threadIdx.x == 0) p.candidate[t.part] = best;
  } else if (t.op == OP_FFN) {
    __syncthreads();
    ffn_down<T>(p, t, own, own + (t.row1 - t.row0 + 3) / 4 * 4);
  }
}
//< kernel_gemv_tile

/*: ## Tiles that don't

Attention has its own file; here its first loads are asked for and its chunk is found. Embed copies a row, `ffn_reduce` adds partial sums, and
`final_norm` norms the whole residual in every worker and writes down its own rows of it. :*/
//> kernel_small_tiles
static __device__ __forceinline__ void begin_attention(const Params &p, const Tile &t,
                                                       uint32_t position, uint32_t chunks,
                                                       const Shared &s) {
  uint32_t p0, p1;
  if (t.part >= chunks) return;
  chunk_range(position + 1, t.part, chunks, &p0, &p1);
  attend_begin(p, t.layer, t.row0, position, p0, p1, attention_shared(p, s.room, s.ahead));
}

template <DType T>
static __device__ __forceinline__ void small_tile(const Params &p, const Tile &t, int32_t token,
                                                  uint32_t position, uint32_t chunks, bool fused,
                                                  const Shared &s) {
  switch (t.op) {
  case OP_EMBED: {
    const uint16_t *row =
        (const uint16_t *)(p.weights + p.embedding.offset + (uint64_t)token * p.embedding.stride);
    for (uint32_t r = t.row0 + threadIdx.x; r < t.row1; r += BLOCK)
      store_l2(p.residual + r, widen<T>(row[r]));
    break;
  }
  case OP_ATTEND:
  case OP_SCORES:
  case OP_VALUES: {
    if (t.part >= chunks || (fused && t.op == OP_VALUES)) break;
    uint32_t p0, p1;
    chunk_range(position + 1, t.part, chunks, &p0, &p1);
    AttentionShared a = attention_shared(p, s.room, s.ahead);
    for (uint32_t kv = t.row0; kv < t.row1; kv++) {
      if (kv > t.row0) __syncthreads(); // the last head's room
      if (fused || t.op == OP_ATTEND) {
        if (kv > t.row0) attend_begin(p, t.layer, kv, position, p0, p1, a);
        attend<T>(p, t.layer, kv, t.part, chunks, position, p0, p1, a);
      } else if (t.op == OP_SCORES) {
        a.rotation = (float2 *)p.rotation + (uint64_t)position * (p.head_dim / 2);
        make_heads<T>(p, t.layer, kv, position, t.part + 1 == chunks, a, load_pair);
        chunk_scores<T>(p, t.layer, kv, t.part, p0, p1, a);
      } else chunk_values<T>(p, t.layer, kv, t.part, chunks, p0, p1, a);
    }
    break;
  }
  case OP_FFN_REDUCE: { // a warp a row: lanes share the partials in a fixed order
    const float *bias = layer_vector(p, t.layer, p.down_bias);
    for (uint32_t row = t.row0 + threadIdx.x / WARP; row < t.row1; row += WARPS) {
      float sum = 0;
      for (uint32_t q = threadIdx.x % WARP; q < p.ffn_parts; q += WARP)
        sum += load_l2(p.partials + (uint64_t)q * p.down.columns + row);
      sum = warp_sum(sum);
      if (threadIdx.x % WARP == 0)
        store_l2(p.residual + row, load_l2(p.residual + row) + sum + (bias ? bias[row] : 0));
    }
    break;
  }
  case OP_FINAL_NORM: {
    uint32_t columns = p.lm_head.columns;
    ask_vector(p.final_norm, columns, s.gains);
    ask_vector(p.residual, columns, s.room + columns);
    copy_async_wait();
    stage_normed(s.room + columns, s.gains, p.hidden, columns, p.rms_eps, s.room, s.reduce);
    for (uint32_t r = t.row0 + threadIdx.x; r < t.row1; r += BLOCK)
      store_l2(p.normed + r, s.room[plane_index(r, columns / 2)]);
    break;
  }
  default: break;
  }
}
//< kernel_small_tiles

/*: ## The loop

Look at the order inside a wave. The worker first asks for the weights of its next tile; only then does it wait for
the wave before to end. In the fused form of attention the barrier after the scores is not there at all, neither its arrival nor its
wait. After the last wave of a token every worker combines the candidates and knows the next token.

**Contract.** A cooperative launch of `workers` blocks of BLOCK threads, with the dynamic shared memory that `shared_bytes` in `gpu.cu` counts, all blocks
resident together. `barrier_count` and `status` are zero. `prompt` holds `prompt_tokens` ids, at least one; positions `position` to `position + steps - 1` lie within the
cache, and all before `position` have been written by earlier launches. :*/
//> kernel_loop
template <DType T>
__global__ void __launch_bounds__(BLOCK, 1) tiles_kernel(const __grid_constant__ Params p) {
  DYNAMIC_SHARED(unsigned char, bytes);
  const Shared s = block_shared(p, bytes);
  const uint32_t first = p.first[blockIdx.x], tiles = p.first[blockIdx.x + 1] - first;
  for (uint32_t i = threadIdx.x; i < tiles && i < p.tile_room; i += BLOCK)
    s.tiles[i] = p.tile[first + i];
  __syncthreads();
  if (blockIdx.x == p.lost) return;

  GridBarrier barrier;
  uint32_t made = 0;
  int32_t token = -1;
  for (uint32_t step = 0; step < p.steps; step++) {
    const uint32_t position = p.position + step;
    const bool wanted = step >= p.first_logits, fused = !p.one_pass && position < p.fused_context;
    const uint32_t chunks = chunks_in_use(p, position);
    const uint32_t waves = wanted ? p.waves : p.head_wave;
    if (step < p.prompt_tokens) token = p.prompt[step];
    bool pending = false; // an arrival that we have not waited for
    uint32_t at = 0;
    for (uint32_t wave = 0; wave < waves; wave++) {
      for (bool begun = false;; begun = true, at++) {
        // Look ahead: the next tile of the list, and its first loads, whether its wave may begin or not.
        bool mine = at < tiles;
        Tile t;
        if (mine) t = at < p.tile_room ? s.tiles[at] : p.tile[first + at];
        mine = mine && t.wave == wave;
        Rows r = {};
        Loaded w;
        if (mine) {
          r = tile_rows(p, t);
          if (r.units) {
            begin_gains(p, t, s);
            gemv_begin(r, w);
          } else if (t.op == OP_ATTEND || (fused && t.op == OP_SCORES))
            begin_attention(p, t, position, chunks, s);
        }
        // Wait: for all workers at the first tile of a wave, for this block's threads at any later one.
        if (!begun && pending && !barrier.wait(p, step, wave)) return;
        if (begun || !pending) __syncthreads(); // shared memory was the last tile's
        if (p.trace && step == p.trace_step && !begun && threadIdx.x == 0)
          p.trace[(uint64_t)blockIdx.x * (p.waves + 1) * 2 + wave * 2] = global_nanoseconds();
        if (!mine) break;
        // Work.
        if (r.units) gemv_tile<T>(p, t, chunks, r, w, s);
        else small_tile<T>(p, t, token, position, chunks, fused, s);
      }
      if (p.trace && step == p.trace_step && threadIdx.x == 0)
        p.trace[(uint64_t)blockIdx.x * (p.waves + 1) * 2 + wave * 2 + 1] = global_nanoseconds();
      // Arrive, and go on to the next wave's tile.
      pending = !(fused && p.barrier[wave] == BARRIER_IF_SPLIT);
      if (pending) barrier.arrive(p);
    }
    if (!barrier.wait(p, step, waves)) return;
    if (p.trace && step == p.trace_step && threadIdx.x == 0)
      p.trace[(uint64_t)blockIdx.x * (p.waves + 1) * 2 + waves * 2] = global_nanoseconds();
    if (!wanted) continue;

    // The next token: every worker finds the same one, and whether it is the last.
    token = combine_slots(p, s.candidate);
    bool stop = token < 0;
    for (uint32_t i = 0; i < p.stops; i++) stop = stop || token == p.stop[i];
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      if (token >= 0 && !stop) p.output[made] = token;
      if (stop || step + 1 == p.steps) {
        p.status->tokens = made + !stop;
        p.status->stopped = stop && token >= 0;
        p.status->step = step;
        if (token < 0) p.status->code = STATUS_NONFINITE;
      }
    }
    if (stop) return;
    made++;
  }
}
//< kernel_loop
