/*: # The token loop on a tape

The same tiles as in `tiles_kernel.cu`, without a barrier between them. Eight warps compute, a ninth fetches (`tape.cuh`), a tenth empties, and results are handed on as values that say
themselves that they are there (`handoff.cuh`).

What a computing warp does in a wave of weights:

1. Take its first row of the tile's first piece out of the ring into registers, which frees the slot: the ring runs a slot further ahead.
2. Wait for the vector. All of the block's threads share the reading, apply the norm's gains, and put it into shared memory; then every warp takes its own
   segment of the vector into registers, where it stays for the whole tile.
3. Row by row: 16 bytes a lane from the ring, multiply; every four rows, sum over the lanes.
4. A thread a row: add what belongs to it, hand it on.

RMSNorm needs the sum of all squares, but only as a factor: W(g·x)·s is s·W(g·x). So the dot products begin at once, with the gains applied, and the factor is multiplied to the results.

With long rows, eight warps share a row, a segment each, and nobody needs the whole vector: every warp waits for its own segment and reads it straight into registers. :*/
#include "handoff.cuh"
#include "tape.cuh"

//> tape_shared
struct TapeShared {
  Ring ring;
  Candidate *candidate; // [WARPS]
  float *squares;       // [2, WARPS] of two vectors by turns, as x
  float *x;             // [2, x_floats] the vector in work, in planes
  float *own;     // [2, own_floats] residual rows of this worker's next wo tile and next down tile
  float *partial; // [partial_floats] sums of row segments, or gate's rows until up's are there
  AttentionShared attention;
  Tile *tiles; // [tile_room]
};

__host__ __device__ inline uint32_t tape_heads_floats(uint32_t group, uint32_t head_dim,
                                                      uint32_t heads) {
  return head_dim + (group + 1) * head_dim + WARPS * heads * 2 + WARPS * heads * head_dim;
}
enum { TAPE_FIXED = 2 * SLOTS_MOST * 8 + 16 + WARPS * (sizeof(Candidate) + 2 * sizeof(float)) };

// heads: query heads that are taken together.
static __device__ __forceinline__ TapeShared tape_shared(const Params &p, unsigned char *bytes,
                                                         uint32_t heads) {
  TapeShared s;
  s.ring.full = (uint64_t *)bytes;
  s.ring.empty = s.ring.full + SLOTS_MOST;
  s.ring.progress = (uint32_t *)(s.ring.empty + SLOTS_MOST);
  s.ring.leave = s.ring.progress + 1;
  s.ring.emptied = s.ring.progress + 2;
  s.candidate = (Candidate *)(s.ring.progress + 4);
  s.squares = (float *)(s.candidate + WARPS);
  s.x = s.squares + 2 * WARPS;
  s.own = s.x + 2 * p.x_floats;
  s.partial = s.own + 2 * p.own_floats;
  float *a = s.partial + p.partial_floats;
  s.attention.rotation = (float2 *)a;
  s.attention.heads = a + p.head_dim;
  s.attention.fresh = (uint4 *)(s.attention.heads + p.group * p.head_dim);
  s.attention.max = s.attention.heads + (p.group + 1) * p.head_dim;
  s.attention.sums = s.attention.max + WARPS * heads * 2;
  s.attention.exps = nullptr;
  s.attention.rows = nullptr;
  s.tiles = (Tile *)(a + tape_heads_floats(p.group, p.head_dim, heads));
  s.ring.bytes = bytes + p.ring_at;
  return s;
}
//< tape_shared

static __device__ __forceinline__ bool always(int) { return true; }

/*: ## A worker's place in the plan

The tiles of the layer in work, for the residual rows to keep. :*/
//> tape_place
struct RowRange {
  uint32_t row0, row1;
};
static __device__ __forceinline__ RowRange range(const Tile &t) { return {t.row0, t.row1}; }

struct Place {
  uint32_t step, position, chunks;
  uint32_t turn; // tiles begun in this launch
  uint32_t
      vectors; // staged in this launch, into two places by turns: a slow warp may still read the last
  uint32_t
      layer; // layers begun in this launch: its parity chooses the copy of a buffer that has two
  uint32_t wo;
  RowRange down;
};
//< tape_place

