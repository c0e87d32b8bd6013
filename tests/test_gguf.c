/*: # Tests of GGUF

Good files are read in every variant that the format allows; bad ones are refused by one line that
names the file, the key or tensor, and both numbers. Golden values come from the `gguf` package. :*/
#include "gguf_writer.h"
#include "golden/gguf.h"

#include <stb/stb_ds.h>

// A file image lies in memory of exactly its size, so that a read behind it is seen by the sanitizer.
static int parse(const GgufWriter *w, Gguf **g, uint8_t **image, Error *e) {
  size_t size;
  *image = gw_image(w, &size);
  if (!(*image = realloc(*image, size))) give_up("realloc");
  return gguf_parse("x.gguf", *image, size, false, g, e);
}

// Writes, parses, expects the error, frees.
#define assert_refused(w, needle)                                                                  \
  do {                                                                                             \
    Gguf *g_ = NULL;                                                                               \
    uint8_t *image_;                                                                               \
    Error e_ = {0};                                                                                \
    assert_int_equal(parse((w), &g_, &image_, &e_), -1);                                           \
    assert_null(g_);                                                                               \
    assert_error(&e_, EXIT_INPUT, "x.gguf: ");                                                     \
    assert_error(&e_, EXIT_INPUT, (needle));                                                       \
    free(image_);                                                                                  \
    gw_end(w);                                                                                     \
  } while (0)

static const int64_t ONE = 1;

/*: ## What the package wrote :*/
static void reads_what_the_package_wrote(void **state) {
  (void)state;
  Error e;
  Gguf *g;
  assert_ok(gguf_parse("x.gguf", golden_file, sizeof golden_file, false, &g, &e), &e);
  const struct {
    const char *key;
    int64_t value;
  } integers[] = {{"a.u8", 200},        {"a.i8", -100},        {"a.u16", 60000},
                  {"a.i16", -30000},    {"a.u32", 4000000000}, {"a.i32", -2000000000},
                  {"a.i64", INT64_MIN}, {"a.yes", 1},          {"a.no", 0}};
  for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
    int64_t n = 12345;
    assert_true(gguf_int(g, integers[i].key, &n));
    assert_true(n == integers[i].value);
  }
  int64_t n = 77;
  assert_false(gguf_int(g, "a.u64", &n)); // 2^64 - 1
  assert_false(gguf_int(g, "a.f32", &n));
  assert_false(gguf_int(g, "general.name", &n));
  assert_false(gguf_int(g, "a.numbers", &n));
  assert_false(gguf_int(g, "absent", &n));
  assert_true(n == 77); // untouched

  double d = 7;
  assert_true(gguf_float(g, "a.f32", &d) && d == (double)0.1f);
  assert_true(gguf_float(g, "a.f64", &d) && d == 0.1);
  assert_true(gguf_float(g, "a.i8", &d) && d == -100);
  assert_true(gguf_float(g, "a.u64", &d) && d == 0x1p64);
  assert_false(gguf_float(g, "general.name", &d));
  assert_false(gguf_float(g, "a.yes", &d));
  assert_false(gguf_float(g, "absent", &d));
  assert_true(d == 0x1p64);

  const char *p = NULL;
  size_t bytes = 0;
  assert_true(gguf_string(g, "general.name", &p, &bytes));
  assert_int_equal(bytes, strlen("From the package"));
  assert_memory_equal(p, "From the package", bytes);
  assert_false(gguf_string(g, "a.u8", &p, &bytes));
  assert_false(gguf_string(g, "absent", &p, &bytes));

  GgufStrings it;
  const char *const words[] = {"", "one", "zwölf"};
  assert_true(gguf_strings(g, "a.words", &it));
  assert_int_equal(it.left, 3);
  for (int i = 0; i < 3; i++) {
    assert_true(gguf_next(&it, &p, &bytes));
    assert_int_equal(bytes, strlen(words[i]));
    assert_memory_equal(p, words[i], bytes);
  }
  assert_false(gguf_next(&it, &p, &bytes));
  assert_false(gguf_strings(g, "a.numbers", &it));
  assert_false(gguf_strings(g, "general.name", &it));
  assert_false(gguf_strings(g, "absent", &it));
  const GgufValue *v = gguf_get(g, "a.numbers");
  assert_non_null(v);
  assert_int_equal(v->type, GGUF_ARRAY);
  assert_int_equal(v->element, GGUF_I32);
  assert_int_equal(v->count, 3);
  const int32_t numbers[] = {3, -1, 4};
  assert_memory_equal(v->p, numbers, sizeof numbers);

  const Tensor *x = tensor_find(gguf_tensors(g), "x"), *y = tensor_find(gguf_tensors(g), "y");
  assert_non_null(x);
  assert_non_null(y);
  assert_null(tensor_find(gguf_tensors(g), "z"));
  assert_int_equal(x->rank, 2);
  assert_int_equal(x->dim[0], 2); // two rows of three
  assert_int_equal(x->dim[1], 3);
  assert_int_equal(x->dtype, DT_F32);
  assert_string_equal(x->type, "F32");
  assert_string_equal(x->file, "x.gguf");
  const float ramp[] = {0, 1, 2, 3, 4, 5};
  assert_int_equal(x->bytes, sizeof ramp);
  assert_memory_equal(x->data, ramp, sizeof ramp);
  const uint16_t halves[] = {0x3c00, 0x4000, 0x4200, 0x4400, 0x4500};
  assert_int_equal(y->dtype, DT_F16);
  assert_int_equal(y->bytes, sizeof halves);
  assert_memory_equal(y->data, halves, sizeof halves);
  gguf_close(g);
  gguf_close(NULL);
}

/*: ## Variants :*/
static void versions(void **state) {
  (void)state;
  for (uint32_t version = 2; version <= 3; version++) {
    GgufWriter w = gw_begin(version, 0);
    gw_tensor(&w, "x", 0, 1, &ONE, "abcd", 4);
    Gguf *g;
    uint8_t *image;
    Error e;
    assert_ok(parse(&w, &g, &image, &e), &e);
    assert_memory_equal(tensor_find(gguf_tensors(g), "x")->data, "abcd", 4);
    gguf_close(g);
    free(image);
    gw_end(&w);
  }
  GgufWriter w = gw_begin(1, 0);
  assert_refused(&w, "GGUF version 1 not supported (2 and 3 are)");
  w = gw_begin(0, 0);
  assert_refused(&w, "GGUF version 0 not supported");
  w = gw_begin(4, 0);
  assert_refused(&w, "GGUF version 4 not supported");
  w = gw_begin(0x03000000, 0);
  assert_refused(&w, "big-endian");
  w = gw_begin(0x02000000, 0);
  assert_refused(&w, "big-endian");
}

// Every alignment, every position of the file in memory, and header lengths of every remainder: F32 and
// BF16 data then lie at odd addresses, and a rope_freqs must still be readable as floats.
static void alignments(void **state) {
  (void)state;
  Error e;
  for (uint32_t alignment = 0; alignment <= 4096; alignment = alignment ? 2 * alignment : 1)
    for (size_t pad = 0; pad < 5; pad++) {
      GgufWriter w = gw_begin(3, alignment);
      gw_string(&w, "pad", &"xxxx"[4 - pad]);
      gw_tensor(&w, "a", 30, 1, &ONE, "AB", 2);
      gw_tensor(&w, "rope_freqs.weight", 0, 1, &ONE, "\0\0\x80\x3f", 4);
      gw_tensor(&w, "c", 24, 1, &ONE, "C", 1);
      gw_tensor(&w, "d", 0, 1, &ONE, "DEFG", 4);
      size_t size;
      uint8_t *image = gw_image(&w, &size), *moved = malloc(size + 1);
      if (!moved) give_up("malloc");
      memcpy(moved + 1, image, size);
      Gguf *g;
      assert_ok(gguf_parse("x.gguf", moved + 1, size, false, &g, &e), &e);
      const TensorSet *set = gguf_tensors(g);
      assert_memory_equal(tensor_find(set, "a")->data, "AB", 2);
      assert_memory_equal(tensor_find(set, "c")->data, "C", 1);
      assert_memory_equal(tensor_find(set, "d")->data, "DEFG", 4);
      gguf_close(g);
      free(moved);
      free(image);
      gw_end(&w);
    }
  const uint32_t bad[] = {3, 48, 33, UINT32_MAX, 0x80000000};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    GgufWriter w = gw_begin(3, 0);
    gw_u32(&w, "general.alignment", bad[i]);
    assert_refused(&w, "key general.alignment: ");
  }
  GgufWriter w = gw_begin(3, 0);
  gw_u32(&w, "general.alignment", 0);
  assert_refused(&w, "key general.alignment: 0 is not a power of two");
  w = gw_begin(3, 0);
  gw_i32(&w, "general.alignment", -32);
  assert_refused(&w, "key general.alignment: -32 is not a power of two");
  w = gw_begin(3, 0);
  gw_string(&w, "general.alignment", "32");
  assert_refused(&w, "key general.alignment: not an integer");
}

