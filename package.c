/*: # The package

Planning takes a millisecond; packing a model so that every tile finds its bytes in one piece takes
seconds and gigabytes. So `tiles plan MODEL -o FILE` does it once and keeps the result: the plan,
the target it was made for, the weights in the order in which the plan wants them, and the texts
that the tokenizer needs. One file, which is mapped and not read.

A file that outlives the program that wrote it will be met in every state: cut short by a full disk,
copied from a machine with another version, older than the weights it was made from. This chapter is
mostly about telling these apart. *A package is either exactly what was written, or it is refused
with a line that says why.* :*/
#include "tiles.h"

#include <errno.h>
#include <stb/stb_ds.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "weights are used as they lie: little-endian");

/*: ## The layout

| bytes | what |
|---|---|
| 0..6 | `TILES` and a zero |
| 6..8 | format |
| 8..24 | version of the program |
| 24..32 | source hash: which weights the package was made from |
| 32..40 | bytes of the whole file |
| 40..44 | number of sections |
| 44..48 | zero |
| 48..56 | hash of the section table |
| 56..64 | hash of the 56 bytes before |
| 64.. | the table, 32 bytes a section: kind, zero, offset, bytes, hash |

The sections follow in the order of their kinds, each at the next multiple of 8 (the weights: of
256), with zeros between. Everything but the weights is small, and its hashes are compared whenever
a package is opened. The weights are gigabytes that nobody wants to read twice; they come as
**regions**, one a matrix or vector, whose hashes `tiles check` compares. All numbers are
little-endian and are written one by one: a struct's padding or the order of its fields must not
become part of a format. :*/
//> package_layout
enum { FORMAT = 3, HEADER = 64, ENTRY = 32, ALIGN = 8, WEIGHT_ALIGN = 256, MAX_SECTIONS = 32 };

typedef enum SectionKind {
  SECTION_PLAN = 1, // shape, target, plan
  SECTION_STOPS,    // ids that end a request
  SECTION_ROPE,     // frequency divisors
  SECTION_TEXT,     // a file of the checkpoint, under its name; any number
  SECTION_REGIONS,  // what lies where in the weights
  SECTION_WEIGHTS
} SectionKind;

typedef struct Section {
  SectionKind kind;
  uint64_t offset, bytes, hash;
} Section;

static uint64_t align_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

static const char *section_name(SectionKind k) {
  static const char *const name[] = {"?", "plan", "stops", "rope", "text", "regions", "weights"};
  return k >= SECTION_PLAN && k <= SECTION_WEIGHTS ? name[k] : "?";
}
//< package_layout

/*: ## Numbers to bytes and back

A reader that runs over its end does not stop; it notes that it did, and gives zeros. So a sequence
of reads is checked once, at its end. :*/
//> package_numbers
static void put(uint8_t **out, const void *data, size_t bytes) { // out: an stb_ds array
  if (bytes) memcpy(arraddnptr(*out, bytes), data, bytes);
}

static void put_u16(uint8_t **out, uint16_t v) { put(out, &v, sizeof v); }
static void put_u32(uint8_t **out, uint32_t v) { put(out, &v, sizeof v); }
static void put_u64(uint8_t **out, uint64_t v) { put(out, &v, sizeof v); }
static void put_f32(uint8_t **out, float v) { put(out, &v, sizeof v); }
static void put_f64(uint8_t **out, double v) { put(out, &v, sizeof v); }
static void put_string(uint8_t **out, const char *s) {
  put_u16(out, (uint16_t)strlen(s));
  put(out, s, strlen(s));
}

typedef struct Reader {
  const uint8_t *p;
  size_t left;
  bool bad;
} Reader;

static void get(Reader *r, void *out, size_t bytes) {
  if (bytes > r->left) {
    r->bad = true;
    r->left = 0;
    memset(out, 0, bytes);
    return;
  }
  memcpy(out, r->p, bytes);
  r->p += bytes;
  r->left -= bytes;
}

static uint16_t get_u16(Reader *r) {
  uint16_t v;
  get(r, &v, sizeof v);
  return v;
}
static uint32_t get_u32(Reader *r) {
  uint32_t v;
  get(r, &v, sizeof v);
  return v;
}
static int32_t get_i32(Reader *r) { return (int32_t)get_u32(r); }
static uint64_t get_u64(Reader *r) {
  uint64_t v;
  get(r, &v, sizeof v);
  return v;
}
static float get_f32(Reader *r) {
  float v;
  get(r, &v, sizeof v);
  return v;
}
static double get_f64(Reader *r) {
  double v;
  get(r, &v, sizeof v);
  return v;
}

// A word that will be printed: it fits, and has no control characters.
static void get_string(Reader *r, char *out, size_t room) {
  size_t n = get_u16(r);
  out[0] = 0;
  if (n >= room) {
    r->bad = true;
    return;
  }
  get(r, out, n);
  out[n] = 0;
  for (size_t i = 0; i < n; i++)
    if ((uint8_t)out[i] < 0x20 || out[i] == 0x7f) r->bad = true;
}
//< package_numbers

/*: ## Shape, target and plan

Writing and reading stand side by side, field by field, so that a difference would be seen. :*/
//> package_plan
static void put_shape(uint8_t **out, const Shape *s) {
  put_string(out, s->name);
  put_string(out, s->family);
  const int32_t n[] = {s->vocab, s->hidden,   s->inter,    s->layers,
                       s->heads, s->kv_heads, s->head_dim, s->max_context};
  for (size_t i = 0; i < sizeof n / sizeof *n; i++) put_u32(out, (uint32_t)n[i]);
  put_f32(out, s->rms_eps);
  put_u32(out, s->rope.kind);
  const double x[] = {s->rope.theta, s->rope.factor, s->rope.low, s->rope.high, s->rope.original};
  for (size_t i = 0; i < sizeof x / sizeof *x; i++) put_f64(out, x[i]);
  put_u32(out, s->dtype);
  const bool is[] = {s->tied, s->qkv_bias, s->o_bias, s->mlp_bias, s->qk_norm};
  uint32_t flags = 0;
  for (uint32_t i = 0; i < sizeof is / sizeof *is; i++) flags |= (uint32_t)is[i] << i;
  put_u32(out, flags);
}

