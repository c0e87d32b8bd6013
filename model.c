/*: # Weights

A checkpoint becomes a **Model** here: a `Shape`, and a pointer to every matrix. Nothing is read
that can be left where it lies. Matrices stay in the mapped file in the two bytes that they were
stored in, and only what is small or cannot be computed with as it lies is copied: norms and biases
widen to FP32, GGUF's blocks of four or eight bits to FP16.

All doubt ends here as well. Every size is checked against the config, every tensor against its
size, and every switch of an architecture that we do not know is refused by its name. What comes out
needs no further checks: the planner and the workers index into it without looking. :*/
#define STB_DS_IMPLEMENTATION
#include "tiles.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stb/stb_ds.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/*: ## Known shapes

The planner needs no weights, only their sizes, so the sizes of the usual models are written down:
`tiles plan llama-3.2-1b` works on a machine that has never seen the checkpoint. Three tiny ones are
made for tests; each has what the others lack (an untied head and scaled RoPE, biases, per-head
norms with a head size of its own). A suffix picks the type of the numbers: `tiny-llama:f32`. :*/
//> shapes
#define LLAMA_3_2_ROPE                                                                             \
  { ROPE_LLAMA3, 500000, 32, 1, 4, 8192, NULL }
#define PLAIN_ROPE(base)                                                                           \
  { .kind = ROPE_PLAIN, .theta = (base) }

// clang-format off
#define KNOWN_SHAPES(D, SUFFIX)                                                                    \
  {.name = "llama-3.2-1b" SUFFIX, .family = "llama", .vocab = 128256, .hidden = 2048,              \
   .inter = 8192, .layers = 16, .heads = 32, .kv_heads = 8, .head_dim = 64,                        \
   .max_context = 131072, .rms_eps = 1e-5f, .rope = LLAMA_3_2_ROPE, .dtype = D, .tied = true},     \
  {.name = "llama-3.2-3b" SUFFIX, .family = "llama", .vocab = 128256, .hidden = 3072,              \
   .inter = 8192, .layers = 28, .heads = 24, .kv_heads = 8, .head_dim = 128,                       \
   .max_context = 131072, .rms_eps = 1e-5f, .rope = LLAMA_3_2_ROPE, .dtype = D, .tied = true},     \
  {.name = "qwen2.5-0.5b" SUFFIX, .family = "qwen2", .vocab = 151936, .hidden = 896,               \
   .inter = 4864, .layers = 24, .heads = 14, .kv_heads = 2, .head_dim = 64,                        \
   .max_context = 32768, .rms_eps = 1e-6f, .rope = PLAIN_ROPE(1e6), .dtype = D, .tied = true,      \
   .qkv_bias = true},                                                                              \
  {.name = "qwen2.5-1.5b" SUFFIX, .family = "qwen2", .vocab = 151936, .hidden = 1536,              \
   .inter = 8960, .layers = 28, .heads = 12, .kv_heads = 2, .head_dim = 128,                       \
   .max_context = 131072, .rms_eps = 1e-6f, .rope = PLAIN_ROPE(1e6), .dtype = D, .tied = true,     \
   .qkv_bias = true},                                                                              \
  {.name = "qwen3-0.6b" SUFFIX, .family = "qwen3", .vocab = 151936, .hidden = 1024,                \
   .inter = 3072, .layers = 28, .heads = 16, .kv_heads = 8, .head_dim = 128,                       \
   .max_context = 40960, .rms_eps = 1e-6f, .rope = PLAIN_ROPE(1e6), .dtype = D, .tied = true,      \
   .qk_norm = true},                                                                               \
  {.name = "smollm2-135m" SUFFIX, .family = "llama", .vocab = 49152, .hidden = 576,                \
   .inter = 1536, .layers = 30, .heads = 9, .kv_heads = 3, .head_dim = 64,                         \
   .max_context = 8192, .rms_eps = 1e-5f, .rope = PLAIN_ROPE(1e5), .dtype = D, .tied = true},      \
  {.name = "tinyllama-1.1b" SUFFIX, .family = "llama", .vocab = 32000, .hidden = 2048,             \
   .inter = 5632, .layers = 22, .heads = 32, .kv_heads = 4, .head_dim = 64,                        \
   .max_context = 2048, .rms_eps = 1e-5f, .rope = PLAIN_ROPE(1e4), .dtype = D},                    \
  {.name = "tiny-llama" SUFFIX, .family = "llama", .vocab = 257, .hidden = 64, .inter = 176,       \
   .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 16, .max_context = 512, .rms_eps = 1e-5f,   \
   .rope = {ROPE_LLAMA3, 10000, 8, 1, 4, 64, NULL}, .dtype = D},                                   \
  {.name = "tiny-qwen2" SUFFIX, .family = "qwen2", .vocab = 257, .hidden = 64, .inter = 176,       \
   .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 16, .max_context = 512, .rms_eps = 1e-6f,   \
   .rope = PLAIN_ROPE(1e4), .dtype = D, .tied = true, .qkv_bias = true},                           \
  {.name = "tiny-qwen3" SUFFIX, .family = "qwen3", .vocab = 257, .hidden = 64, .inter = 176,       \
   .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 32, .max_context = 512, .rms_eps = 1e-6f,   \
   .rope = PLAIN_ROPE(1e4), .dtype = D, .tied = true, .qk_norm = true}
// clang-format on

static const Shape SHAPES[] = {KNOWN_SHAPES(DT_BF16, ""), KNOWN_SHAPES(DT_BF16, ":bf16"),
                               KNOWN_SHAPES(DT_F16, ":f16"), KNOWN_SHAPES(DT_F32, ":f32")};

const Shape *shape_find(const char *name) {
  for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++)
    if (!strcmp(name, SHAPES[i].name)) return &SHAPES[i];
  return NULL;
}

const char *shape_names(void) {
  return "llama-3.2-1b llama-3.2-3b qwen2.5-0.5b qwen2.5-1.5b qwen3-0.6b smollm2-135m "
         "tinyllama-1.1b tiny-llama tiny-qwen2 tiny-qwen3";
}
//< shapes

/*: ## How many bytes a token costs

All that is stored, norms and biases included, each once. Only the embedding is special: a token reads
one row of it, unless it is tied. Then lm_head reads it whole, and the row is part of that. So what a
checkpoint weighs and what a token reads are two numbers. :*/
//> shape_bytes
static uint64_t layer_elements(const Shape *s) {
  uint64_t h = (uint64_t)s->hidden, inter = (uint64_t)s->inter;
  uint64_t q = (uint64_t)s->heads * (uint64_t)s->head_dim, qkv = (uint64_t)qkv_rows(s);
  uint64_t n = 2 * h + qkv * h + h * q + 3 * inter * h;
  if (s->qkv_bias) n += qkv;
  if (s->o_bias) n += h;
  if (s->mlp_bias) n += 2 * inter + h;
  if (s->qk_norm) n += 2 * (uint64_t)s->head_dim;
  return n;
}

uint64_t shape_weight_bytes(const Shape *s) {
  uint64_t h = (uint64_t)s->hidden, head = (uint64_t)s->vocab * h;
  uint64_t n = (uint64_t)s->layers * layer_elements(s) + h + head + (s->tied ? 0 : h);
  return n * dtype_size(s->dtype);
}

