/*: # Seeded checkpoints

Speed depends on the sizes of the matrices and not on what is in them. So a checkpoint of random
numbers runs and is timed like the real one, and a machine without a network can still measure Llama
3.2 1B. What we write is what anybody would have written: a folder with config.json,
generation_config.json and model.safetensors, which Transformers loads as well. That is also how the
tests get their models.

Every number depends on the seed, the name of its tensor and its index, and on nothing else: not on
the order of writing, not on the dtype. The BF16 checkpoint is the FP32 one, rounded. :*/
#include "tiles.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*: ## Numbers

A row of `n` weights adds up `n` products, so weights of variance 1/n keep the size of what goes
through them. Norms lie around 1 and biases around 0, far enough away to be missed by a test when
somebody forgets them. Queries and keys come out larger than that, or attention would look at every
position alike and a greedy model would repeat one word for ever: a poor test of anything that has
to do with position.

The sum of four random bytes is bell-shaped enough, and it has only 1,021 values. So each tensor has
a table of its possible numbers, already in its dtype, and a number costs half a hash of a counter
and one look-up: two and a half gigabytes take seconds. :*/
//> synth_numbers
typedef struct Kind {
  double mean, deviation;
} Kind;

enum { SUMS = 4 * 255 + 1, CHUNK = 1 << 20 }; // CHUNK: numbers at a time, even

// splitmix64's finisher: every bit of the counter reaches every bit of the result.
static inline uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

// What a sum of four bytes stands for: mean 0 and variance 1 before `k` is applied.
static float number(Kind k, int sum) {
  double unit = sqrt(4 * (256.0 * 256.0 - 1) / 12);
  return (float)(k.mean + k.deviation * (sum - 2 * 255) / unit);
}

// The two sums of one hash: of its lower and of its upper four bytes.
static inline void two_sums(uint64_t r, uint32_t *low, uint32_t *high) {
  uint64_t pairs = (r & 0x00ff00ff00ff00ffu) + (r >> 8 & 0x00ff00ff00ff00ffu);
  pairs += pairs >> 16;
  *low = pairs & 0xffff;
  *high = pairs >> 32 & 0xffff;
}

// Elements [first, first + n) of the tensor with this key; first is even. out: [n + 1].
static void numbers(uint64_t key, uint64_t first, size_t n, Kind k, DType dtype, void *out) {
  float wide[SUMS];
  uint16_t narrow[SUMS];
  for (int i = 0; i < SUMS; i++) {
    wide[i] = number(k, i);
    narrow[i] = dtype == DT_BF16 ? f32_to_bf16(wide[i]) : f32_to_f16(wide[i]);
  }
  float *f = out;
  uint16_t *h = out;
  for (size_t i = 0; i < n; i += 2) {
    uint32_t low, high;
    two_sums(mix(key + (first + i) * 0x9e3779b97f4a7c15u), &low, &high);
    if (dtype == DT_F32) {
      f[i] = wide[low];
      f[i + 1] = wide[high];
    } else {
      h[i] = narrow[low];
      h[i + 1] = narrow[high];
    }
  }
}
//< synth_numbers

/*: ## The list of tensors

One function names every tensor of a shape, in the order in which they are written; the header and
the data both come from it. :*/
//> synth_list
typedef struct Item {
  char name[80];
  int64_t rows, columns; // rows 0: a vector
  Kind kind;
  uint64_t elements;
} Item;

typedef struct List {
  Item *item; // room for all that the shape has
  size_t count;
} List;

static void add(List *l, int64_t rows, int64_t columns, Kind kind, int layer, const char *name) {
  Item *it = &l->item[l->count++];
  if (layer < 0) snprintf(it->name, sizeof it->name, "%s", name);
  else snprintf(it->name, sizeof it->name, "model.layers.%d.%s", layer, name);
  it->rows = rows;
  it->columns = columns;
  it->kind = kind;
  it->elements = (uint64_t)(rows ? rows : 1) * (uint64_t)columns;
}

static void add_matrix(List *l, int64_t rows, int64_t columns, int layer, const char *name,
                       double gain) {
  add(l, rows, columns, (Kind){0, gain / sqrt((double)columns)}, layer, name);
}

