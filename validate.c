/*: # The gate

A plan that is wrong does not crash. It reads a row that is still from the last layer, or leaves one
row of four thousand unwritten, and the text comes out slightly worse on some machines. No test of
the output finds that reliably, so nothing runs a plan that has not passed this file: the planner
calls it on what it has just made, and the loader again on what it has just read. It trusts neither,
and shares no code with them.

What it proves is this. *Run on any number of workers, at any speed, every tile finds in every
buffer exactly the values that the model's arithmetic calls for.* The proof needs no simulation. It
follows from a handful of rules, each with a name; a plan that breaks one is refused with the tile
and the name. :*/
//> validate_head
#include "tiles.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
//< validate_head

/*: ## What is being proved

**Time.** A barrier cuts a token into *epochs*. All tiles of an epoch may run at the same moment, in
any order, even those of one worker. A tile of an earlier epoch has finished before, and all that it
wrote can be seen. Barriers of kind `BARRIER_IF_SPLIT` are skipped in attention's fused form, so a
plan with attention in two passes has two different sequences of epochs, and everything below must
hold in both. With a single chunk there is only the fused form. In one pass no barrier is ever
skipped, and all tokens have the same epochs.

**Buffers.** There is one of each, used again by every layer:

| buffer | one element is | a new version is written by | and read by |
|---|---|---|---|
| residual | a row | embed; wo; ffn_reduce or down | qkv, ffn, gate_up, final_norm: all of it; wo, ffn_reduce, down: their own rows |
| q, k, v | a row | qkv | scores, attend: q and k rows of its heads; of the last chunk the v rows too |
| newest K and V row, in the cache | a K/V head | scores or attend of the last chunk | that same tile; values of the last chunk |
| scores | a head and chunk | scores | values: its heads, all chunks |
| attention partials | a head and chunk | values or attend | wo: all |
| FFN partials | a partial | ffn | ffn_reduce: all |
| activation | a row | gate_up | down: all |
| normed | a row | final_norm | lm_head: all |
| candidates | a slot | lm_head | embed of the next token: all |

The newest K and V rows reach the cache through the scores or attend tile of the last chunk, so this
tile reads the v rows of its heads too, though only values needs them. (A CPU's qkv tile puts V rows
into the cache itself. What is in time for the tile of the last chunk is in time for that as well.) In
the fused form chunk 0 is the last: its scores tiles read q, k and v rows of their heads, write the
newest rows and partial 0, and wo reads partial 0 alone. All other scores tiles and all values tiles
are idle: they neither read nor write.

**Chunks in use.** In one pass the position decides how many chunks are in use, from one to all of
them, so there are as many cases as chunks. With `k` in use, attend tiles of part `k` and above are
idle, the *last chunk* is part `k - 1`, and wo reads the first `k` partials. We need not go through
the cases; one case, stricter than all of them, is enough: *all chunks in use, and every attend tile
also reads the v rows of its heads.*

- It is enough. With `k` in use the tiles that run, and all that they read and write, are some of
  those of the strict case, in the same epochs; and "written once" is asked of each part by itself,
  so for any `k` the first `k` partials of a head are written once each, and its newest rows once,
  by the tile of part `k - 1`.
- It asks for no more than the cases do together. All chunks are in use in case `k = chunks`, and an
  attend tile of part `c` does read the v rows, in case `k = c + 1`. The fewest tokens
  that lead to a case may be more than the model's context has; then the rule is stricter than that
  model needs, and no planner has a reason to want it otherwise.

Tokens of different cases may follow each other: what one token leaves to the next goes through the
candidates and the last barrier, whatever its case.

**Versions.** A decoder is a chain, so the version of a buffer that a tile must find is known from
its opcode and layer alone. qkv of layer 3, say, needs the residual after ffn_reduce of layer 2: no
older, no newer.

The rules say that every element of every version is **written once**, that it is written in an
earlier epoch than it is **read**, and that the next version does not **overwrite** it in an epoch
in which it may still be read. Then there is exactly one value that a tile can find, and it is the
right one.

A wo tile works in place: it reads version 2·l of its residual rows and writes version 2·l+1 of the
same rows. Its own read is no conflict, since the tile itself reads before it writes, and "written
once" leaves those rows to no other tile.

## Naming the culprit

A refusal is one line: the tile by its number and its text, the rule, and what is wrong. :*/
//> describe
typedef struct Text {
  char s[144];
} Text;

static bool by_chunk(int op) { return op == OP_SCORES || op == OP_VALUES || op == OP_ATTEND; }

static Text describe(const Plan *p, uint32_t i) {
  Text out;
  const Tile *t = &p->tile[i];
  char layer[24] = "", part[24] = "";
  if ((t->op >= OP_QKV && t->op <= OP_DOWN) || t->op == OP_MERGE)
    snprintf(layer, sizeof layer, " layer %u", t->layer);
  if (by_chunk(t->op) || t->op == OP_FFN || t->op == OP_LM_HEAD)
    snprintf(part, sizeof part, " part %u", t->part);
  snprintf(out.s, sizeof out.s, "tile %u (%s%s rows %u..%u%s wave %u worker %u)", i, op_name(t->op),
           layer, t->row0, t->row1, part, t->wave, t->worker);
  return out;
}
//< describe

/*: ## Sizes

First the header alone, so that no arithmetic after it can overflow and no allocation can be absurd.
A dimension may be any number that a model could have, and 16 million bounds them all. :*/
//> plan_sizes
static int check_count(const char *what, uint64_t n, uint64_t least, uint64_t most, Error *e) {
  if (n >= least && n <= most) return 0;
  return fail(e, EXIT_PLAN, "plan: rule \"sizes\": %s is %lld; must be %llu to %llu", what,
              (long long)n, (unsigned long long)least, (unsigned long long)most);
}

static int check_cost(const char *what, double x, Error *e) {
  if (isfinite(x) && x >= 0) return 0;
  return fail(e, EXIT_PLAN, "plan: rule \"sizes\": target: %s is %g; must be 0 or more", what, x);
}

// The ring beside a worker's own needs, with `tiles` tiles on the worker that has most; and every matrix's rows in its slots.
static int check_ring(const Plan *p, uint32_t tiles, Error *e) {
  const Shape *s = &p->shape;
  if (p->ring_slots < 2 || p->slot_bytes == 0 || p->slot_bytes % 16)
    return fail(e, EXIT_PLAN,
                "plan: rule \"ring\": %u slots of %u bytes; at least 2, of a multiple of 16",
                p->ring_slots, p->slot_bytes);
  uint64_t ring = (uint64_t)p->ring_slots * p->slot_bytes,
           reserve = tape_reserve(s, p->workers, tiles);
  if (p->target.shared_bytes && ring + reserve > p->target.shared_bytes)
    return fail(e, EXIT_PLAN,
                "plan: rule \"ring\": %u slots of %u bytes and %llu beside them; a worker has %u",
                p->ring_slots, p->slot_bytes, (unsigned long long)reserve, p->target.shared_bytes);
  const uint32_t columns[] = {(uint32_t)s->hidden, (uint32_t)s->heads * (uint32_t)s->head_dim,
                              (uint32_t)s->inter};
  for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
    if (tape_cut(columns[i], p->slot_bytes).rows == 0)
      return fail(e, EXIT_PLAN,
                  "plan: rule \"ring\": rows of %u columns do not fit slots of %u bytes",
                  columns[i], p->slot_bytes);
  return 0;
}

