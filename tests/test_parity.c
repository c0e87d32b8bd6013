/*: # Parity

Three independent answers to the same question. For the tiny families and for SmolLM2 the answer is
Transformers' (`tests/reference.py` wrote it down, in FP32). For shapes that Transformers never sees, all
the odd sizes and biases, it is a decoder of eighty lines in double precision, written here the plain way:
a whole layer at a time, no tiles. And for the schedule it is the program itself: whatever the number of
workers, the form of the FFN or the number of context chunks, the tokens are the same.

Every comparison is written so that a NaN fails it. :*/
#include "testing.h"

#include <cjson/cJSON.h>
#include <math.h>

static double relative_error(const float *ours, const double *reference, size_t n) {
  double square = 0, whole = 0;
  for (size_t i = 0; i < n; i++) {
    double d = (double)ours[i] - reference[i];
    square += d * d;
    whole += reference[i] * reference[i];
  }
  return sqrt(square / whole);
}

static int32_t largest(const float *x, int32_t n) { // the lowest id among ties
  int32_t best = 0;
  for (int32_t i = 1; i < n; i++)
    if (x[i] > x[best]) best = i;
  return best;
}

/*: ## Running a plan

A **form** is everything that the planner may choose and that must not change a token. :*/
//> parity_forms
typedef struct Form {
  uint32_t workers, threads;
  FfnKind ffn;
  uint32_t fused_context; // small: the context is cut into chunks almost from the start
  AttentionKind attention;
} Form;

#define TWO ATTENTION_TWO_PASS
#define ONE ATTENTION_ONE_PASS
static const Form forms[] = {
    {2, 2, FFN_FUSED, 384, TWO}, {3, 2, FFN_FUSED, 4, TWO},  {3, 2, FFN_FUSED, 4, ONE},
    {3, 3, FFN_SPLIT, 16, ONE},  {1, 1, FFN_FUSED, 4, ONE},  {1, 1, FFN_SPLIT, 384, TWO},
    {2, 2, FFN_SPLIT, 4, TWO},   {7, 2, FFN_FUSED, 16, ONE}, {7, 2, FFN_SPLIT, 4, TWO},
    {78, 2, FFN_FUSED, 4, ONE},  {78, 2, FFN_SPLIT, 4, TWO}, {78, 1, FFN_SPLIT, 384, ONE},
};
#ifdef __SANITIZE_THREAD__
enum { FORMS = 4 }; // slow there; they reach every wait that there is
#else
enum { FORMS = sizeof forms / sizeof *forms };
#endif

static void plan_for(const Shape *s, const Form *f, Plan *out) {
  Target t = {.name = "test",
              .kind = "cpu",
              .workers = f->workers,
              .threads = 1,
              .fused_context = f->fused_context,
              .ffn = f->ffn,
              .attention = f->attention};
  Error e;
  assert_ok(plan_make(s, &t, out, &e), &e);
}

// Feeds ids[0, n) and keeps all logits, [n][vocab]; free() them. next: [n] what cpu_step said, or NULL.
static float *run_plan(const Model *m, const Plan *p, uint32_t threads, const int32_t *ids,
                       uint32_t n, int32_t *next) {
  size_t vocab = (size_t)m->shape.vocab;
  float *all = malloc(n * vocab * sizeof *all);
  assert_non_null(all);
  Cpu *cpu = NULL;
  Error e;
  assert_ok(cpu_open(m, p, n, threads, &cpu, &e), &e);
  for (uint32_t i = 0; i < n; i++) {
    int32_t id = -1;
    assert_ok(cpu_step(cpu, ids[i], i, true, &id, &e), &e);
    const float *l = cpu_logits(cpu);
    memcpy(all + i * vocab, l, vocab * sizeof *l);
    assert_int_equal(id, largest(l, m->shape.vocab));
    if (next) next[i] = id;
  }
  cpu_close(cpu);
  return all;
}

static float *run_form(const Model *m, const Form *f, const int32_t *ids, uint32_t n) {
  Plan p;
  plan_for(&m->shape, f, &p);
  float *all = run_plan(m, &p, f->threads, ids, n, NULL);
  plan_free(&p);
  return all;
}
//< parity_forms

