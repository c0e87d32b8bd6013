/*: # Does the gate hold?

Three kinds of evidence. Each rule refuses a plan that breaks it and nothing else, and says so by
name. Plans that are unusual and still right are accepted. And a hundred thousand damaged plans are
judged by `plan_validate` and by the element-by-element judge of `brute_force.h`, which must agree
on every one. :*/
#include "testing.h"

#include <math.h>

#include "brute_force.h"

/*: ## Plans to damage :*/
//> tiny_plans
static Shape tiny(int32_t hidden, int32_t heads, int32_t kv_heads, int32_t inter, int32_t layers,
                  int32_t vocab) {
  return (Shape){.name = "tiny",
                 .family = "llama",
                 .vocab = vocab,
                 .hidden = hidden,
                 .inter = inter,
                 .layers = layers,
                 .heads = heads,
                 .kv_heads = kv_heads,
                 .head_dim = 2,
                 .max_context = 64,
                 .rms_eps = 1e-5f,
                 .rope = {.theta = 10000},
                 .dtype = DT_BF16,
                 .tied = true};
}

static Target machine(uint32_t workers, FfnKind ffn, AttentionKind attention) {
  return (Target){.name = "test",
                  .kind = "cpu",
                  .workers = workers,
                  .threads = 1,
                  .fused_context = 8,
                  .read_gbs = 40,
                  .ffn = ffn,
                  .attention = attention};
}

// One whose hand-offs are data.
static Target card(uint32_t workers, uint32_t shared_bytes) {
  Target t = machine(workers, FFN_AUTO, ATTENTION_AUTO);
  snprintf(t.kind, sizeof t.kind, "cuda");
  t.sync = SYNC_DATA;
  t.shared_bytes = shared_bytes;
  return t;
}

// Heads of eight, the smallest that a tape may have.
static Shape tiny_tape(int32_t hidden, int32_t heads, int32_t kv_heads, int32_t inter,
                       int32_t layers, int32_t vocab) {
  Shape s = tiny(hidden, heads, kv_heads, inter, layers, vocab);
  s.head_dim = 8;
  return s;
}

static void must_plan(const Shape *s, const Target *t, Plan *p) {
  Error e;
  assert_ok(plan_make(s, t, p, &e), &e);
}

static void *copy(const void *from, size_t bytes, size_t room) {
  void *to = malloc(room);
  if (!to) give_up("malloc");
  memcpy(to, from, bytes);
  return to;
}

enum { ROOM = 64 }; // tiles and waves that a mutation may add

static Plan plan_copy(const Plan *p) {
  Plan q = *p;
  q.tile = copy(p->tile, p->tile_count * sizeof(Tile), (p->tile_count + ROOM) * sizeof(Tile));
  memset(q.tile + p->tile_count, 0, ROOM * sizeof(Tile));
  q.barrier = copy(p->barrier, p->wave_count * 4, (p->wave_count + ROOM) * 4);
  memset(q.barrier + p->wave_count, 0, ROOM * 4);
  // first[] has room for more workers too, so that a damaged count is judged and not read past.
  q.first = copy(p->first, (p->workers + 1) * 4, (p->workers + 1 + ROOM) * 4);
  for (uint32_t w = p->workers + 1; w < p->workers + 1 + ROOM; w++) q.first[w] = p->tile_count;
  return q;
}
//< tiny_plans

/*: ## Mutations

Each is one kind of mistake a planner, an editor or a bad disk could make. Some leave the plan
valid, and must: a validator that refuses everything agrees with nobody. :*/
//> mutations
typedef uint64_t Rng;

static uint32_t below(Rng *r, uint32_t n) { return (uint32_t)(test_random(r) % n); }

// A value near `v`, or small, or anything.
static uint32_t nearby(Rng *r, uint32_t v) {
  switch (below(r, 6)) {
  case 0: return v + 1;
  case 1: return v - 1;
  case 2: return below(r, 4);
  case 3: return below(r, 40);
  case 4: return v + below(r, 9) - 4;
  default: return (uint32_t)test_random(r);
  }
}

enum { FIELDS = 7 };

static uint32_t get_field(const Tile *t, uint32_t f) {
  const uint32_t v[FIELDS] = {t->op, t->layer, t->wave, t->worker, t->row0, t->row1, t->part};
  return v[f];
}

static void set_field(Tile *t, uint32_t f, uint32_t v) {
  switch (f) {
  case 0: t->op = (uint16_t)v; break;
  case 1: t->layer = (uint16_t)v; break;
  case 2: t->wave = v; break;
  case 3: t->worker = v; break;
  case 4: t->row0 = v; break;
  case 5: t->row1 = v; break;
  default: t->part = v;
  }
}

static void insert_tile(Plan *p, uint32_t at, Tile t) {
  memmove(p->tile + at + 1, p->tile + at, (p->tile_count - at) * sizeof t);
  p->tile[at] = t;
  p->tile_count++;
}

static void remove_tile(Plan *p, uint32_t at) {
  p->tile_count--;
  memmove(p->tile + at, p->tile + at + 1, (p->tile_count - at) * sizeof(Tile));
}

static void insert_wave(Plan *p, uint32_t after, uint32_t barrier) {
  for (uint32_t i = 0; i < p->tile_count; i++)
    if (p->tile[i].wave > after) p->tile[i].wave++;
  memmove(p->barrier + after + 1, p->barrier + after, (p->wave_count - after) * 4);
  p->wave_count++;
  p->barrier[after] = barrier;
}

static void join_waves(Plan *p, uint32_t w) { // w and w + 1
  if (w + 1 >= p->wave_count) return;
  for (uint32_t i = 0; i < p->tile_count; i++)
    if (p->tile[i].wave > w) p->tile[i].wave--;
  memmove(p->barrier + w, p->barrier + w + 1, (p->wave_count - w - 1) * 4);
  p->wave_count--;
}

// The tiles of wave w that a coin chooses go to a new wave before or behind the others.
static void part_wave(Plan *p, Rng *r, uint32_t w) {
  insert_wave(p, w, p->sync == SYNC_DATA ? BARRIER_DATA : below(r, 3) == 0);
  for (uint32_t i = 0; i < p->tile_count; i++)
    if (p->tile[i].wave == w && below(r, 2)) p->tile[i].wave = w + 1;
}

// A wave between w and the next, of tiles of both: who still has what it reads?
static void mingle_waves(Plan *p, Rng *r, uint32_t w) {
  insert_wave(p, w, p->sync == SYNC_DATA ? BARRIER_DATA : BARRIER_ALWAYS);
  for (uint32_t i = 0; i < p->tile_count; i++)
    if ((p->tile[i].wave == w || p->tile[i].wave == w + 2) && below(r, 2)) p->tile[i].wave = w + 1;
}

static void merge_tiles(Plan *p, Rng *r) {
  uint32_t a = below(r, p->tile_count);
  for (uint32_t b = 0; b < p->tile_count; b++) {
    Tile *s = &p->tile[a], *t = &p->tile[b];
    if (s->op != t->op || s->layer != t->layer || s->row1 != t->row0) continue;
    bool attention = s->op == OP_SCORES || s->op == OP_VALUES || s->op == OP_ATTEND;
    if (attention && s->part != t->part) continue;
    s->row1 = t->row1;
    // A numbered part vanishes with its tile: the highest number must, for the others to stay dense.
    if (s->op == OP_LM_HEAD && below(r, 2)) {
      for (uint32_t i = 0; i < p->tile_count; i++)
        if (p->tile[i].op == OP_LM_HEAD && p->tile[i].part > t->part) p->tile[i].part--;
      if (s->part > t->part) s->part--;
      p->slots--;
    }
    remove_tile(p, b);
    return;
  }
}

