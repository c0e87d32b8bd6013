/*: # What goes in comes out, and nothing else gets in

A package made of a small seeded checkpoint is opened again and compared with the checkpoint, number
for number. Then it is damaged: every byte of its front, one after the other; every length that it
could be cut to; every claim that it makes about itself. Each must be refused with a line that says
why, and none may be read past its end (the sanitizers watch). :*/
#include "testing.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

//> package_helpers
typedef struct Checkpoint {
  char *folder;
  Source source;
  Model model;
} Checkpoint;

static Shape small(const char *name) {
  const Shape *known = shape_find(name);
  assert_non_null(known);
  Shape s = *known;
  s.layers = 2;
  s.hidden = 24;
  s.inter = 29; // odd: no tile is as wide as another
  s.vocab = 67;
  return s;
}

static void open_checkpoint(Checkpoint *c, const Shape *s) {
  Error e;
  c->folder = temp_folder();
  assert_ok(synth_write(s, path_in(c->folder, "model"), 7, &e), &e);
  write_text(path_in(c->folder, "model/tokenizer.json"), "{\"not\": \"read here\"}");
  assert_ok(source_open(path_in(c->folder, "model"), &c->source, &e), &e);
  assert_ok(model_open(&c->source, &c->model, &e), &e);
}

static void close_checkpoint(Checkpoint *c) {
  model_close(&c->model);
  source_close(&c->source);
  remove_tree(c->folder);
}

static void make_plan_of(const Shape *s, uint32_t workers, FfnKind ffn, AttentionKind attention,
                         Plan *p) {
  Target t = {.name = "test machine",
              .kind = "cpu",
              .workers = workers,
              .threads = 3,
              .registers = 5,
              .shared_bytes = 7,
              .fused_context = 11,
              .read_gbs = 47.25,
              .worker_gbs = 40.5,
              .kv_worker_gbs = 8.125,
              .barrier_us = 0.5,
              .handoff_us = 0.375,
              .ramp_us = 1.5,
              .attention_us = 2.5,
              .ffn = ffn,
              .attention = attention,
              .fingerprint = "0123456789abcdef"};
  Error e;
  assert_ok(plan_make(s, &t, p, &e), &e);
}

static void make_plan(const Shape *s, uint32_t workers, FfnKind ffn, Plan *p) {
  make_plan_of(s, workers, ffn, ATTENTION_TWO_PASS, p);
}

// A package in memory; free() it.
static uint8_t *image_of(const Checkpoint *c, const Plan *p, size_t *size) {
  Error e;
  const char *path = path_in(c->folder, "image.tiles");
  assert_ok(package_write(path, p, &c->model, &c->source, &e), &e);
  return (uint8_t *)read_file(path, size);
}

// Parses a copy that ends where its memory ends, so that a read beyond it is seen.
static int parse(const uint8_t *image, size_t size, Error *e) {
  uint8_t *copy = malloc(size ? size : 1);
  if (!copy) give_up("malloc");
  memcpy(copy, image, size);
  Package *p = NULL;
  int rc = package_parse("image", copy, size, &p, e);
  assert_int_equal(rc == 0, p != NULL);
  if (rc == 0) rc = package_verify(p, e);
  package_close(p);
  free(copy);
  return rc;
}

static size_t files_in(const char *folder) {
  char command[4200];
  snprintf(command, sizeof command, "ls -A '%s' | wc -l", folder);
  FILE *f = popen(command, "r");
  unsigned n = 0;
  if (!f || fscanf(f, "%u", &n) != 1) give_up(folder);
  pclose(f);
  return n;
}
//< package_helpers

/*: ## There and back :*/
//> there_and_back
static void same_plan(const Plan *a, const Plan *b) {
  Shape x = a->shape, y = b->shape;
  x.rope.factors = y.rope.factors = NULL;
  assert_string_equal(x.name, y.name);
  assert_string_equal(x.family, y.family);
#define SAME(field) assert_true(a->field == b->field)
  SAME(shape.vocab), SAME(shape.hidden), SAME(shape.inter), SAME(shape.layers), SAME(shape.heads);
  SAME(shape.kv_heads), SAME(shape.head_dim), SAME(shape.max_context), SAME(shape.rms_eps);
  SAME(shape.rope.kind), SAME(shape.rope.theta), SAME(shape.rope.factor), SAME(shape.rope.low);
  SAME(shape.rope.high), SAME(shape.rope.original), SAME(shape.dtype), SAME(shape.tied);
  SAME(shape.qkv_bias), SAME(shape.o_bias), SAME(shape.mlp_bias), SAME(shape.qk_norm);
  SAME(target.workers), SAME(target.threads), SAME(target.registers), SAME(target.shared_bytes);
  SAME(target.fused_context), SAME(target.read_gbs), SAME(target.worker_gbs);
  SAME(target.kv_worker_gbs), SAME(target.barrier_us), SAME(target.handoff_us);
  SAME(target.ramp_us), SAME(target.attention_us), SAME(target.ffn), SAME(target.attention);
  SAME(target.sync), SAME(sync), SAME(ring_slots), SAME(slot_bytes);
  SAME(workers), SAME(wave_count), SAME(tile_count), SAME(chunks), SAME(ffn_parts), SAME(slots);
  SAME(fused_context), SAME(one_pass);
#undef SAME
  assert_string_equal(a->target.name, b->target.name);
  assert_string_equal(a->target.kind, b->target.kind);
  assert_string_equal(a->target.fingerprint, b->target.fingerprint);
  assert_memory_equal(a->barrier, b->barrier, a->wave_count * sizeof *a->barrier);
  assert_memory_equal(a->tile, b->tile, a->tile_count * sizeof *a->tile);
  assert_memory_equal(a->first, b->first, (a->workers + 1) * sizeof *a->first);
}

