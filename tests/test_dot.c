/*: # The arithmetic, one instruction set at a time

A machine runs the best instruction set it has, so no test of the whole program reaches the others. Here
each one that this CPU can run is compared with double precision, at every length up to a few vectors and at
every alignment, with guards on both sides that would show a write out of bounds. :*/
#include "testing.h"

#include <math.h>

static const char *const isas[] = {"c", "avx2", "avx512"};
enum { ISAS = 3, MOST = 200 };

static float unit(uint64_t *seed) { // in (-1, 1)
  return (float)(int32_t)(uint32_t)test_random(seed) * 0x1p-31f;
}

static void store(uint8_t *w, DType t, int32_t i, float f) {
  uint16_t h = t == DT_BF16 ? f32_to_bf16(f) : f32_to_f16(f);
  if (t == DT_F32) memcpy(w + (size_t)i * 4, &f, 4);
  else memcpy(w + (size_t)i * 2, &h, 2);
}

static double load(const uint8_t *w, DType t, int32_t i) {
  float f;
  uint16_t h;
  if (t == DT_F32) {
    memcpy(&f, w + (size_t)i * 4, 4);
    return (double)f;
  }
  memcpy(&h, w + (size_t)i * 2, 2);
  return (double)(t == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h));
}

//> test_dot
static void dots(void **state) {
  (void)state;
  uint64_t seed = 1;
  for (int isa = 0; isa < ISAS; isa++) {
    const Kernels *k = kernels_find(isas[isa]);
    if (!k) continue;
    assert_string_equal(k->isa, isas[isa]);
    for (DType t = DT_F32; t < DT_COUNT; t++)
      for (int32_t n = 0; n <= MOST; n++) {
        size_t bytes = (size_t)n * dtype_size(t), shift = (size_t)n % 4; // any alignment
        uint8_t *block = malloc(bytes + shift + 1), *w = block + shift;  // ends where it ends
        float *x = malloc((size_t)n * sizeof *x + 1);
        assert_true(block && x);
        double want = 0, size = 0;
        for (int32_t i = 0; i < n; i++) {
          store(w, t, i, unit(&seed) * (i % 7 ? 1 : 100));
          x[i] = unit(&seed);
          want += load(w, t, i) * (double)x[i];
          size += fabs(load(w, t, i) * (double)x[i]);
        }
        float got = k->dot[t](w, x, n);
        if (!(fabs((double)got - want) <= 4e-7 * size))
          fail_msg("%s dot %s, %d elements: %.9g, exactly %.9g", k->isa, dtype_name(t), n,
                   (double)got, want);
        assert_true(got == k->dot[t](w, x, n));
        free(block);
        free(x);
      }
  }
}

static void axpys(void **state) {
  (void)state;
  uint64_t seed = 2;
  for (int isa = 0; isa < ISAS; isa++) {
    const Kernels *k = kernels_find(isas[isa]);
    if (!k) continue;
    for (DType t = DT_F32; t < DT_COUNT; t++)
      for (int32_t n = 0; n <= MOST; n++) {
        size_t shift = (size_t)n % 4;
        uint8_t *block = malloc((size_t)n * dtype_size(t) + shift + 1), *w = block + shift;
        float *y = malloc(((size_t)n + 2) * sizeof *y), a = unit(&seed);
        double *want = malloc(((size_t)n + 1) * sizeof *want);
        assert_true(block && y && want);
        y[0] = y[n + 1] = 42; // guards
        for (int32_t i = 0; i < n; i++) {
          store(w, t, i, unit(&seed));
          y[i + 1] = unit(&seed);
          want[i] = (double)y[i + 1] + (double)a * load(w, t, i);
        }
        k->axpy[t](a, w, y + 1, n);
        for (int32_t i = 0; i < n; i++)
          if (!(fabs((double)y[i + 1] - want[i]) <= 2e-7))
            fail_msg("%s axpy %s, element %d of %d: %.9g, exactly %.9g", k->isa, dtype_name(t), i,
                     n, (double)y[i + 1], want[i]);
        assert_true(y[0] == 42 && y[n + 1] == 42);
        free(block);
        free(y);
        free(want);
      }
  }
}

