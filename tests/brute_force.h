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
  QKV_ROWS, // q, k and v rows
  CACHE,    // the newest K and V row of every layer, for two positions, one element a head
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
  const long home = (s->token * L + l) * kv;                   // where this layer's newest rows lie
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
      for (long r = row0; r < row1; r++) write_element(s, QKV_ROWS, r, l, i);
    break;
  case OP_SCORES:
    if (part >= in_use) break;
    for (long head = row0; head < row1; head++) {
      if (reading) {
        for (long r = head * group * dim; r < (head + 1) * group * dim; r++)
          read_element(s, QKV_ROWS, r, l, i);
        for (long r = 0; r < dim; r++) read_element(s, QKV_ROWS, k_row + head * dim + r, l, i);
        if (part == last_chunk) // the new position's
          for (long r = 0; r < dim; r++) read_element(s, QKV_ROWS, v_row + head * dim + r, l, i);
      } else {
        if (part == last_chunk) write_element(s, CACHE, home + head, 0, i);
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
        if (part == last_chunk) read_element(s, CACHE, home + head, 0, i);
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
          for (long r = 0; r < dim; r++) read_element(s, QKV_ROWS, v_row + head * dim + r, l, i);
      } else {
        if (part == last_chunk) write_element(s, CACHE, home + head, 0, i);
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
      [QKV_ROWS] = (h->heads + 2 * kv) * dim,
      [CACHE] = 2 * L * kv,
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
      [RESIDUAL] = 2 * L + 1, [QKV_ROWS] = L, [CACHE] = 1,   [SCORE] = L,
      [PARTIAL] = L,          [FFN_ROW] = L,  [FFN_SUM] = L, [ACTIVATION] = L,
      [NORMED] = 1,           [SLOT] = 1,     [LOGIT] = 1,
  };
  Play s = {.p = p, .fused = fused, .in_use = {first, second}};
  for (int b = 0; b < BUFFERS; b++) {
    s.buffer[b] = (Buffer){calloc((size_t)n[b] + 1, sizeof(Element)), n[b], versions[b]};
    if (!s.buffer[b].e) abort();
    for (long j = 0; j < n[b]; j++)
      s.buffer[b].e[j] = (Element){.version = -1, .read_in = -1, .written_in = -1};
  }
  // Cached rows of token 1 are other elements, so their version 0 is version 1 of the buffer: expected so
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
    for (long j = 0; j < n[b]; j++) {
      long want = b == CACHE ? 1 : 2 * versions[b];
      if (b == SCORE && fused) want = 0;
      if (b == PARTIAL) want = L * ((j % p->chunks < first) + (j % p->chunks < second));
      if (s.buffer[b].e[j].writes != want) wrong(&s, "not written once a version");
    }
    free(s.buffer[b].e);
  }
  return s.wrong;
}
//< brute_play

/*: ## Without barriers

Here no epoch says what is over. So every worker plays its own list, token after token, as far as the values that it waits for let it,
and we keep for each worker what it can *know*: of every other worker the number of tiles that it has finished. Whoever reads a value
learns all that its writer knew when he wrote it. A value may be reset only by who knows that all its readers are done, written only by who
knows of the reset, and looked for only by who knew of the reset before he looked. Who looks too early finds an old value in some run
of the plan, be it not in ours. A value that never comes is found too: then nobody gets any further. :*/
//> brute_tapes
enum {
  T_QKV,     // q, k and v rows
  T_PARTIAL, // [kv_heads][chunks]
  T_OUTPUT,  // of attention
  T_MIDDLE,  // the residual after wo
  T_ACTIVATION,
  T_RESIDUAL, // after down
  T_SLOT,
  T_CACHE, // the rows of a K/V head, of each token and layer
  T_LOGIT, // of each token
  T_BUFFERS
};
enum { TAPE_TOKENS = 4 };

typedef struct Value {
  long instance;             // which value it is; -1: reset, or never written
  uint32_t writer, wrote;    // a worker, and how many tiles it had finished with that one
  uint32_t event;            // where is written down what it knew
  uint32_t cleaner, cleaned; // the same of the last reset; cleaned 0: there was none
} Value;

