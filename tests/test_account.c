/*: # The account of tokens that we made up

With barriers and with hand-offs of data: the parts add up to the token, nothing is negative, and what says nothing about a wave (a worker without a tile, a chunk that is not in use)
counts for nothing. :*/
#include "testing.h"

#include <cjson/cJSON.h>

enum { WORKERS = 4, TOKEN = 1000000 }; // ns on the card's clock when it begins

static Plan plan_of(SyncKind sync) {
  Target t = {.name = "four", .kind = "cuda", .workers = WORKERS, .threads = 1};
  t.fused_context = 8; // positions a chunk
  t.ffn = FFN_SPLIT;
  t.sync = sync;
  Plan p;
  Error e;
  assert_ok(plan_make(shape_find("tiny-llama"), &t, &p, &e), &e);
  assert_int_equal(p.sync, sync);
  return p;
}

// A microsecond a wave, and a fifth of one to the next. Worker w is 0.1 us behind the one before at a wave's begin, 0.05 at its end.
static uint64_t *made_up(const Plan *p) {
  const size_t row = 2 * ((size_t)p->wave_count + 1);
  uint64_t *ns = calloc(p->workers, row * sizeof *ns);
  assert_non_null(ns);
  for (uint32_t w = 0; w < p->workers; w++) {
    uint64_t *at = ns + w * row;
    for (uint32_t i = 0; i < p->wave_count; i++) {
      at[2 * i] = TOKEN + 1200 * i + 100 * w;
      at[2 * i + 1] = TOKEN + 1200 * i + 850 + 50 * w;
    }
    at[row - 2] = TOKEN + 1200 * p->wave_count;
  }
  return ns;
}

typedef struct Row {
  double waves, bytes, us, ideal, gbs, barrier;
} Row;

static char *account(const Plan *p, uint32_t context, const uint64_t *ns) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *f = open_memstream(&text, &bytes);
  trace_account(p, context, 10, ns, f);
  fclose(f);
  assert_true(strncmp(text, "part\twaves\tbytes\tus\tideal_us\tgbs\tbarrier_us\n", 43) == 0);
  return text;
}

static Row row_of(const char *text, const char *part) {
  char key[40];
  snprintf(key, sizeof key, "\n%s\t", part);
  const char *line = strstr(text, key);
  if (!line) fail_msg("no %s in %s", part, text);
  Row r;
  assert_int_equal(sscanf(line + strlen(key), "%lf\t%lf\t%lf\t%lf\t%lf\t%lf", &r.waves, &r.bytes,
                          &r.us, &r.ideal, &r.gbs, &r.barrier),
                   6);
  return r;
}

static double sum_of(const char *text, const char *part) {
  char key[40];
  snprintf(key, sizeof key, "\n%s\t\t\t", part);
  const char *line = strstr(text, key);
  if (!line) fail_msg("no %s in %s", part, text);
  return strtod(line + strlen(key), NULL);
}

// Two sums over the same waves, by opcode and by loss; returns the token's time.
static double adds_up(const Plan *p, const char *text, const char *between) {
  double us = 0, ideal = 0, barrier = 0;
  for (int k = 0; k < OP_COUNT; k++) {
    bool there = false;
    for (uint32_t i = 0; i < p->tile_count; i++) there = there || p->tile[i].op == k;
    if (!there) continue;
    Row r = row_of(text, op_name(k));
    assert_true(r.us >= 0 && r.barrier >= 0 && r.ideal >= 0 && r.gbs >= 0);
    us += r.us;
    ideal += r.ideal;
    barrier += r.barrier;
  }
  assert_float_equal(us + barrier, sum_of(text, "token"), 0.1);
  assert_float_equal(ideal, sum_of(text, "ideal streaming"), 0.1);
  assert_float_equal(barrier, sum_of(text, between), 0.1);
  double parts = sum_of(text, "ideal streaming") + sum_of(text, "GEMV below it") +
                 sum_of(text, between) + sum_of(text, "attention") +
                 sum_of(text, "small operations");
  assert_float_equal(parts, sum_of(text, "token"), 0.1);
  return sum_of(text, "token");
}

static void waves_with_barriers(void **state) {
  (void)state;
  Plan p = plan_of(SYNC_BARRIER);
  uint64_t *ns = made_up(&p);
  char *text = account(&p, 1, ns);
  assert_null(strstr(text, "hand-offs"));
  assert_float_equal(adds_up(&p, text, "barriers"), 1.2 * p.wave_count, 0.02);
  Row down = row_of(text, "down"), embed = row_of(text, "embed");
  assert_float_equal(down.waves, 3, 0);
  assert_float_equal(down.us, 3 * 1.0, 0.02);
  assert_float_equal(down.barrier, 3 * 0.2, 0.02);
  assert_float_equal(embed.us, 1.0, 0.011);
  assert_float_equal(sum_of(text, "barriers"), 0.2 * p.wave_count, 0.02);
  free(text);
  free(ns);
  plan_free(&p);
}

// Zeros where a worker has no tile, as the card leaves them.
static void no_tile_no_moments(const Plan *p, uint64_t *ns) {
  const size_t row = 2 * ((size_t)p->wave_count + 1);
  for (uint32_t w = 0; w < p->workers; w++)
    for (uint32_t i = 0; i < p->wave_count; i++) {
      bool tile = false;
      for (uint32_t k = p->first[w]; k < p->first[w + 1]; k++) tile |= p->tile[k].wave == i;
      if (!tile) ns[w * row + 2 * i] = ns[w * row + 2 * i + 1] = 0;
    }
}