static void same_vector(const float *a, const float *b, int32_t n) {
  assert_int_equal(a == NULL, b == NULL);
  if (!a) return;
  assert_int_equal((uintptr_t)b % 256, 0);
  assert_memory_equal(a, b, (size_t)n * sizeof *a);
}

static void same_matrix(const Matrix *a, const Matrix *b) {
  assert_int_equal(a->rows, b->rows);
  assert_int_equal(a->columns, b->columns);
  assert_int_equal(a->dtype, b->dtype);
  assert_int_equal(b->permuted_head, 0);
  assert_int_equal((uintptr_t)b->data % 256, 0);
  for (int32_t r = 0; r < a->rows; r++)
    assert_memory_equal(matrix_row(a, r), matrix_row(b, r), matrix_stride(a));
}

// `b` is cut to the plan's ffn tiles: [hidden][row1 - row0] of each, in the order of rows.
static void same_sliced(const Matrix *a, const Matrix *b, const Plan *p, uint32_t layer) {
  size_t size = dtype_size(a->dtype);
  const uint8_t *at = b->data;
  uint32_t row = 0;
  while (row < (uint32_t)a->columns) {
    const Tile *t = p->tile;
    while (t->op != OP_FFN || t->layer != layer || t->row0 != row) {
      t++;
      assert_true(t < p->tile + p->tile_count);
    }
    size_t n = (t->row1 - t->row0) * size;
    for (int32_t r = 0; r < a->rows; r++, at += n)
      assert_memory_equal(matrix_row(a, r) + t->row0 * size, at, n);
    row = t->row1;
  }
  assert_int_equal(at - b->data, (ptrdiff_t)(matrix_stride(a) * (size_t)a->rows));
}

static void same_model(const Model *a, const Model *b, const Plan *p) {
  const Shape *s = &a->shape;
  int32_t h = s->hidden, q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
  same_matrix(&a->embedding, &b->embedding);
  same_matrix(&a->lm_head, &b->lm_head);
  assert_int_equal(s->tied, b->lm_head.data == b->embedding.data);
  same_vector(a->final_norm, b->final_norm, h);
  for (int32_t i = 0; i < s->layers; i++) {
    const Layer *x = &a->layer[i], *y = &b->layer[i];
    same_vector(x->attn_norm, y->attn_norm, h);
    same_vector(x->ffn_norm, y->ffn_norm, h);
    same_matrix(&x->q, &y->q);
    same_matrix(&x->k, &y->k);
    same_matrix(&x->v, &y->v);
    same_vector(x->q_bias, y->q_bias, q);
    same_vector(x->k_bias, y->k_bias, kv);
    same_vector(x->v_bias, y->v_bias, kv);
    same_vector(x->q_norm, y->q_norm, s->head_dim);
    same_vector(x->k_norm, y->k_norm, s->head_dim);
    same_matrix(&x->o, &y->o);
    same_vector(x->o_bias, y->o_bias, h);
    same_matrix(&x->gate, &y->gate);
    same_matrix(&x->up, &y->up);
    if (b->down_sliced) same_sliced(&x->down, &y->down, p, (uint32_t)i);
    else same_matrix(&x->down, &y->down);
    same_vector(x->gate_bias, y->gate_bias, s->inter);
    same_vector(x->up_bias, y->up_bias, s->inter);
    same_vector(x->down_bias, y->down_bias, h);
  }
  assert_int_equal(a->stop_count, b->stop_count);
  if (a->stop_count) assert_memory_equal(a->stop_ids, b->stop_ids, (size_t)a->stop_count * 4);
  assert_int_equal(a->source_hash, b->source_hash);
}

