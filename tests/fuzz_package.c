/*: # Fuzzing the package loader

Hashes stop a fuzzer at the door: hardly any mutation would get past the header. So each input is
tried twice, as it is and with its hashes made right, so that what lies behind them is reached. What
is accepted must also be usable: the plan is priced and explained, the model is asked for, every
text and every weight is read. :*/
#include <stdlib.h>
#include <string.h>

#include "tiles.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

//> fuzz_package
static uint64_t number(const uint8_t *p, int bytes) {
  uint64_t v = 0;
  memcpy(&v, p, (size_t)bytes);
  return v;
}

// The layout is that of package.c's table. Also sets the program's version and the file's size.
static void repair(uint8_t *image, size_t size) {
  enum { HEADER = 64, ENTRY = 32, WEIGHTS = 6 };
  if (size < HEADER) return;
  memcpy(image, "TILES\0\3\0", 8);
  memset(image + 8, 0, 16);
  memcpy(image + 8, TILES_VERSION, sizeof TILES_VERSION);
  memcpy(image + 32, &(uint64_t){size}, 8);
  uint64_t count = number(image + 40, 4);
  if (count <= (size - HEADER) / ENTRY) {
    for (uint64_t i = 0; i < count; i++) {
      uint8_t *s = image + HEADER + ENTRY * i;
      uint64_t kind = number(s, 4), at = number(s + 8, 8), bytes = number(s + 16, 8);
      if (kind == WEIGHTS || at > size || bytes > size - at) continue;
      memcpy(s + 24, &(uint64_t){hash64(image + at, bytes, kind)}, 8);
    }
    memcpy(image + 48, &(uint64_t){hash64(image + HEADER, ENTRY * count, 0)}, 8);
  }
  memcpy(image + 56, &(uint64_t){hash64(image, 56, 0)}, 8);
}

static uint8_t sum(const void *data, size_t bytes) { // touches every byte
  uint8_t s = 0;
  for (size_t i = 0; i < bytes; i++) s = (uint8_t)(s + ((const uint8_t *)data)[i]);
  return s;
}

static void use(const Package *p) {
  static volatile uint8_t sink;
  static FILE *null;
  if (!null) null = fopen("/dev/null", "w");
  const Plan *plan = package_plan(p);
  Error e;
  if (plan_validate(plan, &e) != 0) abort();
  PlanCost cost;
  plan_cost(plan, 1000, &cost, NULL);
  if (null && plan->wave_count < 100) plan_explain(plan, 1000, null);
  Mapping text;
  if (package_text(p, "config.json", &text) == 1) sink = sum(text.data, text.size);
  (void)package_verify(p, &e);
  Model m;
  if (package_model(p, &m, &e) != 0) return;
  for (int32_t l = 0; l < m.shape.layers; l++) {
    const Matrix *x = &m.layer[l].down;
    sink = sum(x->data, (size_t)x->rows * matrix_stride(x));
    sink = sum(m.layer[l].ffn_norm, (size_t)m.shape.hidden * sizeof(float));
  }
  sink = sum(matrix_row(&m.lm_head, m.shape.vocab - 1), matrix_stride(&m.lm_head));
  (void)sink;
  model_close(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Package *p;
  Error e;
  if (package_parse("input", data, size, &p, &e) == 0) use(p);
  package_close(p);
  uint8_t *copy = malloc(size ? size : 1);
  if (!copy) return 0;
  if (size) memcpy(copy, data, size);
  repair(copy, size);
  if (package_parse("input", copy, size, &p, &e) == 0) use(p);
  package_close(p);
  free(copy);
  return 0;
}
//< fuzz_package
