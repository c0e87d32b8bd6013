/*: # Safetensors files, good and bad

Half of a reader's work is to refuse. Every file here is a few hundred bytes, made in memory; the
good ones must give back the very bytes that went in, the bad ones an error that names the tensor
and the numbers. :*/
#include "testing.h"

#include <stb/stb_ds.h>
#include <sys/mman.h>

/*: ## Two tensors, many headers :*/
//> test_safetensors_headers
static const uint8_t DATA[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

#define A "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8]}"
#define B "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}"

// The header over the first `bytes` of DATA. 0, and `e` untouched, when it was accepted.
static int parse(const char *header, size_t bytes, TensorSet *out, Error *e) {
  size_t size;
  uint8_t *image = safetensors_image(header, DATA, bytes, &size);
  *out = (TensorSet){0};
  int rc = safetensors_parse("x.safetensors", image, size, out, e);
  for (ptrdiff_t i = 0; rc == 0 && i < arrlen(out->list); i++) {
    const Tensor *t = &out->list[i];
    assert_true(t->data >= image && t->data + t->bytes <= image + size);
    assert_ptr_equal(tensor_find(out, t->name), t);
    assert_string_equal(t->file, "x.safetensors");
  }
  if (rc == 0 && tensor_find(out, "a") && tensor_find(out, "b")) {
    assert_memory_equal(tensor_find(out, "a")->data, DATA, 8);
    assert_memory_equal(tensor_find(out, "b")->data, DATA + 8, 8);
  }
  free(image);
  return rc;
}

static void good_headers(void **state) {
  (void)state;
  const char *const good[] = {
      "{" A "," B "}",
      "{\"__metadata__\":{}," A "," B "}",
      "{\"__metadata__\":{\"format\":\"pt\",\"n\":\"0\"}," A "," B "}",
      "{\"__metadata__\":null," A "," B "}",
      "{" B "," A "}",
      "{" A "," B ",\"__metadata__\":{\"format\":\"pt\"}}",
      "{" A "," B "}       ",
      "{" A "," B "}\n\t\r ",
      "{\n  " A " ,\n  " B "\n}",
      "{\"a\":{\"data_offsets\":[0,8],\"extra\":[1,{}],\"shape\":[2,2],\"dtype\":\"BF16\"}," B "}",
      "{\"a\":{\"dtype\":\"BF16\",\"shape\":[2e0,2.0],\"data_offsets\":[0,8]}," B "}",
      "{" A "," B ",\"none\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[8,8]}}",
      "{" A "," B ",\"none\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[16,16]}}",
      "{" A ",\"b\":{\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":[8,15]},"
      "\"c\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[15,16]}}",
  };
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    Error e = {0};
    TensorSet set;
    if (parse(good[i], 16, &set, &e) != 0) fail_msg("%s: refused: %s", good[i], e.text);
    const Tensor *a = tensor_find(&set, "a"), *b = tensor_find(&set, "b");
    assert_non_null(a);
    assert_non_null(b);
    assert_int_equal(a->rank, 2);
    assert_int_equal(a->dim[0], 2);
    assert_int_equal(a->dim[1], 2);
    assert_int_equal(a->dtype, DT_BF16);
    assert_string_equal(a->type, "BF16");
    assert_null(tensor_find(&set, "__metadata__"));
    assert_null(tensor_find(&set, "c2"));
    tensors_close(&set);
  }
  Error e;
  TensorSet set;
  assert_ok(parse("{}", 0, &set, &e), &e); // no tensors: nothing to be wrong about
  assert_null(tensor_find(&set, "a"));
  tensors_close(&set);
}