// What hand-offs of data ask of the header, and what a plan with barriers must leave empty.
static int check_sync(const Plan *p, Error *e) {
  const Shape *s = &p->shape;
  if (p->sync == SYNC_BARRIER) {
    if (p->ring_slots || p->slot_bytes)
      return fail(
          e, EXIT_PLAN,
          "plan: rule \"sync\": a ring of %u slots of %u bytes; with barriers there is none",
          p->ring_slots, p->slot_bytes);
    return 0;
  }
  if (p->sync != SYNC_DATA)
    return fail(e, EXIT_PLAN, "plan: rule \"sync\": sync is %d; must be %d or %d", (int)p->sync,
                SYNC_BARRIER, SYNC_DATA);
  if (strcmp(p->target.kind, "cuda") != 0)
    return fail(e, EXIT_PLAN,
                "plan: rule \"sync\": hand-offs of data on a target of kind %s, not cuda",
                p->target.kind);
  if (!p->one_pass || p->ffn_parts)
    return fail(
        e, EXIT_PLAN,
        "plan: rule \"sync\": attention in %d passes and %u FFN partials; hand-offs of data "
        "want 1 and 0",
        p->one_pass ? 1 : 2, p->ffn_parts);
  if (s->heads / s->kv_heads > TAPE_GROUP || s->head_dim % 8 || s->head_dim > TAPE_HEAD)
    return fail(
        e, EXIT_PLAN,
        "plan: rule \"sync\": %d query heads of %d a K/V head; at most %d, of a multiple of 8 "
        "up to %d",
        s->heads / s->kv_heads, s->head_dim, TAPE_GROUP, TAPE_HEAD);
  return check_ring(p, 0, e);
}

int plan_sizes(const Plan *p, Error *e) {
  const Shape *s = &p->shape;
  const Target *t = &p->target;
  const uint64_t most = 1 << 24;
  // A negative number becomes a huge one here, and prints as itself.
  if (check_count("vocab", (uint64_t)s->vocab, 1, most, e) ||
      check_count("hidden", (uint64_t)s->hidden, 1, most, e) ||
      check_count("inter", (uint64_t)s->inter, 1, most, e) ||
      check_count("layers", (uint64_t)s->layers, 1, 4096, e) ||
      check_count("heads", (uint64_t)s->heads, 1, 4096, e) ||
      check_count("kv_heads", (uint64_t)s->kv_heads, 1, (uint64_t)s->heads, e) ||
      check_count("head_dim", (uint64_t)s->head_dim, 2, 1 << 16, e) ||
      check_count("rows of q, k and v",
                  ((uint64_t)s->heads + 2 * (uint64_t)s->kv_heads) * (uint64_t)s->head_dim, 1, most,
                  e) ||
      check_count("max_context", (uint64_t)s->max_context, 1, INT32_MAX, e) ||
      check_count("dtype", s->dtype, DT_F32, DT_F16, e))
    return -1;
  if (s->heads % s->kv_heads || s->head_dim % 2)
    return fail(e, EXIT_PLAN,
                "plan: rule \"sizes\": %d heads of %d over %d K/V heads: heads must be a multiple "
                "of K/V heads, and their size even",
                s->heads, s->head_dim, s->kv_heads);

  if (check_count("workers", p->workers, 1, PLAN_MAX_WORKERS, e) ||
      check_count("the target's workers", t->workers, p->workers, p->workers, e) ||
      check_count("tiles", p->tile_count, 1, PLAN_MAX_TILES, e) ||
      check_count("waves", p->wave_count, 1, p->tile_count, e) ||
      check_count("chunks", p->chunks, 1, PLAN_MAX_CHUNKS, e) ||
      check_count("ffn_parts", p->ffn_parts, 0, (uint64_t)s->inter, e) ||
      check_count("slots", p->slots, 1, (uint64_t)s->vocab, e))
    return -1;
  if (check_cost("read_gbs", t->read_gbs, e) || check_cost("worker_gbs", t->worker_gbs, e) ||
      check_cost("kv_worker_gbs", t->kv_worker_gbs, e) ||
      check_cost("barrier_us", t->barrier_us, e) || check_cost("ramp_us", t->ramp_us, e) ||
      check_cost("handoff_us", t->handoff_us, e) || check_cost("attention_us", t->attention_us, e))
    return -1;
  if (check_sync(p, e) != 0) return -1;

  if (p->chunks == 1 && p->fused_context != UINT32_MAX)
    return fail(e, EXIT_PLAN,
                "plan: rule \"one chunk\": fused_context is %u; with one chunk it serves every "
                "context, and must be %u",
                p->fused_context, UINT32_MAX);
  // No chunk with work is ever without a position. In two passes the split form begins above
  // fused_context, with a position for each chunk. In one pass n positions have at most
  // ceil(n / fused_context) chunks, so no more than n.
  if (p->one_pass) return check_count("fused_context", p->fused_context, 1, UINT32_MAX, e);
  if (p->chunks > 1 && p->fused_context < p->chunks - 1)
    return fail(e, EXIT_PLAN,
                "plan: rule \"sizes\": fused_context is %u; with %u chunks at least %u",
                p->fused_context, p->chunks, p->chunks - 1);
  return 0;
}
//< plan_sizes

/*: ## Each tile by itself

The order makes a worker's list a range of the array; the bounds make sure that a tile's numbers
mean something. `extent` is the one place that knows how many rows and parts each opcode has. :*/
//> extent
typedef struct Extent {
  uint32_t rows, parts;
  bool layered;
} Extent;

static Extent extent(const Plan *p, int op) {
  const Shape *s = &p->shape;
  uint32_t hidden = (uint32_t)s->hidden, inter = (uint32_t)s->inter, kv = (uint32_t)s->kv_heads;
  switch (op) {
  case OP_EMBED:
  case OP_FINAL_NORM: return (Extent){hidden, 1, false};
  case OP_QKV: return (Extent){(uint32_t)qkv_rows(s), 1, true};
  case OP_SCORES:
  case OP_VALUES:
  case OP_ATTEND: return (Extent){kv, p->chunks, true};
  case OP_WO:
  case OP_FFN_REDUCE:
  case OP_DOWN: return (Extent){hidden, 1, true};
  case OP_FFN: return (Extent){inter, p->ffn_parts, true};
  case OP_GATE_UP: return (Extent){inter, 1, true};
  case OP_MERGE: return (Extent){(uint32_t)s->heads * (uint32_t)s->head_dim, 1, true};
  default: return (Extent){(uint32_t)s->vocab, p->slots, false}; // lm_head
  }
}
//< extent

