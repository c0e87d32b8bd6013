/*: # The other judge

`validate.c` never looks at an element: it reasons about ranges, groups and the latest of many. This
file reasons about nothing. It plays two tokens, tile by tile, over arrays that remember for every
single element of every buffer which version it holds, who wrote it, and who reads it in the epoch
that is being played. It is slow, and it is simple enough to be believed. The two files share no
code and no shortcut; the test asks both about a hundred thousand damaged plans and expects the same
answer every time.

Epochs are played in two halves: first every tile of the epoch reads, then every tile of it writes.
A read that depends on a write of the same epoch therefore finds the old version and is caught; a
write to an element that another tile has read in this epoch is caught because the reader left its
mark. :*/
#ifndef BRUTE_FORCE_H
#define BRUTE_FORCE_H

#include "tiles.h"

#include <stdlib.h>
#include <string.h>

//> brute_elements
typedef struct Element {
  long version;    // of the value that it holds; -1: none yet
  long read_in;    // the last epoch in which it was read
  uint32_t reader; // by which tile; the first one of that epoch
  bool many;       // and by others
  long written_in; // the epoch of the last write
  long writes;     // of both tokens
} Element;

typedef struct Buffer {
  Element *e;
  long n;
  long versions; // of one token
} Buffer;

enum {
  RESIDUAL,
  QKV_ROWS, // q and k rows; v rows lie in the cache
  V_ROWS,   // the newest row of every layer's V cache, for two positions
  K_ROWS,   // the same for K, one element a head
  SCORE,    // [kv_heads][chunks]
  PARTIAL,  // [kv_heads][chunks] of attention
  FFN_ROW,  // intermediate rows that some ffn tile has taken care of
  FFN_SUM,  // [ffn_parts][hidden]
  ACTIVATION,
  NORMED,
  SLOT,
  LOGIT,
  BUFFERS
};

typedef struct Play {
  const Plan *p;
  Buffer buffer[BUFFERS];
  bool fused;
  long in_use[2]; // chunks that have work, of each token
  long token, epoch;
  const char *wrong;
} Play;

static void wrong(Play *s, const char *what) {
  if (!s->wrong) s->wrong = what;
}

// `version` counts from 0 within a token.
static void read_element(Play *s, int buffer, long index, long version, uint32_t tile) {
  Buffer *b = &s->buffer[buffer];
  Element *x = &b->e[index];
  if (x->version != s->token * b->versions + version) wrong(s, "reads another version");
  if (x->read_in != s->epoch) {
    x->read_in = s->epoch;
    x->reader = tile;
    x->many = false;
  } else if (x->reader != tile) x->many = true;
}

static void write_element(Play *s, int buffer, long index, long version, uint32_t tile) {
  Buffer *b = &s->buffer[buffer];
  Element *x = &b->e[index];
  long v = s->token * b->versions + version;
  if (x->written_in == s->epoch) wrong(s, "written twice in an epoch");
  if (x->version >= v) wrong(s, "written again, or too late");
  if (x->read_in == s->epoch && (x->many || x->reader != tile)) wrong(s, "overwritten while read");
  x->version = v;
  x->written_in = s->epoch;
  x->writes++;
}
//< brute_elements