static void get_shape(Reader *r, Shape *s) {
  get_string(r, s->name, sizeof s->name);
  get_string(r, s->family, sizeof s->family);
  int32_t *n[] = {&s->vocab, &s->hidden,   &s->inter,    &s->layers,
                  &s->heads, &s->kv_heads, &s->head_dim, &s->max_context};
  for (size_t i = 0; i < sizeof n / sizeof *n; i++) *n[i] = get_i32(r);
  s->rms_eps = get_f32(r);
  uint32_t kind = get_u32(r);
  if (kind > ROPE_FACTORS) r->bad = true;
  else s->rope.kind = (RopeKind)kind;
  double *x[] = {&s->rope.theta, &s->rope.factor, &s->rope.low, &s->rope.high, &s->rope.original};
  for (size_t i = 0; i < sizeof x / sizeof *x; i++) *x[i] = get_f64(r);
  uint32_t dtype = get_u32(r);
  if (dtype >= DT_COUNT) r->bad = true;
  else s->dtype = (DType)dtype;
  bool *is[] = {&s->tied, &s->qkv_bias, &s->o_bias, &s->mlp_bias, &s->qk_norm};
  uint32_t flags = get_u32(r);
  for (uint32_t i = 0; i < sizeof is / sizeof *is; i++) *is[i] = flags >> i & 1;
  if (flags >> 5) r->bad = true;
}

static void put_target(uint8_t **out, const Target *t) {
  put_string(out, t->name);
  put_string(out, t->kind);
  const uint32_t n[] = {t->workers, t->threads, t->registers, t->shared_bytes, t->fused_context};
  for (size_t i = 0; i < sizeof n / sizeof *n; i++) put_u32(out, n[i]);
  const double x[] = {t->read_gbs,   t->worker_gbs, t->kv_worker_gbs, t->barrier_us,
                      t->handoff_us, t->ramp_us,    t->attention_us};
  for (size_t i = 0; i < sizeof x / sizeof *x; i++) put_f64(out, x[i]);
  put_u32(out, t->ffn);
  put_u32(out, t->attention);
  put_u32(out, t->sync);
  put_string(out, t->fingerprint);
}

static void get_target(Reader *r, Target *t) {
  get_string(r, t->name, sizeof t->name);
  get_string(r, t->kind, sizeof t->kind);
  uint32_t *n[] = {&t->workers, &t->threads, &t->registers, &t->shared_bytes, &t->fused_context};
  for (size_t i = 0; i < sizeof n / sizeof *n; i++) *n[i] = get_u32(r);
  double *x[] = {&t->read_gbs,   &t->worker_gbs, &t->kv_worker_gbs, &t->barrier_us,
                 &t->handoff_us, &t->ramp_us,    &t->attention_us};
  for (size_t i = 0; i < sizeof x / sizeof *x; i++) *x[i] = get_f64(r);
  uint32_t ffn = get_u32(r);
  if (ffn > FFN_SPLIT) r->bad = true;
  else t->ffn = (FfnKind)ffn;
  uint32_t attention = get_u32(r);
  if (attention > ATTENTION_ONE_PASS) r->bad = true;
  else t->attention = (AttentionKind)attention;
  uint32_t sync = get_u32(r);
  if (sync > SYNC_DATA) r->bad = true;
  else t->sync = (SyncKind)sync;
  get_string(r, t->fingerprint, sizeof t->fingerprint);
}

enum { TILE_BYTES = 24 };

static void put_plan(uint8_t **out, const Plan *p) {
  put_shape(out, &p->shape);
  put_target(out, &p->target);
  const uint32_t n[] = {p->workers,    p->wave_count, p->tile_count,    p->chunks,
                        p->ffn_parts,  p->slots,      p->fused_context, p->ring_slots,
                        p->slot_bytes, p->one_pass,   p->sync};
  for (size_t i = 0; i < sizeof n / sizeof *n; i++) put_u32(out, n[i]);
  for (uint32_t w = 0; w < p->wave_count; w++) put_u32(out, p->barrier[w]);
  for (uint32_t i = 0; i < p->tile_count; i++) {
    const Tile *t = &p->tile[i];
    put_u16(out, t->op);
    put_u16(out, t->layer);
    const uint32_t m[] = {t->wave, t->worker, t->row0, t->row1, t->part};
    for (size_t k = 0; k < sizeof m / sizeof *m; k++) put_u32(out, m[k]);
  }
}

// Repeats an error of a part that does not know the file's name.
static int in_file(const char *file, Error *e) {
  Error inner = *e;
  return fail(e, inner.code, "%s: %s", file, inner.text);
}

