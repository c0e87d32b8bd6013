/*: # Deciding once

A token of a decoder is a list of matrix-vector products with nothing to decide in it: the same
rows, in the same order, for every token. So we decide once. The planner cuts every step into tiles,
gives each tile to a worker, and writes down where all workers must wait for each other. At run time
a worker reads its own list from the top to the bottom, and no code anywhere asks what to do next.

What makes a plan good follows from one fact: a token takes the time in which its bytes can be read.
Workers share the memory's bandwidth, and a barrier releases nobody before the last one arrives, so
between two barriers every worker should read the same number of **bytes**. Rows of one matrix are
all equally long; to balance bytes, we balance rows. :*/
//> plan_head
#include "tiles.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
//< plan_head

//> op_name
const char *op_name(int op) {
  static const char *const name[OP_COUNT] = {
      "embed",      "qkv",     "scores", "values",     "attend",  "wo",   "ffn",
      "ffn_reduce", "gate_up", "down",   "final_norm", "lm_head", "merge"};
  return op >= 0 && op < OP_COUNT ? name[op] : "?";
}
//< op_name

/*: ## Cutting rows

Worker `i` of `W` gets the rows from `(i·rows + phase) / W` to `((i+1)·rows + phase) / W`, rounded
down. Every worker has `rows / W` of them or one more, and the pieces meet without a gap, because
one piece ends with the very expression that the next begins with. With fewer rows than workers the
same expression leaves some workers without a row; they get no tile, since a tile is never empty.

`phase`, from 0 to `W - 1`, decides *which* workers have the extra row. Were it always 0, the same
workers would read one row more in every layer. So it moves on by `rows` from one wave of an opcode
to the next (modulo `W`), as if the layers' rows were one long tape cut without starting over. Over
any number of layers, no two workers then differ by more than one row of that opcode. Each opcode
starts at a phase of its own, so that the extra rows of one wave do not fall on the workers of the
wave before.

Where nobody waits at a barrier, what counts is not one wave but how far each worker's bytes have come.
The same phases serve there: up to any wave of a token, two workers differ by at most one row of each
opcode. On 132 workers that is less than a fifth of a percent of what each of them reads of Llama 3.2 1B. :*/
//> split_rows
typedef struct Builder {
  Plan *p;
  Tile *tile; // in the order of the waves
  uint32_t count, wave;
  uint32_t barrier; // after a wave of rows
  uint32_t phase[OP_COUNT];
} Builder;

// Adds one wave: `rows` output rows of an opcode, at most one tile a worker. With `numbered`, tile n of
// the wave gets part n. Returns the number of tiles.
static uint32_t split_rows(Builder *b, Op op, uint32_t layer, uint32_t rows, bool numbered) {
  uint64_t workers = b->p->workers, phase = b->phase[op];
  uint32_t n = 0;
  for (uint64_t w = 0; w < workers; w++) {
    uint32_t row0 = (uint32_t)((w * rows + phase) / workers);
    uint32_t row1 = (uint32_t)(((w + 1) * rows + phase) / workers);
    if (row0 == row1) continue;
    b->tile[b->count++] = (Tile){.op = (uint16_t)op,
                                 .layer = (uint16_t)layer,
                                 .wave = b->wave,
                                 .worker = (uint32_t)w,
                                 .row0 = row0,
                                 .row1 = row1,
                                 .part = numbered ? n : 0};
    n++;
  }
  // No plan has 0 workers. NOLINTNEXTLINE(clang-analyzer-core.DivideZero)
  b->phase[op] = (uint32_t)((phase + rows) % workers);
  b->p->barrier[b->wave++] = b->barrier;
  return n;
}
//< split_rows

/*: ## Cutting attention

A K/V head is one unit of attention: the query heads that share it read the same keys and values, so
one tile serves them all and the cache is read once. Grouped-query attention leaves few such heads,
eight in Llama 3.2 1B, and a card has more workers than that. A long context is therefore also cut
along its positions, into **chunks**; every chunk yields a partial result, and the `wo` tiles, which
read all of attention's result anyway, merge them.

How many chunks? Each more gives work to more workers, and costs one more partial that every `wo`
tile must read and merge. With `W` workers and `H` heads we start at `W / H`, the most that still
gives a worker no more than one tile. Where that leaves more than a fifth of the workers' time idle
(three heads on two workers: two rounds, and in the second one worker waits), we take the first
larger count that does not. Twenty workers and eight heads give two chunks; 132 workers give
sixteen. :*/
//> choose_chunks
static uint32_t choose_chunks(uint32_t workers, uint32_t heads) {
  uint32_t start = workers / heads;
  if (start < 1) start = 1;
  if (start > PLAN_MAX_CHUNKS) start = PLAN_MAX_CHUNKS;
  uint32_t best = start;
  double least = 1;
  for (uint32_t c = start; c <= PLAN_MAX_CHUNKS; c++) {
    uint64_t tiles = (uint64_t)heads * c, rounds = (tiles + workers - 1) / workers;
    uint64_t room = rounds * workers, idle = room - tiles; // in tiles
    if (5 * idle <= room) return c;
    if ((double)idle / (double)room < least) {
      least = (double)idle / (double)room;
      best = c;
    }
  }
  return best; // no count reaches a fifth: the best there is
}
//< choose_chunks

/*: Tiles are dealt to the workers chunk by chunk, the heads of chunk 0 first. A short context is
served by the tiles of the first chunks alone, and dealt this way they lie on different workers. The
same worker gets the same head and chunk in all waves and in all layers, so that what it read of the
cache stays its own. :*/
//> deal_heads
static void deal_heads(Builder *b, Op op, uint32_t layer, uint32_t barrier) {
  uint32_t heads = (uint32_t)b->p->shape.kv_heads;
  for (uint32_t chunk = 0; chunk < b->p->chunks; chunk++)
    for (uint32_t h = 0; h < heads; h++)
      b->tile[b->count++] = (Tile){.op = (uint16_t)op,
                                   .layer = (uint16_t)layer,
                                   .wave = b->wave,
                                   .worker = (chunk * heads + h) % b->p->workers,
                                   .row0 = h,
                                   .row1 = h + 1,
                                   .part = chunk};
  b->p->barrier[b->wave++] = barrier;
}
//< deal_heads