static void mutate_header(Plan *p, Rng *r) {
  switch (below(r, 14)) {
  case 10: p->sync = (SyncKind)below(r, 4); break;
  case 11: p->ring_slots = nearby(r, p->ring_slots); break;
  case 12: p->slot_bytes = nearby(r, p->slot_bytes); break;
  case 13: p->target.shared_bytes = nearby(r, p->target.shared_bytes); break;
  case 0: p->workers = nearby(r, p->workers); break;
  case 1: p->wave_count += below(r, 3) - 1; break;
  case 2: p->tile_count += below(r, 3) - 1; break;
  case 3: p->chunks = nearby(r, p->chunks); break;
  case 4: p->ffn_parts = nearby(r, p->ffn_parts); break;
  case 5: p->slots = nearby(r, p->slots); break;
  case 6: p->fused_context = nearby(r, p->fused_context); break;
  case 7: p->target.workers = nearby(r, p->target.workers); break;
  case 8: p->one_pass = !p->one_pass; break;
  default: p->first[below(r, p->workers + 1)] += below(r, 3) - 1;
  }
  if (p->workers > 64) p->workers = 0; // beyond the room of first[]
}

static void mutate(Plan *p, Rng *r) {
  uint32_t i = below(r, p->tile_count), j = below(r, p->tile_count), f = below(r, FIELDS);
  uint32_t w = below(r, p->wave_count);
  Tile *t = &p->tile[i];
  switch (below(r, 18)) {
  case 0:
  case 1: set_field(t, f, nearby(r, get_field(t, f))); break;
  case 2: {
    uint32_t v = get_field(t, f);
    set_field(t, f, get_field(&p->tile[j], f));
    set_field(&p->tile[j], f, v);
    break;
  }
  case 3: remove_tile(p, i); break;
  case 4: insert_tile(p, i, p->tile[j]); break;
  case 5:
  case 6:
    if (t->row1 - t->row0 > 1) {
      Tile rest = *t;
      t->row1 = rest.row0 = t->row0 + 1 + below(r, t->row1 - t->row0 - 1);
      if (below(r, 2)) rest.worker = below(r, p->workers);
      if (rest.op == OP_LM_HEAD && below(r, 2)) rest.part = p->slots++;
      if (rest.op == OP_FFN && below(r, 2)) rest.part = p->ffn_parts++;
      insert_tile(p, i + 1, rest);
    }
    break;
  case 7: merge_tiles(p, r); break;
  case 8: t->worker = below(r, p->workers); break;
  case 9: t->wave = below(r, 2) ? t->wave + below(r, 3) - 1 : w; break;
  case 10:
  case 11:
    if (p->sync == SYNC_DATA && below(r, 4)) break; // seldom: there is but one kind
    p->barrier[w] = below(r, 8) ? !p->barrier[w] : nearby(r, 0);
    break;
  case 12: part_wave(p, r, w); break;
  case 13: join_waves(p, w); break;
  case 16:
  case 17: mingle_waves(p, r, w); break;
  case 14: // two tiles change places in time, or two neighbours in the array
    if (below(r, 2)) {
      uint32_t v = t->wave;
      t->wave = p->tile[j].wave;
      p->tile[j].wave = v;
    } else if (i + 1 < p->tile_count) {
      Tile x = *t;
      t[0] = t[1];
      t[1] = x;
    }
    break;
  default: mutate_header(p, r);
  }
}

static int by_worker_and_wave(const void *a, const void *b) {
  const Tile *s = a, *t = b;
  if (s->worker != t->worker) return s->worker < t->worker ? -1 : 1;
  if (s->wave != t->wave) return s->wave < t->wave ? -1 : 1;
  return 0;
}

static void index_again(Plan *p) {
  for (uint32_t w = 0; w <= p->workers; w++) {
    p->first[w] = 0;
    for (uint32_t i = 0; i < p->tile_count; i++) p->first[w] += p->tile[i].worker < w;
  }
}
//< mutations

/*: ## Agreement :*/
//> agreement
static const char *const rules[] = {"sizes",
                                    "grid",
                                    "order",
                                    "bounds",
                                    "barriers",
                                    "one FFN form",
                                    "one attention",
                                    "one chunk",
                                    "written once",
                                    "no overwrite",
                                    "read after write",
                                    "sync",
                                    "one sync",
                                    "reuse",
                                    "sequence",
                                    "one tile each",
                                    "ring"};
enum { RULES = sizeof rules / sizeof *rules, FIRST_OF_TAPES = RULES - 6 };

static void count_rule(const char *text, unsigned *refused) {
  for (int k = 0; k < RULES; k++) {
    char quoted[40];
    snprintf(quoted, sizeof quoted, "rule \"%s\"", rules[k]);
    if (strstr(text, quoted)) {
      refused[k]++;
      return;
    }
  }
  fail_msg("no rule in \"%s\"", text);
}

static bool same_plan(const Plan *p, const Plan *q) {
  return p->workers == q->workers && p->target.workers == q->target.workers &&
         p->wave_count == q->wave_count && p->tile_count == q->tile_count &&
         p->chunks == q->chunks && p->ffn_parts == q->ffn_parts && p->slots == q->slots &&
         p->fused_context == q->fused_context && p->one_pass == q->one_pass && p->sync == q->sync &&
         p->ring_slots == q->ring_slots && p->slot_bytes == q->slot_bytes &&
         p->target.shared_bytes == q->target.shared_bytes &&
         memcmp(p->barrier, q->barrier, q->wave_count * sizeof *q->barrier) == 0 &&
         memcmp(p->first, q->first, (q->workers + 1) * sizeof *q->first) == 0 &&
         memcmp(p->tile, q->tile, q->tile_count * sizeof *q->tile) == 0;
}

// So many mutants of one plan.
static void agree(const Shape *s, const Target *t, Rng *r, unsigned *valid, unsigned *refused) {
  Plan base;
  must_plan(s, t, &base);
  const bool data = t->sync == SYNC_DATA;
  assert_int_equal(base.sync, data ? SYNC_DATA : SYNC_BARRIER);
  assert_int_equal(base.one_pass, data || t->attention == ATTENTION_ONE_PASS);
  assert_null(brute_force(&base));
  for (int n = 0; n < 6000; n++) {
    Plan p = plan_copy(&base);
    for (uint32_t k = 0, times = 1 + below(r, 4) / 2;
         k < times && p.tile_count && p.wave_count && p.workers; k++)
      mutate(&p, r);
    if (same_plan(&p, &base)) { // nothing to split, nothing to merge: another try
      plan_free(&p);
      n--;
      continue;
    }
    if (below(r, 4)) { // mostly put in order again, so that deeper rules get their turn
      qsort(p.tile, p.tile_count, sizeof(Tile), by_worker_and_wave);
      index_again(&p);
    }
    Error e = {0};
    bool ours = plan_validate(&p, &e) == 0;
    const char *theirs = brute_force(&p);
    if (ours != !theirs)
      fail_msg("%u workers, mutant %d: plan_validate: %s; element by element: %s", t->workers, n,
               ours ? "valid" : e.text, theirs ? theirs : "valid");
    // What goes wrong in a play must not be left to the rules about form.
    if (data && theirs && strncmp(theirs, "form", 4) != 0 &&
        (strstr(e.text, "rule \"sequence\"") || strstr(e.text, "rule \"one tile each\"")))
      fail_msg("%u workers, mutant %d: %s; element by element: %s", t->workers, n, e.text, theirs);
    // And what is refused because a buffer is used again too early does go wrong in a play.
    if (strstr(e.text, "rule \"reuse\"") && strncmp(theirs, "form", 4) == 0)
      fail_msg("%u workers, mutant %d: %s; element by element: only the form", t->workers, n,
               e.text);
    if (ours) ++*valid;
    else {
      assert_int_equal(e.code, EXIT_PLAN);
      count_rule(e.text, refused);
    }
    plan_free(&p);
  }
  plan_free(&base);
}

