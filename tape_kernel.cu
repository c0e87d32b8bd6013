/*: # The token loop on a tape

The same tiles as in `tiles_kernel.cu`, without a barrier between them. Eight warps compute, a ninth fetches (`tape.cuh`), a tenth empties, and results are handed on as values that say
themselves that they are there (`handoff.cuh`).

What a computing warp does in a wave of weights:

1. Take the rows of the tile's first piece out of the ring into registers, which frees the slot: the ring runs a slot further ahead.
2. Wait for its own eighth of the vector, apply the norm's gains, split it for the tensor cores. No warp waits for another.
3. Eight rows at a time: 16 bytes a lane from the ring, multiply.
4. When all warps have done the tile's rows, a thread a row: add the eight sums and what belongs to the row, hand it on.

RMSNorm needs the sum of all squares, but only as a factor: W(g·x)·s is s·W(g·x). So the products begin at once, with the gains applied, and the factor is multiplied to the
results. :*/
#include "handoff.cuh"
#include "tape.cuh"

//> tape_shared
struct TapeShared {
  Ring ring;
  Candidate *candidate; // [WARPS]
  float *squares;       // [2, WARPS] of the warps' columns, of two vectors by turns
  uint4 *parts;         // [WARPS, PARTS, WARP] of the vector in work, a warp's columns each
  float *own;     // [2, own_floats] residual rows of this worker's next wo tile and next down tile
  float *partial; // [2, partial_floats] the warps' sums of rows, by turns
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
  s.parts = (uint4 *)(s.squares + 2 * WARPS);
  s.own = (float *)(s.parts + WARPS * 3 * WARP);
  s.partial = s.own + 2 * p.own_floats;
  float *a = s.partial + 2 * p.partial_floats;
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

What a tile needs to know about the ones around it. :*/
//> tape_place
struct RowRange {
  uint32_t row0, row1;
};
static __device__ __forceinline__ RowRange range(const Tile &t) { return {t.row0, t.row1}; }

struct Place {
  uint32_t step, position, chunks;
  uint32_t turn; // tiles begun in this launch
  uint32_t
      layer; // layers begun in this launch: its parity chooses the copy of a buffer that has two
  // Taken and finished in this launch: two places by turns, so that a slow warp may still read the last.
  uint32_t vectors, sums;
  uint32_t wo;   // this layer's, among the worker's tiles
  RowRange down; // of this layer's
};
//< tape_place

/*: The clock of a trace, and what the other warps watch: a turn has begun for a warp when its part of the vector is there. No warp is more than one tile of weights ahead of
the others, because they meet at a tile's end; so eight times as many beginnings as turns say that all eight have begun. :*/
//> tape_begin_turn
static __device__ __forceinline__ void stamp(const Params &p, uint32_t step, uint32_t wave,
                                             uint32_t end) {
  if (p.trace && step == p.trace_step && threadIdx.x == 0)
    p.trace[((uint64_t)blockIdx.x * (p.waves + 1) + wave) * 2 + end] = global_nanoseconds();
}

// All of a warp's lanes have their values.
static __device__ __forceinline__ void begin_turn(const Params &p, const TapeShared &s,
                                                  const Place &at, const Tile &t) {
  __syncwarp();
  if (threadIdx.x % WARP == 0) add_shared_release(s.ring.progress, 1);
  stamp(p, at.step, t.wave, 0);
}
//< tape_begin_turn

/*: ## Rows on the tensor cores

A dot product on the ordinary lanes costs two instructions a weight, one to widen and one to multiply, and eight warps then need half of the time that the memory needs
to bring the weights; every hand-off pays for it. The tensor cores multiply two-byte matrices as fast as they come, with FP32 sums. Our vector is FP32. But 24 bits of mantissa
are three times eight: a float is exactly the sum of three BF16 numbers, *high*, *middle* and *low*, each what the ones before have left over. Three of the eight columns of the
second factor are these parts; their three products are added up at the end. So the vector loses nothing, and products and sums are FP32 as they were.

FP16 has eleven bits, and three parts are more than enough, but its exponents are short. There the vector is scaled by a power of two, so that its largest element in a warp's columns is
about 2^13, and the sums are scaled back.

**Who has what.** A piece is eight rows (or several times eight) of a block of at most 2,048 columns, and each warp has an eighth of the block's columns, whatever the row. Lane 4 g + t reads
row g, 16 bytes in every 64, at 16 t. These eight weights go into two multiplications, four into each; which weight is called which k does not matter as long as the vector's parts
are dealt out alike. Lane 4 g + t of the other factor holds part g (0, 1, 2; all others zero) of the same eight columns. :*/
//> tape_rows
enum { CHUNK = 32 };            // columns of a row that a warp's four lanes read at once
enum { CHUNKS = 8, PARTS = 3 }; // of a warp's columns in a block, at most

struct Part {             // a warp's columns of a matrix
  uint32_t columns;       // of all blocks together
  uint32_t block, blocks; // columns of a block, and how many
  uint32_t first, chunks; // this warp's first column in a block, and chunks from there
  uint32_t rows;          // of a piece
};

// Keeps a value in a register: a matrix's fields, chosen by the opcode, would else be loads from constant memory in the loop over its rows.
static __device__ __forceinline__ uint32_t opaque(uint32_t v) {
  asm volatile("" : "+r"(v));
  return v;
}

static __device__ __forceinline__ Part part_of(const DeviceMatrix &m) {
  Part a;
  a.columns = opaque(m.columns);
  a.block = opaque(m.tape_columns);
  a.blocks = opaque(m.tape_blocks);
  a.rows = opaque(m.tape_rows);
  const uint32_t own = a.block / WARPS;
  a.first = threadIdx.x / WARP * own;
  a.chunks = own / CHUNK;
  return a;
}

// Columns of block b.
static __device__ __forceinline__ uint32_t width_of(const Part &a, uint32_t b) {
  return min(a.block, a.columns - b * a.block);
}

// A lane's weights of eight rows. WHOLE: all columns exist; else zeros beyond the last.
template <bool WHOLE>
static __device__ __forceinline__ void take_rows(const unsigned char *slot, const Part &a,
                                                 uint32_t width, uint4 (&w)[CHUNKS]) {
  const uint32_t lane = threadIdx.x % WARP, column = a.first + lane % 4 * 8;
  const uint4 *from = (const uint4 *)(slot + (lane / 4 * width + column) * 2);
#pragma unroll
  for (uint32_t j = 0; j < CHUNKS; j++)
    w[j] = WHOLE || (j < a.chunks && column + j * CHUNK < width) ? from[j * 4]
                                                                 : make_uint4(0, 0, 0, 0);
}

struct Factor { // a lane's elements of the vector's parts: of chunk j, for two multiplications
  uint4 v[CHUNKS];
};

// This lane's row g times the vector, over the warp's columns; in lanes 4 g, all three parts together.
template <DType T, bool WHOLE>
static __device__ __forceinline__ float multiply_rows(const uint4 (&w)[CHUNKS], const Factor &x,
                                                      uint32_t chunks) {
  float c[4][2] = {};
#pragma unroll
  for (uint32_t j = 0; j < CHUNKS; j++) {
    if (!WHOLE && j >= chunks) break;
    mma_rows<T>(c[j % 2 * 2], w[j].x, w[j].y, x.v[j].x, x.v[j].y);
    mma_rows<T>(c[j % 2 * 2 + 1], w[j].z, w[j].w, x.v[j].z, x.v[j].w);
  }
  const float high = (c[0][0] + c[1][0]) + (c[2][0] + c[3][0]);
  const float other = (c[0][1] + c[1][1]) + (c[2][1] + c[3][1]);
  // Lane 4 g has the high and the middle part, lane 4 g + 1 the low one.
  const float low = __shfl_xor_sync(0xffffffffu, high, 1);
  return high + (other + low);
}
//< tape_rows

/*: ## The vector

Every warp waits for its own columns, splits them, and deals the parts out to its lanes through a little shared memory. No warp waits for another one here. Rows of the residual that the worker will add to later are
kept as they are, by whoever meets them. :*/
//> tape_stage
struct VectorSource {
  const float *handed;       // a hand-off buffer, or NULL:
  const uint16_t *embedding; // the token's row
  const float *gains;        // of a norm, or NULL
};

template <DType T>
static __device__ __forceinline__ void split8(const float *x, uint4 (&parts)[PARTS]) {
  float left[8];
#pragma unroll
  for (int k = 0; k < 8; k++) left[k] = x[k];
#pragma unroll
  for (int i = 0; i < PARTS; i++) {
    parts[i] = narrow8<T>(left);
    float taken[8];
    widen8<T>(parts[i], taken);
#pragma unroll
    for (int k = 0; k < 8; k++) left[k] -= taken[k];
  }
}

// A lane's eight columns of block b: 8 of its warp's, lane by lane.
static __device__ __forceinline__ uint32_t lane_column(const Part &a, uint32_t b) {
  return b * a.block + a.first + threadIdx.x % WARP * 8;
}
static __device__ __forceinline__ bool has_column(const Part &a, uint32_t b) {
  const uint32_t lane = threadIdx.x % WARP;
  return lane * 8 < a.chunks * CHUNK && lane_column(a, b) < a.columns && b < a.blocks;
}

// x: [blocks][8] as they were handed on. Returns the sum of their squares.
template <DType T, int BLOCKS>
static __device__ __forceinline__ float take_vector(const VectorSource &from, const Part &a,
                                                    RowRange keep, float *own,
                                                    float (&x)[BLOCKS][8], Waiter &waiter) {
  if (from.handed) {
    float4 v[2 * BLOCKS];
    waiter.take(
        v, [&](int i) { return (const float4 *)(from.handed + lane_column(a, i / 2)) + i % 2; },
        [&](int i) { return has_column(a, i / 2); });
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++) {
      float *to = &x[i / 2][i % 2 * 4];
      to[0] = v[i].x, to[1] = v[i].y, to[2] = v[i].z, to[3] = v[i].w;
    }
  } else {
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
      widen8<T>(has_column(a, b) ? *(const uint4 *)(from.embedding + lane_column(a, b))
                                 : make_uint4(0, 0, 0, 0),
                x[b]);
  }
  float squares = 0;
#pragma unroll
  for (int b = 0; b < BLOCKS; b++) {
    const uint32_t e = lane_column(a, b);
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) {
      squares = fmaf(x[b][k], x[b][k], squares);
      if (has_column(a, b) && e + k >= keep.row0 && e + k < keep.row1)
        own[e + k - keep.row0] = x[b][k];
    }
  }
  return squares;
}