static void bad_headers(void **state) {
  (void)state;
  const struct {
    const char *header;
    const char *says;
    size_t bytes; // of data; 0: 16
  } bad[] = {
      {"{\"__metadata__\":{\"n\":0}," A "," B "}", "n is not a string", 0},
      {"{\"__metadata__\":{\"n\":{}}," A "," B "}", "n is not a string", 0},
      {"{\"__metadata__\":{\"n\":null}," A "," B "}", "n is not a string", 0},
      {"{\"__metadata__\":[]," A "," B "}", "__metadata__ is not an object", 0},
      {"{\"__metadata__\":\"pt\"," A "," B "}", "__metadata__ is not an object", 0},
      {"{\"__metadata__\":{},\"__metadata__\":{}," A "," B "}", "__metadata__ twice", 0},
      // ranges: equal, overlapping, a hole between, a hole before, one byte behind, one too few
      {"{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
       "tensor b: begins at byte 0, the one before it ends at 8", 8},
      {"{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
       "tensor b: begins at byte 4, the one before it ends at 8", 12},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}," B "}",
       "tensor b: begins at byte 8, the one before it ends at 4", 0},
      {"{" B "}", "tensor b: begins at byte 8, the one before it ends at 0", 0},
      {"{" A "}", "tensors end at byte 8, the file's data at 9", 9},
      {"{" A "," B "}", "declares ", 15},
      {"{}", "tensors end at byte 0, the file's data at 16", 0},
      {"{" A "," A "}", "tensor a: named twice", 8},
      {"{" A ",\"\\u0061\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}",
       "tensor a: named twice", 0},
      {"{" A ",\"b\\u0000c\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}}", "NUL", 0},
      // JSON that is none, or is followed by something
      {"", "header of 0 bytes", 0},
      {"{", "header of 1 bytes", 0},
      {"[]", "does not begin with {", 0},
      {" {" A "," B "}", "does not begin with {", 0},
      {"{" A "," B, "not JSON at byte", 0},
      {"{" A "," B "}}", "not JSON at byte", 0},
      {"{" A "," B "}{}", "not JSON at byte", 0},
      {"{" A "," B "}x", "not JSON at byte", 0},
      {"{" A "," B ",}", "not JSON at byte", 0},
      {"{a:1}", "not JSON at byte", 0},
      // entries
      {"{\"a\":7}", "tensor a: not an object", 0},
      {"{\"a\":null}", "tensor a: not an object", 0},
      {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,4]}}", "needs dtype", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"data_offsets\":[0,4]}}", "needs dtype, shape", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[2]}}", "and data_offsets", 0},
      {"{\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,4]}}", "needs dtype", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":2,\"data_offsets\":[0,4]}}", "needs dtype", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":4}}", "needs dtype", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]}}",
       "dtype twice", 0},
      {"{\"a\":{\"dtype\":\"BF17\",\"shape\":[2],\"data_offsets\":[0,4]}}", "unknown type BF17", 0},
      {"{\"a\":{\"dtype\":\"\",\"shape\":[2],\"data_offsets\":[0,4]}}", "unknown type", 0},
      {"{\"a\":{\"dtype\":\"bf16\",\"shape\":[2],\"data_offsets\":[0,4]}}", "unknown type bf16", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[-2],\"data_offsets\":[0,4]}}", "dimension 0", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[1,2.5],\"data_offsets\":[0,4]}}", "dimension 1", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[\"2\"],\"data_offsets\":[0,4]}}", "dimension 0", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[1e300],\"data_offsets\":[0,4]}}", "dimension 0", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[18446744073709551616],\"data_offsets\":[0,0]}}",
       "dimension 0", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[1,1,1,1,2],\"data_offsets\":[0,4]}}",
       "5 dimensions, at most 4", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}",
       "2^64 bits", 0},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2147483648,2147483648,4],\"data_offsets\":[0,0]}}",
       "2^64 bits", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,4]}}",
       "its shape takes 6 bytes, its data_offsets 4", 0},
      {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", "its shape takes", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[4,0]}}", "not a range", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[4]}}", "not a range", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[]}}", "not a range", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4,8]}}", "not a range", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[-4,0]}}", "not a range", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0.5,4.5]}}", "not a range", 0},
      {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,1e400]}}", "not a range", 0},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9007199254740992],\"data_offsets\":[0,9007199254740992]"
       "}}",
       "declares ", 0},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    Error e = {0};
    TensorSet set;
    if (parse(bad[i].header, bad[i].bytes ? bad[i].bytes : 16, &set, &e) == 0)
      fail_msg("%s: accepted", bad[i].header);
    if (!strstr(e.text, bad[i].says) || strncmp(e.text, "x.safetensors: ", 15) != 0)
      fail_msg("%s: says \"%s\", wanted \"%s\"", bad[i].header, e.text, bad[i].says);
    assert_int_equal(e.code, EXIT_INPUT);
    tensors_close(&set);
  }
}