static void values_of_every_kind(void **state) {
  (void)state;
  // The shortest file, without a tensor or key, and one whose tensors' order is not the data's.
  Error e;
  Gguf *g;
  uint8_t *image;
  GgufWriter w = gw_begin(3, 0);
  assert_ok(parse(&w, &g, &image, &e), &e);
  assert_null(gguf_get(g, ""));
  assert_null(tensor_find(gguf_tensors(g), ""));
  gguf_close(g);
  free(image);
  gw_info(&w, "late", 0, 1, &ONE, 64);
  gw_info(&w, "early", 0, 1, &ONE, 0);
  gw_put(&w.data, "early", 5);
  gw_pad(&w.data, 64); // with a hole that no tensor claims
  gw_put(&w.data, "late", 4);
  const char *const none[1] = {NULL};
  gw_strings(&w, "no strings", none, 0);
  gw_array(&w, "no bools", GGUF_BOOL, 0, NULL, 0);
  gw_array(&w, "bools", GGUF_BOOL, 3, "\0\1\1", 3);
  gw_put_string(gw_key(&w, "zeros", GGUF_STRING), "a\0b", 3);
  gw_array(&w, "nested", GGUF_ARRAY, 2, NULL, 0); // [["x"], []]
  gw_put_u32(&w.keys, GGUF_STRING);
  gw_put_u64(&w.keys, 1);
  gw_put_string(&w.keys, "x", 1);
  gw_put_u32(&w.keys, GGUF_U8);
  gw_put_u64(&w.keys, 0);
  gw_u32(&w, "after", 1);
  assert_ok(parse(&w, &g, &image, &e), &e);
  assert_memory_equal(tensor_find(gguf_tensors(g), "early")->data, "early", 4);
  assert_memory_equal(tensor_find(gguf_tensors(g), "late")->data, "late", 4);
  const char *p;
  size_t bytes;
  assert_true(gguf_string(g, "zeros", &p, &bytes));
  assert_int_equal(bytes, 3);
  assert_memory_equal(p, "a\0b", 3);
  GgufStrings it;
  assert_true(gguf_strings(g, "no strings", &it));
  assert_false(gguf_next(&it, &p, &bytes));
  assert_int_equal(gguf_get(g, "bools")->count, 3);
  assert_int_equal(gguf_get(g, "nested")->element, GGUF_ARRAY);
  assert_non_null(gguf_get(g, "after"));
  gguf_close(g);
  free(image);
  gw_end(&w);
}

static void dimensions(void **state) {
  (void)state;
  Error e;
  Gguf *g;
  uint8_t *image, data[2 * 3 * 4 * 5 * 2] = {0};
  const int64_t dim[5] = {2, 3, 4, 5, 1};
  for (int rank = 0; rank <= 4; rank++) {
    size_t bytes = 2;
    for (int i = 0; i < rank; i++) bytes *= (size_t)dim[i];
    GgufWriter w = gw_begin(3, 0);
    gw_tensor(&w, "x", 1, rank, dim, data, bytes);
    assert_ok(parse(&w, &g, &image, &e), &e);
    const Tensor *t = tensor_find(gguf_tensors(g), "x");
    assert_int_equal(t->rank, rank);
    assert_int_equal(t->bytes, bytes);
    for (int i = 0; i < rank; i++) assert_int_equal(t->dim[i], dim[i]);
    gguf_close(g);
    free(image);
    gw_end(&w);
  }
  GgufWriter w = gw_begin(3, 0);
  gw_tensor(&w, "x", 1, 5, dim, data, 240);
  assert_refused(&w, "tensor x: 5 dimensions, at most 4");
  const int64_t wrong[][2] = {{3, 0},
                              {0, 3},
                              {-1, 1},
                              {INT64_MAX, 2},
                              {INT64_C(1) << 32, INT64_C(1) << 32},
                              {INT64_C(1) << 24, (INT64_C(1) << 24) + 1}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    w = gw_begin(3, 0);
    gw_tensor(&w, "x", 1, 2, wrong[i], data, 8);
    assert_refused(&w, "tensor x: impossible dimension ");
  }
  const int64_t huge[2] = {INT64_C(1) << 24, INT64_C(1)
                                                 << 24}; // 2^48 elements: possible, not there
  w = gw_begin(3, 0);
  gw_tensor(&w, "x", 0, 2, huge, data, 8);
  assert_refused(&w, "tensor x: declares 1125899906842720 bytes, file has 104");
}

static void types_as_the_package_knows_them(void **state) {
  (void)state;
  static uint8_t data[3 * 2 * 292];
  for (size_t i = 0; i < sizeof golden_types / sizeof *golden_types; i++) {
    uint32_t elements = golden_types[i].elements, bytes = golden_types[i].bytes;
    int64_t dim[2] = {3, 2 * (int64_t)elements};
    Error e;
    Gguf *g;
    uint8_t *image;
    GgufWriter w = gw_begin(3, 0);
    gw_tensor(&w, "x", golden_types[i].id, 2, dim, data, 6 * bytes);
    gw_tensor(&w, "y", golden_types[i].id, 2, dim, data, 6 * bytes);
    assert_ok(parse(&w, &g, &image, &e), &e);
    const Tensor *t = tensor_find(gguf_tensors(g), "x");
    assert_int_equal(t->bytes, 6 * bytes);
    assert_string_equal(t->type, golden_types[i].name);
    bool quant = !strcmp(t->type, "Q8_0") || !strcmp(t->type, "Q4_0") || !strcmp(t->type, "Q4_1");
    static uint16_t out[6 * 256];
    if (t->dtype == DT_NONE) {
      int rc = gguf_widen(t, out, &e);
      assert_int_equal(rc, quant ? 0 : -1);
      if (!quant) {
        char line[128];
        snprintf(line, sizeof line,
                 "tensor x: type %s not supported (F32, F16, BF16, Q8_0, Q4_0, Q4_1 are)", t->type);
        assert_error(&e, EXIT_INPUT, line);
      }
    } else {
      assert_false(quant);
      assert_string_equal(dtype_name(t->dtype), t->type);
    }
    gguf_close(g);
    free(image);
    gw_end(&w);

    if (elements == 1) continue;
    dim[1] = 2 * (int64_t)elements - 1;
    w = gw_begin(3, 0);
    gw_tensor(&w, "x", golden_types[i].id, 2, dim, data, 6 * bytes);
    char line[128];
    snprintf(line, sizeof line, "tensor x: rows of %lld elements, %s needs a multiple of %u",
             (long long)dim[1], golden_types[i].name, elements);
    assert_refused(&w, line);
  }
  const uint32_t unknown[] = {4, 5, 42, 255, UINT32_MAX};
  for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
    GgufWriter w = gw_begin(3, 0);
    gw_tensor(&w, "x", unknown[i], 1, &ONE, data, 4);
    char line[64];
    snprintf(line, sizeof line, "tensor x: unknown type %u", unknown[i]);
    assert_refused(&w, line);
  }
}

/*: ## Refused :*/
static void not_gguf(void **state) {
  (void)state;
  Error e;
  Gguf *g;
  assert_int_equal(gguf_parse("x.gguf", NULL, 0, false, &g, &e), -1);
  assert_error(&e, EXIT_INPUT, "x.gguf: an empty file");
  const char *const wrong[] = {"G", "GGU", "GGML....", "ggufxxxxxxxxxxxxxxxxxxxxxxxx", "FUGG\3"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    const uint8_t *p = (const uint8_t *)wrong[i];
    assert_int_equal(gguf_parse("x.gguf", p, strlen(wrong[i]), false, &g, &e), -1);
    assert_error(&e, EXIT_INPUT, "x.gguf: not a GGUF file");
  }
}

static void counts_that_cannot_be(void **state) {
  (void)state;
  const uint64_t many[] = {1, 2, 1000, UINT64_C(1) << 31, UINT64_C(1) << 60, INT64_MAX, UINT64_MAX};
  for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
    char line[96];
    GgufWriter w = gw_begin(3, 0);
    w.tensor_count = many[i];
    snprintf(line, sizeof line, "declares %llu tensors", (unsigned long long)many[i]);
    assert_refused(&w, line);
    w = gw_begin(3, 0);
    w.key_count = many[i];
    snprintf(line, sizeof line, "declares %llu keys", (unsigned long long)many[i]);
    assert_refused(&w, line);
    const uint32_t element[] = {GGUF_U8, GGUF_BOOL, GGUF_F64, GGUF_STRING, GGUF_ARRAY};
    for (size_t k = 0; k < sizeof element / sizeof *element; k++) {
      w = gw_begin(3, 0);
      gw_array(&w, "long", element[k], many[i], NULL, 0);
      w.alignment = 1; // no padding that could pass for elements
      snprintf(line, sizeof line, "key long: declares %llu elements, only 0 bytes are left",
               (unsigned long long)many[i]);
      assert_refused(&w, line);
    }
    w = gw_begin(3, 0);
    gw_put_u64(gw_key(&w, "long", GGUF_STRING), many[i]);
    w.alignment = 1;
    snprintf(line, sizeof line, "key long: declares %llu bytes at 48, file has 48",
             (unsigned long long)many[i]);
    assert_refused(&w, line);
  }
  // A length that would wrap around, as key's name and inside an array.
  GgufWriter w = gw_begin(3, 0);
  w.key_count = 1;
  gw_put_u64(&w.keys, UINT64_MAX);
  gw_put(&w.keys, "xxxxxxxx", 8);
  assert_refused(&w, "key 1 of 1: a name of 18446744073709551615 bytes, at most 65535");
  w = gw_begin(3, 0);
  gw_array(&w, "words", GGUF_STRING, 2, NULL, 0);
  gw_put_string(&w.keys, "fine", 4);
  gw_put_u64(&w.keys, UINT64_MAX - 7);
  assert_refused(&w, "key words: declares 18446744073709551608 bytes");
  w = gw_begin(3, 0);
  w.tensor_count = 1;
  gw_put_u64(&w.infos, 65);
  for (int i = 0; i < 10; i++) gw_put(&w.infos, "0123456789", 10);
  assert_refused(&w, "tensor 1 of 1: a name of 65 bytes, at most 64");
}