static void agree_on_mutants(void **state) {
  (void)state;
  const struct {
    Shape s;
    uint32_t workers;
    FfnKind ffn;
    AttentionKind attention;
  } barriers[] = {
      {tiny(6, 2, 1, 5, 2, 7), 3, FFN_FUSED, ATTENTION_TWO_PASS},
      {tiny(6, 2, 1, 5, 2, 7), 3, FFN_SPLIT, ATTENTION_TWO_PASS},
      {tiny(4, 2, 2, 3, 1, 5), 4, FFN_FUSED, ATTENTION_TWO_PASS},
      {tiny(4, 2, 2, 3, 2, 5), 1, FFN_SPLIT, ATTENTION_TWO_PASS},
      {tiny(5, 3, 3, 7, 1, 9), 2, FFN_FUSED, ATTENTION_TWO_PASS},
      {tiny(5, 3, 3, 4, 2, 4), 2, FFN_SPLIT, ATTENTION_TWO_PASS},
      {tiny(4, 2, 1, 6, 3, 3), 1, FFN_FUSED, ATTENTION_TWO_PASS},
      {tiny(8, 4, 2, 8, 1, 11), 5, FFN_SPLIT, ATTENTION_TWO_PASS},
      {tiny(3, 1, 1, 3, 2, 2), 4, FFN_FUSED, ATTENTION_TWO_PASS},
      {tiny(6, 4, 4, 5, 2, 6), 2, FFN_FUSED, ATTENTION_TWO_PASS},
      {tiny(6, 2, 1, 5, 2, 7), 3, FFN_FUSED, ATTENTION_ONE_PASS},
      {tiny(4, 2, 2, 3, 2, 5), 4, FFN_SPLIT, ATTENTION_ONE_PASS},
      {tiny(5, 3, 3, 4, 2, 4), 2, FFN_FUSED, ATTENTION_ONE_PASS},
      {tiny(4, 2, 1, 6, 2, 3), 1, FFN_SPLIT, ATTENTION_ONE_PASS},
      {tiny(8, 4, 2, 8, 1, 11), 7, FFN_FUSED, ATTENTION_ONE_PASS},
      {tiny(3, 1, 1, 3, 3, 2), 4, FFN_SPLIT, ATTENTION_ONE_PASS},
      {tiny(6, 4, 4, 5, 2, 6), 2, FFN_FUSED, ATTENTION_ONE_PASS},
  };
  const struct {
    Shape s;
    uint32_t workers;
    bool tight; // not a byte of shared memory to spare for another tile
  } tapes[] = {
      {tiny_tape(6, 2, 1, 5, 2, 7), 3, false}, {tiny_tape(4, 2, 2, 4, 3, 5), 4, true},
      {tiny_tape(5, 3, 3, 4, 1, 4), 2, false}, {tiny_tape(4, 2, 1, 6, 2, 3), 1, false},
      {tiny_tape(8, 4, 2, 8, 1, 11), 7, true}, {tiny_tape(3, 1, 1, 3, 2, 3), 3, true},
      {tiny_tape(6, 4, 4, 5, 2, 6), 2, false}, {tiny_tape(4, 2, 1, 4, 2, 4), 2, true},
  };
  enum { BARRIERS = sizeof barriers / sizeof *barriers, TAPES = sizeof tapes / sizeof *tapes };
  unsigned valid[2] = {0}, refused[2][RULES] = {{0}};
  Rng r = 20261129;
  for (int b = 0; b < BARRIERS; b++) {
    Target t = machine(barriers[b].workers, barriers[b].ffn, barriers[b].attention);
    agree(&barriers[b].s, &t, &r, &valid[0], refused[0]);
  }
  for (int b = 0; b < TAPES; b++) {
    uint32_t most = 6 * (uint32_t)tapes[b].s.layers + 1; // tiles of a worker
    uint64_t room = 2 * (16 << 10) + tape_reserve(&tapes[b].s, tapes[b].workers, most) + 10;
    Target t = card(tapes[b].workers, tapes[b].tight ? (uint32_t)room : 0);
    agree(&tapes[b].s, &t, &r, &valid[1], refused[1]);
  }
  for (int kind = 0; kind < 2; kind++) {
    printf("mutants of plans with %s: %u valid", kind ? "hand-offs of data" : "barriers",
           valid[kind]);
    for (int k = 0; k < RULES; k++) printf(", %s %u", rules[k], refused[kind][k]);
    printf("\n");
    assert_true(valid[kind] > 1000 && valid[kind] < 3000u * (kind ? TAPES : BARRIERS));
  }
  for (int k = 0; k < RULES; k++) {
    const bool of_tapes = k >= FIRST_OF_TAPES, of_forms = strncmp(rules[k], "one ", 4) == 0;
    if (!of_tapes) assert_true(refused[0][k] > 0);
    if (of_tapes || (!of_forms && strcmp(rules[k], "no overwrite") != 0))
      assert_true(refused[1][k] > 0);
  }
}
//< agreement

/*: ## Rule by rule :*/
//> rule_by_rule
// A plan with two chunks: 2 K/V heads on 4 workers.
static void base_of(Plan *p, FfnKind ffn, AttentionKind attention) {
  Shape s = tiny(8, 4, 2, 8, 2, 9);
  Target t = machine(4, ffn, attention);
  Plan q;
  must_plan(&s, &t, &q);
  assert_int_equal(q.chunks, 2);
  *p = plan_copy(&q);
  plan_free(&q);
}

// Two passes, with both attention forms.
static void base_plan(Plan *p, FfnKind ffn) { base_of(p, ffn, ATTENTION_TWO_PASS); }
static void base_one_pass(Plan *p, FfnKind ffn) { base_of(p, ffn, ATTENTION_ONE_PASS); }

static Tile *nth(Plan *p, Op op, uint32_t layer, uint32_t n) {
  for (uint32_t i = 0; i < p->tile_count; i++)
    if (p->tile[i].op == op && p->tile[i].layer == layer && n-- == 0) return &p->tile[i];
  fail_msg("no such tile: %s layer %u", op_name((int)op), layer);
  return NULL;
}

static void refused_by(Plan *p, const char *rule) {
  qsort(p->tile, p->tile_count, sizeof(Tile), by_worker_and_wave);
  if (p->workers <= ROOM) index_again(p);
  char quoted[40];
  snprintf(quoted, sizeof quoted, "rule \"%s\"", rule);
  Error e = {0};
  assert_int_equal(plan_validate(p, &e), -1);
  assert_error(&e, EXIT_PLAN, quoted);
  plan_free(p);
}

static void accepted(Plan *p) {
  qsort(p->tile, p->tile_count, sizeof(Tile), by_worker_and_wave);
  index_again(p);
  Error e = {0};
  assert_ok(plan_validate(p, &e), &e);
  assert_null(brute_force(p));
  plan_free(p);
}