// The whole section, and nothing else: what is left over is an error too.
static int get_plan(const char *file, const uint8_t *data, size_t bytes, Plan *p, Error *e) {
  Reader r = {data, bytes, false};
  get_shape(&r, &p->shape);
  get_target(&r, &p->target);
  uint32_t *n[] = {&p->workers, &p->wave_count,    &p->tile_count, &p->chunks,    &p->ffn_parts,
                   &p->slots,   &p->fused_context, &p->ring_slots, &p->slot_bytes};
  for (size_t i = 0; i < sizeof n / sizeof *n; i++) *n[i] = get_u32(&r);
  uint32_t one_pass = get_u32(&r);
  p->one_pass = one_pass == 1;
  if (one_pass > 1) r.bad = true;
  uint32_t sync = get_u32(&r);
  if (sync > SYNC_DATA) r.bad = true;
  else p->sync = (SyncKind)sync;
  // 64 bits hold both products, and after this comparison the counts are no larger than the file.
  uint64_t wanted = 4 * (uint64_t)p->wave_count + TILE_BYTES * (uint64_t)p->tile_count;
  if (r.bad || wanted != r.left)
    return fail(e, EXIT_INPUT, "%s: section plan: %u waves and %u tiles in %zu bytes", file,
                p->wave_count, p->tile_count, bytes);
  if (plan_sizes(p, e) != 0) return in_file(file, e);
  if (shape_check(&p->shape, file, e) != 0) return -1;
  p->barrier = malloc(p->wave_count * sizeof *p->barrier);
  p->tile = malloc(p->tile_count * sizeof *p->tile);
  if (!p->barrier || !p->tile) return fail(e, EXIT_FAIL, "%s: out of memory", file);
  for (uint32_t w = 0; w < p->wave_count; w++) p->barrier[w] = get_u32(&r);
  for (uint32_t i = 0; i < p->tile_count; i++) {
    Tile *t = &p->tile[i];
    t->op = get_u16(&r);
    t->layer = get_u16(&r);
    uint32_t *m[] = {&t->wave, &t->worker, &t->row0, &t->row1, &t->part};
    for (size_t k = 0; k < sizeof m / sizeof *m; k++) *m[k] = get_u32(&r);
  }
  if (plan_index(p, e) != 0 || plan_validate(p, e) != 0) return in_file(file, e);
  return 0;
}
//< package_plan

/*: ## Regions

Which matrices and vectors a model has follows from its shape, and so does their order. One list
serves the writer, the reader and the check; the file's own list must be the same, down to every
offset. Only the types of the matrices are the checkpoint's choice. Vectors are FP32. :*/
//> package_regions
typedef enum Layout { VECTOR, MATRIX } Layout;
typedef enum Presence { ALWAYS, QKV_BIAS, O_BIAS, MLP_BIAS, QK_NORM } Presence;
typedef enum Length { HIDDEN, INTER, Q_ROWS, KV_ROWS, HEAD_DIM } Length;

typedef struct WeightKind {
  const char *name;
  size_t at; // in struct Layer
  Layout layout;
  Presence when;
  Length rows, columns; // of a vector: its length is in columns
} WeightKind;