static void names_and_values_that_cannot_be(void **state) {
  (void)state;
  GgufWriter w = gw_begin(3, 0);
  gw_u32(&w, "twice", 1);
  gw_u32(&w, "once", 1);
  gw_string(&w, "twice", "other type");
  assert_refused(&w, "key twice: there twice");
  w = gw_begin(3, 0);
  gw_tensor(&w, "twice", 0, 1, &ONE, "abcd", 4);
  gw_tensor(&w, "twice", 0, 1, &ONE, "abcd", 4);
  assert_refused(&w, "tensor twice: there twice");
  w = gw_begin(3, 0);
  w.key_count = 1;
  gw_put_string(&w.keys, "a\0b", 3);
  gw_put(&w.keys, "\4\0\0\0\0\0\0\0", 8);
  assert_refused(&w, "a zero byte in its name");
  w = gw_begin(3, 0);
  gw_u32(&w, "bad\nname\x1b", 1);
  gw_key(&w, "bad\nname\x1b", 13);
  assert_refused(&w, "key bad?name?: there twice");
  for (uint32_t type = 13; type; type = type == 13 ? 1000 : type == 1000 ? UINT32_MAX : 0) {
    char line[64];
    snprintf(line, sizeof line, "key k: unknown value type %u", type);
    w = gw_begin(3, 0);
    gw_put_u64(gw_key(&w, "k", type), 0);
    assert_refused(&w, line);
    w = gw_begin(3, 0);
    gw_array(&w, "k", type, 1, "xxxxxxxx", 8);
    assert_refused(&w, line);
  }
  w = gw_begin(3, 0);
  gw_put(gw_key(&w, "flag", GGUF_BOOL), "\2", 1);
  assert_refused(&w, "key flag: a bool of 2, 0 or 1 are allowed");
  w = gw_begin(3, 0);
  gw_array(&w, "flags", GGUF_BOOL, 3, "\0\1\xff", 3);
  assert_refused(&w, "key flags: a bool of 255");
  for (int depth = 1; depth <= 200; depth++) {
    w = gw_begin(3, 0);
    gw_key(&w, "deep", GGUF_ARRAY);
    for (int i = 1; i < depth; i++) {
      gw_put_u32(&w.keys, GGUF_ARRAY);
      gw_put_u64(&w.keys, 1);
    }
    gw_put_u32(&w.keys, GGUF_U8);
    gw_put_u64(&w.keys, 0);
    if (depth > 4) {
      assert_refused(&w, "key deep: arrays nested deeper than 4");
      continue;
    }
    Gguf *g;
    uint8_t *image;
    Error e;
    assert_ok(parse(&w, &g, &image, &e), &e);
    gguf_close(g);
    free(image);
    gw_end(&w);
  }
}

static void places_that_cannot_be(void **state) {
  (void)state;
  const int64_t nine = 9;
  GgufWriter w = gw_begin(3, 0);
  gw_info(&w, "x", 0, 1, &ONE, 4);
  gw_put(&w.data, "0123456789abcdef", 16);
  assert_refused(&w, "tensor x: offset 4 is not a multiple of 32");
  w = gw_begin(3, 64);
  gw_info(&w, "x", 0, 1, &ONE, 32);
  assert_refused(&w, "tensor x: offset 32 is not a multiple of 64");
  w = gw_begin(3, 0);
  gw_info(&w, "x", 0, 1, &ONE, UINT64_MAX - 31);
  assert_refused(&w, "tensor x: impossible offset 18446744073709551584");
  // Two tensors in one place, the second inside the first, and the other way round in the list.
  for (int order = 0; order < 2; order++)
    for (uint64_t second = 0; second <= 32; second += 32) {
      w = gw_begin(3, 0);
      uint64_t at[2] = {0, second};
      gw_info(&w, "a", 0, 1, &nine, at[order]);
      gw_info(&w, "b", 0, 1, &nine, at[!order]);
      for (int i = 0; i < 10; i++) gw_put(&w.data, "0123456789abcdef", 16);
      const char *line = order && second
                             ? "tensor a: begins at 32, but tensor b has 36 bytes from 0"
                         : second ? "tensor b: begins at 32, but tensor a has 36 bytes from 0"
                                  : "tensor b: begins at 0, but tensor a has 36 bytes from 0";
      assert_refused(&w, line);
    }
}

// Cut anywhere, the file is refused; in the data, with the last tensor's name and both numbers.
static void every_prefix(void **state) {
  (void)state;
  GgufWriter w = gw_begin(3, 0);
  const char *const words[] = {"a", "", "bcd"};
  gw_strings(&w, "words", words, 3);
  gw_bool(&w, "flag", true);
  gw_u64(&w, "long", 1);
  gw_tensor(&w, "first", 0, 1, &ONE, "abcd", 4);
  gw_tensor(&w, "second", 30, 1, &ONE, "ab", 2);
  size_t size, header;
  uint8_t *image = gw_image(&w, &size);
  Gguf *g;
  Error e = {0};
  assert_ok(gguf_parse("x.gguf", image, size, false, &g, &e), &e);
  assert_ptr_equal(gguf_header(g, &header), image);
  gguf_close(g);
  for (size_t n = 0; n < size; n++) {
    uint8_t *cut = malloc(n + !n);
    if (!cut) give_up("malloc");
    memcpy(cut, image, n);
    assert_int_equal(gguf_parse("x.gguf", cut, n, false, &g, &e), -1);
    assert_null(g);
    assert_error(&e, EXIT_INPUT, "x.gguf: ");
    char line[96];
    snprintf(line, sizeof line, "tensor second: declares %zu bytes, file has %zu", size, n);
    if (n >= header) assert_error(&e, EXIT_INPUT, line);
    else if (n >= 24) assert_non_null(strstr(e.text, "declares"));
    assert_int_equal(gguf_parse("x.gguf", cut, n, true, &g, &e), n < header ? -1 : 0);
    gguf_close(g);
    free(cut);
  }
  free(image);
  gw_end(&w);
}

static void short_files_on_disk(void **state) {
  (void)state;
  char *folder = temp_folder();
  const char *path = path_in(folder, "x.gguf");
  Source s;
  Error e = {0};
  write_text(path, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 98362432\n");
  assert_int_equal(source_open(path, &s, &e), -1);
  assert_error(&e, EXIT_INPUT, "a Git LFS pointer, not the file; run git lfs pull");
  write_text(path, "");
  assert_int_equal(source_open(path, &s, &e), -1);
  assert_error(&e, EXIT_INPUT, path);
  GgufWriter w = gw_begin(3, 0);
  const int64_t n = 2048;
  static const uint8_t zeros[8192];
  gw_tensor(&w, "x", 0, 1, &n, zeros, sizeof zeros);
  size_t size;
  uint8_t *image = gw_image(&w, &size);
  write_file(path, image, size - 4096);
  assert_int_equal(source_open(path, &s, &e), -1);
  assert_error(&e, EXIT_INPUT, "x.gguf: tensor x: declares 8256 bytes, file has 4160");
  write_file(path, image, size);
  assert_ok(source_open(path, &s, &e), &e);
  assert_int_equal(s.kind, SOURCE_GGUF);
  source_close(&s);
  free(image);
  gw_end(&w);
  remove_tree(folder);
}

// A tensor behind 2^31 and 2^32: the file has a hole where nobody looks.
static void far_tensors(void **state) {
  (void)state;
  char *folder = temp_folder();
  const char *path = path_in(folder, "far.gguf");
  const uint64_t place[] = {UINT64_C(3) << 30, UINT64_C(5) << 30};
  GgufWriter w = gw_begin(3, 0);
  gw_info(&w, "three", 0, 1, &ONE, place[0]);
  gw_info(&w, "five", 0, 1, &ONE, place[1]);
  size_t size;
  uint8_t *image = gw_image(&w, &size);
  FILE *f = fopen(path, "wb");
  if (!f || fwrite(image, 1, size, f) != size) give_up(path);
  for (int i = 0; i < 2; i++)
    if (fseeko(f, (off_t)(size + place[i]), SEEK_SET) != 0 || fwrite("abcd", 1, 4, f) != 4)
      give_up(path);
  if (fclose(f) != 0) give_up(path);
  Mapping m;
  Gguf *g;
  Error e;
  assert_ok(map_file(path, &m, &e), &e);
  assert_ok(gguf_parse(path, m.data, m.size, false, &g, &e), &e);
  assert_memory_equal(tensor_find(gguf_tensors(g), "three")->data, "abcd", 4);
  assert_memory_equal(tensor_find(gguf_tensors(g), "five")->data, "abcd", 4);
  gguf_close(g);
  unmap_file(&m);
  free(image);
  gw_end(&w);
  remove_tree(folder);
}

static void header_alone(void **state) {
  (void)state;
  Error e;
  Gguf *g, *h;
  size_t bytes, again;
  assert_ok(gguf_parse("x.gguf", golden_file, sizeof golden_file, false, &g, &e), &e);
  const uint8_t *p = gguf_header(g, &bytes);
  uint8_t *copy = malloc(bytes);
  if (!copy) give_up("malloc");
  memcpy(copy, p, bytes);
  gguf_close(g);
  assert_int_equal(gguf_parse("x.gguf", copy, bytes, false, &g, &e), -1);
  assert_error(&e, EXIT_INPUT, "tensor y: declares");
  assert_int_equal(gguf_parse("x.gguf", copy, bytes - 1, true, &g, &e), -1);
  assert_error(&e, EXIT_INPUT, "tensor y: declares 8 bytes");
  assert_ok(gguf_parse("x.gguf", copy, bytes, true, &h, &e), &e);
  assert_ptr_equal(gguf_header(h, &again), copy);
  assert_int_equal(again, bytes);
  const Tensor *t = tensor_find(gguf_tensors(h), "x");
  assert_null(t->data);
  assert_int_equal(t->bytes, 24);
  GgufStrings it;
  assert_true(gguf_strings(h, "a.words", &it));
  assert_int_equal(it.left, 3);
  gguf_close(h);
  free(copy);
}

/*: ## Widening :*/
static Tensor blocks_of(const char *type, const void *data, size_t bytes) {
  Tensor t = {.name = (char *)"w", .data = data, .bytes = bytes, .file = "x.gguf"};
  snprintf(t.type, sizeof t.type, "%s", type);
  return t;
}

static void widens_as_the_package(void **state) {
  (void)state;
  const struct {
    const char *type;
    const uint8_t *raw;
    size_t raw_bytes;
    const uint16_t *wanted;
    size_t wanted_bytes;
  } golden[] = {{"Q8_0", golden_q8_0, sizeof golden_q8_0, golden_q8_0_f16, sizeof golden_q8_0_f16},
                {"Q4_0", golden_q4_0, sizeof golden_q4_0, golden_q4_0_f16, sizeof golden_q4_0_f16},
                {"Q4_1", golden_q4_1, sizeof golden_q4_1, golden_q4_1_f16, sizeof golden_q4_1_f16}};
  for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
    uint8_t *odd = malloc(golden[i].raw_bytes + 1); // blocks may begin at any address
    uint16_t *out = malloc(golden[i].wanted_bytes);
    if (!odd || !out) give_up("malloc");
    memcpy(odd + 1, golden[i].raw, golden[i].raw_bytes);
    Tensor t = blocks_of(golden[i].type, odd + 1, golden[i].raw_bytes);
    Error e;
    assert_ok(gguf_widen(&t, out, &e), &e);
    assert_memory_equal(out, golden[i].wanted, golden[i].wanted_bytes);
    free(out);
    free(odd);
  }
}