// x[0], the columns of a block, as this lane's factor. room: [PARTS, 256] two-byte floats of this warp. scale: what the products are to be divided by.
template <DType T>
static __device__ __forceinline__ void make_factor(const float (&x)[8], uint32_t chunks,
                                                   uint4 *room, Factor &f, float &scale) {
  const uint32_t lane = threadIdx.x % WARP, part = lane / 4;
  float scaled[8];
  scale = 1;
  if (T == DT_F16) {
    float most = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) most = fmaxf(most, fabsf(x[k]));
    most = warp_max(most);
    if (most > 0 && most < 1e30f) scale = exp2f(floorf(log2f(most)) - 13);
  }
#pragma unroll
  for (int k = 0; k < 8; k++) scaled[k] = T == DT_F16 ? x[k] / scale : x[k];
  uint4 parts[PARTS];
  split8<T>(scaled, parts);
  __syncwarp(); // the last factor has been read
#pragma unroll
  for (int i = 0; i < PARTS; i++) room[i * WARP + lane] = parts[i];
  __syncwarp();
#pragma unroll
  for (uint32_t j = 0; j < CHUNKS; j++)
    f.v[j] =
        part < PARTS && j < chunks ? room[part * WARP + j * 4 + lane % 4] : make_uint4(0, 0, 0, 0);
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
      while (load_shared_acquire(s.ring.progress) < turn * WARPS) {
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

static __device__ __forceinline__ void take_gains(const VectorSource &from, const Part &a,
                                                  uint32_t b, float (&gains)[8]) {
  const float4 one = make_float4(1, 1, 1, 1),
               *at = (const float4 *)(from.gains + lane_column(a, b));
  const float4 g = has_column(a, b) ? at[0] : one, h = has_column(a, b) ? at[1] : one;
  gains[0] = g.x, gains[1] = g.y, gains[2] = g.z, gains[3] = g.w;
  gains[4] = h.x, gains[5] = h.y, gains[6] = h.z, gains[7] = h.w;
}

// Rows [i0, i1) of the tile, a thread a row: the warps' sums are in `sums`.
static __device__ __forceinline__ void finish_rows(const Params &p, const TapeShared &s,
                                                   const Tile &t, const Place &at,
                                                   const float *sums, uint32_t i0, uint32_t i1,
                                                   float factor, float2 add, Candidate &best) {
  const bool pairs = t.op == OP_GATE_UP;
  const uint32_t i = i0 + threadIdx.x;
  if (i >= i1) return;
  if (t.op == OP_DOWN) wait_emptied(s, at.turn);
  float y[2] = {0, 0};
#pragma unroll
  for (int up = 0; up < 2; up++) {
    if (up && !pairs) break;
    const float4 *of = (const float4 *)(sums + ((i - i0) + (up ? i1 - i0 : 0)) * WARPS);
    const float4 a = of[0], b = of[1];
    y[up] = ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
  }
  hand_on_row(p, s, t, at, i, y[0] * factor + add.x, y[1] * factor + add.y, best);
}

// False when the launch has failed. Where no logits are wanted, lm_head only reads the residual.
template <DType T, int BLOCKS, bool WHOLE>
static __device__ __forceinline__ bool
weights_tile(const Params &p, const TapeShared &s, const Tile &t, Place &at, int32_t token,
             bool wanted, Reader &reader, Waiter &waiter, Candidate &best) {
  const Part a = part_of(tape_matrix(p, t.op));
  const uint32_t n = t.row1 - t.row0, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const bool pairs = t.op == OP_GATE_UP, qkv = t.op == OP_QKV, asked = t.op != OP_LM_HEAD || wanted;
  uint4 w[CHUNKS];
  bool taken = asked, kept = false; // the first rows are in registers; their piece is still ours
  const unsigned char *slot = nullptr;
  if (asked) {
    slot = reader.wait();
    take_rows<WHOLE>(slot, a, width_of(a, 0), w);
    kept = min(a.rows, n) > 8;
    if (!kept) reader.release();
  }
  const VectorSource from = source_of(p, t, at, token);
  float x[BLOCKS][8];
  const RowRange keep = qkv ? range(s.tiles[at.wo]) : pairs ? at.down : RowRange{0, 0};
  float squares =
      take_vector<T, BLOCKS>(from, a, keep, s.own + (qkv ? 0 : p.own_floats), x, waiter);
  begin_turn(p, s, at, t);
  float *all_squares = s.squares + (at.vectors++ & 1) * WARPS;
  if (from.gains) {
    squares = warp_sum(squares);
    if (lane == 0) all_squares[warp] = squares;
  }
  uint4 *room = s.parts + warp * PARTS * WARP;
  float factor = 1, scale = 1;
  Factor f;
#pragma unroll 1
  for (uint32_t i0 = 0; i0 < n; i0 += TAPE_SUMS) { // rows that are finished together
    const uint32_t i1 = min(n, i0 + TAPE_SUMS), mine = i0 + threadIdx.x;
    float2 add = make_float2(0, 0);
    if (p.biased && mine < i1) {
      const float *bias = bias_of(p, t, false), *up_bias = pairs ? bias_of(p, t, true) : nullptr;
      if (bias) add.x = bias[t.row0 + mine];
      if (up_bias) add.y = up_bias[t.row0 + mine];
    }
    float *sums = s.partial + (at.sums++ & 1) * p.partial_floats;
#pragma unroll 1
    for (uint32_t b = 0; asked && b < a.blocks; b++) {
      if (from.gains) {
        float gains[8], y[8];
        take_gains(from, a, b, gains);
#pragma unroll
        for (int k = 0; k < 8; k++) y[k] = x[0][k] * gains[k];
        make_factor<T>(y, a.chunks, room, f, scale);
      } else make_factor<T>(x[0], a.chunks, room, f, scale);
      float first[8]; // the next block's columns to the front
#pragma unroll
      for (int k = 0; k < 8; k++) first[k] = x[0][k];
#pragma unroll
      for (int c = 0; c < BLOCKS; c++)
#pragma unroll
        for (int k = 0; k < 8; k++)
          x[c][k] =
              (uint32_t)c + 1 < a.blocks && c + 1 < BLOCKS ? x[(c + 1) % BLOCKS][k] : first[k];
      const uint32_t width = width_of(a, b);
#pragma unroll 1
      for (uint32_t r0 = i0; r0 < i1; r0 += a.rows) {
        const uint32_t rows = min(a.rows, i1 - r0);
#pragma unroll 1
        for (uint32_t up = 0; up < 1u + pairs; up++) {
          if (!taken) {
            slot = reader.wait();
            kept = true;
          }
#pragma unroll 1
          for (uint32_t r = 0; r < rows; r += 8) {
            if (!taken) take_rows<WHOLE>(slot + r * width * 2, a, width, w);
            taken = false;
            if (kept && r + 8 >= rows) {
              reader.release();
              kept = false;
            }
            float y = multiply_rows<T, WHOLE>(w, f, a.chunks);
            if (T == DT_F16) y *= scale;
            const uint32_t row = r + lane / 4;
            float *sum = sums + (r0 - i0 + row + (up ? i1 - i0 : 0)) * WARPS + warp;
            if (lane % 4 == 0 && row < rows) *sum = b ? *sum + y : y;
          }
        }
      }
    }
    if (bar_sync_or(1, BLOCK, waiter.failed)) return false;
    if (!asked) return true;
    if (from.gains && i0 == 0) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < WARPS; i++) sum += all_squares[i];
      factor = rsqrtf(sum / (float)p.hidden + p.rms_eps);
    }
    finish_rows(p, s, t, at, sums, i0, i1, factor, add, best);
  }
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
  if (t.part >= at.chunks) {
    begin_turn(p, s, at, t);
    return;
  }
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
    if (kv == t.row0) begin_turn(p, s, at, t);
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
      attend_rows<T, H, H <= HEADS_AT_ONCE ? ROWS_TOGETHER : 1>(p, q, lanes, n, newest - b0, keys,
                                                                values, s.attention.fresh, st);
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
static __device__ __forceinline__ void merge_tile(const Params &p, const TapeShared &s,
                                                  const Tile &t, const Place &at, Waiter &waiter) {
  begin_turn(p, s, at, t);
  if (at.chunks == 1) return;
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
      float v[6]; // four elements, the largest score and the summed weights, all asked for at once
      waiter.take(
          v,
          [&](int i) {
            return i < 4 ? p.attention + (uint64_t)c * p.heads * p.head_dim + e + i
                         : (i == 4 ? p.score_max : p.denominator) + state;
          },
          [&](int) { return mine; });
      if (!mine) v[4] = -INFINITY;
      const float before = most;
      const float largest = warp_max(v[4]);
      if (!(largest <= most)) most = largest;
      const float scale = __expf(v[4] - origin(most)), old = __expf(before - origin(most));
      weights = weights * old + warp_sum(v[5] * scale);
      sum.x = sum.x * old + warp_sum(v[0] * scale);
      sum.y = sum.y * old + warp_sum(v[1] * scale);
      sum.z = sum.z * old + warp_sum(v[2] * scale);
      sum.w = sum.w * old + warp_sum(v[3] * scale);
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
    else if (t.op == OP_MERGE) merge_tile(p, s, t, at, waiter);
    else {
      if (t.op == OP_QKV)
        for (at.wo = i; s.tiles[at.wo].op != OP_WO;) at.wo++;
      if (t.op == OP_GATE_UP) at.down = range(s.tiles[i + 1]);
      if (t.op == OP_LM_HEAD) at.layer--; // the last that was begun, not one more
      const DeviceMatrix &m = tape_matrix(p, t.op);
      const bool alive =
          m.tape_whole && m.tape_blocks <= 4
              ? weights_tile<T, 4, true>(p, s, t, at, token, wanted, reader, waiter, best)
              : weights_tile<T, 8, false>(p, s, t, at, token, wanted, reader, waiter, best);
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
    fewer_registers();
    if (threadIdx.x < BLOCK + WARP) fetch_tape(p, s.ring, s.tiles, tiles);
    else if (threadIdx.x < BLOCK + 2 * WARP) empty_tape(p, s, tiles);
    return;
  }
  more_registers();

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