/*: The clock of a trace, and what the other warps watch: a turn has begun when its vector is there, to all of the block's computing threads. :*/
//> tape_begin_turn
static __device__ __forceinline__ void stamp(const Params &p, uint32_t step, uint32_t wave,
                                             uint32_t end) {
  if (p.trace && step == p.trace_step && threadIdx.x == 0)
    p.trace[((uint64_t)blockIdx.x * (p.waves + 1) + wave) * 2 + end] = global_nanoseconds();
}

static __device__ __forceinline__ void begin_turn(const Params &p, const TapeShared &s,
                                                  const Place &at, const Tile &t) {
  if (threadIdx.x == 0) store_shared_release(s.ring.progress, at.turn);
  stamp(p, at.step, t.wave, 0);
}
//< tape_begin_turn

/*: ## The rows of a tile in the ring :*/
//> tape_rows
// A warp's part of a matrix: its segment of every row that falls to it.
struct Part {
  uint32_t segment, segments;
  uint32_t row, rows;     // first row in a piece, and how far to the next
  uint32_t at, step;      // this lane's first byte in a piece, and in its warp's next row
  uint32_t column, width; // its first column, and the columns from there to the segment's end
};

// Keeps a value in a register: a matrix's fields, chosen by the opcode, would else be loads from constant memory in the loop over its rows.
static __device__ __forceinline__ uint32_t opaque(uint32_t v) {
  asm volatile("" : "+r"(v));
  return v;
}

static __device__ __forceinline__ Part part_of(const DeviceMatrix &m) {
  const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, stride = opaque(m.stride);
  Part a;
  a.segments = opaque(m.tape_segments);
  a.segment = warp & (a.segments - 1); // a power of two
  const uint32_t shift = a.segments == 1 ? 0 : a.segments == 2 ? 1 : 3;
  a.rows = WARPS >> shift;
  a.row = warp >> shift;
  a.column = a.segment * m.tape_columns + lane * 8;
  const uint32_t end = min(m.columns, (a.segment + 1) * m.tape_columns);
  a.width = a.column < end ? end - a.column : 0;
  a.at = a.row * stride + a.column * 2;
  a.step = a.rows * stride;
  return a;
}

// A lane's weights of one row: zeros beyond the segment. WHOLE: all J times 256 columns are inside.
template <int J, bool WHOLE>
static __device__ __forceinline__ void take_row(const unsigned char *row, const Part &a,
                                                uint4 (&w)[STEPS]) {
  const uint4 *from = (const uint4 *)row;
#pragma unroll
  for (uint32_t j = 0; j < J; j++)
    w[j] = WHOLE || j * STEP_COLUMNS < a.width ? from[j * WARP] : make_uint4(0, 0, 0, 0);
}