// Every FP16 scale with every byte or nibble, against base.c's conversions: the result is either the same
// bits or, where one of the block's weights does not fit, an error.
static void widens_every_scale(void **state) {
  (void)state;
  uint8_t q8[34] = {0}, q4[20] = {0};
  uint16_t out[32];
  uint64_t seed = 1;
  int refused = 0;
  for (uint32_t d = 0; d < 65536; d++) {
    uint16_t h = (uint16_t)d, m = (uint16_t)test_random(&seed);
    float scale = f16_to_f32(h), least = f16_to_f32(m);
    for (int kind = 0; kind < 3; kind++) {
      const char *const name[] = {"Q8_0", "Q4_0", "Q4_1"};
      uint8_t *raw = kind == 0 ? q8 : q4, *q = raw + (kind == 2 ? 4 : 2);
      memcpy(raw, &h, 2);
      if (kind == 2) memcpy(raw + 2, &m, 2);
      for (int i = 0; i < (kind == 0 ? 32 : 16); i++) q[i] = (uint8_t)test_random(&seed);
      uint16_t wanted[32];
      bool fits = true;
      for (int i = 0; i < 32; i++) {
        int nibble = i < 16 ? q[i] & 15 : q[i - 16] >> 4;
        float v = kind == 0   ? (float)(int8_t)q[i] * scale
                  : kind == 1 ? (float)(nibble - 8) * scale
                              : (float)nibble * scale + least;
        wanted[i] = f32_to_f16(v);
        if ((wanted[i] & 0x7fff) >= 0x7c00) fits = false;
      }
      Tensor t = blocks_of(name[kind], raw, kind == 0 ? 34 : kind == 1 ? 18 : 20);
      Error e = {0};
      int rc = gguf_widen(&t, out, &e);
      if (fits != (rc == 0)) fail_msg("%s: scale %04x minimum %04x", name[kind], d, m);
      if (fits) assert_memory_equal(out, wanted, sizeof out);
      else assert_error(&e, EXIT_INPUT, "x.gguf: tensor w: a weight of ");
      refused += !fits;
    }
  }
  assert_true(refused > 100 && refused < 65536);
}

static void widen_refuses(void **state) {
  (void)state;
  uint8_t raw[3 * 34] = {0};
  uint16_t out[96];
  const uint16_t big = 0x6000; // 512: times 127 is 65,024, which fits; times -128 is -65,536
  memcpy(raw + 2 * 34, &big, 2);
  raw[2 * 34 + 2 + 5] = 127;
  Tensor t = blocks_of("Q8_0", raw, sizeof raw);
  Error e = {0};
  assert_ok(gguf_widen(&t, out, &e), &e);
  assert_true(f16_to_f32(out[69]) == 65024);
  raw[2 * 34 + 2 + 5] = 0x80;
  assert_int_equal(gguf_widen(&t, out, &e), -1);
  assert_error(&e, EXIT_INPUT, "x.gguf: tensor w: a weight of -65536, F16 ends at 65504");
  // A table's entry that no nibble asks for may be too large.
  uint8_t q4[18] = {0x00, 0x78}; // 32,768: (k - 8) * d fits for k 7 to 9 only
  memset(q4 + 2, 0x89, 16);
  t = blocks_of("Q4_0", q4, sizeof q4);
  assert_ok(gguf_widen(&t, out, &e), &e);
  assert_int_equal(out[0], 0x7800);
  assert_int_equal(out[16], 0);
  q4[17] = 0x8a;
  assert_int_equal(gguf_widen(&t, out, &e), -1);
  assert_error(&e, EXIT_INPUT, "a weight of 65536");
  const uint16_t nan = 0x7e00;
  memcpy(q4, &nan, 2);
  assert_int_equal(gguf_widen(&t, out, &e), -1);
  assert_error(&e, EXIT_INPUT, "tensor w: a weight of ");
  t.data = NULL;
  assert_int_equal(gguf_widen(&t, out, &e), -1);
  assert_error(&e, EXIT_INPUT, "tensor w: its 18 bytes are not here");
}

/*: ## The shape :*/
enum { HIDDEN = 96, INTER = 160, LAYERS = 2, HEADS = 6, KV_HEADS = 3, HEAD = 16, VOCAB = 11 };

// The keys of a small model, without one of them or two; values are put by the caller instead.
static GgufWriter small(const char *arch, const char *without, const char *and_without) {
  const struct {
    const char *suffix;
    uint32_t value;
  } keys[] = {{"block_count", LAYERS},
              {"context_length", 512},
              {"embedding_length", HIDDEN},
              {"feed_forward_length", INTER},
              {"attention.head_count", HEADS},
              {"attention.head_count_kv", KV_HEADS},
              {"vocab_size", VOCAB}};
  GgufWriter w = gw_begin(3, 0);
  char key[96];
  if (strcmp(without, "general.architecture") != 0) gw_string(&w, "general.architecture", arch);
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
    if (!strcmp(keys[i].suffix, without) || !strcmp(keys[i].suffix, and_without)) continue;
    snprintf(key, sizeof key, "%s.%s", arch, keys[i].suffix);
    gw_u32(&w, key, keys[i].value);
  }
  snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
  if (strcmp(without, "attention.layer_norm_rms_epsilon") != 0) gw_f32(&w, key, 1e-5f);
  return w;
}

// The tensors that the shape looks at. type: GGUF's number of attn_q
static void small_tensors(GgufWriter *w, uint32_t type, const char *without) {
  static const uint8_t zeros[4 * HIDDEN * HIDDEN];
  const struct {
    const char *name;
    uint32_t type;
    int rank;
    int64_t dim[2];
  } list[] = {{"token_embd.weight", 1, 2, {VOCAB, HIDDEN}},
              {"blk.0.attn_norm.weight", 0, 1, {HIDDEN, 1}},
              {"blk.1.attn_norm.weight", 0, 1, {HIDDEN, 1}},
              {"blk.0.attn_q.weight", type, 2, {HEADS * HEAD, HIDDEN}}};
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    if (!strcmp(list[i].name, without)) continue;
    uint32_t each = list[i].type == 0 ? 4 : 2; // no block type has more bytes than F32
    size_t bytes = (size_t)list[i].dim[0] * (size_t)list[i].dim[1] * each;
    gw_tensor(w, list[i].name, list[i].type, list[i].rank, list[i].dim, zeros, bytes);
  }
}

static int shape_of(GgufWriter *w, Shape *s, Error *e) {
  Gguf *g;
  uint8_t *image;
  assert_ok(parse(w, &g, &image, e), e);
  int rc = gguf_shape(g, "x.gguf", s, e);
  if (s->rope.factors) s->rope.factors = NULL; // would point into what we free
  gguf_close(g);
  free(image);
  gw_end(w);
  return rc;
}

#define assert_shape_refused(w, needle)                                                            \
  do {                                                                                             \
    Shape s_;                                                                                      \
    Error e_ = {0};                                                                                \
    assert_int_equal(shape_of((w), &s_, &e_), -1);                                                 \
    assert_error(&e_, EXIT_INPUT, "x.gguf: ");                                                     \
    assert_error(&e_, EXIT_INPUT, (needle));                                                       \
  } while (0)