// The eight bytes of the length themselves.
static void bad_lengths(void **state) {
  (void)state;
  const struct {
    uint64_t length;
    const char *says;
  } bad[] = {{0, "header of 0 bytes"},
             {5, "not JSON"},
             {100000000, "declares a header of 100000000 bytes, file has"},
             {100000001, "header of 100000001 bytes, at most 100000000"},
             {UINT64_C(1) << 63, "header of 9223372036854775808 bytes"},
             {UINT64_MAX, "header of 18446744073709551615 bytes"},
             {UINT64_MAX - 7, "at most 100000000"},
             {2336927755350992246u, "header of 2336927755350992246 bytes"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    size_t size;
    uint8_t *image = safetensors_image("{" A "," B "}", DATA, 16, &size);
    memcpy(image, &bad[i].length, 8); // these machines are little-endian
    Error e = {0};
    TensorSet set = {0};
    assert_int_equal(safetensors_parse("x", image, size, &set, &e), -1);
    assert_error(&e, EXIT_INPUT, bad[i].says);
    tensors_close(&set);
    free(image);
  }
}

static void deep_nesting(void **state) {
  (void)state;
  enum { DEEP = 100000 };
  char *header = malloc(DEEP + 8);
  assert_non_null(header);
  memcpy(header, "{\"a\":", 5);
  memset(header + 5, '[', DEEP);
  header[5 + DEEP] = 0;
  Error e = {0};
  TensorSet set;
  assert_int_equal(parse(header, 16, &set, &e), -1);
  assert_error(&e, EXIT_INPUT, "not JSON");
  tensors_close(&set);
  free(header);
}
//< test_safetensors_headers

/*: ## Any file, any one number

Files of random tensors in random order are read back whole. Then one number of the header is
changed: whatever it was, the ranges no longer add up. :*/
//> test_safetensors_random
static const struct {
  const char *name;
  unsigned bits;
  DType dtype;
} KINDS[] = {{"BOOL", 8, DT_NONE},    {"U8", 8, DT_NONE},      {"I8", 8, DT_NONE},
             {"F8_E4M3", 8, DT_NONE}, {"F8_E5M2", 8, DT_NONE}, {"I16", 16, DT_NONE},
             {"U16", 16, DT_NONE},    {"F16", 16, DT_F16},     {"BF16", 16, DT_BF16},
             {"I32", 32, DT_NONE},    {"U32", 32, DT_NONE},    {"F32", 32, DT_F32},
             {"F64", 64, DT_NONE},    {"I64", 64, DT_NONE},    {"U64", 64, DT_NONE},
             {"C64", 64, DT_NONE},    {"F8_E8M0", 8, DT_NONE}};

typedef struct Entry {
  char name[24];
  int kind, rank;
  int64_t dim[4];
  uint64_t begin, end;
} Entry;

static void print_header(const Entry *entry, const size_t *order, size_t count, char *out,
                         size_t room) {
  FILE *f = fmemopen(out, room, "w");
  if (!f) give_up("fmemopen");
  fputc('{', f);
  for (size_t i = 0; i < count; i++) {
    const Entry *t = &entry[order[i]];
    fprintf(f, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "", t->name,
            KINDS[t->kind].name);
    for (int d = 0; d < t->rank; d++) fprintf(f, "%s%" PRId64, d ? "," : "", t->dim[d]);
    fprintf(f, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->begin, t->end);
  }
  fputc('}', f);
  fclose(f);
}

static void random_files(void **state) {
  (void)state;
  uint64_t seed = 1;
  enum { MOST = 12 };
  for (int round = 0; round < 2000; round++) {
    Entry entry[MOST];
    size_t order[MOST] = {0}, count = 1 + test_random(&seed) % MOST;
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
      Entry *t = &entry[i];
      *t = (Entry){.kind = (int)(test_random(&seed) % (sizeof KINDS / sizeof *KINDS)),
                   .rank = (int)(test_random(&seed) % 5)};
      snprintf(t->name, sizeof t->name, "t%zu.%" PRIu64, i, test_random(&seed) % 1000);
      uint64_t n = 1;
      for (int d = 0; d < t->rank; d++)
        n *= (uint64_t)(t->dim[d] = 1 + (int64_t)(test_random(&seed) % 4));
      t->begin = at;
      t->end = at += n * KINDS[t->kind].bits / 8;
      size_t j = test_random(&seed) % (i + 1); // shuffled from the inside out
      order[i] = order[j];
      order[j] = i;
    }
    uint8_t *data = malloc(at);
    if (!data) give_up("malloc");
    for (uint64_t i = 0; i < at; i++) data[i] = (uint8_t)test_random(&seed);
    char header[8192];
    print_header(entry, order, count, header, sizeof header);
    size_t size;
    uint8_t *image = safetensors_image(header, data, at, &size);
    Error e = {0};
    TensorSet set = {0};
    assert_ok(safetensors_parse("r", image, size, &set, &e), &e);
    assert_int_equal(arrlen(set.list), count);
    for (size_t i = 0; i < count; i++) {
      const Tensor *t = tensor_find(&set, entry[i].name);
      assert_non_null(t);
      assert_int_equal(t->bytes, entry[i].end - entry[i].begin);
      assert_memory_equal(t->data, data + entry[i].begin, t->bytes);
      assert_int_equal(t->dtype, KINDS[entry[i].kind].dtype);
      assert_int_equal(t->rank, entry[i].rank);
      assert_memory_equal(t->dim, entry[i].dim, sizeof t->dim);
    }
    tensors_close(&set);
    free(image);

    // One number changes: an offset, a dimension, or where there is none, the kind.
    Entry *t = &entry[test_random(&seed) % count];
    uint64_t other = test_random(&seed) % (2 * at + 9);
    switch (test_random(&seed) % 3) {
    case 0: t->begin = other == t->begin ? other + 1 : other; break;
    case 1: t->end = other == t->end ? other + 1 : other; break;
    default:
      if (t->rank) t->dim[0] += 1 + (int64_t)(other % 5);
      else t->end++;
    }
    print_header(entry, order, count, header, sizeof header);
    image = safetensors_image(header, data, at, &size);
    if (safetensors_parse("r", image, size, &set, &e) == 0) fail_msg("accepted: %s", header);
    assert_int_equal(e.code, EXIT_INPUT);
    tensors_close(&set);
    free(image);
    free(data);
  }
}