// A lane's part of a row's product. Four sums, so that no multiplication waits for the one before it.
template <DType T, int J>
static __device__ __forceinline__ float dot_row(const uint4 (&w)[STEPS],
                                                const float (&x)[STEPS][8]) {
  float sum[4] = {0, 0, 0, 0};
#pragma unroll
  for (int j = 0; j < J; j++) {
    float v[8];
    widen8<T>(w[j], v);
#pragma unroll
    for (int k = 0; k < 8; k++) sum[k % 4] = fmaf(v[k], x[j][k], sum[k % 4]);
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// The sums over the lanes of four rows at once: six exchanges instead of twenty. Rows are pushed one by one; a row's sum goes to `at` in shared memory.
struct FourRows {
  float v[4] = {0, 0, 0, 0};
  uint32_t at[4] = {0, 0, 0, 0}, n = 0;

  __device__ __forceinline__ void push(float y, uint32_t to, float *sums) {
    v[3] = v[2], v[2] = v[1], v[1] = v[0], v[0] = y;
    at[3] = at[2], at[2] = at[1], at[1] = at[0], at[0] = to;
    if (++n == 4) flush(sums);
  }
  __device__ __forceinline__ void flush(float *sums) {
    const uint32_t lane = threadIdx.x % WARP;
    const bool high = lane & 16, odd = lane & 8;
    const float a = (high ? v[2] : v[0]) + __shfl_xor_sync(0xffffffffu, high ? v[0] : v[2], 16);
    const float b = (high ? v[3] : v[1]) + __shfl_xor_sync(0xffffffffu, high ? v[1] : v[3], 16);
    float c = (odd ? b : a) + __shfl_xor_sync(0xffffffffu, odd ? a : b, 8);
#pragma unroll
    for (int o = 4; o; o >>= 1) c += __shfl_xor_sync(0xffffffffu, c, o);
    const uint32_t to = odd ? (high ? at[3] : at[1]) : (high ? at[2] : at[0]);
    if (lane % 8 == 0 && lane / 8 < n) sums[to] = c;
    v[0] = v[1] = v[2] = v[3] = 0;
    n = 0;
  }
};
//< tape_rows

/*: ## The vector

`keep`: rows of it that this worker will need again as they are, the residual that a later tile adds to. Returns false when the launch has failed, to all threads
alike. :*/
//> tape_stage
struct VectorSource {
  const float *handed;       // a hand-off buffer, or NULL:
  const uint16_t *embedding; // the token's row
  const float *gains;        // of a norm, or NULL
};

template <DType T>
static __device__ __forceinline__ bool stage_vector(const VectorSource &from, uint32_t columns,
                                                    RowRange keep, float *own, float *x,
                                                    float *squares, Waiter &waiter) {
  float sum = 0;
#pragma unroll 1
  for (uint32_t e0 = threadIdx.x * 4; e0 < columns; e0 += BLOCK * 8) {
    float4 v[2], g[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const uint32_t e = e0 + i * BLOCK * 4;
      g[i] =
          from.gains && e < columns ? *(const float4 *)(from.gains + e) : make_float4(1, 1, 1, 1);
    }
    if (from.handed) {
      waiter.take(
          v, [&](int i) { return (const float4 *)(from.handed + e0 + i * BLOCK * 4); },
          [&](int i) { return e0 + i * BLOCK * 4 < columns; });
    } else {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const uint32_t e = e0 + i * BLOCK * 4;
        const uint2 w = e < columns ? *(const uint2 *)(from.embedding + e) : make_uint2(0, 0);
        v[i] = make_float4(widen<T>((uint16_t)(w.x & 0xffff)), widen<T>((uint16_t)(w.x >> 16)),
                           widen<T>((uint16_t)(w.y & 0xffff)), widen<T>((uint16_t)(w.y >> 16)));
      }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const uint32_t e = e0 + i * BLOCK * 4;
      if (e >= columns) break;
      const float all[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
      for (uint32_t k = 0; k < 4; k++) {
        sum = fmaf(all[k], all[k], sum);
        if (e + k >= keep.row0 && e + k < keep.row1) own[e + k - keep.row0] = all[k];
      }
      *(float4 *)(x + plane_index(e, columns / 2)) =
          make_float4(v[i].x * g[i].x, v[i].y * g[i].y, v[i].z * g[i].z, v[i].w * g[i].w);
    }
  }
  if (from.gains) {
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) squares[threadIdx.x / WARP] = sum;
  }
  return !bar_sync_or(1, BLOCK, waiter.failed);
}

// This lane's elements of the staged vector into registers.
template <int J, bool WHOLE>
static __device__ __forceinline__ void lane_vector(const float *staged, uint32_t columns,
                                                   const Part &a, float (&x)[STEPS][8]) {
  const float4 *low = (const float4 *)staged + a.column / 8, *high = low + columns / 8;
  const float4 zero = make_float4(0, 0, 0, 0);
#pragma unroll
  for (uint32_t j = 0; j < J; j++) {
    const bool inside = WHOLE || j * STEP_COLUMNS < a.width;
    const float4 l = inside ? low[j * WARP] : zero, h = inside ? high[j * WARP] : zero;
    x[j][0] = l.x, x[j][1] = l.y, x[j][2] = l.z, x[j][3] = l.w;
    x[j][4] = h.x, x[j][5] = h.y, x[j][6] = h.z, x[j][7] = h.w;
  }
}

// The same straight from a hand-off buffer, where no other warp needs this segment.
template <int J, bool WHOLE>
static __device__ __forceinline__ void take_segment(const float *handed, const Part &a,
                                                    float (&x)[STEPS][8], Waiter &waiter) {
  float4 v[2 * J];
  const float4 *from = (const float4 *)(handed + a.column);
  waiter.take(
      v, [&](int i) { return from + i / 2 * (STEP_COLUMNS / 4) + i % 2; },
      [&](int i) { return WHOLE || (uint32_t)i / 2 * STEP_COLUMNS < a.width; });
#pragma unroll
  for (int i = 0; i < 2 * J; i++) {
    float *to = &x[i / 2][i % 2 * 4];
    to[0] = v[i].x, to[1] = v[i].y, to[2] = v[i].z, to[3] = v[i].w;
  }
}
//< tape_stage

/*: ## Emptying

When the computing warps have begun a down tile, the block has all of the activation, and every worker is done with what this layer's tiles handed on before it, and with the
activation and the residual that the layer before handed on. The tenth warp waits for that moment, layer after layer. Its fence puts the emptying, and the K/V rows that this
block has written, before the residual rows that the block is about to hand on. :*/
//> tape_empty
static __device__ __forceinline__ void empty_rows(float *buffer, RowRange r) {
  for (uint32_t i = r.row0 + threadIdx.x % WARP; i < r.row1; i += WARP) make_empty(buffer + i);
}

// What the tiles [qkv, wo] of a layer have handed on.
static __device__ __forceinline__ void empty_tiles(const Params &p, const Tile *tiles, uint32_t qkv,
                                                   uint32_t wo, uint32_t chunks) {
  const uint32_t width = p.group * p.head_dim;
  empty_rows(p.qkv_out, range(tiles[qkv]));
  empty_rows(p.after_wo, range(tiles[wo]));
#pragma unroll 1
  for (uint32_t i = qkv + 1; i < wo; i++) {
    const Tile t = tiles[i];
    if (t.op == OP_MERGE && chunks > 1) empty_rows(p.merged, range(t));
    if (t.op != OP_ATTEND || t.part >= chunks) continue;
    const RowRange rows = {t.row0 * width, t.row1 * width};
    if (chunks == 1) {
      empty_rows(p.merged, rows);
      continue;
    }
    empty_rows(p.attention + (uint64_t)t.part * p.heads * p.head_dim, rows);
    const RowRange heads = {t.row0 * p.group, t.row1 * p.group};
    empty_rows(p.score_max + t.part * p.heads, heads);
    empty_rows(p.denominator + t.part * p.heads, heads);
  }
}

// The emptying warp's whole life.
static __device__ __forceinline__ void empty_tape(const Params &p, const TapeShared &s,
                                                  uint32_t tiles) {
  uint32_t turn = 0, layer = 0, qkv = 0, wo = 0;
  RowRange down_before = {0, 0}, activation_before = {0, 0};
  for (uint32_t step = 0; step < p.steps; step++) {
    const uint32_t chunks = chunks_in_use(p, p.position + step);
    for (uint32_t i = 0; i < tiles; i++) {
      const Tile t = s.tiles[i];
      turn++;
      if (t.op == OP_QKV) qkv = i;
      if (t.op == OP_WO) wo = i;
      if (t.op != OP_DOWN) continue;
      while (load_shared_acquire(s.ring.progress) < turn) {
        if (load_shared_acquire(s.ring.leave)) return;
        nanosleep_short();
      }
      const uint32_t other = ++layer & 1; // the copy of the layer before
      empty_tiles(p, s.tiles, qkv, wo, chunks);
      empty_rows(p.after_down + other * p.hidden, down_before);
      empty_rows(p.activations + other * p.inter, activation_before);
      fence_gpu();
      __syncwarp();
      if (threadIdx.x % WARP == 0) store_shared_release(s.ring.emptied, turn);
      down_before = range(t);
      activation_before = range(s.tiles[i - 1]);
    }
  }
}
//< tape_empty

/*: ## A tile of weights :*/
//> tape_tile
static __device__ __forceinline__ VectorSource source_of(const Params &p, const Tile &t,
                                                         const Place &at, int32_t token) {
  const float *residual = p.after_down + ((at.layer + 1) & 1) * p.hidden; // of the layer before
  switch (t.op) {
  case OP_QKV:
    return {
        t.layer ? residual : nullptr,
        (const uint16_t *)(p.weights + p.embedding.offset + (uint64_t)token * p.embedding.stride),
        layer_vector(p, t.layer, p.attn_norm)};
  case OP_WO: return {p.merged, nullptr, nullptr};
  case OP_GATE_UP: return {p.after_wo, nullptr, layer_vector(p, t.layer, p.ffn_norm)};
  case OP_DOWN: return {p.activations + (at.layer & 1) * p.inter, nullptr, nullptr};
  default: return {p.after_down + (at.layer & 1) * p.hidden, nullptr, p.final_norm};
  }
}

static __device__ __forceinline__ const float *bias_of(const Params &p, const Tile &t, bool up) {
  const uint32_t at = t.op == OP_QKV       ? p.qkv_bias
                      : t.op == OP_WO      ? p.o_bias
                      : t.op == OP_GATE_UP ? (up ? p.up_bias : p.gate_bias)
                      : t.op == OP_DOWN    ? p.down_bias
                                           : NO_VECTOR;
  return layer_vector(p, t.layer, at);
}

// Row `i` of the tile is done. y: its product, of gate and up both.
static __device__ __forceinline__ void hand_on_row(const Params &p, const TapeShared &s,
                                                   const Tile &t, const Place &at, uint32_t i,
                                                   float y, float up, Candidate &best) {
  const uint32_t row = t.row0 + i;
  switch (t.op) {
  case OP_QKV: hand_on(p.qkv_out + row, y); break;
  case OP_WO: hand_on(p.after_wo + row, s.own[i] + y); break;
  case OP_GATE_UP:
    hand_on(p.activations + (at.layer & 1) * p.inter + row, __fdividef(y, 1.0f + __expf(-y)) * up);
    break;
  case OP_DOWN:
    hand_on(p.after_down + (at.layer & 1) * p.hidden + row, s.own[p.own_floats + i] + y);
    break;
  default: store_l2(p.logits + row, y); best = better(best, candidate(y, (int32_t)row));
  }
}

static __device__ __forceinline__ void wait_emptied(const TapeShared &s, uint32_t turn) {
  while (load_shared_acquire(s.ring.emptied) < turn)
    ;
}

// Rows [i0, i1) of the tile, a thread a row: the sums of its segments are in `partial`. add: this thread's biases where i0 is 0.
static __device__ __forceinline__ void finish_rows(const Params &p, const TapeShared &s,
                                                   const Tile &t, const Place &at,
                                                   uint32_t segments, uint32_t i0, uint32_t i1,
                                                   float factor, float2 add, Candidate &best) {
  const bool pairs = t.op == OP_GATE_UP;
  const uint32_t i = i0 + threadIdx.x;
  if (i >= i1) return;
  if (t.op == OP_DOWN) wait_emptied(s, at.turn);
  float y = 0, up = 0;
  const float *sums = s.partial + (i - i0) * segments;
  for (uint32_t k = 0; k < segments; k++) {
    y += sums[k];
    if (pairs) up += sums[TAPE_SUMS * segments + k];
  }
  hand_on_row(p, s, t, at, i, y * factor + add.x, up * factor + add.y, best);
}

// All rows of the tile. w: this warp's first, of a piece that is still ours if `kept`.
template <DType T, int J, bool WHOLE>
static __device__ __forceinline__ void
multiply(const Params &p, const TapeShared &s, const Tile &t, const Place &at, const Part &a,
         uint32_t at_once, const float (&x)[STEPS][8], uint4 (&w)[STEPS], bool kept,
         const unsigned char *slot, float factor, Reader &reader, Candidate &best) {
  const uint32_t n = t.row1 - t.row0, segments = a.segments;
  const bool pairs = t.op == OP_GATE_UP;
  float2 add = make_float2(0, 0);
  if (p.biased && threadIdx.x < n) {
    const float *bias = bias_of(p, t, false), *up_bias = pairs ? bias_of(p, t, true) : nullptr;
    if (bias) add.x = bias[t.row0 + threadIdx.x];
    if (up_bias) add.y = up_bias[t.row0 + threadIdx.x];
  }
  FourRows four;
  bool taken = true;                           // the first row is in registers
  uint32_t begun = 0;                          // rows before it have been handed on
  uint32_t to = a.row * segments + a.segment;  // where the sum of this warp's next row goes
  const uint32_t next = a.rows * segments;     // from one of its rows to the next
  const uint32_t other = TAPE_SUMS * segments; // from a gate row to the same row of up
#pragma unroll 1
  for (uint32_t r0 = 0; r0 < n; r0 += at_once) {
    const uint32_t rows = min(at_once, n - r0);
#pragma unroll 1
    for (uint32_t up = 0; up < 1u + pairs; up++) {
      if (!taken) {
        slot = reader.wait() + a.at;
        kept = true;
      }
      uint32_t at_row = to + (up ? other : 0);
#pragma unroll 1
      for (uint32_t r = a.row; r < rows; r += a.rows, slot += a.step, at_row += next) {
        if (!taken) take_row<J, WHOLE>(slot, a, w);
        taken = false;
        if (kept && r + a.rows >= rows) {
          reader.release();
          kept = false;
        }
        four.push(dot_row<T, J>(w, x), at_row, s.partial);
      }
      taken = false;
      if (kept) reader.release(); // none of its rows is this warp's
      kept = false;
    }
    to += at_once * segments;
    const uint32_t done = r0 + rows;
    if (done < n && done + at_once - begun <= TAPE_SUMS) continue;
    four.flush(s.partial);
    sync_block();
    finish_rows(p, s, t, at, segments, begun, done, factor, add, best);
    begun = done;
    to = a.row * segments + a.segment;
    add = make_float2(0, 0);     // only lm_head has so many rows, and no bias
    if (begun < n) sync_block(); // before the sums are written over
  }
}

// False when the launch has failed. Where no logits are wanted, lm_head only reads the residual.
template <DType T, int J, bool WHOLE>
static __device__ __forceinline__ bool
weights_tile(const Params &p, const TapeShared &s, const Tile &t, Place &at, int32_t token,
             bool wanted, Reader &reader, Waiter &waiter, Candidate &best) {
  const DeviceMatrix &m = tape_matrix(p, t.op);
  const uint32_t columns = opaque(m.columns), at_once = opaque(m.tape_rows), n = t.row1 - t.row0;
  const bool pairs = t.op == OP_GATE_UP, asked = t.op != OP_LM_HEAD || wanted;
  const Part a = part_of(m);
  uint4 w[STEPS];
  const unsigned char *slot = nullptr;
  bool kept = false; // the piece's slot is still ours
  if (asked) {
    const uint32_t rows = min(at_once, n);
    slot = reader.wait() + a.at;
    if (a.row < rows) take_row<J, WHOLE>(slot, a, w);
    kept = a.row + a.rows < rows;
    if (!kept) reader.release();
  }

  const uint32_t copy = at.vectors++ & 1;
  float x[STEPS][8], factor = 1;
  const VectorSource from = source_of(p, t, at, token);
  if (t.op == OP_DOWN && a.segments == WARPS) {
    take_segment<J, WHOLE>(from.handed, a, x, waiter);
    if (bar_sync_or(1, BLOCK, waiter.failed)) return false;
  } else {
    const bool qkv = t.op == OP_QKV;
    const RowRange keep = qkv ? range(s.tiles[at.wo]) : pairs ? at.down : RowRange{0, 0};
    float *staged = s.x + copy * p.x_floats, *squares = s.squares + copy * WARPS;
    if (!stage_vector<T>(from, columns, keep, s.own + (qkv ? 0 : p.own_floats), staged, squares,
                         waiter))
      return false;
    lane_vector<J, WHOLE>(staged, columns, a, x);
    if (from.gains) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < WARPS; i++) sum += squares[i];
      factor = rsqrtf(sum / (float)p.hidden + p.rms_eps);
    }
  }
  begin_turn(p, s, at, t);
  if (asked) multiply<T, J, WHOLE>(p, s, t, at, a, at_once, x, w, kept, slot, factor, reader, best);
  return true;
}
//< tape_tile