static void shape_of_each_family(void **state) {
  (void)state;
  const char *const arch[] = {"llama", "qwen2", "qwen3"};
  for (int i = 0; i < 3; i++) {
    GgufWriter w = small(arch[i], "", "");
    small_tensors(&w, 1, "");
    Shape s;
    Error e;
    assert_ok(shape_of(&w, &s, &e), &e);
    assert_string_equal(s.family, arch[i]);
    assert_string_equal(s.name, arch[i]);
    assert_int_equal(s.vocab, VOCAB);
    assert_int_equal(s.hidden, HIDDEN);
    assert_int_equal(s.inter, INTER);
    assert_int_equal(s.layers, LAYERS);
    assert_int_equal(s.heads, HEADS);
    assert_int_equal(s.kv_heads, KV_HEADS);
    assert_int_equal(s.head_dim, HEAD);
    assert_int_equal(s.max_context, 512);
    assert_true(s.rms_eps == 1e-5f);
    assert_int_equal(s.rope.kind, ROPE_PLAIN);
    assert_true(s.rope.theta == 10000);
    assert_null(s.rope.factors);
    assert_int_equal(s.dtype, DT_F16);
    assert_true(s.tied);
    assert_int_equal(s.qkv_bias, i == 1);
    assert_int_equal(s.qk_norm, i == 2);
    assert_false(s.o_bias);
    assert_false(s.mlp_bias);
  }
}

static void shape_from_tensors(void **state) {
  (void)state;
  Error e;
  Shape s;
  const struct {
    uint32_t type;
    DType wanted;
  } types[] = {{0, DT_F32}, {1, DT_F16}, {30, DT_BF16}, {2, DT_F16}, {3, DT_F16}, {8, DT_F16}};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    GgufWriter w = small("llama", "", "");
    small_tensors(&w, types[i].type, "");
    assert_ok(shape_of(&w, &s, &e), &e);
    assert_int_equal(s.dtype, types[i].wanted);
  }
  const char *const names[] = {"output.weight", "blk.0.attn_q.bias", "blk.0.attn_q_norm.weight",
                               "blk.0.attn_output.bias", "blk.0.ffn_down.bias"};
  for (int i = 0; i < 5; i++) {
    GgufWriter w = small("llama", "", "");
    small_tensors(&w, 1, "");
    gw_tensor(&w, names[i], 0, 1, &ONE, "abcd", 4);
    assert_ok(shape_of(&w, &s, &e), &e);
    assert_int_equal(s.tied, i != 0);
    assert_int_equal(s.qkv_bias, i == 1);
    assert_int_equal(s.qk_norm, i == 2);
    assert_int_equal(s.o_bias, i == 3);
    assert_int_equal(s.mlp_bias, i == 4);
  }
  const char *const needed[] = {"token_embd.weight", "blk.1.attn_norm.weight",
                                "blk.0.attn_q.weight"};
  for (int i = 0; i < 3; i++) {
    GgufWriter w = small("llama", "", "");
    small_tensors(&w, 1, needed[i]);
    assert_shape_refused(&w, needed[i]);
  }
  GgufWriter w = small("llama", "", "");
  const int64_t wrong[2] = {VOCAB, HIDDEN + 1};
  static const uint8_t zeros[2 * VOCAB * (HIDDEN + 1)];
  small_tensors(&w, 1, "token_embd.weight");
  gw_tensor(&w, "token_embd.weight", 1, 2, wrong, zeros, sizeof zeros);
  assert_shape_refused(&w, "tensor token_embd.weight: 2 dimensions, rows of 97; expected 2 and 96");
}

static void names_of_models(void **state) {
  (void)state;
  // 46 bytes, then a character of two that would be cut in its middle.
  const struct {
    const char *given, *wanted;
  } names[] = {{"", "llama"},
               {"A model", "A model"},
               {"tab\tand\x1b[31m", "tab?and?[31m"},
               {"0123456789012345678901234567890123456789012345ö",
                "0123456789012345678901234567890123456789012345"},
               {"0123456789012345678901234567890123456789012345678",
                "01234567890123456789012345678901234567890123456"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    GgufWriter w = small("llama", "", "");
    small_tensors(&w, 1, "");
    gw_string(&w, "general.name", names[i].given);
    Shape s;
    Error e;
    assert_ok(shape_of(&w, &s, &e), &e);
    assert_string_equal(s.name, names[i].wanted);
  }
}

static void shape_keys(void **state) {
  (void)state;
  Error e;
  Shape s;
  const char *const needed[] = {"block_count",          "context_length",
                                "embedding_length",     "feed_forward_length",
                                "attention.head_count", "attention.layer_norm_rms_epsilon"};
  for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
    char line[96];
    snprintf(line, sizeof line, "key qwen2.%s: missing", needed[i]);
    GgufWriter w = small("qwen2", needed[i], "");
    small_tensors(&w, 1, "");
    assert_shape_refused(&w, line);
    bool number = i == 5;
    snprintf(line, sizeof line, "qwen2.%s", needed[i]);
    w = small("qwen2", needed[i], "");
    small_tensors(&w, 1, "");
    gw_string(&w, line, "12");
    snprintf(line, sizeof line, "qwen2.%s: not %s", needed[i], number ? "a number" : "an integer");
    assert_shape_refused(&w, line);
    const int64_t bad[] = {0, -1, INT64_C(1) << 31, INT64_MAX};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
      if (number) continue;
      snprintf(line, sizeof line, "qwen2.%s", needed[i]);
      w = small("qwen2", needed[i], "");
      small_tensors(&w, 1, "");
      gw_put(gw_key(&w, line, GGUF_I64), &bad[k], 8);
      snprintf(line, sizeof line, "key qwen2.%s: %lld, 1 to 2147483647 are allowed", needed[i],
               (long long)bad[k]);
      assert_shape_refused(&w, line);
    }
  }
  const float wrong[] = {NAN, INFINITY, -1e-5f};
  for (int i = 0; i < 3; i++) {
    GgufWriter w = small("llama", "attention.layer_norm_rms_epsilon", "");
    small_tensors(&w, 1, "");
    gw_f32(&w, "llama.attention.layer_norm_rms_epsilon", wrong[i]);
    assert_shape_refused(&w, "key llama.attention.layer_norm_rms_epsilon: ");
    w = small("llama", "", "");
    small_tensors(&w, 1, "");
    gw_f32(&w, "llama.rope.freq_base", wrong[i]);
    assert_shape_refused(&w, "key llama.rope.freq_base: ");
  }
  // Any integer type will do.
  GgufWriter w = small("llama", "block_count", "attention.head_count");
  small_tensors(&w, 1, "");
  gw_u64(&w, "llama.block_count", LAYERS);
  gw_put(gw_key(&w, "llama.attention.head_count", GGUF_U8), "\6", 1);
  assert_ok(shape_of(&w, &s, &e), &e);
  assert_int_equal(s.heads, 6);
  // More layers than there are.
  w = small("llama", "block_count", "");
  small_tensors(&w, 1, "");
  gw_u32(&w, "llama.block_count", 1000000000);
  assert_shape_refused(&w, "key llama.block_count: 1000000000, but tensor "
                           "blk.999999999.attn_norm.weight is missing");
}

static void shape_heads(void **state) {
  (void)state;
  Error e;
  Shape s;
  GgufWriter w = small("llama", "attention.head_count_kv", "");
  small_tensors(&w, 1, "");
  assert_ok(shape_of(&w, &s, &e), &e);
  assert_int_equal(s.kv_heads, HEADS);
  // One value a layer: equal ones are one, others are refused.
  const uint32_t same[] = {2, 2}, differ[] = {2, 3};
  w = small("llama", "attention.head_count_kv", "");
  small_tensors(&w, 1, "");
  gw_array(&w, "llama.attention.head_count_kv", GGUF_U32, 2, same, sizeof same);
  assert_ok(shape_of(&w, &s, &e), &e);
  assert_int_equal(s.kv_heads, 2);
  w = small("llama", "attention.head_count_kv", "");
  small_tensors(&w, 1, "");
  gw_array(&w, "llama.attention.head_count_kv", GGUF_U32, 2, differ, sizeof differ);
  assert_shape_refused(
      &w, "key llama.attention.head_count_kv: 2 in layer 0, 3 in layer 1; all must be equal");
  w = small("llama", "attention.head_count_kv", "");
  small_tensors(&w, 1, "");
  gw_array(&w, "llama.attention.head_count_kv", GGUF_U32, 0, NULL, 0);
  assert_shape_refused(&w, "key llama.attention.head_count_kv: an empty array");
  w = small("llama", "attention.head_count_kv", "");
  small_tensors(&w, 1, "");
  const char *const words[] = {"2", "2"};
  gw_strings(&w, "llama.attention.head_count_kv", words, 2);
  assert_shape_refused(&w, "key llama.attention.head_count_kv: not an integer");

  w = small("qwen3", "", "");
  small_tensors(&w, 1, "");
  gw_u32(&w, "qwen3.attention.key_length", 32);
  gw_u32(&w, "qwen3.attention.value_length", 32);
  gw_u32(&w, "qwen3.rope.dimension_count", 32);
  assert_ok(shape_of(&w, &s, &e), &e);
  assert_int_equal(s.head_dim, 32);
  w = small("qwen3", "", "");
  small_tensors(&w, 1, "");
  gw_u32(&w, "qwen3.attention.key_length", 32);
  gw_u32(&w, "qwen3.attention.value_length", 64);
  assert_shape_refused(&w, "key qwen3.attention.value_length: 64, but keys have 32");
  w = small("qwen3", "", "");
  small_tensors(&w, 1, "");
  gw_u32(&w, "qwen3.attention.key_length", 32); // values: 96 / 6
  assert_shape_refused(&w, "key qwen3.attention.value_length: 16, but keys have 32");
  w = small("llama", "attention.head_count", "");
  small_tensors(&w, 1, "");
  gw_u32(&w, "llama.attention.head_count", 7);
  assert_shape_refused(&w, "key llama.attention.key_length: missing, and 7 heads do not divide 96");
  w = small("llama", "attention.head_count", "");
  small_tensors(&w, 1, "");
  gw_u32(&w, "llama.attention.head_count", 97);
  assert_shape_refused(&w, "key llama.attention.key_length: missing");
}