//> check_tiles
static int refuse(const Plan *p, uint32_t i, const char *rule, Error *e, const char *why) {
  return fail(e, EXIT_PLAN, "plan: %s: rule \"%s\": %s", describe(p, i).s, rule, why);
}

static int check_tile(const Plan *p, uint32_t i, Error *e) {
  const Tile *t = &p->tile[i];
  char why[128];
  if (t->worker >= p->workers) {
    snprintf(why, sizeof why, "worker %u of %u", t->worker, p->workers);
    return refuse(p, i, "grid", e, why);
  }
  if (t->wave >= p->wave_count) {
    snprintf(why, sizeof why, "wave %u of %u", t->wave, p->wave_count);
    return refuse(p, i, "grid", e, why);
  }
  if (i && (t[-1].worker > t->worker || (t[-1].worker == t->worker && t[-1].wave > t->wave))) {
    snprintf(why, sizeof why, "after worker %u wave %u", t[-1].worker, t[-1].wave);
    return refuse(p, i, "order", e, why);
  }
  if (t->op >= OP_COUNT) {
    snprintf(why, sizeof why, "opcode %u of %d", t->op, OP_COUNT);
    return refuse(p, i, "bounds", e, why);
  }
  if (p->ffn_parts ? t->op == OP_GATE_UP || t->op == OP_DOWN
                   : t->op == OP_FFN || t->op == OP_FFN_REDUCE) {
    snprintf(why, sizeof why, "a plan with %u FFN partials has no such tile", p->ffn_parts);
    return refuse(p, i, "one FFN form", e, why);
  }
  if (p->one_pass ? t->op == OP_SCORES || t->op == OP_VALUES : t->op == OP_ATTEND) {
    snprintf(why, sizeof why, "a plan with attention in %s has no such tile",
             p->one_pass ? "one pass" : "two passes");
    return refuse(p, i, "one attention", e, why);
  }
  bool data = p->sync == SYNC_DATA;
  if (data ? t->op == OP_EMBED || t->op == OP_FINAL_NORM : t->op == OP_MERGE) {
    snprintf(why, sizeof why, "a plan whose hand-offs are %s has no such tile",
             data ? "data" : "barriers");
    return refuse(p, i, "one sync", e, why);
  }
  if (p->chunks == 1 && t->op == OP_MERGE)
    return refuse(p, i, "one chunk", e, "with one chunk there is nothing to merge");
  if (p->chunks == 1 && t->op == OP_VALUES)
    return refuse(p, i, "one chunk", e, "with one chunk the scores tiles do all of attention");

  Extent x = extent(p, t->op);
  uint32_t layers = x.layered ? (uint32_t)p->shape.layers : 1;
  if (t->layer >= layers) snprintf(why, sizeof why, "layer %u of %u", t->layer, layers);
  else if (t->row0 >= t->row1 || t->row1 > x.rows)
    snprintf(why, sizeof why, "rows %u..%u of %u", t->row0, t->row1, x.rows);
  else if (t->op == OP_MERGE && (t->row0 % 4 || t->row1 % 4))
    snprintf(why, sizeof why, "rows %u..%u: merged by fours", t->row0, t->row1);
  else if (t->part >= x.parts) snprintf(why, sizeof why, "part %u of %u", t->part, x.parts);
  else return 0;
  return refuse(p, i, "bounds", e, why);
}

static int check_first(const Plan *p, Error *e) {
  uint32_t i = 0;
  for (uint32_t w = 0; w <= p->workers; w++) {
    while (i < p->tile_count && p->tile[i].worker < w) i++;
    if (p->first[w] != i)
      return fail(e, EXIT_PLAN, "plan: rule \"order\": worker %u begins at tile %u, not at tile %u",
                  w, i, p->first[w]);
  }
  return 0;
}
//< check_tiles

/*: ## Barriers

Only two kinds exist, and in one pass only one of them; a plan whose hand-offs are data has a third kind throughout. A wave without a tile would be a wait for
nothing, so we take it for a mistake. The last barrier is never skipped: it is all that lies between
this token's candidates and the next token's embed. :*/
//> check_barriers
static int check_barriers(const Plan *p, uint32_t *tiles_of_wave, Error *e) {
  for (uint32_t i = 0; i < p->tile_count; i++) tiles_of_wave[p->tile[i].wave]++;
  for (uint32_t w = 0; w < p->wave_count; w++) {
    if (!tiles_of_wave[w])
      return fail(e, EXIT_PLAN, "plan: rule \"barriers\": wave %u of %u has no tile", w,
                  p->wave_count);
    if (p->sync == SYNC_DATA) {
      if (p->barrier[w] == BARRIER_DATA) continue;
      return fail(
          e, EXIT_PLAN,
          "plan: rule \"barriers\": wave %u ends at a barrier of kind %u; where hand-offs are "
          "data, of kind %d",
          w, p->barrier[w], BARRIER_DATA);
    }
    if (p->barrier[w] != BARRIER_ALWAYS && p->barrier[w] != BARRIER_IF_SPLIT)
      return fail(e, EXIT_PLAN, "plan: rule \"barriers\": wave %u ends at a barrier of kind %u", w,
                  p->barrier[w]);
    if (p->one_pass && p->barrier[w] != BARRIER_ALWAYS)
      return fail(e, EXIT_PLAN,
                  "plan: rule \"barriers\": wave %u ends at a barrier that may be skipped; with "
                  "attention in one pass none may",
                  w);
  }
  if (p->sync == SYNC_BARRIER && p->barrier[p->wave_count - 1] != BARRIER_ALWAYS)
    return fail(e, EXIT_PLAN,
                "plan: rule \"barriers\": the last wave's barrier may not be skipped");
  return 0;
}
//< check_barriers

/*: ## Written once

Now the tiles are grouped: all tiles of one opcode in one layer, in the order of their rows. That is
two sorts, one by counting and one that nearly always finds its group sorted already. In that order
"every row exactly once" is a walk: each tile must begin where the one before it ended. Attention's
tiles are walked chunk by chunk. Where a tile also owns a numbered part (an FFN partial, a
candidate slot), each number must occur once. :*/
//> group
typedef struct Group {
  const uint32_t *list; // indices of tiles
  uint32_t count;
} Group;