#define LAYER_VECTOR(field, when, length)                                                          \
  { #field, offsetof(Layer, field), VECTOR, when, HIDDEN, length }
#define LAYER_MATRIX(field, rows, columns)                                                         \
  { #field, offsetof(Layer, field), MATRIX, ALWAYS, rows, columns }

// In the order in which a token needs them.
static const WeightKind layer_kinds[] = {
    LAYER_VECTOR(attn_norm, ALWAYS, HIDDEN),  LAYER_MATRIX(q, Q_ROWS, HIDDEN),
    LAYER_MATRIX(k, KV_ROWS, HIDDEN),         LAYER_MATRIX(v, KV_ROWS, HIDDEN),
    LAYER_VECTOR(q_bias, QKV_BIAS, Q_ROWS),   LAYER_VECTOR(k_bias, QKV_BIAS, KV_ROWS),
    LAYER_VECTOR(v_bias, QKV_BIAS, KV_ROWS),  LAYER_VECTOR(q_norm, QK_NORM, HEAD_DIM),
    LAYER_VECTOR(k_norm, QK_NORM, HEAD_DIM),  LAYER_MATRIX(o, HIDDEN, Q_ROWS),
    LAYER_VECTOR(o_bias, O_BIAS, HIDDEN),     LAYER_VECTOR(ffn_norm, ALWAYS, HIDDEN),
    LAYER_MATRIX(gate, INTER, HIDDEN),        LAYER_MATRIX(up, INTER, HIDDEN),
    LAYER_VECTOR(gate_bias, MLP_BIAS, INTER), LAYER_VECTOR(up_bias, MLP_BIAS, INTER),
    LAYER_MATRIX(down, HIDDEN, INTER),        LAYER_VECTOR(down_bias, MLP_BIAS, HIDDEN),
};
enum { LAYER_KINDS = sizeof layer_kinds / sizeof *layer_kinds };
enum { KIND_EMBEDDING = LAYER_KINDS, KIND_LM_HEAD, KIND_FINAL_NORM };

typedef struct WeightRegion {
  uint32_t kind, layer;
  DType dtype;
  int32_t rows, columns;
  uint64_t offset, hash; // offset: in the file
} WeightRegion;

static const char *region_name(const WeightRegion *r) {
  return r->kind < LAYER_KINDS       ? layer_kinds[r->kind].name
         : r->kind == KIND_EMBEDDING ? "embedding"
         : r->kind == KIND_LM_HEAD   ? "lm_head"
                                     : "final_norm";
}

static bool region_is_vector(const WeightRegion *r) {
  return r->kind < LAYER_KINDS ? layer_kinds[r->kind].layout == VECTOR : r->kind == KIND_FINAL_NORM;
}

static uint64_t region_bytes(const WeightRegion *r) {
  return (uint64_t)r->rows * (uint64_t)r->columns * dtype_size(r->dtype);
}

static int32_t length_of(const Shape *s, Length l) {
  const int32_t n[] = {s->hidden, s->inter, s->heads * s->head_dim, s->kv_heads * s->head_dim,
                       s->head_dim};
  return n[l];
}

static bool present(const Shape *s, Presence when) {
  const bool is[] = {true, s->qkv_bias, s->o_bias, s->mlp_bias, s->qk_norm};
  return is[when];
}

// An stb_ds array. Matrices have type DT_NONE and no region has a place yet.
static WeightRegion *list_regions(const Shape *s) {
  WeightRegion *list = NULL;
  arrput(list, ((WeightRegion){KIND_EMBEDDING, 0, DT_NONE, s->vocab, s->hidden, 0, 0}));
  for (uint32_t l = 0; l < (uint32_t)s->layers; l++)
    for (uint32_t k = 0; k < LAYER_KINDS; k++) {
      const WeightKind *kind = &layer_kinds[k];
      if (!present(s, kind->when)) continue;
      bool vector = kind->layout == VECTOR;
      WeightRegion r = {k,
                        l,
                        vector ? DT_F32 : DT_NONE,
                        vector ? 1 : length_of(s, kind->rows),
                        length_of(s, kind->columns),
                        0,
                        0};
      arrput(list, r);
    }
  arrput(list, ((WeightRegion){KIND_FINAL_NORM, 0, DT_F32, 1, s->hidden, 0, 0}));
  if (!s->tied) arrput(list, ((WeightRegion){KIND_LM_HEAD, 0, DT_NONE, s->vocab, s->hidden, 0, 0}));
  return list;
}

// Where the model keeps it: a Matrix, or the pointer of a vector.
static void *region_home(Model *m, const WeightRegion *r) {
  if (r->kind < LAYER_KINDS) return (uint8_t *)&m->layer[r->layer] + layer_kinds[r->kind].at;
  return r->kind == KIND_EMBEDDING ? (void *)&m->embedding
         : r->kind == KIND_LM_HEAD ? (void *)&m->lm_head
                                   : (void *)&m->final_norm;
}
//< package_regions

/*: ## Writing

Weights go through a buffer of a megabyte: when it is full it is hashed and written. A region's hash
is therefore a chain over its megabytes, and `package_verify` walks the same chain. :*/
//> package_sink
enum { PIECE = 1 << 20 };

typedef struct Sink {
  AtomicFile *file;
  uint8_t *buffer; // [PIECE]
  size_t used;
  uint64_t at, hash; // bytes of the file so far; of this region so far
} Sink;

static int sink_flush(Sink *s, Error *e) {
  if (s->used == 0) return 0;
  s->hash = hash64(s->buffer, s->used, s->hash);
  if (atomic_write(s->file, s->buffer, s->used, e) != 0) return -1;
  s->at += s->used;
  s->used = 0;
  return 0;
}

static int sink_put(Sink *s, const uint8_t *data, size_t bytes, Error *e) {
  while (bytes) {
    size_t n = PIECE - s->used < bytes ? PIECE - s->used : bytes;
    memcpy(s->buffer + s->used, data, n);
    s->used += n;
    data += n;
    bytes -= n;
    if (s->used == PIECE && sink_flush(s, e) != 0) return -1;
  }
  return 0;
}

static int pad_to(Sink *s, uint64_t offset, Error *e) { // between regions, with an empty buffer
  static const uint8_t zeros[WEIGHT_ALIGN];
  uint64_t n = offset - s->at;
  if (atomic_write(s->file, zeros, n, e) != 0) return -1;
  s->at = offset;
  return 0;
}
//< package_sink

/*: Matrices go row by row through `matrix_row`, so GGUF's interleaved rows come out in order. The
down projection of a fused FFN is cut: for each ffn tile of the layer, in the order of rows, the
tile's *columns* of every output row, so that the tile later reads its share from the first byte to
the last. :*/
//> package_weights
static int by_row(const void *a, const void *b) {
  const Tile *s = a, *t = b;
  return s->row0 < t->row0 ? -1 : s->row0 > t->row0;
}

// The ffn tiles of a layer in the order of their rows: an stb_ds array.
static Tile *ffn_tiles(const Plan *p, uint32_t layer) {
  Tile *list = NULL;
  for (uint32_t i = 0; i < p->tile_count; i++)
    if (p->tile[i].op == OP_FFN && p->tile[i].layer == layer) arrput(list, p->tile[i]);
  if (list) qsort(list, arrlenu(list), sizeof *list, by_row);
  return list;
}

static int put_sliced(Sink *s, const Plan *p, uint32_t layer, const Matrix *m, Error *e) {
  Tile *tiles = ffn_tiles(p, layer);
  size_t size = dtype_size(m->dtype);
  int rc = 0;
  for (size_t i = 0; i < arrlenu(tiles) && rc == 0; i++)
    for (int32_t r = 0; r < m->rows && rc == 0; r++)
      rc = sink_put(s, matrix_row(m, r) + tiles[i].row0 * size,
                    (tiles[i].row1 - tiles[i].row0) * size, e);
  arrfree(tiles);
  return rc;
}

static int put_region(Sink *s, const Plan *p, Model *m, WeightRegion *r, Error *e) {
  if (pad_to(s, r->offset, e) != 0) return -1;
  s->hash = 0;
  void *home = region_home(m, r);
  int rc = 0;
  if (region_is_vector(r)) {
    const float *v = *(const float **)home;
    rc = sink_put(s, (const uint8_t *)v, region_bytes(r), e);
  } else {
    const Matrix *x = home;
    if (r->kind < LAYER_KINDS && layer_kinds[r->kind].at == offsetof(Layer, down) && p->ffn_parts)
      rc = put_sliced(s, p, r->layer, x, e);
    else
      for (int32_t i = 0; i < x->rows && rc == 0; i++)
        rc = sink_put(s, matrix_row(x, i), matrix_stride(x), e);
  }
  if (rc != 0 || sink_flush(s, e) != 0) return -1;
  r->hash = s->hash;
  return 0;
}

// Types and places; refuses a model that is not of the plan's shape.
static int place_regions(const char *path, WeightRegion *list, Model *m, uint64_t at, uint64_t *end,
                         Error *e) {
  for (size_t i = 0; i < arrlenu(list); i++) {
    WeightRegion *r = &list[i];
    const void *home = region_home(m, r);
    bool fits = true;
    if (region_is_vector(r)) {
      fits = *(const float *const *)home != NULL;
    } else {
      const Matrix *x = home;
      r->dtype = x->dtype;
      fits = x->data && x->rows == r->rows && x->columns == r->columns && x->dtype > DT_NONE &&
             x->dtype < DT_COUNT;
    }
    if (!fits)
      return fail(e, EXIT_PLAN, "%s: the model's %s of layer %u is not [%d, %d] as the plan has it",
                  path, region_name(r), r->layer, r->rows, r->columns);
    r->offset = align_up(at, WEIGHT_ALIGN);
    at = r->offset + region_bytes(r);
  }
  *end = at;
  return 0;
}

static void put_regions(uint8_t **out, const WeightRegion *list) {
  put_u32(out, (uint32_t)arrlenu(list));
  for (size_t i = 0; i < arrlenu(list); i++) {
    const WeightRegion *r = &list[i];
    const uint32_t n[] = {r->kind, r->layer, r->dtype, (uint32_t)r->rows, (uint32_t)r->columns};
    for (size_t k = 0; k < sizeof n / sizeof *n; k++) put_u32(out, n[k]);
    put_u64(out, r->offset);
    put_u64(out, r->hash);
  }
}
//< package_weights

/*: The front of the file (header, table, small sections) contains hashes of what follows it. So its
size is computed first and its place left empty, the weights are streamed, and the front is written
last. Nobody can see the state in between: the file has a temporary name until it is whole. :*/
//> package_write
typedef struct Front {
  Section section[MAX_SECTIONS];
  uint8_t *content[MAX_SECTIONS]; // stb_ds arrays; NULL for the weights
  uint32_t count;
} Front;

static uint8_t **add_section(Front *f, SectionKind kind) {
  f->section[f->count].kind = kind;
  return &f->content[f->count++];
}

static void free_front(Front *f) {
  for (uint32_t i = 0; i < f->count; i++) arrfree(f->content[i]);
}

static void add_text(Front *f, const char *name, const uint8_t *data, size_t bytes) {
  uint8_t **out = add_section(f, SECTION_TEXT);
  put_string(out, name);
  put(out, data, bytes);
}

static int add_texts(Front *f, const Source *s, Error *e) {
  static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                      "tokenizer_config.json", "chat_template.jinja"};
  if (s->gguf) {
    size_t bytes;
    const uint8_t *header = gguf_header(s->gguf, &bytes);
    add_text(f, "header.gguf", header, bytes);
  }
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    Mapping text;
    int found = source_text(s, names[i], &text, e);
    if (found < 0) return -1;
    if (found == 0) continue;
    add_text(f, names[i], text.data, text.size);
    source_text_free(s, &text);
  }
  return 0;
}