static void round_trip(const Shape *s, FfnKind ffn, AttentionKind attention, uint32_t workers) {
  Checkpoint c;
  Plan p;
  Error e;
  open_checkpoint(&c, s);
  make_plan_of(&c.model.shape, workers, ffn, attention, &p);
  const char *path = path_in(c.folder, "a.tiles");
  assert_ok(package_write(path, &p, &c.model, &c.source, &e), &e);

  Source back;
  Model model;
  assert_ok(source_open(path, &back, &e), &e);
  assert_int_equal(back.kind, SOURCE_PACKAGE);
  assert_true(package_has_weights(back.package));
  assert_int_equal(package_source_hash(back.package), c.model.source_hash);
  assert_ok(package_verify(back.package, &e), &e);
  same_plan(&p, package_plan(back.package));
  assert_ok(model_open(&back, &model, &e), &e);
  assert_int_equal(model.down_sliced, ffn == FFN_FUSED);
  same_model(&c.model, &model, &p);

  // The texts are the checkpoint's, byte for byte.
  const char *const names[] = {"config.json", "tokenizer.json", "generation_config.json",
                               "chat_template.jinja", "no.json"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    Mapping a, b;
    int have = source_text(&c.source, names[i], &a, &e);
    assert_int_equal(source_text(&back, names[i], &b, &e), have);
    if (have != 1) continue;
    assert_int_equal(a.size, b.size);
    assert_memory_equal(a.data, b.data, a.size);
    source_text_free(&c.source, &a);
    source_text_free(&back, &b);
  }
  // A package cannot be packed again: its down projections are cut.
  if (model.down_sliced) {
    assert_int_equal(package_write(path_in(c.folder, "b.tiles"), &p, &model, &back, &e), -1);
    assert_error(&e, EXIT_INPUT, "cut to its plan already");
  }
  model_close(&model);
  source_close(&back);
  plan_free(&p);
  close_checkpoint(&c);
}

static void every_family_comes_back(void **state) {
  (void)state;
  const char *const names[] = {"tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-llama:f16",
                               "tiny-qwen2:f32"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    Shape s = small(names[i]);
    round_trip(&s, FFN_FUSED, ATTENTION_TWO_PASS, 3);
    round_trip(&s, FFN_SPLIT, ATTENTION_ONE_PASS, 3);
  }
  Shape s = small("tiny-llama");
  s.qkv_bias = s.o_bias = s.mlp_bias = true; // all seven biases
  round_trip(&s, FFN_FUSED, ATTENTION_AUTO, 1);
  round_trip(&s, FFN_FUSED, ATTENTION_ONE_PASS, 40); // more workers than rows
}

// What a GGUF file can bring: interleaved rows of q and k, frequency divisors, stop ids.
static void rows_come_out_in_order(void **state) {
  (void)state;
  Shape s = small("tiny-llama");
  Checkpoint c;
  Plan p;
  Error e;
  open_checkpoint(&c, &s);
  float factors[8] = {1, 1, 1.5f, 2, 4, 8, 16, 32};
  int32_t stops[3] = {5, 66, 0};
  Model m = c.model;
  Layer layers[2] = {m.layer[0], m.layer[1]};
  for (int i = 0; i < 2; i++) layers[i].q.permuted_head = layers[i].k.permuted_head = 16;
  m.layer = layers;
  m.shape.rope = (Rope){.kind = ROPE_FACTORS, .theta = 500000, .factors = factors};
  m.stop_ids = stops;
  m.stop_count = 3;
  make_plan(&m.shape, 2, FFN_FUSED, &p);
  const char *path = path_in(c.folder, "a.tiles");
  assert_ok(package_write(path, &p, &m, NULL, &e), &e); // without texts
  Package *package;
  Model back;
  assert_ok(package_open(path, &package, &e), &e);
  assert_ok(package_model(package, &back, &e), &e);
  same_model(&m, &back, &p);
  assert_int_equal(back.shape.rope.kind, ROPE_FACTORS);
  assert_memory_equal(back.shape.rope.factors, factors, sizeof factors);
  assert_null(package_plan(package)->shape.rope.factors);
  Mapping text;
  assert_int_equal(package_text(package, "config.json", &text), 0);
  model_close(&back);
  package_close(package);
  plan_free(&p);
  close_checkpoint(&c);
}

static void a_plan_alone(void **state) {
  (void)state;
  char *folder = temp_folder();
  const char *path = path_in(folder, "plan.tiles");
  Plan p;
  Error e;
  for (int kind = ATTENTION_AUTO; kind <= ATTENTION_ONE_PASS; kind++) {
    make_plan_of(shape_find("llama-3.2-1b"), 20, FFN_FUSED, (AttentionKind)kind, &p);
    assert_int_equal(p.chunks, 2);
    assert_ok(package_write(path, &p, NULL, NULL, &e), &e);
    Package *package;
    Model m;
    assert_ok(package_open(path, &package, &e), &e);
    assert_false(package_has_weights(package));
    assert_int_equal(package_source_hash(package), 0);
    same_plan(&p, package_plan(package));
    assert_int_equal(package_plan(package)->one_pass, kind != ATTENTION_TWO_PASS);
    assert_ok(package_verify(package, &e), &e);
    assert_int_equal(package_model(package, &m, &e), -1);
    assert_error(&e, EXIT_INPUT, "without weights");
    package_close(package);
    plan_free(&p);
  }
  remove_tree(folder);
}