static void list_tensors(const Shape *s, List *l) {
  const Kind norm = {1, 0.1}, head_norm = {2, 0.5}, bias = {0, 0.5};
  int64_t h = s->hidden, q = (int64_t)s->heads * s->head_dim,
          kv = (int64_t)s->kv_heads * s->head_dim;
  add_matrix(l, s->vocab, h, -1, "model.embed_tokens.weight", 1);
  for (int32_t i = 0; i < s->layers; i++) {
    add(l, 0, h, norm, i, "input_layernorm.weight");
    add_matrix(l, q, h, i, "self_attn.q_proj.weight", 1.5);
    add_matrix(l, kv, h, i, "self_attn.k_proj.weight", 1.5);
    add_matrix(l, kv, h, i, "self_attn.v_proj.weight", 1);
    add_matrix(l, h, q, i, "self_attn.o_proj.weight", 1);
    if (s->qkv_bias) {
      add(l, 0, q, bias, i, "self_attn.q_proj.bias");
      add(l, 0, kv, bias, i, "self_attn.k_proj.bias");
      add(l, 0, kv, bias, i, "self_attn.v_proj.bias");
    }
    if (s->o_bias) add(l, 0, h, bias, i, "self_attn.o_proj.bias");
    if (s->qk_norm) {
      add(l, 0, s->head_dim, head_norm, i, "self_attn.q_norm.weight");
      add(l, 0, s->head_dim, head_norm, i, "self_attn.k_norm.weight");
    }
    add(l, 0, h, norm, i, "post_attention_layernorm.weight");
    add_matrix(l, s->inter, h, i, "mlp.gate_proj.weight", 1);
    add_matrix(l, s->inter, h, i, "mlp.up_proj.weight", 1);
    add_matrix(l, h, s->inter, i, "mlp.down_proj.weight", 1);
    if (s->mlp_bias) {
      add(l, 0, s->inter, bias, i, "mlp.gate_proj.bias");
      add(l, 0, s->inter, bias, i, "mlp.up_proj.bias");
      add(l, 0, h, bias, i, "mlp.down_proj.bias");
    }
  }
  add(l, 0, h, norm, -1, "model.norm.weight");
  if (!s->tied) add_matrix(l, s->vocab, h, -1, "lm_head.weight", 1);
}
//< synth_list

/*: ## The weights

A header that is not padded would leave every tensor at an odd address for no gain, so we pad it to
eight bytes as the reference writer does. Readers must cope with less. :*/
//> synth_weights
static int write_header(AtomicFile *a, const List *l, DType dtype, Error *e) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *h = open_memstream(&text, &bytes);
  if (!h) return fail(e, EXIT_FAIL, "%s: out of memory", a->path);
  fputs("{\"__metadata__\":{\"format\":\"pt\"}", h);
  uint64_t at = 0;
  for (size_t i = 0; i < l->count; i++) {
    const Item *it = &l->item[i];
    uint64_t end = at + it->elements * dtype_size(dtype);
    fprintf(h, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", it->name, dtype_name(dtype));
    if (it->rows) fprintf(h, "%" PRId64 ",", it->rows);
    fprintf(h, "%" PRId64 "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", it->columns, at, end);
    at = end;
  }
  fputc('}', h);
  int rc = fclose(h) != 0 ? fail(e, EXIT_FAIL, "%s: out of memory", a->path) : 0;
  uint8_t length[8];
  size_t padded = (bytes + 7) & ~(size_t)7;
  for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)padded >> 8 * i);
  if (rc == 0) rc = atomic_write(a, length, 8, e);
  if (rc == 0) rc = atomic_write(a, text, bytes, e);
  if (rc == 0) rc = atomic_write(a, "       ", padded - bytes, e);
  free(text);
  return rc;
}

static int write_weights(const List *l, DType dtype, const char *path, uint64_t seed, Error *e) {
  void *buffer = malloc((size_t)(CHUNK + 1) * dtype_size(dtype));
  if (!buffer) return fail(e, EXIT_FAIL, "%s: out of memory", path);
  uint64_t all = 1, done = 0;
  for (size_t i = 0; i < l->count; i++) all += l->item[i].elements;
  bool progress = isatty(STDERR_FILENO);
  int shown = -1;
  AtomicFile a;
  int rc = atomic_open(&a, path, e);
  if (rc == 0) rc = write_header(&a, l, dtype, e);
  for (size_t i = 0; i < l->count && rc == 0; i++) {
    const Item *it = &l->item[i];
    uint64_t key = mix(hash64(it->name, strlen(it->name), seed));
    for (uint64_t first = 0; first < it->elements && rc == 0; first += CHUNK) {
      size_t n = it->elements - first < CHUNK ? (size_t)(it->elements - first) : CHUNK;
      numbers(key, first, n, it->kind, dtype, buffer);
      rc = atomic_write(&a, buffer, n * dtype_size(dtype), e);
      done += n;
      int percent = (int)(100 * done / all);
      if (progress && percent != shown) fprintf(stderr, "\r%s: %d%%", path, shown = percent);
    }
  }
  if (shown >= 0) fprintf(stderr, "\r\033[K");
  if (rc == 0) rc = atomic_commit(&a, e);
  else atomic_abort(&a);
  free(buffer);
  return rc;
}
//< synth_weights

/*: ## The config

The keys are those that Transformers 4 wrote, as most checkpoints have them. Random weights never
mean to stop, so no stop id is named: a timing must not end because a number happened to be large. :*/
//> synth_config
// The shortest text that reads back as the same FP32 number.
static const char *shortest(float f, char out[32]) {
  for (int digits = 1; digits <= 9; digits++) {
    snprintf(out, 32, "%.*g", digits, (double)f);
    if (strtof(out, NULL) == f) break;
  }
  return out;
}