typedef struct Tapes {
  const Plan *p;
  Value *v;
  uint32_t *read; // [values][workers] tiles that a worker had finished with its last read
  long base[T_BUFFERS], n[T_BUFFERS], copies[T_BUFFERS];
  uint32_t *knows;             // [workers][workers]
  uint32_t *knew;              // [events][workers]
  uint32_t *before;            // [workers] what the worker that plays knew when its tile began
  long *took_in, *took_middle; // [workers] of which layer it read the residual whole
  long in_use[TAPE_TOKENS];
  bool logits[TAPE_TOKENS];
  long token;
  bool blocked;
  const char *wrong;
} Tapes;

typedef enum Mode { LOOK, READ, WRITE } Mode;

static Value *value_at(Tapes *s, int buffer, long instance, long i) {
  return &s->v[s->base[buffer] + instance % s->copies[buffer] * s->n[buffer] + i];
}

static void spoil(Tapes *s, const char *what) {
  if (!s->wrong) s->wrong = what;
}

static void take(Tapes *s, Mode mode, int buffer, long instance, long i, uint32_t w) {
  const uint32_t workers = s->p->workers;
  Value *v = value_at(s, buffer, instance, i);
  uint32_t *mine = s->knows + w * workers;
  if (mode == LOOK) {
    if (v->instance < 0) s->blocked = true;
    else if (v->instance != instance) spoil(s, "takes another value");
    return;
  }
  if (v->cleaned && v->cleaner != w && s->before[v->cleaner] < v->cleaned)
    spoil(s, "may take an old value");
  s->read[(v - s->v) * workers + w] = mine[w] + 1;
  if (v->writer == w || mine[v->writer] >= v->wrote) return;
  for (uint32_t k = 0; k < workers; k++)
    if (s->knew[v->event * workers + k] > mine[k]) mine[k] = s->knew[v->event * workers + k];
}

static void give(Tapes *s, int buffer, long instance, long i, uint32_t w, uint32_t tile) {
  const uint32_t *mine = s->knows + w * s->p->workers;
  Value *v = value_at(s, buffer, instance, i);
  if (v->instance >= 0) spoil(s, "written on a value that was not reset");
  if (v->cleaned && v->cleaner != w && mine[v->cleaner] < v->cleaned)
    spoil(s, "may be reset after it was written");
  v->instance = instance;
  v->writer = w;
  v->wrote = mine[w] + 1;
  v->event = (uint32_t)s->token * s->p->tile_count + tile;
}

// The worker resets its own values of one instance.
static void clean(Tapes *s, int buffer, long instance, uint32_t w) {
  const uint32_t workers = s->p->workers, *mine = s->knows + w * workers;
  for (long i = 0; instance >= 0 && i < s->n[buffer]; i++) {
    Value *v = value_at(s, buffer, instance, i);
    if (v->instance != instance || v->writer != w) continue;
    for (uint32_t k = 0; k < workers; k++)
      if (k != w && s->read[(v - s->v) * workers + k] > mine[k])
        spoil(s, "reset while it may be read");
    v->instance = -1;
    v->cleaner = w;
    v->cleaned = mine[w] + 1;
  }
}