// A plan whose hand-offs are data is its own kind of plan, and comes back as it was.
static void a_tape_alone(void **state) {
  (void)state;
  char *folder = temp_folder();
  const char *path = path_in(folder, "plan.tiles");
  Plan p;
  Error e;
  Target t = {.name = "card",
              .kind = "cuda",
              .workers = 20,
              .threads = 256,
              .shared_bytes = 101376,
              .fused_context = 64,
              .handoff_us = 1.25,
              .sync = SYNC_DATA};
  assert_ok(plan_make(shape_find("llama-3.2-1b"), &t, &p, &e), &e);
  assert_ok(package_write(path, &p, NULL, NULL, &e), &e);
  Package *package;
  assert_ok(package_open(path, &package, &e), &e);
  same_plan(&p, package_plan(package));
  assert_int_equal(package_plan(package)->sync, SYNC_DATA);
  assert_int_equal(package_plan(package)->slot_bytes, 32768);
  assert_true(package_plan(package)->ring_slots >= 2);
  package_close(package);
  plan_free(&p);
  remove_tree(folder);
}

static void at_any_address(void **state) {
  (void)state;
  Shape s = small("tiny-qwen2");
  Checkpoint c;
  Plan p;
  Error e;
  open_checkpoint(&c, &s);
  make_plan(&c.model.shape, 3, FFN_SPLIT, &p);
  size_t size;
  uint8_t *image = image_of(&c, &p, &size);
  uint8_t *room = malloc(size + 1);
  if (!room) give_up("malloc");
  memcpy(room + 1, image, size);
  Package *package;
  Model m;
  assert_ok(package_parse("image", room + 1, size, &package, &e), &e);
  assert_ok(package_model(package, &m, &e), &e);
  assert_memory_equal(m.layer[1].q_bias, c.model.layer[1].q_bias, 64 * sizeof(float));
  model_close(&m);
  package_close(package);
  free(room);
  free(image);
  plan_free(&p);
  close_checkpoint(&c);
}
//< there_and_back

/*: ## Damage

`repair` makes the hashes right again, as somebody would who means harm or whose planner is broken:
what is then still wrong must be caught by what the numbers say. :*/
//> package_damage
static uint64_t number(const uint8_t *p, int bytes) {
  uint64_t v = 0;
  for (int i = bytes - 1; i >= 0; i--) v = v << 8 | p[i];
  return v;
}

static void set_number(uint8_t *p, uint64_t v, int bytes) {
  for (int i = 0; i < bytes; i++) p[i] = (uint8_t)(v >> 8 * i);
}

static uint8_t *entry(uint8_t *image, uint32_t i) { return image + 64 + 32 * (size_t)i; }

static void repair(uint8_t *image, size_t size) {
  uint32_t count = (uint32_t)number(image + 40, 4);
  for (uint32_t i = 0; i < count && 64 + 32 * (size_t)(i + 1) <= size; i++) {
    uint8_t *s = entry(image, i);
    uint64_t kind = number(s, 4), at = number(s + 8, 8), bytes = number(s + 16, 8);
    if (kind == 6 || at > size || bytes > size - at) continue;
    set_number(s + 24, hash64(image + at, bytes, kind), 8);
  }
  if (64 + 32 * (uint64_t)count <= size)
    set_number(image + 48, hash64(image + 64, 32 * (size_t)count, 0), 8);
  set_number(image + 56, hash64(image, 56, 0), 8);
}

static uint8_t *section(uint8_t *image, uint32_t kind, size_t *bytes) {
  for (uint32_t i = 0; i < number(image + 40, 4); i++)
    if (number(entry(image, i), 4) == kind) {
      *bytes = number(entry(image, i) + 16, 8);
      return image + number(entry(image, i) + 8, 8);
    }
  fail_msg("no section of kind %u", kind);
  return NULL;
}

typedef struct Damage {
  Checkpoint c;
  Plan p;
  uint8_t *image, *work;
  size_t size;
} Damage;

static void damage_begin(Damage *d, const char *shape) {
  Shape s = small(shape);
  open_checkpoint(&d->c, &s);
  make_plan(&d->c.model.shape, 2, FFN_FUSED, &d->p);
  d->image = image_of(&d->c, &d->p, &d->size);
  d->work = malloc(d->size);
  if (!d->work) give_up("malloc");
  memcpy(d->work, d->image, d->size);
}

static void damage_end(Damage *d) {
  free(d->image);
  free(d->work);
  plan_free(&d->p);
  close_checkpoint(&d->c);
}

