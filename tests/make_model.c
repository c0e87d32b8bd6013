/*: # Models with a will

To test what happens *after* the arithmetic (stops, limits, ties, NaN) we need models that say what we
want. In these the residual is the token and nothing else: the embedding of token t is the unit vector t,
every layer adds zero, and row j of lm_head is the sum of the unit vectors of the tokens after which j comes.
So the largest logit after t is that of `next(t)`, by a wide margin.

    make_model DIR [vocab=64] [dtype=bf16] [next=3,1,2,...] [eos=JSON] [generation_eos=JSON] [context=512]
               [tie=A,B] [only=ID] [nan=embed|lm_head] [big=1]

Without `next` token t is followed by t + 1, the last one by 0. Other options: `tie` makes two rows of
lm_head equal and the largest whatever the token, `only` makes every logit negative and that of ID the least
so, `nan` puts one NaN into a weight, `big` has the layers add 1e5 to a component of the residual that no
token uses. :*/
#include "testing.h"

//> make_model
static const char *option(int argc, char **argv, const char *key, const char *otherwise) {
  size_t n = strlen(key);
  for (int i = 2; i < argc; i++)
    if (!strncmp(argv[i], key, n) && argv[i][n] == '=') return argv[i] + n + 1;
  return otherwise;
}

enum { MAX_TENSORS = 16 };

typedef struct Writer {
  TestTensor list[MAX_TENSORS];
  size_t count;
  DType dtype;
} Writer;

// Converts and adds one tensor; the name is kept, the numbers are not.
static void add(Writer *w, const char *name, int64_t rows, int64_t columns, const float *x) {
  size_t n = (size_t)(rows ? rows * columns : columns), size = dtype_size(w->dtype);
  uint8_t *data = malloc(n * size);
  if (!data) give_up("malloc");
  for (size_t i = 0; i < n; i++) {
    uint16_t h = w->dtype == DT_BF16 ? f32_to_bf16(x[i]) : f32_to_f16(x[i]);
    if (size == 4) memcpy(data + 4 * i, &x[i], 4);
    else memcpy(data + 2 * i, &h, 2);
  }
  TestTensor *t = &w->list[w->count++];
  *t = (TestTensor){.name = name, .dtype = dtype_name(w->dtype), .bytes = n * size, .data = data};
  t->rank = rows ? 2 : 1;
  t->dim[0] = rows ? rows : columns;
  t->dim[1] = columns;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: make_model DIR [KEY=VALUE]...\n");
    return 2;
  }
  const char *folder = argv[1], *dtype = option(argc, argv, "dtype", "bf16");
  const int32_t vocab = atoi(option(argc, argv, "vocab", "64"));
  const int32_t hidden = vocab + 2, head = 4, inter = 4; // two components that no token uses
  const size_t v = (size_t)vocab, h = (size_t)hidden;
  const char *tie = option(argc, argv, "tie", NULL), *only = option(argc, argv, "only", NULL);
  const char *nan = option(argc, argv, "nan", ""), *next = option(argc, argv, "next", NULL);
  const bool big = strcmp(option(argc, argv, "big", "0"), "1") == 0;
  Writer w = {.dtype = !strcmp(dtype, "f32") ? DT_F32 : !strcmp(dtype, "f16") ? DT_F16 : DT_BF16};

  float *embed = calloc(v * h, sizeof *embed), *lm_head = calloc(v * h, sizeof *lm_head);
  float *zero = calloc(h * h, sizeof *zero), *one = calloc(h, sizeof *one);
  float *gate = calloc((size_t)inter * h, sizeof *gate);
  float *down = calloc((size_t)inter * h, sizeof *down);
  if (!embed || !lm_head || !zero || !one || !gate || !down) give_up("malloc");
  for (size_t i = 0; i < h; i++) one[i] = 1;
  for (int32_t t = 0; t < vocab; t++) {
    embed[(size_t)t * h + (size_t)t] = 1;
    embed[(size_t)t * h + v] = 1; // the same for all tokens
    int32_t after = (t + 1) % vocab;
    if (next) {
      after = atoi(next);
      next = strchr(next, ',') ? strchr(next, ',') + 1 : "0";
    }
    if (after < 0 || after >= vocab) return 2;
    lm_head[(size_t)after * h + (size_t)t] += 1;
  }
  if (tie) {
    const char *second = strchr(tie, ',');
    int32_t ids[2] = {atoi(tie), second ? atoi(second + 1) : 0};
    for (int i = 0; i < 2; i++) lm_head[(size_t)ids[i] * h + v] = 4;
    for (int32_t t = 0; t < vocab; t++)
      for (int i = 0; i < 2; i++) lm_head[(size_t)ids[i] * h + (size_t)t] = 0;
  }
  if (only) {
    memset(lm_head, 0, v * h * sizeof *lm_head);
    for (int32_t j = 0; j < vocab; j++)
      lm_head[(size_t)j * h + v] = j == atoi(only) ? -0.5f : -1 - 0.125f * (float)(j % 3);
  }
  if (big) { // silu(gate) * up is about 30 on the shared component, times 12,000 four times
    for (int32_t i = 0; i < inter; i++) gate[(size_t)i * h + v] = 1;
    for (int32_t i = 0; i < inter; i++) down[(v + 1) * (size_t)inter + (size_t)i] = 12000;
  }
  if (!strcmp(nan, "embed")) embed[h + 1] = __builtin_nanf("");
  if (!strcmp(nan, "lm_head")) lm_head[3 * h + 3] = __builtin_nanf("");