// Gives every section its place. Returns the offset at which the last one begins.
static uint64_t place_sections(Front *f) {
  uint64_t at = HEADER + (uint64_t)f->count * ENTRY, begin = at;
  for (uint32_t i = 0; i < f->count; i++) {
    Section *s = &f->section[i];
    begin = align_up(at, s->kind == SECTION_WEIGHTS ? WEIGHT_ALIGN : ALIGN);
    s->offset = begin;
    s->bytes = arrlenu(f->content[i]);
    at = begin + s->bytes;
  }
  return begin;
}

static uint8_t *make_front(Front *f, uint64_t source_hash, uint64_t total) {
  uint8_t *out = NULL, *table = NULL;
  for (uint32_t i = 0; i < f->count; i++) {
    Section *s = &f->section[i];
    if (s->kind != SECTION_WEIGHTS) s->hash = hash64(f->content[i], s->bytes, s->kind);
    put_u32(&table, s->kind);
    put_u32(&table, 0);
    put_u64(&table, s->offset);
    put_u64(&table, s->bytes);
    put_u64(&table, s->hash);
  }
  char version[16] = TILES_VERSION;
  put(&out, "TILES", 6);
  put_u16(&out, FORMAT);
  put(&out, version, sizeof version);
  put_u64(&out, source_hash);
  put_u64(&out, total);
  put_u32(&out, f->count);
  put_u32(&out, 0);
  put_u64(&out, hash64(table, arrlenu(table), 0));
  put_u64(&out, hash64(out, arrlenu(out), 0));
  put(&out, table, arrlenu(table));
  arrfree(table);
  for (uint32_t i = 0; i < f->count; i++) {
    while (arrlenu(out) < f->section[i].offset) arrput(out, 0);
    if (f->content[i]) put(&out, f->content[i], f->section[i].bytes);
  }
  return out;
}

static int write_weights(AtomicFile *a, const Plan *p, Model *m, WeightRegion *list, uint64_t at,
                         Error *e) {
  Sink s = {.file = a, .buffer = malloc(PIECE), .at = at};
  if (!s.buffer) return fail(e, EXIT_FAIL, "%s: out of memory", a->path);
  int rc = 0;
  for (size_t i = 0; i < arrlenu(list) && rc == 0; i++) rc = put_region(&s, p, m, &list[i], e);
  free(s.buffer);
  return rc;
}

static int write_file(const char *path, Front *f, const Plan *p, Model *m, WeightRegion *list,
                      Error *e) {
  uint64_t last = place_sections(f), total = last + f->section[f->count - 1].bytes;
  if (m) {
    if (place_regions(path, list, m, last, &total, e) != 0) return -1;
    f->section[f->count - 1].bytes = total - last;
  }
  AtomicFile a;
  if (atomic_open(&a, path, e) != 0) return -1;
  int rc = 0;
  if (m) {
    if (fseek(a.f, (long)last, SEEK_SET) != 0)
      rc = fail(e, EXIT_FAIL, "%s: %s", path, strerror(errno));
    if (rc == 0) rc = write_weights(&a, p, m, list, last, e);
    // The regions now have their hashes; their list is as long as before.
    arrsetlen(f->content[f->count - 2], 0);
    put_regions(&f->content[f->count - 2], list);
    if (rc == 0 && fseek(a.f, 0, SEEK_SET) != 0)
      rc = fail(e, EXIT_FAIL, "%s: %s", path, strerror(errno));
  }
  uint8_t *front = make_front(f, m ? m->source_hash : 0, total);
  if (rc == 0) rc = atomic_write(&a, front, arrlenu(front), e);
  arrfree(front);
  if (rc == 0) return atomic_commit(&a, e);
  atomic_abort(&a);
  return -1;
}