/*: ## Attention

Keys and values of earlier positions come through the ring, two slots at a time; the newest ones never leave the block. A chunk that is the only one divides for itself. Several hand on
what they have, and merge tiles, a few elements each, bring them to one scale: a hand-off more, but the Wo tiles read one vector instead of
one for each chunk. :*/
//> tape_attend
template <DType T, int H>
static __device__ __forceinline__ void attend_tile(const Params &p, const TapeShared &s,
                                                   const Tile &t, const Place &at, Reader &reader,
                                                   Waiter &waiter) {
  if (t.part >= at.chunks) return;
  const uint32_t newest = at.position, block = rows_of_slot(p);
  uint32_t p0, p1;
  chunk_range(newest + 1, t.part, at.chunks, &p0, &p1);
  const HeadLanes lanes = head_lanes(p.head_dim);
#pragma unroll 1
  for (uint32_t kv = t.row0; kv < t.row1; kv++) {
    make_heads<T>(p, t.layer, kv, newest, newest < p1, s.attention,
                  [&](const float *a, const float *b) {
                    float v[2];
                    waiter.take(
                        v, [&](int i) { return i ? b : a; }, always);
                    return make_float2(v[0], v[1]);
                  });
    begin_turn(p, s, at, t);
    HeadStates<H> st;
    clear(st);
    float q[H][8];
    lane_queries<H>(p, 0, lanes, s.attention, q);
#pragma unroll 1
    for (uint32_t b0 = p0; b0 < p1; b0 += block) {
      const uint32_t n = min(p1 - b0, block);
      const bool some = earlier_rows(b0, n, newest) > 0;
      const uint4 *keys = nullptr, *values = nullptr;
      if (some) {
        Reader second = reader;
        keys = (const uint4 *)reader.wait();
        second.advance();
        values = (const uint4 *)second.wait();
      }
      attend_rows<T, H, H <= HEADS_AT_ONCE ? 2 : 1>(p, q, lanes, n, newest - b0, keys, values,
                                                    s.attention.fresh, st);
      if (!some) continue;
      reader.release();
      reader.release();
    }
    const uint64_t head0 = (uint64_t)t.part * p.heads + kv * p.group;
    merge_states<H>(p, 0, lanes, st, s.attention,
                    [&](uint32_t h, uint32_t d, float total, float most, float weights) {
                      if (at.chunks == 1) {
                        hand_on(p.merged + (kv * p.group + h) * p.head_dim + d, total / weights);
                        return;
                      }
                      hand_on(p.attention + (head0 + h) * p.head_dim + d, total);
                      if (d) return;
                      hand_on(p.score_max + head0 + h, most);
                      hand_on(p.denominator + head0 + h, weights);
                    });
  }
}