static void the_message_names_the_tile(void **state) {
  (void)state;
  Plan p;
  base_plan(&p, FFN_FUSED);
  Tile *t = nth(&p, OP_QKV, 1, 2);
  uint32_t index = (uint32_t)(t - p.tile);
  t->row1 = 99;
  Error e;
  assert_int_equal(plan_validate(&p, &e), -1);
  char want[200];
  snprintf(want, sizeof want,
           "plan: tile %u (qkv layer 1 rows %u..99 wave %u worker %u): rule \"bounds\": rows "
           "%u..99 of 16",
           index, t->row0, t->wave, t->worker, t->row0);
  assert_string_equal(e.text, want);
  plan_free(&p);
}

static void sizes(void **state) {
  (void)state;
  Plan p;
  base_plan(&p, FFN_FUSED);
  Plan good = p;
  Error e;
#define REFUSED(change)                                                                            \
  do {                                                                                             \
    p = good;                                                                                      \
    change;                                                                                        \
    assert_int_equal(plan_validate(&p, &e), -1);                                                   \
    assert_error(&e, EXIT_PLAN, "rule \"sizes\"");                                                 \
    assert_non_null(brute_force(&p));                                                              \
  } while (0)
  REFUSED(p.shape.vocab = 0);
  REFUSED(p.shape.hidden = -1);
  REFUSED(p.shape.inter = 1 << 30);
  REFUSED(p.shape.layers = 0);
  REFUSED(p.shape.layers = 65536);
  REFUSED(p.shape.heads = 3); // not a multiple of 2
  REFUSED(p.shape.kv_heads = 0);
  REFUSED(p.shape.kv_heads = 8); // more than heads
  REFUSED(p.shape.head_dim = 3);
  REFUSED(p.shape.head_dim = INT32_MAX - 1);
  REFUSED(p.shape.heads = 4096; p.shape.head_dim = 1 << 16);
  REFUSED(p.shape.max_context = 0);
  REFUSED(p.shape.dtype = DT_NONE);
  REFUSED(p.shape.dtype = DT_COUNT);
  REFUSED(p.workers = 0);
  REFUSED(p.workers = p.target.workers = 65537);
  REFUSED(p.target.workers = 5);
  REFUSED(p.tile_count = 0);
  REFUSED(p.tile_count = PLAN_MAX_TILES + 1);
  REFUSED(p.wave_count = 0);
  REFUSED(p.wave_count = p.tile_count + 1);
  REFUSED(p.chunks = 0);
  REFUSED(p.chunks = PLAN_MAX_CHUNKS + 1);
  REFUSED(p.ffn_parts = 9); // more than intermediate rows
  REFUSED(p.slots = 0);
  REFUSED(p.slots = 10);        // more than ids
  REFUSED(p.fused_context = 0); // a chunk could be empty
  REFUSED(p.target.read_gbs = -1);
  REFUSED(p.target.barrier_us = (double)NAN);
  REFUSED(p.target.ramp_us = (double)INFINITY);
  plan_free(&good);
  base_one_pass(&p, FFN_FUSED);
  good = p;
  REFUSED(p.fused_context = 0); // positions a chunk
#undef REFUSED
  for (uint32_t positions = 1; positions; positions *= 2) {
    p = good;
    p.fused_context = positions; // where a chunk ends is no matter of validity
    assert_ok(plan_validate(&p, &e), &e);
    assert_null(brute_force(&p));
  }
  plan_free(&good);
}

static void grid_and_order(void **state) {
  (void)state;
  Plan p;
  base_plan(&p, FFN_FUSED);
  nth(&p, OP_WO, 0, 0)->worker = 4;
  refused_by(&p, "grid");
  base_plan(&p, FFN_FUSED);
  nth(&p, OP_LM_HEAD, 0, 0)->wave = p.wave_count;
  refused_by(&p, "grid");

  Error e;
  base_plan(&p, FFN_FUSED);
  Tile t = p.tile[0];
  p.tile[0] = p.tile[1];
  p.tile[1] = t;
  assert_int_equal(plan_validate(&p, &e), -1);
  assert_error(&e, EXIT_PLAN, "rule \"order\"");
  assert_int_equal(plan_index(&p, &e), -1);
  assert_error(&e, EXIT_PLAN, "rule \"order\"");
  plan_free(&p);

  for (uint32_t w = 0; w <= 4; w++) {
    base_plan(&p, FFN_FUSED);
    p.first[w]++;
    assert_int_equal(plan_validate(&p, &e), -1);
    assert_error(&e, EXIT_PLAN, "rule \"order\"");
    assert_ok(plan_index(&p, &e), &e); // derives it again
    assert_ok(plan_validate(&p, &e), &e);
    plan_free(&p);
  }
}

static void bounds(void **state) {
  (void)state;
  const struct {
    Op op;
    uint32_t field, value;
  } bad[] = {
      {OP_EMBED, 0, OP_COUNT},
      {OP_EMBED, 0, 65535},
      {OP_EMBED, 1, 1},
      {OP_EMBED, 5, 9},
      {OP_EMBED, 5, UINT32_MAX},
      {OP_EMBED, 4, UINT32_MAX},
      {OP_EMBED, 6, 1},
      {OP_QKV, 1, 2},
      {OP_QKV, 5, 17},
      {OP_QKV, 6, 1},
      {OP_SCORES, 5, 3},
      {OP_SCORES, 6, 2},
      {OP_VALUES, 5, 3},
      {OP_VALUES, 6, 2},
      {OP_WO, 5, 9},
      {OP_WO, 6, 1},
      {OP_FFN, 5, 9},
      {OP_FFN, 6, 4},
      {OP_FFN_REDUCE, 5, 9},
      {OP_FFN_REDUCE, 6, 1},
      {OP_FINAL_NORM, 5, 9},
      {OP_FINAL_NORM, 1, 1},
      {OP_FINAL_NORM, 6, 1},
      {OP_LM_HEAD, 5, 10},
      {OP_LM_HEAD, 1, 1},
      {OP_LM_HEAD, 6, 4},
  };
  Plan p;
  for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
    base_plan(&p, FFN_FUSED);
    set_field(nth(&p, bad[k].op, 0, 0), bad[k].field, bad[k].value);
    refused_by(&p, "bounds");
  }
  const Op split[] = {OP_GATE_UP, OP_DOWN};
  for (int k = 0; k < 2; k++) {
    base_plan(&p, FFN_SPLIT);
    nth(&p, split[k], 0, 0)->row1 = 9;
    refused_by(&p, "bounds");
    base_plan(&p, FFN_SPLIT);
    nth(&p, split[k], 0, 0)->part = 1;
    refused_by(&p, "bounds");
  }
  const uint32_t attend[][2] = {{1, 2}, {5, 3}, {6, 2}};
  for (int k = 0; k < 3; k++) {
    base_one_pass(&p, FFN_FUSED);
    set_field(nth(&p, OP_ATTEND, 0, 1), attend[k][0], attend[k][1]);
    refused_by(&p, "bounds");
  }
  base_plan(&p, FFN_FUSED);
  nth(&p, OP_WO, 0, 0)->row1 = nth(&p, OP_WO, 0, 0)->row0; // empty
  refused_by(&p, "bounds");
}