static void every_prefix(void **state) {
  (void)state;
  size_t size;
  uint8_t *image =
      safetensors_image("{\"__metadata__\":{\"format\":\"pt\"}," A "," B "}  ", DATA, 16, &size);
  for (size_t n = 0; n <= size; n++) {
    uint8_t *prefix = malloc(n + 1); // of its own, so that a sanitizer sees a byte too far
    if (!prefix) give_up("malloc");
    uint8_t *shrunk = realloc(prefix, n ? n : 1);
    if (!shrunk) give_up("realloc");
    memcpy(shrunk, image, n);
    Error e = {0};
    TensorSet set = {0};
    int rc = safetensors_parse("p", shrunk, n, &set, &e);
    if ((rc == 0) != (n == size)) fail_msg("%zu of %zu bytes: %d %s", n, size, rc, e.text);
    tensors_close(&set);
    free(shrunk);
  }
  free(image);
}

static void many_tensors(void **state) {
  (void)state;
  enum { MANY = 50000 };
  char *header = malloc(MANY * 100), *at = header;
  if (!header) give_up("malloc");
  for (int i = 0; i < MANY; i++)
    at += sprintf(at,
                  "%c\"model.layers.%d.w\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                  i ? ',' : '{', i);
  *at++ = '}';
  *at = 0;
  Error e = {0};
  TensorSet set;
  assert_ok(parse(header, 0, &set, &e), &e);
  assert_int_equal(arrlen(set.list), MANY);
  tensors_close(&set);
  free(header);
}
//< test_safetensors_random

/*: ## Alignment and size

The data begins wherever the header ends. A tensor is found there, at any address, and beyond 2 GiB
as well: the file is sparse, so that the test needs no room for it. :*/
//> test_safetensors_place
static void any_alignment(void **state) {
  (void)state;
  char *folder = temp_folder();
  const uint16_t w[3] = {0x3f80, 0x4000, 0xc040}; // 1, 2, -3
  const TestTensor list[] = {{"odd", "U8", 1, {3}, 3, "abc"}, {"w", "BF16", 1, {3}, 6, w}};
  for (size_t padding = 0; padding < 8; padding++)
    for (size_t first = 0; first < 2; first++) {
      write_safetensors_padded(path_in(folder, "model.safetensors"), list + first, 2 - first,
                               padding);
      Error e = {0};
      TensorSet set;
      assert_ok(safetensors_open(folder, &set, &e), &e);
      assert_memory_equal(tensor_find(&set, "w")->data, w, sizeof w);
      tensors_close(&set);
    }
  remove_tree(folder);
}

static void beyond_two_gigabytes(void **state) {
  (void)state;
  char *folder = temp_folder();
  char path[4096];
  snprintf(path, sizeof path, "%s", path_in(folder, "model.safetensors"));
  const uint64_t hole = UINT64_C(3) << 30;
  const uint16_t w[4] = {0x3f80, 0x4000, 0x4040, 0x4080};
  char header[512];
  int n = snprintf(
      header, sizeof header,
      "{\"hole\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64 "],\"data_offsets\":[0,%" PRIu64 "]},"
      "\"w\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}}",
      hole, hole, hole, hole + 8);
  size_t size;
  uint8_t *image = safetensors_image(header, NULL, 0, &size);
  write_file(path, image, size);
  free(image);
  int fd = open(path, O_WRONLY);
  assert_true(fd >= 0);
  off_t end = (off_t)(8 + (uint64_t)n + hole);
  bool sparse = ftruncate(fd, end) == 0 && pwrite(fd, w, 8, end) == 8;
  struct stat st;
  sparse = sparse && fstat(fd, &st) == 0 && st.st_blocks < 1 << 16;
  close(fd);
  if (!sparse) {
    print_message("no sparse files in %s: skipped\n", folder);
    remove_tree(folder);
    skip();
    return;
  }
  Error e = {0};
  TensorSet set;
  assert_ok(safetensors_open(folder, &set, &e), &e);
  const Tensor *t = tensor_find(&set, "w"), *h = tensor_find(&set, "hole");
  assert_int_equal(t->data - h->data, hole);
  assert_int_equal(h->bytes, hole);
  assert_memory_equal(t->data, w, sizeof w);
  tensors_close(&set);

  assert_int_equal(truncate(path, end + 4), 0);
  assert_int_equal(safetensors_open(folder, &set, &e), -1);
  char says[96];
  snprintf(says, sizeof says, "declares %" PRIu64 " bytes, file has %" PRIu64, (uint64_t)end + 8,
           (uint64_t)end + 4);
  assert_error(&e, EXIT_INPUT, says);
  remove_tree(folder);
}
//< test_safetensors_place