static void exponentials(void **state) {
  (void)state;
  uint64_t seed = 3;
  for (int isa = 0; isa < ISAS; isa++) {
    const Kernels *k = kernels_find(isas[isa]);
    if (!k) continue;
    for (int32_t n = 1; n <= MOST; n++) {
      float s[MOST + 2], before[MOST + 2], max = -INFINITY;
      double sum = 0;
      for (int32_t i = 0; i < n; i++) {
        s[i] = unit(&seed) * (n % 3 ? 5 : 80); // differences of up to 160: some are zero
        if (s[i] > max) max = s[i];
      }
      s[n] = 42;
      memcpy(before, s, sizeof s);
      float total = k->exps(s, max, n);
      for (int32_t i = 0; i < n; i++) {
        double want = exp((double)(before[i] - max)); // the difference in FP32, as it is there
        sum += want;
        // Below exp(-87) a zero is as good: the sum is at least 1.
        if (!(fabs((double)s[i] - want) <= 4e-7 * want + 2e-38))
          fail_msg("%s exp(%.9g): %.9g, exactly %.9g", k->isa, (double)(before[i] - max),
                   (double)s[i], want);
      }
      assert_true(fabs((double)total - sum) <= 1e-6 * sum);
      assert_true(s[n] == 42);
    }
  }
}

// NaN and infinity must come through, or a broken model would look like a good one.
static void not_numbers(void **state) {
  (void)state;
  for (int isa = 0; isa < ISAS; isa++) {
    const Kernels *k = kernels_find(isas[isa]);
    if (!k) continue;
    for (DType t = DT_F32; t < DT_COUNT; t++)
      for (int32_t n = 1; n < 70; n += 4)
        for (int32_t at = 0; at < n; at++) {
          uint8_t w[70 * 4] = {0};
          float x[70], y[70] = {0};
          for (int32_t i = 0; i < n; i++) x[i] = 1;
          store(w, t, at, NAN);
          assert_true(isnan(k->dot[t](w, x, n)));
          k->axpy[t](1, w, y, n);
          for (int32_t i = 0; i < n; i++) assert_true(isnan(y[i]) == (i == at));
          store(w, t, at, INFINITY);
          assert_true(isinf(k->dot[t](w, x, n)));
        }
  }
}

// Whatever byte changes, what `read` returns changes: it has fetched all of them.
static void reading(void **state) {
  (void)state;
  for (int isa = 0; isa < ISAS; isa++) {
    const Kernels *k = kernels_find(isas[isa]);
    if (!k) continue;
    static uint8_t block[64 * 40];
    uint64_t seed = 4;
    for (size_t i = 0; i < sizeof block; i++) block[i] = (uint8_t)test_random(&seed);
    uint64_t whole = k->read(block, sizeof block);
    assert_true(whole == k->read(block, sizeof block));
    for (size_t line = 0; line < sizeof block; line += 64) {
      bool seen = false;
      for (size_t i = line; i < line + 64; i++) {
        block[i] ^= 0x55;
        seen |= k->read(block, sizeof block) != whole;
        block[i] ^= 0x55;
      }
      assert_true(seen);
    }
  }
}

static void the_best_one(void **state) {
  (void)state;
  assert_non_null(kernels_find("c")); // there is always plain C
  assert_null(kernels_find("mmx"));
  assert_non_null(kernels_find(NULL));
  assert_ptr_equal(kernels_find(NULL), kernels_find(kernels_find(NULL)->isa));
}
//< test_dot

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(dots),        cmocka_unit_test(axpys),   cmocka_unit_test(exponentials),
      cmocka_unit_test(not_numbers), cmocka_unit_test(reading), cmocka_unit_test(the_best_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