static void shape_vocabulary(void **state) {
  (void)state;
  Error e;
  Shape s;
  const char *const tokens[VOCAB + 1] = {"a", "b", "c", "d", "e", "f",
                                         "g", "h", "i", "j", "k", "l"};
  GgufWriter w = small("llama", "vocab_size", "");
  small_tensors(&w, 1, "");
  assert_ok(shape_of(&w, &s, &e), &e); // no tokens either: what the embedding has
  assert_int_equal(s.vocab, VOCAB);
  w = small("llama", "vocab_size", "");
  small_tensors(&w, 1, "");
  gw_strings(&w, "tokenizer.ggml.tokens", tokens, VOCAB);
  assert_ok(shape_of(&w, &s, &e), &e);
  assert_int_equal(s.vocab, VOCAB);
  w = small("llama", "vocab_size", "");
  small_tensors(&w, 1, "");
  gw_strings(&w, "tokenizer.ggml.tokens", tokens, VOCAB + 1);
  assert_shape_refused(&w, "tensor token_embd.weight: 11 rows, but the vocabulary has 12");
  w = small("llama", "vocab_size", "");
  small_tensors(&w, 1, "");
  gw_u32(&w, "llama.vocab_size", 32000);
  gw_strings(&w, "tokenizer.ggml.tokens", tokens, VOCAB);
  assert_shape_refused(&w, "tensor token_embd.weight: 11 rows, but the vocabulary has 32000");
  w = small("llama", "", ""); // a vocabulary smaller than the model is the tokenizer's business
  small_tensors(&w, 1, "");
  gw_strings(&w, "tokenizer.ggml.tokens", tokens, 3);
  assert_ok(shape_of(&w, &s, &e), &e);
  assert_int_equal(s.vocab, VOCAB);
}

static void shape_rope(void **state) {
  (void)state;
  Error e;
  Shape s;
  const struct {
    const char *type;
    float factor; // 0: no key
    bool old_key;
    RopeKind wanted;
  } good[] = {{NULL, 0, false, ROPE_PLAIN},     {"none", 0, false, ROPE_PLAIN},
              {"none", 4, false, ROPE_PLAIN},   {"linear", 4, false, ROPE_LINEAR},
              {"linear", 1, false, ROPE_PLAIN}, {"linear", 0, false, ROPE_PLAIN},
              {NULL, 4, false, ROPE_LINEAR},    {NULL, 4, true, ROPE_LINEAR}};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    GgufWriter w = small("llama", "", "");
    small_tensors(&w, 1, "");
    gw_f32(&w, "llama.rope.freq_base", 500000);
    if (good[i].type) gw_string(&w, "llama.rope.scaling.type", good[i].type);
    if (good[i].factor > 0)
      gw_f32(&w, good[i].old_key ? "llama.rope.scale_linear" : "llama.rope.scaling.factor",
             good[i].factor);
    assert_ok(shape_of(&w, &s, &e), &e);
    assert_int_equal(s.rope.kind, good[i].wanted);
    assert_true(s.rope.theta == 500000);
    if (s.rope.kind == ROPE_LINEAR) assert_true(s.rope.factor == 4);
  }
  const char *const kinds[] = {"yarn", "longrope", "", "llama3"};
  for (int i = 0; i < 4; i++) {
    char line[96];
    GgufWriter w = small("llama", "", "");
    small_tensors(&w, 1, "");
    gw_string(&w, "llama.rope.scaling.type", kinds[i]);
    snprintf(line, sizeof line, "key llama.rope.scaling.type: %s not supported (none, linear are)",
             kinds[i]);
    assert_shape_refused(&w, line);
  }
  GgufWriter w = small("llama", "", "");
  small_tensors(&w, 1, "");
  gw_u32(&w, "llama.rope.scaling.type", 1);
  assert_shape_refused(&w, "key llama.rope.scaling.type: not a string");
  w = small("llama", "", "");
  small_tensors(&w, 1, "");
  gw_f32(&w, "llama.rope.scaling.factor", -2);
  assert_shape_refused(&w, "key llama.rope.scaling.factor: -2, 0 to 3e38 are allowed");
  w = small("llama", "", "");
  small_tensors(&w, 1, "");
  gw_f32(&w, "llama.rope.freq_base", 0);
  assert_shape_refused(&w, "key llama.rope.freq_base: 0");
  w = small("llama", "", "");
  small_tensors(&w, 1, "");
  gw_u32(&w, "llama.rope.dimension_count", 8);
  assert_shape_refused(&w, "key llama.rope.dimension_count: 8, but a head has 16");
  w = small("llama", "", "");
  small_tensors(&w, 1, "");
  gw_tensor(&w, "rope_factors_long.weight", 0, 1, &ONE, "abcd", 4);
  assert_shape_refused(&w, "tensor rope_factors_long.weight: longrope not supported");
}

static void shape_rope_factors(void **state) {
  (void)state;
  float factor[8] = {1, 1, 1.5f, 2, 4, 8, 8, 8};
  const int64_t eight = 8, seven = 7;
  Error e;
  Gguf *g;
  uint8_t *image;
  Shape s;
  GgufWriter w = small("llama", "", "");
  small_tensors(&w, 1, "");
  gw_tensor(&w, "rope_freqs.weight", 0, 1, &eight, factor, sizeof factor);
  assert_ok(parse(&w, &g, &image, &e), &e);
  assert_ok(gguf_shape(g, "x.gguf", &s, &e), &e);
  assert_int_equal(s.rope.kind, ROPE_FACTORS);
  assert_non_null(s.rope.factors);
  assert_true((uintptr_t)s.rope.factors % sizeof(float) == 0);
  assert_memory_equal(s.rope.factors, factor, sizeof factor);
  size_t bytes;
  const uint8_t *header = gguf_header(g, &bytes);
  Gguf *h;
  assert_ok(gguf_parse("x.gguf", header, bytes, true, &h, &e), &e);
  assert_ok(gguf_shape(h, "x.gguf", &s, &e), &e);
  assert_int_equal(s.rope.kind, ROPE_FACTORS);
  assert_null(s.rope.factors); // their bytes are not in the header
  gguf_close(h);
  gguf_close(g);
  free(image);
  gw_f32(&w, "llama.rope.scaling.factor", 2);
  assert_shape_refused(&w, "tensor rope_freqs.weight: together with a linear factor of 2");
  w = small("llama", "", "");
  small_tensors(&w, 1, "");
  gw_tensor(&w, "rope_freqs.weight", 0, 1, &seven, factor, 28);
  assert_shape_refused(&w, "tensor rope_freqs.weight: 7 of F32, expected 8 of F32");
  w = small("llama", "", "");
  small_tensors(&w, 1, "");
  gw_tensor(&w, "rope_freqs.weight", 1, 1, &eight, factor, 16);
  assert_refused(&w, "tensor rope_freqs.weight: F16 of 1 dimensions");
  const float wrong[] = {0, -1, NAN, INFINITY};
  for (int i = 0; i < 4; i++) {
    factor[5] = wrong[i];
    w = small("llama", "", "");
    small_tensors(&w, 1, "");
    gw_tensor(&w, "rope_freqs.weight", 0, 1, &eight, factor, sizeof factor);
    assert_shape_refused(&w, "tensor rope_freqs.weight: element 5 is ");
  }
}

static void shape_refuses(void **state) {
  (void)state;
  const char *const others[] = {"gemma3", "qwen2moe", "LLAMA", "llama\n", "", "qwen"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    GgufWriter w = small(others[i], "", "");
    small_tensors(&w, 1, "");
    assert_shape_refused(&w, "not supported (llama, qwen2, qwen3 are)");
  }
  GgufWriter w = small("gemma3", "", "");
  assert_shape_refused(&w, "architecture gemma3 not supported");
  w = small("llama", "general.architecture", "");
  small_tensors(&w, 1, "");
  assert_shape_refused(&w, "key general.architecture: missing");
  w = small("llama", "", "");
  small_tensors(&w, 1, "");
  gw_u32(&w, "llama.expert_count", 8);
  assert_shape_refused(&w, "key llama.expert_count: mixtures of experts are not supported");
  w = small("llama", "", "");
  small_tensors(&w, 1, "");
  gw_put(gw_key(&w, "split.count", GGUF_U16), "\3", 2);
  assert_shape_refused(&w, "key split.count: one of 3 files; join them first");
  w = small("llama", "", "");
  small_tensors(&w, 1, "");
  gw_u32(&w, "llama.expert_count", 0);
  gw_put(gw_key(&w, "split.count", GGUF_U16), "\1", 2);
  Shape s;
  Error e;
  assert_ok(shape_of(&w, &s, &e), &e);
}