typedef struct Check {
  const Plan *p;
  Error *e;
  uint32_t *list;    // [tile_count] grouped
  uint32_t *begin;   // [layers * OP_COUNT + 1] into list
  uint32_t *epoch;   // [wave_count] in the form that is being checked
  struct Span *span; // [layers * OP_COUNT], where hand-offs are data
  bool fused;
  uint8_t *taken;                          // [max(ffn_parts, slots)]
  uint32_t *qk_writer, *v_writer, *scored; // [kv_heads] the latest tile that wrote for this head
} Check;

static Group group(const Check *c, uint32_t layer, Op op) {
  uint32_t g = layer * OP_COUNT + op;
  return (Group){c->list + c->begin[g], c->begin[g + 1] - c->begin[g]};
}

static bool comes_after(const Plan *p, uint32_t a, uint32_t b) {
  const Tile *s = &p->tile[a], *t = &p->tile[b];
  if (by_chunk(s->op) && s->part != t->part) return s->part > t->part;
  return s->row0 > t->row0;
}

// Merge sort from short runs: linear where the list is sorted already, never quadratic.
static void sort_group(const Plan *p, uint32_t *list, uint32_t n, uint32_t *scratch) {
  if (n < 2) return;
  uint32_t half = n / 2;
  sort_group(p, list, half, scratch);
  sort_group(p, list + half, n - half, scratch);
  if (!comes_after(p, list[half - 1], list[half])) return;
  memcpy(scratch, list, half * sizeof *list);
  for (uint32_t i = 0, j = half, k = 0; i < half; k++)
    list[k] = j < n && comes_after(p, scratch[i], list[j]) ? list[j++] : scratch[i++];
}

static void make_groups(Check *c, uint32_t *scratch) {
  const Plan *p = c->p;
  uint32_t groups = (uint32_t)p->shape.layers * OP_COUNT;
  for (uint32_t i = 0; i < p->tile_count; i++)
    c->begin[p->tile[i].layer * OP_COUNT + p->tile[i].op + 1]++;
  for (uint32_t g = 0; g < groups; g++) c->begin[g + 1] += c->begin[g];
  for (uint32_t i = 0; i < p->tile_count; i++)
    c->list[c->begin[p->tile[i].layer * OP_COUNT + p->tile[i].op]++] = i;
  memmove(c->begin + 1, c->begin, groups * sizeof *c->begin); // filling moved every beginning on
  c->begin[0] = 0;
  for (uint32_t g = 0; g < groups; g++)
    sort_group(p, c->list + c->begin[g], c->begin[g + 1] - c->begin[g], scratch);
}
//< group

//> written_once
static int unwritten(Check *c, uint32_t layer, Op op, const char *what, uint32_t row) {
  char where[24] = "";
  if (extent(c->p, op).layered) snprintf(where, sizeof where, " layer %u", layer);
  return fail(c->e, EXIT_PLAN, "plan: %s%s: rule \"written once\": no tile writes %s %u",
              op_name((int)op), where, what, row);
}

// The tiles list[0, n) must cover [0, rows) without a gap and without an overlap.
static int check_cover(Check *c, uint32_t layer, Op op, const uint32_t *list, uint32_t n,
                       uint32_t rows) {
  uint32_t next = 0;
  for (uint32_t k = 0; k < n; k++) {
    const Tile *t = &c->p->tile[list[k]];
    if (t->row0 > next) return unwritten(c, layer, op, "row", next);
    if (t->row0 < next) {
      char why[192];
      snprintf(why, sizeof why, "row %u is also written by %s", t->row0,
               describe(c->p, list[k - 1]).s);
      return refuse(c->p, list[k], "written once", c->e, why);
    }
    next = t->row1;
  }
  return next == rows ? 0 : unwritten(c, layer, op, "row", next);
}

static int check_parts(Check *c, uint32_t layer, Op op, Group g, uint32_t parts) {
  memset(c->taken, 0, parts);
  for (uint32_t k = 0; k < g.count; k++) {
    uint32_t part = c->p->tile[g.list[k]].part;
    if (c->taken[part])
      return refuse(c->p, g.list[k], "written once", c->e, "another tile writes the same part");
    c->taken[part] = 1;
  }
  for (uint32_t part = 0; part < parts; part++)
    if (!c->taken[part]) return unwritten(c, layer, op, "part", part);
  return 0;
}

static int check_written_once(Check *c, uint32_t layer, Op op) {
  Group g = group(c, layer, op);
  Extent x = extent(c->p, op);
  if (!by_chunk(op)) {
    if (check_cover(c, layer, op, g.list, g.count, x.rows) != 0) return -1;
    return op == OP_FFN || op == OP_LM_HEAD ? check_parts(c, layer, op, g, x.parts) : 0;
  }
  uint32_t k = 0;
  for (uint32_t chunk = 0; chunk < x.parts; chunk++) {
    uint32_t begin = k;
    while (k < g.count && c->p->tile[g.list[k]].part == chunk) k++;
    if (check_cover(c, layer, op, g.list + begin, k - begin, x.rows) != 0) return -1;
  }
  return 0;
}
//< written_once

/*: ## Read after write, and no overwrite

Most of a decoder's edges are all-to-all: every qkv tile reads the whole residual, so *the earliest*
qkv tile must come after *the latest* tile that wrote it. One comparison settles an edge, however
many tiles there are. Three kinds of edge are narrower, and each is a walk along rows in order:

- the tiles that work in place find their own rows written (two partitions of the same rows,
  merged);
- attention finds the q, k and v rows of its heads;
- values finds the scores of its heads, and with them the newest rows in the cache: the scores tile of
  the last chunk has put them there.

The same two numbers settle the other rule: *the latest* reader of a version must come before *the
earliest* tile that writes the next version. On a plan whose reads are all in order this one cannot
fail, because in a decoder each reader of a version is an ancestor of the version that follows. We
check it first nevertheless: it names the real damage, and it will not be forgotten when an opcode
comes along for which that argument does not hold. :*/
//> edges
static uint32_t epoch_of(const Check *c, uint32_t tile) { return c->epoch[c->p->tile[tile].wave]; }

// In the fused form only the scores tiles of chunk 0 do anything in attention. In one pass we check the
// case in which nobody is idle.
static bool idle(const Check *c, const Tile *t) {
  return c->fused && (t->op == OP_VALUES || (t->op == OP_SCORES && t->part != 0));
}

// The tile of the group that runs latest (or earliest), idle tiles left out. Groups are never empty here,
// and the part that is active never is.
static uint32_t extreme(const Check *c, Group g, bool latest) {
  uint32_t best = UINT32_MAX;
  for (uint32_t k = 0; k < g.count; k++) {
    uint32_t i = g.list[k];
    if (idle(c, &c->p->tile[i])) continue;
    if (best == UINT32_MAX ||
        (latest ? epoch_of(c, i) > epoch_of(c, best) : epoch_of(c, i) < epoch_of(c, best)))
      best = i;
  }
  return best;
}