static void barriers(void **state) {
  (void)state;
  Plan p;
  base_plan(&p, FFN_FUSED);
  p.barrier[0] = 2;
  refused_by(&p, "barriers");
  base_plan(&p, FFN_FUSED);
  p.barrier[p.wave_count - 1] = BARRIER_IF_SPLIT;
  refused_by(&p, "barriers");
  base_plan(&p, FFN_FUSED);
  insert_wave(&p, 3, BARRIER_ALWAYS);
  refused_by(&p, "barriers");
  // The barrier behind scores may also be of the kind that is never skipped. No other may be
  // changed: each of them is needed in the fused form too.
  uint32_t valid = 0;
  base_plan(&p, FFN_FUSED);
  uint32_t waves = p.wave_count;
  plan_free(&p);
  for (uint32_t w = 0; w < waves; w++) {
    base_plan(&p, FFN_FUSED);
    p.barrier[w] = !p.barrier[w];
    Error e;
    bool ours = plan_validate(&p, &e) == 0;
    assert_int_equal(ours, brute_force(&p) == NULL);
    valid += ours;
    plan_free(&p);
  }
  assert_int_equal(valid, 2); // the two scores barriers
  // In one pass not one barrier may be skipped.
  base_one_pass(&p, FFN_FUSED);
  waves = p.wave_count;
  plan_free(&p);
  for (uint32_t w = 0; w < waves; w++) {
    base_one_pass(&p, FFN_FUSED);
    p.barrier[w] = BARRIER_IF_SPLIT;
    assert_non_null(brute_force(&p));
    refused_by(&p, "barriers");
  }
}

static void forms(void **state) {
  (void)state;
  Plan p;
  base_plan(&p, FFN_FUSED);
  nth(&p, OP_FFN, 1, 0)->op = OP_GATE_UP;
  refused_by(&p, "one FFN form");
  base_plan(&p, FFN_FUSED);
  p.ffn_parts = 0;
  refused_by(&p, "one FFN form");
  base_plan(&p, FFN_SPLIT);
  nth(&p, OP_DOWN, 1, 3)->op = OP_FFN_REDUCE;
  refused_by(&p, "one FFN form");
  base_plan(&p, FFN_SPLIT);
  p.ffn_parts = 4;
  refused_by(&p, "one FFN form");

  base_plan(&p, FFN_SPLIT);
  p.chunks = 1;
  refused_by(&p, "one chunk"); // fused_context says otherwise
  base_plan(&p, FFN_SPLIT);
  p.chunks = 1;
  p.fused_context = UINT32_MAX;
  refused_by(&p, "one chunk"); // so do the values tiles
  base_one_pass(&p, FFN_SPLIT);
  p.chunks = 1;
  refused_by(&p, "one chunk"); // fused_context again

  // One kind of attention: a tile of the other kind is refused, and so is a word that all tiles belie.
  const Op foreign[] = {OP_SCORES, OP_VALUES};
  for (int k = 0; k < 2; k++) {
    base_one_pass(&p, FFN_FUSED);
    nth(&p, OP_ATTEND, 1, 2)->op = (uint16_t)foreign[k];
    refused_by(&p, "one attention");
    base_plan(&p, FFN_FUSED);
    nth(&p, foreign[k], 1, 2)->op = OP_ATTEND;
    refused_by(&p, "one attention");
  }
  base_one_pass(&p, FFN_FUSED);
  p.one_pass = false;
  refused_by(&p, "one attention");
  base_plan(&p, FFN_FUSED);
  for (uint32_t w = 0; w < p.wave_count; w++) p.barrier[w] = BARRIER_ALWAYS;
  p.one_pass = true;
  refused_by(&p, "one attention");
}

static bool has_op(FfnKind ffn, AttentionKind attention, int op) {
  if (op == OP_MERGE) return false;
  if (op == OP_SCORES || op == OP_VALUES) return attention == ATTENTION_TWO_PASS;
  if (op == OP_ATTEND) return attention == ATTENTION_ONE_PASS;
  if (op == OP_FFN || op == OP_FFN_REDUCE) return ffn == FFN_FUSED;
  return ffn == FFN_SPLIT || (op != OP_GATE_UP && op != OP_DOWN);
}

static void written_once(void **state) {
  (void)state;
  Plan p;
  Error e;
  for (int form = 0; form < 4; form++)
    for (int op = 0; op < OP_COUNT; op++) {
      FfnKind ffn = form % 2 ? FFN_FUSED : FFN_SPLIT;
      AttentionKind attention = form / 2 ? ATTENTION_ONE_PASS : ATTENTION_TWO_PASS;
      if (!has_op(ffn, attention, op)) continue;
      // A tile is missing, at either end and in the middle; a tile is there twice.
      for (uint32_t n = 0; n < 4; n++) {
        base_of(&p, ffn, attention);
        remove_tile(&p, (uint32_t)(nth(&p, (Op)op, 0, n) - p.tile));
        refused_by(&p, "written once");
        base_of(&p, ffn, attention);
        Tile *t = nth(&p, (Op)op, 0, n);
        insert_tile(&p, (uint32_t)(t - p.tile), *t);
        refused_by(&p, "written once");
      }
    }
  // Every attend tile of a head writes a partial of its own: a chunk twice is another one not at all.
  base_one_pass(&p, FFN_FUSED);
  for (uint32_t i = 0; i < p.tile_count; i++)
    if (p.tile[i].op == OP_ATTEND && p.tile[i].row0 == 1) p.tile[i].part = 0;
  refused_by(&p, "written once");
  // All tiles of one opcode in one layer are gone, and their wave with them.
  for (int op = 0; op < OP_COUNT; op++) {
    if (op == OP_GATE_UP || op == OP_DOWN || op == OP_MERGE) continue;
    base_of(&p, FFN_FUSED, op == OP_ATTEND ? ATTENTION_ONE_PASS : ATTENTION_TWO_PASS);
    uint32_t wave = nth(&p, (Op)op, 0, 0)->wave;
    for (uint32_t i = 0; i < p.tile_count;) {
      if (p.tile[i].wave == wave) remove_tile(&p, i);
      else i++;
    }
    if (wave + 1 < p.wave_count) join_waves(&p, wave);
    else p.wave_count--;
    refused_by(&p, "written once");
  }
  // Two FFN tiles for one partial, two lm_head tiles for one slot: rows are fine, parts are not.
  base_plan(&p, FFN_FUSED);
  nth(&p, OP_FFN, 0, 1)->part = 0;
  assert_int_equal(plan_validate(&p, &e), -1);
  assert_error(&e, EXIT_PLAN, "another tile writes the same part");
  refused_by(&p, "written once");
  base_plan(&p, FFN_FUSED);
  nth(&p, OP_LM_HEAD, 0, 3)->part = 1;
  refused_by(&p, "written once");
  base_plan(&p, FFN_FUSED);
  p.slots = 5; // a slot that nobody fills would be read all the same
  refused_by(&p, "written once");
}