/*: ### Merging the chunks

Without barriers, a value that is written once is read by all workers, each of which waits for it. If every `wo` tile merged
the partials of all chunks for itself, a hand-off of all partials would lie between attention and `wo`, sixteen times as large as
attention's result. So the merge gets a wave of its own and its work is cut as finely as attention's: the `G` elements of a K/V
head's query heads go to the workers of its `C` chunks, worker `c` taking those from `G*c/C` to `G*(c+1)/C`, rounded down to a
multiple of four. The worker that has chunk `c` of a head has its own partial at hand already. With more chunks than fours,
some tiles would be empty, and there are none. :*/
//> merge_waves
// Where chunk c's part of a head's output begins; chunk C's beginning is the end.
static uint32_t merge_begin(const Plan *p, uint32_t c) {
  uint32_t elements = (uint32_t)(p->shape.heads / p->shape.kv_heads * p->shape.head_dim);
  return elements * c / p->chunks / 4 * 4;
}

static void merge_heads(Builder *b, uint32_t layer) {
  const Plan *p = b->p;
  uint32_t heads = (uint32_t)p->shape.kv_heads, elements = merge_begin(p, p->chunks);
  for (uint32_t chunk = 0; chunk < p->chunks; chunk++)
    for (uint32_t h = 0; h < heads; h++) {
      uint32_t row0 = merge_begin(p, chunk), row1 = merge_begin(p, chunk + 1);
      if (row0 == row1) continue;
      b->tile[b->count++] = (Tile){.op = OP_MERGE,
                                   .layer = (uint16_t)layer,
                                   .wave = b->wave,
                                   .worker = (chunk * heads + h) % p->workers,
                                   .row0 = h * elements + row0,
                                   .row1 = h * elements + row1};
    }
  p->barrier[b->wave++] = b->barrier;
}
//< merge_waves

/*: ## Attention, two ways

A softmax needs the largest score before it can take the first exponential. In **two passes** the
chunks' scores are all there before any value is weighted: a wave of scores tiles, a barrier, a wave
of values tiles. Every partial result then has the same scale, and `wo` only adds. In **one pass** an
attend tile does both halves with its own chunk's largest score, and `wo` must multiply each partial
by a factor before it adds.

So one pass saves a layer a barrier and the second start of its attention tiles, and pays with a
factor for each query head and chunk in use, which is little beside the rows of a matrix. That is a
gain on every machine whose barrier is not free, and we plan one pass unless the target asks for two.

One pass also has a finer answer to a context that is too short for all chunks. Two passes know two
forms, one chunk or all of them. Here of `n` positions only `n / fused_context` chunks, rounded up,
are in use, at most all: a context is cut into no more chunks than are worth a tile each. Since
`fused_context` is at least one, no chunk in use is ever without a position. :*/
//> choose_one_pass
static bool choose_one_pass(const Target *t) { return t->attention != ATTENTION_TWO_PASS; }

enum { CHUNK_POSITIONS = 1024 }; // one pass, where the target does not say

// With more than one chunk.
static uint32_t choose_fused_context(const Target *t, bool one_pass, uint32_t chunks) {
  if (one_pass) return t->fused_context ? t->fused_context : CHUNK_POSITIONS;
  // In the split form every chunk has a position: it begins at a context of fused_context + 1.
  return t->fused_context < chunks - 1 ? chunks - 1 : t->fused_context;
}

uint32_t plan_chunks_in_use(const Plan *p, uint32_t n) {
  if (!p->one_pass) return n > p->fused_context ? p->chunks : 1;
  uint64_t wanted = ((uint64_t)n + p->fused_context - 1) / p->fused_context;
  return wanted < p->chunks ? (uint32_t)wanted : p->chunks;
}
//< choose_one_pass

/*: ## The MLP, two ways

The MLP is five sixths of a layer's bytes, and there are two ways to cut it. **Fused**: a tile owns
some intermediate rows, computes its piece of the activation, and at once multiplies it by the
matching *columns* of the down projection. That gives a partial sum for every output, and
`ffn_reduce` adds the partials up. No barrier separates up from down, but the columns must have been
packed so that a tile's bytes lie together. **Split**: `gate_up` computes the whole activation, and
after a barrier `down` reads whole rows of its matrix, as they lie in the checkpoint.

Both ways take two waves. Fused, only the first of them streams weights, so a layer has one start of the stream fewer. But every partial is as long as the residual, and all of them are written and read once, so their bytes grow with the workers: nothing on the
RTX 3050's 20 blocks, and a loss on an H200's 132 (`fused_now` beside `split_now` in `measured/h200-probes.tsv`). So a GPU of few workers fuses; where exactly the two ways meet,
nobody has measured. On a CPU the weights stay in the checkpoint's own mapped file, where a tile's columns would be two thousand short
pieces a row apart, so it splits. A target may ask for either. :*/
//> choose_ffn
enum { FUSED_WORKERS = 64 };

static bool choose_fused_ffn(const Target *t) {
  if (t->ffn != FFN_AUTO) return t->ffn == FFN_FUSED;
  return strcmp(t->kind, "cpu") != 0 && t->workers <= FUSED_WORKERS;
}
//< choose_ffn

/*: ## Hand-offs, two ways

A barrier is a wait for everybody, also for those whose results nobody needs yet, and while it lasts no weights are
asked for. The other way drops both halves of that. The values themselves say that they have been written, and a worker waits
for those that it reads and for nothing else; and its weights, which depend on nothing, come through a **ring** of slots in
shared memory, ahead of the tiles that need them. Then a wait costs nothing as long as the ring has not run full.

A row must come through the ring in **pieces** that eight warps can share evenly. The warps share the columns: each has an eighth of a piece's, and so a part of the
vector that stays the same from piece to piece. Tensor cores take eight rows at a time. So a piece is eight rows of at most 2,048 columns, which is a slot of [32 KB]{.fact}; longer rows
are cut into equal blocks of columns, and of short rows several times eight make a piece. :*/
//> tape_cut
// Columns of the longest block of which a slot holds eight rows.
static uint32_t slot_columns(uint32_t slot_bytes) {
  uint32_t columns = slot_bytes / 16 / 256 * 256;
  return columns < TAPE_COLUMNS ? columns : TAPE_COLUMNS;
}

TapeCut tape_cut(uint32_t columns, uint32_t slot_bytes) {
  uint64_t wide = ((uint64_t)columns + 7) / 8 * 8, most = slot_columns(slot_bytes);
  if (wide == 0 || most == 0 || wide > most * TAPE_BLOCKS) return (TapeCut){0};
  uint64_t blocks = (wide + most - 1) / most;
  uint64_t block = ((wide + blocks - 1) / blocks + 255) / 256 * 256;
  blocks = (wide + block - 1) / block;
  uint64_t times = blocks == 1 ? slot_bytes / (16 * wide) : 1;
  return (TapeCut){(uint32_t)block, (uint32_t)blocks, 8 * (uint32_t)(times < 8 ? times : 8)};
}
//< tape_cut

