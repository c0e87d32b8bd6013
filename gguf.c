/*: # GGUF: one file, everything inside

A GGUF file holds what a Hugging Face folder spreads over several files: settings, vocabulary and
tensors. It begins with a list of typed **keys**, goes on with a list of **tensor infos** (name, sizes,
type, place) and ends with the tensors' bytes. Nothing in it needs to be copied: we walk the two lists
once, check every number against the bytes that are really there, and remember where things lie.

    "GGUF" version tensors keys │ key type value … │ name rank sizes type offset … │ pad │ bytes …
    └──────────────────────── the header ─────────────────────────────────────────┘       └ offset 0

The walk is the only place that doubts the file. A string that passed it can be read later without
looking at the file's end again, so the tokenizer may run through 150,000 of them at memory speed. :*/
#include "tiles.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <stb/stb_ds.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF's numbers are read as they lie");

//> gguf_struct
struct Gguf {
  char *file; // for messages
  const uint8_t *data;
  size_t header; // bytes up to the end of the tensor infos
  struct GgufEntry {
    char *key;
    GgufValue value;
  } * values; // stb_ds string map; the keys are ours
  TensorSet tensors;
  float *rope_factors; // aligned copy of rope_freqs.weight, or NULL
};
//< gguf_struct

/*: ## Types

A quantized row is cut into blocks, and a block has a fixed number of bytes. We compute with six
of these types and only measure the others: a tensor that nobody asks for may be of any type, but the
next tensor's place can be checked only when its size is known. :*/
//> gguf_types
typedef struct BlockType {
  const char *name;         // NULL: no such type
  uint16_t elements, bytes; // of a block
} BlockType;

static const BlockType block_types[] = {
    [0] = {"F32", 1, 4},           [1] = {"F16", 1, 2},           [2] = {"Q4_0", 32, 18},
    [3] = {"Q4_1", 32, 20},        [6] = {"Q5_0", 32, 22},        [7] = {"Q5_1", 32, 24},
    [8] = {"Q8_0", 32, 34},        [9] = {"Q8_1", 32, 40},        [10] = {"Q2_K", 256, 84},
    [11] = {"Q3_K", 256, 110},     [12] = {"Q4_K", 256, 144},     [13] = {"Q5_K", 256, 176},
    [14] = {"Q6_K", 256, 210},     [15] = {"Q8_K", 256, 292},     [16] = {"IQ2_XXS", 256, 66},
    [17] = {"IQ2_XS", 256, 74},    [18] = {"IQ3_XXS", 256, 98},   [19] = {"IQ1_S", 256, 50},
    [20] = {"IQ4_NL", 32, 18},     [21] = {"IQ3_S", 256, 110},    [22] = {"IQ2_S", 256, 82},
    [23] = {"IQ4_XS", 256, 136},   [24] = {"I8", 1, 1},           [25] = {"I16", 1, 2},
    [26] = {"I32", 1, 4},          [27] = {"I64", 1, 8},          [28] = {"F64", 1, 8},
    [29] = {"IQ1_M", 256, 56},     [30] = {"BF16", 1, 2},         [31] = {"Q4_0_4_4", 32, 18},
    [32] = {"Q4_0_4_8", 32, 18},   [33] = {"Q4_0_8_8", 32, 18},   [34] = {"TQ1_0", 256, 54},
    [35] = {"TQ2_0", 256, 66},     [36] = {"IQ4_NL_4_4", 32, 18}, [37] = {"IQ4_NL_4_8", 32, 18},
    [38] = {"IQ4_NL_8_8", 32, 18}, [39] = {"MXFP4", 32, 17},      [40] = {"NVFP4", 64, 36},
    [41] = {"Q1_0", 128, 18},
};
enum { BLOCK_TYPES = sizeof block_types / sizeof *block_types };

static int unsupported(const Tensor *t, Error *e) {
  return fail(e, EXIT_INPUT,
              "%s: tensor %s: type %s not supported (F32, F16, BF16, Q8_0, Q4_0, Q4_1 are)",
              t->file, t->name, t->type);
}
//< gguf_types

/*: ## The walk

A **cursor** knows what it is reading, so that the message for a file that ends too early can say in
which key or tensor it did. `take` is the only function that moves it. :*/
//> gguf_cursor
typedef struct Cursor {
  const char *file;
  const uint8_t *data;
  uint64_t at, size;
  char what[112]; // "key general.name"
  Error *e;
} Cursor;

// The next `bytes` bytes, or NULL with the error set.
static const uint8_t *take(Cursor *c, uint64_t bytes) {
  if (bytes > c->size - c->at) {
    fail(c->e, EXIT_INPUT, "%s: %s: declares %llu bytes at %llu, file has %llu", c->file, c->what,
         (unsigned long long)bytes, (unsigned long long)c->at, (unsigned long long)c->size);
    return NULL;
  }
  const uint8_t *p = c->data + c->at;
  c->at += bytes;
  return p;
}

static int take_u32(Cursor *c, uint32_t *out) {
  const uint8_t *p = take(c, 4);
  if (!p) return -1;
  memcpy(out, p, 4);
  return 0;
}

static int take_u64(Cursor *c, uint64_t *out) {
  const uint8_t *p = take(c, 8);
  if (!p) return -1;
  memcpy(out, p, 8);
  return 0;
}