/*: ## Goldens :*/
//> parity_goldens
typedef struct Golden {
  const char *name;
  cJSON *json;
  float *logits; // [positions][columns]
  int32_t *ids;  // [prompt + greedy]
  int32_t vocab, prompt, greedy, positions, columns;
} Golden;

static const cJSON *array(const Golden *g, const char *key, int32_t *count) {
  const cJSON *a = cJSON_GetObjectItemCaseSensitive(g->json, key);
  assert_true(cJSON_IsArray(a));
  *count = cJSON_GetArraySize(a);
  return a;
}

static double number(const Golden *g, const char *key, int32_t i) {
  const cJSON *v = cJSON_GetObjectItemCaseSensitive(g->json, key);
  if (cJSON_IsArray(v)) v = cJSON_GetArrayItem(v, i);
  assert_true(cJSON_IsNumber(v));
  return v->valuedouble;
}

static const char *string(const Golden *g, const char *key) {
  const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(g->json, key));
  assert_non_null(s);
  return s;
}

static Golden golden_open(const char *name) {
  Golden g = {.name = name};
  char path[256];
  snprintf(path, sizeof path, "tests/golden/logits-%s.json", name);
  char *text = read_file(path, NULL);
  g.json = cJSON_Parse(text);
  free(text);
  assert_non_null(g.json);
  g.vocab = (int32_t)number(&g, "vocab", 0);
  const cJSON *id, *prompt = array(&g, "prompt", &g.prompt);
  const cJSON *greedy = array(&g, "greedy", &g.greedy);
  array(&g, "positions", &g.positions);
  g.columns = g.vocab;
  if (cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(g.json, "columns")))
    array(&g, "columns", &g.columns);
  g.ids = malloc((size_t)(g.prompt + g.greedy) * sizeof *g.ids);
  assert_non_null(g.ids);
  int32_t n = 0;
  cJSON_ArrayForEach(id, prompt) g.ids[n++] = id->valueint;
  cJSON_ArrayForEach(id, greedy) g.ids[n++] = id->valueint;
  snprintf(path, sizeof path, "tests/golden/logits-%s.f32", name);
  size_t bytes;
  g.logits = (float *)(void *)read_file(path, &bytes);
  assert_int_equal(bytes, (size_t)g.positions * (size_t)g.columns * sizeof(float));
  return g;
}

static void golden_close(Golden *g) {
  cJSON_Delete(g->json);
  free(g->logits);
  free(g->ids);
}

// The golden's error at its `i`th position, and the largest one in *worst.
static double golden_error(const Golden *g, const float *all, int32_t i, double *worst) {
  const float *ours = all + (size_t)number(g, "positions", i) * (size_t)g->vocab;
  const float *want = g->logits + (size_t)i * (size_t)g->columns;
  const cJSON *columns = cJSON_GetObjectItemCaseSensitive(g->json, "columns");
  float *x = malloc((size_t)g->columns * sizeof *x);
  double *y = malloc((size_t)g->columns * sizeof *y);
  assert_true(x && y);
  const cJSON *at = columns->child;
  for (int32_t c = 0; c < g->columns; c++, at = at ? at->next : NULL) {
    x[c] = ours[at ? at->valueint : c];
    y[c] = (double)want[c];
  }
  double error = relative_error(x, y, (size_t)g->columns);
  free(x);
  free(y);
  if (!(error <= *worst)) *worst = error;
  return error;
}

