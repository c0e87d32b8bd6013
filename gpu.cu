/*: # The host's part

The host asks the card what it is and the compiled kernel what it needs, lays the model out, and then launches and
reads. It takes no part in choosing a token. :*/
#include "tiles_kernel.cu"
#include "tape_kernel.cu"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#ifndef KERNEL_FINGERPRINT
#define KERNEL_FINGERPRINT kernel_fingerprint_text // in an object made after this one was compiled
extern "C" const char kernel_fingerprint_text[];
#endif

// How long anybody waits for a worker before it counts as lost; under a tool that watches each access a token takes seconds.
static const unsigned long long PATIENCE_NS = 10000000000ull;

extern "C" const char *kernel_fingerprint(void) { return KERNEL_FINGERPRINT; }

static int cuda_fail(Error *e, const char *what, cudaError_t code) {
  return fail(e, EXIT_FAIL, "%s: %s", what, cudaGetErrorString(code));
}

#define TRY(what, call)                                                                            \
  do {                                                                                             \
    cudaError_t code_ = (call);                                                                    \
    if (code_ != cudaSuccess) return cuda_fail(e, what, code_);                                    \
  } while (0)

/*: ## The card as a target

Occupancy is asked of the very kernel that will run, with the very shared memory: an assumption here is a hang there. :*/
//> gpu_target
typedef void (*Kernel)(Params);
static Kernel waves_kernel(DType t) {
  return t == DT_F16 ? tiles_kernel<DT_F16> : tiles_kernel<DT_BF16>;
}
template <DType T> static Kernel tape_kernel_for(bool whole, int32_t head_dim) {
  if (head_dim > 64) return tape_kernel<T, false, TAPE_HEAD>;
  return whole ? tape_kernel<T, true, 64> : tape_kernel<T, false, 64>;
}

extern "C" bool gpu_built(void) { return true; }