/*: ## What each opcode touches

One function plays both halves; `reading` says which. It is the table in `tiles.h`, spelled out
element by element. :*/
//> brute_play
static void play_tile(Play *s, uint32_t i, bool reading) {
  const Tile *t = &s->p->tile[i];
  const Shape *h = &s->p->shape;
  const long L = h->layers, kv = h->kv_heads, dim = h->head_dim, group = h->heads / kv;
  const long chunks = s->p->chunks, parts = s->p->ffn_parts, l = t->layer;
  const long row0 = t->row0, row1 = t->row1, part = t->part;
  const long k_row = h->heads * dim, v_row = k_row + kv * dim; // first k and v row
  const long v_home = (s->token * L + l) * kv * dim; // where this layer's newest V row lies
  const long k_home = (s->token * L + l) * kv;
  const long in_use = s->in_use[s->token], last_chunk = in_use - 1;

  switch (t->op) {
  case OP_EMBED:
    if (reading && s->token > 0) // the first token's id comes from the host
      for (long j = 0; j < s->p->slots; j++) {
        s->token--; // written by the token before
        read_element(s, SLOT, j, 0, i);
        s->token++;
      }
    if (!reading)
      for (long r = row0; r < row1; r++) write_element(s, RESIDUAL, r, 0, i);
    break;
  case OP_QKV:
    if (reading)
      for (long r = 0; r < h->hidden; r++) read_element(s, RESIDUAL, r, 2 * l, i);
    else
      for (long r = row0; r < row1; r++) {
        if (r < v_row) write_element(s, QKV_ROWS, r, l, i);
        else write_element(s, V_ROWS, v_home + r - v_row, 0, i);
      }
    break;
  case OP_SCORES:
    if (part >= in_use) break;
    for (long head = row0; head < row1; head++) {
      if (reading) {
        for (long r = head * group * dim; r < (head + 1) * group * dim; r++)
          read_element(s, QKV_ROWS, r, l, i);
        for (long r = 0; r < dim; r++) read_element(s, QKV_ROWS, k_row + head * dim + r, l, i);
        if (s->fused)
          for (long r = 0; r < dim; r++) read_element(s, V_ROWS, v_home + head * dim + r, 0, i);
      } else {
        if (part == last_chunk) write_element(s, K_ROWS, k_home + head, 0, i);
        if (s->fused) write_element(s, PARTIAL, head * chunks, l, i);
        else write_element(s, SCORE, head * chunks + part, l, i);
      }
    }
    break;
  case OP_VALUES:
    if (s->fused) break;
    for (long head = row0; head < row1; head++) {
      if (reading) {
        for (long c = 0; c < chunks; c++) read_element(s, SCORE, head * chunks + c, l, i);
        if (part == last_chunk)
          for (long r = 0; r < dim; r++) read_element(s, V_ROWS, v_home + head * dim + r, 0, i);
      } else write_element(s, PARTIAL, head * chunks + part, l, i);
    }
    break;
  case OP_ATTEND:
    if (part >= in_use) break;
    for (long head = row0; head < row1; head++) {
      if (reading) {
        for (long r = head * group * dim; r < (head + 1) * group * dim; r++)
          read_element(s, QKV_ROWS, r, l, i);
        for (long r = 0; r < dim; r++) read_element(s, QKV_ROWS, k_row + head * dim + r, l, i);
        if (part == last_chunk)
          for (long r = 0; r < dim; r++) read_element(s, V_ROWS, v_home + head * dim + r, 0, i);
      } else {
        if (part == last_chunk) write_element(s, K_ROWS, k_home + head, 0, i);
        write_element(s, PARTIAL, head * chunks + part, l, i);
      }
    }
    break;
  case OP_WO:
    if (reading) {
      for (long head = 0; head < kv; head++)
        for (long c = 0; c < in_use; c++) read_element(s, PARTIAL, head * chunks + c, l, i);
      for (long r = row0; r < row1; r++) read_element(s, RESIDUAL, r, 2 * l, i);
    } else
      for (long r = row0; r < row1; r++) write_element(s, RESIDUAL, r, 2 * l + 1, i);
    break;
  case OP_FFN:
    if (reading)
      for (long r = 0; r < h->hidden; r++) read_element(s, RESIDUAL, r, 2 * l + 1, i);
    else {
      for (long r = row0; r < row1; r++) write_element(s, FFN_ROW, r, l, i);
      for (long r = 0; r < h->hidden; r++) write_element(s, FFN_SUM, part * h->hidden + r, l, i);
    }
    break;
  case OP_FFN_REDUCE:
    for (long r = row0; r < row1; r++) {
      if (!reading) write_element(s, RESIDUAL, r, 2 * l + 2, i);
      else {
        for (long j = 0; j < parts; j++) read_element(s, FFN_SUM, j * h->hidden + r, l, i);
        read_element(s, RESIDUAL, r, 2 * l + 1, i);
      }
    }
    break;
  case OP_GATE_UP:
    if (reading)
      for (long r = 0; r < h->hidden; r++) read_element(s, RESIDUAL, r, 2 * l + 1, i);
    else
      for (long r = row0; r < row1; r++) write_element(s, ACTIVATION, r, l, i);
    break;
  case OP_DOWN:
    if (reading)
      for (long r = 0; r < h->inter; r++) read_element(s, ACTIVATION, r, l, i);
    for (long r = row0; r < row1; r++) {
      if (reading) read_element(s, RESIDUAL, r, 2 * l + 1, i);
      else write_element(s, RESIDUAL, r, 2 * l + 2, i);
    }
    break;
  case OP_FINAL_NORM:
    if (reading)
      for (long r = 0; r < h->hidden; r++) read_element(s, RESIDUAL, r, 2 * L, i);
    else
      for (long r = row0; r < row1; r++) write_element(s, NORMED, r, 0, i);
    break;
  case OP_LM_HEAD:
    if (reading)
      for (long r = 0; r < h->hidden; r++) read_element(s, NORMED, r, 0, i);
    else {
      for (long r = row0; r < row1; r++) write_element(s, LOGIT, r, 0, i);
      write_element(s, SLOT, part, 0, i);
    }
    break;
  }
}