// `all` are our logits for the golden's prompt and its greedy ids. The prompt is followed by what the
// reference chose, so that one near-tie does not hide all that comes after it.
static void check_golden(const Golden *g, const float *all, bool stored_f32, const char *what,
                         bool report) {
  double worst = 0, own = 0;
  for (int32_t i = 0; i < g->positions; i++) {
    double error = golden_error(g, all, i, &worst);
    double limit = stored_f32 ? 2e-5 : number(g, "own_error", i);
    if (number(g, "own_error", i) > own) own = number(g, "own_error", i);
    if (!(error < limit))
      fail_msg("%s, %s: position %.0f: relative error %.3g, allowed %.3g", g->name, what,
               number(g, "positions", i), error, limit);
  }
  for (int32_t i = 0; i < g->greedy; i++) {
    const float *l = all + (size_t)(g->prompt + i - 1) * (size_t)g->vocab;
    int32_t ours = largest(l, g->vocab), theirs = g->ids[g->prompt + i];
    if (ours == theirs) continue;
    // A near-tie: both gaps must lie within what the measured error can do to one logit.
    double norm = 0;
    for (int32_t c = 0; c < g->vocab; c++) norm += (double)l[c] * (double)l[c];
    double reach = 2 * worst * sqrt(norm), gap = number(g, "gap", i);
    double our_gap = (double)l[ours] - (double)l[theirs];
    if (!(gap <= reach && our_gap <= reach))
      fail_msg("%s, %s: greedy id %d: %d, the reference says %d (gaps %.3g and %.3g, error %.3g)",
               g->name, what, i, ours, theirs, our_gap, gap, reach);
    if (report)
      print_message("# %s: a near-tie at greedy id %d: %d for %d, gaps %.3g and %.3g\n", g->name, i,
                    ours, theirs, our_gap, gap);
  }
  if (report)
    print_message("# %s: relative error %.2g, Transformers in the stored type %.2g\n", g->name,
                  worst, own);
}
//< parity_goldens

/*: ## The tiny families against Transformers :*/
//> parity_tiny
static void open_model(const char *path, Source *s, Model *m) {
  Error e;
  assert_ok(source_open(path, s, &e), &e);
  assert_ok(model_open(s, m, &e), &e);
}

static void close_model(Source *s, Model *m) {
  model_close(m);
  source_close(s);
}

static void tiny_family(void **state) {
  Golden g = golden_open(*state);
  char name[48];
  snprintf(name, sizeof name, "%s", string(&g, "shape"));
  char *dtype = strchr(name, ':');
  assert_non_null(dtype);
  *dtype++ = 0;
  assert_non_null(shape_find(name));
  Shape s = *shape_find(name);
  s.dtype = !strcmp(dtype, "f32") ? DT_F32 : !strcmp(dtype, "f16") ? DT_F16 : DT_BF16;

  char *folder = temp_folder();
  Error e;
  assert_ok(synth_write(&s, folder, (uint64_t)number(&g, "seed", 0), &e), &e);
  size_t bytes;
  char *weights = read_file(path_in(folder, "model.safetensors"), &bytes), hash[17];
  snprintf(hash, sizeof hash, "%016" PRIx64, hash64(weights, bytes, 0));
  free(weights);
  if (strcmp(hash, string(&g, "weights_hash")) != 0)
    fail_msg("%s: the seeded weights are not those of the golden: run tests/reference.py tiny",
             g.name);
  Source source;
  Model m;
  open_model(folder, &source, &m);
  remove_tree(folder);

  uint32_t n = (uint32_t)(g.prompt + g.greedy);
  bool split = false, fused = false, one = false, by_parts = false, by_rows = false;
  for (int i = 0; i < FORMS; i++) {
    const Form *f = &forms[i];
    Plan p;
    plan_for(&m.shape, f, &p);
    if (p.one_pass) one |= p.chunks > 1 && p.fused_context < n;
    else split |= p.fused_context < n, fused |= p.fused_context >= n;
    by_parts |= p.ffn_parts > 0, by_rows |= p.ffn_parts == 0;
    char what[80];
    snprintf(what, sizeof what, "%u workers, %s FFN, %s pass, %u chunks", f->workers,
             p.ffn_parts ? "fused" : "split", p.one_pass ? "one" : "two", p.chunks);
    float *all = run_plan(&m, &p, f->threads, g.ids, n, NULL);
    check_golden(&g, all, s.dtype == DT_F32, what, i == 0);
    if (i < 4) { // the same plan, the same bits: from run to run and for any number of threads
      float *again = run_plan(&m, &p, f->threads, g.ids, n, NULL);
      assert_memory_equal(all, again, n * (size_t)g.vocab * sizeof *all);
      free(again);
      again = run_plan(&m, &p, f->threads == 1 ? 2 : 1, g.ids, n, NULL);
      assert_memory_equal(all, again, n * (size_t)g.vocab * sizeof *all);
      free(again);
    }
    free(all);
    plan_free(&p);
  }
  assert_true(split && fused && one && by_parts &&
              by_rows); // the list of forms reaches all of them
  close_model(&source, &m);
  golden_close(&g);
}
//< parity_tiny