/*: ## Folders :*/
//> test_safetensors_folder
static void refused(const char *folder, const char *says) {
  Error e = {0};
  TensorSet set;
  int rc = safetensors_open(folder, &set, &e);
  if (rc == 0) fail_msg("accepted, wanted \"%s\"", says);
  assert_error(&e, EXIT_INPUT, says);
  assert_null(set.list); // nothing is left to close
}

static const TestTensor A_TENSOR = {"a", "BF16", 2, {2, 2}, 8, DATA};
static const TestTensor B_TENSOR = {"b", "F32", 1, {2}, 8, DATA + 8};

static void short_files(void **state) {
  (void)state;
  char *folder = temp_folder();
  char path[4096];
  snprintf(path, sizeof path, "%s", path_in(folder, "model.safetensors"));
  refused(folder, "no model.safetensors and no model.safetensors.index.json");
  write_text(path_in(folder, "pytorch_model.bin"), "PK");
  refused(folder, "convert pytorch_model.bin first");

  const TestTensor big = {"big", "BF16", 2, {64, 64}, 8192, NULL};
  write_safetensors(path, &big, 1);
  struct stat st;
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(truncate(path, st.st_size - 4096), 0);
  char says[96];
  snprintf(says, sizeof says, "declares %lld bytes, file has %lld", (long long)st.st_size,
           (long long)st.st_size - 4096);
  refused(folder, says);
  assert_int_equal(truncate(path, 40), 0); // inside the header
  refused(folder, "declares a header of");
  assert_int_equal(truncate(path, 7), 0);
  refused(folder, "7 bytes, a header takes at least 8");
  assert_int_equal(truncate(path, 0), 0);
  refused(folder, "0 bytes, a header takes at least 8");

  write_text(path, "version https://git-lfs.github.com/spec/v1\n"
                   "oid sha256:68a2e4be76fa709455a60272fba8e512c02d81c46e6c671cc9449e374fd6809a\n"
                   "size 2471645608\n");
  refused(folder, "a Git LFS pointer, not the file; run git lfs pull");
  assert_int_equal(unlink(path), 0);
  assert_int_equal(mkdir(path, 0777), 0);
  refused(folder, "not a regular file");
  remove_tree(folder);
}