// A count of things of at least `each` bytes, so that nobody allocates for what cannot be there.
static int take_count(Cursor *c, uint64_t each, const char *things, uint64_t *out) {
  if (take_u64(c, out) != 0) return -1;
  uint64_t left = c->size - c->at;
  if (*out > left / each)
    return fail(c->e, EXIT_INPUT, "%s: %s: declares %llu %s, only %llu bytes are left", c->file,
                c->what, (unsigned long long)*out, things, (unsigned long long)left);
  return 0;
}

// A name becomes a C string of our own: at most `limit` bytes, none of them zero.
static char *take_name(Cursor *c, uint64_t limit) {
  uint64_t n;
  const uint8_t *p = NULL;
  if (take_u64(c, &n) != 0) return NULL;
  if (n > limit) {
    fail(c->e, EXIT_INPUT, "%s: %s: a name of %llu bytes, at most %llu are allowed", c->file,
         c->what, (unsigned long long)n, (unsigned long long)limit);
    return NULL;
  }
  if (!(p = take(c, n))) return NULL;
  if (memchr(p, 0, n)) {
    fail(c->e, EXIT_INPUT, "%s: %s: a zero byte in its name", c->file, c->what);
    return NULL;
  }
  char *s = malloc(n + 1);
  if (!s) {
    fail(c->e, EXIT_FAIL, "%s: out of memory", c->file);
    return NULL;
  }
  memcpy(s, p, n);
  s[n] = 0;
  return s;
}
//< gguf_cursor

/*: ### Values

A value is a number, a string, or an array of values of one type. Arrays of arrays exist in the format
and in hardly any file, so a small depth is enough. :*/
//> gguf_value
enum { MAX_DEPTH = 4 };