static int check_read(Check *c, uint32_t reader, uint32_t writer, const char *what) {
  if (epoch_of(c, reader) > epoch_of(c, writer)) return 0;
  char why[288];
  snprintf(why, sizeof why, "%s%s %s, which writes the %s that it reads",
           c->p->sync == SYNC_DATA ? "in no later wave than" : "no barrier",
           c->p->sync == SYNC_DATA ? ""
           : c->fused              ? " (up to fused_context) between it and"
                                   : " between it and",
           describe(c->p, writer).s, what);
  return refuse(c->p, reader, "read after write", c->e, why);
}

static int check_read_all(Check *c, Group readers, Group writers, const char *what) {
  return check_read(c, extreme(c, readers, false), extreme(c, writers, true), what);
}

static int check_overwrite(Check *c, Group readers, Group next_writers, const char *what) {
  uint32_t reader = extreme(c, readers, true), writer = extreme(c, next_writers, false);
  if (epoch_of(c, writer) > epoch_of(c, reader)) return 0;
  char why[288];
  snprintf(why, sizeof why, "no barrier%s between it and %s, which still reads the %s",
           c->fused ? " (up to fused_context)" : "", describe(c->p, reader).s, what);
  return refuse(c->p, writer, "no overwrite", c->e, why);
}

// Both groups cover the same rows; each reader needs the writers of its own rows only.
static int check_read_rows(Check *c, Group readers, Group writers) {
  uint32_t w = 0;
  for (uint32_t r = 0; r < readers.count; r++) {
    const Tile *t = &c->p->tile[readers.list[r]];
    for (;; w++) {
      if (check_read(c, readers.list[r], writers.list[w], "residual rows") != 0) return -1;
      if (c->p->tile[writers.list[w]].row1 >= t->row1) break;
    }
    if (c->p->tile[writers.list[w]].row1 == t->row1) w++;
  }
  return 0;
}
//< edges

/*: For attention we note, for each K/V head, the tile that wrote its rows last. A K/V head's query
rows are those of all query heads that share it; its K and V rows follow after all query rows. The
tiles that read q and k are the scores or the attend tiles; v rows are for those of them that may be
the last chunk's: all attend tiles, scores tiles of the last part, and in the fused form all that are not idle. :*/
//> heads
static void note_writer(const Check *c, uint32_t *writer, uint32_t tile, uint32_t row0,
                        uint32_t row1, uint32_t base, uint32_t rows_per_head) {
  uint32_t end = base + (uint32_t)c->p->shape.kv_heads * rows_per_head;
  if (row0 < base) row0 = base;
  if (row1 > end) row1 = end;
  if (row0 >= row1) return;
  for (uint32_t h = (row0 - base) / rows_per_head; h <= (row1 - 1 - base) / rows_per_head; h++)
    if (writer[h] == UINT32_MAX || epoch_of(c, tile) > epoch_of(c, writer[h])) writer[h] = tile;
}

static Op reads_q(const Plan *p) { return p->one_pass ? OP_ATTEND : OP_SCORES; }

// Who writes the attention partials.
static Op writes_partials(const Check *c) {
  return c->p->one_pass ? OP_ATTEND : c->fused ? OP_SCORES : OP_VALUES;
}

static int check_attention(Check *c, uint32_t layer) {
  const Plan *p = c->p;
  const Shape *s = &p->shape;
  uint32_t kv = (uint32_t)s->kv_heads, dim = (uint32_t)s->head_dim, heads = (uint32_t)s->heads;
  Group qkv = group(c, layer, OP_QKV), scores = group(c, layer, reads_q(p));
  bool whole = c->fused || p->one_pass;
  memset(c->qk_writer, 0xff, kv * sizeof *c->qk_writer);
  memset(c->v_writer, 0xff, kv * sizeof *c->v_writer);
  memset(c->scored, 0xff, kv * sizeof *c->scored);
  for (uint32_t k = 0; k < qkv.count; k++) {
    uint32_t i = qkv.list[k], row0 = p->tile[i].row0, row1 = p->tile[i].row1;
    note_writer(c, c->qk_writer, i, row0, row1, 0, heads / kv * dim);
    note_writer(c, c->qk_writer, i, row0, row1, heads * dim, dim);
    note_writer(c, c->v_writer, i, row0, row1, (heads + kv) * dim, dim);
  }
  for (uint32_t k = 0; k < scores.count; k++) {
    uint32_t i = scores.list[k];
    const Tile *t = &p->tile[i];
    if (idle(c, t)) continue;
    bool newest = whole || t->part == p->chunks - 1;
    for (uint32_t h = t->row0; h < t->row1; h++)
      if (check_read(c, i, c->qk_writer[h], "q and k rows") != 0 ||
          (newest && check_read(c, i, c->v_writer[h], "newest V row") != 0))
        return -1;
    note_writer(c, c->scored, i, t->row0, t->row1, 0, 1);
  }
  if (whole) return 0;
  Group values = group(c, layer, OP_VALUES);
  for (uint32_t k = 0; k < values.count; k++) {
    uint32_t i = values.list[k];
    const Tile *t = &p->tile[i];
    for (uint32_t h = t->row0; h < t->row1; h++)
      if (check_read(c, i, c->scored[h], "scores") != 0) return -1;
  }
  return 0;
}
//< heads

/*: ## The chain

The table at the top of this file, as code. Every layer has the same edges; the residual comes from
the layer before, and each buffer's version from the layer before must no longer be needed. Some
comparisons follow from others (the residual rows that wo reads in place are older than all of qkv).
They stand here because the table says so, and a comparison is cheaper than the argument why it may
be left out. :*/
//> chain
static int check_layer(Check *c, uint32_t l) {
  bool parts = c->p->ffn_parts > 0;
  Op up = parts ? OP_FFN : OP_GATE_UP, down = parts ? OP_FFN_REDUCE : OP_DOWN;
  const char *mlp = parts ? "FFN partials" : "activation";
  Op first = reads_q(c->p), last = writes_partials(c);
  Group in = l ? group(c, l - 1, down) : group(c, 0, OP_EMBED);
  Group qkv = group(c, l, OP_QKV), partials = group(c, l, last);
  Group wo = group(c, l, OP_WO), ffn = group(c, l, up), reduce = group(c, l, down);

  if (l && (check_overwrite(c, group(c, l - 1, first), qkv, "q, k and v rows") != 0 ||
            (last == OP_VALUES &&
             check_overwrite(c, group(c, l - 1, last), group(c, l, first), "scores") != 0) ||
            check_overwrite(c, group(c, l - 1, OP_WO), partials, "attention partials") != 0 ||
            check_overwrite(c, group(c, l - 1, down), ffn, mlp) != 0))
    return -1;
  if (check_overwrite(c, qkv, wo, "residual") != 0 ||
      check_overwrite(c, ffn, reduce, "residual") != 0)
    return -1;

  if (check_read_all(c, qkv, in, "residual") != 0 || check_attention(c, l) != 0 ||
      check_read_all(c, wo, partials, "attention partials") != 0 ||
      check_read_rows(c, wo, in) != 0 || check_read_all(c, ffn, wo, "residual") != 0 ||
      check_read_all(c, reduce, ffn, mlp) != 0 || check_read_rows(c, reduce, wo) != 0)
    return -1;
  return 0;
}