static void tape_tile(Tapes *s, uint32_t index, Mode mode) {
  const Tile *t = &s->p->tile[index];
  const Shape *h = &s->p->shape;
  const uint32_t w = t->worker, workers = s->p->workers;
  const long L = h->layers, kv = h->kv_heads, dim = h->head_dim, group = h->heads / kv;
  const long chunks = s->p->chunks, n = s->token * L + t->layer, row0 = t->row0, row1 = t->row1;
  const long in_use = s->in_use[s->token], last = in_use - 1;
  const long k_row = h->heads * dim, v_row = k_row + kv * dim;
  switch (t->op) {
  case OP_QKV:
    if (mode == WRITE) {
      s->took_in[w] = n;
      for (long r = row0; r < row1; r++) give(s, T_QKV, n, r, w, index);
    } else if (t->layer > 0)
      for (long r = 0; r < h->hidden; r++) take(s, mode, T_RESIDUAL, n - 1, r, w);
    else if (s->token > 0 && s->logits[s->token - 1])
      for (long j = 0; j < s->p->slots; j++) take(s, mode, T_SLOT, s->token - 1, j, w);
    break;
  case OP_ATTEND:
    if (t->part >= in_use) break;
    for (long head = row0; head < row1; head++) {
      if (mode == WRITE) {
        if (in_use > 1) give(s, T_PARTIAL, n, head * chunks + t->part, w, index);
        else
          for (long r = head * group * dim; r < (head + 1) * group * dim; r++)
            give(s, T_OUTPUT, n, r, w, index);
        if (t->part == last) give(s, T_CACHE, 0, n * kv + head, w, index);
        continue;
      }
      for (long r = head * group * dim; r < (head + 1) * group * dim; r++)
        take(s, mode, T_QKV, n, r, w);
      for (long r = 0; r < dim; r++) {
        take(s, mode, T_QKV, n, k_row + head * dim + r, w);
        if (t->part == last) take(s, mode, T_QKV, n, v_row + head * dim + r, w);
      }
      for (long past = 0; mode == READ && past < s->token;
           past++) { // the cache has no marks to wait for
        const Value *v = value_at(s, T_CACHE, 0, (past * L + t->layer) * kv + head);
        if (v->instance < 0 || (v->writer != w && s->before[v->writer] < v->wrote))
          spoil(s, "may read the cache before it is written");
      }
    }
    break;
  case OP_MERGE:
    if (in_use == 1) break;
    for (long r = row0; r < row1; r++) {
      if (mode == WRITE) give(s, T_OUTPUT, n, r, w, index);
      for (long c = 0; mode != WRITE && c < in_use; c++)
        take(s, mode, T_PARTIAL, n, r / (group * dim) * chunks + c, w);
    }
    break;
  case OP_WO:
    if (mode == READ && s->took_in[w] != n) spoil(s, "has not kept the residual before");
    for (long r = 0; mode != WRITE && r < h->heads * dim; r++) take(s, mode, T_OUTPUT, n, r, w);
    for (long r = row0; mode == WRITE && r < row1; r++) give(s, T_MIDDLE, n, r, w, index);
    break;
  case OP_GATE_UP:
    if (mode == WRITE) s->took_middle[w] = n;
    for (long r = 0; mode != WRITE && r < h->hidden; r++) take(s, mode, T_MIDDLE, n, r, w);
    for (long r = row0; mode == WRITE && r < row1; r++) give(s, T_ACTIVATION, n, r, w, index);
    break;
  case OP_DOWN:
    if (mode == READ && s->took_middle[w] != n) spoil(s, "has not kept the residual between");
    for (long r = 0; mode != WRITE && r < h->inter; r++) take(s, mode, T_ACTIVATION, n, r, w);
    if (mode != WRITE) break;
    for (int b = T_QKV; b <= T_MIDDLE; b++) clean(s, b, n, w);
    clean(s, T_ACTIVATION, n - 1, w);
    clean(s, T_RESIDUAL, n - 1, w);
    for (long r = row0; r < row1; r++) give(s, T_RESIDUAL, n, r, w, index);
    break;
  case OP_LM_HEAD: // reads the residual even where no logits are wanted
    for (long r = 0; mode != WRITE && r < h->hidden; r++)
      take(s, mode, T_RESIDUAL, s->token * L + L - 1, r, w);
    if (mode != WRITE || !s->logits[s->token]) break;
    clean(s, T_SLOT, s->token - 1, w);
    give(s, T_SLOT, s->token, t->part, w, index);
    for (long r = row0; r < row1; r++) give(s, T_LOGIT, 0, s->token * h->vocab + r, w, index);
    break;
  }
  if (mode != WRITE) return;
  uint32_t *mine = s->knows + w * workers;
  mine[w]++;
  memcpy(s->knew + ((uint32_t)s->token * s->p->tile_count + index) * workers, mine,
         workers * sizeof *mine);
}

// One tile of the worker's, if all that it waits for is there.
static bool advance(Tapes *s, uint32_t w, uint32_t *done) {
  const Plan *p = s->p;
  uint32_t own = p->first[w + 1] - p->first[w];
  if (done[w] == own * TAPE_TOKENS) return false;
  uint32_t tile = p->first[w] + done[w] % own;
  s->token = done[w] / own;
  s->blocked = false;
  tape_tile(s, tile, LOOK);
  if (s->blocked || s->wrong) return false;
  memcpy(s->before, s->knows + w * p->workers, p->workers * sizeof *s->before);
  tape_tile(s, tile, READ);
  tape_tile(s, tile, WRITE);
  done[w]++;
  return true;
}

static void *zeros(size_t n, size_t size) {
  void *p = calloc(n + 1, size);
  if (!p) abort();
  return p;
}