static bool same_numbers(const Shape *a, const Shape *b) {
  return a->vocab == b->vocab && a->hidden == b->hidden && a->inter == b->inter &&
         a->layers == b->layers && a->heads == b->heads && a->kv_heads == b->kv_heads &&
         a->head_dim == b->head_dim && a->tied == b->tied && a->qkv_bias == b->qkv_bias &&
         a->o_bias == b->o_bias && a->mlp_bias == b->mlp_bias && a->qk_norm == b->qk_norm;
}

int package_write(const char *path, const Plan *p, const Model *m, const Source *s, Error *e) {
  if (plan_validate(p, e) != 0) return in_file(path, e);
  if (m && !same_numbers(&m->shape, &p->shape))
    return fail(e, EXIT_PLAN, "%s: the plan is for %s, the model is %s, of another shape", path,
                p->shape.name, m->shape.name);
  if (m && m->down_sliced)
    return fail(e, EXIT_INPUT, "%s: the weights are from a package, cut to its plan already", path);

  Front f = {0};
  WeightRegion *list = NULL;
  put_plan(add_section(&f, SECTION_PLAN), p);
  int rc = 0;
  if (m) {
    uint8_t **stops = add_section(&f, SECTION_STOPS);
    put_u32(stops, (uint32_t)m->stop_count);
    for (int32_t i = 0; i < m->stop_count; i++) put_u32(stops, (uint32_t)m->stop_ids[i]);
    if (m->shape.rope.factors)
      put(add_section(&f, SECTION_ROPE), m->shape.rope.factors,
          (size_t)m->shape.head_dim / 2 * sizeof(float));
    if (s) rc = add_texts(&f, s, e);
    list = list_regions(&m->shape);
    put_regions(add_section(&f, SECTION_REGIONS), list);
    add_section(&f, SECTION_WEIGHTS);
  }
  Model model = m ? *m : (Model){0}; // a copy that may be asked for the places of its matrices
  if (rc == 0) rc = write_file(path, &f, p, m ? &model : NULL, list, e);
  arrfree(list);
  free_front(&f);
  return rc;
}
//< package_write

/*: ## Reading

The order of the checks is the order of trust. The first eight bytes say whether this is a package
at all and of which format; a format that we do not know ends the matter, because nothing after it
need lie where we think. Then the header's hash, then what it says: the program's version, and the
size of the file against the size that it was written with. Then the table, then each section. :*/
//> package_open
typedef struct Text {
  char name[64];
  const uint8_t *data;
  size_t bytes;
} Text;

struct Package {
  char *file;
  const uint8_t *data;
  size_t size;
  Mapping map; // of package_open
  uint64_t source_hash;
  Plan plan;
  Section section[MAX_SECTIONS];
  uint32_t count;
  Text *texts;           // stb_ds array
  WeightRegion *regions; // stb_ds array; NULL without weights
  int32_t *stops;        // stb_ds array
  float *factors;        // [head_dim / 2] or NULL
};

bool package_magic(const uint8_t *data, size_t size) {
  return size >= 6 && memcmp(data, "TILES", 6) == 0;
}

static int read_header(Package *p, Error *e) {
  if (!package_magic(p->data, p->size))
    return fail(e, EXIT_INPUT, "%s: not a package: it does not begin with \"TILES\"", p->file);
  Reader r = {p->data + 6, p->size - 6, false};
  uint16_t format = get_u16(&r);
  if (!r.bad && format != FORMAT)
    return fail(e, EXIT_INPUT,
                "%s: package format %u, this program reads %u; make it again with tiles plan -o",
                p->file, format, FORMAT);
  if (p->size < HEADER)
    return fail(e, EXIT_INPUT, "%s: truncated: %zu bytes, a header has %d", p->file, p->size,
                HEADER);
  char version[17] = "";
  get(&r, version, 16);
  p->source_hash = get_u64(&r);
  uint64_t total = get_u64(&r);
  p->count = get_u32(&r);
  uint32_t zero = get_u32(&r);
  uint64_t table_hash = get_u64(&r), hash = get_u64(&r);
  if (hash != hash64(p->data, HEADER - 8, 0))
    return fail(e, EXIT_INPUT, "%s: header: its hash is %016llx, its bytes give %016llx", p->file,
                (unsigned long long)hash, (unsigned long long)hash64(p->data, HEADER - 8, 0));
  if (strcmp(version, TILES_VERSION) != 0)
    return fail(e, EXIT_INPUT,
                "%s: made by tiles %s, this is tiles %s; make it again with tiles plan -o", p->file,
                version, TILES_VERSION);
  if (total != p->size)
    return fail(e, EXIT_INPUT, "%s: declares %llu bytes, file has %zu", p->file,
                (unsigned long long)total, p->size);
  if (zero || p->count < 1 || p->count > MAX_SECTIONS || r.left < (size_t)p->count * ENTRY)
    return fail(e, EXIT_INPUT, "%s: header: %u sections in %zu bytes", p->file, p->count, p->size);
  if (table_hash != hash64(r.p, (size_t)p->count * ENTRY, 0))
    return fail(e, EXIT_INPUT, "%s: section table: its hash is not that of its bytes", p->file);
  return 0;
}