static void print_config(const Shape *s, FILE *f) {
  const char *class = !strcmp(s->family, "qwen2")   ? "Qwen2ForCausalLM"
                      : !strcmp(s->family, "qwen3") ? "Qwen3ForCausalLM"
                                                    : "LlamaForCausalLM";
  const char *type = s->dtype == DT_F32 ? "float32" : s->dtype == DT_F16 ? "float16" : "bfloat16";
  char eps[32];
  fprintf(f, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n", class, s->family);
  fprintf(f, "  \"vocab_size\": %d,\n  \"hidden_size\": %d,\n  \"intermediate_size\": %d,\n",
          s->vocab, s->hidden, s->inter);
  fprintf(f, "  \"num_hidden_layers\": %d,\n  \"num_attention_heads\": %d,\n", s->layers, s->heads);
  fprintf(f, "  \"num_key_value_heads\": %d,\n  \"head_dim\": %d,\n", s->kv_heads, s->head_dim);
  fprintf(f, "  \"max_position_embeddings\": %d,\n  \"rms_norm_eps\": %s,\n", s->max_context,
          shortest(s->rms_eps, eps));
  fprintf(f, "  \"hidden_act\": \"silu\",\n  \"rope_theta\": %.17g,\n  \"rope_scaling\": ",
          s->rope.theta);
  if (s->rope.kind == ROPE_LLAMA3)
    fprintf(
        f,
        "{\n    \"rope_type\": \"llama3\",\n    \"factor\": %.17g,\n    \"low_freq_factor\": "
        "%.17g,\n"
        "    \"high_freq_factor\": %.17g,\n    \"original_max_position_embeddings\": %.17g\n  },\n",
        s->rope.factor, s->rope.low, s->rope.high, s->rope.original);
  else if (s->rope.kind == ROPE_LINEAR)
    fprintf(f, "{\"rope_type\": \"linear\", \"factor\": %.17g},\n", s->rope.factor);
  else fprintf(f, "null,\n");
  if (strcmp(s->family, "qwen2"))
    fprintf(f, "  \"attention_bias\": %s,\n", s->qkv_bias ? "true" : "false");
  if (!strcmp(s->family, "llama"))
    fprintf(f, "  \"mlp_bias\": %s,\n", s->mlp_bias ? "true" : "false");
  else fprintf(f, "  \"use_sliding_window\": false,\n");
  fprintf(f, "  \"tie_word_embeddings\": %s,\n  \"torch_dtype\": \"%s\",\n",
          s->tied ? "true" : "false", type);
  fprintf(f, "  \"bos_token_id\": null,\n  \"eos_token_id\": null\n}\n");
}

static void print_generation_config(const Shape *s, FILE *f) {
  (void)s;
  fprintf(f,
          "{\n  \"bos_token_id\": null,\n  \"eos_token_id\": null,\n  \"do_sample\": false\n}\n");
}

static int write_text(const char *path, const Shape *s, void (*print)(const Shape *, FILE *),
                      Error *e) {
  AtomicFile a;
  if (atomic_open(&a, path, e) != 0) return -1;
  print(s, a.f);
  if (!ferror(a.f)) return atomic_commit(&a, e);
  atomic_abort(&a);
  return fail(e, EXIT_FAIL, "%s: cannot be written", path);
}
//< synth_config

/*: ## The folder

The weights come last and get their name when they are whole. So a folder with a model.safetensors in it
is a finished one, whoever stopped the program when. :*/
//> synth_write
// A checkpoint has one spelling for each switch; a shape that has none of it cannot be written.
static int writable(const Shape *s, Error *e) {
  bool qwen2 = !strcmp(s->family, "qwen2"), qwen3 = !strcmp(s->family, "qwen3");
  bool llama = !strcmp(s->family, "llama");
  if (shape_check(s, s->name, e) != 0) return -1;
  if (!(llama || qwen2 || qwen3) || s->rope.kind == ROPE_FACTORS || s->qk_norm != qwen3 ||
      (qwen2 ? !s->qkv_bias || s->o_bias : s->qkv_bias != s->o_bias) || (s->mlp_bias && !llama))
    return fail(e, EXIT_INPUT, "%s: no config.json of family %s can say this shape", s->name,
                s->family);
  return 0;
}

int synth_write(const Shape *s, const char *folder, uint64_t seed, Error *e) {
  if (writable(s, e) != 0) return -1;
  if (mkdir(folder, 0777) != 0 && errno != EEXIST)
    return fail(e, EXIT_FAIL, "%s: %s", folder, strerror(errno));
  size_t room = strlen(folder) + sizeof "/generation_config.json";
  char *path = malloc(room);
  List l = {.item = malloc(sizeof *l.item * (3 + 17 * (size_t)s->layers))};
  int rc = path && l.item ? 0 : fail(e, EXIT_FAIL, "%s: out of memory", folder);
  if (rc == 0) {
    list_tensors(s, &l);
    snprintf(path, room, "%s/config.json", folder);
    rc = write_text(path, s, print_config, e);
  }
  if (rc == 0) {
    snprintf(path, room, "%s/generation_config.json", folder);
    rc = write_text(path, s, print_generation_config, e);
  }
  if (rc == 0) {
    snprintf(path, room, "%s/model.safetensors", folder);
    rc = write_weights(&l, s->dtype, path, seed, e);
  }
  free(l.item);
  free(path);
  return rc;
}
//< synth_write