/*: ## SmolLM2 against Transformers

The real model, where it has been fetched; CI insists that it has been. :*/
//> parity_smollm2
#ifndef __SANITIZE_THREAD__ // minutes there, and the tiny families take the same paths
static void smollm2(void **state) {
  const char *path = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!file_exists(path)) {
    if (getenv("TILES_REQUIRE_MODEL")) fail_msg("%s is not there", path);
    skip();
  }
  Golden g = golden_open(*state);
  Capture c = capture_begin(); // the notice about widening
  Source source;
  Model m;
  open_model(path, &source, &m);
  free(capture_end(c));
  Form two = {2, 2, FFN_AUTO, 64, ATTENTION_AUTO};
  float *all = run_form(&m, &two, g.ids, (uint32_t)(g.prompt + g.greedy));
  check_golden(&g, all, false, "2 workers", true);
  free(all);
  close_model(&source, &m);
  golden_close(&g);
}
#endif
//< parity_smollm2

/*: ## The plain decoder

Double precision, whole rows, the formulas as the papers have them. It shares with the program only the
opened `Model` and the RoPE frequencies. :*/
//> plain_decoder
static double element(const Matrix *m, int32_t r, int32_t c) {
  const uint8_t *row = matrix_row(m, r);
  uint16_t h;
  float f;
  if (m->dtype == DT_F32) {
    memcpy(&f, row + (size_t)c * 4, 4);
    return (double)f;
  }
  memcpy(&h, row + (size_t)c * 2, 2);
  return (double)(m->dtype == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h));
}

static void project(double *y, const Matrix *m, const float *bias, const double *x) {
  for (int32_t r = 0; r < m->rows; r++) {
    y[r] = bias ? (double)bias[r] : 0;
    for (int32_t c = 0; c < m->columns; c++) y[r] += element(m, r, c) * x[c];
  }
}

static void norm(double *y, const double *x, const float *w, int32_t n, double eps) {
  double square = 0;
  for (int32_t i = 0; i < n; i++) square += x[i] * x[i];
  double scale = 1 / sqrt(square / n + eps);
  for (int32_t i = 0; i < n; i++) y[i] = x[i] * scale * (double)w[i];
}

static void rotate(double *head, int32_t n, const float *frequency, uint32_t position) {
  for (int32_t i = 0; i < n / 2; i++) {
    double angle = (double)frequency[i] * position, a = head[i], b = head[i + n / 2];
    head[i] = a * cos(angle) - b * sin(angle);
    head[i + n / 2] = b * cos(angle) + a * sin(angle);
  }
}

static double *zeros(size_t n) {
  double *x = calloc(n, sizeof *x);
  assert_non_null(x);
  return x;
}