extern "C" int gpu_count(void) {
  int n = 0;
  return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

extern "C" const char *gpu_why_none(void) {
  int n = 0;
  cudaError_t code = cudaGetDeviceCount(&n);
  return code != cudaSuccess ? cudaGetErrorString(code) : n ? "" : "no CUDA device";
}

static int resident_blocks(Kernel kernel, uint32_t threads, uint32_t shared, int device,
                           uint32_t *blocks, Error *e) {
  int per_sm = 0, sms = 0;
  TRY("kernel's shared memory",
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
  TRY("occupancy",
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, (int)threads, shared));
  TRY("SM count", cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  *blocks = (uint32_t)(per_sm > 1 ? 1 : per_sm) * (uint32_t)sms; // a worker is one block an SM
  return 0;
}

extern "C" int gpu_target(int device, uint32_t workers, Target *out, Error *e) {
  *out = Target{};
  int count = gpu_count();
  if (device < 0 || device >= count)
    return fail(e, EXIT_USAGE, "--device cuda:%d: this machine has %d usable CUDA devices%s%s",
                device, count, count ? "" : ": ", count ? "" : gpu_why_none());
  cudaDeviceProp card;
  TRY("device", cudaSetDevice(device));
  TRY("device", cudaGetDeviceProperties(&card, device));
  if (card.major < 8 || !card.cooperativeLaunch)
    return fail(e, EXIT_PLAN, "%s: compute capability %d.%d, the kernels need 8.0", card.name,
                card.major, card.minor);
  char *to = out->name;
  for (const char *c = card.name; *c && to < out->name + sizeof out->name - 1; c++)
    *to++ = isalnum((unsigned char)*c) ? (char)tolower((unsigned char)*c) : '-';
  snprintf(out->kind, sizeof out->kind, "cuda");
  cudaFuncAttributes kernel;
  TRY("kernel", cudaFuncGetAttributes(&kernel, waves_kernel(DT_BF16)));
  out->threads = BLOCK;
  out->registers = (uint32_t)kernel.numRegs;
  out->shared_bytes = (uint32_t)card.sharedMemPerBlockOptin;
  out->fused_context = 256;
  snprintf(out->fingerprint, sizeof out->fingerprint, "%s", kernel_fingerprint());
  uint32_t blocks;
  if (resident_blocks(waves_kernel(DT_BF16), BLOCK, out->shared_bytes, device, &blocks, e) != 0)
    return -1;
  if (workers > blocks)
    return fail(e, EXIT_PLAN, "--workers: %u blocks, %s holds %u at once", workers, card.name,
                blocks);
  out->workers = workers ? workers : blocks;
  return 0;
}
//< gpu_target

/*: ## The model on the card

All layers have the same layout, so a matrix of layer *l* lies `l * layer_bytes` behind that of layer 0, and a tile's address is
arithmetic. Rows are padded to eight columns, because a lane reads eight weights. Q, K and V are stacked; a fused FFN has its down
projection transposed. :*/
//> gpu_layout
struct Gpu {
  const Model *model;
  const Plan *plan;
  int device;
  DType dtype;
  uint32_t context, shared;
  Params params;
  uint64_t weight_bytes, vector_floats;
  unsigned char *handed; // with hand-offs of data: all their buffers, empty before each launch
  uint64_t handed_bytes;
  std::vector<void *> owned;
  cudaStream_t stream;
  cudaEvent_t begin, end;
  Status *status; // host's copy
  int32_t *prompt, *output;
  float milliseconds;
  double host_milliseconds;
};

static uint32_t round_up(uint64_t n, uint32_t to) { return (uint32_t)((n + to - 1) / to * to); }

static bool on_tape(const Gpu *g) { return g->plan->sync == SYNC_DATA; }
// Every piece is eight rows of 2,048 columns; heads are of 64 and have no norm.
static bool cut_whole(const Plan &plan) {
  const Shape &s = plan.shape;
  if (s.head_dim != 64 || s.qk_norm) return false;
  for (int32_t columns : {s.hidden, s.heads * s.head_dim, s.inter}) {
    TapeCut cut = tape_cut((uint32_t)columns, plan.slot_bytes);
    if (cut.columns != TAPE_COLUMNS || cut.rows != 8 || columns % TAPE_COLUMNS) return false;
  }
  return true;
}
static Kernel kernel_of(const Plan &plan, DType type) {
  if (plan.sync != SYNC_DATA) return waves_kernel(type);
  const bool whole = cut_whole(plan);
  return type == DT_F16 ? tape_kernel_for<DT_F16>(whole, plan.shape.head_dim)
                        : tape_kernel_for<DT_BF16>(whole, plan.shape.head_dim);
}
static uint32_t threads_of(const Plan &plan) {
  return plan.sync == SYNC_DATA ? (uint32_t)TAPE_BLOCK : (uint32_t)BLOCK;
}

static DeviceMatrix place(uint64_t *at, uint64_t rows, uint32_t columns) {
  DeviceMatrix m = {};
  m.columns = round_up(columns, 8);
  m.stride = m.columns * 2;
  m.offset = *at;
  *at = (*at + rows * m.stride + 255) / 256 * 256;
  uint32_t steps = (m.columns + STEP_COLUMNS - 1) / STEP_COLUMNS;
  m.segments = (steps + STEPS - 1) / STEPS;
  m.steps = (steps + m.segments - 1) / m.segments;
  m.unit_stride = WARPS / m.segments;
  m.segment_stride = WARPS % m.segments;
  m.warp_unit = (65536 + m.segments - 1) / m.segments;
  return m;
}

static uint32_t place_vector(bool present, uint32_t *at, uint32_t n) {
  if (!present) return NO_VECTOR;
  uint32_t here = *at;
  *at += round_up(n, 8);
  return here;
}

static void lay_out(Gpu *g) {
  const Shape *s = &g->model->shape;
  Params *p = &g->params;
  uint64_t at = 0;
  uint32_t width = (uint32_t)(s->heads * s->head_dim);
  bool fused = g->plan->ffn_parts > 0;
  p->qkv = place(&at, (uint64_t)qkv_rows(s), s->hidden);
  p->o = place(&at, s->hidden, width);
  p->gate = place(&at, s->inter, s->hidden);
  p->up = place(&at, s->inter, s->hidden);
  p->down = fused ? place(&at, s->inter, s->hidden) : place(&at, s->hidden, s->inter);
  p->layer_bytes = at;
  at *= (uint64_t)s->layers;
  p->lm_head = place(&at, s->vocab, s->hidden);
  p->embedding = s->tied ? p->lm_head : place(&at, s->vocab, s->hidden);
  g->weight_bytes = at;

  uint32_t v = 0;
  p->attn_norm = place_vector(true, &v, s->hidden);
  p->ffn_norm = place_vector(true, &v, s->hidden);
  p->qkv_bias = place_vector(s->qkv_bias, &v, qkv_rows(s));
  p->o_bias = place_vector(s->o_bias, &v, s->hidden);
  p->gate_bias = place_vector(s->mlp_bias, &v, s->inter);
  p->up_bias = place_vector(s->mlp_bias, &v, s->inter);
  p->down_bias = place_vector(s->mlp_bias, &v, s->hidden);
  p->q_norm = place_vector(s->qk_norm, &v, s->head_dim);
  p->k_norm = place_vector(s->qk_norm, &v, s->head_dim);
  p->layer_floats = v;
  g->vector_floats = (uint64_t)v * s->layers + round_up(s->hidden, 8);
  if (!on_tape(g)) return;
  p->qkv.per_column = 1.0f / (float)s->hidden;
  p->ring_slots = g->plan->ring_slots, p->slot_bytes = g->plan->slot_bytes;
  for (DeviceMatrix *m : {&p->qkv, &p->o, &p->gate, &p->up, &p->down, &p->lm_head}) {
    TapeCut cut = tape_cut(m->columns, p->slot_bytes);
    m->tape_rows = cut.rows, m->tape_columns = cut.columns, m->tape_blocks = cut.blocks;
  }
}
//< gpu_layout

/*: ## Shared memory

The most that any tile of this plan needs; the layout is `block_shared`'s. :*/
//> gpu_shared
static uint32_t room_floats(const Gpu *g, const Tile *t) {
  const Params *p = &g->params;
  uint32_t n = t->row1 - t->row0, columns = 0, units = (n + 1) / 2, more = 0;
  switch (t->op) {
  case OP_QKV: columns = p->qkv.columns; break;
  case OP_WO:
    columns = p->o.columns;
    more = n + 3 * g->plan->chunks * p->heads;
    break;
  case OP_FFN: more = round_up(n, 4) + FFN_GROUPS * p->down.columns; // fall through
  case OP_GATE_UP:
    columns = p->gate.columns;
    units = n;
    break;
  case OP_DOWN:
    columns = p->down.columns;
    more = n;
    break;
  case OP_FINAL_NORM:
  case OP_LM_HEAD: columns = p->lm_head.columns; break;
  case OP_ATTEND:
  case OP_SCORES:
  case OP_VALUES: return attention_floats(p->one_pass, p->group, p->head_dim);
  default: return 0;
  }
  uint32_t segments = (columns + SEGMENT_COLUMNS - 1) / SEGMENT_COLUMNS,
           sums = 2 * units * segments;
  return columns + (segments > 1 && sums > columns ? sums : columns) + more;
}

// The same for a tape; the layout is `tape_shared`'s.
static uint32_t tape_shared_bytes(Gpu *g) {
  const Plan *plan = g->plan;
  Params *p = &g->params;
  uint32_t tiles = 0;
  for (uint32_t w = 0; w < plan->workers; w++)
    if (plan->first[w + 1] - plan->first[w] > tiles) tiles = plan->first[w + 1] - plan->first[w];
  p->tile_room = tiles;
  auto more = [](uint32_t *most, uint32_t n) { *most = n > *most ? n : *most; };
  p->own_floats = p->partial_floats = 0;
  for (uint32_t i = 0; i < plan->tile_count; i++) {
    const Tile *t = &plan->tile[i];
    if (t->op == OP_ATTEND || t->op == OP_MERGE) continue;
    const uint32_t n = t->row1 - t->row0, rows = n < TAPE_SUMS ? n : (uint32_t)TAPE_SUMS;
    if (t->op == OP_WO || t->op == OP_DOWN) more(&p->own_floats, round_up(n, 4));
    more(&p->partial_floats, (t->op == OP_GATE_UP ? 2 : 1) * rows * WARPS);
  }
  uint32_t floats = tape_work_floats(p->head_dim) + WARP * 4 + p->head_dim + 2 * p->own_floats +
                    2 * p->partial_floats;
  p->ring_at = round_up(TAPE_FIXED + floats * sizeof(float) + tiles * sizeof(Tile), 128);
  return p->ring_at + p->ring_slots * p->slot_bytes;
}

static uint32_t shared_bytes(Gpu *g, uint32_t card) {
  if (on_tape(g)) return tape_shared_bytes(g);
  const Plan *plan = g->plan;
  Params *p = &g->params;
  uint32_t most = 0, tiles = 0, row = p->head_dim * 4;
  // Two buffers of blocks of K and V rows: on a card with little shared memory, smaller blocks.
  p->kv_rows = BLOCK;
  while (p->kv_rows > WARP && 2 * p->kv_rows * row > card / 2) p->kv_rows -= WARP;
  for (uint32_t i = 0; i < plan->tile_count; i++) {
    uint32_t n = room_floats(g, &plan->tile[i]);
    if (n > most) most = n;
  }
  for (uint32_t w = 0; w < plan->workers; w++)
    if (plan->first[w + 1] - plan->first[w] > tiles) tiles = plan->first[w + 1] - plan->first[w];
  p->tile_room = tiles < 512 ? tiles : 512;
  p->room_bytes = round_up(most * sizeof(float), 128);
  p->gain_floats = p->qkv.columns;
  const uint32_t beside =
      SHARED_FIXED + p->gain_floats * sizeof(float) + p->room_bytes + p->tile_room * sizeof(Tile);
  while (p->kv_rows > WARP && round_up(beside + 2 * p->kv_rows * row, 128) > card)
    p->kv_rows -= WARP;
  p->ahead_bytes = 2 * p->kv_rows * row;
  return round_up(beside + p->ahead_bytes, 128);
}
//< gpu_shared

/*: ## Uploading

Rows go through a staging buffer, where they are un-permuted, padded, and narrowed to BF16 if the checkpoint is FP32. :*/
//> gpu_upload
static void convert_row(const uint8_t *row, DType from, uint32_t n, uint16_t *out) {
  if (from != DT_F32) memcpy(out, row, 2 * (size_t)n);
  else
    for (uint32_t i = 0; i < n; i++) {
      float f;
      memcpy(&f, row + 4 * (size_t)i, 4);
      out[i] = f32_to_bf16(f);
    }
}

static int upload_rows(Gpu *g, const Matrix *m, const DeviceMatrix *to, uint64_t at, Error *e) {
  const size_t most = (size_t)32 << 20;
  uint32_t rows = (uint32_t)(most / to->stride);
  if (rows < 1) rows = 1;
  if (rows > (uint32_t)m->rows) rows = (uint32_t)m->rows;
  std::vector<uint16_t> stage((size_t)rows * to->stride / 2, 0);
  for (uint32_t r0 = 0; r0 < (uint32_t)m->rows; r0 += rows) {
    uint32_t n = (uint32_t)m->rows - r0 < rows ? (uint32_t)m->rows - r0 : rows;
    for (uint32_t r = 0; r < n; r++) {
      uint16_t *row = &stage[(size_t)r * to->stride / 2];
      convert_row(matrix_row(m, (int32_t)(r0 + r)), m->dtype, (uint32_t)m->columns, row);
      if (on_tape(g) && halves_exchanged(to->columns, r0 + r))
        for (uint32_t c = 0; c < to->columns; c += EXCHANGED)
          std::swap_ranges(row + c, row + c + EXCHANGED / 2, row + c + EXCHANGED / 2);
    }
    TRY("upload", cudaMemcpy((uint8_t *)g->params.weights + at + (uint64_t)r0 * to->stride,
                             stage.data(), (size_t)n * to->stride, cudaMemcpyHostToDevice));
  }
  return 0;
}

// The down projection of a fused FFN: intermediate row j's column of it becomes a row.
static int upload_transposed(Gpu *g, const Matrix *m, uint64_t at, Error *e) {
  const DeviceMatrix *to = &g->params.down;
  const size_t size = dtype_size(m->dtype), hidden = (size_t)m->rows;
  std::vector<uint16_t> all((size_t)m->columns * to->stride / 2, 0), slice;
  for (uint32_t i = 0; i < g->plan->tile_count; i++) {
    const Tile *t = &g->plan->tile[i];
    if (t->op != OP_FFN || t->layer != 0) continue; // every layer is cut alike
    size_t n = t->row1 - t->row0, stride = g->model->down_sliced ? n * size : matrix_stride(m);
    const uint8_t *from = m->data + t->row0 * size * (g->model->down_sliced ? hidden : 1);
    slice.resize(n);
    for (size_t h = 0; h < hidden; h++, from += stride) {
      convert_row(from, m->dtype, (uint32_t)n, slice.data());
      for (size_t j = 0; j < n; j++) all[(t->row0 + j) * to->stride / 2 + h] = slice[j];
    }
  }
  TRY("upload", cudaMemcpy((uint8_t *)g->params.weights + at, all.data(), all.size() * 2,
                           cudaMemcpyHostToDevice));
  return 0;
}

static int upload(Gpu *g, Error *e) {
  const Model *m = g->model;
  const Shape *s = &m->shape;
  const Params *p = &g->params;
  bool fused = g->plan->ffn_parts > 0;
  for (int32_t i = 0; i < s->layers; i++) {
    const Layer *l = &m->layer[i];
    uint64_t base = (uint64_t)i * p->layer_bytes, at = base + p->qkv.offset;
    const Matrix *stacked[3] = {&l->q, &l->k, &l->v};
    for (int k = 0; k < 3; at += (uint64_t)stacked[k]->rows * p->qkv.stride, k++)
      if (upload_rows(g, stacked[k], &p->qkv, at, e) != 0) return -1;
    if (upload_rows(g, &l->o, &p->o, base + p->o.offset, e) != 0 ||
        upload_rows(g, &l->gate, &p->gate, base + p->gate.offset, e) != 0 ||
        upload_rows(g, &l->up, &p->up, base + p->up.offset, e) != 0 ||
        (fused ? upload_transposed(g, &l->down, base + p->down.offset, e)
               : upload_rows(g, &l->down, &p->down, base + p->down.offset, e)) != 0)
      return -1;
  }
  if (upload_rows(g, &m->lm_head, &p->lm_head, p->lm_head.offset, e) != 0) return -1;
  if (!s->tied && upload_rows(g, &m->embedding, &p->embedding, p->embedding.offset, e) != 0)
    return -1;

  std::vector<float> v(g->vector_floats, 0.0f);
  for (int32_t i = 0; i < s->layers; i++) {
    const Layer *l = &m->layer[i];
    float *to = v.data() + (size_t)i * p->layer_floats;
    auto put = [&](uint32_t at, const float *from, size_t n) {
      if (at != NO_VECTOR && from) memcpy(to + at, from, n * sizeof(float));
    };
    size_t hidden = (size_t)s->hidden, inter = (size_t)s->inter, hd = (size_t)s->head_dim;
    put(p->attn_norm, l->attn_norm, hidden);
    put(p->ffn_norm, l->ffn_norm, hidden);
    if (p->qkv_bias != NO_VECTOR) {
      put(p->qkv_bias, l->q_bias, (size_t)l->q.rows);
      put(p->qkv_bias + (uint32_t)l->q.rows, l->k_bias, (size_t)l->k.rows);
      put(p->qkv_bias + (uint32_t)(l->q.rows + l->k.rows), l->v_bias, (size_t)l->v.rows);
    }
    put(p->o_bias, l->o_bias, hidden);
    put(p->gate_bias, l->gate_bias, inter);
    put(p->up_bias, l->up_bias, inter);
    put(p->down_bias, l->down_bias, hidden);
    put(p->q_norm, l->q_norm, hd);
    put(p->k_norm, l->k_norm, hd);
  }
  memcpy(v.data() + (size_t)s->layers * p->layer_floats, m->final_norm,
         (size_t)s->hidden * sizeof(float));
  TRY("upload",
      cudaMemcpy((float *)p->vectors, v.data(), v.size() * sizeof(float), cudaMemcpyHostToDevice));

  // Cosines and sines are made here, where they are the CPU workers' to the bit; a GPU's own would need
  // a slow path for large angles in the middle of a tile.
  uint32_t half = (uint32_t)s->head_dim / 2;
  std::vector<float> frequency(half), turn((size_t)g->context * half * 2);
  rope_frequencies(s, frequency.data());
  for (uint32_t at = 0; at < g->context; at++)
    for (uint32_t i = 0; i < half; i++) {
      float angle = (float)at * frequency[i];
      turn[((size_t)at * half + i) * 2] = cosf(angle);
      turn[((size_t)at * half + i) * 2 + 1] = sinf(angle);
    }
  TRY("upload", cudaMemcpy((float2 *)p->rotation, turn.data(), turn.size() * sizeof(float),
                           cudaMemcpyHostToDevice));
  TRY("upload", cudaMemcpy((Tile *)p->tile, g->plan->tile, g->plan->tile_count * sizeof(Tile),
                           cudaMemcpyHostToDevice));
  TRY("upload", cudaMemcpy((uint32_t *)p->first, g->plan->first,
                           (g->plan->workers + 1) * sizeof(uint32_t), cudaMemcpyHostToDevice));
  TRY("upload", cudaMemcpy((uint32_t *)p->barrier, g->plan->barrier,
                           g->plan->wave_count * sizeof(uint32_t), cudaMemcpyHostToDevice));
  return 0;
}
//< gpu_upload

/*: ## Opening

First everything that can be refused without touching a weight: the card, the kernel, the grid, the memory. :*/
//> gpu_open
struct Want { // one allocation
  void **at;
  uint64_t bytes;
};

static std::vector<Want> wants(Gpu *g) {
  const Shape *s = &g->model->shape;
  const Plan *plan = g->plan;
  Params *p = &g->params;
  uint64_t cache = (uint64_t)s->layers * s->kv_heads * g->context * s->head_dim * 2;
  uint64_t heads = (uint64_t)s->heads, width = heads * s->head_dim, f = sizeof(float);
  const bool tape = on_tape(g);
  std::vector<Want> all = {
      {(void **)&p->weights, g->weight_bytes},
      {(void **)&p->keys, cache},
      {(void **)&p->values, cache},
      {(void **)&p->vectors, g->vector_floats * f},
      {(void **)&p->rotation, (uint64_t)g->context * (s->head_dim / 2) * sizeof(float2)},
      {(void **)&p->tile, plan->tile_count * sizeof(Tile)},
      {(void **)&p->first, (plan->workers + 1) * sizeof(uint32_t)},
      {(void **)&p->barrier, plan->wave_count * sizeof(uint32_t)},
      {(void **)&p->logits, s->vocab * f},
      {(void **)&p->prompt, GPU_LAUNCH * sizeof(int32_t)},
      {(void **)&p->output, GPU_LAUNCH * sizeof(int32_t)},
      {(void **)&p->status, sizeof(Status)},
      {(void **)&p->barrier_count, 128}};
  const std::vector<Want> handed = {
      {(void **)&p->qkv_out, qkv_rows(s) * f},
      {(void **)&p->attention, plan->chunks * heads * (s->head_dim + HEAD_STATE) * f},
      {(void **)&p->merged, HANDOFF_COPIES * width * f},
      {(void **)&p->after_wo, HANDOFF_COPIES * s->hidden * f},
      {(void **)&p->after_down, 2 * HANDOFF_COPIES * s->hidden * f},
      {(void **)&p->activations, 2 * (uint64_t)s->inter * f},
      {(void **)&p->candidates, 2 * (uint64_t)plan->slots * sizeof(uint64_t)}};
  const std::vector<Want> waves = {
      {(void **)&p->residual, round_up(s->hidden, 8) * f},
      {(void **)&p->qkv_out, qkv_rows(s) * f},
      {(void **)&p->scores, heads * g->context * f},
      {(void **)&p->score_max, heads * plan->chunks * f},
      {(void **)&p->attention, plan->chunks * round_up(width, 8) * f},
      {(void **)&p->denominator, plan->chunks * heads * f},
      {(void **)&p->partials,
       (plan->ffn_parts ? plan->ffn_parts : 1) * (uint64_t)round_up(s->hidden, 8) * f},
      {(void **)&p->activation, round_up(s->inter, 8) * f},
      {(void **)&p->normed, round_up(s->hidden, 8) * f},
      {(void **)&p->candidate, plan->slots * sizeof(Candidate)}};
  g->handed_bytes = 0;
  if (tape) {
    for (const Want &w : handed) g->handed_bytes += round_up(w.bytes, 256);
    all.push_back({(void **)&g->handed, g->handed_bytes});
  } else all.insert(all.end(), waves.begin(), waves.end());
  uint64_t at = 0;
  for (const Want &w : handed) { // their places, once the piece has one
    if (tape) *w.at = g->handed + at;
    at += round_up(w.bytes, 256);
  }
  return all;
}

static int check_fit(const Gpu *g, const Target *card, Error *e) {
  const Plan *plan = g->plan;
  const Shape *s = &g->model->shape;
  if (strcmp(plan->target.kind, "cuda") != 0)
    return fail(e, EXIT_PLAN, "the plan is for %s, a %s target; plan again on this machine",
                plan->target.name, plan->target.kind);
  if (strcmp(plan->target.name, card->name) != 0)
    return fail(e, EXIT_PLAN,
                "the plan is for the GPU %s, this one is %s; plan again on this machine",
                plan->target.name, card->name);
  if (strcmp(plan->target.fingerprint, card->fingerprint) != 0)
    return fail(
        e, EXIT_PLAN,
        "the plan is for the kernel %.12s, this program's is %.12s; plan again with this program",
        plan->target.fingerprint, card->fingerprint);
  if (s->head_dim % 8)
    return fail(e, EXIT_INPUT, "head_dim %d: the GPU's kernels need a multiple of 8", s->head_dim);
  for (int32_t n : {s->hidden, s->inter})
    if (on_tape(g) && n % 8)
      return fail(e, EXIT_PLAN,
                  "vectors of %d: hand-offs of data need a multiple of 8; plan with --sync barrier",
                  n);
  if (g->model->stop_count > STOP_IDS)
    return fail(e, EXIT_INPUT, "%d stop ids, the GPU's kernels take %d", g->model->stop_count,
                STOP_IDS);
  for (int32_t i = 0; i < s->layers; i++) {
    const Layer *l = &g->model->layer[i];
    const Matrix *all[] = {&l->q,    &l->k,  &l->v,    &l->o,
                           &l->gate, &l->up, &l->down, &g->model->lm_head};
    for (const Matrix *m : all)
      if (m->dtype != s->dtype)
        return fail(e, EXIT_INPUT, "layer %d: a matrix in %s beside %s; the GPU needs one dtype", i,
                    dtype_name(m->dtype), dtype_name(s->dtype));
  }
  return 0;
}

static int allocate(Gpu *g, Error *e) {
  std::vector<Want> all = wants(g);
  uint64_t need = 0;
  for (const Want &w : all) need += (w.bytes + 511) / 512 * 512;
  size_t free_bytes = 0, total = 0;
  TRY("memory", cudaMemGetInfo(&free_bytes, &total));
  if (need > free_bytes)
    return fail(e, EXIT_FAIL,
                "%u positions need %llu bytes on the GPU, %llu are free; try a smaller --ctx",
                g->context, (unsigned long long)need, (unsigned long long)free_bytes);
  for (const Want &w : all) {
    void *p = nullptr;
    cudaError_t code = cudaMalloc(&p, w.bytes ? w.bytes : 1);
    if (code != cudaSuccess)
      return fail(e, EXIT_FAIL, "%llu of %llu bytes on the GPU: %s; try a smaller --ctx",
                  (unsigned long long)w.bytes, (unsigned long long)need, cudaGetErrorString(code));
    g->owned.push_back(p);
    *w.at = p;
    TRY("memory", cudaMemset(p, 0, w.bytes ? w.bytes : 1));
  }
  if (on_tape(g)) wants(g); // the buffers within the one piece
  return 0;
}

static void fill_params(Gpu *g) {
  const Shape *s = &g->model->shape;
  const Plan *plan = g->plan;
  Params *p = &g->params;
  p->vocab = (uint32_t)s->vocab, p->hidden = (uint32_t)s->hidden, p->inter = (uint32_t)s->inter;
  p->layers = (uint32_t)s->layers, p->heads = (uint32_t)s->heads,
  p->kv_heads = (uint32_t)s->kv_heads;
  p->head_dim = (uint32_t)s->head_dim, p->group = p->heads / p->kv_heads;
  p->rms_eps = s->rms_eps;
  p->score_scale = 1.0f / sqrtf((float)s->head_dim);
  p->qk_norm = s->qk_norm, p->one_pass = plan->one_pass;
  p->biased = s->qkv_bias || s->o_bias || s->mlp_bias;
  p->workers = plan->workers, p->waves = plan->wave_count, p->chunks = plan->chunks;
  p->ffn_parts = plan->ffn_parts, p->slots = plan->slots, p->fused_context = plan->fused_context;
  p->head_wave = plan->wave_count;
  for (uint32_t i = 0; i < plan->tile_count; i++)
    if (plan->tile[i].op == OP_FINAL_NORM && plan->tile[i].wave < p->head_wave)
      p->head_wave = plan->tile[i].wave;
  p->context = g->context;
  p->stops = (uint32_t)g->model->stop_count;
  for (uint32_t i = 0; i < p->stops; i++) p->stop[i] = g->model->stop_ids[i];
  p->lost = UINT32_MAX;
  p->patience_ns = PATIENCE_NS;
}

static uint32_t pace_of(Gpu *g); // below, with what decides a token's time

static int open_gpu(Gpu *g, Error *e) {
  Target card;
  if (gpu_target(g->device, 0, &card, e) != 0 || check_fit(g, &card, e) != 0) return -1;
  const uint32_t planned = g->plan->target.shared_bytes; // may be less than the card has (--smem)
  if (planned && planned < card.shared_bytes) card.shared_bytes = planned;
  fill_params(g);
  lay_out(g);
  g->shared = shared_bytes(g, card.shared_bytes);
  if (g->shared > card.shared_bytes)
    return fail(e, EXIT_PLAN,
                "a tile needs %u bytes of shared memory, the card gives %u; use more workers",
                g->shared, card.shared_bytes);
  uint32_t blocks;
  if (resident_blocks(kernel_of(*g->plan, g->dtype), threads_of(*g->plan), g->shared, g->device,
                      &blocks, e) != 0)
    return -1;
  if (g->plan->workers > blocks)
    return fail(e, EXIT_PLAN, "the plan has %u workers, this GPU holds %u blocks at once",
                g->plan->workers, blocks);
  if (allocate(g, e) != 0) return -1;
  g->params.final_norm =
      g->params.vectors + (uint64_t)g->model->shape.layers * g->params.layer_floats;
  TRY("stream", cudaStreamCreate(&g->stream));
  TRY("event", cudaEventCreate(&g->begin));
  TRY("event", cudaEventCreate(&g->end));
  TRY("host memory", cudaMallocHost((void **)&g->status, sizeof(Status)));
  TRY("host memory", cudaMallocHost((void **)&g->prompt, GPU_LAUNCH * sizeof(int32_t)));
  TRY("host memory", cudaMallocHost((void **)&g->output, GPU_LAUNCH * sizeof(int32_t)));
  if (upload(g, e) != 0) return -1;
  if (on_tape(g)) g->params.pace_ns = pace_of(g);
  return 0;
}

extern "C" int gpu_open(const Model *m, const Plan *p, uint32_t context, int device, Gpu **out,
                        Error *e) {
  *out = nullptr;
  Gpu *g = new (std::nothrow) Gpu();
  if (!g) return fail(e, EXIT_FAIL, "out of memory");
  g->model = m, g->plan = p, g->context = context, g->device = device;
  g->dtype = m->shape.dtype == DT_F16 ? DT_F16 : DT_BF16;
  if (m->shape.dtype == DT_F32) notice("the GPU's kernels narrow this model's F32 weights to BF16");
  if (open_gpu(g, e) != 0) {
    gpu_close(g);
    return -1;
  }
  *out = g;
  return 0;
}

extern "C" void gpu_close(Gpu *g) {
  if (!g) return;
  if (g->stream) cudaStreamDestroy(g->stream);
  if (g->begin) cudaEventDestroy(g->begin);
  if (g->end) cudaEventDestroy(g->end);
  for (void *p : g->owned) cudaFree(p);
  if (g->status) cudaFreeHost(g->status);
  if (g->prompt) cudaFreeHost(g->prompt);
  if (g->output) cudaFreeHost(g->output);
  delete g;
}
//< gpu_open

/*: ## Launching

Up to 64 tokens a launch: the arguments go up, the kernel runs, ids and a status come back.

What is launched in between is the *schedule*, and it is a function of its own. It is weak: the decoders of the early chapters are this very
program with another schedule linked in, so that nothing else differs between them. :*/
//> gpu_schedule
__attribute__((weak)) cudaError_t gpu_schedule(const Plan &plan, DType type, uint32_t shared,
                                               cudaStream_t stream, const Params &p) {
  return launch_cooperative(kernel_of(plan, type), p.workers, threads_of(plan), shared, stream, p);
}
//< gpu_schedule

//> gpu_pace
// What the memory takes for a slot of every worker, in ns: by the target's rate, or else as measured here. None for a model too small to measure it with, nor where that were 0.1 ms or more.
static uint32_t pace_of(Gpu *g) {
  enum { ENOUGH = 64 << 20 }; // bytes; fewer measure the launch
  double gbs = g->plan->target.read_gbs;
  if (!(gbs > 0) && g->weight_bytes >= ENOUGH) gbs = gpu_read_rate(g);
  const double ns = g->plan->slot_bytes * (double)g->plan->workers / gbs;
  return ns < 1e5 ? (uint32_t)ns : 0;
}
//< gpu_pace

//> gpu_decode
extern "C" int gpu_decode(Gpu *g, const int32_t *given, uint32_t n, uint32_t position,
                          uint32_t steps, bool logits, int32_t *out, uint32_t *made, bool *stopped,
                          Error *e) {
  const double begin = seconds();
  *made = 0;
  *stopped = false;
  if (!n || n > steps || steps > GPU_LAUNCH || (!logits && n != steps))
    return fail(e, EXIT_FAIL, "a launch of %u tokens, %u of them given, at most %d", steps, n,
                GPU_LAUNCH);
  if (position + (uint64_t)steps > g->context)
    return fail(e, EXIT_INPUT, "position %u: the context has %u", position + steps - 1, g->context);
  for (uint32_t i = 0; i < n; i++) {
    if (given[i] < 0 || given[i] >= g->model->shape.vocab)
      return fail(e, EXIT_INPUT, "token id %d: the vocabulary has %d", given[i],
                  g->model->shape.vocab);
    g->prompt[i] = given[i];
  }
  Params p = g->params;
  p.prompt_tokens = n, p.position = position, p.steps = steps;
  p.first_logits = logits ? n - 1 : steps;
  TRY("launch", cudaSetDevice(g->device));
  TRY("launch", cudaMemcpyAsync((void *)p.prompt, g->prompt, n * sizeof(int32_t),
                                cudaMemcpyHostToDevice, g->stream));
  TRY("launch", cudaMemsetAsync(p.status, 0, sizeof(Status), g->stream));
  TRY("launch", cudaMemsetAsync(p.barrier_count, 0, sizeof(uint32_t), g->stream));
  if (g->handed) TRY("launch", cudaMemsetAsync(g->handed, 0xff, g->handed_bytes, g->stream));
  TRY("launch", cudaEventRecord(g->begin, g->stream));
  TRY("launch", gpu_schedule(*g->plan, g->dtype, g->shared, g->stream, p));
  TRY("launch", cudaEventRecord(g->end, g->stream));
  TRY("launch",
      cudaMemcpyAsync(g->status, p.status, sizeof(Status), cudaMemcpyDeviceToHost, g->stream));
  TRY("launch", cudaMemcpyAsync(g->output, p.output, GPU_LAUNCH * sizeof(int32_t),
                                cudaMemcpyDeviceToHost, g->stream));
  g->host_milliseconds = 1e3 * (seconds() - begin);
  TRY("the kernel", cudaStreamSynchronize(g->stream));
  TRY("launch", cudaEventElapsedTime(&g->milliseconds, g->begin, g->end));
  g->params.trace = nullptr;
  const Status *s = g->status;
  if (s->code == STATUS_TIMEOUT)
    return fail(e, EXIT_FAIL, "%s timed out at step %u, wave %u: a worker was lost",
                on_tape(g) ? "hand-off" : "barrier", position + s->step, s->wave);
  *made = s->tokens;
  *stopped = s->stopped;
  memcpy(out, g->output, *made * sizeof(int32_t));
  if (s->code == STATUS_NONFINITE)
    return fail(e, EXIT_NUMBER, "non-finite logits at step %u", position + s->step);
  return 0;
}

extern "C" double gpu_milliseconds(const Gpu *g) { return g->milliseconds; }
// What the host did for the last launch before it began to wait.
extern "C" double gpu_host_milliseconds(const Gpu *g) { return g->host_milliseconds; }

extern "C" int gpu_logits(Gpu *g, float *out, Error *e) {
  TRY("logits", cudaMemcpy(out, g->params.logits, (size_t)g->model->shape.vocab * sizeof(float),
                           cudaMemcpyDeviceToHost));
  return 0;
}

extern "C" void gpu_plant_failure(Gpu *g, double patience_seconds, uint32_t lost_worker) {
  g->params.patience_ns = (unsigned long long)(patience_seconds * 1e9);
  g->params.lost = lost_worker;
}
//< gpu_decode

//> gpu_trace
extern "C" int gpu_trace(Gpu *g, uint32_t step, Error *e) {
  size_t bytes = (size_t)g->plan->workers * (g->plan->wave_count + 1) * 2 * sizeof(uint64_t);
  void *p = nullptr;
  TRY("trace", cudaMalloc(&p, bytes));
  g->owned.push_back(p);
  TRY("trace", cudaMemset(p, 0, bytes));
  g->params.trace = (uint64_t *)p;
  g->params.trace_step = step;
  return 0;
}

extern "C" int gpu_trace_read(Gpu *g, uint64_t *ns, Error *e) {
  size_t bytes = (size_t)g->plan->workers * (g->plan->wave_count + 1) * 2 * sizeof(uint64_t);
  TRY("trace", cudaMemcpy(ns, g->owned.back(), bytes, cudaMemcpyDeviceToHost));
  return 0;
}
//< gpu_trace

/*: ## Measuring the card

The floor is bytes over the rate of a kernel that only reads. A block reads a contiguous part, a warp eight times 512
bytes at once: the manner of the GEMV, with nothing to compute. :*/
//> gpu_rates
enum { STREAM_THREADS = 1024, STREAM_ROW = 4096 };

__global__ void __launch_bounds__(STREAM_THREADS, 1)
    stream_kernel(const uint4 *data, unsigned long long rows, uint32_t *out) {
  unsigned long long per = (rows + gridDim.x - 1) / gridDim.x, r = blockIdx.x * per;
  unsigned long long end = r + per < rows ? r + per : rows;
  uint32_t lane = threadIdx.x % WARP, sum = 0;
  for (r += threadIdx.x / WARP; r < end; r += STREAM_THREADS / WARP) {
    const uint4 *q = data + r * (STREAM_ROW / 16) + lane;
    uint4 v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = load_stream(q + WARP * i);
#pragma unroll
    for (int i = 0; i < 8; i++) sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  }
  if (sum == 0x12345678u)
    *out = sum; // keeps the loads; which value is written is nobody's business
}

__global__ void __launch_bounds__(BLOCK, 1)
    barrier_kernel(const __grid_constant__ Params p, uint32_t rounds) {
  GridBarrier barrier;
  for (uint32_t i = 0; i < rounds; i++) {
    barrier.arrive(p);
    if (!barrier.wait(p, i, 0)) return;
  }
}

// A vector as long as a residual from all workers to all, over and over. Round r hands on the number r, so that nothing need be emptied; two
// copies by turns, because whoever has round r + 1 of everybody knows that everybody has read round r.
enum { HANDOFF_VALUES = 2048 };

__global__ void __launch_bounds__(BLOCK, 1)
    handoff_kernel(const __grid_constant__ Params p, float *values, uint32_t rounds) {
  const uint32_t row0 = HANDOFF_VALUES * blockIdx.x / p.workers,
                 row1 = HANDOFF_VALUES * (blockIdx.x + 1) / p.workers;
  bool lost = false;
  for (uint32_t r = 1; r <= rounds; r++) {
    float *copy = values + (r & 1) * HANDOFF_VALUES;
    for (uint32_t i = row0 + threadIdx.x; i < row1; i += BLOCK) store_relaxed(copy + i, (float)r);
    for (uint32_t e = threadIdx.x * 4; e < HANDOFF_VALUES; e += BLOCK * 4) {
      unsigned long long begin = 0;
      for (uint32_t polls = 1; !lost; polls++) {
        const float4 v = load_relaxed4((const float4 *)(copy + e));
        if (v.x == (float)r && v.y == (float)r && v.z == (float)r && v.w == (float)r) break;
        if (polls % 1024) continue;
        if (!begin) begin = global_nanoseconds();
        lost = global_nanoseconds() - begin > p.patience_ns;
      }
    }
    if (bar_sync_or(1, BLOCK, lost)) return;
  }
}

// Median of several runs, in milliseconds; 0 on failure.
template <class Launch> static double median_ms(Launch launch) {
  enum { RUNS = 7 };
  cudaEvent_t a, b;
  if (cudaEventCreate(&a) != cudaSuccess || cudaEventCreate(&b) != cudaSuccess) return 0;
  float ms[RUNS];
  bool ok = true;
  for (int i = -2; i < RUNS && ok; i++) {
    float t = 0;
    ok = cudaEventRecord(a, 0) == cudaSuccess && launch() == cudaSuccess &&
         cudaEventRecord(b, 0) == cudaSuccess && cudaEventSynchronize(b) == cudaSuccess &&
         cudaEventElapsedTime(&t, a, b) == cudaSuccess;
    if (i >= 0) ms[i] = t;
  }
  cudaEventDestroy(a);
  cudaEventDestroy(b);
  if (!ok) return 0;
  for (int i = 1; i < RUNS; i++)
    for (int k = i; k > 0 && ms[k] < ms[k - 1]; k--) {
      float t = ms[k];
      ms[k] = ms[k - 1];
      ms[k - 1] = t;
    }
  return ms[RUNS / 2];
}

static double stream_gbs(const void *data, uint64_t bytes, unsigned blocks, uint32_t *out) {
  unsigned long long rows = bytes / STREAM_ROW;
  double ms = median_ms([&] {
    return launch_plain(stream_kernel, blocks, STREAM_THREADS, (const uint4 *)data, rows, out);
  });
  return ms > 0 ? (double)rows * STREAM_ROW / ms / 1e6 : 0;
}

// The best of one block and two an SM, over the model's own weights.
extern "C" double gpu_read_rate(Gpu *g) {
  int sms = 0;
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, g->device);
  double best = 0;
  for (unsigned blocks = (unsigned)sms; blocks <= 2u * (unsigned)sms; blocks += (unsigned)sms) {
    double gbs =
        stream_gbs(g->params.weights, g->weight_bytes, blocks, g->params.barrier_count + 8);
    if (gbs > best) best = gbs;
  }
  return best;
}

extern "C" int gpu_probe(int device, uint32_t workers, FILE *sweep, Target *out, Error *e) {
  if (gpu_target(device, workers, out, e) != 0) return -1;
  const uint64_t bytes = (uint64_t)2 << 30;
  void *data = nullptr, *words = nullptr;
  cudaError_t code = cudaMalloc(&data, bytes);
  const size_t room = 256 + 2 * HANDOFF_VALUES * sizeof(float);
  if (code == cudaSuccess) code = cudaMalloc(&words, room);
  if (code == cudaSuccess) code = cudaMemset(data, 1, bytes);
  if (code == cudaSuccess) code = cudaMemset(words, 0, room);
  if (code != cudaSuccess) {
    cudaFree(data);
    cudaFree(words);
    return cuda_fail(e, "probe", code);
  }
  uint32_t *scratch = (uint32_t *)words;
  out->worker_gbs = stream_gbs(data, bytes / 8, 1, scratch);
  for (unsigned blocks = out->workers; blocks <= 2 * out->workers; blocks += out->workers) {
    double gbs = stream_gbs(data, bytes, blocks, scratch);
    if (gbs > out->read_gbs) out->read_gbs = gbs;
  }
  out->kv_worker_gbs = out->worker_gbs;
  Params p{};
  p.workers = out->workers;
  p.barrier_count = scratch + 16;
  p.status = (Status *)(scratch + 32);
  p.patience_ns = PATIENCE_NS;
  const uint32_t rounds = 1000;
  double ms = median_ms([&] {
    cudaError_t c = cudaMemsetAsync(p.barrier_count, 0, sizeof(uint32_t), 0);
    return c != cudaSuccess ? c
                            : launch_cooperative(barrier_kernel, p.workers, BLOCK, 0, 0, p, rounds);
  });
  out->barrier_us = 1e3 * ms / rounds;
  float *values = (float *)(scratch + 64);
  ms = median_ms([&] {
    cudaError_t c = cudaMemsetAsync(values, 0, 2 * HANDOFF_VALUES * sizeof(float), 0);
    return c != cudaSuccess
               ? c
               : launch_cooperative(handoff_kernel, p.workers, BLOCK, 0, 0, p, values, rounds);
  });
  out->handoff_us = 1e3 * ms / rounds;
  if (sweep) {
    fprintf(sweep, "workers\tread_gbs\n");
    for (unsigned n = 1;; n += n < 8 ? n : n / 8 * 2) {
      if (n > out->workers) n = out->workers;
      fprintf(sweep, "%u\t%.1f\n", n, stream_gbs(data, n < 32 ? bytes / 8 : bytes, n, scratch));
      if (n == out->workers) break;
    }
  }
  cudaFree(data);
  cudaFree(words);
  if (!(out->read_gbs > 0)) return fail(e, EXIT_FAIL, "probe: the read kernel did not run");
  return 0;
}

__global__ void __launch_bounds__(BLOCK)
    seed_kernel(uint16_t *data, unsigned long long n, DType type) {
  for (unsigned long long i = blockIdx.x * (unsigned long long)BLOCK + threadIdx.x; i < n;
       i += (unsigned long long)gridDim.x * BLOCK) {
    uint32_t h = (uint32_t)i * 2654435761u;
    h = (h ^ h >> 15) * 2246822519u;
    float x = (float)(h >> 8) * 0x1p-23f - 1.0f;
    data[i] = type == DT_F16 ? narrow<DT_F16>(x) : narrow<DT_BF16>(x);
  }
}

extern "C" int gpu_seed_cache(Gpu *g, uint32_t positions, Error *e) {
  (void)positions; // the whole cache: later positions are overwritten before they are read
  const Shape *s = &g->model->shape;
  unsigned long long n = (unsigned long long)s->layers * s->kv_heads * g->context * s->head_dim;
  for (uint16_t *cache : {g->params.keys, g->params.values})
    TRY("seed",
        launch_cooperative(seed_kernel, g->plan->workers, BLOCK, 0, g->stream, cache, n, g->dtype));
  TRY("seed", cudaStreamSynchronize(g->stream));
  return 0;
}
//< gpu_rates