// Plays the epoch that begins at wave `w` of this token, and returns the wave after it.
static uint32_t play_epoch(Play *s, uint32_t w, bool reading) {
  uint32_t end = w;
  for (;; end++) {
    for (uint32_t i = 0; i < s->p->tile_count; i++)
      if (s->p->tile[i].wave == end) play_tile(s, i, reading);
    if (end + 1 == s->p->wave_count || s->p->barrier[end] == BARRIER_ALWAYS || !s->fused) break;
  }
  return end + 1;
}

// Two tokens with so many chunks in use.
static const char *play(const Plan *p, bool fused, long first, long second) {
  const Shape *h = &p->shape;
  const long L = h->layers, kv = h->kv_heads, dim = h->head_dim;
  const long n[BUFFERS] = {
      [RESIDUAL] = h->hidden,
      [QKV_ROWS] = (h->heads + kv) * dim,
      [V_ROWS] = 2 * L * kv * dim,
      [K_ROWS] = 2 * L * kv,
      [SCORE] = p->one_pass ? 0 : kv * p->chunks,
      [PARTIAL] = kv * p->chunks,
      [FFN_ROW] = p->ffn_parts ? h->inter : 0,
      [FFN_SUM] = (long)p->ffn_parts * h->hidden,
      [ACTIVATION] = p->ffn_parts ? 0 : h->inter,
      [NORMED] = h->hidden,
      [SLOT] = p->slots,
      [LOGIT] = h->vocab,
  };
  const long versions[BUFFERS] = {
      [RESIDUAL] = 2 * L + 1, [QKV_ROWS] = L, [V_ROWS] = 1,
      [K_ROWS] = 1,           [SCORE] = L,    [PARTIAL] = L,
      [FFN_ROW] = L,          [FFN_SUM] = L,  [ACTIVATION] = L,
      [NORMED] = 1,           [SLOT] = 1,     [LOGIT] = 1,
  };
  Play s = {.p = p, .fused = fused, .in_use = {first, second}};
  for (int b = 0; b < BUFFERS; b++) {
    s.buffer[b] = (Buffer){calloc((size_t)n[b] + 1, sizeof(Element)), n[b], versions[b]};
    if (!s.buffer[b].e) abort();
    for (long j = 0; j < n[b]; j++)
      s.buffer[b].e[j] = (Element){.version = -1, .read_in = -1, .written_in = -1};
  }
  // V and K rows of token 1 are other elements, so their version 0 is version 1 of the buffer: expected so
  // by read_element, which multiplies by the token.
  for (s.token = 0; s.token < 2; s.token++) {
    for (uint32_t w = 0; w < p->wave_count;) {
      // A barrier that is skipped between two tokens would put both into one epoch.
      uint32_t after = play_epoch(&s, w, true);
      play_epoch(&s, w, false);
      w = after;
      if (w < p->wave_count || !fused || p->barrier[p->wave_count - 1] == BARRIER_ALWAYS) s.epoch++;
      else wrong(&s, "two tokens in one epoch");
    }
  }
  for (int b = 0; b < BUFFERS; b++) {
    bool per_token = b == V_ROWS || b == K_ROWS;
    for (long j = 0; j < n[b]; j++) {
      long want = per_token ? 1 : 2 * versions[b];
      if (b == SCORE && fused) want = 0;
      if (b == PARTIAL) want = L * ((j % p->chunks < first) + (j % p->chunks < second));
      if (s.buffer[b].e[j].writes != want) wrong(&s, "not written once a version");
    }
    free(s.buffer[b].e);
  }
  return s.wrong;
}
//< brute_play

/*: ## The format

Before anything can be played, indices must be indices. :*/
//> brute_format
static bool range(double n, double least, double most) { return n >= least && n <= most; }