uint64_t shape_stored_bytes(const Shape *s) {
  uint64_t h = (uint64_t)s->hidden, head = (uint64_t)s->vocab * h;
  uint64_t n = (uint64_t)s->layers * layer_elements(s) + h + (s->tied ? head : 2 * head);
  return n * dtype_size(s->dtype);
}

uint64_t shape_kv_bytes(const Shape *s) {
  return 2 * (uint64_t)s->layers * (uint64_t)s->kv_heads * (uint64_t)s->head_dim *
         dtype_size(s->dtype);
}
//< shape_bytes

/*: ## Possible sizes

The limits are far above any model that fits one machine. Their use is that no product of sizes,
here or in the planner, can overflow, whatever a file says. :*/
//> shape_check
int shape_check(const Shape *s, const char *file, Error *e) {
  const struct {
    const char *what;
    int64_t value, least, most;
  } limit[] = {{"vocab_size", s->vocab, 1, 1 << 24},
               {"hidden_size", s->hidden, 1, 1 << 20},
               {"intermediate_size", s->inter, 1, 1 << 22},
               {"num_hidden_layers", s->layers, 1, 4096},
               {"num_attention_heads", s->heads, 1, 4096},
               {"num_key_value_heads", s->kv_heads, 1, 4096},
               {"head_dim", s->head_dim, 2, 4096},
               {"max_position_embeddings", s->max_context, 1, INT32_MAX}};
  for (size_t i = 0; i < sizeof limit / sizeof *limit; i++)
    if (limit[i].value < limit[i].least || limit[i].value > limit[i].most)
      return fail(e, EXIT_INPUT, "%s: %s: %" PRId64 ", must be %" PRId64 " to %" PRId64, file,
                  limit[i].what, limit[i].value, limit[i].least, limit[i].most);
  if (s->head_dim % 2)
    return fail(e, EXIT_INPUT, "%s: head_dim: %d, must be even for RoPE's pairs", file,
                s->head_dim);
  if (s->heads % s->kv_heads)
    return fail(e, EXIT_INPUT, "%s: num_attention_heads: %d, not a multiple of %d K/V heads", file,
                s->heads, s->kv_heads);
  if (!(s->rms_eps >= 0 && s->rms_eps < 1))
    return fail(e, EXIT_INPUT, "%s: rms_norm_eps: %g, must be 0 to 1", file, (double)s->rms_eps);
  if (s->dtype <= DT_NONE || s->dtype >= DT_COUNT)
    return fail(e, EXIT_INPUT, "%s: type %d of the weights is none that we know", file,
                (int)s->dtype);
  const Rope *r = &s->rope;
  if (!(r->theta > 0) || !isfinite(r->theta))
    return fail(e, EXIT_INPUT, "%s: rope_theta: %g, must be positive", file, r->theta);
  switch (r->kind) {
  case ROPE_PLAIN: return 0;
  case ROPE_FACTORS:
    for (int32_t i = 0; r->factors && i < s->head_dim / 2; i++)
      if (!(r->factors[i] > 0) || !isfinite(r->factors[i]))
        return fail(e, EXIT_INPUT, "%s: rope_freqs: factor %d is %g, must be positive", file, i,
                    (double)r->factors[i]);
    return 0;
  case ROPE_LLAMA3:
    if (!(r->low > 0 && r->high > r->low) || !isfinite(r->high))
      return fail(e, EXIT_INPUT,
                  "%s: high_freq_factor: %g, must be above a positive low_freq_factor, %g", file,
                  r->high, r->low);
    if (!(r->original > 0) || !isfinite(r->original))
      return fail(e, EXIT_INPUT, "%s: original_max_position_embeddings: %g, must be positive", file,
                  r->original);
    // fallthrough
  case ROPE_LINEAR:
    if (!(r->factor > 0) || !isfinite(r->factor))
      return fail(e, EXIT_INPUT, "%s: RoPE scaling factor: %g, must be positive", file, r->factor);
    return 0;
  }
  return fail(e, EXIT_INPUT, "%s: RoPE scaling of kind %d is none that we know", file,
              (int)r->kind);
}
//< shape_check

/*: ## RoPE's frequencies

Pair *i* of a head turns by position × θ^(−2i/d). Models that were stretched to longer contexts turn
their slow pairs slower still. Llama 3 leaves a pair alone whose wavelength fits the original
context at least `high` times, divides it by `factor` where it fits fewer than `low` times, and
blends in between. A program that forgets this writes good sentences and then, some thousand tokens
on, bad ones. :*/
//> rope_frequencies
void rope_frequencies(const Shape *s, float *out) {
  const Rope *r = &s->rope;
  for (int32_t i = 0; i < s->head_dim / 2; i++) {
    double f = pow(r->theta, -2.0 * i / s->head_dim);
    if (r->kind == ROPE_LINEAR) f /= r->factor;
    if (r->kind == ROPE_FACTORS && r->factors) f /= (double)r->factors[i];
    if (r->kind == ROPE_LLAMA3) {
      double turns = r->original * f / (2 * 3.14159265358979323846); // in the original context
      if (turns < r->low) {
        f /= r->factor;
      } else if (turns <= r->high) {
        double keep = (turns - r->low) / (r->high - r->low);
        f = keep * f + (1 - keep) * f / r->factor;
      }
    }
    out[i] = (float)f;
  }
}
//< rope_frequencies

/*: ## config.json

JSON has one kind of number and Python writes `1e5`, `100000` and `100000.0` for the same one; any
is taken where an integer is meant, as long as it is whole. Of two equal keys the last counts, as in
the programs that wrote the file. A key that is `null` counts as absent. :*/
//> model_json
struct cJSON *json_parse(const char *file, const void *text, size_t bytes, Error *e) {
  if (!bytes) return fail(e, EXIT_INPUT, "%s: empty, wanted JSON", file), NULL;
  const void *nul = memchr(text, 0, bytes);
  if (nul)
    return fail(e, EXIT_INPUT, "%s: a NUL at byte %td of %zu", file,
                (const char *)nul - (const char *)text, bytes),
           NULL;
  const char *end = NULL, *past = (const char *)text + bytes;
  cJSON *j = cJSON_ParseWithLengthOpts(text, bytes, &end, 0);
  if (j && end)
    while (end < past && (*end == ' ' || *end == '\n' || *end == '\r' || *end == '\t')) end++;
  if (j && end == past) return j;
  cJSON_Delete(j);
  fail(e, EXIT_INPUT, "%s: not JSON at byte %td of %zu", file,
       end ? end - (const char *)text : (ptrdiff_t)0, bytes);
  return NULL;
}

static const cJSON *json_get(const cJSON *object, const char *key) {
  const cJSON *found = NULL;
  for (const cJSON *j = object ? object->child : NULL; j; j = j->next)
    if (j->string && !strcmp(j->string, key)) found = j;
  return found && !cJSON_IsNull(found) ? found : NULL;
}