static void shards(void **state) {
  (void)state;
  char *folder = temp_folder();
  char index[4096];
  snprintf(index, sizeof index, "%s", path_in(folder, "model.safetensors.index.json"));
  write_safetensors(path_in(folder, "one.safetensors"), &A_TENSOR, 1);
  write_safetensors(path_in(folder, "two.safetensors"), &B_TENSOR, 1);
  Error e = {0};
  TensorSet set;
  write_text(index, "{\"metadata\":{\"total_size\":16},\"weight_map\":"
                    "{\"b\":\"two.safetensors\",\"a\":\"one.safetensors\"}}");
  assert_ok(safetensors_open(folder, &set, &e), &e);
  assert_int_equal(arrlen(set.list), 2);
  assert_memory_equal(tensor_find(&set, "a")->data, DATA, 8);
  assert_memory_equal(tensor_find(&set, "b")->data, DATA + 8, 8);
  assert_non_null(strstr(tensor_find(&set, "b")->file, "/two.safetensors"));
  tensors_close(&set);

  const struct {
    const char *map, *says;
  } bad[] = {
      {"{}", "weight_map: missing or empty"},
      {"[]", "weight_map: missing or empty"},
      {"{\"weight_map\":{}}", "weight_map: missing or empty"},
      {"{\"weight_map\":[\"one.safetensors\"]}", "weight_map: missing or empty"},
      {"{\"weight_map\":{\"a\":1}}", "tensor a: its file is not a string"},
      {"{\"weight_map\":{\"a\":\"three.safetensors\"}}",
       "three.safetensors: named by model.safetens"},
      {"{\"weight_map\":{\"a\":\"two.safetensors\"}}", "tensor a: not in"},
      {"{\"weight_map\":{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\"}}", "but in"},
      {"{\"weight_map\":{\"a\":\"one.safetensors\",\"c\":\"one.safetensors\"}}",
       "tensor c: not in"},
      {"{\"weight_map\":{\"a\":\"../one.safetensors\"}}",
       "../one.safetensors is not a file of this"},
      {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "/etc/passwd is not a file of this folder"},
      {"{\"weight_map\":{\"a\":\"sub/one.safetensors\"}}", "is not a file of this folder"},
      {"{\"weight_map\":{\"a\":\"./one.safetensors\"}}", "is not a file of this folder"},
      {"{\"weight_map\":{\"a\":\"..\"}}", ".. is not a file of this folder"},
      {"{\"weight_map\":{\"a\":\".\"}}", ". is not a file of this folder"},
      {"{\"weight_map\":{\"a\":\"\"}}", "is not a file of this folder"},
      {"{\"weight_map\":{\"a\":\"model.safetensors.index.json\"}}", "header of"},
      {"{\"weight_map\":{\"a\":\"one.safetensors\"}", "not JSON"},
      {"{\"weight_map\":{\"a\":\"one.safetensors\"}} x", "not JSON"},
      {"", "empty"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    write_text(index, bad[i].map);
    refused(folder, bad[i].says);
  }

  // the same tensor in two shards
  write_safetensors(path_in(folder, "three.safetensors"), (const TestTensor[]){A_TENSOR}, 1);
  write_text(index, "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"three.safetensors\"}}");
  refused(folder, "tensor a: named twice, first in");

  // a short shard
  write_text(index, "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}}");
  struct stat st;
  assert_int_equal(stat(path_in(folder, "two.safetensors"), &st), 0);
  assert_int_equal(truncate(path_in(folder, "two.safetensors"), st.st_size - 1), 0);
  refused(folder, "two.safetensors: declares");
  write_text(path_in(folder, "two.safetensors"), "version https://git-lfs.github.com/spec/v1\n");
  refused(folder, "run git lfs pull");

  // one whole file comes before an index, as in Transformers
  write_safetensors(path_in(folder, "model.safetensors"), &A_TENSOR, 1);
  assert_ok(safetensors_open(folder, &set, &e), &e);
  assert_int_equal(arrlen(set.list), 1);
  tensors_close(&set);
  remove_tree(folder);
}
//< test_safetensors_folder

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(good_headers), cmocka_unit_test(bad_headers),
      cmocka_unit_test(bad_lengths),  cmocka_unit_test(deep_nesting),
      cmocka_unit_test(random_files), cmocka_unit_test(every_prefix),
      cmocka_unit_test(many_tensors), cmocka_unit_test(any_alignment),
      cmocka_unit_test(short_files),  cmocka_unit_test(beyond_two_gigabytes),
      cmocka_unit_test(shards),
  };
  return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