// Logits of every position, [n][vocab]; free() them.
static double *plain_decode(const Model *m, const int32_t *ids, uint32_t n) {
  const Shape *s = &m->shape;
  const int32_t d = s->head_dim, group = s->heads / s->kv_heads;
  const size_t kv = (size_t)s->kv_heads * (size_t)d;
  double *x = zeros((size_t)s->hidden), *y = zeros((size_t)s->hidden),
         *t = zeros((size_t)s->hidden);
  double *q = zeros((size_t)s->heads * (size_t)d), *a = zeros((size_t)s->heads * (size_t)d);
  double *gate = zeros((size_t)s->inter), *up = zeros((size_t)s->inter), *score = zeros(n);
  double *k = zeros((size_t)s->layers * n * kv), *v = zeros((size_t)s->layers * n * kv);
  double *out = zeros(n * (size_t)s->vocab);
  float *frequency = malloc((size_t)d / 2 * sizeof *frequency);
  assert_non_null(frequency);
  rope_frequencies(s, frequency);

  for (uint32_t p = 0; p < n; p++) {
    for (int32_t i = 0; i < s->hidden; i++) x[i] = element(&m->embedding, ids[p], i);
    for (int32_t l = 0; l < s->layers; l++) {
      const Layer *w = &m->layer[l];
      double *ks = k + (size_t)l * n * kv, *vs = v + (size_t)l * n * kv; // [position][kv]
      norm(y, x, w->attn_norm, s->hidden, (double)s->rms_eps);
      project(q, &w->q, w->q_bias, y);
      project(ks + p * kv, &w->k, w->k_bias, y);
      project(vs + p * kv, &w->v, w->v_bias, y);
      for (int32_t h = 0; h < s->heads + s->kv_heads; h++) {
        bool is_q = h < s->heads;
        double *head = is_q ? q + h * d : ks + p * kv + (size_t)((h - s->heads) * d);
        const float *by = is_q ? w->q_norm : w->k_norm;
        if (by) norm(head, head, by, d, (double)s->rms_eps);
        rotate(head, d, frequency, p);
      }
      for (int32_t h = 0; h < s->heads; h++) {
        size_t at = (size_t)(h / group) * (size_t)d;
        double top = -INFINITY, sum = 0;
        for (uint32_t i = 0; i <= p; i++) {
          score[i] = 0;
          for (int32_t c = 0; c < d; c++) score[i] += q[h * d + c] * ks[i * kv + at + (size_t)c];
          score[i] /= sqrt(d);
          if (score[i] > top) top = score[i];
        }
        for (uint32_t i = 0; i <= p; i++) sum += score[i] = exp(score[i] - top);
        for (int32_t c = 0; c < d; c++) {
          a[h * d + c] = 0;
          for (uint32_t i = 0; i <= p; i++)
            a[h * d + c] += score[i] / sum * vs[i * kv + at + (size_t)c];
        }
      }
      project(t, &w->o, w->o_bias, a);
      for (int32_t i = 0; i < s->hidden; i++) x[i] += t[i];
      norm(y, x, w->ffn_norm, s->hidden, (double)s->rms_eps);
      project(gate, &w->gate, w->gate_bias, y);
      project(up, &w->up, w->up_bias, y);
      for (int32_t i = 0; i < s->inter; i++) gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
      project(t, &w->down, w->down_bias, gate);
      for (int32_t i = 0; i < s->hidden; i++) x[i] += t[i];
    }
    norm(y, x, m->final_norm, s->hidden, (double)s->rms_eps);
    project(out + p * (size_t)s->vocab, &m->lm_head, NULL, y);
  }
  free(x), free(y), free(t), free(q), free(a), free(gate), free(up), free(score), free(k), free(v);
  free(frequency);
  return out;
}
//< plain_decoder

/*: ## Odd shapes

Sizes that are multiples of nothing, one K/V head, more workers than rows, every bias there is. :*/
//> parity_odd
static const Shape odd[] = {
    {.name = "odd-72",
     .family = "llama",
     .vocab = 257,
     .hidden = 72,
     .inter = 176,
     .layers = 7,
     .heads = 3,
     .kv_heads = 1,
     .head_dim = 24,
     .tied = true},
    {.name = "odd-biases",
     .family = "llama",
     .vocab = 131,
     .hidden = 64,
     .inter = 176,
     .layers = 2,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 16,
     .qkv_bias = true,
     .o_bias = true,
     .mlp_bias = true},
    {.name = "odd-tiny",
     .family = "llama",
     .vocab = 3,
     .hidden = 2,
     .inter = 1,
     .layers = 1,
     .heads = 1,
     .kv_heads = 1,
     .head_dim = 2},
    {.name = "odd-qwen2",
     .family = "qwen2",
     .vocab = 99,
     .hidden = 42,
     .inter = 37,
     .layers = 3,
     .heads = 7,
     .kv_heads = 7,
     .head_dim = 6,
     .qkv_bias = true,
     .tied = true},
    {.name = "odd-qwen3",
     .family = "qwen3",
     .vocab = 259,
     .hidden = 40,
     .inter = 101,
     .layers = 2,
     .heads = 6,
     .kv_heads = 3,
     .head_dim = 34,
     .qk_norm = true},
    {.name = "odd-llama3",
     .family = "llama",
     .vocab = 65,
     .hidden = 33,
     .inter = 65,
     .layers = 2,
     .heads = 9,
     .kv_heads = 3,
     .head_dim = 18,
     .rope = {.kind = ROPE_LLAMA3, .theta = 500, .factor = 8, .low = 1, .high = 4, .original = 16}},
    {.name = "odd-linear",
     .family = "llama",
     .vocab = 65,
     .hidden = 130,
     .inter = 7,
     .layers = 2,
     .heads = 2,
     .kv_heads = 1,
     .head_dim = 64,
     .rope = {.kind = ROPE_LINEAR, .theta = 1000, .factor = 4}},
};