static void in_time(void **state) {
  (void)state;
  Plan p;
  // Each wave joined with the next one. Where the first is scores, only the split form suffers.
  for (int form = 0; form < 4; form++) {
    FfnKind ffn = form % 2 ? FFN_FUSED : FFN_SPLIT;
    AttentionKind attention = form / 2 ? ATTENTION_ONE_PASS : ATTENTION_TWO_PASS;
    base_of(&p, ffn, attention);
    uint32_t waves = p.wave_count;
    plan_free(&p);
    for (uint32_t w = 0; w + 1 < waves; w++) {
      base_of(&p, ffn, attention);
      join_waves(&p, w);
      qsort(p.tile, p.tile_count, sizeof(Tile), by_worker_and_wave);
      index_again(&p);
      Error e;
      assert_int_equal(plan_validate(&p, &e), -1);
      assert_non_null(brute_force(&p));
      assert_true(strstr(e.text, "read after write") || strstr(e.text, "no overwrite"));
      plan_free(&p);
    }
  }
  // One tile of a wave comes one wave too early: it reads what is being written.
  const Op early[] = {OP_QKV, OP_SCORES, OP_VALUES, OP_WO, OP_FFN, OP_FINAL_NORM, OP_LM_HEAD};
  for (size_t k = 0; k < sizeof early / sizeof *early; k++) {
    base_plan(&p, FFN_FUSED);
    nth(&p, early[k], 0, 1)->wave--;
    refused_by(&p, "read after write");
  }
  for (uint32_t n = 0; n < 4; n++) { // whichever head and chunk it has
    base_one_pass(&p, FFN_FUSED);
    nth(&p, OP_ATTEND, 1, n)->wave--;
    refused_by(&p, "read after write");
    base_one_pass(&p, FFN_FUSED);
    nth(&p, OP_ATTEND, 1, n)->wave++; // beside wo
    refused_by(&p, "read after write");
    base_one_pass(&p, FFN_FUSED); // wo of the layer before still reads the partials
    nth(&p, OP_ATTEND, 1, n)->wave = nth(&p, OP_WO, 0, 0)->wave;
    refused_by(&p, "no overwrite");
  }
  base_one_pass(&p, FFN_FUSED); // qkv of the next layer writes rows that attend still reads
  nth(&p, OP_QKV, 1, 1)->wave = nth(&p, OP_ATTEND, 0, 0)->wave;
  refused_by(&p, "no overwrite");
  // wo writes residual rows that qkv of the same epoch still reads.
  base_plan(&p, FFN_FUSED);
  nth(&p, OP_WO, 1, 1)->wave = nth(&p, OP_QKV, 1, 0)->wave;
  refused_by(&p, "no overwrite");
  // qkv of the next layer writes rows that scores of this one still reads.
  base_plan(&p, FFN_SPLIT);
  nth(&p, OP_QKV, 1, 1)->wave = nth(&p, OP_SCORES, 0, 0)->wave;
  refused_by(&p, "no overwrite");
}

// The v rows of layer 0 come one wave later, beside the scores tiles of one chunk; the others have a wave of their own behind. Chunk 0 needs
// them in the fused form only, for values; the last chunk in the split form only, for the cache.
static void both_forms_are_checked(void **state) {
  (void)state;
  Error e;
  for (uint32_t early = 0; early < 3; early++) { // 2: none
    Plan p;
    base_plan(&p, FFN_FUSED);
    insert_wave(&p, nth(&p, OP_QKV, 0, 0)->wave, BARRIER_ALWAYS);
    uint32_t moved = 0;
    for (uint32_t i = 0; i < p.tile_count; i++) {
      Tile *t = &p.tile[i];
      if (t->layer) continue;
      if (t->op == OP_QKV && t->row0 >= 12) t->wave++, moved++;
      if (t->op == OP_SCORES && t->part == early) t->wave--;
    }
    assert_int_equal(moved, 1);
    qsort(p.tile, p.tile_count, sizeof(Tile), by_worker_and_wave);
    index_again(&p);
    if (early == 2) {
      accepted(&p);
      continue;
    }
    assert_int_equal(play(&p, false, 2, 2) == NULL, early == 0);
    assert_int_equal(play(&p, true, 1, 1) == NULL, early == 1);
    assert_non_null(brute_force(&p));
    assert_int_equal(plan_validate(&p, &e), -1);
    assert_error(&e, EXIT_PLAN, "newest V row");
    assert_int_equal(strstr(e.text, "up to fused_context") != NULL, early == 0);
    plan_free(&p);
  }
  // All scores tiles beside the v rows: too late for both.
  Plan p;
  base_plan(&p, FFN_FUSED);
  for (uint32_t i = 0; i < p.tile_count; i++)
    if (p.tile[i].op == OP_QKV && p.tile[i].row0 >= 12) p.tile[i].wave++;
  assert_non_null(play(&p, false, 2, 2));
  assert_non_null(play(&p, true, 1, 1));
  refused_by(&p, "read after write");
}

// Any chunk may be the last in use, and the last reads the newest V row. So no attend tile may run beside
// the qkv tiles that write it, although with all chunks in use only those of the last chunk would suffer.
static void any_chunk_may_be_the_last(void **state) {
  (void)state;
  Error e;
  for (uint32_t early = 0; early < 3; early++) { // 2: none
    Plan p;
    base_one_pass(&p, FFN_FUSED);
    insert_wave(&p, nth(&p, OP_QKV, 0, 0)->wave, BARRIER_ALWAYS);
    for (uint32_t i = 0; i < p.tile_count; i++) {
      Tile *t = &p.tile[i];
      if (t->layer) continue;
      if (t->op == OP_QKV && t->row0 >= 12) t->wave++;
      if (t->op == OP_ATTEND && t->part == early) t->wave--;
    }
    qsort(p.tile, p.tile_count, sizeof(Tile), by_worker_and_wave);
    index_again(&p);
    if (early == 2) {
      accepted(&p);
      continue;
    }
    assert_int_equal(play(&p, false, 2, 2) == NULL, early == 0);
    assert_int_equal(play(&p, false, 1, 1) == NULL, early == 1);
    assert_non_null(brute_force(&p));
    assert_int_equal(plan_validate(&p, &e), -1);
    assert_error(&e, EXIT_PLAN, "newest V row");
    plan_free(&p);
  }
}
//< rule_by_rule

/*: ### Hand-offs of data :*/
//> rules_of_tapes
// Two chunks, and every worker has a tile in every wave.
static void base_tape(Plan *p) {
  Shape s = tiny_tape(8, 4, 2, 8, 2, 9);
  Target t = card(4, 0);
  Plan q;
  must_plan(&s, &t, &q);
  assert_int_equal(q.chunks, 2);
  *p = plan_copy(&q);
  plan_free(&q);
}

static uint32_t index_of(Plan *p, Op op, uint32_t layer, uint32_t n) {
  return (uint32_t)(nth(p, op, layer, n) - p->tile);
}

// Worker n's rows of a wave go to a neighbour. Tiles of a wave stand in the order of the workers.
static void give_away(Plan *p, Op op, uint32_t layer, uint32_t n) {
  Tile gone = *nth(p, op, layer, n), *to = nth(p, op, layer, n ? n - 1 : 1);
  if (n) to->row1 = gone.row1;
  else to->row0 = gone.row0;
  remove_tile(p, index_of(p, op, layer, n));
}

static const Op tape_ops[] = {OP_QKV, OP_ATTEND, OP_MERGE, OP_WO, OP_GATE_UP, OP_DOWN, OP_LM_HEAD};
enum { TAPE_OPS = sizeof tape_ops / sizeof *tape_ops };