// 0: *out is the number, or untouched where the key is absent.
static int json_number(const char *file, const cJSON *object, const char *key, double *out,
                       Error *e) {
  const cJSON *j = json_get(object, key);
  if (!j) return 0;
  if (!cJSON_IsNumber(j) || !isfinite(j->valuedouble))
    return fail(e, EXIT_INPUT, "%s: %s: not a number", file, key);
  *out = j->valuedouble;
  return 0;
}

static int json_int(const char *file, const cJSON *object, const char *key, int32_t *out,
                    Error *e) {
  double d = *out;
  if (json_number(file, object, key, &d, e) != 0) return -1;
  if (!(d >= INT32_MIN && d <= INT32_MAX) || d != floor(d))
    return fail(e, EXIT_INPUT, "%s: %s: %.17g, must be an integer", file, key, d);
  *out = (int32_t)d;
  return 0;
}

static int json_flag(const char *file, const cJSON *object, const char *key, bool *out, Error *e) {
  const cJSON *j = json_get(object, key);
  if (!j) return 0;
  if (!cJSON_IsBool(j)) return fail(e, EXIT_INPUT, "%s: %s: not true or false", file, key);
  *out = cJSON_IsTrue(j);
  return 0;
}

static const char *json_word(const cJSON *object, const char *key) { // or NULL
  const cJSON *j = json_get(object, key);
  return cJSON_IsString(j) ? j->valuestring : NULL;
}
//< model_json

/*: ### Families

`llama`, `qwen2` and `qwen3` compute the same thing but for biases on Q, K and V (qwen2 always has
them and says so nowhere) and norms of every head (qwen3). Others look alike and are not: a sliding
window, a factor on the logits, another activation. So the list is closed, and what is not on it is
refused. :*/
//> config_family
static int config_family(const char *file, const cJSON *j, Shape *s, Error *e) {
  static const char *const known[] = {"llama", "qwen2", "qwen3"};
  static const char *const classes[] = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"};
  const char *type = json_word(j, "model_type");
  const cJSON *list = json_get(j, "architectures");
  const char *class =
      cJSON_IsArray(list) && cJSON_IsString(list->child) ? list->child->valuestring : NULL;
  for (int i = 0; i < 3; i++)
    if (type ? !strcmp(type, known[i]) : class && !strcmp(class, classes[i])) {
      snprintf(s->family, sizeof s->family, "%s", known[i]);
      return 0;
    }
  return fail(e, EXIT_INPUT, "%s: %s %.64s not supported; known are llama, qwen2, qwen3", file,
              type ? "model_type" : "architecture",
              type    ? type
              : class ? class
                      : "(missing)");
}
//< config_family

/*: ### RoPE, in four spellings

Until version 5 Transformers wrote `rope_theta` beside `rope_scaling`; since then both are inside
`rope_parameters`. Whoever reads only one of the two falls back to 10,000 in silence. :*/
//> config_rope
static int config_rope(const char *file, const cJSON *j, Rope *r, Error *e) {
  const char *where = "rope_parameters";
  const cJSON *p = json_get(j, where);
  if (!p) p = json_get(j, where = "rope_scaling");
  if (p && !cJSON_IsObject(p)) return fail(e, EXIT_INPUT, "%s: %s: not an object", file, where);
  for (const cJSON *k = p ? p->child : NULL; k; k = k->next)
    if (cJSON_IsObject(k))
      return fail(e, EXIT_INPUT, "%s: %s: RoPE by kind of layer (%s) not supported", file, where,
                  k->string);

  double outer = 0, partial = 1;
  if (json_number(file, j, "rope_theta", &outer, e) != 0 ||
      json_number(file, p, "rope_theta", &r->theta, e) != 0 ||
      json_number(file, j, "partial_rotary_factor", &partial, e) != 0 ||
      (partial == 1 && json_number(file, p, "partial_rotary_factor", &partial, e) != 0))
    return -1;
  if (partial != 1)
    return fail(e, EXIT_INPUT, "%s: partial_rotary_factor: %g, only 1 is supported", file, partial);
  bool in_outer = json_get(j, "rope_theta") != NULL, in_inner = json_get(p, "rope_theta") != NULL;
  if (in_inner && in_outer && r->theta != outer)
    notice("%s: rope_theta is %g inside %s and %g outside; the inside counts", file, r->theta,
           where, outer);
  if (!in_inner && in_outer) r->theta = outer;
  if (!in_inner && !in_outer) {
    r->theta = 10000;
    notice("%s: no rope_theta; 10000 assumed", file);
  }

  const char *type = json_word(p, "rope_type");
  if (!type) type = json_word(p, "type");
  if (!type && json_get(p, "factor"))
    return fail(e, EXIT_INPUT, "%s: %s: a factor without a rope_type", file, where);
  const char *need[4] = {NULL};
  if (!type || !strcmp(type, "default") || !strcmp(type, "plain")) {
    r->kind = ROPE_PLAIN;
  } else if (!strcmp(type, "linear")) {
    r->kind = ROPE_LINEAR;
    need[0] = "factor";
  } else if (!strcmp(type, "llama3")) {
    r->kind = ROPE_LLAMA3;
    need[0] = "factor";
    need[1] = "low_freq_factor";
    need[2] = "high_freq_factor";
    need[3] = "original_max_position_embeddings";
  } else {
    return fail(e, EXIT_INPUT,
                "%s: %s: type %.64s not supported; known are default, linear, llama3", file, where,
                type);
  }
  double *slot[4] = {&r->factor, &r->low, &r->high, &r->original};
  for (int i = 0; i < 4 && need[i]; i++) {
    if (!json_get(p, need[i]))
      return fail(e, EXIT_INPUT, "%s: %s: %s: missing", file, where, need[i]);
    if (json_number(file, p, need[i], slot[i], e) != 0) return -1;
  }
  return 0;
}
//< config_rope

/*: ### Switches that must be off

Each of these changes what the model computes. Ignoring one gives text that is nearly right, the
worst kind of wrong. :*/
//> config_refuse
static int config_refuse(const char *file, const cJSON *j, Error *e) {
  const cJSON *quantized = json_get(j, "quantization_config");
  if (quantized) {
    const char *method = json_word(quantized, "quant_method");
    return fail(e, EXIT_INPUT,
                "%s: quantization_config: quantized checkpoint (%.32s) not supported", file,
                method ? method : "unnamed");
  }
  const char *act = json_word(j, "hidden_act");
  if (json_get(j, "hidden_act") && (!act || (strcmp(act, "silu") && strcmp(act, "swish"))))
    return fail(e, EXIT_INPUT, "%s: hidden_act: %.32s, only silu is supported", file,
                act ? act : "not a string");
  bool sliding = false;
  if (json_flag(file, j, "use_sliding_window", &sliding, e) != 0) return -1;
  if (sliding)
    return fail(e, EXIT_INPUT, "%s: use_sliding_window: true, only full attention is supported",
                file);
  const cJSON *types = json_get(j, "layer_types");
  for (const cJSON *k = types ? types->child : NULL; k; k = k->next)
    if (!cJSON_IsString(k) || strcmp(k->valuestring, "full_attention"))
      return fail(e, EXIT_INPUT, "%s: layer_types: %.32s, only full_attention is supported", file,
                  cJSON_IsString(k) ? k->valuestring : "not a string");
  return 0;
}
//< config_refuse