// A warp takes four elements at a time, and a lane a chunk of them.
static __device__ __forceinline__ void merge_tile(const Params &p, const Tile &t, const Place &at,
                                                  Waiter &waiter) {
  if (at.chunks == 1) return;
  stamp(p, at.step, t.wave, 0);
  const uint32_t lane = threadIdx.x % WARP;
#pragma unroll 1
  for (uint32_t e = t.row0 + threadIdx.x / WARP * 4; e < t.row1; e += WARPS * 4) {
    const uint32_t head = e / p.head_dim;
    float most = -INFINITY, weights = 0;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (uint32_t c0 = 0; c0 < at.chunks; c0 += WARP) {
      const uint32_t c = c0 + lane, state = c * p.heads + head;
      const bool mine = c < at.chunks;
      float4 v[1];
      float of[2];
      const auto mine_only = [&](int) { return mine; };
      waiter.take(
          v,
          [&](int) {
            return (const float4 *)(p.attention + (uint64_t)c * p.heads * p.head_dim + e);
          },
          mine_only);
      waiter.take(
          of, [&](int i) { return (i ? p.denominator : p.score_max) + state; }, mine_only);
      if (!mine) of[0] = -INFINITY;
      const float before = most;
      const float largest = warp_max(of[0]);
      if (!(largest <= most)) most = largest;
      const float scale = __expf(of[0] - origin(most)), old = __expf(before - origin(most));
      weights = weights * old + warp_sum(of[1] * scale);
      sum.x = sum.x * old + warp_sum(v[0].x * scale);
      sum.y = sum.y * old + warp_sum(v[0].y * scale);
      sum.z = sum.z * old + warp_sum(v[0].z * scale);
      sum.w = sum.w * old + warp_sum(v[0].w * scale);
    }
    const float mine = lane == 0 ? sum.x : lane == 1 ? sum.y : lane == 2 ? sum.z : sum.w;
    if (lane < 4) hand_on(p.merged + e + lane, mine / weights);
  }
}
//< tape_attend