static int check_form(Check *c, bool fused) {
  c->fused = fused;
  uint32_t epoch = 0;
  for (uint32_t w = 0; w < c->p->wave_count; w++) {
    c->epoch[w] = epoch;
    epoch += c->p->barrier[w] == BARRIER_ALWAYS || !fused;
  }
  uint32_t layers = (uint32_t)c->p->shape.layers;
  for (uint32_t l = 0; l < layers; l++)
    if (check_layer(c, l) != 0) return -1;
  Group x = group(c, layers - 1, c->p->ffn_parts ? OP_FFN_REDUCE : OP_DOWN);
  Group norm = group(c, 0, OP_FINAL_NORM), head = group(c, 0, OP_LM_HEAD);
  if (check_overwrite(c, group(c, 0, OP_EMBED), head, "candidates") != 0 ||
      check_read_all(c, norm, x, "residual") != 0 ||
      check_read_all(c, head, norm, "normed rows") != 0)
    return -1;
  return 0;
}
//< chain

/*: ## Without barriers

Where hand-offs are data, each wave is an epoch of its own: a tile waits for what it reads, and if all that it reads is written
in earlier waves, the tiles in the order of their waves are an order in which nobody waits for ever. Two things are read other than the
table at the top says. The partials of all chunks are read by merge, a K/V head's by the merge tiles of its rows, and `wo` reads
the attention output: of merge, or with one chunk in use of attend. And the residual rows that `wo` and down add to are not
read again; a worker **keeps** them from the tile with which it last read the residual whole, in qkv and in gate_up. :*/
//> tape_epochs
typedef struct Span {
  uint32_t first, last; // waves of the tiles of one opcode in one layer
  bool everyone;        // each worker has one
} Span;

static Span span(const Check *c, uint32_t layer, Op op) { return c->span[layer * OP_COUNT + op]; }

// seen: [workers] of zeros
static void make_spans(Check *c, uint32_t *seen) {
  uint32_t groups = (uint32_t)c->p->shape.layers * OP_COUNT;
  for (uint32_t g = 0; g < groups; g++) {
    Span s = {UINT32_MAX, 0, false};
    uint32_t workers = 0;
    for (uint32_t k = c->begin[g]; k < c->begin[g + 1]; k++) {
      const Tile *t = &c->p->tile[c->list[k]];
      if (t->wave < s.first) s.first = t->wave;
      if (t->wave > s.last) s.last = t->wave;
      workers += seen[t->worker] != g + 1;
      seen[t->worker] = g + 1;
    }
    s.everyone = workers == c->p->workers;
    c->span[g] = s;
  }
}

static int check_kept(Check *c, uint32_t layer, Op adds, Op whole) {
  Span from = span(c, layer, whole), to = span(c, layer, adds);
  if (from.everyone && from.last < to.first) return 0;
  char why[160];
  snprintf(
      why, sizeof why,
      "it adds to residual rows that its worker must have read in %s, by wave %u of every worker",
      op_name((int)whole), to.first);
  return refuse(c->p, extreme(c, group(c, layer, adds), false), "read after write", c->e, why);
}

static int check_tape_layer(Check *c, uint32_t l) {
  const Plan *p = c->p;
  Group qkv = group(c, l, OP_QKV), attend = group(c, l, OP_ATTEND), merge = group(c, l, OP_MERGE);
  Group wo = group(c, l, OP_WO), up = group(c, l, OP_GATE_UP), down = group(c, l, OP_DOWN);
  if (l && check_read_all(c, qkv, group(c, l - 1, OP_DOWN), "residual") != 0) return -1;
  if (check_attention(c, l) != 0) return -1;
  uint32_t elements = (uint32_t)(p->shape.heads / p->shape.kv_heads * p->shape.head_dim);
  for (uint32_t k = 0; k < merge.count; k++) {
    const Tile *t = &p->tile[merge.list[k]];
    for (uint32_t h = t->row0 / elements; h <= (t->row1 - 1) / elements; h++)
      if (check_read(c, merge.list[k], c->scored[h], "attention partials") != 0) return -1;
  }
  if (check_read_all(c, wo, attend, "attention output") != 0 ||
      (merge.count && check_read_all(c, wo, merge, "attention output") != 0) ||
      check_read_all(c, up, wo, "residual") != 0 || check_read_all(c, down, up, "activation") != 0)
    return -1;
  return 0;
}

static int check_tape_epochs(Check *c) {
  uint32_t layers = (uint32_t)c->p->shape.layers;
  for (uint32_t w = 0; w < c->p->wave_count; w++) c->epoch[w] = w;
  for (uint32_t l = 0; l < layers; l++)
    if (check_tape_layer(c, l) != 0) return -1;
  return check_read_all(c, group(c, 0, OP_LM_HEAD), group(c, layers - 1, OP_DOWN), "residual");
}

// After the rule "reuse", which says more where a worker has no such tile at all.
static int check_keeping(Check *c) {
  for (uint32_t l = 0; l < (uint32_t)c->p->shape.layers; l++)
    if (check_kept(c, l, OP_WO, OP_QKV) != 0 || check_kept(c, l, OP_DOWN, OP_GATE_UP) != 0)
      return -1;
  return 0;
}
//< tape_epochs

/*: ### Used again

A value that says itself that it is there must be **reset** before the next value may take its place: else a reader would take
the old for the new. The worker that wrote a value resets it. So each place in a buffer goes through *written, read by all that need it,
reset, written again*, and the table below says where the reset is: at the beginning of a tile of down or lm_head, when that tile has
all that it reads. A buffer has one copy, or two that are used by turns: by layers, running on from token to token, or by tokens.

Four things must then be known to be over, with no barrier to say so:

1. all reads, before the reset;
2. the reset, before the next value of the same copy is written, be it by another worker;
3. the reset, before any reader looks for that next value;
4. of the cache, which is never reset: the writing, before the next token's attention.

Each of them is "everybody has finished this, before anybody begins that", and what proves it is a **meeting**: a hand-off to which every
worker contributes and that every worker reads whole. Who has read all of it knows that everybody has come so far. A layer has three:
the residual after `wo`, read in gate_up; the activation, read in down; the residual after down, read in qkv of the next layer or, by every
token, in lm_head. (Where no logits are wanted, an lm_head tile still reads the residual, and does nothing else. Candidates are no meeting:
such a token has none.) :*/
//> tape_reuse
typedef struct HandOff {
  const char *what;
  Op write, also; // also: by which it is written as well, or the same
  Op read;        // of the next layer where `next`, or of the next token
  bool next, by_token;
  uint32_t copies; // 0: never reset
  Op reset;        // at the beginning of this tile
  uint32_t later;  // of the same layer or token, or of the next
} HandOff;