/*: How large is the ring? What the worker needs for itself comes first: the parts of the vector that its rows are multiplied by; the residual rows that it adds to; the
warps' sums of its rows, and the next ones, which may be there while a slow warp still reads the last; what attention works with (the query heads,
the newest key and value, and the sums of each warp, for the four heads that it takes together), in the same place as the parts; its list of tiles, and some small things. All the rest is slots, up to six;
with fewer than two, nothing could be read while a piece is being used. A slot is [32 KB]{.fact} where two of them fit, else half of that: two whole pieces measured better than four halves. :*/
//> choose_ring
enum {
  RING_LEAST = 2,
  RING_MOST = 6,
  LARGE_SLOT = 32 << 10,
  SMALL_SLOT = 16 << 10,
  WIDE_CARD = 64, // workers
  SMALL_HEAD = 64,
  KNOWN_SHARED =
      99 << 10, // where the target does not say: what every card has since compute capability 8.0
  SMALL_THINGS = 512
};

uint64_t tape_reserve(const Shape *s, uint32_t workers, uint32_t tiles) {
  uint64_t head = (uint64_t)s->head_dim;
  uint64_t sums = 0;
  const uint64_t rows[] = {(uint64_t)qkv_rows(s), (uint64_t)s->hidden, (uint64_t)s->inter,
                           (uint64_t)s->vocab};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    uint64_t n = (rows[i] + workers - 1) / workers;
    if (n > TAPE_SUMS) n = TAPE_SUMS;
    if (i == 2) n *= 2; // gate and up
    if (n > sums) sums = n;
  }
  uint64_t own = (rows[1] + workers - 1) / workers;
  // Never both at once: a vector's parts, or an attend tile's queries and sums.
  uint64_t attention = head + 3 * TAPE_GROUP * (head + 8) / 2 + TAPE_GROUP +
                       TAPE_WARPS * TAPE_HEADS * (head + 10) + 32 * 4;
  uint64_t parts = attention * sizeof(float);
  if (parts < TAPE_PARTS_BYTES) parts = TAPE_PARTS_BYTES;
  uint64_t floats = 2 * (own + 3) + 2 * TAPE_WARPS * sums + head;
  return parts + floats * sizeof(float) + SMALL_THINGS + tiles * sizeof(Tile);
}

// Tiles of the worker that has most, with hand-offs of data: at most.
static uint32_t tape_tiles(const Plan *p) {
  uint32_t pairs = (uint32_t)p->shape.kv_heads * p->chunks, waves = p->chunks > 1 ? 2 : 1;
  uint32_t rounds = (pairs + p->workers - 1) / p->workers;
  return (uint32_t)p->shape.layers * (4 + waves * rounds) + 1;
}

static void choose_ring(Plan *p) {
  uint64_t room = p->target.shared_bytes ? p->target.shared_bytes : KNOWN_SHARED;
  uint64_t reserve = tape_reserve(&p->shape, p->workers, tape_tiles(p));
  p->slot_bytes = room >= reserve + RING_LEAST * LARGE_SLOT ? LARGE_SLOT : SMALL_SLOT;
  uint64_t slots = room > reserve ? (room - reserve) / p->slot_bytes : 0;
  p->ring_slots = slots < RING_MOST ? (uint32_t)slots : RING_MOST;
}
//< choose_ring