/*: ### Stop ids

One number, a list, or `null`; in config.json, in generation_config.json, or in both, with only one
of them complete. Any id that either names ends a request. :*/
//> stop_ids
static int add_stop(const char *file, const char *key, double id, int32_t vocab, int32_t **ids,
                    Error *e) {
  if (!(id >= 0 && id < vocab) || id != floor(id))
    return fail(e, EXIT_INPUT, "%s: %s: %.17g, must be an id from 0 to %d", file, key, id,
                vocab - 1);
  for (ptrdiff_t i = 0; i < arrlen(*ids); i++)
    if ((*ids)[i] == (int32_t)id) return 0;
  arrput(*ids, (int32_t)id);
  return 0;
}

static int config_stops(const char *file, const cJSON *j, int32_t vocab, int32_t **ids, Error *e) {
  const char *key = "eos_token_id";
  const cJSON *v = json_get(j, key);
  if (!v) return 0;
  if (!cJSON_IsNumber(v) && !cJSON_IsArray(v))
    return fail(e, EXIT_INPUT, "%s: %s: not a number or a list", file, key);
  if (cJSON_IsNumber(v)) return add_stop(file, key, v->valuedouble, vocab, ids, e);
  for (const cJSON *k = v->child; k; k = k->next) {
    if (!cJSON_IsNumber(k)) return fail(e, EXIT_INPUT, "%s: %s: not a list of numbers", file, key);
    if (add_stop(file, key, k->valuedouble, vocab, ids, e) != 0) return -1;
  }
  return 0;
}
//< stop_ids

/*: ### Sizes

Sizes have to be there; the rest has defaults, and those are the families' and not ours. What the file says
is checked as a whole before the first tensor is looked at. :*/
//> config_parse
static int config_sizes(const char *file, const cJSON *j, Shape *s, Error *e) {
  const struct {
    const char *key;
    int32_t *out;
  } need[] = {{"vocab_size", &s->vocab},
              {"hidden_size", &s->hidden},
              {"intermediate_size", &s->inter},
              {"num_hidden_layers", &s->layers},
              {"num_attention_heads", &s->heads}};
  for (size_t i = 0; i < sizeof need / sizeof *need; i++) {
    if (!json_get(j, need[i].key)) return fail(e, EXIT_INPUT, "%s: %s: missing", file, need[i].key);
    if (json_int(file, j, need[i].key, need[i].out, e) != 0) return -1;
    if (*need[i].out < 1)
      return fail(e, EXIT_INPUT, "%s: %s: %d, must be at least 1", file, need[i].key, *need[i].out);
  }
  bool llama = !strcmp(s->family, "llama"), qwen3 = !strcmp(s->family, "qwen3");
  // An absent key means the class's default, a null one "as many as query heads". The defaults of
  // qwen2 and qwen3 fit no published model, so there the weights decide.
  bool absent = !cJSON_GetObjectItemCaseSensitive(j, "num_key_value_heads");
  s->kv_heads = llama || !absent ? s->heads : 0;
  s->max_context = llama ? 2048 : 32768;
  double eps = 1e-6;
  if (json_int(file, j, "num_key_value_heads", &s->kv_heads, e) != 0 ||
      json_int(file, j, "head_dim", &s->head_dim, e) != 0 ||
      json_int(file, j, "max_position_embeddings", &s->max_context, e) != 0 ||
      json_number(file, j, "rms_norm_eps", &eps, e) != 0)
    return -1;
  s->rms_eps = (float)eps;
  if (!absent && json_get(j, "num_key_value_heads") && s->kv_heads < 1)
    return fail(e, EXIT_INPUT, "%s: num_key_value_heads: %d, must be at least 1", file,
                s->kv_heads);
  if (json_get(j, "head_dim")) return 0;
  if (qwen3 && !cJSON_GetObjectItemCaseSensitive(j, "head_dim")) {
    s->head_dim = 128;
  } else if (s->hidden % s->heads) {
    return fail(e, EXIT_INPUT, "%s: hidden_size: %d, not a multiple of %d heads, and no head_dim",
                file, s->hidden, s->heads);
  } else {
    s->head_dim = s->hidden / s->heads;
  }
  return 0;
}

static int config_tree(const char *file, const cJSON *j, Shape *s, int32_t **stop_ids, Error *e) {
  if (!cJSON_IsObject(j)) return fail(e, EXIT_INPUT, "%s: not an object", file);
  if (config_family(file, j, s, e) != 0 || config_refuse(file, j, e) != 0 ||
      config_sizes(file, j, s, e) != 0 || config_rope(file, j, &s->rope, e) != 0 ||
      json_flag(file, j, "tie_word_embeddings", &s->tied, e) != 0)
    return -1;
  bool attention_bias = false;
  if (!strcmp(s->family, "qwen2")) {
    s->qkv_bias = true;
  } else {
    if (json_flag(file, j, "attention_bias", &attention_bias, e) != 0) return -1;
    s->qkv_bias = s->o_bias = attention_bias;
  }
  if (!strcmp(s->family, "llama") && json_flag(file, j, "mlp_bias", &s->mlp_bias, e) != 0)
    return -1;
  s->qk_norm = !strcmp(s->family, "qwen3");

  // The config's own word for the type is only a hint; until the weights decide, another stands in.
  Shape whole = *s;
  whole.dtype = DT_BF16;
  if (!whole.kv_heads) whole.kv_heads = whole.heads;
  if (shape_check(&whole, file, e) != 0) return -1;
  return config_stops(file, j, s->vocab, stop_ids, e);
}

int config_parse(const char *file, const void *text, size_t bytes, Shape *out, int32_t **stop_ids,
                 Error *e) {
  *out = (Shape){0};
  cJSON *j = json_parse(file, text, bytes, e);
  if (!j) return -1;
  int rc = config_tree(file, j, out, stop_ids, e);
  cJSON_Delete(j);
  return rc;
}
//< config_parse

/*: ## The source

What the user names is told apart by its first bytes, not by its suffix. :*/
//> source_open
static char *join(const char *folder, const char *name) { // malloc'd, or NULL
  size_t n = strlen(folder) + strlen(name) + 2;
  char *path = malloc(n);
  if (path) snprintf(path, n, "%s/%s", folder, name);
  return path;
}

static int open_package(const char *path, Source *s, Error *e) {
  s->kind = SOURCE_PACKAGE;
  if (package_open(path, &s->package, e) != 0) return -1;
  Mapping header;
  if (package_text(s->package, "header.gguf", &header) != 1) return 0;
  return gguf_parse(path, header.data, header.size, true, &s->gguf, e);
}