static const HandOff hand_offs[] = {
    {"q, k and v rows", OP_QKV, OP_QKV, OP_ATTEND, false, false, 1, OP_DOWN, 0},
    {"attention partials", OP_ATTEND, OP_ATTEND, OP_MERGE, false, false, 1, OP_DOWN, 0},
    {"attention output", OP_ATTEND, OP_MERGE, OP_WO, false, false, 1, OP_DOWN, 0},
    {"residual after wo", OP_WO, OP_WO, OP_GATE_UP, false, false, 1, OP_DOWN, 0},
    {"activation", OP_GATE_UP, OP_GATE_UP, OP_DOWN, false, false, 2, OP_DOWN, 1},
    {"residual after down", OP_DOWN, OP_DOWN, OP_QKV, true, false, 2, OP_DOWN, 1},
    {"candidates", OP_LM_HEAD, OP_LM_HEAD, OP_QKV, true, true, 2, OP_LM_HEAD, 1},
    {"cached keys and values", OP_QKV, OP_ATTEND, OP_ATTEND, true, true, 0, OP_COUNT, 0},
};

// All tiles of an opcode in one layer of one token. `n` counts layers, on from token to token; lm_head belongs to the last.
typedef struct Place {
  Op op;
  uint32_t n;
} Place;

static Span place_span(const Check *c, Place a) {
  return span(c, a.op == OP_LM_HEAD ? 0 : a.n % (uint32_t)c->p->shape.layers, a.op);
}

// When its first tile begins, or its last ends: waves, on from token to token.
static uint64_t place_time(const Check *c, Place a, bool last) {
  Span s = place_span(c, a);
  return (uint64_t)(a.n / (uint32_t)c->p->shape.layers) * c->p->wave_count +
         (last ? s.last : s.first);
}

static bool same_place(Place a, Place b) { return a.op == b.op && a.n == b.n; }

// Who reads the residual after down of layer n.
static Place after_down(const Check *c, uint32_t n) {
  return (n + 1) % (uint32_t)c->p->shape.layers ? (Place){OP_QKV, n + 1} : (Place){OP_LM_HEAD, n};
}

// Whether everybody has finished `from` before anybody begins `to`, or where `inside`, before he goes on from what he reads in `to`.
static bool meet(const Check *c, Place from, Place to, bool inside) {
  for (uint32_t n = from.n; n <= to.n; n++) {
    const Place meetings[][2] = {{{OP_WO, n}, {OP_GATE_UP, n}},
                                 {{OP_GATE_UP, n}, {OP_DOWN, n}},
                                 {{OP_DOWN, n}, after_down(c, n)}};
    for (int k = 0; k < 3; k++) {
      Place give = meetings[k][0], take = meetings[k][1];
      if (place_span(c, give).everyone && place_span(c, take).everyone &&
          (same_place(give, from) || place_time(c, give, false) > place_time(c, from, true)) &&
          ((inside && same_place(take, to)) ||
           place_time(c, take, true) < place_time(c, to, false)))
        return true;
    }
  }
  return false;
}

static int not_met(Check *c, const HandOff *h, uint32_t layer, Place from, Place to,
                   const char *why) {
  uint64_t waves = c->p->wave_count, a = place_time(c, from, true), b = place_time(c, to, false);
  return fail(c->e, EXIT_PLAN,
              "plan: %s of layer %u: rule \"reuse\": %s: from %s in wave %llu to %s in wave %llu "
              "of %llu tokens "
              "later, no hand-off from every worker to every worker",
              h->what, layer, why, op_name((int)from.op), (unsigned long long)(a % waves),
              op_name((int)to.op), (unsigned long long)(b % waves),
              (unsigned long long)(b / waves - a / waves));
}

// The value of layer n, or of the token that ends with it.
static int check_hand_off(Check *c, const HandOff *h, uint32_t n) {
  uint32_t layers = (uint32_t)c->p->shape.layers, step = h->by_token ? layers : 1;
  Place read = {h->read, h->next ? n + step : n};
  if (h->write == OP_DOWN) read = after_down(c, n);
  if (h->write == OP_LM_HEAD) read.n = n + 1;
  if (h->copies == 0)
    return meet(c, (Place){h->also, n}, read, false) && meet(c, (Place){h->write, n}, read, false)
               ? 0
               : not_met(c, h, n, (Place){h->also, n}, read, "read unwritten");
  uint32_t ahead = h->copies * step;
  Place reset = {h->reset, n + h->later * step}, write = {h->write, n + ahead};
  Place also = {h->also, n + ahead}, again = {read.op, read.n + ahead};
  if (h->write == OP_DOWN) again = after_down(c, n + ahead);
  if (!place_span(c, reset).everyone)
    return fail(
        c->e, EXIT_PLAN,
        "plan: %s of layer %u: rule \"reuse\": not every worker has a tile of %s to reset it",
        h->what, n, op_name((int)h->reset));
  if (!meet(c, read, reset, true)) return not_met(c, h, n, read, reset, "reset while read");
  if (!meet(c, reset, write, true))
    return not_met(c, h, n, reset, write, "written before the reset");
  if (!meet(c, reset, also, true)) return not_met(c, h, n, reset, also, "written before the reset");
  if (!meet(c, reset, again, false)) return not_met(c, h, n, reset, again, "read before the reset");
  return 0;
}

static int check_reuse(Check *c) {
  uint32_t layers = (uint32_t)c->p->shape.layers;
  for (size_t k = 0; k < sizeof hand_offs / sizeof *hand_offs; k++) {
    HandOff h = hand_offs[k];
    if (c->p->chunks == 1) { // nothing is merged
      if (h.read == OP_MERGE) continue;
      if (h.also == OP_MERGE) h.also = h.write;
    }
    bool once = h.write == OP_LM_HEAD;
    for (uint32_t n = once ? layers - 1 : 0; n < layers; n++)
      if (check_hand_off(c, &h, n) != 0) return -1;
  }
  return 0;
}
//< tape_reuse

/*: ### The form of a tape

What a worker counts on without looking: the waves in one order, and every worker with one tile in each wave of rows. With these two the
rules before hold, as it happens; they stand on their own, because they say why the form is what it is, and the form does not.
At last the ring again, now that the tiles are counted. A worker's tape is its tiles in their order, and a slot passes from piece `i` to piece
`i` + slots, so that no slot has two owners in any plan whose tiles are in order; what is left to check is that all fits. :*/
//> tape_form
static const Op tape_order[] = {OP_QKV, OP_ATTEND, OP_MERGE, OP_WO, OP_GATE_UP, OP_DOWN};