#define LAYER "model.layers.0."
  add(&w, "model.embed_tokens.weight", vocab, hidden, embed);
  add(&w, "lm_head.weight", vocab, hidden, lm_head);
  add(&w, "model.norm.weight", 0, hidden, one);
  add(&w, LAYER "input_layernorm.weight", 0, hidden, one);
  add(&w, LAYER "post_attention_layernorm.weight", 0, hidden, one);
  add(&w, LAYER "self_attn.q_proj.weight", head, hidden, zero);
  add(&w, LAYER "self_attn.k_proj.weight", head, hidden, zero);
  add(&w, LAYER "self_attn.v_proj.weight", head, hidden, zero);
  add(&w, LAYER "self_attn.o_proj.weight", hidden, head, zero);
  add(&w, LAYER "mlp.gate_proj.weight", inter, hidden, gate);
  add(&w, LAYER "mlp.up_proj.weight", inter, hidden, gate);
  add(&w, LAYER "mlp.down_proj.weight", hidden, inter, down);

  if (mkdir(folder, 0777) != 0 && errno != EEXIST) give_up(folder);
  write_safetensors(path_in(folder, "model.safetensors"), w.list, w.count);
  char text[1024];
  const char *eos = option(argc, argv, "eos", "null");
  snprintf(text, sizeof text,
           "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"vocab_size\":%d,"
           "\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":1,"
           "\"num_attention_heads\":1,\"num_key_value_heads\":1,\"head_dim\":%d,"
           "\"max_position_embeddings\":%s,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"
           "\"hidden_act\":\"silu\",\"tie_word_embeddings\":false,\"eos_token_id\":%s}\n",
           vocab, hidden, inter, head, option(argc, argv, "context", "512"), eos);
  write_text(path_in(folder, "config.json"), text);
  const char *generation = option(argc, argv, "generation_eos", NULL);
  if (generation) {
    snprintf(text, sizeof text, "{\"eos_token_id\":%s}\n", generation);
    write_text(path_in(folder, "generation_config.json"), text);
  }
  for (size_t i = 0; i < w.count; i++) free((void *)(uintptr_t)w.list[i].data);
  free(embed), free(lm_head), free(zero), free(one), free(gate), free(down);
  return 0;
}
//< make_model