/*: ## The order of rows :*/
static void permuted_rows(void **state) {
  (void)state;
  const struct {
    int heads, head_dim;
  } cases[] = {{4, 16}, {2, 16}, {1, 2}, {3, 6}, {9, 64}, {3, 64}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    int rows = cases[c].heads * cases[c].head_dim;
    uint16_t *straight = malloc((size_t)rows * 6), *permuted = malloc((size_t)rows * 6);
    if (!straight || !permuted) give_up("malloc");
    for (int i = 0; i < 3 * rows; i++) straight[i] = (uint16_t)i;
    gw_permute((const uint8_t *)straight, cases[c].heads, cases[c].head_dim, 6,
               (uint8_t *)permuted);
    Matrix m = {(const uint8_t *)permuted, DT_BF16, rows, 3, cases[c].head_dim};
    int moved = 0;
    for (int r = 0; r < rows; r++) {
      assert_memory_equal(matrix_row(&m, r), straight + 3 * r, 6);
      moved += matrix_row(&m, r) != (const uint8_t *)(permuted + 3 * r);
    }
    assert_true(cases[c].head_dim == 2 ? moved == 0 : moved > rows / 2);
    m.permuted_head = 0;
    for (int r = 0; r < rows; r++) assert_memory_equal(matrix_row(&m, r), permuted + 3 * r, 6);
    free(straight);
    free(permuted);
  }
  // By hand, one head of six: HF 0 1 2 | 3 4 5 lies as 0 3 1 4 2 5.
  const uint8_t hand[] = {0, 3, 1, 4, 2, 5};
  uint8_t straight[] = {0, 1, 2, 3, 4, 5}, out[6];
  gw_permute(straight, 1, 6, 1, out);
  assert_memory_equal(out, hand, 6);
}

/*: ## One model, two files

The same weights as a folder and as GGUF must give the same model, byte for byte, for each family: q and k in
the order of Hugging Face, biases and norms beside them, and the shape that the config would have given. :*/
static void assert_same_matrix(const char *what, int layer, const Matrix *a, const Matrix *b) {
  if (a->dtype != b->dtype || a->rows != b->rows || a->columns != b->columns)
    fail_msg("%s of layer %d: %s [%d, %d] and %s [%d, %d]", what, layer, dtype_name(a->dtype),
             a->rows, a->columns, dtype_name(b->dtype), b->rows, b->columns);
  for (int32_t r = 0; r < a->rows; r++)
    if (memcmp(matrix_row(a, r), matrix_row(b, r), matrix_stride(a)) != 0)
      fail_msg("%s of layer %d: row %d differs", what, layer, r);
}

// v may be absent, in both or in neither.
static void assert_same_vector(const char *what, int layer, const float *a, const float *b,
                               int32_t n) {
  if (!a != !b) fail_msg("%s of layer %d: only in one file", what, layer);
  if (a && b && memcmp(a, b, (size_t)n * sizeof *a) != 0) fail_msg("%s of layer %d", what, layer);
}

static void assert_same_shape(const Shape *a, const Shape *b) {
  assert_string_equal(a->family, b->family);
  assert_int_equal(a->vocab, b->vocab);
  assert_int_equal(a->hidden, b->hidden);
  assert_int_equal(a->inter, b->inter);
  assert_int_equal(a->layers, b->layers);
  assert_int_equal(a->heads, b->heads);
  assert_int_equal(a->kv_heads, b->kv_heads);
  assert_int_equal(a->head_dim, b->head_dim);
  assert_int_equal(a->max_context, b->max_context);
  assert_true(a->rms_eps == b->rms_eps);
  assert_int_equal(a->tied, b->tied);
  assert_int_equal(a->qkv_bias, b->qkv_bias);
  assert_int_equal(a->o_bias, b->o_bias);
  assert_int_equal(a->mlp_bias, b->mlp_bias);
  assert_int_equal(a->qk_norm, b->qk_norm);
  float x[64], y[64];
  rope_frequencies(a, x);
  rope_frequencies(b, y);
  for (int32_t i = 0; i < a->head_dim / 2; i++)
    if (!(fabsf(x[i] - y[i]) <= 2e-7f * x[i]))
      fail_msg("frequency %d: %.9g and %.9g", i, (double)x[i], (double)y[i]);
}

static void assert_same_model(const Model *a, const Model *b) {
  const Shape *s = &a->shape;
  assert_same_shape(s, &b->shape);
  assert_int_equal(s->dtype, b->shape.dtype);
  assert_same_matrix("embedding", -1, &a->embedding, &b->embedding);
  assert_same_matrix("lm_head", -1, &a->lm_head, &b->lm_head);
  assert_same_vector("final norm", -1, a->final_norm, b->final_norm, s->hidden);
  int32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
  for (int32_t i = 0; i < s->layers; i++) {
    const Layer *x = &a->layer[i], *y = &b->layer[i];
    assert_same_matrix("q", i, &x->q, &y->q);
    assert_same_matrix("k", i, &x->k, &y->k);
    assert_same_matrix("v", i, &x->v, &y->v);
    assert_same_matrix("o", i, &x->o, &y->o);
    assert_same_matrix("gate", i, &x->gate, &y->gate);
    assert_same_matrix("up", i, &x->up, &y->up);
    assert_same_matrix("down", i, &x->down, &y->down);
    assert_same_vector("attention norm", i, x->attn_norm, y->attn_norm, s->hidden);
    assert_same_vector("FFN norm", i, x->ffn_norm, y->ffn_norm, s->hidden);
    assert_same_vector("q bias", i, x->q_bias, y->q_bias, q);
    assert_same_vector("k bias", i, x->k_bias, y->k_bias, kv);
    assert_same_vector("v bias", i, x->v_bias, y->v_bias, kv);
    assert_same_vector("q norm", i, x->q_norm, y->q_norm, s->head_dim);
    assert_same_vector("k norm", i, x->k_norm, y->k_norm, s->head_dim);
    assert_same_vector("o bias", i, x->o_bias, y->o_bias, s->hidden);
    assert_same_vector("gate bias", i, x->gate_bias, y->gate_bias, s->inter);
    assert_same_vector("up bias", i, x->up_bias, y->up_bias, s->inter);
    assert_same_vector("down bias", i, x->down_bias, y->down_bias, s->hidden);
  }
}

typedef struct Pair { // one checkpoint, opened from its folder and from its GGUF export
  char *folder;
  Source source[2];
  Model model[2];
} Pair;

static void open_pair(const Shape *s, uint32_t quantize, Pair *p) {
  Error e;
  p->folder = temp_folder();
  const char *hf = path_in(p->folder, "hf"), *path = path_in(p->folder, "x.gguf");
  if (mkdir(hf, 0777) != 0) give_up(hf);
  assert_ok(synth_write(s, hf, 7, &e), &e);
  assert_ok(source_open(hf, &p->source[0], &e), &e);
  Capture c = capture_begin();
  int rc = model_open(&p->source[0], &p->model[0], &e);
  free(capture_end(c));
  if (rc != 0) fail_msg("%s: %s", s->name, e.text);
  GgufWriter w = gw_begin(3, 0);
  w.quantize = quantize;
  gw_model(&w, &p->model[0], s->family);
  gw_u32(&w, "tokenizer.ggml.eos_token_id", 2);
  gw_save(&w, path);
  gw_end(&w);
  assert_ok(source_open(path, &p->source[1], &e), &e);
  c = capture_begin();
  rc = model_open(&p->source[1], &p->model[1], &e);
  char *said = capture_end(c);
  if (rc != 0) fail_msg("%s: %s", s->name, e.text);
  if (quantize) assert_non_null(strstr(said, "widened to F16"));
  free(said);
  assert_int_equal(p->model[1].stop_count, 1);
  assert_int_equal(p->model[1].stop_ids[0], 2);
}

static void close_pair(Pair *p) {
  for (int i = 0; i < 2; i++) {
    model_close(&p->model[i]);
    source_close(&p->source[i]);
  }
  remove_tree(p->folder);
}

static void same_model_from_both(void **state) {
  (void)state;
  const char *const names[] = {"tiny-llama", "tiny-qwen2", "tiny-qwen3"};
  const char *const dtypes[] = {"", ":f16", ":f32"};
  for (int i = 0; i < 3; i++)
    for (int d = 0; d < 3; d++)
      for (int tied = 0; tied < 2; tied++) {
        char name[48];
        snprintf(name, sizeof name, "%s%s", names[i], dtypes[d]);
        assert_non_null(shape_find(name));
        Shape s = *shape_find(name);
        s.tied = tied;
        Pair p;
        open_pair(&s, 0, &p);
        assert_int_equal(p.model[1].shape.tied, tied);
        assert_int_equal(p.model[1].layer[0].q.permuted_head, i == 0 ? s.head_dim : 0);
        assert_same_model(&p.model[0], &p.model[1]);
        close_pair(&p);
      }
}

// 64 greedy tokens after one. out: [64]
static void greedy(const Model *m, int32_t *out) {
  Target t = {.name = "test", .kind = "cpu", .workers = 2, .threads = 1, .fused_context = 384};
  Plan p;
  Cpu *cpu;
  Error e;
  assert_ok(plan_make(&m->shape, &t, &p, &e), &e);
  assert_ok(cpu_open(m, &p, 64, 2, &cpu, &e), &e);
  for (uint32_t i = 0; i < 64; i++)
    assert_ok(cpu_step(cpu, i ? out[i - 1] : 5, i, true, &out[i], &e), &e);
  cpu_close(cpu);
  plan_free(&p);
}