static void waves_with_hand_offs(void **state) {
  (void)state;
  Plan p = plan_of(SYNC_DATA);
  assert_int_equal(p.chunks, 2);
  const size_t row = 2 * ((size_t)p.wave_count + 1);
  uint64_t *ns = made_up(&p);
  for (uint32_t i = 0; i < p.tile_count; i++) {
    const Tile *t = &p.tile[i];
    uint64_t *at = ns + t->worker * row + 2 * t->wave;
    // The workers come to merge before attend has ended: an overlap, which is attend's.
    if (t->op == OP_MERGE) at[0] -= 500;
  }
  no_tile_no_moments(&p, ns);
  char *text = account(&p, 16, ns); // two chunks
  assert_null(strstr(text, "barriers"));
  assert_float_equal(adds_up(&p, text, "hand-offs"), 1.2 * p.wave_count, 0.02);
  Row attend = row_of(text, "attend"), merge = row_of(text, "merge"), up = row_of(text, "gate_up");
  assert_float_equal(attend.us, 3 * 1.0, 0.02);
  assert_float_equal(attend.barrier, 0, 0.02);
  assert_float_equal(merge.us, 3 * 1.2, 0.02); // since the end of attend
  assert_float_equal(merge.barrier, 3 * 0.2, 0.02);
  assert_float_equal(up.us, 3 * 1.0, 0.02);
  assert_float_equal(up.barrier, 3 * 0.2, 0.02);
  assert_float_equal(sum_of(text, "attention"), attend.us - attend.ideal + merge.us, 0.03);
  free(text);
  free(ns);
  plan_free(&p);
}

// With one chunk in use half of the attend tiles and all merge tiles are passed at once.
static void chunks_that_are_not_in_use(void **state) {
  (void)state;
  Plan p = plan_of(SYNC_DATA);
  const size_t row = 2 * ((size_t)p.wave_count + 1);
  uint64_t *ns = made_up(&p);
  for (uint32_t i = 0; i < p.tile_count; i++) {
    const Tile *t = &p.tile[i];
    uint64_t *at = ns + t->worker * row + 2 * t->wave;
    if (t->op == OP_MERGE || (t->op == OP_ATTEND && t->part)) at[0] = at[1] = at[-1];
  }
  no_tile_no_moments(&p, ns);
  char *text = account(&p, 8, ns);
  assert_float_equal(adds_up(&p, text, "hand-offs"), 1.2 * p.wave_count, 0.02);
  Row qkv = row_of(text, "qkv"), attend = row_of(text, "attend"), merge = row_of(text, "merge");
  assert_float_equal(merge.us, 0, 0.001);
  assert_float_equal(merge.barrier, 0, 0.001);
  assert_float_equal(merge.gbs, 0, 0);
  uint32_t first = WORKERS; // of those who have an attend tile with work
  uint32_t last = 0;
  for (uint32_t i = 0; i < p.tile_count; i++)
    if (p.tile[i].op == OP_ATTEND && p.tile[i].layer == 0 && p.tile[i].part == 0) {
      if (p.tile[i].worker < first) first = p.tile[i].worker;
      if (p.tile[i].worker > last) last = p.tile[i].worker;
    }
  assert_float_equal(qkv.barrier, 3 * (0.2 + 0.1 * first), 0.02);
  assert_float_equal(attend.us, 3 * (0.85 + 0.05 * last - 0.1 * first), 0.02);
  assert_float_equal(attend.us + attend.barrier, 3 * (2.4 - 0.1 * first), 0.02); // as far as wo
  free(text);
  free(ns);
  plan_free(&p);
}

static void a_viewer_sees_what_was(void **state) {
  (void)state;
  for (int kind = 0; kind < 2; kind++) {
    Plan p = plan_of(kind ? SYNC_DATA : SYNC_BARRIER);
    const size_t row = 2 * ((size_t)p.wave_count + 1);
    uint64_t *ns = made_up(&p);
    if (kind) no_tile_no_moments(&p, ns);
    ns[0] = ns[1] = 0; // the first of all is not there
    int slices = 0;
    for (uint32_t w = 0; w < p.workers; w++)
      for (uint32_t i = 0; i < p.wave_count; i++) slices += ns[w * row + 2 * i] != 0;
    assert_true(slices < (int)(p.workers * p.wave_count));
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    trace_chrome(&p, 16, ns, f);
    fclose(f);
    cJSON *json = cJSON_Parse(text);
    if (!json) fail_msg("no JSON: %s", text);
    const cJSON *events = cJSON_GetObjectItem(json, "traceEvents"), *x;
    assert_int_equal(cJSON_GetArraySize(events), slices);
    double least = 1e9, most = 0;
    cJSON_ArrayForEach(x, events) {
      double begin = cJSON_GetObjectItem(x, "ts")->valuedouble;
      double us = cJSON_GetObjectItem(x, "dur")->valuedouble;
      if (begin < least) least = begin;
      if (begin + us > most) most = begin + us;
      assert_true(us > 0.5 && us < 1.1);
    }
    assert_float_equal(least, 0, 0.0005);
    assert_float_equal(most, 1.2 * p.wave_count - 0.2 - 0.1,
                       0.0015); // worker 1's begin is 0.1 later
    cJSON_Delete(json);
    free(text);
    free(ns);
    plan_free(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(waves_with_barriers),
      cmocka_unit_test(waves_with_hand_offs),
      cmocka_unit_test(chunks_that_are_not_in_use),
      cmocka_unit_test(a_viewer_sees_what_was),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
