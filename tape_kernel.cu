/*: # The token loop on a tape

The same tiles as in `tiles_kernel.cu`, without a barrier between them. Eight warps compute, a ninth fetches (`tape.cuh`), a tenth empties, and results are handed on as values that say
themselves that they are there (`handoff.cuh`).

What a computing warp does in a wave of weights:

1. Take the first eight rows of the tile out of the ring into registers, which frees the slot: the ring runs a slot further ahead.
2. Wait for its own eighth of the vector, apply the norm's gains, split it for the tensor cores. No warp waits for another.
3. Eight rows at a time: multiply, take the next eight into the same registers, bring the sums of the former together.
4. When all warps have done the tile's rows, a thread a row: add the eight sums and what belongs to the row, hand it on.

RMSNorm needs the sum of all squares, but only as a factor: W(g·x)·s is s·W(g·x). So the products begin at once, with the gains applied, and the factor is multiplied to the
results. :*/
#include "handoff.cuh"
#include "tape.cuh"

//> tape_shared
// Two-byte parts of a float. In units of 16 bytes: a warp's columns of a part with a gap behind them, those of all, and zeros for the lanes that have no part.
// With the gap, two parts that are read at once come from different banks.
enum { PARTS = 3, PART_STRIDE = WARP + 4, PARTS_ROOM = WARPS * PARTS * PART_STRIDE + 4 + WARP };
static_assert(PARTS_ROOM * sizeof(uint4) == TAPE_PARTS_BYTES,
              "the planner reserves what the kernel takes");

struct TapeShared {
  Ring ring;
  Candidate *candidate; // [WARPS]
  float *squares;       // [2, WARPS] of the warps' columns, of two vectors by turns
  uint4 *parts;         // [WARPS, PARTS, PART_STRIDE] of the vector in work, a warp's columns each
  uint4 *zeros;         // [WARP]
  float *own;     // [2, own_floats] residual rows of this worker's next wo tile and next down tile
  float *partial; // [2, partial_floats] the warps' sums of rows, by turns
  AttentionShared attention;
  Tile *tiles; // [tile_room]
};

__host__ __device__ inline uint32_t tape_heads_floats(uint32_t group, uint32_t head_dim) {
  return head_dim + (group + 1) * head_dim + WARPS * TAPE_HEADS * (2 + head_dim);
}
enum { TAPE_FIXED = 2 * SLOTS_MOST * 8 + 16 + WARPS * (sizeof(Candidate) + 2 * sizeof(float)) };

static __device__ __forceinline__ TapeShared tape_shared(const Params &p, unsigned char *bytes) {
  TapeShared s;
  s.ring.full = (uint64_t *)bytes;
  s.ring.empty = s.ring.full + SLOTS_MOST;
  s.ring.progress = (uint32_t *)(s.ring.empty + SLOTS_MOST);
  s.ring.leave = s.ring.progress + 1;
  s.ring.emptied = s.ring.progress + 2;
  s.candidate = (Candidate *)(s.ring.progress + 4);
  s.squares = (float *)(s.candidate + WARPS);
  s.parts = (uint4 *)(s.squares + 2 * WARPS);
  s.zeros = s.parts + PARTS_ROOM - WARP;
  s.own = (float *)(s.parts + PARTS_ROOM);
  s.partial = s.own + 2 * p.own_floats;
  float *a = s.partial + 2 * p.partial_floats;
  s.attention.rotation = (float2 *)a;
  s.attention.heads = a + p.head_dim;
  s.attention.fresh = (uint4 *)(s.attention.heads + p.group * p.head_dim);
  s.attention.max = s.attention.heads + (p.group + 1) * p.head_dim;
  s.attention.sums = s.attention.max + WARPS * TAPE_HEADS * 2;
  s.attention.exps = nullptr;
  s.attention.rows = nullptr;
  s.tiles = (Tile *)(a + tape_heads_floats(p.group, p.head_dim));
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
  uint32_t step, chunks;
  uint32_t tile; // of the worker's
  uint32_t
      layer; // layers begun in this launch: its parity chooses the copy of a buffer that has two
  uint32_t
      sums; // taken in this launch: two places by turns, so that a slow warp may still read the last
};
//< tape_place

/*: The clock of a trace, and what the other warps watch: a turn has begun for a warp when its part of the vector is there, all blocks of it. All warps meet at the end of a tile of weights; so
once there have been eight times as many beginnings as turns up to such a tile, all eight have begun it.

Most of these counts only tell the fetching warp which pieces are urgent, and order nothing. Two do. When a down tile has begun, this block has read a whole activation, and the emptying warp may
empty what the block handed on before. When lm_head has begun, the fetching warp may copy K/V rows that other blocks had written before they handed on what this one has read. Those are releases, and the waits for them acquire. :*/
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
  if (threadIdx.x % WARP == 0) {
    if (t.op == OP_DOWN || t.op == OP_LM_HEAD) add_shared_release(s.ring.progress, 1);
    else add_shared(s.ring.progress, 1);
  }
  stamp(p, at.step, t.wave, 0);
}
//< tape_begin_turn