static int read_table(Package *p, Error *e) {
  Reader r = {p->data + HEADER, p->size - HEADER, false};
  uint64_t at = HEADER + (uint64_t)p->count * ENTRY;
  for (uint32_t i = 0; i < p->count; i++) {
    Section *s = &p->section[i];
    uint32_t kind = get_u32(&r), zero = get_u32(&r);
    s->kind = (SectionKind)kind;
    s->offset = get_u64(&r);
    s->bytes = get_u64(&r);
    s->hash = get_u64(&r);
    // Ascending kinds: a plan first, everything at most once, except texts.
    bool order = i == 0 ? kind == SECTION_PLAN
                        : kind > (uint32_t)s[-1].kind ||
                              (kind == SECTION_TEXT && s[-1].kind == SECTION_TEXT);
    if (zero || !order || kind > SECTION_WEIGHTS)
      return fail(e, EXIT_INPUT, "%s: section %u of %u: kind %u out of order", p->file, i, p->count,
                  kind);
    uint64_t begin = align_up(at, kind == SECTION_WEIGHTS ? WEIGHT_ALIGN : ALIGN);
    if (s->offset != begin || begin > p->size || s->bytes > p->size - begin)
      return fail(e, EXIT_INPUT, "%s: section %s: %llu bytes at %llu, wanted at %llu, file has %zu",
                  p->file, section_name(s->kind), (unsigned long long)s->bytes,
                  (unsigned long long)s->offset, (unsigned long long)begin, p->size);
    for (; at < begin; at++)
      if (p->data[at])
        return fail(e, EXIT_INPUT, "%s: byte %llu before section %s is not zero", p->file,
                    (unsigned long long)at, section_name(s->kind));
    at = begin + s->bytes;
    if (kind != SECTION_WEIGHTS && s->hash != hash64(p->data + begin, s->bytes, kind))
      return fail(e, EXIT_INPUT, "%s: section %s: its hash is not that of its bytes", p->file,
                  section_name(s->kind));
    if (kind == SECTION_WEIGHTS && s->hash)
      return fail(e, EXIT_INPUT, "%s: section weights: a hash where none belongs", p->file);
  }
  if (at != p->size)
    return fail(e, EXIT_INPUT, "%s: sections end at %llu, file has %zu", p->file,
                (unsigned long long)at, p->size);
  bool weights = p->section[p->count - 1].kind == SECTION_WEIGHTS;
  if (weights ? p->section[p->count - 2].kind != SECTION_REGIONS : p->count != 1)
    return fail(e, EXIT_INPUT, "%s: %u sections, but not both regions and weights", p->file,
                p->count);
  return 0;
}

static int read_stops(Package *p, const Section *s, Error *e) {
  Reader r = {p->data + s->offset, s->bytes, false};
  uint32_t n = get_u32(&r);
  if (r.bad || r.left != 4 * (uint64_t)n)
    return fail(e, EXIT_INPUT, "%s: section stops: %u ids in %llu bytes", p->file, n,
                (unsigned long long)s->bytes);
  for (uint32_t i = 0; i < n; i++) {
    int32_t id = get_i32(&r);
    if (id < 0 || id >= p->plan.shape.vocab)
      return fail(e, EXIT_INPUT, "%s: section stops: id %d, vocab has %d", p->file, id,
                  p->plan.shape.vocab);
    arrput(p->stops, id);
  }
  return 0;
}

static int read_rope(Package *p, const Section *s, Error *e) {
  Shape shape = p->plan.shape;
  size_t bytes = (size_t)shape.head_dim / 2 * sizeof(float);
  if (s->bytes != bytes)
    return fail(e, EXIT_INPUT, "%s: section rope: %llu bytes, wanted %zu", p->file,
                (unsigned long long)s->bytes, bytes);
  p->factors = malloc(bytes);
  if (!p->factors) return fail(e, EXIT_FAIL, "%s: out of memory", p->file);
  memcpy(p->factors, p->data + s->offset, bytes);
  shape.rope.factors = p->factors;
  return shape_check(&shape, p->file, e);
}

static int read_text(Package *p, const Section *s, Error *e) {
  Reader r = {p->data + s->offset, s->bytes, false};
  Text t = {0};
  get_string(&r, t.name, sizeof t.name);
  if (r.bad || !t.name[0]) return fail(e, EXIT_INPUT, "%s: section text: no usable name", p->file);
  t.data = r.p;
  t.bytes = r.left;
  Mapping same;
  if (package_text(p, t.name, &same) == 1)
    return fail(e, EXIT_INPUT, "%s: section text: %s is there twice", p->file, t.name);
  arrput(p->texts, t);
  return 0;
}

static int read_regions(Package *p, const Section *s, const Section *weights, Error *e) {
  Reader r = {p->data + s->offset, s->bytes, false};
  p->regions = list_regions(&p->plan.shape);
  uint32_t n = get_u32(&r);
  if (n != arrlenu(p->regions))
    return fail(e, EXIT_INPUT, "%s: section regions: %u regions, the shape has %zu", p->file, n,
                arrlenu(p->regions));
  uint64_t at = weights->offset, end = weights->offset + weights->bytes;
  for (uint32_t i = 0; i < n; i++) {
    WeightRegion *want = &p->regions[i];
    uint32_t kind = get_u32(&r), layer = get_u32(&r), dtype = get_u32(&r);
    int32_t rows = get_i32(&r), columns = get_i32(&r);
    uint64_t offset = get_u64(&r);
    want->hash = get_u64(&r);
    bool type = region_is_vector(want) ? dtype == DT_F32 : dtype > DT_NONE && dtype < DT_COUNT;
    if (type) want->dtype = (DType)dtype;
    want->offset = align_up(at, WEIGHT_ALIGN);
    if (r.bad || kind != want->kind || layer != want->layer || !type || rows != want->rows ||
        columns != want->columns || offset != want->offset)
      return fail(e, EXIT_INPUT,
                  "%s: region %u: [%d, %d] of type %u at %llu; the shape has %s of layer %u, [%d, "
                  "%d] at %llu",
                  p->file, i, rows, columns, dtype, (unsigned long long)offset, region_name(want),
                  want->layer, want->rows, want->columns, (unsigned long long)want->offset);
    if (offset > end || region_bytes(want) > end - offset)
      return fail(e, EXIT_INPUT, "%s: region %u: %llu bytes at %llu, weights end at %llu", p->file,
                  i, (unsigned long long)region_bytes(want), (unsigned long long)offset,
                  (unsigned long long)end);
    at = offset + region_bytes(want);
  }
  if (r.left || at != end)
    return fail(e, EXIT_INPUT, "%s: regions end at %llu, weights at %llu", p->file,
                (unsigned long long)at, (unsigned long long)end);
  return 0;
}