static void every_byte_counts(void **state) {
  (void)state;
  Damage d;
  Error e;
  damage_begin(&d, "tiny-llama");
  Package *p;
  size_t bytes, weights = (size_t)(section(d.work, 6, &bytes) - d.work);
  for (size_t i = 0; i < d.size; i++) {
    d.work[i] ^= (uint8_t)(1u << i % 8);
    // In the front it is seen when the package is opened, in the weights when it is checked.
    int rc = package_parse("image", d.work, d.size, &p, &e);
    if (i < weights) {
      if (rc == 0) fail_msg("byte %zu of the front may be anything", i);
      assert_int_equal(e.code, EXIT_INPUT);
    } else {
      assert_ok(rc, &e);
      if (package_verify(p, &e) == 0) fail_msg("byte %zu of the weights may be anything", i);
      assert_error(&e, EXIT_INPUT, "image");
    }
    package_close(p);
    d.work[i] = d.image[i];
  }
  assert_ok(parse(d.work, d.size, &e), &e);
  damage_end(&d);
}

static void every_length_is_refused(void **state) {
  (void)state;
  Damage d;
  Error e;
  damage_begin(&d, "tiny-llama");
  size_t bytes, weights = (size_t)(section(d.work, 6, &bytes) - d.work);
  for (size_t n = 0; n < d.size; n += n < 2000 || n + 300 > d.size ? 1 : n < weights ? 97 : 991) {
    assert_int_equal(parse(d.image, n, &e), -1);
    assert_int_equal(e.code, EXIT_INPUT);
    char both[80];
    snprintf(both, sizeof both, "declares %zu bytes, file has %zu", d.size, n);
    if (n >= 64) assert_error(&e, EXIT_INPUT, both);
  }
  uint8_t *longer = calloc(1, d.size + 8);
  if (!longer) give_up("calloc");
  memcpy(longer, d.image, d.size);
  for (size_t more = 1; more <= 8; more++) {
    assert_int_equal(parse(longer, d.size + more, &e), -1);
    assert_error(&e, EXIT_INPUT, "declares");
  }
  free(longer);
  damage_end(&d);
}