static void header_of_a_tape(void **state) {
  (void)state;
  Plan p;
#define REFUSED(rule, change)                                                                      \
  do {                                                                                             \
    base_tape(&p);                                                                                 \
    change;                                                                                        \
    assert_non_null(brute_force(&p));                                                              \
    refused_by(&p, rule);                                                                          \
  } while (0)
  REFUSED("sync", p.sync = SYNC_AUTO);
  REFUSED("sync", p.sync = (SyncKind)3);
  REFUSED("sync", memcpy(p.target.kind, "cpu", 4));
  REFUSED("sync", p.one_pass = false);
  REFUSED("sync", p.ffn_parts = 4);
  REFUSED("sync", p.shape.head_dim = 4);
  REFUSED("sync", p.shape.head_dim = TAPE_HEAD + 8);
  REFUSED("sync", p.shape.heads = 18);    // nine query heads of a K/V head
  REFUSED("sync", p.sync = SYNC_BARRIER); // with a ring
  REFUSED("ring", p.ring_slots = 1);
  REFUSED("ring", p.slot_bytes = 0);
  REFUSED("ring", p.slot_bytes += 8);
  REFUSED("ring", p.slot_bytes = 4080);       // eight rows of 256 columns are 4,096
  REFUSED("ring", p.shape.inter = 16384 + 1); // more than eight blocks of 2,048 columns
  REFUSED("ring", p.slot_bytes = 16384; p.shape.inter = 8192 + 1);      // more than eight of 1,024
  REFUSED("ring", p.target.shared_bytes = p.ring_slots * p.slot_bytes); // nothing beside the slots
  REFUSED("ring", p.ring_slots = 1u << 31; p.target.shared_bytes = 1 << 18);
  REFUSED("sizes", p.target.handoff_us = -1);
  for (uint32_t w = 0; w < 13; w++) REFUSED("barriers", p.barrier[w] = BARRIER_ALWAYS);
  REFUSED("one sync", nth(&p, OP_QKV, 0, 1)->op = OP_EMBED);
  REFUSED("one sync", nth(&p, OP_LM_HEAD, 0, 1)->op = OP_FINAL_NORM);
  REFUSED("one attention", nth(&p, OP_ATTEND, 0, 1)->op = OP_SCORES);
  REFUSED("one FFN form", nth(&p, OP_DOWN, 0, 1)->op = OP_FFN_REDUCE);
  REFUSED("bounds", nth(&p, OP_MERGE, 1, 0)->row1 = 14);
  REFUSED("bounds", nth(&p, OP_MERGE, 1, 3)->row1 = 36);
  REFUSED("bounds", nth(&p, OP_MERGE, 1, 0)->part = 1);
  REFUSED("one chunk", p.chunks = 1; p.fused_context = UINT32_MAX); // what is there to merge?
#undef REFUSED
  base_plan(&p, FFN_SPLIT); // with barriers nothing of it
  nth(&p, OP_WO, 0, 0)->op = OP_MERGE;
  refused_by(&p, "one sync");
  base_plan(&p, FFN_SPLIT);
  p.slot_bytes = 16384;
  refused_by(&p, "sync");
  base_plan(&p, FFN_SPLIT);
  p.barrier[3] = BARRIER_DATA;
  refused_by(&p, "barriers");

  // To the byte: what is beside the ring, and a tile's own twenty-four.
  Error e;
  base_tape(&p);
  p.target.shared_bytes =
      p.ring_slots * p.slot_bytes + (uint32_t)tape_reserve(&p.shape, p.workers, 6 * 2 + 1);
  assert_ok(plan_validate(&p, &e), &e);
  assert_null(brute_force(&p));
  p.target.shared_bytes--;
  assert_string_equal(brute_force(&p), "form: room");
  refused_by(&p, "ring");
}

static void tapes_written_once(void **state) {
  (void)state;
  Plan p;
  for (int k = 0; k < TAPE_OPS; k++)
    for (uint32_t n = 0; n < 4; n++) {
      base_tape(&p);
      remove_tile(&p, index_of(&p, tape_ops[k], 0, n));
      refused_by(&p, "written once");
      base_tape(&p);
      Tile *t = nth(&p, tape_ops[k], 0, n);
      insert_tile(&p, (uint32_t)(t - p.tile), *t);
      refused_by(&p, "written once");
    }
}

static void tapes_in_time(void **state) {
  (void)state;
  Plan p;
  Error e;
  for (uint32_t w = 0; w < 12; w++) { // a wave beside the next, and a wave behind it
    base_tape(&p);
    join_waves(&p, w);
    refused_by(&p, "read after write");
    base_tape(&p);
    for (uint32_t i = 0; i < p.tile_count; i++)
      if (p.tile[i].wave == w || p.tile[i].wave == w + 1)
        p.tile[i].wave = 2 * w + 1 - p.tile[i].wave;
    assert_non_null(brute_force(&p));
    refused_by(&p, "read after write");
  }
  for (int k = 0; k < TAPE_OPS; k++) // a single tile too early, and too late
    for (uint32_t n = 0; n < 4; n++) {
      base_tape(&p);
      nth(&p, tape_ops[k], 1 - (tape_ops[k] == OP_LM_HEAD), n)->wave--;
      refused_by(&p, "read after write");
      if (tape_ops[k] == OP_LM_HEAD) continue;
      base_tape(&p);
      nth(&p, tape_ops[k], 0, n)->wave++;
      refused_by(&p, "read after write");
    }
  // With one chunk in use attend writes what wo reads, whatever merge does: partials of a later layer's wave will not do.
  base_tape(&p);
  nth(&p, OP_ATTEND, 1, 3)->wave = nth(&p, OP_WO, 1, 0)->wave;
  qsort(p.tile, p.tile_count, sizeof(Tile), by_worker_and_wave);
  index_again(&p);
  assert_int_equal(plan_validate(&p, &e), -1);
  assert_error(&e, EXIT_PLAN, "in no later wave than");
  plan_free(&p);
}

// Who takes no part in a hand-off proves nothing by it. All rows are written, and all in time.
static void tapes_used_again(void **state) {
  (void)state;
  Plan p;
  Error e;
  unsigned reused = 0;
  for (int k = 0; k < TAPE_OPS; k++)
    for (uint32_t n = 0; n < 4; n++) {
      if (tape_ops[k] == OP_ATTEND || tape_ops[k] == OP_MERGE) continue;
      base_tape(&p);
      give_away(&p, tape_ops[k], 0, n);
      if (tape_ops[k] == OP_LM_HEAD) { // its slot too
        for (uint32_t i = 0; i < p.tile_count; i++)
          if (p.tile[i].op == OP_LM_HEAD && p.tile[i].part > n) p.tile[i].part--;
        p.slots--;
      }
      qsort(p.tile, p.tile_count, sizeof(Tile), by_worker_and_wave);
      index_again(&p);
      assert_int_equal(plan_validate(&p, &e), -1);
      assert_non_null(brute_force(&p));
      if (strstr(e.text, "rule \"reuse\"")) {
        assert_true(strncmp(brute_force(&p), "form", 4) != 0);
        reused++;
      } else assert_true(tape_ops[k] == OP_QKV || tape_ops[k] == OP_WO);
      plan_free(&p);
    }
  assert_true(reused >= 12); // gate_up, down and lm_head at least

  base_tape(&p);
  give_away(&p, OP_GATE_UP, 1, 2);
  index_again(&p);
  assert_int_equal(plan_validate(&p, &e), -1);
  assert_error(&e, EXIT_PLAN, "of layer 1: rule \"reuse\"");
  assert_error(&e, EXIT_PLAN, "in wave ");
  plan_free(&p);
}

static void form_of_a_tape(void **state) {
  (void)state;
  Plan p;
  Error e;
  for (int k = 0; k < TAPE_OPS; k++) { // one tile of a wave cut in two, both on its worker
    if (tape_ops[k] == OP_ATTEND || tape_ops[k] == OP_MERGE) continue;
    base_tape(&p);
    uint32_t i = index_of(&p, tape_ops[k], 0, 1);
    Tile rest = p.tile[i];
    assert_true(rest.row1 - rest.row0 > 1);
    rest.row0 = p.tile[i].row1 = rest.row1 - 1;
    if (rest.op == OP_LM_HEAD) rest.part = p.slots++;
    insert_tile(&p, i + 1, rest);
    index_again(&p);
    assert_int_equal(plan_validate(&p, &e), -1);
    assert_error(&e, EXIT_PLAN, "it has 2 tiles; must be 1");
    refused_by(&p, "one tile each");
  }
  for (int k = 0; k < TAPE_OPS; k++) { // a wave in two
    base_tape(&p);
    uint32_t wave = nth(&p, tape_ops[k], 0, 0)->wave;
    insert_wave(&p, wave, BARRIER_DATA);
    nth(&p, tape_ops[k], 0, 3)->wave++;
    qsort(p.tile, p.tile_count, sizeof(Tile), by_worker_and_wave);
    index_again(&p);
    assert_int_equal(plan_validate(&p, &e), -1);
    assert_error(&e, EXIT_PLAN, "14 waves; 2 layers of 2 chunks have 13");
    refused_by(&p, "sequence");
  }
}