/*: ## The loop

The warp that fetches and the warps that compute walk the same tiles and meet only in the ring. After lm_head every worker reads all candidates and reaches the same
token, as with barriers. :*/
//> tape_loop
static __device__ __forceinline__ int32_t take_candidates(const Params &p, const TapeShared &s,
                                                          uint32_t copy, Waiter &waiter) {
  Candidate best = no_candidate();
  for (uint32_t i = threadIdx.x; i < p.slots; i += BLOCK) {
    uint64_t v[1];
    waiter.take(
        v, [&](int) { return p.candidates + copy * p.slots + i; }, always);
    best = better(best, {__uint_as_float((uint32_t)v[0]), (int32_t)(v[0] >> 32)});
  }
  return block_best(best, s.candidate).id;
}

// Decides for the block. False: leave.
template <DType T, int H>
static __device__ __forceinline__ bool play_token(const Params &p, const TapeShared &s,
                                                  uint32_t tiles, Place &at, int32_t &token,
                                                  uint32_t &rounds, bool wanted, Reader &reader) {
  Candidate best = no_candidate();
  Waiter waiter = {p, at.step, 0, false};
  const float2 *turn = p.rotation + (uint64_t)at.position * (p.head_dim / 2);
  for (uint32_t i = threadIdx.x; i < p.head_dim / 2; i += BLOCK) s.attention.rotation[i] = turn[i];
  for (uint32_t i = 0; i < tiles; i++) {
    const Tile t = s.tiles[i];
    waiter.wave = t.wave;
    at.turn++;
    if (t.op == OP_ATTEND) attend_tile<T, H>(p, s, t, at, reader, waiter);
    else if (t.op == OP_MERGE) merge_tile(p, t, at, waiter);
    else {
      if (t.op == OP_QKV)
        for (at.wo = i; s.tiles[at.wo].op != OP_WO;) at.wo++;
      if (t.op == OP_GATE_UP) at.down = range(s.tiles[i + 1]);
      if (t.op == OP_LM_HEAD) at.layer--; // the last that was begun, not one more
      const uint32_t whole = tape_matrix(p, t.op).tape_whole;
      const bool alive =
          whole == 8 ? weights_tile<T, 8, true>(p, s, t, at, token, wanted, reader, waiter, best)
          : whole == 4
              ? weights_tile<T, 4, true>(p, s, t, at, token, wanted, reader, waiter, best)
              : weights_tile<T, STEPS, false>(p, s, t, at, token, wanted, reader, waiter, best);
      if (!alive) return false;
      if (t.op == OP_LM_HEAD) at.layer++;
      if (t.op == OP_DOWN) at.layer++;
    }
    stamp(p, at.step, t.wave, 1);
  }
  if (!wanted) return true;
  const Tile head = s.tiles[tiles - 1];
  best = block_best(best, s.candidate);
  if (threadIdx.x == 0) {
    store_relaxed64(p.candidates + (~rounds & 1) * p.slots + head.part, ~0ull);
    store_relaxed64(p.candidates + (rounds & 1) * p.slots + head.part,
                    __float_as_uint(best.logit) | (uint64_t)(uint32_t)best.id << 32);
  }
  token = take_candidates(p, s, rounds & 1, waiter);
  rounds++;
  return !bar_sync_or(1, BLOCK, waiter.failed);
}