int source_open(const char *path, Source *out, Error *e) {
  *out = (Source){0};
  struct stat st;
  if (stat(path, &st) != 0) return fail(e, EXIT_INPUT, "%s: %s", path, strerror(errno));
  if (!(out->path = strdup(path))) return fail(e, EXIT_FAIL, "%s: out of memory", path);
  int rc = 0;
  if (S_ISDIR(st.st_mode)) {
    out->kind = SOURCE_FOLDER;
    char *config = join(path, "config.json");
    if (!config) rc = fail(e, EXIT_FAIL, "%s: out of memory", path);
    else if (stat(config, &st) != 0)
      rc = fail(e, EXIT_INPUT, "%s: %s; wanted a checkpoint's folder", config, strerror(errno));
    free(config);
  } else if ((rc = map_file(path, &out->map, e)) == 0) {
    if (out->map.size >= 4 && !memcmp(out->map.data, "GGUF", 4)) {
      out->kind = SOURCE_GGUF;
      rc = gguf_parse(path, out->map.data, out->map.size, false, &out->gguf, e);
    } else if (package_magic(out->map.data, out->map.size)) {
      unmap_file(&out->map);
      rc = open_package(path, out, e);
    } else {
      rc = fail(
          e, EXIT_INPUT,
          "%s: %zu bytes, neither GGUF nor a package; a Hugging Face checkpoint is named by its "
          "folder",
          path, out->map.size);
    }
  }
  if (rc != 0) source_close(out);
  return rc;
}

void source_close(Source *s) {
  if (s->gguf) gguf_close(s->gguf);
  if (s->package) package_close(s->package);
  unmap_file(&s->map);
  free(s->path);
  *s = (Source){0};
}

int source_text(const Source *s, const char *name, Mapping *out, Error *e) {
  *out = (Mapping){0};
  if (s->kind == SOURCE_PACKAGE) return package_text(s->package, name, out);
  if (s->kind == SOURCE_GGUF) return 0;
  char *path = join(s->path, name);
  if (!path) return fail(e, EXIT_FAIL, "%s: out of memory", s->path);
  struct stat st;
  int rc = stat(path, &st) != 0 && errno == ENOENT ? 0 : map_file(path, out, e) == 0 ? 1 : -1;
  free(path);
  return rc;
}

void source_text_free(const Source *s, Mapping *m) {
  if (s->kind == SOURCE_FOLDER) unmap_file(m);
  *m = (Mapping){0};
}
//< source_open

/*: ## Memory that lives as long as the model

A model's pointers lead to three places: into mapped files, into small blocks for what was widened to
FP32 or put in another order, and into one large piece for widened matrices. One **store** owns all
three, so that closing a model is one call and half-opened ones are closed in the same way. :*/
//> model_store
typedef struct Store {
  TensorSet tensors; // of a folder
  void **block;      // stb_ds array of what model_keep gave out
  Mapping widened;   // anonymous: matrices that were widened
} Store;

static Store *store_of(Model *m) {
  if (!m->store) m->store = calloc(1, sizeof(Store));
  return m->store;
}

void *model_keep(Model *m, size_t bytes) {
  Store *s = store_of(m);
  size_t room = (bytes + 63) & ~(size_t)63;
  if (!s || room < bytes) return NULL;
  void *p = aligned_alloc(64, room ? room : 64);
  if (!p) return NULL;
  memset(p, 0, room);
  arrput(s->block, p);
  return p;
}

void model_close(Model *m) {
  Store *s = m->store;
  if (s) {
    for (ptrdiff_t i = 0; i < arrlen(s->block); i++) free(s->block[i]);
    arrfree(s->block);
    unmap_file(&s->widened);
    tensors_close(&s->tensors);
    free(s);
  }
  free(m->layer);
  free(m->stop_ids);
  *m = (Model){0};
}
//< model_store

/*: ## Two spellings of every name

The names are a table because everything else about the two kinds of checkpoint is the same from here on. :*/
//> weight_names
enum {
  W_ATTN_NORM,
  W_FFN_NORM,
  W_Q,
  W_K,
  W_V,
  W_O,
  W_GATE,
  W_UP,
  W_DOWN,
  W_Q_NORM,
  W_K_NORM,
  W_EMBEDDING,
  W_FINAL_NORM,
  W_HEAD
};
// [weight][0: Hugging Face, 1: GGUF], without ".weight" or ".bias"
static const char *const NAMES[][2] = {
    [W_ATTN_NORM] = {"model.layers.%d.input_layernorm", "blk.%d.attn_norm"},
    [W_FFN_NORM] = {"model.layers.%d.post_attention_layernorm", "blk.%d.ffn_norm"},
    [W_Q] = {"model.layers.%d.self_attn.q_proj", "blk.%d.attn_q"},
    [W_K] = {"model.layers.%d.self_attn.k_proj", "blk.%d.attn_k"},
    [W_V] = {"model.layers.%d.self_attn.v_proj", "blk.%d.attn_v"},
    [W_O] = {"model.layers.%d.self_attn.o_proj", "blk.%d.attn_output"},
    [W_GATE] = {"model.layers.%d.mlp.gate_proj", "blk.%d.ffn_gate"},
    [W_UP] = {"model.layers.%d.mlp.up_proj", "blk.%d.ffn_up"},
    [W_DOWN] = {"model.layers.%d.mlp.down_proj", "blk.%d.ffn_down"},
    [W_Q_NORM] = {"model.layers.%d.self_attn.q_norm", "blk.%d.attn_q_norm"},
    [W_K_NORM] = {"model.layers.%d.self_attn.k_norm", "blk.%d.attn_k_norm"},
    [W_EMBEDDING] = {"model.embed_tokens", "token_embd"},
    [W_FINAL_NORM] = {"model.norm", "output_norm"},
    [W_HEAD] = {"lm_head", "output"},
};
//< weight_names

/*: ## Binding

A **binder** walks the names and fills the model. It remembers which tensors it took, because what
is left over says as much as what is missing: a bias that the config does not mention would be
dropped in silence. :*/
//> model_binder
typedef struct Wide { // a matrix to be widened once its place is known
  const Tensor *tensor;
  Matrix *matrix;
} Wide;

typedef struct Binder {
  const TensorSet *set;
  Model *model;
  const char *file; // for messages
  Mapping map;      // of a GGUF file
  bool gguf;
  bool permuted; // Q and K of GGUF's architecture llama
  bool *used;    // [tensors]
  Wide *wide;    // stb_ds array
  Error *e;
} Binder;

static const char *spell(char *out, size_t room, const Binder *b, int what, int layer,
                         const char *suffix) {
  // The table's formats are constants of this file; a name without %d ignores the number.
  char stem[96];
  const char *f = NAMES[what][b->gguf], *at = strstr(f, "%d");
  if (at) snprintf(stem, sizeof stem, "%.*s%d%s", (int)(at - f), f, layer, at + 2);
  else snprintf(stem, sizeof stem, "%s", f);
  snprintf(out, room, "%s%s", stem, suffix);
  return out;
}

static const Tensor *take(Binder *b, const char *name) {
  const Tensor *t = tensor_find(b->set, name);
  if (t) b->used[t - b->set->list] = true;
  return t;
}

static bool has(const Binder *b, int what, int layer, const char *suffix) {
  char name[128];
  return tensor_find(b->set, spell(name, sizeof name, b, what, layer, suffix)) != NULL;
}

static int missing(Binder *b, int what, int layer, const char *name) {
  char other[128];
  if (tensor_find(b->set, spell(other, sizeof other, b, what, layer, ".qweight")))
    return fail(b->e, EXIT_INPUT, "%s: tensor %s: quantized checkpoint (gptq or awq) not supported",
                b->file, other);
  return fail(b->e, EXIT_INPUT, "%s: tensor %s: missing", b->file, name);
}

