/*: # The tape

A worker's weights depend on nothing, and their order is known before the launch. So one warp of each block does nothing but fetch: it walks the
worker's tiles, cuts each into pieces and copies piece after piece into the slots of a ring in shared memory. It needs no result of any other worker, so it
runs ahead of the eight warps that compute, across waves and across tokens, as far as the ring reaches. While they wait for a hand-off, the
memory stays busy.

**Slots.** Each has two barriers of the shared-memory kind. *Full* is completed by the copied bytes themselves; *empty* by all lanes of the eight warps, each of
which arrives for itself when it has read its part of the piece. A slot always belongs to all eight warps in turn, and each waits for the pieces in order, so
one bit, the parity of the lap, tells this lap from the last.

**Urgent and speculative.** Once all warps have a tile's vector, its pieces are copied as soon as their slot is free. Until then, and for all later tiles, they are speculation: with all of them
on the way at once, the small reads of a hand-off would queue behind them. So they are paced, in two ways. No more than `PIECES_AHEAD` are on the way at a time: each waits until the
piece so many places before it has landed. And none is asked for earlier than `pace_ns` after the one before it, which is the time that the whole card's memory takes for a slot of every worker. Faster than that the memory cannot be;
whoever asks faster only makes a queue, and a queue is what the hand-offs would stand in.

**Read once.** All weights pass through L2 on their way, and a token's weights are many times as large as L2. Left alone they would push everything else out: the hand-offs' values, the norms' gains, the kernel's own
code. The copies say so (*evict first*): what they bring is the first to go.

**Exchanged halves.** Shared memory has 32 banks of four bytes, and a 16-byte load is served a quarter of a warp at a time: eight lanes, 128 bytes, each bank once. In the deal that the
tensor cores want, those eight lanes read 64 bytes of a row and the same 64 bytes of the row below it. Rows lie a multiple of 128 bytes apart, so both would fall into the
same 16 banks, and every load of weights would take two turns instead of one. So in every second row of a matrix the two halves of each 128 bytes change places. That is done once, when the
weights are uploaded (`upload_rows` in `gpu.cu`); whoever reads a row knows from its number where to look, and that includes the embedding's rows, since the embedding is often lm_head
itself. Rows that are no multiple of 128 bytes stay as they are.

Rows of keys and values are read in two ways, and get a twist that serves both: in the row of position p, 16-byte chunk j of each 128 bytes lies in the place of chunk j XOR `twist_of(p)`. Keys are read like weights, 64 bytes of
neighbouring rows: the lowest bit of the position decides which half comes first. Values are read a column at a time, the same chunk of eight rows (`load_transposed`): of eight
neighbours no two have the same twist, so these come from different banks too. The warp that writes a row writes it so.

**Keys and values.** An attend tile's earlier positions are pieces too, keys and values by turns. The newest row that they contain was written during the token
before, with ordinary stores, by the computing warps of some block. Who must see what: those stores must be there for the *copy engine* of each block that copies the row. Three steps bring them
there. The block that wrote fences before it hands on its rows of that layer's residual (`handoff.cuh`). This block's warps, once they begin lm_head, have read the whole of a later residual, and
release that to the fetching warp, which acquires it. And the fetching warp's two fences put its copies behind that moment: `fence_gpu` for the whole card and not only for the block,
`fence_async_proxy` because a copy does not take the path of ordinary loads. Once a token is enough. A launch's first token needs none of it: the launch before has ended.

What a piece holds follows from the tile and the position alone. Both sides compute it with the functions below. :*/
#ifndef TAPE_CUH
#define TAPE_CUH
#include "device.cuh"
#include "attention.cuh"

//> tape_ring
// Rows of a tape lie in memory with a little twist: in every second row the halves of each 128 bytes have changed places. A warp reads 64 bytes of
// eight rows at once, and rows are a multiple of 128 bytes long; so neighbours come from different banks.
enum { EXCHANGED = 64 }; // two-byte columns

// Keys and values, where a row is a multiple of 128 bytes.
__device__ __forceinline__ uint32_t twist_of(uint32_t position) {
  return (position & 1) << 2 | (position >> 1 & 3);
}

__host__ __device__ __forceinline__ bool halves_exchanged(uint32_t columns, uint32_t row) {
  return columns % EXCHANGED == 0 && row % 2;
}