static int check_sequence(const Plan *p, Op *op_of_wave, Error *e) {
  uint32_t w = 0, layers = (uint32_t)p->shape.layers, per_layer = p->chunks > 1 ? 6 : 5;
  uint32_t waves = layers * per_layer + 1;
  if (p->wave_count != waves)
    return fail(e, EXIT_PLAN, "plan: rule \"sequence\": %u waves; %u layers of %u chunks have %u",
                p->wave_count, layers, p->chunks, waves);
  for (uint32_t l = 0; l < layers; l++)
    for (size_t k = 0; k < sizeof tape_order / sizeof *tape_order; k++)
      if (tape_order[k] != OP_MERGE || p->chunks > 1) op_of_wave[w++] = tape_order[k];
  op_of_wave[w] = OP_LM_HEAD;
  for (uint32_t i = 0; i < p->tile_count; i++) {
    const Tile *t = &p->tile[i];
    uint32_t layer = t->wave + 1 == waves ? 0 : t->wave / per_layer;
    if (t->op == op_of_wave[t->wave] && t->layer == layer) continue;
    char why[80];
    snprintf(why, sizeof why, "the wave is %s's of layer %u", op_name((int)op_of_wave[t->wave]),
             layer);
    return refuse(p, i, "sequence", e, why);
  }
  return 0;
}

// After the sequence: a wave has one opcode.
static int check_one_each(const Plan *p, const Op *op_of_wave, Error *e) {
  for (uint32_t worker = 0; worker < p->workers; worker++) {
    uint32_t i = p->first[worker];
    for (uint32_t w = 0; w < p->wave_count; w++) {
      uint32_t n = 0;
      for (; i < p->first[worker + 1] && p->tile[i].wave == w; i++) n++;
      if (n == 1 || op_of_wave[w] == OP_ATTEND || op_of_wave[w] == OP_MERGE) continue;
      return fail(
          e, EXIT_PLAN,
          "plan: wave %u (%s) worker %u: rule \"one tile each\": it has %u tiles; must be 1", w,
          op_name((int)op_of_wave[w]), worker, n);
    }
  }
  return 0;
}

static int check_tape(const Plan *p, Error *e) {
  Op *op_of_wave = malloc(p->wave_count * sizeof *op_of_wave);
  if (!op_of_wave) return fail(e, EXIT_FAIL, "plan: out of memory for %u waves", p->wave_count);
  uint32_t most = 0;
  for (uint32_t w = 0; w < p->workers; w++)
    if (p->first[w + 1] - p->first[w] > most) most = p->first[w + 1] - p->first[w];
  int rc = check_sequence(p, op_of_wave, e);
  if (rc == 0) rc = check_one_each(p, op_of_wave, e);
  if (rc == 0) rc = check_ring(p, most, e);
  free(op_of_wave);
  return rc;
}
//< tape_form

//> plan_validate
static int check_tape_groups(Check *c) {
  const Plan *p = c->p;
  for (uint32_t l = 0; l < (uint32_t)p->shape.layers; l++)
    for (size_t k = 0; k < sizeof tape_order / sizeof *tape_order; k++)
      if ((tape_order[k] != OP_MERGE || p->chunks > 1) &&
          check_written_once(c, l, tape_order[k]) != 0)
        return -1;
  if (check_written_once(c, 0, OP_LM_HEAD) != 0 || check_tape_epochs(c) != 0 ||
      check_reuse(c) != 0 || check_keeping(c) != 0)
    return -1;
  return check_tape(p, c->e);
}

static int check_groups(Check *c) {
  const Plan *p = c->p;
  if (p->sync == SYNC_DATA) return check_tape_groups(c);
  uint32_t layers = (uint32_t)p->shape.layers;
  bool parts = p->ffn_parts > 0;
  if (check_written_once(c, 0, OP_EMBED) != 0) return -1;
  for (uint32_t l = 0; l < layers; l++) {
    if (check_written_once(c, l, OP_QKV) != 0 || check_written_once(c, l, reads_q(p)) != 0 ||
        (!p->one_pass && p->chunks > 1 && check_written_once(c, l, OP_VALUES) != 0) ||
        check_written_once(c, l, OP_WO) != 0 ||
        check_written_once(c, l, parts ? OP_FFN : OP_GATE_UP) != 0 ||
        check_written_once(c, l, parts ? OP_FFN_REDUCE : OP_DOWN) != 0)
      return -1;
  }
  if (check_written_once(c, 0, OP_FINAL_NORM) != 0 || check_written_once(c, 0, OP_LM_HEAD) != 0)
    return -1;
  if (p->one_pass) return check_form(c, false);
  if (p->chunks > 1 && check_form(c, false) != 0) return -1;
  return check_form(c, true);
}

int plan_validate(const Plan *p, Error *e) {
  if (plan_sizes(p, e) != 0) return -1;
  for (uint32_t i = 0; i < p->tile_count; i++)
    if (check_tile(p, i, e) != 0) return -1;
  if (check_first(p, e) != 0) return -1;

  uint32_t kv = (uint32_t)p->shape.kv_heads;
  uint32_t parts = p->ffn_parts > p->slots ? p->ffn_parts : p->slots;
  uint32_t *waves = calloc(2 * (size_t)p->wave_count, sizeof *waves);
  uint32_t *heads = malloc(3 * (size_t)kv * sizeof *heads);
  uint32_t *lists = malloc(2 * (size_t)p->tile_count * sizeof *lists);
  Check c = {.p = p, .e = e, .taken = malloc(parts)};
  c.begin = calloc((size_t)p->shape.layers * OP_COUNT + 1, sizeof *c.begin);
  c.span = calloc((size_t)p->shape.layers * OP_COUNT, sizeof *c.span);
  uint32_t *seen = calloc(p->workers, sizeof *seen);
  int rc = -1;
  if (!waves || !heads || !lists || !c.taken || !c.begin || !c.span || !seen) {
    fail(e, EXIT_FAIL, "plan: out of memory for checking %u tiles", p->tile_count);
  } else {
    c.epoch = waves + p->wave_count;
    c.qk_writer = heads;
    c.v_writer = heads + kv;
    c.scored = heads + 2 * (size_t)kv;
    c.list = lists;
    rc = check_barriers(p, waves, e);
    if (rc == 0) {
      make_groups(&c, lists + p->tile_count);
      if (p->sync == SYNC_DATA) make_spans(&c, seen);
      rc = check_groups(&c);
    }
  }
  free(waves);
  free(heads);
  free(lists);
  free(c.taken);
  free(c.begin);
  free(c.span);
  free(seen);
  return rc;
}
//< plan_validate