/*: ## Rows on the tensor cores

A dot product on the ordinary lanes costs two instructions a weight, one to widen and one to multiply, and the stream waits for them whenever a vector comes late and finds the ring full.
The tensor cores multiply two-byte matrices as fast as they come, with FP32 sums. Our vector is FP32. But 24 bits of mantissa
are three times eight: a float is exactly the sum of three BF16 numbers, *high*, *middle* and *low*, each what the ones before have left over. Three rows of the
first factor are these parts, and eight rows of weights are the second factor's columns; a row's three products are added up at the end. So the vector loses nothing, and products and sums
are FP32 as they were.

FP16 has eleven bits, and three parts are more than enough, but its exponents are short: it ends below 2^16, and its last bit is 2^-24. There the vector is scaled by a power of two, so that
its largest element in a warp's columns lies between 2^13 and 2^14, and the sums are scaled back. The larger the scale, the smaller an element may be and still lose nothing;
2^13 is as large as it can be with a place to spare, so that neither a rounded logarithm nor a rounded part comes near infinity. What an element loses then is at most 2^-25, beside a
largest one of 2^13: less than FP32 sums could keep of it.

**Who has what.** A piece is eight rows (or several times eight) of a block of at most 2,048 columns, and each warp has an eighth of the block's columns, whatever the row. Lane 4 g + t reads
row g, 16 bytes in every 64, at 16 t. These eight weights *are* its registers of the second factor, as they lie: column g of one multiplication and of another, four weights each. Nothing has to be
moved or widened. Which weight is called which k does not matter, as long as the vector's parts are dealt out alike.

Of the first factor the lane holds the rows g and g + 8. Row g is part g (0, 1, 2; zeros else) of the elements that the first four weights meet, and row g + 8 the same part of those
that the last four meet. So one fragment of four registers serves both multiplications. Of the first result only the upper rows mean something, of the second only the
lower ones; `sum_of_parts` takes these. What is thrown away would else have been made from zeros, and half of the vector's registers are saved. :*/
//> tape_rows
enum {
  CHUNK = 32,
  CHUNKS = 8
}; // columns of a row that a warp's four lanes read at once; of those in a block, at most

struct Part {             // a warp's columns of a matrix
  uint32_t columns;       // of all blocks together
  uint32_t block, blocks; // columns of a block, and how many
  uint32_t first, chunks; // this warp's first column in a block, and chunks from there
  uint32_t rows;          // of a piece
  uint32_t lane;          // where this lane's first chunk of a row lies, in bytes, and
  uint32_t
      twist; // 64 or -64 in rows whose halves are exchanged: added to chunk 0's place, taken from its neighbours'
};

// Keeps a value in a register: a matrix's fields, chosen by the opcode, would else be loads from constant memory in the loop over its rows.
static __device__ __forceinline__ uint32_t opaque(uint32_t v) {
  asm volatile("" : "+r"(v));
  return v;
}

static __device__ __forceinline__ Part part_of(const DeviceMatrix &m, uint32_t row0) {
  Part a;
  a.columns = opaque(m.columns);
  a.block = opaque(m.tape_columns);
  a.blocks = opaque(m.tape_blocks);
  a.rows = opaque(m.tape_rows);
  const uint32_t own = a.block / WARPS;
  a.first = threadIdx.x / WARP * own;
  a.chunks = own / CHUNK;
  const bool odd = halves_exchanged(m.columns, row0 + threadIdx.x % WARP / 4);
  a.lane = opaque((a.first + threadIdx.x % 4 * 8) * 2);
  a.twist = opaque(!odd ? 0 : a.first / CHUNK % 2 ? -64 : 64);
  return a;
}

// Columns of block b.
static __device__ __forceinline__ uint32_t width_of(const Part &a, uint32_t b) {
  return min(a.block, a.columns - b * a.block);
}

// A lane's weights of eight rows. WHOLE: all columns exist; else only `chunks` of them, and the others stay as they are.
template <bool WHOLE>
static __device__ __forceinline__ void take_rows(const unsigned char *slot, const Part &a,
                                                 uint32_t width, uint32_t chunks,
                                                 uint4 (&w)[CHUNKS]) {
  const unsigned char *from = slot + threadIdx.x % WARP / 4 * width * 2 + a.lane;
  const unsigned char *even = from + (int32_t)a.twist, *odd = from - (int32_t)a.twist;
#pragma unroll
  for (uint32_t j = 0; j < CHUNKS; j++)
    if (WHOLE || chunks >> j & 1) w[j] = *(const uint4 *)((j % 2 ? odd : even) + j * 64);
}

// Which of a lane's chunks exist, a bit each.
static __device__ __forceinline__ uint32_t chunks_of(const Part &a, uint32_t width) {
  const uint32_t column = a.first + threadIdx.x % 4 * 8;
  const uint32_t n = column < width ? min(a.chunks, (width - column + CHUNK - 1) / CHUNK) : 0;
  return (1u << n) - 1;
}

struct Factor { // a lane's elements of the vector's parts: of chunk j, for two multiplications
  uint4 v[CHUNKS];
};

// Eight rows times the vector's parts, over the warp's columns, in four sums: c[chunks by turns][a chunk's two multiplications]. Of the first, the products are the
// upper rows of the result (c[][0][0] and [1]), of the second the lower ones (c[][1][2] and [3]).
template <DType T, bool WHOLE>
static __device__ __forceinline__ void multiply_rows(const uint4 (&w)[CHUNKS], const Factor &x,
                                                     uint32_t chunks, float (&c)[2][2][4]) {
#pragma unroll
  for (uint32_t j = 0; j < CHUNKS; j++) {
    if (!WHOLE && j >= chunks) break;
    multiply_add<T>(c[j % 2][0], x.v[j], w[j].x, w[j].y);
    multiply_add<T>(c[j % 2][1], x.v[j], w[j].z, w[j].w);
  }
}

// All parts of a row together: of row 2 t in lane t, of row 2 t + 1 in lane 4 + t.
static __device__ __forceinline__ float sum_of_parts(const float (&c)[2][2][4]) {
  const float even = (c[0][0][0] + c[1][0][0]) + (c[0][1][2] + c[1][1][2]);
  const float odd = (c[0][0][1] + c[1][0][1]) + (c[0][1][3] + c[1][1][3]);
  const bool second = threadIdx.x & 4;
  const float y = (second ? odd : even) + __shfl_xor_sync(0xffffffffu, second ? even : odd, 4);
  return y + __shfl_xor_sync(0xffffffffu, y, 8);
}
//< tape_rows