static void unusual_tapes_pass(void **state) {
  (void)state;
  Plan p;
  base_tape(&p); // as made
  accepted(&p);
  base_tape(&p); // attention where it pleases
  for (uint32_t i = 0; i < p.tile_count; i++)
    if (p.tile[i].op == OP_ATTEND) p.tile[i].worker = 3;
    else if (p.tile[i].op == OP_MERGE) p.tile[i].worker = p.tile[i].layer;
  accepted(&p);
  base_tape(&p); // one tile merges two heads, another two fours
  Tile *t = nth(&p, OP_MERGE, 0, 0);
  t->row0 = 0, t->row1 = 24;
  for (uint32_t i = 0; i < p.tile_count;)
    if (p.tile[i].op == OP_MERGE && p.tile[i].layer == 0 && p.tile[i].row0 && p.tile[i].row0 < 24)
      remove_tile(&p, i);
    else i++;
  nth(&p, OP_MERGE, 0, 1)->row0 = 24;
  accepted(&p);
  base_tape(&p); // rows dealt unevenly
  nth(&p, OP_QKV, 0, 0)->row1 += 3;
  nth(&p, OP_QKV, 0, 1)->row0 += 3;
  accepted(&p);
  for (int chunks = 1; chunks <= 7; chunks++) { // one K/V head
    Shape s = tiny_tape(9, 2, 1, 10, 2, 11);
    Target card_of = card((uint32_t)chunks, 0);
    Plan q;
    must_plan(&s, &card_of, &q);
    assert_int_equal(q.chunks, chunks);
    p = plan_copy(&q);
    plan_free(&q);
    accepted(&p);
  }
}
//< rules_of_tapes

/*: ## Unusual, and right :*/
//> unusual
static void unusual_plans_pass(void **state) {
  (void)state;
  Plan p;
  base_plan(&p, FFN_FUSED); // as made
  accepted(&p);
  base_plan(&p, FFN_SPLIT);
  accepted(&p);
  base_one_pass(&p, FFN_FUSED);
  accepted(&p);
  base_one_pass(&p, FFN_SPLIT);
  accepted(&p);

  base_one_pass(&p, FFN_SPLIT); // chunks of one head are served by one worker, the last chunk first
  for (uint32_t i = 0; i < p.tile_count; i++)
    if (p.tile[i].op == OP_ATTEND) {
      p.tile[i].worker = p.tile[i].row0;
      p.tile[i].part = 1 - p.tile[i].part;
    }
  accepted(&p);

  base_one_pass(&p, FFN_SPLIT); // chunk 1 after a barrier of its own
  insert_wave(&p, nth(&p, OP_ATTEND, 1, 0)->wave, BARRIER_ALWAYS);
  for (uint32_t i = 0; i < p.tile_count; i++)
    if (p.tile[i].op == OP_ATTEND && p.tile[i].layer == 1 && p.tile[i].part == 1) p.tile[i].wave++;
  accepted(&p);

  base_plan(&p, FFN_FUSED); // one worker does everything, the others only wait
  for (uint32_t i = 0; i < p.tile_count; i++) p.tile[i].worker = 2;
  accepted(&p);

  base_plan(&p, FFN_FUSED); // tiles of one row
  for (uint32_t i = 0; i < p.tile_count; i++)
    while (p.tile[i].op == OP_QKV && p.tile[i].row1 - p.tile[i].row0 > 1) {
      Tile t = p.tile[i];
      t.row0 = p.tile[i].row1 = t.row1 - 1;
      insert_tile(&p, i + 1, t);
    }
  accepted(&p);

  base_plan(&p, FFN_FUSED); // a tile that serves both heads of a chunk
  for (uint32_t i = 0; i < p.tile_count; i++)
    if ((p.tile[i].op == OP_SCORES || p.tile[i].op == OP_VALUES) && p.tile[i].row0 == 1)
      remove_tile(&p, i--);
  for (uint32_t i = 0; i < p.tile_count; i++)
    if (p.tile[i].op == OP_SCORES || p.tile[i].op == OP_VALUES) p.tile[i].row1 = 2;
  accepted(&p);

  base_plan(&p, FFN_FUSED); // parts and rows in different orders
  uint32_t part = nth(&p, OP_FFN, 0, 0)->part;
  nth(&p, OP_FFN, 0, 0)->part = nth(&p, OP_FFN, 0, 3)->part;
  nth(&p, OP_FFN, 0, 3)->part = part;
  accepted(&p);

  base_plan(&p, FFN_FUSED); // a wave cut in two, with a barrier more
  insert_wave(&p, 1, BARRIER_ALWAYS);
  nth(&p, OP_QKV, 0, 2)->wave = 2;
  accepted(&p);

  base_plan(&p, FFN_FUSED); // fewer partials than workers: the last tile takes the rows of two
  for (uint32_t l = 0; l < 2; l++) {
    uint32_t row1 = nth(&p, OP_FFN, l, 3)->row1;
    remove_tile(&p, (uint32_t)(nth(&p, OP_FFN, l, 3) - p.tile));
    nth(&p, OP_FFN, l, 2)->row1 = row1;
  }
  p.ffn_parts = 3;
  accepted(&p);
}

// The largest plans that anybody would make: the check must stay a walk, not a search.
static void a_wide_plan_is_one_walk(void **state) {
  (void)state;
  Shape s = tiny(2048, 32, 8, 8192, 16, 128256);
  s.head_dim = 64;
  Target t = machine(132, FFN_FUSED, ATTENTION_TWO_PASS);
  Plan p;
  must_plan(&s, &t, &p);
  assert_int_equal(p.chunks, 16);
  assert_int_equal(p.tile_count, 132 + 16 * (4 * 132 + 2 * 128) + 2 * 132);
  plan_free(&p);
  t.attention = ATTENTION_ONE_PASS;
  must_plan(&s, &t, &p);
  assert_int_equal(p.chunks, 16);
  assert_int_equal(p.tile_count, 132 + 16 * (4 * 132 + 128) + 2 * 132);
  plan_free(&p);
  t = card(132, 232448);
  must_plan(&s, &t, &p);
  assert_int_equal(p.chunks, 16);
  assert_int_equal(p.tile_count, 16 * (4 * 132 + 2 * 128) + 132);
  plan_free(&p);
}
//< unusual

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_message_names_the_tile),
      cmocka_unit_test(sizes),
      cmocka_unit_test(grid_and_order),
      cmocka_unit_test(bounds),
      cmocka_unit_test(barriers),
      cmocka_unit_test(forms),
      cmocka_unit_test(written_once),
      cmocka_unit_test(in_time),
      cmocka_unit_test(both_forms_are_checked),
      cmocka_unit_test(any_chunk_may_be_the_last),
      cmocka_unit_test(unusual_plans_pass),
      cmocka_unit_test(a_wide_plan_is_one_walk),
      cmocka_unit_test(header_of_a_tape),
      cmocka_unit_test(tapes_written_once),
      cmocka_unit_test(tapes_in_time),
      cmocka_unit_test(tapes_used_again),
      cmocka_unit_test(form_of_a_tape),
      cmocka_unit_test(unusual_tapes_pass),
      cmocka_unit_test(agree_on_mutants),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
