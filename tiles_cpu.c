/*: # The workers

A worker walks its tiles in the order of the plan. It decides nothing: what to compute, over which rows, and
after which barrier was settled when the plan was made. Here a worker is a thread, or a share of one; on a
GPU it will be a block. The arithmetic is written so that the two agree: FP32 between tiles, weights and K/V
cache in the checkpoint's two bytes, every sum in a fixed order.

This file is the reference for the kernels and the program's default where there is no GPU. :*/
#include "tiles.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/*: ## What tiles share

One token's values, and the K/V cache that outlives it. Each buffer has one instance, reused by every layer;
that no tile overwrites what another may still read is what the validator proved. :*/
//> cpu_state
typedef struct Slot { // one lm_head tile's best candidate
  float logit;
  int32_t id;
  bool finite; // every logit of the tile was
} Slot;

typedef struct Barrier {
  _Alignas(64) atomic_uint arrived;
  _Alignas(64) atomic_uint epoch;
  uint32_t threads;
  bool crowded; // more threads than cores: give the core away rather than wait on it
} Barrier;

typedef struct Thread {
  struct Cpu *cpu;
  uint32_t index;
  pthread_t id;
  float *scratch;   // [widest input of any tile]: the normed residual, the merged attention
  uint32_t *cursor; // [workers] next tile of each worker that this thread plays
} Thread;

struct Cpu {
  const Model *model;
  const Plan *plan;
  const Kernels *kernels;
  uint32_t context;
  uint32_t head_wave; // the first wave of final_norm: where a token without logits ends
  float *frequencies; // [head_dim / 2]

  float *residual;    // [hidden]
  float *qkv;         // [heads + 2 kv_heads, head_dim]; the V part is unused
  float *scores;      // [heads, context]
  float *score_max;   // [heads, chunks]
  float *attention;   // [chunks, heads, head_dim] unnormalised
  float *denominator; // [chunks, heads]
  float *partials;    // [ffn_parts, hidden], fused FFN
  float *activation;  // [inter], split FFN
  float *normed;      // [hidden]
  float *logits;      // [vocab]
  Slot *slots;        // [slots]
  uint8_t *keys;      // [layers, kv_heads, context, head_dim] in shape.dtype
  uint8_t *values;    // the same

  // The step in work. Written by the caller before a new `job`, read by everyone after it.
  int32_t token;
  uint32_t position;
  bool want_logits, quit;

  uint32_t thread_count;
  Thread *thread; // [thread_count]; the caller is thread 0
  uint32_t started;
  Barrier barrier;
  atomic_uint job;
  pthread_mutex_t mutex; // only around sleeping
  pthread_cond_t wake;
};
//< cpu_state