// Four tokens; the first with `first` chunks in use, the others with `then`. The first `silent` want no logits.
static const char *play_tapes(const Plan *p, long first, long then, long silent) {
  const Shape *h = &p->shape;
  const long L = h->layers, kv = h->kv_heads, dim = h->head_dim;
  Tapes s = {.p = p,
             .n = {(h->heads + 2 * kv) * dim, kv * p->chunks, h->heads * dim, h->hidden, h->inter,
                   h->hidden, p->slots, TAPE_TOKENS * L * kv, (long)TAPE_TOKENS * h->vocab},
             .copies = {1, 1, 1, 1, 2, 2, 2, 1, 1}};
  long values = 0;
  for (int b = 0; b < T_BUFFERS; b++) {
    s.base[b] = values;
    values += s.n[b] * s.copies[b];
  }
  const size_t workers = p->workers;
  s.v = zeros((size_t)values, sizeof *s.v);
  for (long i = 0; i < values; i++) s.v[i].instance = -1;
  s.read = zeros((size_t)values * workers, sizeof *s.read);
  s.knows = zeros(workers * workers, sizeof *s.knows);
  s.knew = zeros((size_t)TAPE_TOKENS * p->tile_count * workers, sizeof *s.knew);
  s.before = zeros(workers, sizeof *s.before);
  s.took_in = zeros(workers, sizeof *s.took_in);
  s.took_middle = zeros(workers, sizeof *s.took_middle);
  for (size_t w = 0; w < workers; w++) s.took_in[w] = s.took_middle[w] = -1;
  uint32_t *done = zeros(workers, sizeof *done);
  for (long t = 0; t < TAPE_TOKENS; t++) {
    s.in_use[t] = t ? then : first;
    s.logits[t] = t >= silent;
  }
  for (bool moved = true; moved && !s.wrong;) {
    moved = false;
    for (uint32_t w = 0; w < p->workers; w++) moved |= advance(&s, w, done);
  }
  for (uint32_t w = 0; w < p->workers; w++)
    if (done[w] != TAPE_TOKENS * (p->first[w + 1] - p->first[w])) spoil(&s, "waits for ever");
  for (long i = silent * h->vocab; i < TAPE_TOKENS * (long)h->vocab; i++)
    if (s.v[s.base[T_LOGIT] + i].instance < 0) spoil(&s, "a logit is missing");
  void *owned[] = {s.v, s.read, s.knows, s.knew, s.before, s.took_in, s.took_middle, done};
  for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
  return s.wrong;
}

// What no play can see: the form of the plan, by the text of tiles.h.
static const char *tape_form(const Plan *p) {
  const Shape *h = &p->shape;
  const Op layer[] = {OP_QKV, OP_ATTEND, OP_MERGE, OP_WO, OP_GATE_UP, OP_DOWN};
  uint32_t wave = 0;
  for (int32_t l = 0; l <= h->layers; l++)
    for (int k = 0; k < 6; k++) {
      Op op = l == h->layers ? OP_LM_HEAD : layer[k];
      if ((l == h->layers && k) || (op == OP_MERGE && p->chunks == 1)) continue;
      for (uint32_t w = 0; w < p->workers; w++) {
        uint32_t tiles = 0;
        for (uint32_t i = 0; i < p->tile_count; i++) {
          const Tile *t = &p->tile[i];
          if (t->wave != wave || t->worker != w) continue;
          if (t->op != op || t->layer != (l == h->layers ? 0 : l)) return "form: sequence";
          tiles++;
        }
        if (tiles != 1 && op != OP_ATTEND && op != OP_MERGE) return "form: one tile each";
      }
      wave++;
    }
  return wave == p->wave_count ? NULL : "form: waves";
}

static bool tape_fits(long columns, long slot) {
  for (long block = 256; block <= 2048; block += 256) // eight rows of it in a slot, eight in a row
    if (8 * block >= columns && 8 * block * 2 <= slot) return true;
  return false;
}

static const char *tape_header(const Plan *p) {
  const Shape *h = &p->shape;
  if (p->sync == SYNC_BARRIER) return p->ring_slots || p->slot_bytes ? "ring" : NULL;
  if (p->sync != SYNC_DATA || strcmp(p->target.kind, "cuda") != 0) return "sync";
  if (!p->one_pass || p->ffn_parts || h->heads / h->kv_heads > 8) return "sync";
  if (h->head_dim % 8 || h->head_dim > 128) return "sync";
  if (p->ring_slots < 2 || p->slot_bytes == 0 || p->slot_bytes % 16) return "ring";
  if (!tape_fits(h->hidden, p->slot_bytes) || !tape_fits(h->inter, p->slot_bytes)) return "ring";
  if (!tape_fits((long)h->heads * h->head_dim, p->slot_bytes)) return "ring";
  return NULL;
}