static void odd_shapes(void **state) {
  (void)state;
  static const uint32_t workers[] = {1, 3, 78, 131};
  enum { N = 24 };
  for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
    Shape s = odd[i];
    s.dtype = DT_F32, s.max_context = 512, s.rms_eps = 1e-5f;
    if (!(s.rope.theta > 0)) s.rope.theta = 10000;
    char *folder = temp_folder();
    Error e;
    assert_ok(synth_write(&s, folder, 7 + i, &e), &e);
    Source source;
    Model m;
    open_model(folder, &source, &m);
    remove_tree(folder);
    assert_int_equal(m.layer[0].o_bias != NULL, s.o_bias);
    assert_int_equal(m.layer[0].down_bias != NULL, s.mlp_bias);
    assert_int_equal(m.layer[0].q_bias != NULL, s.qkv_bias);
    assert_int_equal(m.layer[0].q_norm != NULL, s.qk_norm);

    int32_t ids[N];
    uint64_t seed = i;
    for (int p = 0; p < N; p++) ids[p] = (int32_t)(test_random(&seed) % (uint64_t)s.vocab);
    double *want = plain_decode(&m, ids, N);
    for (size_t w = 0; w < 4 * sizeof workers / sizeof *workers; w++) {
      Form f = {workers[w / 4], 2, w % 2 ? FFN_SPLIT : FFN_FUSED, w % 8 < 4 ? 4 : 384,
                w % 4 < 2 ? ATTENTION_TWO_PASS : ATTENTION_ONE_PASS};
      float *all = run_form(&m, &f, ids, N);
      for (size_t p = 0; p < N; p++) {
        double error =
            relative_error(all + p * (size_t)s.vocab, want + p * (size_t)s.vocab, (size_t)s.vocab);
        if (!(error < 2e-5))
          fail_msg("%s, %u workers, %s FFN, %s pass: position %zu: relative error %.3g", s.name,
                   f.workers, w % 2 ? "split" : "fused", w % 4 < 2 ? "two" : "one", p, error);
      }
      free(all);
    }
    free(want);
    close_model(&source, &m);
  }
}
//< parity_odd

int main(void) {
#define TINY(name)                                                                                 \
  {                                                                                                \
    "parity_" name, tiny_family, NULL, NULL, (char[]) { name }                                     \
  }
#define REAL(name)                                                                                 \
  {                                                                                                \
    "parity_" name, smollm2, NULL, NULL, (char[]) { name }                                         \
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(odd_shapes), TINY("tiny-llama-f32"), TINY("tiny-llama-bf16"),
      TINY("tiny-llama-f16"),       TINY("tiny-qwen2-f32"), TINY("tiny-qwen2-bf16"),
      TINY("tiny-qwen2-f16"),       TINY("tiny-qwen3-f32"), TINY("tiny-qwen3-bf16"),
      TINY("tiny-qwen3-f16"),
#ifndef __SANITIZE_THREAD__
      REAL("smollm2-text"),         REAL("smollm2-chat"),
#endif
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
