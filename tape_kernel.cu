/*: # The token loop on a tape

The same tiles as in `tiles_kernel.cu`, without a barrier between them. Eight warps compute, a ninth fetches (`tape.cuh`), a tenth empties, and results are handed on as values that say
themselves that they are there (`handoff.cuh`).

What a computing warp does in a wave of weights:

1. Take the first eight rows of the tile out of the ring into registers, which frees the slot: the ring runs a slot further ahead.
2. Wait for its own eighth of the vector, apply the norm's gains, split it for the tensor cores. No warp waits for another.
3. Eight rows at a time: multiply, take the next eight into the same registers, bring the sums of the former together.
4. When all warps have done the tile's rows, a thread a row: add the eight sums and what belongs to the row, hand it on.

RMSNorm needs the sum of all squares, but only as a factor: W(g·x)·s is s·W(g·x). So the products begin at once, with the gains applied, and the factor is multiplied to the
results.

The code of a layer is data too: whatever does not stay in an SM's instruction cache is fetched again in each layer, in the middle of somebody's waiting. On an H200, straight code in a loop runs at full speed up to [96 KB]{.fact} with two warps a scheduler; with three it loses up to a third from [48 KB]{.fact} on, and beyond [128 KB]{.fact} both are at half or less ([chapter 13](13-tape.md#13-code)). So loops that are not pressed for time are not unrolled here, and what can be a constant (WHOLE) is one. :*/
#include "handoff.cuh"
#include "tape.cuh"

//> tape_shared
// Two-byte parts of a float. In units of 16 bytes: a warp's columns of a part with a gap behind them, those of all, and zeros for the lanes that have no part.
// With the gap, two parts that are read at once come from different banks.
enum { PARTS = 3, PART_STRIDE = WARP + 4, PARTS_ROOM = WARPS * PARTS * PART_STRIDE + 4 + WARP };
static_assert(PARTS_ROOM * sizeof(uint4) == TAPE_PARTS_BYTES,
              "the planner reserves what the kernel takes");

enum {
  HEAD_GAP =
      8, // two-byte floats behind a part of a head; 32 would bring neighbours from different banks
  SUMS_GAP = 8, // floats behind a head's sums, so that four heads go to different banks
  HEAD_STATE =
      4, // floats that are handed on behind a chunk's head: largest score and summed weights, twice
};

struct TapeAttention {
  float2 *rotation; // [head_dim / 2] of the newest position
  uint4 *fresh;     // [2, head_dim / 8] the newest key and value, as the cache has them
  uint4 *parts;     // [PARTS, TAPE_GROUP, (head_dim + HEAD_GAP) / 8] of the queries
  float *scale;     // [TAPE_GROUP] FP16: what scores are to be multiplied by
  float2 *state;    // [WARPS, TAPE_HEADS] largest score and summed weights
  float *sums;      // [WARPS, TAPE_HEADS, head_dim + SUMS_GAP]
};                  // all but the rotation in the room of a vector's parts: a worker never has both

struct TapeShared {
  Ring ring;
  Candidate *candidate; // [WARPS]
  float *squares;       // [2, WARPS] of the warps' columns, of two vectors by turns
  uint4 *parts;         // [WARPS, PARTS, PART_STRIDE] of the vector in work, a warp's columns each
  uint4 *zeros;         // [WARP]
  float *own;     // [2, own_floats] residual rows of this worker's next wo tile and next down tile
  float *partial; // [2, partial_floats] the warps' sums of rows, by turns
  TapeAttention attention;
  Tile *tiles; // [tile_room]
};