// NULL where the plan is valid, else what is wrong in a few words. For tiny shapes only.
static const char *brute_force(const Plan *p) {
  const Shape *h = &p->shape;
  const Target *t = &p->target;
  if (!range(h->vocab, 1, 1 << 24) || !range(h->hidden, 1, 1 << 24) || !range(h->inter, 1, 1 << 24))
    return "shape";
  if (!range(h->layers, 1, 4096) || !range(h->heads, 1, 4096) || !range(h->kv_heads, 1, h->heads))
    return "shape";
  if (!range(h->head_dim, 2, 1 << 16) || h->head_dim % 2 || h->heads % h->kv_heads) return "shape";
  if (((double)h->heads + 2.0 * h->kv_heads) * h->head_dim > 1 << 24) return "shape";
  if (h->max_context < 1) return "shape";
  if (h->dtype != DT_F32 && h->dtype != DT_BF16 && h->dtype != DT_F16) return "shape";
  const double costs[] = {t->read_gbs,   t->worker_gbs, t->kv_worker_gbs,
                          t->barrier_us, t->ramp_us,    t->attention_us};
  for (int i = 0; i < 6; i++)
    if (!range(costs[i], 0, 1e300)) return "target";
  if (!range(p->workers, 1, 65536) || t->workers != p->workers) return "workers";
  if (!range(p->tile_count, 1, 1 << 22) || !range(p->wave_count, 1, p->tile_count)) return "counts";
  if (!range(p->chunks, 1, 64) || !range(p->ffn_parts, 0, h->inter)) return "counts";
  if (!range(p->slots, 1, h->vocab)) return "counts";
  if (p->chunks == 1 ? p->fused_context != UINT32_MAX
      : p->one_pass  ? p->fused_context == 0
                     : p->fused_context + 1.0 < p->chunks)
    return "fused_context";

  bool *used = calloc(p->wave_count, sizeof *used);
  if (!used) abort();
  const char *bad = NULL;
  for (uint32_t i = 0; i < p->tile_count && !bad; i++) {
    const Tile *x = &p->tile[i];
    long rows = -1, parts = 1, layers = h->layers;
    if (x->op == OP_EMBED || x->op == OP_FINAL_NORM) rows = h->hidden, layers = 1;
    if (x->op == OP_QKV) rows = (h->heads + 2L * h->kv_heads) * h->head_dim;
    if (x->op == OP_ATTEND && p->one_pass) rows = h->kv_heads, parts = p->chunks;
    if (x->op == OP_SCORES && !p->one_pass) rows = h->kv_heads, parts = p->chunks;
    if (x->op == OP_VALUES && !p->one_pass && p->chunks > 1) rows = h->kv_heads, parts = p->chunks;
    if (x->op == OP_WO) rows = h->hidden;
    if (x->op == OP_FFN && p->ffn_parts) rows = h->inter, parts = p->ffn_parts;
    if (x->op == OP_FFN_REDUCE && p->ffn_parts) rows = h->hidden;
    if (x->op == OP_GATE_UP && !p->ffn_parts) rows = h->inter;
    if (x->op == OP_DOWN && !p->ffn_parts) rows = h->hidden;
    if (x->op == OP_LM_HEAD) rows = h->vocab, parts = p->slots, layers = 1;
    if (rows < 0) bad = "opcode";
    if (x->layer >= layers || x->part >= parts || x->row0 >= x->row1 || x->row1 > rows)
      bad = "bounds";
    if (x->worker >= p->workers || x->wave >= p->wave_count) bad = "grid";
    else used[x->wave] = true;
    for (uint32_t j = 0; j < i; j++) { // every pair, not only neighbours
      const Tile *y = &p->tile[j];
      if (y->worker > x->worker || (y->worker == x->worker && y->wave > x->wave)) bad = "order";
    }
  }
  for (uint32_t w = 0; w <= p->workers && !bad; w++) {
    uint32_t before = 0;
    for (uint32_t i = 0; i < p->tile_count; i++) before += p->tile[i].worker < w;
    if (p->first[w] != before) bad = "first";
  }
  for (uint32_t w = 0; w < p->wave_count && !bad; w++)
    if (!used[w] || p->barrier[w] > 1 || (p->one_pass && p->barrier[w])) bad = "barriers";
  free(used);
  long chunks = p->chunks;
  if (p->one_pass) { // a token has as many chunks in use as the one before it, or one more
    for (long k = 1; k <= chunks && !bad; k++) bad = play(p, false, k, k);
    for (long k = 1; k < chunks && !bad; k++) bad = play(p, false, k, k + 1);
    return bad;
  }
  if (!bad && chunks > 1) bad = play(p, false, chunks, chunks);
  if (!bad) bad = play(p, true, 1, 1);
  return bad;
}
//< brute_format

#endif