// Ring; a vector's parts or what attention works with, which have one place; own rows; every warp's sums of the largest matrix's rows twice; the newest
// position's turns; small things; and 24 bytes for each tile of the worker that has most.
static bool tape_room(const Plan *p) {
  const Shape *h = &p->shape;
  double dim = h->head_dim, tiles = 0;
  for (uint32_t w = 0; w < p->workers; w++) {
    double own = 0;
    for (uint32_t i = 0; i < p->tile_count; i++) own += p->tile[i].worker == w;
    if (own > tiles) tiles = own;
  }
  double own = ceil((double)h->hidden / p->workers);
  double qkv = ceil((h->heads + 2 * h->kv_heads) * dim / p->workers);
  double pair = ceil((double)h->inter / p->workers), ids = ceil((double)h->vocab / p->workers);
  double rows = fmax(fmin(fmax(fmax(qkv, own), ids), 128), 2 * fmin(pair, 128));
  // A vector: three parts of 512 bytes and a gap of 64 for each of eight warps, and a gap. Attention: the newest key and value; three parts of eight queries with gaps of 16
  // bytes; eight scales; eight warps' four heads with gaps of eight floats and two of state. Behind either, zeros.
  double vector = 8 * 3 * 576 + 64,
         attention = 4 * dim + 3 * 8 * (2 * dim + 16) + 32 + 8 * 4 * 4 * (dim + 10);
  double bytes = (double)p->ring_slots * p->slot_bytes + fmax(vector, attention) + 512 + 512 +
                 4 * (2 * (own + 3) + 2 * 8 * rows + dim) + 24 * tiles;
  return p->target.shared_bytes == 0 || bytes <= p->target.shared_bytes;
}
//< brute_tapes

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
  const double costs[] = {t->read_gbs,   t->worker_gbs, t->kv_worker_gbs, t->barrier_us,
                          t->handoff_us, t->ramp_us,    t->attention_us};
  for (int i = 0; i < 7; i++)
    if (!range(costs[i], 0, 1e300)) return "target";
  if (!range(p->workers, 1, 65536) || t->workers != p->workers) return "workers";
  if (!range(p->tile_count, 1, 1 << 22) || !range(p->wave_count, 1, p->tile_count)) return "counts";
  if (!range(p->chunks, 1, 64) || !range(p->ffn_parts, 0, h->inter)) return "counts";
  if (!range(p->slots, 1, h->vocab)) return "counts";
  if (p->chunks == 1 ? p->fused_context != UINT32_MAX
      : p->one_pass  ? p->fused_context == 0
                     : p->fused_context + 1.0 < p->chunks)
    return "fused_context";
  const bool data = p->sync == SYNC_DATA;
  const char *header = tape_header(p);
  if (header) return header;

  bool *used = calloc(p->wave_count, sizeof *used);
  if (!used) abort();
  const char *bad = NULL;
  for (uint32_t i = 0; i < p->tile_count && !bad; i++) {
    const Tile *x = &p->tile[i];
    long rows = -1, parts = 1, layers = h->layers;
    if (!data && (x->op == OP_EMBED || x->op == OP_FINAL_NORM)) rows = h->hidden, layers = 1;
    if (data && p->chunks > 1 && x->op == OP_MERGE) rows = (long)h->heads * h->head_dim;
    if (x->op == OP_MERGE && (x->row0 % 4 || x->row1 % 4)) bad = "bounds";
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
    if (!used[w] ||
        (data ? p->barrier[w] != 2 : p->barrier[w] > 1 || (p->one_pass && p->barrier[w])))
      bad = "barriers";
  free(used);
  long chunks = p->chunks;
  if (data) {
    for (long k = 1; k <= chunks && !bad; k++) bad = play_tapes(p, k, k, k % 3);
    for (long k = 1; k < chunks && !bad; k++) bad = play_tapes(p, k, k + 1, 0);
    if (!bad) bad = tape_form(p);
    if (!bad && !tape_room(p)) bad = "form: room";
    return bad;
  }
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