// The warps that compute, and four more, of which one fetches and one empties: registers are passed on by four warps together.
enum { TAPE_BLOCK = BLOCK + 4 * WARP };
enum { SLOTS_MOST = 8 };
enum { PIECES_AHEAD = 2 }; // speculative pieces that are on the way together, at most

struct Ring {
  unsigned char *bytes;   // [ring_slots, slot_bytes]
  uint64_t *full, *empty; // [SLOTS_MOST]
  uint32_t *progress;     // of this block: warps that have begun a turn, all turns together
  uint32_t *emptied;      // layers of this launch whose values this block has made empty again
  uint32_t *leave;        // 1: stop fetching and go
};

struct Lap { // a place on the ring
  uint32_t slot, parity;

  __device__ __forceinline__ void advance(uint32_t slots) {
    if (++slot < slots) return;
    slot = 0;
    parity ^= 1;
  }
};
//< tape_ring

//> tape_pieces
__host__ __device__ __forceinline__ const DeviceMatrix &tape_matrix(const Params &p, uint32_t op) {
  return op == OP_QKV       ? p.qkv
         : op == OP_WO      ? p.o
         : op == OP_GATE_UP ? p.gate
         : op == OP_DOWN    ? p.down
                            : p.lm_head;
}

// Rows of keys, and of values, that fit a slot.
__device__ __forceinline__ uint32_t rows_of_slot(const Params &p) {
  return p.slot_bytes / (2 * p.head_dim);
}
// Of block [b0, b0 + n), the rows that come through the ring: all but the newest.
__device__ __forceinline__ uint32_t earlier_rows(uint32_t b0, uint32_t n, uint32_t newest) {
  return min(b0 + n, newest) - b0;
}
//< tape_pieces

//> tape_producer
struct Producer {
  const Params &p;
  const Ring &ring;
  Lap at, paced; // paced: PIECES_AHEAD before, which a speculative piece waits for
  uint32_t issued;
  unsigned long long due; // when the next speculative piece may be asked for
  bool left;

  __device__ __forceinline__ bool leaves() {
    left = left || load_shared_acquire(ring.leave);
    return left;
  }

  // Waits until a piece of `turn` may be copied into the next slot.
  __device__ __forceinline__ bool begin(uint32_t turn, uint32_t bytes) {
    while (!mbarrier_test(ring.empty + at.slot, at.parity ^ 1))
      if (leaves()) return false;
    if (issued >= (uint32_t)PIECES_AHEAD) {
      while (load_shared_acquire(ring.progress) < turn * WARPS &&
             !(global_nanoseconds() >= due && mbarrier_test(ring.full + paced.slot, paced.parity)))
        if (leaves()) return false;
      paced.advance(p.ring_slots);
    }
    due = global_nanoseconds() + p.pace_ns;
    tape_begin(ring.full + at.slot, bytes);
    return true;
  }

  // n rows, `stride` bytes apart in memory, side by side into the next slot.
  __device__ __forceinline__ bool copy(uint32_t turn, const uint8_t *from, uint32_t n,
                                       uint32_t bytes, uint32_t stride) {
    if (bytes == stride) bytes *= n, n = 1;
    if (!begin(turn, n * bytes)) return false;
    tape_copy_rows(ring.bytes + at.slot * p.slot_bytes, from, n, bytes, stride,
                   ring.full + at.slot);
    tape_end(ring.full + at.slot);
    at.advance(p.ring_slots);
    issued++;
    return true;
  }

  // In the order of `weights_tile`: as many rows as are finished together, block by block, gate and up by turns.
  __device__ __forceinline__ void matrix(uint32_t turn, const Tile &t) {
    const DeviceMatrix &m = tape_matrix(p, t.op);
    const uint64_t base = t.layer * p.layer_bytes + (uint64_t)t.row0 * m.stride;
    const bool pairs = t.op == OP_GATE_UP;
    const uint64_t up = p.up.offset - p.gate.offset;
    const uint8_t *first = p.weights + m.offset + base;
    const uint32_t n = t.row1 - t.row0;
#pragma unroll 1
    for (uint32_t i0 = 0; i0 < n; i0 += TAPE_SUMS)
#pragma unroll 1
      for (uint32_t b = 0; b < m.tape_blocks; b++) {
        const uint32_t i1 = min(n, i0 + TAPE_SUMS), column = b * m.tape_columns;
        const uint32_t bytes = min(m.tape_columns, m.columns - column) * 2;
        bool second = false; // up's turn
#pragma unroll 1
        for (uint32_t r = i0; r < i1;) {
          const uint64_t off = (uint64_t)r * m.stride + column * 2 + (second ? up : 0);
          if (!copy(turn, first + off, min(m.tape_rows, i1 - r), bytes, m.stride)) return;
          second = pairs && !second;
          if (!second) r += m.tape_rows;
        }
      }
  }