static const uint8_t value_bytes[] = {
    [GGUF_U8] = 1,     [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2,
    [GGUF_U32] = 4,    [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1,
    [GGUF_U64] = 8,    [GGUF_I64] = 8, [GGUF_F64] = 8, [GGUF_ARRAY] = 0 /* varies */,
    [GGUF_STRING] = 0,
};

static int take_value(Cursor *c, uint32_t type, int depth, GgufValue *v) {
  *v = (GgufValue){.type = type};
  if (type > GGUF_F64)
    return fail(c->e, EXIT_INPUT, "%s: %s: unknown value type %u", c->file, c->what, type);
  if (type == GGUF_STRING) {
    if (take_u64(c, &v->count) != 0 || !(v->p = take(c, v->count))) return -1;
    return 0;
  }
  uint64_t flags = type == GGUF_BOOL; // how many bytes must be 0 or 1
  if (type == GGUF_ARRAY) {
    uint32_t element;
    if (depth == MAX_DEPTH)
      return fail(c->e, EXIT_INPUT, "%s: %s: arrays nested deeper than %d", c->file, c->what,
                  MAX_DEPTH);
    if (take_u32(c, &element) != 0) return -1;
    if (element > GGUF_F64)
      return fail(c->e, EXIT_INPUT, "%s: %s: unknown value type %u", c->file, c->what, element);
    // The shortest string is its length; the shortest array a type and a count.
    uint64_t least = value_bytes[element] ? value_bytes[element] : element == GGUF_STRING ? 8 : 12;
    if (take_count(c, least, "elements", &v->count) != 0) return -1;
    v->element = element;
    v->p = c->data + c->at;
    if (value_bytes[element]) {
      c->at += v->count * value_bytes[element];
      flags = element == GGUF_BOOL ? v->count : 0;
    } else {
      GgufValue inner;
      for (uint64_t i = 0; i < v->count; i++)
        if (take_value(c, element, depth + 1, &inner) != 0) return -1;
    }
  } else if (!(v->p = take(c, value_bytes[type]))) {
    return -1;
  }
  for (uint64_t i = 0; i < flags; i++)
    if (v->p[i] > 1)
      return fail(c->e, EXIT_INPUT, "%s: %s: a bool of %u, 0 or 1 are allowed", c->file, c->what,
                  v->p[i]);
  return 0;
}

static int take_keys(Cursor *c, uint64_t count, Gguf *g) {
  sh_new_strdup(g->values); // an empty map, so that a lookup never has to make one
  for (uint64_t i = 0; i < count; i++) {
    snprintf(c->what, sizeof c->what, "key %llu of %llu", (unsigned long long)i + 1,
             (unsigned long long)count);
    char *key = take_name(c, 65535);
    if (!key) return -1;
    snprintf(c->what, sizeof c->what, "key %.100s", key);
    struct GgufEntry entry = {.key = key};
    uint32_t type;
    int rc = 0;
    if (shgeti(g->values, key) >= 0)
      rc = fail(c->e, EXIT_INPUT, "%s: %s: there twice", c->file, c->what);
    else if (take_u32(c, &type) != 0 || take_value(c, type, 0, &entry.value) != 0) rc = -1;
    else shputs(g->values, entry); // copies the key
    free(key);
    if (rc != 0) return -1;
  }
  return 0;
}
//< gguf_value

/*: ### Tensor infos

GGUF writes a tensor's sizes innermost first: an embedding of 49,152 rows by 576 columns says
`576, 49152`. `Tensor` has the outermost first, like everything else here, so they are turned around. :*/
//> gguf_tensor_info
typedef struct Span {
  uint64_t begin, bytes; // from the start of the data
  int32_t tensor;
} Span;

static int take_tensor(Cursor *c, const Gguf *g, Tensor *t, uint64_t *offset) {
  uint32_t rank, type;
  if (take_u32(c, &rank) != 0) return -1;
  if (rank > 4)
    return fail(c->e, EXIT_INPUT, "%s: %s: %u dimensions, at most 4 are allowed", c->file, c->what,
                rank);
  t->rank = (int)rank;
  t->file = g->file;
  uint64_t dim[4] = {1, 1, 1, 1}, elements = 1;
  for (uint32_t i = 0; i < rank; i++) {
    if (take_u64(c, &dim[i]) != 0) return -1;
    // At most 2^48, so that no size computed from it overflows: every block is at most 292 bytes.
    if (dim[i] == 0 || dim[i] > (UINT64_C(1) << 48) / elements)
      return fail(c->e, EXIT_INPUT, "%s: %s: impossible dimension %llu", c->file, c->what,
                  (unsigned long long)dim[i]);
    elements *= dim[i];
    t->dim[rank - 1 - i] = (int64_t)dim[i];
  }
  if (take_u32(c, &type) != 0 || take_u64(c, offset) != 0) return -1;
  if (type >= BLOCK_TYPES || !block_types[type].name)
    return fail(c->e, EXIT_INPUT, "%s: %s: unknown type %u", c->file, c->what, type);
  const BlockType *b = &block_types[type];
  if (dim[0] % b->elements)
    return fail(c->e, EXIT_INPUT, "%s: %s: rows of %llu elements, %s needs a multiple of %u",
                c->file, c->what, (unsigned long long)dim[0], b->name, b->elements);
  snprintf(t->type, sizeof t->type, "%s", b->name);
  t->dtype = type == 0 ? DT_F32 : type == 1 ? DT_F16 : type == 30 ? DT_BF16 : DT_NONE;
  t->bytes = elements / b->elements * b->bytes;
  return 0;
}

static int take_tensors(Cursor *c, uint64_t count, uint64_t alignment, Gguf *g, Span *spans) {
  TensorSet *set = &g->tensors;
  sh_new_strdup(set->by_name);
  for (uint64_t i = 0; i < count; i++) {
    snprintf(c->what, sizeof c->what, "tensor %llu of %llu", (unsigned long long)i + 1,
             (unsigned long long)count);
    char *name = take_name(c, 64);
    if (!name) return -1;
    arrput(set->list, (Tensor){.name = name}); // from here on the set owns the name
    snprintf(c->what, sizeof c->what, "tensor %s", name);
    if (shgeti(set->by_name, name) >= 0)
      return fail(c->e, EXIT_INPUT, "%s: %s: there twice", c->file, c->what);
    shput(set->by_name, name, (int32_t)i);
    uint64_t offset = 0;
    Tensor *t = &set->list[i];
    if (take_tensor(c, g, t, &offset) != 0) return -1;
    if (offset % alignment)
      return fail(c->e, EXIT_INPUT, "%s: %s: offset %llu is not a multiple of %llu", c->file,
                  c->what, (unsigned long long)offset, (unsigned long long)alignment);
    if (offset > UINT64_C(1) << 60)
      return fail(c->e, EXIT_INPUT, "%s: %s: impossible offset %llu", c->file, c->what,
                  (unsigned long long)offset);
    spans[i] = (Span){offset, t->bytes, (int32_t)i};
  }
  return 0;
}
//< gguf_tensor_info

/*: ### Where the bytes lie

Two tensors that share bytes, or a file that ends before its last tensor, would give fluent
nonsense or a bus error in the middle of a sentence. Sorted by their place, both are found at once. :*/
//> gguf_layout
static int by_begin(const void *a, const void *b) {
  const Span *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

// start: where the data begins in the file.
static int place_tensors(const Cursor *c, uint64_t count, uint64_t start, bool header_only, Gguf *g,
                         Span *spans) {
  Tensor *list = g->tensors.list;
  qsort(spans, count, sizeof *spans, by_begin);
  for (uint64_t i = 0; i + 1 < count; i++) {
    const Span *a = &spans[i], *b = &spans[i + 1];
    if (b->begin - a->begin < a->bytes)
      return fail(c->e, EXIT_INPUT,
                  "%s: tensor %s: begins at %llu, but tensor %s has %llu bytes from %llu", c->file,
                  list[b->tensor].name, (unsigned long long)b->begin, list[a->tensor].name,
                  (unsigned long long)a->bytes, (unsigned long long)a->begin);
  }
  if (header_only || count == 0) return 0;
  Span last = spans[count - 1];
  uint64_t end = start + last.begin + last.bytes;
  if (end > c->size)
    return fail(c->e, EXIT_INPUT, "%s: tensor %s: declares %llu bytes, file has %llu", c->file,
                list[last.tensor].name, (unsigned long long)end, (unsigned long long)c->size);
  for (uint64_t i = 0; i < count; i++)
    list[spans[i].tensor].data = c->data + start + spans[i].begin;
  return 0;
}
//< gguf_layout

/*: ### The beginning of the file

Version 1 counted in 32 bits and was gone after a few weeks. A big-endian file has the bytes of
its version the other way round, which makes it a very large number. :*/
//> gguf_parse
static int parse(Cursor *c, bool header_only, Gguf *g) {
  if (c->size == 0) return fail(c->e, EXIT_INPUT, "%s: an empty file", c->file);
  if (c->size < 4 || memcmp(c->data, "GGUF", 4) != 0)
    return fail(c->e, EXIT_INPUT, "%s: not a GGUF file", c->file);
  c->at = 4;
  uint32_t version;
  uint64_t tensors, keys;
  if (take_u32(c, &version) != 0) return -1;
  if (version && !(version & 0xffff))
    return fail(c->e, EXIT_INPUT, "%s: a big-endian GGUF file, little-endian ones are supported",
                c->file);
  if (version != 2 && version != 3)
    return fail(c->e, EXIT_INPUT, "%s: GGUF version %u not supported (2 and 3 are)", c->file,
                version);
  // The shortest tensor info: an empty name, no dimensions, type, offset. The shortest key: an
  // empty name, a type, one byte.
  if (take_count(c, 8 + 4 + 4 + 8, "tensors", &tensors) != 0) return -1;
  if (take_count(c, 8 + 4 + 1, "keys", &keys) != 0) return -1;
  if (tensors > INT32_MAX)
    return fail(c->e, EXIT_INPUT, "%s: %s: declares %llu tensors, at most %d are allowed", c->file,
                c->what, (unsigned long long)tensors, INT32_MAX);
  if (take_keys(c, keys, g) != 0) return -1;

  int64_t alignment = 32;
  if (gguf_get(g, "general.alignment") && !gguf_int(g, "general.alignment", &alignment))
    return fail(c->e, EXIT_INPUT, "%s: key general.alignment: not an integer", c->file);
  if (alignment < 1 || alignment > 1 << 30 || (alignment & (alignment - 1)))
    return fail(c->e, EXIT_INPUT, "%s: key general.alignment: %lld is not a power of two up to %d",
                c->file, (long long)alignment, 1 << 30);

  Span *spans = malloc((tensors + 1) * sizeof *spans);
  if (!spans) return fail(c->e, EXIT_FAIL, "%s: out of memory", c->file);
  int rc = take_tensors(c, tensors, (uint64_t)alignment, g, spans);
  if (rc == 0) {
    g->header = c->at;
    uint64_t start = (c->at + (uint64_t)alignment - 1) & ~((uint64_t)alignment - 1);
    rc = place_tensors(c, tensors, start, header_only, g, spans);
  }
  free(spans);
  return rc;
}

// GGUF's way to say "llama3": one divisor for each pair of a head. Its place in the file may be at
// any address, so the floats are copied to one that suits them.
static int keep_rope_factors(Gguf *g, Error *e) {
  const Tensor *t = tensor_find(&g->tensors, "rope_freqs.weight");
  if (!t || !t->data) return 0;
  if (t->dtype != DT_F32 || t->rank != 1 || t->dim[0] > 1 << 16)
    return fail(e, EXIT_INPUT, "%s: tensor %s: %s of %d dimensions, a short row of F32 expected",
                g->file, t->name, t->type, t->rank);
  g->rope_factors = malloc(t->bytes);
  if (!g->rope_factors) return fail(e, EXIT_FAIL, "%s: out of memory", g->file);
  memcpy(g->rope_factors, t->data, t->bytes);
  return 0;
}

int gguf_parse(const char *file, const uint8_t *data, size_t size, bool header_only, Gguf **out,
               Error *e) {
  *out = NULL;
  Gguf *g = calloc(1, sizeof *g);
  if (!g || !(g->file = strdup(file))) {
    free(g);
    return fail(e, EXIT_FAIL, "%s: out of memory", file);
  }
  g->data = data;
  Cursor c = {.file = file, .data = data, .size = size, .what = "header", .e = e};
  if (parse(&c, header_only, g) != 0 || keep_rope_factors(g, e) != 0) {
    gguf_close(g);
    return -1;
  }
  *out = g;
  return 0;
}

void gguf_close(Gguf *g) {
  if (!g) return;
  shfree(g->values);
  tensors_close(&g->tensors);
  free(g->rope_factors);
  free(g->file);
  free(g);
}

const uint8_t *gguf_header(const Gguf *g, size_t *bytes) {
  *bytes = g->header;
  return g->data;
}

const TensorSet *gguf_tensors(const Gguf *g) { return &g->tensors; }
//< gguf_parse

/*: ## Asking for a value

Writers disagree about widths: a count is a `u32` in one file and a `u64` or an `i32` in the next. So we
ask for *an integer* or *a number*, whatever its type. :*/
//> gguf_get
const GgufValue *gguf_get(const Gguf *g, const char *key) {
  struct GgufEntry *values = g->values; // the macro assigns to its argument
  ptrdiff_t i = values ? shgeti(values, key) : -1;
  return i < 0 ? NULL : &values[i].value;
}

// False where the value is no integer or above INT64_MAX.
static bool to_int(GgufType type, const uint8_t *p, int64_t *out) {
#define WIDEN(tag, T)                                                                              \
  case tag: {                                                                                      \
    T v;                                                                                           \
    memcpy(&v, p, sizeof v);                                                                       \
    *out = v;                                                                                      \
    return true;                                                                                   \
  }
  switch (type) {
    WIDEN(GGUF_U8, uint8_t)
    WIDEN(GGUF_I8, int8_t)
    WIDEN(GGUF_U16, uint16_t)
    WIDEN(GGUF_I16, int16_t)
    WIDEN(GGUF_U32, uint32_t)
    WIDEN(GGUF_I32, int32_t)
    WIDEN(GGUF_I64, int64_t)
    WIDEN(GGUF_BOOL, uint8_t)
  case GGUF_U64: {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    *out = (int64_t)v;
    return v <= INT64_MAX;
  }
  default: return false;
  }
#undef WIDEN
}

bool gguf_int(const Gguf *g, const char *key, int64_t *out) {
  const GgufValue *v = gguf_get(g, key);
  int64_t n;
  if (!v || !to_int(v->type, v->p, &n)) return false;
  *out = n;
  return true;
}

bool gguf_float(const Gguf *g, const char *key, double *out) {
  const GgufValue *v = gguf_get(g, key);
  if (!v) return false;
  if (v->type == GGUF_F32) {
    float f;
    memcpy(&f, v->p, sizeof f);
    *out = f;
    return true;
  }
  if (v->type == GGUF_F64) {
    memcpy(out, v->p, sizeof *out);
    return true;
  }
  if (v->type == GGUF_U64) {
    uint64_t n;
    memcpy(&n, v->p, sizeof n);
    *out = (double)n;
    return true;
  }
  int64_t n;
  if (v->type == GGUF_BOOL || !to_int(v->type, v->p, &n)) return false;
  *out = (double)n;
  return true;
}

bool gguf_string(const Gguf *g, const char *key, const char **p, size_t *bytes) {
  const GgufValue *v = gguf_get(g, key);
  if (!v || v->type != GGUF_STRING) return false;
  *p = (const char *)v->p;
  *bytes = v->count;
  return true;
}

bool gguf_strings(const Gguf *g, const char *key, GgufStrings *it) {
  const GgufValue *v = gguf_get(g, key);
  if (!v || v->type != GGUF_ARRAY || v->element != GGUF_STRING) return false;
  *it = (GgufStrings){v->p, v->count};
  return true;
}

// The lengths were checked when the file was parsed.
bool gguf_next(GgufStrings *it, const char **p, size_t *bytes) {
  if (it->left == 0) return false;
  uint64_t n;
  memcpy(&n, it->p, sizeof n);
  *p = (const char *)it->p + sizeof n;
  *bytes = n;
  it->p += sizeof n + n;
  it->left--;
  return true;
}
//< gguf_get

/*: ## Widening

Tiles computes with two-byte weights, so a quantized matrix is widened once, at import. A block of 32
weights shares one FP16 scale `d`; Q4_1 adds an FP16 minimum `m`:

| type | bytes of a block | weight j |
|---|---|---|
| Q8_0 | `d`, 32 signed bytes | q[j] · d |
| Q4_0 | `d`, 16 bytes of two nibbles | (q[j] − 8) · d |
| Q4_1 | `d`, `m`, 16 bytes of two nibbles | q[j] · d + m |

The low nibbles are weights 0 to 15, the high ones 16 to 31. A product of an 11-bit and an 8-bit number
is exact in FP32. What rounds is the sum of Q4_1, far below the last bit that stays, and then the
narrowing to FP16.

FP16 ends at 65,504. A scale can be valid and its largest weight still not fit; that is an error, never
an infinity in the middle of a matrix.

Narrowing is `f32_to_f16` without its branches, so that the compiler can do several weights at a time. An
addition does the rounding: next to 2^(e+13), an FP32 number has ten bits left for what lies
below 2^(e+1), and those are the fraction of an FP16 number with exponent e, subnormal ones with e = −14
included. :*/
//> gguf_narrow
// v: [n] → out: [n]. Returns whether all fit; NaN and infinity do not. n: 16 or 32.
static inline bool narrow(const float *restrict v, uint16_t *restrict out, int n) {
  int32_t a[32], largest = 0; // magnitudes, as bits
  for (int i = 0; i < n; i++) {
    memcpy(&a[i], &v[i], 4);
    a[i] &= 0x7fffffff;
    largest = a[i] > largest ? a[i] : largest;
  }
  for (int i = 0; i < n; i++) {
    int32_t least = a[i] > 0x38800000 ? a[i] : 0x38800000;        // 2^-14 at least
    uint32_t big = ((uint32_t)least & 0x7f800000u) + (13u << 23); // 2^(e+13)
    uint32_t sum, sign;
    float x, y;
    memcpy(&x, &a[i], 4);
    memcpy(&y, &big, 4);
    y += x;
    memcpy(&sum, &y, 4);
    memcpy(&sign, &v[i], 4);
    out[i] = (uint16_t)(((big - 0x3f000000u) >> 13) + (sum - big) + (sign >> 16 & 0x8000u));
  }
  return largest < 0x477ff000; // 65,520 and above round to infinity
}
//< gguf_narrow

/*: A block of nibbles has only sixteen different weights. They are computed and narrowed once, and
the block's 32 weights are looked up. Weights that no nibble asks for may be anything, so a table that
does not fit is looked at weight by weight. :*/
//> gguf_blocks
enum { BLOCK = 32 };

// p: the block's bytes, out: [32]. False where a weight does not fit: *bad.
static inline bool block_q8_0(const uint8_t *p, uint16_t *out, float *bad) {
  uint16_t scale;
  int8_t q[BLOCK];
  float v[BLOCK];
  uint16_t h[BLOCK];
  memcpy(&scale, p, 2);
  memcpy(q, p + 2, sizeof q);
  float d = f16_to_f32(scale);
  for (int i = 0; i < BLOCK; i++) v[i] = (float)q[i] * d;
  bool fits = narrow(v, h, BLOCK);
  memcpy(out, h, sizeof h);
  for (int i = 0; !fits && i < BLOCK; i++)
    if (!(fabsf(v[i]) < 65520.0f)) *bad = v[i]; // NaN too
  return fits;
}

// Of d and m come the sixteen weights (k + bias) * d + m.
static inline bool block_q4(const uint8_t *nibbles, float d, int bias, float m, uint16_t *out,
                            float *bad) {
  float v[16];
  uint16_t table[16], h[BLOCK];
  uint8_t q[BLOCK / 2];
  memcpy(q, nibbles, sizeof q);
  for (int k = 0; k < 16; k++) v[k] = (float)(k + bias) * d + m;
  bool fits = narrow(v, table, 16);
  for (int i = 0; i < BLOCK / 2; i++) {
    h[i] = table[q[i] & 15];
    h[i + BLOCK / 2] = table[q[i] >> 4];
  }
  memcpy(out, h, sizeof h);
  bool all = true;
  for (int i = 0; !fits && i < BLOCK; i++) {
    float x = v[i < BLOCK / 2 ? q[i] & 15 : q[i - BLOCK / 2] >> 4];
    if (!(fabsf(x) < 65520.0f)) *bad = x, all = false;
  }
  return all;
}
//< gguf_blocks

/*: The whole tensor, block by block. It fails where a weight does not fit into FP16. :*/
//> gguf_widen
int gguf_widen(const Tensor *t, uint16_t *out, Error *e) {
  enum { Q8_0, Q4_0, Q4_1 } kind;
  if (strcmp(t->type, "Q8_0") == 0) kind = Q8_0;
  else if (strcmp(t->type, "Q4_0") == 0) kind = Q4_0;
  else if (strcmp(t->type, "Q4_1") == 0) kind = Q4_1;
  else return unsupported(t, e);
  if (!t->data)
    return fail(e, EXIT_INPUT, "%s: tensor %s: its %llu bytes are not here", t->file, t->name,
                (unsigned long long)t->bytes);
  size_t step = kind == Q8_0 ? 34 : kind == Q4_0 ? 18 : 20;
  const uint8_t *p = t->data;
  for (uint64_t b = 0; b < t->bytes / step; b++, p += step, out += BLOCK) {
    uint16_t d, m = 0;
    float bad = 0;
    bool fits;
    memcpy(&d, p, 2);
    if (kind == Q4_1) memcpy(&m, p + 2, 2);
    if (kind == Q8_0) fits = block_q8_0(p, out, &bad);
    else if (kind == Q4_0) // x + -0 is x, even where x is -0
      fits = block_q4(p + 2, f16_to_f32(d), -8, -0.0f, out, &bad);
    else fits = block_q4(p + 4, f16_to_f32(d), 0, f16_to_f32(m), out, &bad);
    if (!fits)
      return fail(e, EXIT_INPUT, "%s: tensor %s: a weight of %g, F16 ends at 65504", t->file,
                  t->name, (double)bad);
  }
  return 0;
}
//< gguf_widen

/*: ## The shape

The keys of the shape begin with the architecture's name: `llama.block_count`. What is not said by a
key is said by a tensor: a model has biases when its first layer has, and an lm_head of its own
when there is an `output.weight`. :*/
//> gguf_ask
typedef struct Question {
  const Gguf *g;
  const char *file;
  char arch[16];
  char key[80]; // the last one asked for
  Error *e;
} Question;

static const GgufValue *ask(Question *q, const char *suffix) {
  snprintf(q->key, sizeof q->key, "%s.%s", q->arch, suffix);
  return gguf_get(q->g, q->key);
}

// A size, from 1 to INT32_MAX; `fallback` where the key is absent, an error where that is 0. A value
// for each layer will do when all of them are equal.
static int ask_size(Question *q, const char *suffix, int32_t fallback, int32_t *out) {
  const GgufValue *v = ask(q, suffix);
  *out = fallback;
  if (!v && fallback) return 0;
  if (!v) return fail(q->e, EXIT_INPUT, "%s: key %s: missing", q->file, q->key);
  bool array = v->type == GGUF_ARRAY;
  GgufType type = array ? v->element : v->type;
  uint64_t count = array ? v->count : 1;
  int64_t first = 0, n = 0;
  if (count == 0) return fail(q->e, EXIT_INPUT, "%s: key %s: an empty array", q->file, q->key);
  for (uint64_t i = 0; i < count; i++) {
    if (!to_int(type, v->p + i * value_bytes[type], &n))
      return fail(q->e, EXIT_INPUT, "%s: key %s: not an integer", q->file, q->key);
    if (i == 0) first = n;
    if (n != first)
      return fail(q->e, EXIT_INPUT,
                  "%s: key %s: %lld in layer 0, %lld in layer %llu; all must be equal", q->file,
                  q->key, (long long)first, (long long)n, (unsigned long long)i);
  }
  if (n < 1 || n > INT32_MAX)
    return fail(q->e, EXIT_INPUT, "%s: key %s: %lld, 1 to %d are allowed", q->file, q->key,
                (long long)n, INT32_MAX);
  *out = (int32_t)n;
  return 0;
}

// A finite number, not negative; `fallback` where the key is absent, an error where that is negative.
static int ask_number(Question *q, const char *suffix, double fallback, double *out) {
  bool there = ask(q, suffix) != NULL;
  *out = fallback;
  if (!there && fallback >= 0) return 0;
  if (!there) return fail(q->e, EXIT_INPUT, "%s: key %s: missing", q->file, q->key);
  if (!gguf_float(q->g, q->key, out))
    return fail(q->e, EXIT_INPUT, "%s: key %s: not a number", q->file, q->key);
  if (!(*out >= 0) || !(*out <= 3e38)) // NaN fails both
    return fail(q->e, EXIT_INPUT, "%s: key %s: %g, 0 to 3e38 are allowed", q->file, q->key, *out);
  return 0;
}

static bool equals(const char *p, size_t n, const char *s) {
  return n == strlen(s) && memcmp(p, s, n) == 0;
}
//< gguf_ask

/*: ### RoPE

The scaling that Llama 3 calls `llama3` arrives as the tensor `rope_freqs.weight`; linear scaling as a
type and a factor, in old files as `rope.scale_linear`. Nothing else is understood, and a model whose
rotation is not understood decays after some hundred tokens: so it is refused. :*/
//> gguf_rope
static int ask_rope(Question *q, int32_t head_dim, Rope *out) {
  *out = (Rope){.kind = ROPE_PLAIN, .factor = 1};
  int32_t dims;
  if (ask_size(q, "rope.dimension_count", head_dim, &dims) != 0) return -1;
  if (dims != head_dim)
    return fail(q->e, EXIT_INPUT, "%s: key %s: %d, but a head has %d", q->file, q->key, dims,
                head_dim);
  if (ask_number(q, "rope.freq_base", 10000, &out->theta) != 0) return -1;
  if (out->theta == 0)
    return fail(q->e, EXIT_INPUT, "%s: key %s: 0, expected more", q->file, q->key);

  const char *kind = "linear";
  size_t n = strlen(kind);
  if (ask(q, "rope.scaling.type") && !gguf_string(q->g, q->key, &kind, &n))
    return fail(q->e, EXIT_INPUT, "%s: key %s: not a string", q->file, q->key);
  bool linear = equals(kind, n, "linear");
  if (!linear && !equals(kind, n, "none"))
    return fail(q->e, EXIT_INPUT, "%s: key %s: %.*s not supported (none, linear are)", q->file,
                q->key, n > 32 ? 32 : (int)n, kind);
  double factor = 1;
  if (ask_number(q, "rope.scale_linear", 1, &factor) != 0) return -1;
  if (ask_number(q, "rope.scaling.factor", factor, &factor) != 0) return -1;
  if (linear && factor != 0 && factor != 1) { // 0: not set
    out->kind = ROPE_LINEAR;
    out->factor = factor;
  }

  const TensorSet *set = gguf_tensors(q->g);
  if (tensor_find(set, "rope_factors_long.weight"))
    return fail(q->e, EXIT_INPUT, "%s: tensor rope_factors_long.weight: longrope not supported",
                q->file);
  const Tensor *t = tensor_find(set, "rope_freqs.weight");
  if (!t) return 0;
  if (out->kind == ROPE_LINEAR)
    return fail(q->e, EXIT_INPUT, "%s: tensor %s: together with a linear factor of %g", q->file,
                t->name, factor);
  if (t->dtype != DT_F32 || t->rank != 1 || t->dim[0] != head_dim / 2)
    return fail(q->e, EXIT_INPUT, "%s: tensor %s: %lld of %s, expected %d of F32", q->file, t->name,
                (long long)(t->rank ? t->dim[0] : 1), t->type, head_dim / 2);
  out->kind = ROPE_FACTORS;
  out->factors = q->g->rope_factors; // NULL when we have only the header
  for (int32_t i = 0; out->factors && i < head_dim / 2; i++)
    if (!(out->factors[i] > 0) || !isfinite(out->factors[i]))
      return fail(q->e, EXIT_INPUT, "%s: tensor %s: element %d is %g", q->file, t->name, i,
                  (double)out->factors[i]);
  return 0;
}
//< gguf_rope

/*: ### All of it

Sizes by key, switches by what is stored. A key that changes what is computed and is not understood
here is refused like its counterpart in a config.json. :*/
//> gguf_shape
static int ask_family(Question *q, Shape *s) {
  static const char known[][8] = {"llama", "qwen2", "qwen3"};
  const char *p;
  size_t n;
  if (!gguf_string(q->g, "general.architecture", &p, &n))
    return fail(q->e, EXIT_INPUT, "%s: key general.architecture: missing", q->file);
  size_t i = 0;
  while (i < 3 && !equals(p, n, known[i])) i++;
  if (i == 3)
    return fail(q->e, EXIT_INPUT, "%s: architecture %.*s not supported (llama, qwen2, qwen3 are)",
                q->file, n > 32 ? 32 : (int)n, p);
  snprintf(q->arch, sizeof q->arch, "%s", known[i]);
  snprintf(s->family, sizeof s->family, "%s", known[i]);

  snprintf(s->name, sizeof s->name, "%s", known[i]);
  if (!gguf_string(q->g, "general.name", &p, &n) || n == 0) return 0;
  size_t most = sizeof s->name - 1;
  if (n > most) { // cut between characters
    while (most && ((uint8_t)p[most] & 0xc0) == 0x80) most--;
    n = most;
  }
  for (size_t j = 0; j < n; j++) s->name[j] = (uint8_t)p[j] < 0x20 || p[j] == 0x7f ? '?' : p[j];
  s->name[n] = 0;
  return 0;
}

static int ask_sizes(Question *q, Shape *s) {
  if (ask_size(q, "block_count", 0, &s->layers) != 0) return -1;
  // A last layer that is really there bounds what anyone allocates for layers.
  char last[48];
  snprintf(last, sizeof last, "blk.%d.attn_norm.weight", s->layers - 1);
  if (!tensor_find(&q->g->tensors, last))
    return fail(q->e, EXIT_INPUT, "%s: key %s: %d, but tensor %s is missing", q->file, q->key,
                s->layers, last);
  if (ask_size(q, "context_length", 0, &s->max_context) != 0) return -1;
  if (ask_size(q, "embedding_length", 0, &s->hidden) != 0) return -1;
  if (ask_size(q, "feed_forward_length", 0, &s->inter) != 0) return -1;
  if (ask_size(q, "attention.head_count", 0, &s->heads) != 0) return -1;
  if (ask_size(q, "attention.head_count_kv", s->heads, &s->kv_heads) != 0) return -1;
  int32_t value_length, fallback = s->hidden / s->heads; // 0: an error, as for a missing key
  if (!ask(q, "attention.key_length") && s->hidden % s->heads)
    return fail(q->e, EXIT_INPUT, "%s: key %s: missing, and %d heads do not divide %d", q->file,
                q->key, s->heads, s->hidden);
  if (ask_size(q, "attention.key_length", fallback, &s->head_dim) != 0) return -1;
  if (ask_size(q, "attention.value_length", fallback, &value_length) != 0) return -1;
  if (value_length != s->head_dim)
    return fail(q->e, EXIT_INPUT, "%s: key %s: %d, but keys have %d", q->file, q->key, value_length,
                s->head_dim);
  double eps;
  if (ask_number(q, "attention.layer_norm_rms_epsilon", -1, &eps) != 0) return -1;
  s->rms_eps = (float)eps;
  return 0;
}

static int ask_vocab(Question *q, Shape *s) {
  const Tensor *t = tensor_find(&q->g->tensors, "token_embd.weight");
  if (!t) return fail(q->e, EXIT_INPUT, "%s: tensor token_embd.weight: missing", q->file);
  if (t->rank != 2 || t->dim[1] != s->hidden)
    return fail(q->e, EXIT_INPUT, "%s: tensor %s: %d dimensions, rows of %lld; expected 2 and %d",
                q->file, t->name, t->rank, (long long)(t->rank ? t->dim[t->rank - 1] : 1),
                s->hidden);
  GgufStrings tokens = {0};
  gguf_strings(q->g, "tokenizer.ggml.tokens", &tokens);
  uint64_t fallback = tokens.left ? tokens.left : (uint64_t)t->dim[0];
  if (fallback > INT32_MAX) fallback = INT32_MAX;
  if (ask_size(q, "vocab_size", (int32_t)fallback, &s->vocab) != 0) return -1;
  if (s->vocab != t->dim[0])
    return fail(q->e, EXIT_INPUT, "%s: tensor %s: %lld rows, but the vocabulary has %d", q->file,
                t->name, (long long)t->dim[0], s->vocab);
  return 0;
}

int gguf_shape(const Gguf *g, const char *file, Shape *out, Error *e) {
  *out = (Shape){0};
  Question q = {.g = g, .file = file, .e = e};
  const TensorSet *set = gguf_tensors(g);
  int64_t n;
  if (ask_family(&q, out) != 0) return -1;
  if (gguf_int(g, "split.count", &n) && n > 1)
    return fail(e, EXIT_INPUT, "%s: key split.count: one of %lld files; join them first", file,
                (long long)n);
  if (ask(&q, "expert_count") && !(gguf_int(g, q.key, &n) && n == 0))
    return fail(e, EXIT_INPUT, "%s: key %s: mixtures of experts are not supported", file, q.key);
  if (ask_sizes(&q, out) != 0 || ask_vocab(&q, out) != 0) return -1;
  if (ask_rope(&q, out->head_dim, &out->rope) != 0) return -1;

  const Tensor *query = tensor_find(set, "blk.0.attn_q.weight");
  if (!query) return fail(e, EXIT_INPUT, "%s: tensor blk.0.attn_q.weight: missing", file);
  out->dtype = query->dtype ? query->dtype : DT_F16; // quantized types are widened to FP16
  out->tied = !tensor_find(set, "output.weight");
  out->qkv_bias = strcmp(q.arch, "qwen2") == 0 || tensor_find(set, "blk.0.attn_q.bias");
  out->qk_norm = strcmp(q.arch, "qwen3") == 0 || tensor_find(set, "blk.0.attn_q_norm.weight");
  out->o_bias = tensor_find(set, "blk.0.attn_output.bias") != NULL;
  out->mlp_bias = tensor_find(set, "blk.0.ffn_down.bias") != NULL;
  return 0;
}
//< gguf_shape