template <DType T, int H>
__global__ void __launch_bounds__(TAPE_BLOCK, 1) tape_kernel(const __grid_constant__ Params p) {
  DYNAMIC_SHARED(unsigned char, bytes);
  const TapeShared s = tape_shared(p, bytes, H);
  const uint32_t first = p.first[blockIdx.x], tiles = p.first[blockIdx.x + 1] - first;
  for (uint32_t i = threadIdx.x; i < tiles; i += TAPE_BLOCK) s.tiles[i] = p.tile[first + i];
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < p.ring_slots; i++) {
      mbarrier_init(s.ring.full + i, TAPE_FULL_ARRIVALS);
      mbarrier_init(s.ring.empty + i, WARPS);
    }
    *s.ring.progress = *s.ring.leave = *s.ring.emptied = 0;
    mbarrier_init_fence();
  }
  __syncthreads();
  if (blockIdx.x == p.lost) return;
  if (threadIdx.x >= BLOCK) {
    if (threadIdx.x < BLOCK + WARP) fetch_tape(p, s.ring, s.tiles, tiles);
    else empty_tape(p, s, tiles);
    return;
  }

  Place at = {};
  Reader reader = {p, s.ring, {0, 0}, 0};
  uint32_t made = 0, rounds = 0;
  int32_t token = -1;
  for (at.step = 0; at.step < p.steps; at.step++) {
    at.position = p.position + at.step;
    at.chunks = chunks_in_use(p, at.position);
    const bool wanted = at.step >= p.first_logits;
    if (at.step < p.prompt_tokens) token = p.prompt[at.step];
    if (!play_token<T, H>(p, s, tiles, at, token, rounds, wanted, reader)) break;
    stamp(p, at.step, p.waves, 0);
    if (!wanted) continue;
    bool stop = token < 0;
    for (uint32_t i = 0; i < p.stops; i++) stop = stop || token == p.stop[i];
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      if (token >= 0 && !stop) p.output[made] = token;
      if (stop || at.step + 1 == p.steps) {
        p.status->tokens = made + !stop;
        p.status->stopped = stop && token >= 0;
        p.status->step = at.step;
        if (token < 0) p.status->code = STATUS_NONFINITE;
      }
    }
    if (stop) break;
    made++;
  }
  if (threadIdx.x == 0) store_shared_release(s.ring.leave, 1);
}
//< tape_loop