  __device__ __forceinline__ void cache(uint32_t turn, const Tile &t, uint32_t newest, uint32_t p0,
                                        uint32_t p1) {
    const uint32_t block = rows_of_slot(p);
#pragma unroll 1
    for (uint32_t kv = t.row0; kv < t.row1; kv++)
#pragma unroll 1
      for (uint32_t b0 = p0, values = 0; b0 < p1;) {
        const uint32_t bytes = earlier_rows(b0, min(p1 - b0, block), newest) * p.head_dim * 2;
        const uint64_t row = cache_row(p, t.layer, kv, b0);
        if (bytes &&
            !copy(turn, (const uint8_t *)((values ? p.values : p.keys) + row), 1, bytes, 0))
          return;
        values ^= 1;
        if (!values) b0 += block;
      }
  }

  // Nothing may be on its way into a block's shared memory when the block ends.
  __device__ __forceinline__ void drain() {
#pragma unroll 1
    for (uint32_t i = 0; i < p.ring_slots && i < issued; i++) {
      at.slot = at.slot ? at.slot - 1 : p.ring_slots - 1;
      if (at.slot == p.ring_slots - 1) at.parity ^= 1;
      while (!mbarrier_test(ring.full + at.slot, at.parity))
        ;
    }
  }
};

// The fetching warp's whole life: all tiles of all tokens.
__device__ __forceinline__ void fetch_tape(const Params &p, const Ring &ring, const Tile *tiles,
                                           uint32_t count) {
  Producer f = {p, ring, {0, 0}, {0, 0}, 0, 0, false};
  uint32_t turn = 0;
  uint32_t cache_turn = 0; // once begun, the token before has written its keys and values
#pragma unroll 1
  for (uint32_t step = 0; step < p.steps && !f.left; step++) {
    const uint32_t position = p.position + step, chunks = chunks_in_use(p, position);
    bool fenced = step == 0;
#pragma unroll 1
    for (uint32_t i = 0; i < count && !f.left; i++) {
      const Tile t = tiles[i];
      turn++;
      if (t.op == OP_MERGE) continue;
      if (t.op == OP_LM_HEAD && step < p.first_logits) continue;
      if (t.op != OP_ATTEND) {
        f.matrix(turn, t);
        continue;
      }
      if (t.part >= chunks) continue;
      while (!fenced && !f.leaves())
        if (load_shared_acquire(ring.progress) >= cache_turn * WARPS) {
          fence_gpu();
          fence_async_proxy();
          fenced = true;
        }
      uint32_t p0, p1;
      chunk_range(position + 1, t.part, chunks, &p0, &p1);
      if (!f.left) f.cache(turn, t, position, p0, p1);
    }
    cache_turn = turn; // lm_head's, the token's last
  }
  if (f.left) f.drain();
}
//< tape_producer

/*: ## What the computing warps see

Each lane gives a slot back for itself. One lane a warp, after a `__syncwarp`, would be as right and takes as long. But racecheck follows an mbarrier's arrivals lane by lane: it does not see
that a `__syncwarp` has put the other lanes' reads before that one arrival, and reports the next copy into the slot as a hazard. :*/
//> tape_reader
struct Reader {
  const Params &p;
  const Ring &ring;
  Lap at;

  __device__ __forceinline__ const unsigned char *wait() const {
    while (!mbarrier_test(ring.full + at.slot, at.parity))
      ;
    return ring.bytes + at.slot * p.slot_bytes;
  }
  __device__ __forceinline__ const unsigned char *bytes() const {
    return ring.bytes + at.slot * p.slot_bytes;
  }
  __device__ __forceinline__ void advance() { at.advance(p.ring_slots); }
  // This lane has what it needs of the piece.
  __device__ __forceinline__ void release() {
    mbarrier_arrive(ring.empty + at.slot);
    advance();
  }
};
//< tape_reader
#endif