/*: ## The vector

Every warp waits for its own columns, splits them, and deals the parts out to its lanes through a little shared memory. No warp waits for another one here.

A long vector is taken block by block. A warp first waits until its columns of *all* blocks are there, four blocks together, adds up their squares, and keeps the first block. Each
later block is read again when its turn comes (`again`); by then it is there for certain, and nobody empties it before this worker has handed on its last row. So registers hold one block
of the vector, however many it has.

Rows of the residual that the worker will add to later are kept as they are, by whoever meets them. :*/
//> tape_stage
struct VectorSource {
  const float *handed;       // a hand-off buffer, or NULL:
  const uint16_t *embedding; // the token's row
  const float *gains;        // of a norm, or NULL
  bool exchanged;            // the halves of each 128 bytes of the embedding's row
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
template <bool WHOLE> static __device__ __forceinline__ bool has_column(const Part &a, uint32_t b) {
  if (b >= a.blocks) return false;
  return WHOLE || (threadIdx.x % WARP * 8 < a.chunks * CHUNK && lane_column(a, b) < a.columns);
}

// What has been taken of one block: returns its share of the squares, and keeps the rows that the worker will add to later. Few warps have any of those.
template <bool WHOLE>
static __device__ __forceinline__ float look_at(const float (&x)[8], const Part &a, uint32_t b,
                                                RowRange keep, float *own) {
  float squares = 0, others = 0;
#pragma unroll
  for (uint32_t k = 0; k < 8; k += 2) {
    squares = fmaf(x[k], x[k], squares);
    others = fmaf(x[k + 1], x[k + 1], others);
  }
  squares += others;
  const uint32_t e = lane_column(a, b);
  if (has_column<WHOLE>(a, b) && e < keep.row1 && e + 8 > keep.row0) {
#pragma unroll
    for (uint32_t k = 0; k < 8; k++)
      if (e + k - keep.row0 < keep.row1 - keep.row0) own[e + k - keep.row0] = x[k];
  }
  return squares;
}

static __device__ __forceinline__ void spread(const float4 &a, const float4 &b, float (&x)[8]) {
  x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
  x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

// Block b of the token's embedding.
template <DType T, bool WHOLE>
static __device__ __forceinline__ void embedded(const VectorSource &from, const Part &a, uint32_t b,
                                                float (&x)[8]) {
  const uint16_t *row = from.embedding + (lane_column(a, b) ^ (from.exchanged ? EXCHANGED / 2 : 0));
  widen8<T>(has_column<WHOLE>(a, b) ? *(const uint4 *)row : make_uint4(0, 0, 0, 0), x);
}

// Block b again, once all of the vector is there.
template <DType T, bool WHOLE>
static __device__ __forceinline__ void again(const VectorSource &from, const Part &a, uint32_t b,
                                             float (&x)[8]) {
  if (!from.handed) return embedded<T, WHOLE>(from, a, b, x);
  const float4 none = make_float4(0, 0, 0, 0),
               *at = (const float4 *)(from.handed + lane_column(a, b));
  const bool mine = has_column<WHOLE>(a, b);
  float4 v = none, w = none;
  if (mine) v = fetch(at), w = fetch(at + 1);
  spread(v, w, x);
}

// Waits for all blocks of a warp's columns. x: those of the first. Returns the sum of their squares.
enum { TAKEN_TOGETHER = 4 };

template <DType T, bool WHOLE>
static __device__ __forceinline__ float take_vector(const VectorSource &from, const Part &a,
                                                    RowRange keep, float *own, float (&x)[8],
                                                    Waiter &waiter) {
  if (!from.handed) {
    float squares = 0;
#pragma unroll 1
    for (uint32_t b = a.blocks; b-- > 0;) { // the first last: it stays
      embedded<T, WHOLE>(from, a, b, x);
      squares += look_at<WHOLE>(x, a, b, keep, own);
    }
    return squares;
  }
  const float *handed = from.handed + lane_column(a, 0);
  if (a.blocks == 1) {
    float4 v[2];
    waiter.take(
        v, [&](int i) { return (const float4 *)handed + i; },
        [&](int) { return has_column<WHOLE>(a, 0); });
    spread(v[0], v[1], x);
    return from.gains ? look_at<WHOLE>(x, a, 0, keep, own) : 0;
  }
  float squares = 0;
#pragma unroll 1
  for (uint32_t b0 = 0; b0 < a.blocks; b0 += TAKEN_TOGETHER) {
    float4 v[2 * TAKEN_TOGETHER];
    waiter.take(
        v, [&](int i) { return (const float4 *)(handed + (b0 + i / 2) * a.block) + i % 2; },
        [&](int i) { return has_column<WHOLE>(a, b0 + i / 2); });
    if (b0 == 0) spread(v[0], v[1], x);
    if (!from.gains) continue;
#pragma unroll
    for (int i = 0; i < TAKEN_TOGETHER; i++) {
      float y[8];
      spread(v[2 * i], v[2 * i + 1], y);
      squares += look_at<WHOLE>(y, a, b0 + i, keep, own);
    }
  }
  return squares;
}

// x, the columns of a block, as this lane's factor; the two halves of eight elements lie as `multiply_rows` wants rows g and g + 8. room: [PARTS, 256] two-byte floats of this warp. scale: what the products are to be divided by.
template <DType T, bool WHOLE>
static __device__ __forceinline__ void make_factor(const float (&x)[8], uint32_t chunks,
                                                   uint4 *room, const uint4 *zeros, Factor &f,
                                                   float &scale) {
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
  for (int i = 0; i < PARTS; i++)
    room[i * PART_STRIDE + lane] = make_uint4(parts[i].x, parts[i].z, parts[i].y, parts[i].w);
  __syncwarp();
  const uint4 *mine = part < PARTS ? room + part * PART_STRIDE : zeros;
#pragma unroll
  for (uint32_t j = 0; j < CHUNKS; j++)
    if (WHOLE || j < chunks) f.v[j] = mine[j * 4 + lane % 4];
}
//< tape_stage

/*: ## Emptying

The computing warps wait for the tenth warp once a layer: no row of down goes out before it says that this layer's buffers are empty (`wait_emptied`). It has most of
a down tile's time for that, because it begins when the tile does.

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
      if (threadIdx.x % WARP == 0) add_shared_release(s.ring.emptied, 1);
      down_before = range(t);
      activation_before = range(s.tiles[i - 1]);
    }
  }
}
//< tape_empty

/*: ## A tile of weights

Between the arrival of a vector and the departure of the rows made from it, every instruction is paid for by all workers. So this function moves what it can out of that stretch, to either side. The first rows are in
registers before the vector is asked for. The next rows are asked for right behind the multiplications that read the last ones, into the same registers, and come while two
shuffles bring the sums together; a second set of registers would not fit. And what a thread can know of its row before the sums are there, its address, its residual and its bias (`Ending`), it
works out before the warps meet, while the slowest of them still multiplies.

The norm's factor is the same for all rows of a tile. It is made from the warps' squares after the first meeting.

WHOLE is the usual case: every piece is eight rows of 2,048 columns, so that all sizes but the number of rows are constants. The general case knows blocks of other widths, the
last of them narrower, and pieces of several times eight rows. :*/
//> tape_tile
static __device__ __forceinline__ VectorSource source_of(const Params &p, const Tile &t,
                                                         const Place &at, int32_t token) {
  const float *residual = p.after_down + ((at.layer + 1) & 1) * p.hidden; // of the layer before
  switch (t.op) {
  case OP_QKV:
    return {
        t.layer ? residual : nullptr,
        (const uint16_t *)(p.weights + p.embedding.offset + (uint64_t)token * p.embedding.stride),
        layer_vector(p, t.layer, p.attn_norm),
        halves_exchanged(p.embedding.columns, (uint32_t)token)};
  case OP_WO: return {p.merged, nullptr, nullptr, false};
  case OP_GATE_UP: return {p.after_wo, nullptr, layer_vector(p, t.layer, p.ffn_norm), false};
  case OP_DOWN: return {p.activations + (at.layer & 1) * p.inter, nullptr, nullptr, false};
  default: return {p.after_down + (at.layer & 1) * p.hidden, nullptr, p.final_norm, false};
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

static __device__ __forceinline__ void wait_emptied(const TapeShared &s, uint32_t layers) {
  while (load_shared_acquire(s.ring.emptied) < layers)
    ;
}

template <bool WHOLE>
static __device__ __forceinline__ void take_gains(const VectorSource &from, const Part &a,
                                                  uint32_t b, float (&gains)[8]) {
  const float4 one = make_float4(1, 1, 1, 1),
               *at = (const float4 *)(from.gains + lane_column(a, b));
  const float4 g = has_column<WHOLE>(a, b) ? at[0] : one, h = has_column<WHOLE>(a, b) ? at[1] : one;
  gains[0] = g.x, gains[1] = g.y, gains[2] = g.z, gains[3] = g.w;
  gains[4] = h.x, gains[5] = h.y, gains[6] = h.z, gains[7] = h.w;
}

// What a thread that finishes a row can know before the sums are there: where the row goes, and what is added to it.
struct Ending {
  float *to;
  float add, add_up;
};
static __device__ __forceinline__ Ending ending_of(const Params &p, const TapeShared &s,
                                                   const Tile &t, const Place &at, uint32_t i) {
  const uint32_t row = t.row0 + i, copy = at.layer & 1;
  Ending e = {p.logits + row, 0, 0};
  if (t.op == OP_QKV) e.to = p.qkv_out + row;
  if (t.op == OP_WO) e.to = p.after_wo + row, e.add = s.own[i];
  if (t.op == OP_GATE_UP) e.to = p.activations + copy * p.inter + row;
  if (t.op == OP_DOWN) e.to = p.after_down + copy * p.hidden + row, e.add = s.own[p.own_floats + i];
  if (!p.biased) return e;
  const float *bias = bias_of(p, t, false),
              *up_bias = t.op == OP_GATE_UP ? bias_of(p, t, true) : nullptr;
  if (bias) e.add += bias[row];
  if (up_bias) e.add_up = up_bias[row];
  return e;
}

// The warps' sums of a row.
static __device__ __forceinline__ float total(const float *sums) {
  const float4 a = *(const float4 *)sums, b = *(const float4 *)(sums + 4);
  return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
}

// False when the launch has failed. Where no logits are wanted, lm_head only reads the residual.
template <DType T, bool WHOLE>
static __device__ __forceinline__ bool
weights_tile(const Params &p, const TapeShared &s, const Tile &t, Place &at, RowRange keep,
             int32_t token, bool wanted, Reader &reader, Waiter &waiter, Candidate &best) {
  const Part a = part_of(tape_matrix(p, t.op), t.row0);
  const uint32_t n = t.row1 - t.row0, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const uint32_t row = lane % 4 * 2 + lane / 4; // of eight, whose sum a lane below 8 has
  const bool pairs = t.op == OP_GATE_UP, qkv = t.op == OP_QKV, asked = t.op != OP_LM_HEAD || wanted;
  uint32_t left =
      asked ? ((n + 7) / 8 << pairs) * a.blocks : 0; // WHOLE: pieces of the tile to come
  uint4 w[CHUNKS];
  bool taken = asked; // the first rows are in registers
  const unsigned char *slot = nullptr;
  uint32_t in_piece = 0; // rows of the piece that we are in, still to take
  uint32_t width = WHOLE ? (uint32_t)TAPE_COLUMNS : width_of(a, 0), chunks = chunks_of(a, width);
  if (!WHOLE)
#pragma unroll
    for (uint32_t j = 0; j < CHUNKS; j++) w[j] = make_uint4(0, 0, 0, 0);
  if (asked) {
    slot = reader.wait();
    take_rows<WHOLE>(slot, a, width, chunks, w);
    if (!WHOLE) in_piece = min(a.rows, n);
    if (WHOLE || in_piece <= 8) reader.release();
    in_piece = in_piece > 8 ? in_piece - 8 : 0;
  }
  const VectorSource from = source_of(p, t, at, token);
  float gains[8], x[8];
  if (from.gains) take_gains<WHOLE>(from, a, 0, gains);
  float squares = take_vector<T, WHOLE>(from, a, keep, s.own + (qkv ? 0 : p.own_floats), x, waiter);
  if (!asked) begin_turn(p, s, at, t);
  uint4 *room = s.parts + warp * PARTS * PART_STRIDE;
  float factor = 1, scale = 1;
  Factor f;
#pragma unroll 1
  for (uint32_t i0 = 0; i0 < n; i0 += TAPE_SUMS) { // rows that are finished together
    const uint32_t i1 = min(n, i0 + TAPE_SUMS), mine = i0 + threadIdx.x;
    const uint32_t turn = at.sums++ & 1;
    float *sums = s.partial + turn * p.partial_floats, *all_squares = s.squares + turn * WARPS;
#pragma unroll 1
    for (uint32_t b = 0; asked && b < a.blocks; b++) {
      if (i0 == 0 || a.blocks > 1) {
        if (b || i0) { // not as it was taken
          again<T, WHOLE>(from, a, b, x);
          if (from.gains) take_gains<WHOLE>(from, a, b, gains);
        }
        if (from.gains)
#pragma unroll
          for (int k = 0; k < 8; k++) x[k] *= gains[k];
        make_factor<T, WHOLE>(x, a.chunks, room, s.zeros, f, scale);
        if (b == 0 && i0 == 0) begin_turn(p, s, at, t);
      }
      if (!WHOLE && a.blocks > 1) {
        const uint32_t before = chunks;
        width = width_of(a, b), chunks = chunks_of(a, width);
#pragma unroll
        for (uint32_t j = 0; j < CHUNKS; j++)
          if (before & ~chunks & 1u << j) w[j] = make_uint4(0, 0, 0, 0);
      }
      const uint32_t groups = (i1 - i0 + 7) / 8 << pairs;
      left -= groups;
      uint32_t k = 0, r0 = 0, r = 0, up = 0; // of the eight rows in work
      if (!WHOLE && !taken) {
        slot = reader.wait();
        take_rows<WHOLE>(slot, a, width, chunks, w);
        in_piece = min(a.rows, i1 - i0);
        if (in_piece <= 8) reader.release();
        in_piece = in_piece > 8 ? in_piece - 8 : 0;
      }
      taken = false;
#pragma unroll 1
      do {
        const uint32_t to =
            WHOLE ? (k >> pairs) * 8 + (k & pairs ? i1 - i0 : 0) : r + (up ? i1 - i0 : 0);
        const uint32_t end = WHOLE ? i1 - i0 - (k >> pairs) * 8 : i1 - i0 - r;
        float c[2][2][4] = {};
        multiply_rows<T, WHOLE>(w, f, a.chunks, c);
        k++;
        // The next rows are on their way to the registers while the sums of these are brought together.
        if (WHOLE) {
          if (k < groups || left) {
            take_rows<WHOLE>(reader.wait(), a, width, chunks, w);
            reader.release();
          }
        } else {
          r += 8;
          if (r >= min(r0 + a.rows, i1 - i0)) { // the next piece
            if (pairs && !up) up = 1, r = r0;
            else up = 0, r0 = r;
          }
          if (k < groups) {
            if (!in_piece) {
              slot = reader.wait();
              in_piece = min(a.rows, i1 - i0 - r0);
            } else slot += 8 * width * 2;
            take_rows<WHOLE>(slot, a, width, chunks, w);
            if (in_piece <= 8) reader.release();
            in_piece = in_piece > 8 ? in_piece - 8 : 0;
          }
        }
        float y = sum_of_parts(c);
        if (T == DT_F16) y *= scale;
        float *sum = sums + (to + row) * WARPS + warp;
        if (lane < 8 && row < end) *sum = b ? *sum + y : y;
      } while (k < groups);
    }
    if (from.gains && i0 == 0) {
      squares = warp_sum(squares);
      if (lane == 0) all_squares[warp] = squares;
    }
    const bool finishes = asked && mine < i1;
    Ending end;
    if (finishes) end = ending_of(p, s, t, at, mine);
    if (finishes && t.op == OP_DOWN) wait_emptied(s, at.layer + 1);
    if (bar_sync_or(1, BLOCK, waiter.failed)) return false;
    if (!asked) return true;
    if (from.gains && i0 == 0) factor = rsqrtf(total(all_squares) * p.qkv.per_column + p.rms_eps);
    if (!finishes) continue;
    float y = total(sums + threadIdx.x * WARPS) * factor + end.add;
    if (pairs) {
      const float up = total(sums + (threadIdx.x + i1 - i0) * WARPS) * factor + end.add_up;
      y = __fdividef(y, 1.0f + __expf(-y)) * up;
    }
    if (t.op != OP_LM_HEAD) hand_on(end.to, y);
    else {
      store_l2(end.to, y);
      best = better(best, candidate(y, (int32_t)(t.row0 + mine)));
    }
  }
  return true;
}
//< tape_tile

/*: ## Attention

Keys and values of earlier positions come through the ring, two slots at a time; the newest ones never leave the block. Both multiplications of attention run on the tensor cores, and take keys and
values as they lie in the ring. A warp has up to four query heads and sixteen positions at a time.

*Scores.* The queries are FP32, so they come in three parts: row 4 part + head of the first factor is a part of a head. Positions are the columns of the second, eight a multiplication, and a lane's 16 bytes of a key
are its registers, as with weights. Here all rows have work, so each of a chunk's two multiplications has a fragment of its own. Parts added up, lane 4 g + t has four scores of head g % 4.

*Weights.* The largest score is sought among the four lanes that share a head, and what was summed before is brought to the new scale: each warp keeps maximum, sum and output for its own positions.

*Values.* The weights are split in three parts again, in the same rows; a weight is at most one, so that FP16 needs no scale here. But now the sum runs over positions, and positions
are the rows of V, where the tensor cores want columns: `load_transposed` turns the values over on their way to the registers. The sums stay apart by parts until the end.

A K/V head with more than four query heads, up to eight, is shared by two sets of four warps, each with four heads; both go through all positions. Where positions end before the sixteenth,
the last one stands in for those that are missing, with weight zero: whatever else lies in the slot could be a NaN, and zero times NaN is one.

A chunk that is the only one divides for itself. Several hand on
what they have, and merge tiles, a few elements each, bring them to one scale: a hand-off more, but the Wo tiles read one vector instead of
one for each chunk. :*/
//> tape_attend
// What a lane knows of its head: lane 4 g + t has head g % 4 of the warp's four.
template <int D> struct Attended {
  float max, sum;      // of this lane's positions
  float out[D / 8][4]; // [tiles of eight elements]: parts g / 4 and 2 of elements 2 t and 2 t + 1
};

// Which heads a warp has, and which of the warps with the same heads it is.
struct Share {
  uint32_t h0, part, warps;
};
static __device__ __forceinline__ Share share_of(const Params &p) {
  const uint32_t warp = threadIdx.x / WARP;
  if (p.group <= TAPE_HEADS) return {0, warp, WARPS};
  return {warp / (WARPS / 2) * TAPE_HEADS, warp % (WARPS / 2), WARPS / 2};
}

// Rows 4 * part + head of the first factor are the parts of the heads' queries. a: [chunks of 32 elements][two multiplications]. Returns what scores are to be multiplied by.
template <DType T, int D>
static __device__ __forceinline__ float query_parts(const Params &p, const AttentionShared &s,
                                                    uint32_t head, uint4 (&a)[D / CHUNK][2]) {
  const uint32_t lane = threadIdx.x % WARP, t = lane % 4;
  float q[D / CHUNK][8], scale = 1;
#pragma unroll
  for (int c = 0; c < D / CHUNK; c++) {
    const bool there = head < p.group && c * CHUNK + t * 8 < p.head_dim;
    const float4 zero = make_float4(0, 0, 0, 0),
                 *from = (const float4 *)(s.heads + head * p.head_dim + c * CHUNK + t * 8);
    const float4 x = there ? from[0] : zero, y = there ? from[1] : zero;
    spread(x, y, q[c]);
  }
  if (T == DT_F16) {
    float most = 0;
#pragma unroll
    for (int c = 0; c < D / CHUNK; c++)
#pragma unroll
      for (int k = 0; k < 8; k++) most = fmaxf(most, fabsf(q[c][k]));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    if (most > 0 && most < 1e30f) scale = exp2f(floorf(log2f(most)) - 13);
  }
#pragma unroll
  for (int c = 0; c < D / CHUNK; c++) {
    if (T == DT_F16)
#pragma unroll
      for (int k = 0; k < 8; k++) q[c][k] /= scale;
    uint4 parts[PARTS];
    split8<T>(q[c], parts);
    const bool first = lane < 16;
    const uint4 u = first ? parts[0] : parts[1], v = first ? parts[2] : make_uint4(0, 0, 0, 0);
    a[c][0] = make_uint4(u.x, v.x, u.y, v.y);
    a[c][1] = make_uint4(u.z, v.z, u.w, v.w);
  }
  return scale;
}

// Two positions' weights as parts: rows g and g + 8 of a factor, of which parts 0 and 1 are the upper eight, part 2 the next four, and the last four zeros.
template <DType T> static __device__ __forceinline__ uint2 weight_parts(float x, float y) {
  uint32_t parts[PARTS];
#pragma unroll
  for (int i = 0; i < PARTS; i++) {
    const uint16_t u = narrow<T>(x), v = narrow<T>(y);
    parts[i] = u | (uint32_t)v << 16;
    x -= widen<T>(u);
    y -= widen<T>(v);
  }
  const bool first = threadIdx.x % WARP < 16;
  return make_uint2(first ? parts[0] : parts[1], first ? parts[2] : 0);
}

// All n positions of a block, sixteen a warp at a time. newest: the newest position, counted from the block's first; keys and values: [n, head_dim], without it.
template <DType T, int D>
static __device__ __forceinline__ void
attend_block(const Params &p, const uint4 (&a)[D / CHUNK][2], float scale, const Share &share,
             uint32_t n, uint32_t newest, const uint4 *keys, const uint4 *values,
             const uint4 *fresh, Attended<D> &st) {
  const uint32_t vectors = p.head_dim / 8, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll 1
  for (uint32_t i0 = share.part * 16; i0 < n; i0 += share.warps * 16) {
    float s[2][2];
#pragma unroll
    for (int b = 0; b < 2; b++) {
      const uint32_t i = min(i0 + b * 8 + g, n - 1);
      const uint4 *row = (i == newest ? fresh : keys + i * vectors) + t;
      float c[2][4] = {};
#pragma unroll
      for (int k = 0; k < D / CHUNK; k++) {
        const uint4 x = k * 4 + t < vectors ? row[k * 4] : make_uint4(0, 0, 0, 0);
        multiply_add<T>(c[0], a[k][0], x.x, x.y);
        multiply_add<T>(c[1], a[k][1], x.z, x.w);
      }
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const float y = (c[0][e] + c[1][e]) + (c[0][2 + e] + c[1][2 + e]);
        s[b][e] = (y + __shfl_xor_sync(0xffffffffu, y, 16)) * scale;
        if (i0 + b * 8 + t * 2 + e >= n) s[b][e] = -INFINITY;
      }
    }
    float most = st.max;
#pragma unroll
    for (int b = 0; b < 2; b++)
#pragma unroll
      for (int e = 0; e < 2; e++)
        if (!(s[b][e] <= most)) most = s[b][e]; // NaN takes over
#pragma unroll
    for (int o = 1; o < 4; o *= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, most, o);
      if (!(other <= most)) most = other;
    }
    const float before = __expf(st.max - origin(most));
    st.max = most;
#pragma unroll
    for (int b = 0; b < 2; b++)
#pragma unroll
      for (int e = 0; e < 2; e++) s[b][e] = __expf(s[b][e] - origin(most));
    st.sum = fmaf(st.sum, before, (s[0][0] + s[0][1]) + (s[1][0] + s[1][1]));
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
      for (int e = 0; e < 4; e++) st.out[d][e] *= before;
    const uint2 u = weight_parts<T>(s[0][0], s[0][1]), v = weight_parts<T>(s[1][0], s[1][1]);
    const uint4 weights = make_uint4(u.x, u.y, v.x, v.y);
    // This lane's row of the four matrices that are turned over together: positions 0 to 7 and 8 to 15, of eight elements and the next eight.
    const uint32_t i = min(i0 + lane % 16, n - 1);
    const uint4 *row = i == newest ? fresh + vectors : values + i * vectors;
#pragma unroll
    for (uint32_t d = 0; d < D / 16; d++) {
      if (d * 16 >= p.head_dim) break;
      uint32_t x[4];
      load_transposed(x, row + min(d * 2 + lane / 16, vectors - 1));
      multiply_add<T>(st.out[d * 2], weights, x[0], x[1]);
      multiply_add<T>(st.out[d * 2 + 1], weights, x[2], x[3]);
    }
  }
}

// The parts, then the warps. rows: of the chunk's first block. finish(head, element, total, largest score, summed weights).
template <int D, class Finish>
static __device__ __forceinline__ void merge_warps(const Params &p, const Share &share,
                                                   uint32_t rows, Attended<D> &st,
                                                   const AttentionShared &s, Finish finish) {
  const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
  const uint32_t active = min(share.warps, (rows + 15) / 16); // the others have nothing
  if (share.part < active) {
    float sum = st.sum;
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    float *to = s.sums + (warp * TAPE_HEADS + g) * p.head_dim + t * 2;
#pragma unroll
    for (uint32_t d = 0; d < D / 8; d++) {
      if (d * 8 >= p.head_dim) break;
      float x = st.out[d][0] + st.out[d][2], y = st.out[d][1] + st.out[d][3];
      x += __shfl_xor_sync(0xffffffffu, x, 16);
      y += __shfl_xor_sync(0xffffffffu, y, 16);
      if (lane < 16) *(float2 *)(to + d * 8) = make_float2(x, y);
    }
    if (lane < 16 && t == 0)
      *(float2 *)(s.max + (warp * TAPE_HEADS + g) * 2) = make_float2(st.max, sum);
  }
  sync_block();
  // A warp takes a head's 32 elements.
  const uint32_t per_head = (p.head_dim + WARP - 1) / WARP;
#pragma unroll 1
  for (uint32_t head = 0, part = warp; head < p.group;) {
    if (part >= per_head) {
      part -= per_head;
      head++;
      continue;
    }
    const uint32_t d = part * WARP + lane;
    part += WARPS;
    if (d >= p.head_dim) continue;
    const uint32_t first = head / TAPE_HEADS * share.warps * TAPE_HEADS + head % TAPE_HEADS;
    const float2 *of = (const float2 *)s.max + first;
    float largest = of[0].x, total = 0, weights = 0;
#pragma unroll 2
    for (uint32_t w = 1; w < active; w++) {
      const float other = of[w * TAPE_HEADS].x;
      if (!(other <= largest)) largest = other;
    }
#pragma unroll 2
    for (uint32_t w = 0; w < active; w++) {
      const float2 state = of[w * TAPE_HEADS];
      const float scale = __expf(state.x - origin(largest));
      total = fmaf(s.sums[(first + w * TAPE_HEADS) * p.head_dim + d], scale, total);
      weights = fmaf(state.y, scale, weights);
    }
    finish(head, d, total, largest, weights);
  }
}

template <DType T, int D>
static __device__ __forceinline__ void attend_tile(const Params &p, const TapeShared &s,
                                                   const Tile &t, const Place &at, Reader &reader,
                                                   Waiter &waiter) {
  if (t.part >= at.chunks) {
    begin_turn(p, s, at, t);
    return;
  }
  const uint32_t newest = p.position + at.step, block = rows_of_slot(p);
  uint32_t p0, p1;
  chunk_range(newest + 1, t.part, at.chunks, &p0, &p1);
  const Share share = share_of(p);
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
    Attended<D> st;
    st.max = -INFINITY, st.sum = 0;
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
      for (int e = 0; e < 4; e++) st.out[d][e] = 0;
    uint4 a[D / CHUNK][2];
    const float scale =
        query_parts<T, D>(p, s.attention, share.h0 + threadIdx.x / 4 % TAPE_HEADS, a);
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
      attend_block<T, D>(p, a, scale, share, n, newest - b0, keys, values, s.attention.fresh, st);
      if (!some) continue;
      reader.release();
      reader.release();
    }
    const uint64_t head0 = (uint64_t)t.part * p.heads + kv * p.group;
    merge_warps<D>(p, share, min(p1 - p0, block), st, s.attention,
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
token, as with barriers.

**Contract.** A cooperative launch of `workers` blocks of TAPE_BLOCK threads, with the dynamic shared memory that `tape_shared_bytes` in `gpu.cu` counts, all blocks resident together. Each
byte of the hand-off buffers (`qkv_out`, `score_max`, `attention`, `denominator`, `merged`, `after_wo`, `after_down`, `activations`, `candidates`) is 0xff, so that all of them are empty. `status` is zero.
`prompt` holds `prompt_tokens` ids, at least one; positions `position` to `position + steps - 1` lie within the cache, and all before `position` have been written by earlier launches. Every second row of
each matrix has its halves exchanged (`tape.cuh`). The plan is one that `validate.c` passes for hand-offs of data.

A kernel for each type T, and of each three: WHOLE only where every piece is eight rows of 2,048 columns; D, the head size that registers are for, 64 or
128, is no smaller than the model's. With large heads all rows take the general way. :*/
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
template <DType T, bool WHOLE, int D>
static __device__ __forceinline__ bool play_token(const Params &p, const TapeShared &s,
                                                  uint32_t tiles, Place &at, int32_t &token,
                                                  bool wanted, Reader &reader) {
  Candidate best;
  Waiter waiter = {p, at.step, 0, false};
  const float2 *turn = p.rotation + (uint64_t)(p.position + at.step) * (p.head_dim / 2);
  for (uint32_t i = threadIdx.x; i < p.head_dim / 2; i += BLOCK) s.attention.rotation[i] = turn[i];
#pragma unroll 1
  for (at.tile = 0; at.tile < tiles; at.tile++) {
    const Tile t = s.tiles[at.tile];
    waiter.wave = t.wave;
    if (t.op == OP_ATTEND) attend_tile<T, D>(p, s, t, at, reader, waiter);
    else if (t.op == OP_MERGE) merge_tile(p, s, t, at, waiter);
    else {
      RowRange keep = {0, 0};
      if (t.op == OP_QKV) {
        uint32_t wo = at.tile + 1;
#pragma unroll 1
        while (s.tiles[wo].op != OP_WO) wo++;
        keep = range(s.tiles[wo]);
      }
      if (t.op == OP_GATE_UP) keep = range(s.tiles[at.tile + 1]);
      if (t.op == OP_LM_HEAD) {
        at.layer--; // the last that was begun, not one more
        best = no_candidate();
      }
      bool alive;
      alive = weights_tile<T, WHOLE>(p, s, t, at, keep, token, wanted, reader, waiter, best);
      if (!alive) return false;
      if (t.op == OP_LM_HEAD || t.op == OP_DOWN) at.layer++;
    }
    stamp(p, at.step, t.wave, 1);
  }
  if (!wanted) return true;
  const Tile head = s.tiles[tiles - 1];
  best = block_best(best, s.candidate);
  if (threadIdx.x == 0) {
    const uint32_t rounds = at.step - p.first_logits;
    store_relaxed64(p.candidates + (~rounds & 1) * p.slots + head.part, ~0ull);
    store_relaxed64(p.candidates + (rounds & 1) * p.slots + head.part,
                    __float_as_uint(best.logit) | (uint64_t)(uint32_t)best.id << 32);
  }
  token = take_candidates(p, s, (at.step - p.first_logits) & 1, waiter);
  return !bar_sync_or(1, BLOCK, waiter.failed);
}

template <DType T, bool WHOLE, int D>
__global__ void __launch_bounds__(TAPE_BLOCK, 1) tape_kernel(const __grid_constant__ Params p) {
  DYNAMIC_SHARED(unsigned char, bytes);
  const TapeShared s = tape_shared(p, bytes);
  const uint32_t first = p.first[blockIdx.x], tiles = p.first[blockIdx.x + 1] - first;
  for (uint32_t i = threadIdx.x; i < tiles; i += TAPE_BLOCK) s.tiles[i] = p.tile[first + i];
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < p.ring_slots; i++) {
      mbarrier_init(s.ring.full + i, TAPE_FULL_ARRIVALS);
      mbarrier_init(s.ring.empty + i, BLOCK);
    }
    for (int i = 0; i < WARP; i++) s.zeros[i] = make_uint4(0, 0, 0, 0);
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
  Reader reader = {p, s.ring, {0, 0}};
  uint32_t made = 0;
  int32_t token = -1;
  for (at.step = 0; at.step < p.steps; at.step++) {
    at.chunks = chunks_in_use(p, p.position + at.step);
    const bool wanted = at.step >= p.first_logits;
    if (at.step < p.prompt_tokens) token = p.prompt[at.step];
    if (!play_token<T, WHOLE, D>(p, s, tiles, at, token, wanted, reader)) break;
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
  if (threadIdx.x == 0) add_shared_release(s.ring.leave, 1);
}
//< tape_loop