static const char *const WIDENS[] = {"Q8_0", "Q4_0", "Q4_1"};

static int widens(const Tensor *t) { // index into WIDENS, or -1
  for (int i = 0; i < 3; i++)
    if (!strcmp(t->type, WIDENS[i])) return i;
  return -1;
}
//< model_binder

/*: ### Matrices and vectors

A matrix is left where it lies, or noted down to be widened. Norms and biases are few, and every worker
uses all of them, so they become FP32 at once. :*/
//> bind_matrix
// A stored matrix of more rows than `rows` is padded (a head rounded up to a round number): the rest
// is never read.
static int matrix(Binder *b, int what, int layer, int32_t rows, int32_t columns, Matrix *out) {
  char name[128];
  const Tensor *t = take(b, spell(name, sizeof name, b, what, layer, ".weight"));
  if (!t) return missing(b, what, layer, name);
  bool padded = what == W_EMBEDDING || what == W_HEAD;
  if (t->rank != 2 || t->dim[1] != columns || (padded ? t->dim[0] < rows : t->dim[0] != rows))
    return fail(b->e, EXIT_INPUT,
                "%s: tensor %s: [%" PRId64 ", %" PRId64 "] of rank %d, wanted [%d, %d]", t->file,
                name, t->rank > 0 ? t->dim[0] : 0, t->rank > 1 ? t->dim[1] : 0, t->rank, rows,
                columns);
  *out = (Matrix){.data = t->data, .dtype = t->dtype, .rows = rows, .columns = columns};
  if (b->permuted && (what == W_Q || what == W_K)) out->permuted_head = b->model->shape.head_dim;
  if (t->dtype != DT_NONE) return 0;
  if (!b->gguf || widens(t) < 0)
    return fail(b->e, EXIT_INPUT, "%s: tensor %s: quantized checkpoint (%s) not supported", t->file,
                name, t->type);
  out->dtype = DT_F16;
  out->data = NULL;
  Wide w = {t, out};
  arrput(b->wide, w);
  return 0;
}

// Widens n numbers of any type that we compute with. out: [n]
static void widen(DType dtype, const uint8_t *p, int64_t n, float *out) {
  if (dtype == DT_F32) {
    memcpy(out, p, (size_t)n * 4);
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    uint16_t h;
    memcpy(&h, p + 2 * i, 2);
    out[i] = dtype == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
  }
}

// Norms and biases, as FP32 in the order of a Hugging Face checkpoint. out: [n]
static int vector(Binder *b, int what, int layer, const char *suffix, int32_t n,
                  const float **out) {
  char name[128];
  const Tensor *t = take(b, spell(name, sizeof name, b, what, layer, suffix));
  if (!t) return missing(b, what, layer, name);
  if (t->rank != 1 || t->dim[0] != n)
    return fail(b->e, EXIT_INPUT, "%s: tensor %s: %" PRId64 " numbers of rank %d, wanted [%d]",
                t->file, name, t->rank > 0 ? t->dim[0] : 0, t->rank, n);
  if (t->dtype == DT_NONE)
    return fail(b->e, EXIT_INPUT, "%s: tensor %s: type %s not supported", t->file, name, t->type);
  float *v = model_keep(b->model, (size_t)n * sizeof *v);
  if (!v) return fail(b->e, EXIT_FAIL, "%s: out of memory", b->file);
  widen(t->dtype, t->data, n, v);
  *out = v;
  bool permuted = b->permuted && (what == W_Q || what == W_K);
  if (!permuted) return 0;
  // A bias is a matrix of one column: the same permutation, undone by the same function.
  float *straight = model_keep(b->model, (size_t)n * sizeof *straight);
  if (!straight) return fail(b->e, EXIT_FAIL, "%s: out of memory", b->file);
  Matrix m = {(const uint8_t *)v, DT_F32, n, 1, b->model->shape.head_dim};
  for (int32_t r = 0; r < n; r++) memcpy(&straight[r], matrix_row(&m, r), sizeof(float));
  *out = straight;
  return 0;
}
//< bind_matrix

/*: ### Widening

Q8_0, Q4_0 and Q4_1 pack 32 numbers into a block with a scale. Their matrices are widened to FP16
once, when the model is opened, into memory that we ask for in one piece. The pieces of work are
small, so that two threads finish together although the embedding is a fifth of a small model. :*/
//> widen
typedef struct WidenJob {
  Tensor part; // some rows of a tensor
  uint16_t *out;
} WidenJob;

typedef struct WidenPool {
  WidenJob *job; // stb_ds array
  Mapping file;  // what the tensors lie in, where that is a mapped file
  atomic_ptrdiff_t next;
  atomic_bool failed;
  Error e; // of whoever failed first
} WidenPool;