static int read_package(Package *p, Error *e) {
  if (read_header(p, e) != 0 || read_table(p, e) != 0) return -1;
  for (uint32_t i = 0; i < p->count; i++) {
    const Section *s = &p->section[i];
    int rc = 0;
    switch (s->kind) {
    case SECTION_PLAN: rc = get_plan(p->file, p->data + s->offset, s->bytes, &p->plan, e); break;
    case SECTION_STOPS: rc = read_stops(p, s, e); break;
    case SECTION_ROPE: rc = read_rope(p, s, e); break;
    case SECTION_TEXT: rc = read_text(p, s, e); break;
    case SECTION_REGIONS: rc = read_regions(p, s, s + 1, e); break;
    case SECTION_WEIGHTS: break;
    }
    if (rc != 0) return -1;
  }
  return 0;
}

int package_parse(const char *file, const uint8_t *data, size_t size, Package **out, Error *e) {
  *out = NULL;
  Package *p = calloc(1, sizeof *p);
  if (!p || !(p->file = strdup(file))) {
    free(p);
    return fail(e, EXIT_FAIL, "%s: out of memory", file);
  }
  p->data = data;
  p->size = size;
  if (read_package(p, e) != 0) {
    package_close(p);
    return -1;
  }
  *out = p;
  return 0;
}

int package_open(const char *path, Package **out, Error *e) {
  Mapping map;
  *out = NULL;
  if (map_file(path, &map, e) != 0) return -1;
  if (package_parse(path, map.data, map.size, out, e) != 0) {
    unmap_file(&map);
    return -1;
  }
  (*out)->map = map;
  return 0;
}

void package_close(Package *p) {
  if (!p) return;
  plan_free(&p->plan);
  arrfree(p->texts);
  arrfree(p->regions);
  arrfree(p->stops);
  free(p->factors);
  free(p->file);
  unmap_file(&p->map);
  free(p);
}
//< package_open

/*: ## What is in it

The model's matrices are pointers into the package. Vectors too: every region begins at a multiple
of 256 bytes, so wherever the file is mapped they are aligned. :*/
//> package_model
const Plan *package_plan(const Package *p) { return &p->plan; }
bool package_has_weights(const Package *p) { return p->regions != NULL; }
uint64_t package_source_hash(const Package *p) { return p->source_hash; }

int package_text(const Package *p, const char *name, Mapping *out) {
  *out = (Mapping){0};
  for (size_t i = 0; i < arrlenu(p->texts); i++)
    if (strcmp(p->texts[i].name, name) == 0) {
      *out = (Mapping){p->texts[i].data, p->texts[i].bytes};
      return 1;
    }
  return 0;
}

// A copy where the package does not lie at a multiple of four: only possible in memory, not when mapped.
static const float *aligned_vector(Model *m, const uint8_t *data, size_t bytes) {
  if ((uintptr_t)data % sizeof(float) == 0) return (const float *)(const void *)data;
  float *copy = model_keep(m, bytes);
  if (copy) memcpy(copy, data, bytes);
  return copy;
}

static int fill_model(const Package *p, Model *m, Error *e) {
  m->shape = p->plan.shape;
  m->source_hash = p->source_hash;
  m->down_sliced = p->plan.ffn_parts > 0;
  m->layer = calloc((size_t)m->shape.layers, sizeof *m->layer);
  size_t stops = arrlenu(p->stops);
  m->stop_ids = malloc((stops + 1) * sizeof *m->stop_ids);
  if (!m->layer || !m->stop_ids) return fail(e, EXIT_FAIL, "%s: out of memory", p->file);
  if (stops) memcpy(m->stop_ids, p->stops, stops * sizeof *m->stop_ids);
  m->stop_count = (int32_t)stops;
  if (p->factors) {
    size_t bytes = (size_t)m->shape.head_dim / 2 * sizeof(float);
    float *copy = model_keep(m, bytes);
    if (!copy) return fail(e, EXIT_FAIL, "%s: out of memory", p->file);
    m->shape.rope.factors = memcpy(copy, p->factors, bytes);
  }
  for (size_t i = 0; i < arrlenu(p->regions); i++) {
    const WeightRegion *r = &p->regions[i];
    void *home = region_home(m, r);
    if (region_is_vector(r)) {
      const float *v = aligned_vector(m, p->data + r->offset, region_bytes(r));
      if (!v) return fail(e, EXIT_FAIL, "%s: out of memory", p->file);
      *(const float **)home = v;
    } else *(Matrix *)home = (Matrix){p->data + r->offset, r->dtype, r->rows, r->columns, 0};
  }
  if (m->shape.tied) m->lm_head = m->embedding;
  return 0;
}

int package_model(const Package *p, Model *out, Error *e) {
  *out = (Model){0};
  if (!package_has_weights(p))
    return fail(e, EXIT_INPUT, "%s: a plan for %s without weights; make one from a checkpoint",
                p->file, p->plan.shape.name);
  if (fill_model(p, out, e) == 0) return 0;
  model_close(out);
  return -1;
}

int package_verify(const Package *p, Error *e) {
  uint64_t at = p->section[p->count - 1].offset;
  for (size_t i = 0; i < arrlenu(p->regions); i++) {
    const WeightRegion *r = &p->regions[i];
    for (; at < r->offset; at++)
      if (p->data[at])
        return fail(e, EXIT_INPUT, "%s: byte %llu before %s of layer %u is not zero", p->file,
                    (unsigned long long)at, region_name(r), r->layer);
    uint64_t end = r->offset + region_bytes(r), hash = 0;
    for (; at < end; at += PIECE)
      hash = hash64(p->data + at, end - at < PIECE ? end - at : PIECE, hash);
    at = end;
    if (hash != r->hash)
      return fail(e, EXIT_INPUT, "%s: %s of layer %u: its hash is %016llx, its bytes give %016llx",
                  p->file, region_name(r), r->layer, (unsigned long long)r->hash,
                  (unsigned long long)hash);
  }
  return 0;
}
//< package_model