static void other_versions_and_other_files(void **state) {
  (void)state;
  Damage d;
  Error e;
  damage_begin(&d, "tiny-llama");
  d.work[6] = 4; // no repair: a header of another format may have its hash anywhere
  assert_int_equal(parse(d.work, d.size, &e), -1);
  assert_error(&e, EXIT_INPUT, "package format 4, this program reads 3");
  d.work[6] = 2;
  assert_int_equal(parse(d.work, d.size, &e), -1);
  assert_error(&e, EXIT_INPUT,
               "package format 2, this program reads 3; make it again with tiles plan -o");
  memcpy(d.work, d.image, d.size);
  memcpy(d.work + 8, "0.0\0", 4);
  repair(d.work, d.size);
  assert_int_equal(parse(d.work, d.size, &e), -1);
  assert_error(&e, EXIT_INPUT, "made by tiles 0.0, this is tiles " TILES_VERSION);
  memset(d.work + 8, 'x', 16); // no zero at its end
  repair(d.work, d.size);
  assert_int_equal(parse(d.work, d.size, &e), -1);
  assert_error(&e, EXIT_INPUT, "made by tiles xxxxxxxxxxxxxxxx,");
  damage_end(&d);

  char *folder = temp_folder();
  const char *path = path_in(folder, "x");
  Package *p;
  const struct {
    const char *text;
    size_t bytes;
    const char *says;
  } bad[] = {{"", 0, "not a package"},
             {"TILE", 4, "not a package"},
             {"GGUF____", 8, "not a package"},
             {"TILES\0", 6, "truncated: 6 bytes"},
             {"TILES\0\3\0", 8, "truncated: 8 bytes, a header has 64"},
             {"TILES\0\1\0", 8, "package format 1"},
             {"TILES\0\7\0", 8, "package format 7"},
             {"version https://git-lfs.github.com/spec/v1\n", 43, "git lfs pull"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    write_file(path, bad[i].text, bad[i].bytes);
    assert_int_equal(package_open(path, &p, &e), -1);
    assert_error(&e, EXIT_INPUT, bad[i].says);
    assert_null(p);
  }
  assert_int_equal(package_open(folder, &p, &e), -1);
  assert_error(&e, EXIT_INPUT, "not a regular file");
  assert_int_equal(package_open(path_in(folder, "absent"), &p, &e), -1);
  assert_error(&e, EXIT_INPUT, "No such file");
  remove_tree(folder);
}

// Whole and unharmed as far as any hash can tell, and still wrong.
static void claims_are_checked(void **state) {
  (void)state;
  Damage d;
  Error e;
  size_t bytes;
  damage_begin(&d, "tiny-llama");
  uint32_t count = (uint32_t)number(d.image + 40, 4);
#define REFUSED(code, says, change)                                                                \
  do {                                                                                             \
    memcpy(d.work, d.image, d.size);                                                               \
    change;                                                                                        \
    repair(d.work, d.size);                                                                        \
    assert_int_equal(parse(d.work, d.size, &e), -1);                                               \
    assert_error(&e, code, says);                                                                  \
  } while (0)
  REFUSED(EXIT_INPUT, "declares", set_number(d.work + 32, d.size + 1, 8));
  REFUSED(EXIT_INPUT, "declares", set_number(d.work + 32, UINT64_MAX, 8));
  REFUSED(EXIT_INPUT, "sections", set_number(d.work + 40, 0, 4));
  REFUSED(EXIT_INPUT, "sections", set_number(d.work + 40, 33, 4));
  REFUSED(EXIT_INPUT, "sections", set_number(d.work + 40, UINT32_MAX, 4));
  REFUSED(EXIT_INPUT, "section", set_number(d.work + 40, count - 1, 4));
  REFUSED(EXIT_INPUT, "sections", set_number(d.work + 44, 1, 4));
  for (uint32_t i = 0; i < count; i++) {
    REFUSED(EXIT_INPUT, "out of order", set_number(entry(d.work, i), 0, 4));
    REFUSED(EXIT_INPUT, "out of order", set_number(entry(d.work, i), 99, 4));
    REFUSED(EXIT_INPUT, "out of order", set_number(entry(d.work, i) + 4, 1, 4));
    REFUSED(EXIT_INPUT, "section", set_number(entry(d.work, i) + 8, 0, 8));
    REFUSED(EXIT_INPUT, "section", set_number(entry(d.work, i) + 8, UINT64_MAX, 8));
    REFUSED(EXIT_INPUT, "section", set_number(entry(d.work, i) + 16, UINT64_MAX, 8));
    REFUSED(EXIT_INPUT, "", set_number(entry(d.work, i) + 16, 0, 8));
  }
  REFUSED(EXIT_INPUT, "a hash where none belongs", set_number(entry(d.work, count - 1) + 24, 1, 8));

  // The plan: a tile that the loader's own check of every rule refuses, named with the file.
  const uint8_t *plan = section(d.image, 1, &bytes);
  size_t tiles = (size_t)(plan - d.image) + bytes - 24 * (size_t)d.p.tile_count;
  REFUSED(EXIT_PLAN, "image: plan: tile 0 (embed rows 0..1000 wave 0 worker 0): rule \"bounds\"",
          set_number(d.work + tiles + 16, 1000, 4));
  REFUSED(EXIT_PLAN, "image: plan: embed: rule \"written once\": no tile writes row 0",
          set_number(d.work + tiles + 12, 1, 4));
  REFUSED(EXIT_PLAN, "rule \"bounds\"", set_number(d.work + tiles, OP_COUNT, 2));
  REFUSED(EXIT_PLAN, "rule \"grid\"", set_number(d.work + tiles + 8, 7, 4));
  REFUSED(EXIT_PLAN, "rule \"barriers\"", set_number(d.work + tiles - 4, 1, 4));
  size_t counts = tiles - 4 * (size_t)d.p.wave_count - 11 * 4;
  REFUSED(EXIT_INPUT, "section plan", set_number(d.work + counts + 4, UINT32_MAX, 4));
  REFUSED(EXIT_INPUT, "section plan", set_number(d.work + counts + 8, UINT32_MAX, 4));
  REFUSED(EXIT_PLAN, "rule \"sizes\"", set_number(d.work + counts, 3, 4));     // workers
  REFUSED(EXIT_PLAN, "rule \"sync\"", set_number(d.work + counts + 28, 2, 4)); // a ring
  REFUSED(EXIT_PLAN, "rule \"sync\"", set_number(d.work + counts + 32, 16384, 4));
  REFUSED(EXIT_PLAN, "rule \"one attention\"", set_number(d.work + counts + 36, 1, 4)); // one pass
  REFUSED(EXIT_INPUT, "section plan", set_number(d.work + counts + 36, 2, 4));
  REFUSED(EXIT_INPUT, "section plan", set_number(d.work + counts + 36, 1 << 8, 4));
  REFUSED(EXIT_PLAN, "rule \"sync\"", set_number(d.work + counts + 40, SYNC_AUTO, 4));
  REFUSED(EXIT_PLAN, "rule \"sync\"", set_number(d.work + counts + 40, SYNC_DATA, 4));
  REFUSED(EXIT_INPUT, "section plan", set_number(d.work + counts + 40, SYNC_DATA + 1, 4));
  size_t attention = counts - 2 - strlen(d.p.target.fingerprint) - 8;
  REFUSED(EXIT_INPUT, "section plan", set_number(d.work + attention + 4, SYNC_DATA + 1, 4));
  REFUSED(EXIT_INPUT, "section plan", set_number(d.work + attention, ATTENTION_ONE_PASS + 1, 4));
  REFUSED(EXIT_INPUT, "section plan", set_number(d.work + attention - 4, FFN_SPLIT + 1, 4));
  REFUSED(EXIT_INPUT, "section plan",
          set_number(section(d.work, 1, &bytes), 48, 2)); // a name without an end
  REFUSED(EXIT_INPUT, "section plan", section(d.work, 1, &bytes)[2] = '\n'); // that breaks a line

  // Stop ids.
  REFUSED(EXIT_INPUT, "section stops", set_number(section(d.work, 2, &bytes), 1000, 4));
  if (d.c.model.stop_count) {
    REFUSED(EXIT_INPUT, "id 67, vocab has 67", set_number(section(d.work, 2, &bytes) + 4, 67, 4));
    REFUSED(EXIT_INPUT, "id -1", set_number(section(d.work, 2, &bytes) + 4, UINT32_MAX, 4));
  }
  // Texts: no name, a name that runs over the end, the same name twice.
  REFUSED(EXIT_INPUT, "section text", set_number(section(d.work, 4, &bytes), 0, 2));
  REFUSED(EXIT_INPUT, "section text", set_number(section(d.work, 4, &bytes), 65535, 2));

  // Regions: the number of them, and each field of one in the middle.
  REFUSED(EXIT_INPUT, "section regions", section(d.work, 5, &bytes)[0] ^= 1);
  for (size_t field = 0; field < 6; field++) { // the seventh is the hash: package_verify's
    size_t at = 4 + 5 * 36 + (field < 5 ? 4 * field : 20);
    REFUSED(EXIT_INPUT, "region 5", section(d.work, 5, &bytes)[at] ^= 0x40);
  }
#undef REFUSED
  damage_end(&d);
}
//< package_damage

/*: ## Writing under bad conditions :*/
//> package_conditions
static void the_wrong_model(void **state) {
  (void)state;
  Shape s = small("tiny-llama");
  Checkpoint c;
  Plan p;
  Error e;
  open_checkpoint(&c, &s);
  size_t before = files_in(c.folder);
  const char *path = path_in(c.folder, "a.tiles");
  Shape other = s;
  other.inter++;
  make_plan(&other, 2, FFN_FUSED, &p);
  assert_int_equal(package_write(path, &p, &c.model, &c.source, &e), -1);
  assert_error(&e, EXIT_PLAN, "another shape");
  p.tile[0].row1++; // and a plan that is none
  assert_int_equal(package_write(path, &p, &c.model, &c.source, &e), -1);
  assert_error(&e, EXIT_PLAN, "a.tiles: plan: ");
  plan_free(&p);

  // A model that lacks what its shape promises.
  make_plan(&c.model.shape, 2, FFN_FUSED, &p);
  Model m = c.model;
  m.final_norm = NULL;
  assert_int_equal(package_write(path, &p, &m, &c.source, &e), -1);
  assert_error(&e, EXIT_PLAN, "final_norm");
  m = c.model;
  m.embedding.rows--;
  assert_int_equal(package_write(path, &p, &m, &c.source, &e), -1);
  assert_error(&e, EXIT_PLAN, "embedding");
  plan_free(&p);
  assert_int_equal(files_in(c.folder), before);
  close_checkpoint(&c);
}

// A full disk, made by a limit on the size of files: the error says so, the temporary file is gone, and the
// package that was there before is untouched.
static void a_full_disk(void **state) {
  (void)state;
  Damage d;
  Error e;
  damage_begin(&d, "tiny-llama");
  const char *path = path_in(d.c.folder, "image.tiles"); // written by damage_begin
  size_t before = files_in(d.c.folder);
  struct rlimit old, low;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  const size_t limits[] = {0, 1, 4096, d.size / 2, d.size - 1};
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
    low = (struct rlimit){limits[i], old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    int rc = package_write(path, &d.p, &d.c.model, &d.c.source, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(rc, -1);
    assert_error(&e, EXIT_FAIL, "File too large");
    assert_int_equal(files_in(d.c.folder), before);
    size_t size;
    char *now = read_file(path, &size);
    assert_int_equal(size, d.size);
    assert_memory_equal(now, d.image, size);
    free(now);
  }
  signal(SIGXFSZ, handler);

  assert_int_equal(package_write(path_in(d.c.folder, "no/such/a.tiles"), &d.p, NULL, NULL, &e), -1);
  assert_error(&e, EXIT_FAIL, "No such file");
  assert_int_equal(package_write(d.c.folder, &d.p, NULL, NULL, &e), -1);
  assert_int_equal(e.code, EXIT_FAIL);
  damage_end(&d);
}

static void wait_for(pid_t child, int wanted_signal) {
  int status;
  if (child < 0 || waitpid(child, &status, 0) != child) give_up("waitpid");
  if (wanted_signal) assert_true(WIFSIGNALED(status) && WTERMSIG(status) == wanted_signal);
  else assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Killed in the middle: no package appears, and one that was there stays.
static void killed_while_writing(void **state) {
  (void)state;
  Damage d;
  Error e;
  damage_begin(&d, "tiny-llama");
  const char *fresh = path_in(d.c.folder, "fresh.tiles");
  const char *const paths[] = {fresh, path_in(d.c.folder, "image.tiles")};
  for (int i = 0; i < 2; i++) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) { // the limit's signal kills it at half of the size, while it writes
      struct rlimit half = {d.size / 2, d.size / 2}, none = {0, 0};
      setrlimit(RLIMIT_FSIZE, &half);
      setrlimit(RLIMIT_CORE, &none);
      signal(SIGXFSZ, SIG_DFL);
      package_write(paths[i], &d.p, &d.c.model, &d.c.source, &e);
      _exit(0);
    }
    wait_for(child, SIGXFSZ);
  }
  assert_false(file_exists(fresh));
  size_t size;
  char *now = read_file(paths[1], &size);
  assert_int_equal(size, d.size);
  assert_memory_equal(now, d.image, size);
  free(now);
  damage_end(&d);
}

static void two_writers_at_once(void **state) {
  (void)state;
  Shape s = small("tiny-qwen2");
  Checkpoint c;
  Error e;
  open_checkpoint(&c, &s);
  const char *path = path_in(c.folder, "a.tiles");
  Plan p[2];
  make_plan(&c.model.shape, 2, FFN_FUSED, &p[0]);
  make_plan(&c.model.shape, 5, FFN_SPLIT, &p[1]);
  size_t before = files_in(c.folder);
  pid_t child[2];
  fflush(NULL);
  for (int i = 0; i < 2; i++) {
    child[i] = fork();
    if (child[i]) continue;
    int rc = 0;
    for (int n = 0; n < 20 && rc == 0; n++)
      rc = package_write(path, &p[i], &c.model, &c.source, &e);
    _exit(rc != 0);
  }
  // Whoever looks meanwhile sees nothing or one whole package.
  for (int n = 0; n < 200; n++) {
    Package *package;
    if (!file_exists(path)) continue;
    assert_ok(package_open(path, &package, &e), &e);
    assert_ok(package_verify(package, &e), &e);
    uint32_t workers = package_plan(package)->workers;
    assert_true(workers == 2 || workers == 5);
    package_close(package);
  }
  wait_for(child[0], 0);
  wait_for(child[1], 0);
  assert_int_equal(files_in(c.folder), before + 1);
  Package *package;
  assert_ok(package_open(path, &package, &e), &e);
  assert_ok(package_verify(package, &e), &e);
  package_close(package);
  plan_free(&p[0]);
  plan_free(&p[1]);
  close_checkpoint(&c);
}

// One weight is replaced, same size and same name: the package keeps what it was made from, and its hash tells
// it from what is there now.
static void the_source_has_changed(void **state) {
  (void)state;
  Shape s = small("tiny-llama");
  Checkpoint c;
  Plan p;
  Error e;
  open_checkpoint(&c, &s);
  make_plan(&c.model.shape, 2, FFN_FUSED, &p);
  const char *path = path_in(c.folder, "a.tiles");
  const char *weights = path_in(c.folder, "model/model.safetensors");
  assert_ok(package_write(path, &p, &c.model, &c.source, &e), &e);
  size_t size;
  char *bytes = read_file(weights, &size);
  bytes[size - 1] ^= 1;
  struct stat st;
  assert_int_equal(stat(weights, &st), 0);
  write_file(weights, bytes, size);
  struct timespec times[2] = {st.st_atim, st.st_mtim};
  times[1].tv_sec += 2; // a clock of coarse steps must not decide the test
  assert_int_equal(utimensat(AT_FDCWD, weights, times, 0), 0);
  free(bytes);

  Model now;
  Package *package;
  assert_ok(model_open(&c.source, &now, &e), &e);
  assert_ok(package_open(path, &package, &e), &e);
  assert_int_equal(package_source_hash(package), c.model.source_hash);
  assert_true(package_source_hash(package) != now.source_hash);
  package_close(package);
  model_close(&now);
  plan_free(&p);
  close_checkpoint(&c);
}
//< package_conditions

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_family_comes_back),
      cmocka_unit_test(rows_come_out_in_order),
      cmocka_unit_test(a_plan_alone),
      cmocka_unit_test(a_tape_alone),
      cmocka_unit_test(at_any_address),
      cmocka_unit_test(every_byte_counts),
      cmocka_unit_test(every_length_is_refused),
      cmocka_unit_test(other_versions_and_other_files),
      cmocka_unit_test(claims_are_checked),
      cmocka_unit_test(the_wrong_model),
      cmocka_unit_test(a_full_disk),
      cmocka_unit_test(killed_while_writing),
      cmocka_unit_test(two_writers_at_once),
      cmocka_unit_test(the_source_has_changed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