// The packed blocks are not read again, so their pages need not stay beside the widened ones. Only
// whole pages of the mapped file: an edge may be somebody else's.
static void let_go(const Mapping *file, const Tensor *t) {
  enum { PAGE = 4096 };
  uintptr_t from = ((uintptr_t)t->data + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
  uintptr_t to = ((uintptr_t)t->data + t->bytes) & ~(uintptr_t)(PAGE - 1);
  bool inside =
      file->data && t->data >= file->data && t->data + t->bytes <= file->data + file->size;
  if (inside && from < to) (void)madvise((void *)from, to - from, MADV_DONTNEED);
}

static void *widen_worker(void *arg) {
  WidenPool *p = arg;
  ptrdiff_t i;
  while (!atomic_load(&p->failed) && (i = atomic_fetch_add(&p->next, 1)) < arrlen(p->job)) {
    Error e;
    if (gguf_widen(&p->job[i].part, p->job[i].out, &e) != 0 && !atomic_exchange(&p->failed, true))
      p->e = e;
    let_go(&p->file, &p->job[i].part);
  }
  return NULL;
}

static int widen_all(Binder *b) {
  size_t total = 0;
  int count[sizeof WIDENS / sizeof *WIDENS] = {0};
  for (ptrdiff_t i = 0; i < arrlen(b->wide); i++) {
    const Tensor *t = b->wide[i].tensor;
    size_t n;
    if (__builtin_mul_overflow((size_t)t->dim[0], 2 * (size_t)t->dim[1], &n) ||
        __builtin_add_overflow(total, (n + 63) & ~(size_t)63, &total))
      return fail(b->e, EXIT_INPUT, "%s: tensor %s: too large to widen", b->file, t->name);
    count[widens(t)]++;
  }
  if (!total) return 0;
  char list[128] = "";
  for (size_t i = 0; i < sizeof WIDENS / sizeof *WIDENS; i++) {
    size_t n = strlen(list);
    if (count[i])
      snprintf(list + n, sizeof list - n, "%s%d %s", n ? ", " : "", count[i], WIDENS[i]);
  }

  void *memory = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return fail(b->e, EXIT_FAIL, "%s: widening takes %zu bytes: %s", b->file, total,
                strerror(errno));
  (void)madvise(memory, total, MADV_HUGEPAGE); // fewer faults; nothing depends on it
  store_of(b->model)->widened = (Mapping){memory, total};
  notice("%s: %s matrices widened to F16, %.1f MB", b->file, list, (double)total / 1e6);

  WidenPool pool = {.file = b->map};
  uint8_t *at = memory;
  for (ptrdiff_t i = 0; i < arrlen(b->wide); i++) {
    const Tensor *t = b->wide[i].tensor;
    int64_t rows = t->dim[0], columns = t->dim[1], step = (1 << 20) / columns + 1;
    b->wide[i].matrix->data = at;
    for (int64_t r = 0; r < rows; r += step) {
      WidenJob j = {*t, (uint16_t *)(void *)at + r * columns};
      j.part.dim[0] = rows - r < step ? rows - r : step;
      j.part.bytes = t->bytes / (uint64_t)rows * (uint64_t)j.part.dim[0];
      j.part.data += t->bytes / (uint64_t)rows * (uint64_t)r;
      arrput(pool.job, j);
    }
    at += ((size_t)rows * (size_t)columns * 2 + 63) & ~(size_t)63;
  }
  enum { MOST = 64 };
  pthread_t thread[MOST];
  uint32_t started = 0, wanted = cpu_count() - 1;
  while (started < wanted && started < MOST &&
         pthread_create(&thread[started], NULL, widen_worker, &pool) == 0)
    started++;
  widen_worker(&pool);
  for (uint32_t i = 0; i < started; i++) pthread_join(thread[i], NULL);
  arrfree(pool.job);
  if (atomic_load(&pool.failed)) {
    *b->e = pool.e;
    return -1;
  }
  return 0;
}
//< widen

/*: ### The layers

What a layer must have follows from the shape's switches. Nothing is looked for that a switch does not
ask for, and what is there without being asked for is dealt with at the end. :*/
//> bind_layers
static int bind_layer(Binder *b, int i) {
  const Shape *s = &b->model->shape;
  Layer *l = &b->model->layer[i];
  int32_t h = s->hidden, q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
  if (vector(b, W_ATTN_NORM, i, ".weight", h, &l->attn_norm) != 0 ||
      vector(b, W_FFN_NORM, i, ".weight", h, &l->ffn_norm) != 0 ||
      matrix(b, W_Q, i, q, h, &l->q) != 0 || matrix(b, W_K, i, kv, h, &l->k) != 0 ||
      matrix(b, W_V, i, kv, h, &l->v) != 0 || matrix(b, W_O, i, h, q, &l->o) != 0 ||
      matrix(b, W_GATE, i, s->inter, h, &l->gate) != 0 ||
      matrix(b, W_UP, i, s->inter, h, &l->up) != 0 ||
      matrix(b, W_DOWN, i, h, s->inter, &l->down) != 0)
    return -1;
  if (s->qkv_bias && (vector(b, W_Q, i, ".bias", q, &l->q_bias) != 0 ||
                      vector(b, W_K, i, ".bias", kv, &l->k_bias) != 0 ||
                      vector(b, W_V, i, ".bias", kv, &l->v_bias) != 0))
    return -1;
  if (s->o_bias && vector(b, W_O, i, ".bias", h, &l->o_bias) != 0) return -1;
  if (s->mlp_bias && (vector(b, W_GATE, i, ".bias", s->inter, &l->gate_bias) != 0 ||
                      vector(b, W_UP, i, ".bias", s->inter, &l->up_bias) != 0 ||
                      vector(b, W_DOWN, i, ".bias", h, &l->down_bias) != 0))
    return -1;
  if (s->qk_norm && (vector(b, W_Q_NORM, i, ".weight", s->head_dim, &l->q_norm) != 0 ||
                     vector(b, W_K_NORM, i, ".weight", s->head_dim, &l->k_norm) != 0))
    return -1;
  return 0;
}

// What was not taken: harmless leftovers are passed over, a bias is refused, the rest is mentioned.
static int bind_rest(Binder *b) {
  const Tensor *first = NULL;
  ptrdiff_t count = 0;
  for (ptrdiff_t i = 0; i < arrlen(b->set->list); i++) {
    const Tensor *t = &b->set->list[i];
    if (b->used[i] || strstr(t->name, "rotary_emb.inv_freq") ||
        !strcmp(t->name, "rope_freqs.weight"))
      continue; // the frequencies are in the shape already
    size_t n = strlen(t->name);
    if (n > 5 && !strcmp(t->name + n - 5, ".bias"))
      return fail(b->e, EXIT_INPUT, "%s: tensor %s: a bias that the config does not ask for",
                  t->file, t->name);
    if (!count++) first = t;
  }
  if (count) notice("%s: %td tensors not used, the first is %s", b->file, count, first->name);
  return 0;
}

/*: Whether lm_head is the embedding is said by a flag, and contradicted by files. The flag wins where
it says yes. Where it says no and no head is stored, the embedding is the only candidate. :*/
static int bind_head(Binder *b) {
  Model *m = b->model;
  Shape *s = &m->shape;
  bool stored = has(b, W_HEAD, 0, ".weight");
  char name[128];
  if (s->tied && stored) {
    take(b, spell(name, sizeof name, b, W_HEAD, 0, ".weight"));
    notice("%s: tensor %s: ignored, the config ties lm_head to the embedding", b->file, name);
  }
  if (!s->tied && !stored) {
    if (!b->gguf) notice("%s: not tied, but no lm_head is stored; the embedding is used", b->file);
    s->tied = true;
  }
  return s->tied ? 0 : matrix(b, W_HEAD, 0, s->vocab, s->hidden, &m->lm_head);
}

static int bind(Binder *b) {
  Model *m = b->model;
  Shape *s = &m->shape;
  m->layer = calloc((size_t)s->layers, sizeof *m->layer);
  b->used = calloc((size_t)arrlen(b->set->list) + 1, sizeof *b->used);
  if (!m->layer || !b->used) return fail(b->e, EXIT_FAIL, "%s: out of memory", b->file);
  if (matrix(b, W_EMBEDDING, 0, s->vocab, s->hidden, &m->embedding) != 0 ||
      vector(b, W_FINAL_NORM, 0, ".weight", s->hidden, &m->final_norm) != 0 || bind_head(b) != 0)
    return -1;
  for (int32_t i = 0; i < s->layers; i++)
    if (bind_layer(b, i) != 0) return -1;
  if (bind_rest(b) != 0 || widen_all(b) != 0) return -1;
  if (s->tied) m->lm_head = m->embedding;
  s->dtype = m->layer[0].q.dtype;
  return shape_check(s, b->file, b->e);
}
//< bind_layers

/*: ## From a folder, from GGUF

The two differ in who gives the shape and the stop ids: files of JSON, or keys of the one file. Both end
in the same binder. :*/
//> model_open
// The last part of the path, for people; control characters replaced.
static void name_after(const char *path, Shape *s) {
  char *real = realpath(path, NULL);
  const char *p = real ? real : path, *slash = strrchr(p, '/');
  p = slash && slash[1] ? slash + 1 : p;
  size_t n = strlen(p);
  if (n >= sizeof s->name) // cut between characters
    for (n = sizeof s->name - 1; n && ((uint8_t)p[n] & 0xc0) == 0x80;) n--;
  memcpy(s->name, p, n);
  s->name[n] = 0;
  for (char *c = s->name; *c; c++)
    if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
  free(real);
}

static int keep_stops(Model *m, const char *file, int32_t *ids, Error *e) {
  m->stop_count = (int32_t)arrlen(ids);
  m->stop_ids = malloc((size_t)m->stop_count * sizeof *ids + 1);
  if (!m->stop_ids) return fail(e, EXIT_FAIL, "%s: out of memory", file);
  if (m->stop_count) memcpy(m->stop_ids, ids, (size_t)m->stop_count * sizeof *ids);
  return 0;
}

// Greedy takes the largest logit. What the checkpoint would have sampled with is named, not applied.
static void ignored_settings(const char *file, const cJSON *j) {
  const char *const key[] = {"repetition_penalty", "no_repeat_ngram_size", "temperature", "top_k",
                             "top_p"};
  const double off[] = {1, 0, 1, 0, 1};
  bool samples = cJSON_IsTrue(json_get(j, "do_sample"));
  char list[128] = "";
  for (int i = 0; i < 5; i++) {
    const cJSON *v = json_get(j, key[i]);
    if (!cJSON_IsNumber(v) || v->valuedouble == off[i] || (i >= 2 && !samples)) continue;
    size_t n = strlen(list);
    snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", key[i]);
  }
  if (*list) notice("%s: %s ignored: decoding is greedy", file, list);
}

static int generation_config(const Source *src, Shape *s, int32_t **ids, Error *e) {
  Mapping text;
  int rc = source_text(src, "generation_config.json", &text, e);
  if (rc <= 0) return rc;
  char *file = join(src->path, "generation_config.json");
  cJSON *j = file ? json_parse(file, text.data, text.size, e) : NULL;
  if (!file) rc = fail(e, EXIT_FAIL, "%s: out of memory", src->path);
  else if (!j) rc = -1;
  else if (!cJSON_IsObject(j)) rc = fail(e, EXIT_INPUT, "%s: not an object", file);
  else rc = config_stops(file, j, s->vocab, ids, e);
  if (rc == 0) ignored_settings(file, j);
  cJSON_Delete(j);
  free(file);
  source_text_free(src, &text);
  return rc;
}

static int folder_config(const Source *src, Shape *s, int32_t **ids, Error *e) {
  Mapping text;
  int rc = source_text(src, "config.json", &text, e);
  if (rc < 0) return -1;
  char *file = join(src->path, "config.json");
  int32_t *late = NULL;
  if (!file) rc = fail(e, EXIT_FAIL, "%s: out of memory", src->path);
  else if (rc == 0) rc = fail(e, EXIT_INPUT, "%s: missing", file);
  else rc = config_parse(file, text.data, text.size, s, &late, e);
  if (rc == 0) rc = generation_config(src, s, ids, e);
  for (ptrdiff_t i = 0; rc == 0 && i < arrlen(late); i++)
    rc = add_stop(file, "eos_token_id", late[i], s->vocab, ids, e);
  arrfree(late);
  free(file);
  source_text_free(src, &text);
  return rc;
}

static int open_folder(const Source *src, Binder *b, int32_t **ids) {
  Shape *s = &b->model->shape;
  if (folder_config(src, s, ids, b->e) != 0) return -1;
  name_after(src->path, s);
  Store *store = store_of(b->model);
  if (!store) return fail(b->e, EXIT_FAIL, "%s: out of memory", b->file);
  if (safetensors_open(src->path, &store->tensors, b->e) != 0) return -1;
  b->set = &store->tensors;
  if (!s->kv_heads) {
    const Tensor *k = tensor_find(b->set, "model.layers.0.self_attn.k_proj.weight");
    if (!k || k->rank != 2 || k->dim[0] < 1 || k->dim[0] % s->head_dim ||
        k->dim[0] / s->head_dim > s->heads)
      return fail(b->e, EXIT_INPUT, "%s: num_key_value_heads: missing, and k_proj does not tell",
                  b->file);
    s->kv_heads = (int32_t)(k->dim[0] / s->head_dim);
  }
  return bind(b);
}

static int open_gguf(const Source *src, Binder *b, int32_t **ids) {
  const char *const stop[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                              "tokenizer.ggml.eom_token_id"};
  Shape *s = &b->model->shape;
  if (gguf_shape(src->gguf, b->file, s, b->e) != 0) return -1;
  for (int i = 0; i < 3; i++) {
    int64_t id;
    if (gguf_int(src->gguf, stop[i], &id) &&
        add_stop(b->file, stop[i], (double)id, s->vocab, ids, b->e) != 0)
      return -1;
  }
  b->set = gguf_tensors(src->gguf);
  b->gguf = true;
  b->permuted = !strcmp(s->family, "llama");
  return bind(b);
}

/*: The **source hash** ties a package to the checkpoint that it was made from: the shape, every
tensor's name, type and size, and of every file the name, the size and the time of its last change.
Bytes are not read; a file that was rewritten has another time. :*/
static uint64_t source_hash(const Source *src, const Binder *b) {
  const Shape *s = &b->model->shape;
  char text[512];
  int n =
      snprintf(text, sizeof text, "%s %d %d %d %d %d %d %d %d %a %d %a %a %a %a %a %d %d%d%d%d%d",
               s->family, s->vocab, s->hidden, s->inter, s->layers, s->heads, s->kv_heads,
               s->head_dim, s->max_context, (double)s->rms_eps, (int)s->rope.kind, s->rope.theta,
               s->rope.factor, s->rope.low, s->rope.high, s->rope.original, (int)s->dtype, s->tied,
               s->qkv_bias, s->o_bias, s->mlp_bias, s->qk_norm);
  uint64_t h = hash64(text, (size_t)n, 1);
  const char *file = NULL;
  for (ptrdiff_t i = 0; i < arrlen(b->set->list); i++) {
    const Tensor *t = &b->set->list[i];
    h = hash64(t->name, strlen(t->name), h);
    h = hash64(t->type, strlen(t->type), h);
    h = hash64(&t->bytes, sizeof t->bytes, h);
    const char *path = src->kind == SOURCE_GGUF ? src->path : t->file;
    if (path == file) continue;
    file = path;
    struct stat st = {0};
    (void)stat(path, &st);
    int64_t stamp[3] = {st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec};
    const char *slash = strrchr(path, '/');
    h = hash64(slash ? slash + 1 : path, strlen(slash ? slash + 1 : path), h);
    h = hash64(stamp, sizeof stamp, h);
  }
  return h;
}

int model_open(const Source *src, Model *out, Error *e) {
  *out = (Model){0};
  if (src->kind == SOURCE_PACKAGE) {
    if (package_model(src->package, out, e) == 0) return 0;
    model_close(out);
    return -1;
  }
  Binder b = {.model = out, .file = src->path, .map = src->map, .e = e};
  int32_t *ids = NULL;
  int rc = src->kind == SOURCE_GGUF ? open_gguf(src, &b, &ids) : open_folder(src, &b, &ids);
  if (rc == 0) rc = keep_stops(out, src->path, ids, e);
  if (rc == 0) out->source_hash = source_hash(src, &b);
  arrfree(ids);
  arrfree(b.wide);
  free(b.used);
  if (rc != 0) model_close(out);
  return rc;
}
//< model_open