/*: What such a plan asks for, one comparison each. Whoever demands `data` and cannot have it is told what is in the way. :*/
//> check_tape
static int no_tape(Error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int no_tape(Error *e, const char *format, ...) {
  char why[320];
  va_list list;
  va_start(list, format);
  vsnprintf(why, sizeof why, format, list);
  va_end(list);
  return fail(e, EXIT_PLAN, "plan: sync data: %s", why);
}

static int check_columns(const Plan *p, const char *what, uint64_t columns, Error *e) {
  if (columns > TAPE_BLOCKS * TAPE_COLUMNS)
    return no_tape(e, "%s has rows of %llu columns; at most %d", what, (unsigned long long)columns,
                   TAPE_BLOCKS * TAPE_COLUMNS);
  if (tape_cut((uint32_t)columns, p->slot_bytes).rows) return 0;
  return no_tape(e, "%s has rows of %llu columns; slots of %u bytes hold at most %u", what,
                 (unsigned long long)columns, p->slot_bytes,
                 TAPE_BLOCKS * slot_columns(p->slot_bytes));
}

// With chunks and ring chosen.
static int check_tape(const Plan *p, Error *e) {
  const Shape *s = &p->shape;
  const Target *t = &p->target;
  if (strcmp(t->kind, "cuda") != 0)
    return no_tape(e, "target %s is of kind %s; only cuda plays such a plan", t->name, t->kind);
  if (t->ffn == FFN_FUSED) return no_tape(e, "the FFN is to be fused; it must be split");
  if (t->attention == ATTENTION_TWO_PASS)
    return no_tape(e, "attention is to be in two passes; it must be in one");
  if (s->heads / s->kv_heads > TAPE_GROUP)
    return no_tape(e, "%d query heads of a K/V head; at most %d", s->heads / s->kv_heads,
                   TAPE_GROUP);
  if (s->head_dim % 8 || s->head_dim > TAPE_HEAD)
    return no_tape(e, "heads of %d; must be a multiple of 8 and at most %d", s->head_dim,
                   TAPE_HEAD);
  const struct {
    const char *what;
    int32_t rows;
  } matrices[] = {{"qkv", qkv_rows(s)},
                  {"wo and down", s->hidden},
                  {"gate and up", s->inter},
                  {"lm_head", s->vocab}};
  for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
    if ((uint32_t)matrices[i].rows < p->workers)
      return no_tape(e, "%u workers, and %d rows of %s; every worker needs one", p->workers,
                     matrices[i].rows, matrices[i].what);
  if (p->ring_slots < RING_LEAST)
    return no_tape(e,
                   "%u bytes of shared memory hold %u slots of %u bytes beside %llu; at least %d",
                   t->shared_bytes, p->ring_slots, p->slot_bytes,
                   (unsigned long long)tape_reserve(s, p->workers, tape_tiles(p)), RING_LEAST);
  if (check_columns(p, "qkv", (uint64_t)s->hidden, e) != 0 ||
      check_columns(p, "wo", (uint64_t)s->heads * (uint64_t)s->head_dim, e) != 0 ||
      check_columns(p, "down", (uint64_t)s->inter, e) != 0)
    return -1;
  return 0;
}
//< check_tape

/*: ## One token, wave by wave

Everything above meets here. The two functions below are the whole schedule of a token, with barriers and without: read one
from top to bottom and you have seen every wave. :*/
//> build_waves
static void build_waves(Builder *b, bool fused) {
  Plan *p = b->p;
  const Shape *s = &p->shape;
  uint32_t hidden = (uint32_t)s->hidden, inter = (uint32_t)s->inter;

  split_rows(b, OP_EMBED, 0, hidden, false);
  for (uint32_t l = 0; l < (uint32_t)s->layers; l++) {
    split_rows(b, OP_QKV, l, (uint32_t)qkv_rows(s), false);
    if (p->one_pass) deal_heads(b, OP_ATTEND, l, BARRIER_ALWAYS);
    else if (p->chunks == 1) deal_heads(b, OP_SCORES, l, BARRIER_ALWAYS);
    else {
      deal_heads(b, OP_SCORES, l, BARRIER_IF_SPLIT);
      deal_heads(b, OP_VALUES, l, BARRIER_ALWAYS);
    }
    split_rows(b, OP_WO, l, hidden, false);
    if (fused) {
      p->ffn_parts = split_rows(b, OP_FFN, l, inter, true);
      split_rows(b, OP_FFN_REDUCE, l, hidden, false);
    } else {
      split_rows(b, OP_GATE_UP, l, inter, false);
      split_rows(b, OP_DOWN, l, hidden, false);
    }
  }
  split_rows(b, OP_FINAL_NORM, 0, hidden, false);
  p->slots = split_rows(b, OP_LM_HEAD, 0, (uint32_t)s->vocab, true);
}

static void build_tape_waves(Builder *b) {
  Plan *p = b->p;
  const Shape *s = &p->shape;
  for (uint32_t l = 0; l < (uint32_t)s->layers; l++) {
    split_rows(b, OP_QKV, l, (uint32_t)qkv_rows(s), false);
    deal_heads(b, OP_ATTEND, l, BARRIER_DATA);
    if (p->chunks > 1) merge_heads(b, l);
    split_rows(b, OP_WO, l, (uint32_t)s->hidden, false);
    split_rows(b, OP_GATE_UP, l, (uint32_t)s->inter, false);
    split_rows(b, OP_DOWN, l, (uint32_t)s->hidden, false);
  }
  p->slots = split_rows(b, OP_LM_HEAD, 0, (uint32_t)s->vocab, true);
}
//< build_waves

/*: How many waves and tiles that will be can be said beforehand, so that memory is asked for once. :*/
//> plan_counts
static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

// Waves of attention in a layer.
static uint32_t attention_waves(const Plan *p) { return p->one_pass || p->chunks == 1 ? 1 : 2; }

static uint32_t count_waves(const Plan *p) {
  uint32_t layers = (uint32_t)p->shape.layers;
  if (p->sync == SYNC_DATA) return layers * (p->chunks > 1 ? 6 : 5) + 1;
  return 3 + layers * (4 + attention_waves(p));
}

// Tiles of the whole plan: what build_waves or build_tape_waves will add.
static uint64_t count_tiles(const Plan *p) {
  const Shape *s = &p->shape;
  uint64_t w = p->workers, hidden = least((uint64_t)s->hidden, w);
  if (p->sync == SYNC_DATA) {
    uint64_t parts =
        p->chunks; // of a head: its attend tiles, and its merge tiles that are not empty
    for (uint32_t c = 0; p->chunks > 1 && c < p->chunks; c++)
      parts += merge_begin(p, c) < merge_begin(p, c + 1);
    return (uint64_t)s->layers * (4 * w + (uint64_t)s->kv_heads * parts) + w;
  }
  uint64_t attention = (uint64_t)s->kv_heads * p->chunks * attention_waves(p);
  uint64_t layer =
      least((uint64_t)qkv_rows(s), w) + attention + hidden + least((uint64_t)s->inter, w) + hidden;
  return hidden + (uint64_t)s->layers * layer + hidden + least((uint64_t)s->vocab, w);
}
//< plan_counts

/*: The waves are built in order; a worker wants its own tiles in one piece. A counting sort by
worker turns one order into the other, and because it is stable, each worker's tiles stay in the
order of the waves. :*/
//> plan_make
static int make_plan(const Shape *s, const Target *t, SyncKind sync, Plan *out, Error *e) {
  *out = (Plan){.shape = *s, .target = *t, .workers = t->workers, .sync = SYNC_BARRIER};
  out->shape.rope.factors = NULL;
  // Stand-ins for the counts that depend on the cut, so that the header can be checked first.
  out->chunks = out->slots = out->wave_count = out->tile_count = 1;
  out->fused_context = UINT32_MAX;
  if (plan_sizes(out, e) != 0) return -1;

  bool data = sync == SYNC_DATA;
  out->sync = sync;
  out->chunks = choose_chunks(out->workers, (uint32_t)s->kv_heads);
  out->one_pass = choose_one_pass(t);
  if (out->chunks > 1) out->fused_context = choose_fused_context(t, out->one_pass, out->chunks);
  if (data) choose_ring(out);
  if (data && check_tape(out, e) != 0) return -1;
  out->wave_count = count_waves(out);
  uint64_t count = count_tiles(out);
  if (count > PLAN_MAX_TILES)
    return fail(e, EXIT_PLAN, "plan: rule \"sizes\": %llu tiles; at most %d", // too many workers
                (unsigned long long)count, PLAN_MAX_TILES);
  out->tile_count = (uint32_t)count;

  Builder b = {.p = out, .tile = malloc(count * sizeof(Tile))};
  b.barrier = data ? BARRIER_DATA : BARRIER_ALWAYS;
  out->tile = malloc(count * sizeof(Tile));
  out->barrier = malloc(out->wave_count * sizeof *out->barrier);
  uint32_t *next = calloc((size_t)out->workers + 1, sizeof *next);
  if (!b.tile || !out->tile || !out->barrier || !next) {
    free(b.tile);
    free(next);
    plan_free(out);
    return fail(e, EXIT_FAIL, "plan: out of memory for %llu tiles", (unsigned long long)count);
  }
  for (uint32_t op = 0; op <= OP_LM_HEAD; op++) // merge, after it, is not cut by rows
    b.phase[op] = (uint32_t)((uint64_t)op * out->workers / (OP_LM_HEAD + 1));
  if (data) build_tape_waves(&b);
  else build_waves(&b, choose_fused_ffn(t));

  for (uint32_t i = 0; i < b.count; i++) next[b.tile[i].worker + 1]++;
  for (uint32_t w = 0; w < out->workers; w++) next[w + 1] += next[w];
  for (uint32_t i = 0; i < b.count; i++) out->tile[next[b.tile[i].worker]++] = b.tile[i];
  free(b.tile);
  free(next);

  if (plan_index(out, e) != 0 || plan_validate(out, e) != 0) {
    plan_free(out);
    return -1;
  }
  return 0;
}

void plan_free(Plan *p) {
  free(p->barrier);
  free(p->tile);
  free(p->first);
  *p = (Plan){0};
}
//< plan_make

/*: ## Which of the two

A target may say. Where it does not, and a tape may be expected to win at all, and both plans can be made, we make both. The tape is kept if its slots are large and it is predicted to be faster at context 1, where hand-offs weigh most, or the target knows no ramps to predict with. :*/
//> choose_sync
// Whether the planner may choose hand-offs of data unasked: on a wide card, where a wave is as short as what lies between two waves, and for attention that one warp can hold in
// its registers, a few small heads. With more and larger heads barriers measured faster at short contexts (measured/h200-tape.tsv). The same table tells that a wide card need not have much shared memory, as long
// as two large slots fit. On narrow ones nobody has measured it.
static bool auto_may_be_data(const Shape *s, const Target *t) {
  return strcmp(t->kind, "cuda") == 0 && t->workers >= WIDE_CARD &&
         s->heads / s->kv_heads <= TAPE_HEADS && s->head_dim <= SMALL_HEAD;
}

// A target that knows nothing of ramps flatters the waves.
static bool knows_ramps(const Target *t) { return t->ramp_us > 0; }

static double predicted_ms(const Plan *p) {
  PlanCost cost;
  plan_cost(p, 1, &cost, NULL);
  return cost.predicted_ms;
}

int plan_make(const Shape *s, const Target *t, Plan *out, Error *e) {
  if (t->sync == SYNC_DATA) return make_plan(s, t, SYNC_DATA, out, e);
  if (make_plan(s, t, SYNC_BARRIER, out, e) != 0) return -1;
  if (t->sync != SYNC_AUTO || !auto_may_be_data(s, t)) return 0;
  Plan data;
  Error why; // not asked for, so nobody is told why it cannot be
  if (make_plan(s, t, SYNC_DATA, &data, &why) != 0) return 0;
  bool faster =
      data.slot_bytes == LARGE_SLOT && (!knows_ramps(t) || predicted_ms(&data) < predicted_ms(out));
  plan_free(faster ? out : &data);
  if (faster) *out = data;
  return 0;
}
//< choose_sync

//> plan_index
int plan_index(Plan *p, Error *e) {
  uint32_t *first = calloc((size_t)p->workers + 1, sizeof *first);
  if (!first) return fail(e, EXIT_FAIL, "plan: out of memory for %u workers", p->workers);
  for (uint32_t i = 0; i < p->tile_count; i++) {
    const Tile *t = &p->tile[i];
    if (t->worker >= p->workers) {
      free(first);
      return fail(e, EXIT_PLAN, "plan: tile %u: rule \"grid\": worker %u of %u", i, t->worker,
                  p->workers);
    }
    if (i && (t[-1].worker > t->worker || (t[-1].worker == t->worker && t[-1].wave > t->wave))) {
      free(first);
      return fail(e, EXIT_PLAN,
                  "plan: tile %u: rule \"order\": worker %u wave %u after worker %u wave %u", i,
                  t->worker, t->wave, t[-1].worker, t[-1].wave);
    }
    first[t->worker + 1]++;
  }
  for (uint32_t w = 0; w < p->workers; w++) first[w + 1] += first[w];
  free(p->first);
  p->first = first;
  return 0;
}
//< plan_index

/*: ## What a tile reads

Only bytes that must come from memory count: matrices and the K/V cache. Norms, biases and
activations are a few kilobytes that every worker reads again out of a cache. :*/
//> tile_bytes
// Positions of chunk c at a context of n, with C chunks in use: [n*c/C, n*(c+1)/C); none from C on.
static uint64_t chunk_positions(const Plan *p, uint64_t n, uint64_t c) {
  uint64_t in_use = plan_chunks_in_use(p, (uint32_t)n);
  return c < in_use ? n * (c + 1) / in_use - n * c / in_use : 0;
}

uint64_t tile_bytes(const Plan *p, const Tile *t, uint32_t context) {
  const Shape *s = &p->shape;
  uint64_t size = dtype_size(s->dtype), rows = t->row1 - t->row0;
  uint64_t hidden = (uint64_t)s->hidden, head = (uint64_t)s->head_dim;
  bool split = !p->one_pass && context > p->fused_context;
  switch (t->op) {
  case OP_EMBED: return rows * size; // its columns of one row
  case OP_QKV: return rows * hidden * size;
  case OP_SCORES: // keys; in the fused form chunk 0 reads keys and values of all positions
    return (split ? 1 : 2) * rows * chunk_positions(p, context, t->part) * head * size;
  case OP_VALUES: return split ? rows * chunk_positions(p, context, t->part) * head * size : 0;
  case OP_ATTEND: return 2 * rows * chunk_positions(p, context, t->part) * head * size;
  case OP_WO: return rows * (uint64_t)s->heads * head * size;
  case OP_FFN: return 3 * rows * hidden * size; // gate and up rows, down columns
  case OP_GATE_UP: return 2 * rows * hidden * size;
  case OP_DOWN: return rows * (uint64_t)s->inter * size;
  case OP_LM_HEAD: return rows * hidden * size;
  default: return 0;
  }
}
//< tile_bytes

/*: ## What it will cost

A plan can be priced before it has ever run. The **floor** is every byte that the token must read,
divided by the rate at which all workers together can read. The prediction adds what a schedule of
waves pays on top:

- A worker reads at its share of the memory's bandwidth or at its own top speed, whichever is less,
  and the wave takes as long as its busiest worker.
- A wave that streams weights starts from standstill and ends when the last worker is done:
  `ramp_us`.
- Attention reads the cache more slowly than weights are streamed (`kv_worker_gbs`), and costs
  `attention_us` a layer even over an empty cache.
- Every barrier that is not skipped costs `barrier_us`.

A number that the target does not know is zero, and its cost is assumed away.

Without barriers the model is another, and as simple as we could make it:

- The tape streams all the time, at nearly the rate of a plain read. Waves of rows even out over a layer, so a worker's share counts;
  attention's tiles lie on the same workers in every layer, so there the busiest worker counts.
- In each layer there is a **chain** of results that must go from worker to worker with few weights to read between them: from down to
  qkv, to attend, to merge where chunks are merged, to `wo`, to gate_up. Each link is a hand-off, which takes twice as long
  beside the stream as it takes alone; attention and the dot products of qkv and `wo`, at twice the stream's rate, are
  in the chain too.
- While the chain holds the workers up, the stream goes on until the ring is full. What the ring holds and what qkv and `wo` take out of it
  cover so much of the chain; a layer pays for the rest, and we note that in its attend wave.
- A token ends with one hand-off that nothing covers. :*/
//> plan_cost
static bool streams_weights(int op) {
  return op == OP_QKV || op == OP_WO || op == OP_FFN || op == OP_GATE_UP || op == OP_DOWN ||
         op == OP_LM_HEAD;
}

// Microseconds in which `active` workers, the busiest with `bytes`, read at no more than `own` GB/s each.
static double reading_us(const Target *t, double own, uint64_t bytes, uint32_t active) {
  double rate = t->read_gbs / (active ? active : 1);
  if (own > 0 && (own < rate || rate <= 0)) rate = own;
  return rate > 0 ? (double)bytes / (rate * 1e3) : 0;
}

static bool attends(int op) { return op == OP_SCORES || op == OP_VALUES || op == OP_ATTEND; }

// Whether everybody waits after the wave at this context.
static bool waits(const Plan *p, uint32_t wave, uint32_t context) {
  return p->barrier[wave] == BARRIER_ALWAYS ||
         (p->barrier[wave] == BARRIER_IF_SPLIT && context > p->fused_context);
}

typedef struct WaveSum {
  WaveCost cost;
  uint64_t least; // bytes of the least busy worker that has a tile
  uint32_t active;
} WaveSum;

// A worker's tiles of one wave are neighbours; `bytes` is their sum.
static void add_worker(WaveSum *w, const Tile *t, uint64_t bytes) {
  if (w->cost.tiles == 0) w->cost.op = t->op, w->cost.layer = t->layer;
  w->cost.bytes += bytes;
  if (bytes > w->cost.worker_bytes) w->cost.worker_bytes = bytes;
  if (w->active == 0 || bytes < w->least) w->least = bytes;
  w->active += bytes > 0;
}

// With barriers: the wave's own time and its barrier.
static double barrier_wave_us(const Plan *p, uint32_t wave, const WaveSum *sum, uint32_t context) {
  const Target *t = &p->target;
  const WaveCost *c = &sum->cost;
  double own = attends((int)c->op) ? t->kv_worker_gbs : t->worker_gbs;
  double us = reading_us(t, own, c->worker_bytes, sum->active);
  if (c->op == OP_SCORES || c->op == OP_ATTEND) us += t->attention_us;
  if (streams_weights((int)c->op)) us += t->ramp_us;
  return us + (waits(p, wave, context) ? t->barrier_us : 0);
}

#define TAPE_RATE 0.96 // of read_gbs
#define LOADED 2       // a hand-off beside the stream takes so many times as long as one alone
#define DOT_RATE 2     // a dot product of what lies in the ring, over the stream's rate

// Microseconds of the stream for so many bytes of each worker.
static double tape_us(const Plan *p, double bytes) {
  return reading_us(&p->target, p->target.worker_gbs, (uint64_t)bytes, p->workers) / TAPE_RATE;
}

// What a layer pays for its chain, by the bytes of all its qkv and wo tiles.
static double chain_us(const Plan *p, uint64_t qkv, uint64_t wo, uint32_t context) {
  double rows = (double)(qkv + wo) / p->workers, ring = (double)p->ring_slots * p->slot_bytes;
  uint32_t links = plan_chunks_in_use(p, context) > 1 ? 5 : 4;
  double chain =
      links * LOADED * p->target.handoff_us + p->target.attention_us + tape_us(p, rows) / DOT_RATE;
  double cover = tape_us(p, rows + ring) * TAPE_RATE; // nobody computes meanwhile
  return chain > cover ? chain - cover : 0;
}

// Without: a layer's waves follow each other as qkv, attend, perhaps merge, wo.
static double tape_wave_us(const Plan *p, const WaveSum *sum, uint32_t context) {
  const WaveCost *c = &sum->cost;
  if (c->op != OP_ATTEND) {
    double us = tape_us(p, (double)c->bytes / p->workers);
    return us + (c->op == OP_LM_HEAD ? LOADED * p->target.handoff_us : 0);
  }
  uint64_t qkv = sum[-1].cost.bytes, wo = sum[p->chunks > 1 ? 2 : 1].cost.bytes;
  return tape_us(p, (double)c->worker_bytes) + chain_us(p, qkv, wo, context);
}

void plan_cost(const Plan *p, uint32_t context, PlanCost *out, WaveCost *wave) {
  *out = (PlanCost){0};
  const Target *t = &p->target;
  out->weight_bytes = shape_weight_bytes(&p->shape);
  out->kv_bytes = context * shape_kv_bytes(&p->shape);
  if (t->read_gbs > 0)
    out->floor_ms = (double)(out->weight_bytes + out->kv_bytes) / (t->read_gbs * 1e6);

  WaveSum *sum = calloc(p->wave_count, sizeof *sum);
  if (!sum) { // costs are advice; without memory there is none
    if (wave) memset(wave, 0, p->wave_count * sizeof *wave);
    return;
  }
  bool seen[OP_COUNT] = {false};
  for (uint32_t i = 0, j; i < p->tile_count; i = j) {
    const Tile *first = &p->tile[i];
    uint64_t bytes = 0;
    for (j = i;
         j < p->tile_count && p->tile[j].worker == first->worker && p->tile[j].wave == first->wave;
         j++) {
      bytes += tile_bytes(p, &p->tile[j], context);
      seen[p->tile[j].op] = true;
    }
    add_worker(&sum[first->wave], first, bytes);
    sum[first->wave].cost.tiles += j - i;
  }
  for (int op = 0; op < OP_COUNT; op++) out->opcodes += seen[op];

  double total = 0;
  for (uint32_t w = 0; w < p->wave_count; w++) {
    WaveCost *c = &sum[w].cost;
    c->us = p->sync == SYNC_DATA ? tape_wave_us(p, &sum[w], context)
                                 : barrier_wave_us(p, w, &sum[w], context);
    if (streams_weights((int)c->op)) {
      double spread = 100 * ((double)c->worker_bytes / (double)sum[w].least - 1);
      if (spread > out->spread_percent) out->spread_percent = spread;
    }
    total += c->us;
    if (wave) wave[w] = *c;
  }
  out->predicted_ms = total / 1e3;
  free(sum);
}
//< plan_cost

/*: ## Telling it

`--tsv` is for programs: one key and one value a line. `--explain` is for people, and fits on a
screen. :*/
//> plan_print_tsv
static const char *ffn_word(const Plan *p) { return p->ffn_parts ? "fused" : "split"; }
static const char *attention_word(const Plan *p) { return p->one_pass ? "one-pass" : "two-pass"; }
static const char *sync_word(SyncKind sync) { return sync == SYNC_DATA ? "data" : "barrier"; }

void plan_print_tsv(const Plan *p, uint32_t context, FILE *f) {
  PlanCost c;
  plan_cost(p, context, &c, NULL);
  fprintf(f, "shape\t%s\n", p->shape.name);
  fprintf(f, "target\t%s\n", p->target.name);
  fprintf(f, "workers\t%u\n", p->workers);
  fprintf(f, "tiles\t%u\n", p->tile_count);
  fprintf(f, "waves\t%u\n", p->wave_count);
  fprintf(f, "opcodes\t%u\n", c.opcodes);
  fprintf(f, "chunks\t%u\n", p->chunks);
  fprintf(f, "fused_context\t%u\n", p->fused_context);
  fprintf(f, "attention\t%s\n", attention_word(p));
  fprintf(f, "ffn\t%s\n", ffn_word(p));
  fprintf(f, "sync\t%s\n", sync_word(p->sync));
  fprintf(f, "ring_slots\t%u\n", p->ring_slots);
  fprintf(f, "slot_bytes\t%u\n", p->slot_bytes);
  fprintf(f, "context\t%u\n", context);
  fprintf(f, "weight_bytes\t%llu\n", (unsigned long long)c.weight_bytes);
  fprintf(f, "kv_bytes_per_position\t%llu\n", (unsigned long long)shape_kv_bytes(&p->shape));
  fprintf(f, "worker_bytes_spread_percent\t%.2f\n", c.spread_percent);
  fprintf(f, "floor_ms\t%.2f\n", c.floor_ms);
  fprintf(f, "predicted_ms\t%.2f\n", c.predicted_ms);
}
//< plan_print_tsv

//> plan_explain
typedef struct Digits {
  char s[32];
} Digits;

// 2471628800 as 2,471,628,800.
static Digits digits(uint64_t n) {
  char plain[24];
  int length = snprintf(plain, sizeof plain, "%llu", (unsigned long long)n), k = 0;
  Digits out;
  for (int i = 0; i < length; i++) {
    if (i && (length - i) % 3 == 0) out.s[k++] = ',';
    out.s[k++] = plain[i];
  }
  out.s[k] = 0;
  return out;
}

static void explain_wave(const Plan *p, uint32_t wave, const WaveCost *c, uint32_t context,
                         FILE *f) {
  uint32_t least_rows = UINT32_MAX, most_rows = 0;
  for (uint32_t i = 0; i < p->tile_count; i++) {
    if (p->tile[i].wave != wave) continue;
    uint32_t rows = p->tile[i].row1 - p->tile[i].row0;
    if (rows < least_rows) least_rows = rows;
    if (rows > most_rows) most_rows = rows;
  }
  char rows[32];
  if (least_rows == most_rows) snprintf(rows, sizeof rows, "%u", most_rows);
  else snprintf(rows, sizeof rows, "%u or %u", least_rows, most_rows);
  fprintf(f, "  %-11s%7u%18s%16s%15s%11.1f%s\n", op_name((int)c->op), c->tiles, rows,
          digits(c->worker_bytes).s, digits(c->bytes).s, c->us,
          p->sync == SYNC_DATA || waits(p, wave, context) ? "" : "  no barrier");
}

// Bytes of weights a worker over a token: the largest over the smallest, less 1, in percent.
static double token_spread(const Plan *p) {
  uint64_t least_bytes = UINT64_MAX, most = 0;
  for (uint32_t w = 0; w < p->workers; w++) {
    uint64_t bytes = 0;
    for (uint32_t i = p->first[w]; i < p->first[w + 1]; i++) bytes += tile_bytes(p, &p->tile[i], 0);
    if (bytes < least_bytes) least_bytes = bytes;
    if (bytes > most) most = bytes;
  }
  return 100 * ((double)most / (double)least_bytes - 1);
}

// Both plans are made and priced, whichever was chosen.
static void explain_sync(const Plan *p, FILE *f) {
  SyncKind sync = p->sync == SYNC_DATA ? SYNC_BARRIER : SYNC_DATA;
  const char *word = sync == SYNC_DATA ? "data" : "barriers";
  fprintf(f, "sync: %s", sync_word(p->sync));
  if (p->sync == SYNC_DATA)
    fprintf(f, ", a ring of %u x %u KB", p->ring_slots, p->slot_bytes >> 10);
  if (p->target.sync != SYNC_AUTO) fprintf(f, ", as asked for");
  Plan other;
  Error e;
  const char *prefix = "plan: sync data: ";
  if (make_plan(&p->shape, &p->target, sync, &other, &e) != 0) {
    bool known = strncmp(e.text, prefix, strlen(prefix)) == 0;
    fprintf(f, ".\n  %s is not possible: %s\n", word, known ? e.text + strlen(prefix) : e.text);
    return;
  }
  if (p->target.sync == SYNC_AUTO && !auto_may_be_data(&p->shape, &p->target))
    fprintf(f, ", the safe choice for this card and these shapes");
  if (p->target.read_gbs > 0)
    fprintf(f, "; predicted at context 1 %.2f ms, with %s %.2f ms", predicted_ms(p), word,
            predicted_ms(&other));
  fprintf(f, ".\n");
  plan_free(&other);
}

static void explain_choices(const Plan *p, uint32_t context, FILE *f) {
  uint32_t heads = (uint32_t)p->shape.kv_heads, tiles = heads * p->chunks;
  uint32_t rounds = (tiles + p->workers - 1) / p->workers;
  double idle = 100 * (1 - (double)tiles / ((double)rounds * p->workers));
  fprintf(f,
          "chunks: %u. %u K/V heads x %u = %u attention tiles on %u workers, %u %s, %.0f%% idle", //
          p->chunks, heads, p->chunks, tiles, p->workers, rounds, rounds == 1 ? "round" : "rounds",
          idle);
  if (p->one_pass && p->chunks == 1) fprintf(f, ";\n  attention in one pass.\n");
  else if (p->one_pass)
    fprintf(f, ";\n  attention in one pass, a chunk for every %s positions: %u in use.\n",
            digits(p->fused_context).s, plan_chunks_in_use(p, context));
  else if (p->chunks == 1)
    fprintf(f, ";\n  one tile does all of attention, so a layer has no values wave.\n");
  else
    fprintf(f,
            ";\n  attention in two passes; up to %s positions %u tiles do all of it, and the "
            "barrier after scores is skipped.\n",
            digits(p->fused_context).s, heads);
  const char *why = p->target.ffn != FFN_AUTO            ? "the target asks for it"
                    : p->sync == SYNC_DATA               ? "hand-offs of data want it so"
                    : strcmp(p->target.kind, "cpu") == 0 ? "a CPU reads the checkpoint as it lies"
                    : !p->ffn_parts ? "so many partial sums cost more than they save"
                                    : "weights are packed for this target";
  if (p->ffn_parts)
    fprintf(f,
            "FFN: fused; %s.\n  no barrier between up and down; %u partial sums, added in order.\n",
            why, p->ffn_parts);
  else fprintf(f, "FFN: split; %s.\n  the down projection is read in whole rows.\n", why);
}

void plan_explain(const Plan *p, uint32_t context, FILE *f) {
  const Shape *s = &p->shape;
  const Target *t = &p->target;
  WaveCost *wave = calloc(p->wave_count, sizeof *wave);
  if (!wave) {
    fprintf(f, "out of memory\n");
    return;
  }
  PlanCost cost;
  plan_cost(p, context, &cost, wave);

  fprintf(f, "%s on %s: %s tiles in %u waves on %u workers\n\n", s->name, t->name,
          digits(p->tile_count).s, p->wave_count, p->workers);
  fprintf(f, "%d layers, hidden %d, FFN %d, %d heads of %d over %d K/V heads, vocab %d, %s\n",
          s->layers, s->hidden, s->inter, s->heads, s->head_dim, s->kv_heads, s->vocab,
          dtype_name(s->dtype));
  fprintf(f, "a token reads %s bytes of weights", digits(cost.weight_bytes).s);
  fprintf(f, ", and %s of K/V at context %s", digits(cost.kv_bytes).s, digits(context).s);
  fprintf(f, " (%s a position)\n", digits(shape_kv_bytes(s)).s);
  fprintf(f, "%s reads ", t->name);
  if (t->read_gbs > 0) fprintf(f, "%.1f GB/s", t->read_gbs);
  else fprintf(f, "at an unknown rate");
  if (t->worker_gbs > 0) fprintf(f, ", one worker alone %.1f", t->worker_gbs);
  if (t->kv_worker_gbs > 0) fprintf(f, ", %.1f of K/V", t->kv_worker_gbs);
  if (t->barrier_us > 0) fprintf(f, "; a barrier takes %.2f us", t->barrier_us);
  if (t->handoff_us > 0) fprintf(f, ", a hand-off %.2f us", t->handoff_us);
  fprintf(f, "\n\n");

  // The waves outside the layers, and a layer in the middle for all of them.
  uint32_t middle = (uint32_t)s->layers / 2;
  fprintf(f, "  wave         tiles       rows a tile  bytes a worker    bytes read         us\n");
  for (uint32_t w = 0; w < p->wave_count; w++) {
    bool layered = (wave[w].op >= OP_QKV && wave[w].op <= OP_DOWN) || wave[w].op == OP_MERGE;
    if (layered && wave[w].layer != middle) continue;
    if (layered && wave[w].op == OP_QKV) fprintf(f, "  -- layer %u of %d\n", middle, s->layers);
    if (wave[w].op == (p->sync == SYNC_DATA ? OP_LM_HEAD : OP_FINAL_NORM)) fprintf(f, "  --\n");
    explain_wave(p, w, &wave[w], context, f);
  }

  fprintf(f, "\nbytes a worker in any wave of weights differ by at most %.2f%%",
          cost.spread_percent);
  if (p->sync == SYNC_DATA) fprintf(f, ", over a token by %.2f%%", token_spread(p));
  fprintf(f, "\n");
  explain_choices(p, context, f);
  explain_sync(p, f);

  double weights = 0, attention = 0, chain = 0;
  uint32_t barriers = 0;
  for (uint32_t w = 0; w < p->wave_count; w++) {
    bool barrier = waits(p, w, context);
    barriers += barrier;
    double own = wave[w].us - (barrier ? t->barrier_us : 0);
    if (streams_weights((int)wave[w].op)) weights += own;
    if (attends((int)wave[w].op)) attention += own;
    if (p->sync == SYNC_DATA && wave[w].op == OP_ATTEND)
      chain += chain_us(p, wave[w - 1].bytes, wave[w + (p->chunks > 1 ? 2 : 1)].bytes, context);
  }
  if (t->read_gbs <= 0)
    fprintf(f, "\nfloor unknown: %s does not say how fast it reads; tiles probe measures it\n",
            t->name);
  else if (p->sync == SYNC_DATA)
    fprintf(f,
            "\nfloor %.2f ms; predicted %.2f ms, %.0f%% of the floor: weights %.2f, K/V %.2f, "
            "chains that the "
            "ring does not cover %.2f\n",
            cost.floor_ms, cost.predicted_ms, 100 * cost.floor_ms / cost.predicted_ms,
            weights / 1e3, (attention - chain) / 1e3, chain / 1e3);
  else
    fprintf(
        f,
        "\nfloor %.2f ms; predicted %.2f ms, %.0f%% of the floor: weights %.2f, attention %.2f, "
        "%u barriers %.2f\n",
        cost.floor_ms, cost.predicted_ms, 100 * cost.floor_ms / cost.predicted_ms, weights / 1e3,
        attention / 1e3, barriers, barriers * t->barrier_us / 1e3);
  free(wave);
}
//< plan_explain