/*: ## The barrier

The last to arrive opens the next epoch. Its release store makes every tile's results visible to whoever sees
the new epoch with an acquire load: all writes of a wave come before all reads of the next.

A barrier lasts well under a microsecond when nobody is late, so waiting threads spin. With more threads
than cores the one we wait for may need our core, so then we yield at once; and after some ten microseconds
in any case, since a core may have been taken from us without our knowing. :*/
//> cpu_barrier
static void pause_spin(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static void barrier_wait(Barrier *b) {
  unsigned epoch = atomic_load_explicit(&b->epoch, memory_order_relaxed);
  if (atomic_fetch_add_explicit(&b->arrived, 1, memory_order_acq_rel) + 1 == b->threads) {
    atomic_store_explicit(&b->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&b->epoch, epoch + 1, memory_order_release);
    return;
  }
  for (uint32_t spins = 0; atomic_load_explicit(&b->epoch, memory_order_acquire) == epoch;
       spins++) {
    if (b->crowded || spins > 512) sched_yield();
    else pause_spin();
  }
}
//< cpu_barrier

/*: ## Small operations

They move no bytes worth counting, so they have no tiles of their own: whoever needs a normed vector makes
it. That repeats a few thousand multiplications on every worker and saves a barrier. :*/
//> cpu_small
// out[i] = x[i] / rms(x) * weight[i] over n elements. `out` may be `x`.
static void rms_norm(const Cpu *c, const float *x, const float *weight, float *out, int32_t n) {
  float squares = c->kernels->dot[DT_F32]((const uint8_t *)x, x, n);
  float scale = 1.0f / sqrtf(squares / (float)n + c->model->shape.rms_eps);
  for (int32_t i = 0; i < n; i++) out[i] = x[i] * scale * weight[i];
}

static void store(DType t, uint8_t *out, const float *x, int32_t n) {
  if (t == DT_F32) {
    memcpy(out, x, (size_t)n * 4);
    return;
  }
  for (int32_t i = 0; i < n; i++) {
    uint16_t h = t == DT_BF16 ? f32_to_bf16(x[i]) : f32_to_f16(x[i]);
    memcpy(out + 2 * (size_t)i, &h, 2);
  }
}

// RoPE turns element i of a head together with element i + half, in FP32 as the reference does.
static void rope(const Cpu *c, float *head) {
  int32_t half = c->model->shape.head_dim / 2;
  for (int32_t i = 0; i < half; i++) {
    float angle = (float)c->position * c->frequencies[i];
    float co = cosf(angle), si = sinf(angle), a = head[i], b = head[i + half];
    head[i] = a * co - b * si;
    head[i + half] = b * co + a * si;
  }
}
//< cpu_small

/*: ## GEMV

A tile's rows are dot products, one after the other. Rows of the stacked Q, K and V lie in three matrices,
so the loop over rows is given a matrix and the rows of it. :*/
//> cpu_gemv
// y[r - row0] = matrix[r] · x for rows [row0, row1).
static void gemv(const Cpu *c, const Matrix *m, const float *x, int32_t row0, int32_t row1,
                 float *y) {
  float (*dot)(const uint8_t *, const float *, int32_t) = c->kernels->dot[m->dtype];
  for (int32_t r = row0; r < row1; r++) y[r - row0] = dot(matrix_row(m, r), x, m->columns);
}

static void add(float *y, const float *bias, int32_t n) {
  if (bias)
    for (int32_t i = 0; i < n; i++) y[i] += bias[i];
}
//< cpu_gemv

/*: ## The tiles

One function an opcode, in the order of a token. A tile reads what earlier waves wrote and writes rows that nobody else writes, so none of them
locks anything.

The rows of a QKV tile may begin in Q and end in V. K and Q rows wait for attention, where they are turned; V rows are final and
go into the cache at once. :*/
//> cpu_qkv
static void tile_embed(Cpu *c, const Tile *t) {
  const Matrix *m = &c->model->embedding;
  const uint8_t *row = matrix_row(m, c->token) + t->row0 * dtype_size(m->dtype);
  int32_t n = (int32_t)(t->row1 - t->row0);
  memset(c->residual + t->row0, 0, (size_t)n * sizeof(float));
  c->kernels->axpy[m->dtype](1.0f, row, c->residual + t->row0, n);
}

static uint8_t *cache_row(const Cpu *c, uint8_t *cache, uint32_t layer, uint32_t head,
                          uint32_t position) {
  const Shape *s = &c->model->shape;
  size_t row = ((size_t)layer * (uint32_t)s->kv_heads + head) * c->context + position;
  return cache + row * (uint32_t)s->head_dim * dtype_size(s->dtype);
}

static void tile_qkv(Cpu *c, const Tile *t, float *scratch) {
  const Shape *s = &c->model->shape;
  const Layer *l = &c->model->layer[t->layer];
  rms_norm(c, c->residual, l->attn_norm, scratch, s->hidden);
  int32_t base = 0;
  const Matrix *part[3] = {&l->q, &l->k, &l->v};
  const float *bias[3] = {l->q_bias, l->k_bias, l->v_bias};
  for (int k = 0; k < 3; base += part[k]->rows, k++) {
    int32_t r0 = (int32_t)t->row0 - base, r1 = (int32_t)t->row1 - base;
    if (r0 < 0) r0 = 0;
    if (r1 > part[k]->rows) r1 = part[k]->rows;
    if (r0 >= r1) continue;
    float *y = c->qkv + base + r0;
    gemv(c, part[k], scratch, r0, r1, y);
    add(y, bias[k] ? bias[k] + r0 : NULL, r1 - r0);
    // V needs no rotation: its rows go straight into the cache, head by head.
    for (int32_t r = r0; k == 2 && r < r1;) {
      int32_t head = r / s->head_dim, d = r % s->head_dim, n = s->head_dim - d;
      if (n > r1 - r) n = r1 - r;
      uint8_t *row = cache_row(c, c->values, t->layer, (uint32_t)head, c->position);
      store(s->dtype, row + (size_t)d * dtype_size(s->dtype), c->qkv + base + r, n);
      r += n;
    }
  }
}

//< cpu_qkv

/*: ### Attention

A tile has one K/V head, or a few, and one chunk of the positions. The queries of a group share a K/V head, so each key and each value is fetched
once and used for all of them. Who holds the newest position also writes its key: no other tile of this wave may read that row, and none does, because chunks do not
overlap.

Softmax subtracts the largest score. In two passes the barrier between scores and values makes the head's largest score known to all its chunks; in one pass every chunk
uses its own, and Wo makes up for it. :*/
//> cpu_attention
static void chunk_range(const Cpu *c, uint32_t part, uint32_t chunks, uint32_t *p0, uint32_t *p1) {
  uint64_t n = (uint64_t)c->position + 1;
  *p0 = (uint32_t)(n * part / chunks);
  *p1 = (uint32_t)(n * (part + 1) / chunks);
}

static bool fused_attention(const Cpu *c) {
  return !c->plan->one_pass && c->position < c->plan->fused_context;
}

// Queries of the K/V head's group, normed and turned, into q: [group, head_dim]; in the tile that holds the
// newest position also its key, into the cache.
static void make_heads(Cpu *c, const Layer *l, uint32_t layer, uint32_t kv, bool newest, float *q) {
  const Shape *s = &c->model->shape;
  int32_t group = s->heads / s->kv_heads, hd = s->head_dim;
  for (int32_t i = 0; i < group; i++) {
    float *head = q + (size_t)i * hd;
    memcpy(head, c->qkv + ((size_t)kv * group + i) * hd, (size_t)hd * sizeof(float));
    if (l->q_norm) rms_norm(c, head, l->q_norm, head, hd);
    rope(c, head);
  }
  if (!newest) return;
  float *key = q + (size_t)group * hd;
  memcpy(key, c->qkv + ((size_t)s->heads + kv) * hd, (size_t)hd * sizeof(float));
  if (l->k_norm) rms_norm(c, key, l->k_norm, key, hd);
  rope(c, key);
  store(s->dtype, cache_row(c, c->keys, layer, kv, c->position), key, hd);
}

// The largest score of a head over the first `chunks` chunks.
static float head_max(const Cpu *c, uint32_t head, uint32_t chunks) {
  const float *m = c->score_max + (size_t)head * c->plan->chunks;
  float max = m[0];
  for (uint32_t k = 1; k < chunks; k++)
    if (!(m[k] <= max)) max = m[k];
  return max;
}

// The weighted values of one K/V head's group over chunk `part` of `chunks`, unnormalised, into that partial: relative to the chunk's
// own largest score in one pass, to the head's in two. The scores become their exponentials.
static void weigh_values(Cpu *c, uint32_t layer, uint32_t kv, uint32_t part, uint32_t chunks) {
  const Shape *s = &c->model->shape;
  int32_t group = s->heads / s->kv_heads, hd = s->head_dim;
  size_t row = (size_t)hd * dtype_size(s->dtype);
  uint32_t p0, p1;
  chunk_range(c, part, chunks, &p0, &p1);
  const uint8_t *v = cache_row(c, c->values, layer, kv, p0);
  uint32_t h0 = kv * (uint32_t)group;
  float *out = c->attention + ((size_t)part * s->heads + h0) * hd;
  memset(out, 0, (size_t)group * hd * sizeof(float));
  for (uint32_t h = h0; h < h0 + (uint32_t)group; h++) {
    float max = c->plan->one_pass ? c->score_max[(size_t)h * c->plan->chunks + part]
                                  : head_max(c, h, chunks);
    c->denominator[(size_t)part * s->heads + h] =
        c->kernels->exps(c->scores + (size_t)h * c->context + p0, max, (int32_t)(p1 - p0));
  }
  for (uint32_t p = p0; p < p1; p++, v += row)
    for (int32_t i = 0; i < group; i++)
      c->kernels->axpy[s->dtype](c->scores[(size_t)(h0 + i) * c->context + p], v,
                                 out + (size_t)i * hd, hd);
}

// Both kinds of attention begin alike; in one pass, and in the fused form of two, the values follow at once.
static void tile_scores(Cpu *c, const Tile *t, float *scratch) {
  const Shape *s = &c->model->shape;
  uint32_t chunks = plan_chunks_in_use(c->plan, c->position + 1), p0, p1;
  if (t->part >= chunks) return;
  chunk_range(c, t->part, chunks, &p0, &p1);
  int32_t group = s->heads / s->kv_heads, hd = s->head_dim;
  float scale = 1.0f / sqrtf((float)hd);
  for (uint32_t kv = t->row0; kv < t->row1; kv++) {
    make_heads(c, &c->model->layer[t->layer], t->layer, kv, t->part + 1 == chunks, scratch);
    const uint8_t *k = cache_row(c, c->keys, t->layer, kv, p0);
    size_t row = (size_t)hd * dtype_size(s->dtype);
    float *max = c->score_max + (size_t)kv * group * c->plan->chunks;
    for (int32_t i = 0; i < group; i++)
      max[i * (int32_t)c->plan->chunks + (int32_t)t->part] = -INFINITY;
    for (uint32_t p = p0; p < p1; p++, k += row)
      for (int32_t i = 0; i < group; i++) {
        float score = scale * c->kernels->dot[s->dtype](k, scratch + (size_t)i * hd, hd);
        c->scores[((size_t)kv * group + i) * c->context + p] = score;
        float *m = &max[(size_t)i * c->plan->chunks + t->part];
        if (!(score <= *m)) *m = score; // NaN takes over, and reaches the logits
      }
    if (t->op == OP_ATTEND || chunks == 1) weigh_values(c, t->layer, kv, t->part, chunks);
  }
}

static void tile_values(Cpu *c, const Tile *t) {
  if (fused_attention(c)) return;
  for (uint32_t kv = t->row0; kv < t->row1; kv++)
    weigh_values(c, t->layer, kv, t->part, c->plan->chunks);
}

//< cpu_attention

/*: ### Wo

Every Wo tile merges all of attention's partials for itself: a chunk's sums are scaled by e to the power of its own maximum less the head's, and divided once at the end. That repeats
the merge on every worker. The alternative is a wave of its own. :*/
//> cpu_wo
static void tile_wo(Cpu *c, const Tile *t, float *scratch) {
  const Shape *s = &c->model->shape;
  const Layer *l = &c->model->layer[t->layer];
  uint32_t chunks = plan_chunks_in_use(c->plan, c->position + 1);
  size_t width = (size_t)s->heads * s->head_dim;
  for (int32_t h = 0; h < s->heads; h++) {
    const float *max = c->score_max + (size_t)h * c->plan->chunks;
    float *out = scratch + (size_t)h * s->head_dim, sum = 0;
    float largest = head_max(c, (uint32_t)h, chunks);
    memset(out, 0, (size_t)s->head_dim * sizeof(float));
    for (uint32_t k = 0; k < chunks; k++) {
      float scale = c->plan->one_pass ? expf(max[k] - largest) : 1; // two passes share a scale
      const float *partial = c->attention + k * width + (size_t)h * s->head_dim;
      sum += scale * c->denominator[(size_t)k * s->heads + h];
      for (int32_t d = 0; d < s->head_dim; d++) out[d] += scale * partial[d];
    }
    for (int32_t d = 0; d < s->head_dim; d++) out[d] /= sum;
  }
  float (*dot)(const uint8_t *, const float *, int32_t) = c->kernels->dot[l->o.dtype];
  for (uint32_t r = t->row0; r < t->row1; r++)
    c->residual[r] +=
        dot(matrix_row(&l->o, (int32_t)r), scratch, l->o.columns) + (l->o_bias ? l->o_bias[r] : 0);
}

//< cpu_wo

/*: ### The FFN

Fused, a tile goes from the residual to a partial sum of the output without a barrier: its rows of gate and up, and then the *columns* of down that
they are multiplied by. The price is `ffn_parts` partial sums of the whole output, written and read again. Added in the order of the parts, they give the same bits every run. :*/
//> cpu_ffn
static float silu(float x) { return x / (1.0f + expf(-x)); }

// silu(gate) * up for intermediate rows [row0, row1), into out.
static void gate_up(Cpu *c, const Tile *t, float *scratch, float *out) {
  const Layer *l = &c->model->layer[t->layer];
  int32_t r0 = (int32_t)t->row0, n = (int32_t)(t->row1 - t->row0), hidden = c->model->shape.hidden;
  rms_norm(c, c->residual, l->ffn_norm, scratch, hidden);
  float *up = scratch + hidden;
  gemv(c, &l->gate, scratch, r0, r0 + n, out);
  gemv(c, &l->up, scratch, r0, r0 + n, up);
  add(out, l->gate_bias ? l->gate_bias + r0 : NULL, n);
  add(up, l->up_bias ? l->up_bias + r0 : NULL, n);
  for (int32_t i = 0; i < n; i++) out[i] = silu(out[i]) * up[i];
}

static void tile_ffn(Cpu *c, const Tile *t, float *scratch) {
  const Shape *s = &c->model->shape;
  const Matrix *down = &c->model->layer[t->layer].down;
  int32_t n = (int32_t)(t->row1 - t->row0);
  float *mine = scratch + s->hidden + s->inter;
  gate_up(c, t, scratch, mine);
  // Columns [row0, row1) of every row: contiguous for the whole tile in a package, a slice of each row in
  // a checkpoint.
  size_t size = dtype_size(down->dtype), stride = matrix_stride(down);
  const uint8_t *w = down->data + t->row0 * size;
  if (c->model->down_sliced) {
    w = down->data + (size_t)t->row0 * s->hidden * size;
    stride = (size_t)n * size;
  }
  float *out = c->partials + (size_t)t->part * s->hidden;
  for (int32_t r = 0; r < s->hidden; r++, w += stride)
    out[r] = c->kernels->dot[down->dtype](w, mine, n);
}

static void tile_ffn_reduce(Cpu *c, const Tile *t) {
  const float *bias = c->model->layer[t->layer].down_bias;
  for (uint32_t r = t->row0; r < t->row1; r++) {
    float sum = bias ? bias[r] : 0;
    for (uint32_t p = 0; p < c->plan->ffn_parts; p++)
      sum += c->partials[(size_t)p * c->model->shape.hidden + r];
    c->residual[r] += sum;
  }
}

static void tile_down(Cpu *c, const Tile *t) {
  const Layer *l = &c->model->layer[t->layer];
  float (*dot)(const uint8_t *, const float *, int32_t) = c->kernels->dot[l->down.dtype];
  for (uint32_t r = t->row0; r < t->row1; r++)
    c->residual[r] += dot(matrix_row(&l->down, (int32_t)r), c->activation, l->down.columns) +
                      (l->down_bias ? l->down_bias[r] : 0);
}

//< cpu_ffn

/*: ### The head

The comparison is strict, so the first of equal logits stays: the lowest id. :*/
//> cpu_head
static void tile_final_norm(Cpu *c, const Tile *t, float *scratch) {
  rms_norm(c, c->residual, c->model->final_norm, scratch, c->model->shape.hidden);
  memcpy(c->normed + t->row0, scratch + t->row0, (t->row1 - t->row0) * sizeof(float));
}

// The best candidate of the tile's rows: the largest logit, the lowest id among equals.
static void tile_lm_head(Cpu *c, const Tile *t) {
  gemv(c, &c->model->lm_head, c->normed, (int32_t)t->row0, (int32_t)t->row1, c->logits + t->row0);
  Slot best = {.logit = c->logits[t->row0], .id = (int32_t)t->row0, .finite = true};
  for (uint32_t r = t->row0; r < t->row1; r++) {
    best.finite = best.finite && isfinite(c->logits[r]);
    if (c->logits[r] > best.logit) best.logit = c->logits[r], best.id = (int32_t)r;
  }
  c->slots[t->part] = best;
}
//< cpu_head

//> cpu_run_tile
static void run_tile(Cpu *c, const Tile *t, float *scratch) {
  switch ((Op)t->op) {
  case OP_EMBED: tile_embed(c, t); break;
  case OP_QKV: tile_qkv(c, t, scratch); break;
  case OP_ATTEND:
  case OP_SCORES: tile_scores(c, t, scratch); break;
  case OP_VALUES: tile_values(c, t); break;
  case OP_WO: tile_wo(c, t, scratch); break;
  case OP_FFN: tile_ffn(c, t, scratch); break;
  case OP_FFN_REDUCE: tile_ffn_reduce(c, t); break;
  case OP_GATE_UP: gate_up(c, t, scratch, c->activation + t->row0); break;
  case OP_DOWN: tile_down(c, t); break;
  case OP_FINAL_NORM: tile_final_norm(c, t, scratch); break;
  case OP_LM_HEAD: tile_lm_head(c, t); break;
  case OP_MERGE: // of plans that cpu_open refuses
  case OP_COUNT: break;
  }
}
//< cpu_run_tile

/*: ## One token

Every thread walks the waves; in each it plays its workers' tiles and then meets the others. With as many
threads as workers, a thread is a worker. With fewer, thread i plays workers i, i + threads, …: the same
tiles in the same waves, so the same bits. :*/
//> cpu_token
static void walk(Thread *me) {
  Cpu *c = me->cpu;
  const Plan *p = c->plan;
  bool fused = fused_attention(c);
  uint32_t waves = c->want_logits ? p->wave_count : c->head_wave;
  for (uint32_t w = me->index; w < p->workers; w += c->thread_count) me->cursor[w] = p->first[w];
  for (uint32_t wave = 0; wave < waves; wave++) {
    for (uint32_t w = me->index; w < p->workers; w += c->thread_count) {
      uint32_t i = me->cursor[w];
      for (; i < p->first[w + 1] && p->tile[i].wave == wave; i++)
        run_tile(c, &p->tile[i], me->scratch);
      me->cursor[w] = i;
    }
    if (!(fused && p->barrier[wave] == BARRIER_IF_SPLIT)) barrier_wait(&c->barrier);
  }
}

//< cpu_token

/*: ### Between tokens

The caller may be printing, or waiting for a person. So the threads spin only briefly for the next job and then sleep. `job` is the epoch of the steps: its release makes
token, position and what is wanted visible to whoever sees the new number with an acquire. The mutex is for sleeping alone: raising `job` under it means that nobody
can look, find nothing, and fall asleep just after the call.

The caller is thread 0 and plays along. It leaves the last barrier only when all others have arrived there, so when `walk` returns, every slot of the step is written and visible. :*/
//> cpu_step
static void *thread_main(void *argument) {
  Thread *me = argument;
  Cpu *c = me->cpu;
  for (unsigned seen = 0;; seen++) {
    for (uint32_t spins = 0; spins < 20000 && !c->barrier.crowded; spins++) {
      if (atomic_load_explicit(&c->job, memory_order_acquire) != seen) break;
      pause_spin();
    }
    if (atomic_load_explicit(&c->job, memory_order_acquire) == seen) {
      pthread_mutex_lock(&c->mutex);
      while (atomic_load_explicit(&c->job, memory_order_acquire) == seen)
        pthread_cond_wait(&c->wake, &c->mutex);
      pthread_mutex_unlock(&c->mutex);
    }
    if (c->quit) return NULL;
    walk(me);
  }
}

static void start_job(Cpu *c) {
  pthread_mutex_lock(&c->mutex);
  atomic_fetch_add_explicit(&c->job, 1, memory_order_release);
  pthread_cond_broadcast(&c->wake);
  pthread_mutex_unlock(&c->mutex);
}

int cpu_step(Cpu *c, int32_t token, uint32_t position, bool want_logits, int32_t *next, Error *e) {
  if (token < 0 || token >= c->model->shape.vocab)
    return fail(e, EXIT_INPUT, "token id %d: the vocabulary has %d", token, c->model->shape.vocab);
  if (position >= c->context)
    return fail(e, EXIT_INPUT, "position %u: the context has %u", position, c->context);
  c->token = token;
  c->position = position;
  c->want_logits = want_logits;
  start_job(c);
  walk(&c->thread[0]);
  if (!want_logits) return 0;
  Slot best = c->slots[0];
  for (uint32_t i = 1; i < c->plan->slots; i++) {
    const Slot *s = &c->slots[i];
    best.finite = best.finite && s->finite;
    if (s->logit > best.logit || (s->logit == best.logit && s->id < best.id))
      best.logit = s->logit, best.id = s->id;
  }
  if (!best.finite) return fail(e, EXIT_NUMBER, "non-finite logits at step %u", position);
  if (next) *next = best.id;
  return 0;
}

const float *cpu_logits(const Cpu *c) { return c->logits; }
uint32_t cpu_threads(const Cpu *c) { return c->thread_count; }

void cpu_seed_cache(Cpu *c, uint32_t positions) {
  const Shape *s = &c->model->shape;
  uint32_t state = 1;
  for (int32_t l = 0; l < s->layers; l++)
    for (int32_t h = 0; h < s->kv_heads; h++)
      for (uint32_t p = 0; p < positions && p < c->context; p++)
        for (int32_t d = 0; d < s->head_dim; d++) {
          float x[2];
          for (int k = 0; k < 2; k++) {
            state = state * 1664525u + 1013904223u;
            x[k] = (float)(state >> 8) * 0x1p-23f - 1.0f;
          }
          size_t at = (size_t)d * dtype_size(s->dtype);
          store(s->dtype, cache_row(c, c->keys, (uint32_t)l, (uint32_t)h, p) + at, &x[0], 1);
          store(s->dtype, cache_row(c, c->values, (uint32_t)l, (uint32_t)h, p) + at, &x[1], 1);
        }
}
//< cpu_step

/*: ## Opening and closing

Memory is asked for before the first weight is touched, so that a context that does not fit is refused at
once. The cache comes from `calloc`: pages that no position has reached cost nothing. :*/
//> cpu_open
static void *take(size_t count, size_t size, bool *ok) {
  void *p = *ok ? calloc(count ? count : 1, size) : NULL;
  if (!p) *ok = false;
  return p;
}

static int start_threads(Cpu *c, uint32_t threads, Error *e) {
  const Shape *s = &c->model->shape;
  size_t attention = (size_t)(s->heads / s->kv_heads + 1) * (uint32_t)s->head_dim;
  size_t widest = (size_t)s->hidden + 2 * (size_t)s->inter;
  if (widest < attention) widest = attention;
  if (widest < (size_t)s->heads * (uint32_t)s->head_dim)
    widest = (size_t)s->heads * (uint32_t)s->head_dim;
  bool ok = true;
  c->thread = take(threads, sizeof *c->thread, &ok);
  c->thread_count = ok ? threads : 0;
  for (uint32_t i = 0; i < c->thread_count; i++) {
    c->thread[i] = (Thread){.cpu = c, .index = i};
    c->thread[i].scratch = take(widest, sizeof(float), &ok);
    c->thread[i].cursor = take(c->plan->workers, sizeof(uint32_t), &ok);
  }
  if (!ok) return fail(e, EXIT_FAIL, "out of memory for %u threads", threads);
  c->barrier.threads = threads;
  c->barrier.crowded = threads > cpu_count();
  for (c->started = 1; c->started < threads; c->started++) {
    Thread *t = &c->thread[c->started];
    if (pthread_create(&t->id, NULL, thread_main, t) != 0)
      return fail(e, EXIT_FAIL, "thread %u of %u could not be started", c->started, threads);
  }
  return 0;
}

int cpu_open(const Model *m, const Plan *p, uint32_t context, uint32_t threads, Cpu **out,
             Error *e) {
  const Shape *s = &m->shape, *q = &p->shape;
  *out = NULL;
  if (s->vocab != q->vocab || s->hidden != q->hidden || s->inter != q->inter ||
      s->layers != q->layers || s->heads != q->heads || s->kv_heads != q->kv_heads ||
      s->head_dim != q->head_dim)
    return fail(e, EXIT_PLAN, "the plan is for the shape %s, the model is %s", q->name, s->name);
  if (p->sync != SYNC_BARRIER)
    return fail(e, EXIT_PLAN,
                "the plan's hand-offs are data: only a GPU plays it; plan with --sync barrier");
  Cpu *c = calloc(1, sizeof *c);
  if (!c) return fail(e, EXIT_FAIL, "out of memory");
  c->model = m, c->plan = p, c->context = context, c->kernels = kernels_find(NULL);
  pthread_mutex_init(&c->mutex, NULL);
  pthread_cond_init(&c->wake, NULL);
  c->head_wave = p->wave_count;
  for (uint32_t i = 0; i < p->tile_count; i++)
    if (p->tile[i].op == OP_FINAL_NORM && p->tile[i].wave < c->head_wave)
      c->head_wave = p->tile[i].wave;

  size_t heads = (size_t)s->heads, hd = (size_t)s->head_dim, hidden = (size_t)s->hidden;
  size_t cache = (size_t)s->layers * (size_t)s->kv_heads * context * hd;
  bool ok = true;
  c->keys = take(cache, dtype_size(s->dtype), &ok);
  c->values = take(cache, dtype_size(s->dtype), &ok);
  if (!ok) {
    cpu_close(c);
    return fail(e, EXIT_FAIL,
                "the K/V cache of %u positions needs %llu bytes, which this machine does not give; "
                "try a smaller --ctx",
                context, (unsigned long long)(shape_kv_bytes(s) * context));
  }
  c->frequencies = take(hd / 2, sizeof(float), &ok);
  c->residual = take(hidden, sizeof(float), &ok);
  c->qkv = take((size_t)qkv_rows(s), sizeof(float), &ok);
  c->scores = take(heads * context, sizeof(float), &ok);
  c->score_max = take(heads * p->chunks, sizeof(float), &ok);
  c->attention = take(p->chunks * heads * hd, sizeof(float), &ok);
  c->denominator = take(p->chunks * heads, sizeof(float), &ok);
  c->partials = take((size_t)p->ffn_parts * hidden, sizeof(float), &ok);
  c->activation = take((size_t)s->inter, sizeof(float), &ok);
  c->normed = take(hidden, sizeof(float), &ok);
  c->logits = take((size_t)s->vocab, sizeof(float), &ok);
  c->slots = take(p->slots, sizeof(Slot), &ok);
  if (!ok) {
    cpu_close(c);
    return fail(e, EXIT_FAIL, "out of memory for one token's values at %u positions", context);
  }
  rope_frequencies(s, c->frequencies);
  if (threads == 0) threads = cpu_count();
  if (start_threads(c, threads < p->workers ? threads : p->workers, e) != 0) {
    cpu_close(c);
    return -1;
  }
  *out = c;
  return 0;
}

void cpu_close(Cpu *c) {
  if (!c) return;
  c->quit = true;
  if (c->started > 1) start_job(c);
  for (uint32_t i = 1; i < c->started; i++) pthread_join(c->thread[i].id, NULL);
  for (uint32_t i = 0; i < c->thread_count; i++) {
    free(c->thread[i].scratch);
    free(c->thread[i].cursor);
  }
  void *owned[] = {c->thread,   c->keys,       c->values,    c->frequencies, c->residual,
                   c->qkv,      c->scores,     c->score_max, c->attention,   c->denominator,
                   c->partials, c->activation, c->normed,    c->logits,      c->slots};
  for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
  pthread_mutex_destroy(&c->mutex);
  pthread_cond_destroy(&c->wake);
  free(c);
}
//< cpu_open