// Floats of what a tile has in work: the parts of a vector, or all of an attend tile's but the rotation.
__host__ __device__ inline uint32_t tape_work_floats(uint32_t head_dim) {
  const uint32_t attention = head_dim + PARTS * TAPE_GROUP * (head_dim + HEAD_GAP) / 2 +
                             TAPE_GROUP + WARPS * TAPE_HEADS * (2 + SUMS_GAP + head_dim);
  const uint32_t parts = (PARTS_ROOM - WARP) * 4;
  return attention > parts ? attention : parts;
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
  s.attention.fresh = s.parts; // never both at once
  s.attention.parts = s.attention.fresh + p.head_dim / 4;
  s.attention.scale =
      (float *)(s.attention.parts + PARTS * TAPE_GROUP * (p.head_dim + HEAD_GAP) / 8);
  s.attention.state = (float2 *)(s.attention.scale + TAPE_GROUP);
  s.attention.sums = (float *)(s.attention.state + WARPS * TAPE_HEADS);
  s.zeros = s.parts + tape_work_floats(p.head_dim) / 4;
  s.attention.rotation = (float2 *)(s.zeros + WARP);
  s.own = (float *)s.attention.rotation + p.head_dim;
  s.partial = s.own + 2 * p.own_floats;
  s.tiles = (Tile *)(s.partial + 2 * p.partial_floats);
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
  float gains[8]; // of the next tile's norm
  bool traced;
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
static __device__ __forceinline__ void stamp(const Params &p, const Place &at, uint32_t wave,
                                             uint32_t end) {
  if (at.traced && threadIdx.x == 0)
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
  stamp(p, at, t.wave, 0);
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

template <bool WHOLE>
static __device__ __forceinline__ Part part_of(const DeviceMatrix &m, uint32_t row0) {
  Part a;
  a.blocks = opaque(m.tape_blocks);
  a.columns = WHOLE ? a.blocks * TAPE_COLUMNS : opaque(m.columns);
  a.block = WHOLE ? (uint32_t)TAPE_COLUMNS : opaque(m.tape_columns);
  a.rows = WHOLE ? 8 : opaque(m.tape_rows);
  const uint32_t own = a.block / WARPS;
  a.first = threadIdx.x / WARP * own;
  a.chunks = own / CHUNK;
  const bool odd = halves_exchanged(a.columns, row0 + threadIdx.x % WARP / 4);
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

A long vector is taken block by block. A warp first waits until its columns of *all* blocks are there, four blocks together, and keeps the first block. Each
later block is read again when its turn comes (`again`), and before that once more where a norm wants the squares of all; by then it is there for certain, and nobody empties it before this worker has handed on its last row. So registers hold one block
of the vector, however many it has.

Rows of the residual that the worker will add to later are kept as they are, by whoever meets them. :*/
//> tape_stage
struct VectorSource {
  const float *handed;       // a hand-off buffer, or NULL:
  const uint16_t *embedding; // the token's row
  const float *gains;        // of a norm, or NULL
  bool exchanged;            // the halves of each 128 bytes of the embedding's row
};

template <DType T> static __device__ __forceinline__ void widen2(uint32_t u, float (&out)[2]) {
  out[0] = T == DT_BF16 ? __uint_as_float(u << 16) : widen<T>((uint16_t)(u & 0xffff));
  out[1] = T == DT_BF16 ? __uint_as_float(u & 0xffff0000u) : widen<T>((uint16_t)(u >> 16));
}

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
#pragma unroll 1
  for (uint32_t b0 = 0; b0 < a.blocks; b0 += TAKEN_TOGETHER) {
    float4 v[2 * TAKEN_TOGETHER];
    waiter.take(
        v, [&](int i) { return (const float4 *)(handed + (b0 + i / 2) * a.block) + i % 2; },
        [&](int i) { return has_column<WHOLE>(a, b0 + i / 2); });
    if (b0 == 0) spread(v[0], v[1], x);
  }
  float squares = 0;
  if (!from.gains) return squares;
#pragma unroll 1
  for (uint32_t b = a.blocks; b-- > 0;) {
    again<T, WHOLE>(from, a, b, x);
    squares += look_at<WHOLE>(x, a, b, keep, own);
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
// copies: how many, each `stride` floats after the one before.
static __device__ __forceinline__ void empty_rows(float *buffer, RowRange r, uint32_t copies = 1,
                                                  uint32_t stride = 0) {
#pragma unroll 1
  for (uint32_t i = r.row0 + threadIdx.x % WARP; i < r.row1; i += WARP)
#pragma unroll 1
    for (uint32_t c = 0; c < copies; c++) make_empty(buffer + c * stride + i);
}
static __device__ __forceinline__ void empty_copies(float *buffer, RowRange r, uint32_t stride) {
  empty_rows(buffer, r, HANDOFF_COPIES, stride);
}

// What the tiles [qkv, wo] of a layer have handed on.
static __device__ __forceinline__ void empty_tiles(const Params &p, const Tile *tiles, uint32_t qkv,
                                                   uint32_t wo, uint32_t chunks) {
  const uint32_t width = p.group * p.head_dim, row = width + p.group * HEAD_STATE;
  empty_rows(p.qkv_out, range(tiles[qkv]));
  empty_copies(p.after_wo, range(tiles[wo]), p.hidden);
#pragma unroll 1
  for (uint32_t i = qkv + 1; i < wo; i++) {
    const Tile t = tiles[i];
    if (t.op == OP_MERGE && chunks > 1) empty_copies(p.merged, range(t), p.heads * p.head_dim);
    if (t.op != OP_ATTEND || t.part >= chunks) continue;
    const RowRange rows = {t.row0 * width, t.row1 * width};
    if (chunks == 1) {
      empty_copies(p.merged, rows, p.heads * p.head_dim);
      continue;
    }
    empty_rows(p.attention + (uint64_t)t.part * p.kv_heads * row, {t.row0 * row, t.row1 * row});
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
      empty_copies(p.after_down + other * HANDOFF_COPIES * p.hidden, down_before, p.hidden);
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
shuffles bring the sums together. The gains of a norm come from far away, so they are asked for a tile ahead (`take_next_gains`). And what a thread can know of its row before the sums are there, its address, its residual and its bias (`Ending`), it
works out before the warps meet, while the slowest of them still multiplies.

The norm's factor is the same for all rows of a tile. It is made from the warps' squares after the first meeting.

WHOLE is the usual case: every piece is eight rows of 2,048 columns, so that all sizes but the number of rows are constants. The general case knows blocks of other widths, the
last of them narrower, and pieces of several times eight rows. :*/
//> tape_tile
static __device__ __forceinline__ VectorSource source_of(const Params &p, const Tile &t,
                                                         const Place &at, int32_t token) {
  const uint32_t mine = blockIdx.x % HANDOFF_COPIES; // of the copies
  const float *down = p.after_down + mine * p.hidden;
  const uint32_t turn = HANDOFF_COPIES * p.hidden;
  switch (t.op) {
  case OP_QKV:
    return {
        t.layer ? down + ((at.layer + 1) & 1) * turn : nullptr, // of the layer before
        (const uint16_t *)(p.weights + p.embedding.offset + (uint64_t)token * p.embedding.stride),
        layer_vector(p, t.layer, p.attn_norm),
        halves_exchanged(p.embedding.columns, (uint32_t)token)};
  case OP_WO: return {p.merged + mine * p.heads * p.head_dim, nullptr, nullptr, false};
  case OP_GATE_UP:
    return {p.after_wo + mine * p.hidden, nullptr, layer_vector(p, t.layer, p.ffn_norm), false};
  case OP_DOWN: return {p.activations + (at.layer & 1) * p.inter, nullptr, nullptr, false};
  default: return {down + (at.layer & 1) * turn, nullptr, p.final_norm, false};
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
  const bool mine = from.gains && has_column<WHOLE>(a, b);
  const float4 g = mine ? at[0] : one, h = mine ? at[1] : one;
  gains[0] = g.x, gains[1] = g.y, gains[2] = g.z, gains[3] = g.w;
  gains[4] = h.x, gains[5] = h.y, gains[6] = h.z, gains[7] = h.w;
}

// WHOLE: the gains of the norm that comes next in the plan, long before the tile that needs them.
static __device__ __forceinline__ void take_next_gains(const Params &p, const Part &a,
                                                       const Tile &t, Place &at) {
  const bool last = t.layer + 1u == p.layers;
  const float *next = t.op == OP_WO        ? layer_vector(p, t.layer, p.ffn_norm)
                      : t.op == OP_LM_HEAD ? layer_vector(p, 0, p.attn_norm)
                      : last               ? p.final_norm
                                           : layer_vector(p, t.layer + 1, p.attn_norm);
  const float4 *from = (const float4 *)(next + lane_column(a, 0));
  spread(from[0], from[1], at.gains);
}

// What a thread that finishes a row can know before the sums are there: where the row goes, in how many copies, and what is added to it.
struct Ending {
  float *to;
  float add, add_up;
  bool copied; // HANDOFF_COPIES times, `hidden` floats apart
};
static __device__ __forceinline__ Ending ending_of(const Params &p, const TapeShared &s,
                                                   const Tile &t, const Place &at, uint32_t i) {
  const uint32_t row = t.row0 + i, copy = at.layer & 1;
  Ending e = {p.logits + row, 0, 0, t.op == OP_WO || t.op == OP_DOWN};
  if (t.op == OP_QKV) e.to = p.qkv_out + row;
  if (t.op == OP_WO) e.to = p.after_wo + row, e.add = s.own[i];
  if (t.op == OP_GATE_UP) e.to = p.activations + copy * p.inter + row;
  if (t.op == OP_DOWN) {
    e.to = p.after_down + copy * HANDOFF_COPIES * p.hidden + row;
    e.add = s.own[p.own_floats + i];
  }
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

// Where the rows of a tile come from: eight at a time, piece after piece.
template <bool WHOLE> struct Feed {
  Reader &reader;
  const Part &a;
  const unsigned char *slot;
  uint32_t in_piece; // rows of the piece that we are in, still to take

  // left: rows of the same run, at least one.
  __device__ __forceinline__ void take(uint32_t width, uint32_t chunks, uint32_t left,
                                       uint4 (&w)[CHUNKS]) {
    if (WHOLE || !in_piece) {
      slot = reader.wait();
      in_piece = min(a.rows, left);
    } else slot += 8 * width * 2;
    take_rows<WHOLE>(slot, a, width, chunks, w);
    if (WHOLE || in_piece <= 8) reader.release();
    in_piece = in_piece > 8 ? in_piece - 8 : 0;
  }
};

// False when the launch has failed. Where no logits are wanted, lm_head only reads the residual.
template <DType T, bool WHOLE>
static __device__ __forceinline__ bool
weights_tile(const Params &p, const TapeShared &s, const Tile &t, Place &at, RowRange keep,
             int32_t token, bool wanted, Reader &reader, Waiter &waiter, Candidate &best) {
  const Part a = part_of<WHOLE>(tape_matrix(p, t.op), t.row0);
  const uint32_t n = t.row1 - t.row0, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
  const uint32_t row = lane % 4 * 2 + lane / 4; // of eight, whose sum a lane below 8 has
  const bool pairs = t.op == OP_GATE_UP, qkv = t.op == OP_QKV, asked = t.op != OP_LM_HEAD || wanted;
  const VectorSource from = source_of(p, t, at, token);
  float gains[8], x[8];
  if (!WHOLE) take_gains<WHOLE>(from, a, 0, gains);
  else {
#pragma unroll
    for (int k = 0; k < 8; k++) gains[k] = from.gains ? at.gains[k] : 1;
    if (t.op == OP_WO || t.op == OP_DOWN || t.op == OP_LM_HEAD) take_next_gains(p, a, t, at);
  }
  uint32_t left = ((n + 7) / 8 << pairs) * a.blocks; // WHOLE: pieces of the tile to come
  Feed<WHOLE> feed = {reader, a, reader.ring.bytes, 0};
  uint4 w[CHUNKS];
  uint32_t width = WHOLE ? (uint32_t)TAPE_COLUMNS : width_of(a, 0), chunks = chunks_of(a, width);
  if (!WHOLE || !asked)
#pragma unroll
    for (uint32_t j = 0; j < CHUNKS; j++) w[j] = make_uint4(0, 0, 0, 0);
  if (asked) feed.take(width, chunks, n, w);
  float squares = take_vector<T, WHOLE>(from, a, keep, s.own + (qkv ? 0 : p.own_floats), x, waiter);
  if (!asked) {
    begin_turn(p, s, at, t);
    return !bar_sync_or(1, BLOCK, waiter.failed);
  }
  float *all_squares = s.squares + (at.sums & 1) * WARPS;
  uint4 *room = s.parts + warp * PARTS * PART_STRIDE;
  float factor = 1, scale = 1;
  uint32_t b = 0, i0 = 0;
#pragma unroll 1
  for (;;) { // a factor
    Factor f;
#pragma unroll
    for (int k = 0; k < 8; k++) x[k] *= gains[k];
    make_factor<T, WHOLE>(x, a.chunks, room, s.zeros, f, scale);
    if (b == 0 && i0 == 0) begin_turn(p, s, at, t);
#pragma unroll 1
    do { // rows that are finished together, of a block
      const uint32_t i1 = min(n, i0 + TAPE_SUMS), groups = (i1 - i0 + 7) / 8 << pairs;
      float *sums = s.partial + (at.sums & 1) * p.partial_floats;
      left -= groups;
      uint32_t k = 0, r0 = 0, r = 0, up = 0; // of the eight rows in work
#pragma unroll 1
      do {
        const uint32_t to =
            WHOLE ? (k >> pairs) * 8 + (k & pairs ? i1 - i0 : 0) : r + (up ? i1 - i0 : 0);
        const uint32_t end = WHOLE ? i1 - i0 - (k >> pairs) * 8 : i1 - i0 - r;
        float c[2][2][4] = {};
        multiply_rows<T, WHOLE>(w, f, a.chunks, c);
        k++;
        // The next rows are on their way to the registers while the sums of these are brought together.
        if (!WHOLE) {
          r += 8;
          if (r >= min(r0 + a.rows, i1 - i0)) { // the next piece
            if (pairs && !up) up = 1, r = r0;
            else up = 0, r0 = r;
          }
        }
        if (k < groups || (WHOLE && left)) feed.take(width, chunks, i1 - i0 - r0, w);
        float y = sum_of_parts(c);
        if (T == DT_F16) y *= scale;
        float *sum = sums + (to + row) * WARPS + warp;
        if (lane < 8 && row < end) *sum = b ? *sum + y : y;
      } while (k < groups);
      if (++b < a.blocks) break;
      const uint32_t mine = i0 + threadIdx.x;
      if (from.gains && i0 == 0) {
        squares = warp_sum(squares);
        if (lane == 0) all_squares[warp] = squares;
      }
      const bool finishes = mine < i1;
      const Ending end = ending_of(p, s, t, at, finishes ? mine : i0);
      if (finishes && t.op == OP_DOWN) wait_emptied(s, at.layer + 1);
      if (bar_sync_or(1, BLOCK, waiter.failed)) return false;
      if (from.gains && i0 == 0) factor = rsqrtf(total(all_squares) * p.qkv.per_column + p.rms_eps);
      if (finishes) {
        float y = total(sums + threadIdx.x * WARPS) * factor + end.add;
        if (pairs) {
          const float up = total(sums + (threadIdx.x + i1 - i0) * WARPS) * factor + end.add_up;
          y = __fdividef(y, 1.0f + __expf(-y)) * up;
        }
        if (t.op == OP_LM_HEAD) {
          store_l2(end.to, y);
          best = better(best, candidate(y, (int32_t)(t.row0 + mine)));
        } else if (end.copied) hand_on_copies(end.to, p.hidden, y);
        else hand_on(end.to, y);
      }
      at.sums++;
      b = 0;
      i0 = i1;
      if (!WHOLE && i0 < n && a.blocks == 1) feed.take(width, chunks, n - i0, w);
    } while (i0 < n && a.blocks == 1);
    if (i0 >= n) return true;
    again<T, WHOLE>(from, a, b, x);
    take_gains<WHOLE>(from, a, b, gains);
    if (WHOLE) continue;
    const uint32_t before = chunks;
    width = width_of(a, b), chunks = chunks_of(a, width);
#pragma unroll
    for (uint32_t j = 0; j < CHUNKS; j++)
      if (before & ~chunks & 1u << j) w[j] = make_uint4(0, 0, 0, 0);
    feed.take(width, chunks, min(n - i0, (uint32_t)TAPE_SUMS), w);
  }
}
//< tape_tile

/*: ## Attention

Keys and values of earlier positions come through the ring, two slots at a time; the newest ones never leave the block. Both multiplications of attention run on the tensor cores, and take keys and
values as they lie in the ring. A warp has up to four query heads and 32 positions at a time.

*Queries.* They are needed by all warps and made by one each: a warp waits for a head, turns it, splits it, and leaves the parts in shared memory. If all warps asked for all heads, the questions of sixteen workers times eight warps would meet at a few
lines of L2.

*Scores.* The queries are FP32, so they come in three parts: row 4 part + head of the first factor is a part of a head. Positions are the columns of the second, eight a multiplication, and a lane's 16 bytes of a key
are its registers, as with weights. Here twelve rows have work, so each of a chunk's two multiplications has a fragment of its own. Four times eight positions are eight chains of multiplications that do not wait for each other; no branch may stand between them. Parts added up, lane 4 g + t has four scores of head g % 4.

*Weights.* The largest score is sought among the four lanes that share a head, and what was summed before is brought to the new scale: each warp keeps maximum, sum and output for its own positions.

*Values.* The weights are split in three parts again, in the same rows; a weight is at most one, so that FP16 needs no scale here. But now the sum runs over positions, and positions
are the rows of V, where the tensor cores want columns: `load_transposed` turns the values over on their way to the registers. The sums stay apart by parts until the end.

A K/V head with more than four query heads, up to eight, is shared by two sets of four warps, each with four heads; both go through all positions. Where positions end before the 32nd,
the last one stands in for those that are missing, with weight zero: whatever else lies in the slot could be a NaN, and zero times NaN is one.

A chunk that is the only one divides for itself. Several hand on
what they have, and merge tiles, a few elements each, bring them to one scale: a hand-off more, but the Wo tiles read one vector instead of
one for each chunk. :*/
//> tape_attend
enum { ROUND = 32 }; // positions that a warp takes together

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

// Chunk of 16 bytes j of a K or V row lies at this place of its row (`tape.cuh`).
static __device__ __forceinline__ uint32_t chunk_at(uint32_t j, uint32_t position,
                                                    uint32_t vectors) {
  return vectors % 8 ? j : j ^ twist_of(position);
}

// A warp a head: waits for it, norms it where the family says so, turns it, and leaves its parts in shared memory. Where the newest position is the tile's, two
// more warps take its key, which is treated alike, and its value as it is. These are kept as the cache has them, and written there.
template <DType T, bool EXACT, int D>
static __device__ __forceinline__ void make_heads(const Params &p, const Tile &tile, uint32_t kv,
                                                  uint32_t position, bool newest,
                                                  const TapeAttention &s, Waiter &waiter) {
  enum { PAIRS = (D + 2 * WARP - 1) / (2 * WARP) };
  const uint32_t lane = threadIdx.x % WARP, size = EXACT ? (uint32_t)D : p.head_dim;
  const uint32_t half = size / 2, vectors = size / 8;
#pragma unroll 1
  for (uint32_t h = threadIdx.x / WARP; h < p.group + 2 * newest; h += WARPS) {
    const bool query = h < p.group, value = h == p.group + 1;
    const uint32_t row = query ? kv * p.group + h : p.heads + kv + (value ? p.kv_heads : 0);
    const float *in = p.qkv_out + row * size;
    float v[2 * PAIRS];
    waiter.take(
        v, [&](int i) { return in + i / 2 * WARP + lane + (i % 2 ? half : 0); },
        [&](int i) { return i / 2 * WARP + lane < half; });
    float scale = query ? p.score_scale : 1, most = 0;
    const float *norm = nullptr;
    if (!EXACT && p.qk_norm && !value) {
      float squares = 0;
#pragma unroll
      for (int i = 0; i < 2 * PAIRS; i++) squares = fmaf(v[i], v[i], squares);
      scale *= 1.0f / sqrtf(warp_sum(squares) / (float)size + p.rms_eps);
      norm = layer_vector(p, tile.layer, query ? p.q_norm : p.k_norm);
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      const uint32_t d = i * WARP + lane;
      if (value || (!EXACT && d >= half)) continue;
      const float2 r = s.rotation[d];
      const float a = norm ? v[2 * i] * norm[d] : v[2 * i];
      const float b = norm ? v[2 * i + 1] * norm[d + half] : v[2 * i + 1];
      v[2 * i] = (a * r.x - b * r.y) * scale;
      v[2 * i + 1] = (b * r.x + a * r.y) * scale;
    }
    if (T == DT_F16 && query) {
#pragma unroll
      for (int i = 0; i < 2 * PAIRS; i++) most = fmaxf(most, fabsf(v[i]));
      most = warp_max(most);
      scale = most > 0 && most < 1e30f ? exp2f(floorf(log2f(most)) - 13) : 1;
      if (lane == 0) s.scale[h] = scale;
    }
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      const uint32_t d = i * WARP + lane;
      if (!EXACT && d >= half) continue;
      float x = v[2 * i], y = v[2 * i + 1];
      if (query) {
        if (T == DT_F16) x /= scale, y /= scale;
#pragma unroll
        for (int k = 0; k < PARTS; k++) {
          const uint32_t pair = narrow2<T>(x, y);
          uint16_t *to = (uint16_t *)s.parts + (k * TAPE_GROUP + h) * (size + HEAD_GAP) + d;
          to[0] = (uint16_t)pair, to[half] = (uint16_t)(pair >> 16);
          float taken[2];
          widen2<T>(pair, taken);
          x -= taken[0];
          y -= taken[1];
        }
        continue;
      }
      const uint32_t pair = narrow2<T>(x, y);
      uint16_t *fresh = (uint16_t *)s.fresh + (value ? size : 0);
      uint16_t *cache = (value ? p.values : p.keys) + cache_row(p, tile.layer, kv, position);
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const uint32_t e = d + k * half;
        const uint16_t u = (uint16_t)(pair >> 16 * k);
        fresh[e] = u;
        cache[chunk_at(e / 8, position, vectors) * 8 + e % 8] = u;
      }
    }
  }
  sync_block();
}

// The queries of a warp's heads as the first factor: row 4 * part + head is a part of a head. a: [chunks of 32 elements][two multiplications]. Returns what scores are to be multiplied by.
template <DType T, bool EXACT, int D>
static __device__ __forceinline__ float take_heads(const Params &p, const TapeAttention &s,
                                                   uint32_t h0, uint4 (&a)[D / CHUNK][2]) {
  const uint32_t lane = threadIdx.x % WARP, t = lane % 4, size = EXACT ? (uint32_t)D : p.head_dim;
  const uint32_t head = min(h0 + lane / 4 % TAPE_HEADS, p.group - 1),
                 stride = (size + HEAD_GAP) / 8;
  const uint4 *first = s.parts + (lane / 16 * TAPE_GROUP + head) * stride + t,
              *third = s.parts + (2 * TAPE_GROUP + head) * stride + t;
  const uint4 none = make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int c = 0; c < D / CHUNK; c++) {
    const bool there = EXACT || c * 4 + t < size / 8;
    const uint4 u = there ? first[c * 4] : none, v = there && lane < 16 ? third[c * 4] : none;
    a[c][0] = make_uint4(u.x, v.x, u.y, v.y);
    a[c][1] = make_uint4(u.z, v.z, u.w, v.w);
  }
  return T == DT_F16 ? s.scale[head] : 1;
}

// Two positions' weights as parts: rows g and g + 8 of a factor, of which parts 0 and 1 are the upper eight, part 2 the next four, and the last four zeros.
template <DType T> static __device__ __forceinline__ uint2 weight_parts(float x, float y) {
  uint32_t parts[PARTS];
#pragma unroll
  for (int i = 0; i < PARTS; i++) {
    parts[i] = narrow2<T>(x, y);
    float taken[2];
    widen2<T>(parts[i], taken);
    x -= taken[0];
    y -= taken[1];
  }
  const bool first = threadIdx.x % WARP < 16;
  return make_uint2(first ? parts[0] : parts[1], first ? parts[2] : 0);
}

// All n positions of a block, from position b0 on; 32 a warp at a time. newest: counted from b0; keys and values: [n, head_dim], without it.
template <DType T, bool EXACT, int D>
static __device__ __forceinline__ void
attend_block(const Params &p, const uint4 (&a)[D / CHUNK][2], float scale, const Share &share,
             uint32_t b0, uint32_t n, uint32_t newest, const uint4 *keys, const uint4 *values,
             const uint4 *fresh, Attended<D> &st) {
  const uint32_t vectors = EXACT ? D / 8 : p.head_dim / 8, lane = threadIdx.x % WARP, g = lane / 4,
                 t = lane % 4;
#pragma unroll 1
  for (uint32_t i0 = share.part * ROUND; i0 < n; i0 += share.warps * ROUND) {
    float s[ROUND / 8][2];
#pragma unroll
    for (int b = 0; b < ROUND / 8; b++) {
      const uint32_t i = min(i0 + b * 8 + g, n - 1);
      const bool is_new = i == newest;
      const uint4 *row = is_new ? fresh : keys + i * vectors;
      const uint32_t twist = is_new || (!EXACT && vectors % 8) ? 0 : twist_of(b0 + i);
      float c[2][4] = {};
#pragma unroll
      for (int k = 0; k < D / CHUNK; k++) {
        const uint4 x =
            EXACT || k * 4 + t < vectors ? row[(k * 4 + t) ^ twist] : make_uint4(0, 0, 0, 0);
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
    for (int b = 0; b < ROUND / 8; b++)
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
    float sum = 0;
#pragma unroll
    for (int b = 0; b < ROUND / 8; b++) {
#pragma unroll
      for (int e = 0; e < 2; e++) s[b][e] = __expf(s[b][e] - origin(most));
      sum += s[b][0] + s[b][1];
    }
    st.sum = fmaf(st.sum, before, sum);
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
      for (int e = 0; e < 4; e++) st.out[d][e] *= before;
#pragma unroll
    for (int b = 0; b < ROUND / 8; b += 2) {
      const uint2 u = weight_parts<T>(s[b][0], s[b][1]),
                  v = weight_parts<T>(s[b + 1][0], s[b + 1][1]);
      const uint4 weights = make_uint4(u.x, u.y, v.x, v.y);
      // This lane's row of the four matrices that are turned over together: positions 0 to 7 and 8 to 15, of eight elements and the next eight.
      const uint32_t i = min(i0 + b * 8 + lane % 16, n - 1);
      const bool is_new = i == newest;
      const uint4 *row = is_new ? fresh + vectors : values + i * vectors;
      const uint32_t twist = is_new || (!EXACT && vectors % 8) ? 0 : twist_of(b0 + i);
#pragma unroll
      for (uint32_t d = 0; d < D / 16; d++) {
        if (!EXACT && d * 16 >= p.head_dim) break;
        uint32_t x[4];
        load_transposed(
            x, row + ((EXACT ? d * 2 + lane / 16 : min(d * 2 + lane / 16, vectors - 1)) ^ twist));
        multiply_add<T>(st.out[d * 2], weights, x[0], x[1]);
        multiply_add<T>(st.out[d * 2 + 1], weights, x[2], x[3]);
      }
    }
  }
}

// The parts, then the warps. rows: of the chunk's longest block. finish(head, element, total, largest score, summed weights).
template <bool EXACT, int D, class Finish>
static __device__ __forceinline__ void merge_warps(const Params &p, const Share &share,
                                                   uint32_t rows, const Attended<D> &st,
                                                   const TapeAttention &s, Finish finish) {
  const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
  const uint32_t size = EXACT ? (uint32_t)D : p.head_dim, stride = size + SUMS_GAP;
  const uint32_t active = min(share.warps, (rows + ROUND - 1) / ROUND); // the others have nothing
  if (share.part < active) {
    float sum = st.sum;
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    float *to = s.sums + (warp * TAPE_HEADS + g) * stride + t * 2;
#pragma unroll
    for (uint32_t d = 0; d < D / 8; d++) {
      if (!EXACT && d * 8 >= size) break;
      float x = st.out[d][0] + st.out[d][2], y = st.out[d][1] + st.out[d][3];
      x += __shfl_xor_sync(0xffffffffu, x, 16);
      y += __shfl_xor_sync(0xffffffffu, y, 16);
      if (lane < 16) *(float2 *)(to + d * 8) = make_float2(x, y);
    }
    if (lane < 16 && t == 0) s.state[warp * TAPE_HEADS + g] = make_float2(st.max, sum);
  }
  sync_block();
#pragma unroll 1
  for (uint32_t e = threadIdx.x; e < p.group * size; e += BLOCK) {
    const uint32_t head = e / size, d = e - head * size;
    const uint32_t first = head / TAPE_HEADS * share.warps * TAPE_HEADS + head % TAPE_HEADS;
    float2 state[WARPS];
    float v[WARPS], most = -INFINITY, total = 0, weights = 0;
#pragma unroll
    for (uint32_t w = 0; w < WARPS; w++) {
      state[w] = make_float2(-INFINITY, 0);
      v[w] = 0;
      if (w < active) {
        state[w] = s.state[first + w * TAPE_HEADS];
        v[w] = s.sums[(first + w * TAPE_HEADS) * stride + d];
      }
      if (!(state[w].x <= most)) most = state[w].x;
    }
#pragma unroll
    for (uint32_t w = 0; w < WARPS; w++) {
      const float scale = __expf(state[w].x - origin(most));
      total = fmaf(v[w], scale, total);
      weights = fmaf(state[w].y, scale, weights);
    }
    finish(head, d, total, most, weights);
  }
}

template <DType T, bool EXACT, int D>
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
    Attended<D> st;
    st.max = -INFINITY, st.sum = 0;
#pragma unroll
    for (int d = 0; d < D / 8; d++)
#pragma unroll
      for (int e = 0; e < 4; e++) st.out[d][e] = 0;
    uint4 a[D / CHUNK][2];
    // The first block's rows are there long before the heads.
    if (earlier_rows(p0, min(p1 - p0, block), newest)) {
      Reader second = reader;
      reader.wait();
      second.advance();
      second.wait();
    }
    make_heads<T, EXACT, D>(p, t, kv, newest, newest < p1, s.attention, waiter);
    const float scale = take_heads<T, EXACT, D>(p, s.attention, share.h0, a);
    if (kv == t.row0) begin_turn(p, s, at, t);
    const uint4 *fresh = s.attention.fresh;
#pragma unroll 1
    for (uint32_t b0 = p0; b0 < p1; b0 += block) {
      const uint32_t n = min(p1 - b0, block);
      const bool some = earlier_rows(b0, n, newest) > 0;
      const uint4 *keys = (const uint4 *)reader.ring.bytes, *values = keys;
      if (some) {
        Reader second = reader;
        second.advance();
        keys = (const uint4 *)(b0 == p0 ? reader.bytes() : reader.wait());
        values = (const uint4 *)(b0 == p0 ? second.bytes() : second.wait());
      }
      attend_block<T, EXACT, D>(p, a, scale, share, b0, n, newest - b0, keys, values, fresh, st);
      if (!some) continue;
      reader.release();
      reader.release();
    }
    const uint64_t head0 = (uint64_t)t.part * p.heads + kv * p.group;
    merge_warps<EXACT, D>(p, share, min(p1 - p0, block), st, s.attention,
                          [&](uint32_t h, uint32_t d, float total, float most, float weights) {
                            const uint32_t size = EXACT ? (uint32_t)D : p.head_dim;
                            if (at.chunks == 1) {
                              hand_on_copies(p.merged + (kv * p.group + h) * size + d,
                                             p.heads * size, __fdividef(total, weights));
                              return;
                            }
                            float *to = p.attention + (head0 + h) * (size + HEAD_STATE);
                            hand_on(to + d, total);
                            if (d < HEAD_STATE) hand_on(to + size + d, d % 2 ? weights : most);
                          });
    sync_block(); // before the room is used again
  }
}

// Sixteen lanes have four elements, and a chunk each at a time.
static __device__ __forceinline__ void merge_tile(const Params &p, const TapeShared &s,
                                                  const Tile &t, const Place &at, Waiter &waiter) {
  enum { LANES = 16 };
  begin_turn(p, s, at, t);
  if (at.chunks == 1) return;
#pragma unroll 1
  for (uint32_t e0 = t.row0; e0 < t.row1; e0 += BLOCK / LANES * 4) {
    const uint32_t e = e0 + threadIdx.x / LANES * 4;
    if (e0 + threadIdx.x / WARP * 8 >= t.row1) return; // none of the warp's
    const uint32_t head = min(e, t.row1 - 4) / p.head_dim,
                   d = min(e, t.row1 - 4) - head * p.head_dim;
    const uint32_t row = p.head_dim + HEAD_STATE;
    float most = -INFINITY, weights = 0, sum[4] = {};
#pragma unroll 1
    for (uint32_t c0 = 0; c0 < at.chunks; c0 += LANES) {
      const uint32_t c = c0 + threadIdx.x % LANES;
      const bool mine = c < at.chunks;
      const float *from = p.attention + (c * p.heads + head) * row;
      float4 v[2];
      waiter.take(
          v, [&](int i) { return (const float4 *)(from + (i ? p.head_dim : d)); },
          [&](int) { return mine; });
      if (!mine) continue;
      const float before = most;
      if (!(v[1].x <= most)) most = v[1].x;
      const float scale = __expf(v[1].x - origin(most)), old = __expf(before - origin(most));
      weights = fmaf(weights, old, v[1].y * scale);
      sum[0] = fmaf(sum[0], old, v[0].x * scale);
      sum[1] = fmaf(sum[1], old, v[0].y * scale);
      sum[2] = fmaf(sum[2], old, v[0].z * scale);
      sum[3] = fmaf(sum[3], old, v[0].w * scale);
    }
    float largest = most;
#pragma unroll
    for (int o = LANES / 2; o; o /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, largest, o);
      if (!(other <= largest)) largest = other;
    }
    const float scale = __expf(most - origin(largest));
    weights *= scale;
#pragma unroll
    for (int k = 0; k < 4; k++) sum[k] *= scale;
#pragma unroll
    for (int o = LANES / 2; o; o /= 2) {
      weights += __shfl_xor_sync(0xffffffffu, weights, o);
#pragma unroll
      for (int k = 0; k < 4; k++) sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], o);
    }
    const uint32_t k = threadIdx.x % LANES;
    const float y = k == 0 ? sum[0] : k == 1 ? sum[1] : k == 2 ? sum[2] : sum[3];
    if (k < 4 && e < t.row1)
      hand_on_copies(p.merged + e + k, p.heads * p.head_dim, __fdividef(y, weights));
  }
}
//< tape_attend

/*: ## The loop

The warp that fetches and the warps that compute walk the same tiles and meet only in the ring. After lm_head every worker reads all candidates and reaches the same
token, as with barriers.

**Contract.** A cooperative launch of `workers` blocks of TAPE_BLOCK threads, with the dynamic shared memory that `tape_shared_bytes` in `gpu.cu` counts, all blocks resident together. Each
byte of the hand-off buffers (`qkv_out`, `attention`, `merged`, `after_wo`, `after_down`, `activations`, `candidates`) is 0xff, so that all of them are empty. `status` is zero.
`prompt` holds `prompt_tokens` ids, at least one; positions `position` to `position + steps - 1` lie within the cache, and all before `position` have been written by earlier launches. Every second row of
each matrix has its halves exchanged (`tape.cuh`), and rows of the K/V cache are twisted. The plan is one that `validate.c` passes for hand-offs of data.

A kernel for each type T, and of each three: WHOLE only where every piece is eight rows of 2,048 columns, heads are of 64 and have no norm; D, the head size that registers are for, 64 or
128, is no smaller than the model's. With large heads all rows take the general way. :*/
//> tape_loop
// Twice a token: a function, not twice its text.
static __device__ __noinline__ Candidate best_of_block(Candidate c, Candidate *room) {
  return block_best(c, room);
}

static __device__ __forceinline__ int32_t take_candidates(const Params &p, const TapeShared &s,
                                                          uint32_t copy, Waiter &waiter) {
  Candidate best = no_candidate();
  for (uint32_t i = threadIdx.x; i < p.slots; i += BLOCK) {
    uint64_t v[1];
    waiter.take(
        v, [&](int) { return p.candidates + copy * p.slots + i; }, always);
    best = better(best, {__uint_as_float((uint32_t)v[0]), (int32_t)(v[0] >> 32)});
  }
  return best_of_block(best, s.candidate).id;
}

// The turns of a token's RoPE. They are loaded during the lm_head of the token before, where nobody waits for them.
static __device__ __forceinline__ void take_rotation(const Params &p, const TapeShared &s,
                                                     uint32_t position) {
  const float2 *turn = p.rotation + (uint64_t)position * (p.head_dim / 2);
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < p.head_dim / 2; i += BLOCK) s.attention.rotation[i] = turn[i];
}

// Decides for the block. False: leave.
template <DType T, bool WHOLE, int D>
static __device__ __forceinline__ bool play_token(const Params &p, const TapeShared &s,
                                                  uint32_t tiles, Place &at, int32_t &token,
                                                  bool wanted, Reader &reader) {
  Candidate best;
  Waiter waiter = {p, at.step, 0, false};
#pragma unroll 1
  for (at.tile = 0; at.tile < tiles; at.tile++) {
    const Tile t = s.tiles[at.tile];
    waiter.wave = t.wave;
    if (t.op == OP_ATTEND) attend_tile<T, WHOLE, D>(p, s, t, at, reader, waiter);
    else if (t.op == OP_MERGE) merge_tile(p, s, t, at, waiter);
    else {
      RowRange keep = {0, 0};
      if (t.op == OP_QKV) keep = range(s.tiles[t.part]);
      if (t.op == OP_GATE_UP) keep = range(s.tiles[at.tile + 1]);
      if (t.op == OP_LM_HEAD) {
        at.layer--; // the last that was begun, not one more
        best = no_candidate();
        if (at.step + 1 < p.steps) take_rotation(p, s, p.position + at.step + 1);
      }
      if (!weights_tile<T, WHOLE>(p, s, t, at, keep, token, wanted, reader, waiter, best))
        return false;
      if (t.op == OP_LM_HEAD || t.op == OP_DOWN) at.layer++;
    }
    stamp(p, at, t.wave, 1);
  }
  if (!wanted) return true;
  const Tile head = s.tiles[tiles - 1];
  best = best_of_block(best, s.candidate);
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
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < tiles; i += TAPE_BLOCK) s.tiles[i] = p.tile[first + i];
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (uint32_t i = 0; i < p.ring_slots; i++) {
      mbarrier_init(s.ring.full + i, TAPE_FULL_ARRIVALS);
      mbarrier_init(s.ring.empty + i, BLOCK);
    }
    for (int i = 0; i < WARP; i++) s.zeros[i] = make_uint4(0, 0, 0, 0);
    *s.ring.progress = *s.ring.leave = *s.ring.emptied = 0;
    mbarrier_init_fence();
  }
  __syncthreads();
  // A qkv tile's part says where the wo tile of its layer is.
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < tiles; i += TAPE_BLOCK) {
    if (s.tiles[i].op != OP_QKV) continue;
    uint32_t wo = i + 1;
#pragma unroll 1
    while (s.tiles[wo].op != OP_WO) wo++;
    s.tiles[i].part = wo;
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
  take_rotation(p, s, p.position);
  if (WHOLE) {
    Tile before = {};
    before.op = OP_LM_HEAD;
    take_next_gains(p, part_of<WHOLE>(p.qkv, 0), before, at);
  }
  for (at.step = 0; at.step < p.steps; at.step++) {
    at.chunks = chunks_in_use(p, p.position + at.step);
    at.traced = p.trace && at.step == p.trace_step;
    const bool wanted = at.step >= p.first_logits;
    if (at.step < p.prompt_tokens) token = p.prompt[at.step];
    if (!play_token<T, WHOLE, D>(p, s, tiles, at, token, wanted, reader)) break;
    stamp(p, at, p.waves, 0);
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