static void same_tokens_from_both(void **state) {
  (void)state;
  const char *const names[] = {"tiny-llama", "tiny-qwen2", "tiny-qwen3"};
  for (int i = 0; i < 3; i++) {
    Pair p;
    int32_t ids[2][64];
    open_pair(shape_find(names[i]), 0, &p);
    greedy(&p.model[0], ids[0]);
    greedy(&p.model[1], ids[1]);
    assert_memory_equal(ids[0], ids[1], sizeof ids[0]);
    // The wrong order would be noticed: other tokens come out.
    if (i == 0) {
      for (int32_t k = 0; k < p.model[1].shape.layers; k++)
        p.model[1].layer[k].q.permuted_head = p.model[1].layer[k].k.permuted_head = 0;
      greedy(&p.model[1], ids[1]);
      assert_memory_not_equal(ids[0], ids[1], sizeof ids[0]);
    }
    close_pair(&p);
  }
}

// A family's own tensors may not be left out, and a tensor that nobody uses may not be a bias.
static void tensors_of_a_family(void **state) {
  (void)state;
  const struct {
    const char *shape, *line;
    int layer; // whose vector is taken away, or given
  } cases[] = {{"tiny-qwen2", "tensor blk.0.attn_q.bias: missing", 0},
               {"tiny-qwen2", "tensor blk.2.attn_q.bias: missing", 2},
               {"tiny-qwen3", "tensor blk.0.attn_q_norm.weight: missing", 0},
               {"tiny-qwen3", "tensor blk.1.attn_q_norm.weight: missing", 1},
               {"tiny-llama", "tensor blk.1.attn_q.bias: a bias that ", 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Pair p;
    open_pair(shape_find(cases[i].shape), 0, &p);
    Model *m = &p.model[0];
    Layer *l = &m->layer[cases[i].layer];
    if (i < 2) l->q_bias = NULL;
    else if (i < 4) l->q_norm = NULL;
    else l->q_bias = m->final_norm; // hidden is heads times head_dim here
    const char *path = path_in(p.folder, "y.gguf");
    GgufWriter w = gw_begin(3, 0);
    gw_model(&w, m, m->shape.family);
    gw_save(&w, path);
    gw_end(&w);
    Source source;
    Model bad;
    Error e;
    assert_ok(source_open(path, &source, &e), &e);
    assert_int_equal(model_open(&source, &bad, &e), -1);
    assert_error(&e, EXIT_INPUT, cases[i].line);
    source_close(&source);
    close_pair(&p);
  }
}

// Sizes that fit no vector, grouped heads of every ratio, biases that llama's order moves too.
static void same_model_of_odd_shapes(void **state) {
  (void)state;
  const struct {
    int heads, kv_heads, head_dim, hidden, inter;
  } sizes[] = {{3, 1, 24, 72, 176}, {4, 4, 2, 64, 1}, {6, 2, 10, 30, 33}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    Shape s = *shape_find("tiny-llama");
    s.heads = sizes[i].heads;
    s.kv_heads = sizes[i].kv_heads;
    s.head_dim = sizes[i].head_dim;
    s.hidden = sizes[i].hidden;
    s.inter = sizes[i].inter;
    s.qkv_bias = s.o_bias = s.mlp_bias = true;
    s.rope = (Rope){.kind = ROPE_LINEAR, .theta = 10000, .factor = 4};
    Pair p;
    open_pair(&s, 0, &p);
    assert_int_equal(p.model[1].shape.rope.kind, ROPE_LINEAR);
    assert_non_null(p.model[1].layer[0].q_bias);
    assert_same_model(&p.model[0], &p.model[1]);
    close_pair(&p);
  }
}

static void assert_near(const char *what, const Matrix *a, const Matrix *b, float part) {
  assert_int_equal(b->dtype, DT_F16);
  for (int32_t r = 0; r < a->rows; r++) {
    float most = 0;
    for (int32_t c = 0; c < a->columns; c++) most = fmaxf(most, fabsf(gw_element(a, r, c)));
    for (int32_t c = 0; c < a->columns; c++)
      if (!(fabsf(gw_element(a, r, c) - gw_element(b, r, c)) <= part * most))
        fail_msg("%s: row %d, column %d: %g and %g", what, r, c, (double)gw_element(a, r, c),
                 (double)gw_element(b, r, c));
  }
}

// Blocks of eight or four bits come back, in their places, within about half a step of what they were.
static void quantized_models(void **state) {
  (void)state;
  const uint32_t types[] = {8, 2, 3};
  const float part[] = {0.6f / 127, 0.6f / 7, 0.6f * 2 / 15};
  for (int i = 0; i < 3; i++) {
    Shape s = *shape_find("tiny-llama:f32");
    s.inter = 192;
    Pair p;
    open_pair(&s, types[i], &p);
    const Model *a = &p.model[0], *b = &p.model[1];
    assert_same_shape(&a->shape, &b->shape);
    assert_int_equal(b->shape.dtype, DT_F16);
    assert_near("embedding", &a->embedding, &b->embedding, part[i]);
    assert_near("lm_head", &a->lm_head, &b->lm_head, part[i]);
    for (int32_t k = 0; k < s.layers; k++) {
      assert_near("q", &a->layer[k].q, &b->layer[k].q, part[i]);
      assert_near("k", &a->layer[k].k, &b->layer[k].k, part[i]);
      assert_near("v", &a->layer[k].v, &b->layer[k].v, part[i]);
      assert_near("down", &a->layer[k].down, &b->layer[k].down, part[i]);
    }
    close_pair(&p);
  }
}

// A type that we cannot compute with is refused when it is used, and by its name.
static void unsupported_types_in_use(void **state) {
  (void)state;
  static const uint8_t zeros[4 * HIDDEN * 256];
  const int64_t dim[2] = {4, 256};
  GgufWriter w = small("llama", "", "");
  small_tensors(&w, 1, "");
  gw_tensor(&w, "unused", 14, 2, dim, zeros, 4 * 210);
  Shape s;
  Error e;
  assert_ok(shape_of(&w, &s, &e), &e);

  char *folder = temp_folder();
  const char *path = path_in(folder, "x.gguf");
  w = gw_begin(3, 0);
  Shape shape = *shape_find("tiny-qwen3");
  shape.hidden = 256;
  shape.layers = 1;
  gw_shape(&w, &shape, "qwen3");
  const int64_t embedding[2] = {shape.vocab, 256}, norm = 256;
  uint8_t *data = calloc((size_t)shape.vocab * 256, 2);
  if (!data) give_up("calloc");
  gw_tensor(&w, "token_embd.weight", 1, 2, embedding, data, (size_t)shape.vocab * 512);
  gw_tensor(&w, "output_norm.weight", 0, 1, &norm, zeros, 1024);
  gw_tensor(&w, "blk.0.attn_norm.weight", 0, 1, &norm, zeros, 1024);
  gw_tensor(&w, "blk.0.ffn_norm.weight", 0, 1, &norm, zeros, 1024);
  const int64_t rows[2] = {shape.heads * shape.head_dim, 256};
  gw_tensor(&w, "blk.0.attn_q.weight", 14, 2, rows, data, (size_t)rows[0] * 210);
  gw_save(&w, path);
  gw_end(&w);
  Source source;
  Model m;
  assert_ok(source_open(path, &source, &e), &e);
  assert_int_equal(model_open(&source, &m, &e), -1);
  assert_error(&e, EXIT_INPUT, "tensor blk.0.attn_q.weight: ");
  assert_error(&e, EXIT_INPUT, "Q6_K");
  source_close(&source);
  free(data);
  remove_tree(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_what_the_package_wrote),
      cmocka_unit_test(versions),
      cmocka_unit_test(alignments),
      cmocka_unit_test(values_of_every_kind),
      cmocka_unit_test(dimensions),
      cmocka_unit_test(types_as_the_package_knows_them),
      cmocka_unit_test(not_gguf),
      cmocka_unit_test(counts_that_cannot_be),
      cmocka_unit_test(names_and_values_that_cannot_be),
      cmocka_unit_test(places_that_cannot_be),
      cmocka_unit_test(every_prefix),
      cmocka_unit_test(short_files_on_disk),
      cmocka_unit_test(far_tensors),
      cmocka_unit_test(header_alone),
      cmocka_unit_test(widens_as_the_package),
      cmocka_unit_test(widens_every_scale),
      cmocka_unit_test(widen_refuses),
      cmocka_unit_test(shape_of_each_family),
      cmocka_unit_test(shape_from_tensors),
      cmocka_unit_test(names_of_models),
      cmocka_unit_test(shape_keys),
      cmocka_unit_test(shape_heads),
      cmocka_unit_test(shape_vocabulary),
      cmocka_unit_test(shape_rope),
      cmocka_unit_test(shape_rope_factors),
      cmocka_unit_test(shape_refuses),
      cmocka_unit_test(permuted_rows),
      cmocka_unit_test(same_model_from_both),
      cmocka_unit_test(same_tokens_from_both),
      cmocka_unit_test(tensors_of_a_family),
      cmocka_unit_test(same_model_of_odd_shapes),
      cmocka_unit_test(quantized_models),
      cmocka_unit_test(unsupported_types_in_use),
  };
  return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
