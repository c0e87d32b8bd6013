/*: # From a checkpoint to a model

Checkpoints are written by `synth.c`, changed in one place, and opened. What the model says must
then be what was written, or the error must name what was changed. :*/
#include "gguf_writer.h"
#include "testing.h"

#include "golden/rope.h"

#include <stb/stb_ds.h>

#include <float.h>
#include <sys/time.h>

static const char *const TINY[] = {"tiny-llama", "tiny-qwen2", "tiny-qwen3"};

/*: ## Shapes :*/
//> test_model_shapes
static void known_shapes(void **state) {
  (void)state;
  const struct {
    const char *name;
    uint64_t weights, stored, kv;
    uint64_t parameters; // as published
  } want[] = {
      {"llama-3.2-1b", 2471628800, 2471628800, 32768, 1235814400},
      {"llama-3.2-3b", 6425499648, 6425499648, 114688, 3212749824},
      {"qwen2.5-0.5b", 988065536, 988065536, 12288, 494032768},
      {"qwen2.5-1.5b", 3087428608, 3087428608, 28672, 1543714304},
      {"qwen3-0.6b", 1192099840, 1192099840, 114688, 596049920},
      {"smollm2-135m", 269030016, 269030016, 23040, 134515008},
      {"tinyllama-1.1b", 2069028864, 2200096768, 22528, 1100048384},
  };
  for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
    const Shape *s = shape_find(want[i].name);
    assert_non_null(s);
    assert_int_equal(s->dtype, DT_BF16);
    assert_int_equal(shape_weight_bytes(s), want[i].weights);
    assert_int_equal(shape_stored_bytes(s), want[i].stored);
    assert_int_equal(shape_stored_bytes(s), 2 * want[i].parameters);
    assert_int_equal(shape_kv_bytes(s), want[i].kv);
  }
  // Every name in the list, under every suffix.
  char names[1024];
  snprintf(names, sizeof names, "%s", shape_names());
  int count = 0;
  for (char *p = strtok(names, " "); p; p = strtok(NULL, " "), count++) {
    const struct {
      const char *suffix;
      DType dtype;
    } kind[] = {{"", DT_BF16}, {":bf16", DT_BF16}, {":f16", DT_F16}, {":f32", DT_F32}};
    uint64_t bytes = shape_stored_bytes(shape_find(p));
    for (size_t k = 0; k < 4; k++) {
      char full[64];
      snprintf(full, sizeof full, "%s%s", p, kind[k].suffix);
      const Shape *s = shape_find(full);
      assert_non_null(s);
      assert_string_equal(s->name, full);
      assert_int_equal(s->dtype, kind[k].dtype);
      assert_int_equal(shape_stored_bytes(s), bytes / 2 * dtype_size(s->dtype));
      Error e = {0};
      assert_ok(shape_check(s, full, &e), &e);
    }
  }
  assert_int_equal(count, 10);
  assert_null(shape_find("llama-3.2"));
  assert_null(shape_find("llama-3.2-1b "));
  assert_null(shape_find("llama-3.2-1b:q4"));
  assert_null(shape_find(""));
  // What the others lack.
  const Shape *l = shape_find("tiny-llama"), *q3 = shape_find("tiny-qwen3");
  assert_true(!l->tied && l->rope.kind == ROPE_LLAMA3 && l->rope.original < l->max_context);
  assert_true(shape_find("tiny-qwen2")->qkv_bias);
  assert_true(q3->qk_norm && q3->head_dim != q3->hidden / q3->heads);
}

static void impossible_shapes(void **state) {
  (void)state;
  const Shape good = *shape_find("tiny-llama");
  Shape s = good;
  Error e = {0};
#define REFUSED(change, says)                                                                      \
  do {                                                                                             \
    s = good;                                                                                      \
    change;                                                                                        \
    assert_int_equal(shape_check(&s, "x", &e), -1);                                                \
    assert_error(&e, EXIT_INPUT, says);                                                            \
  } while (0)
  int32_t *const size[] = {&s.vocab, &s.hidden,   &s.inter,    &s.layers,
                           &s.heads, &s.kv_heads, &s.head_dim, &s.max_context};
  const char *const what[] = {
      "vocab_size",          "hidden_size",         "intermediate_size", "num_hidden_layers",
      "num_attention_heads", "num_key_value_heads", "head_dim",          "max_position_embeddings"};
  const int32_t bad[] = {0, -1, INT32_MIN, INT32_MAX};
  for (size_t i = 0; i < 8; i++)
    for (size_t b = 0; b < (i < 7 ? 4 : 3); b++) REFUSED(*size[i] = bad[b], what[i]);
  REFUSED(s.head_dim = 15, "head_dim: 15, must be even");
  REFUSED(s.head_dim = 1, "head_dim: 1, must be 2 to");
  REFUSED(s.kv_heads = 3, "4, not a multiple of 3 K/V heads");
  REFUSED(s.kv_heads = 8, "4, not a multiple of 8 K/V heads");
  REFUSED(s.rms_eps = -1e-5f, "rms_norm_eps");
  REFUSED(s.rms_eps = (float)NAN, "rms_norm_eps");
  REFUSED(s.rms_eps = (float)INFINITY, "rms_norm_eps");
  REFUSED(s.dtype = DT_NONE, "type 0 of the weights");
  REFUSED(s.dtype = DT_COUNT, "of the weights");
  const double odd[] = {0, -1, NAN, INFINITY};
  for (size_t i = 0; i < 4; i++) {
    REFUSED(s.rope.theta = odd[i], "rope_theta");
    REFUSED(s.rope.factor = odd[i], "RoPE scaling factor");
    REFUSED((s.rope.kind = ROPE_LINEAR, s.rope.factor = odd[i]), "RoPE scaling factor");
    REFUSED(s.rope.low = odd[i], "low_freq_factor");
    REFUSED(s.rope.high = odd[i], "high_freq_factor");
    REFUSED(s.rope.original = odd[i], "original_max_position_embeddings");
    float factors[8] = {1, 1, 1, 1, 1, 1, 1, (float)odd[i]};
    REFUSED((s.rope.kind = ROPE_FACTORS, s.rope.factors = factors), "rope_freqs: factor 7");
  }
  REFUSED(s.rope.high = s.rope.low, "high_freq_factor");
  REFUSED(s.rope.kind = (RopeKind)9, "kind 9");
#undef REFUSED
  // Odd sizes that are possible.
  const int32_t odd_sizes[][6] = {
      {72, 3, 1, 24, 176, 257}, {64, 4, 4, 16, 175, 1}, {1, 1, 1, 2, 1, 2}};
  for (size_t i = 0; i < 3; i++) {
    s = good;
    s.hidden = odd_sizes[i][0], s.heads = odd_sizes[i][1], s.kv_heads = odd_sizes[i][2];
    s.head_dim = odd_sizes[i][3], s.inter = odd_sizes[i][4], s.vocab = odd_sizes[i][5];
    assert_ok(shape_check(&s, "x", &e), &e);
  }
}
//< test_model_shapes

/*: ## Frequencies

Against the published arithmetic to the last bit, and against Transformers, which computes in FP32,
to a few. :*/
//> test_model_rope
static void frequencies_match(const Shape *s, const float *golden) {
  float f[512];
  rope_frequencies(s, f);
  for (int32_t i = 0; i < s->head_dim / 2; i++)
    if (!(fabsf(f[i] - golden[i]) <= 4e-7f * golden[i]))
      fail_msg("pair %d: %.9g, golden %.9g", i, (double)f[i], (double)golden[i]);
}

static void rope(void **state) {
  (void)state;
  float f[64], plain[64];
  Shape s = *shape_find("llama-3.2-1b");
  rope_frequencies(&s, f);
  frequencies_match(&s, ROPE_llama_3_2_1b);
  s.rope.kind = ROPE_PLAIN;
  rope_frequencies(&s, plain);
  for (int i = 0; i < 15; i++) assert_true(f[i] == plain[i]);
  assert_true(f[15] == 0.00129054793f);
  assert_true(f[16] == 0.000429556797f);
  assert_true(f[17] == 9.7082878e-05f);
  for (int i = 18; i < 32; i++) assert_true(f[i] == plain[i] / 32);

  frequencies_match(shape_find("tiny-llama"), ROPE_tiny_llama);
  frequencies_match(shape_find("qwen2.5-1.5b"), ROPE_plain);
  s = *shape_find("llama-3.2-1b");
  s.head_dim = 128;
  s.rope.factor = 8;
  frequencies_match(&s, ROPE_llama_3_1);
  s = (Shape){.head_dim = 32, .rope = {.kind = ROPE_LINEAR, .theta = 10000, .factor = 2.5}};
  frequencies_match(&s, ROPE_linear);

  // On both sides of the two bounds: pair 0 turns original / 2 pi times in the original context.
  s = *shape_find("llama-3.2-1b");
  const double two_pi = 2 * acos(-1.0);
  s.rope.original = 4.02 * two_pi;
  rope_frequencies(&s, f);
  assert_true(f[0] == 1);
  s.rope.original = 3.98 * two_pi;
  rope_frequencies(&s, f);
  assert_true(f[0] < 1 && f[0] > 0.99f);
  s.rope.original = 1.02 * two_pi;
  rope_frequencies(&s, f);
  assert_true(f[0] > 1 / 32.0f && f[0] < 1.25f / 32);
  s.rope.original = 0.98 * two_pi;
  rope_frequencies(&s, f);
  assert_true(f[0] == 1 / 32.0f);

  // Divisors from a GGUF file.
  float factors[16];
  s.head_dim = 32;
  s.rope = (Rope){.kind = ROPE_FACTORS, .theta = 10000, .factors = factors};
  for (int i = 0; i < 16; i++) factors[i] = (float)(1 << i % 4);
  rope_frequencies(&s, f);
  s.rope.kind = ROPE_PLAIN;
  rope_frequencies(&s, plain);
  for (int i = 0; i < 16; i++) assert_true(f[i] == plain[i] / factors[i]);
}
//< test_model_rope

/*: ## config.json

A base with all that is needed, and after it the keys of the case: of two equal keys the last
counts. :*/
//> test_model_config
#define SIZES                                                                                      \
  "\"vocab_size\":257,\"hidden_size\":64,\"intermediate_size\":176,\"num_hidden_layers\":3,"       \
  "\"num_attention_heads\":4"
#define BASE(family) "{\"model_type\":\"" family "\"," SIZES ",\"num_key_value_heads\":2"
#define THETA ",\"rope_theta\":10000"

typedef struct Parsed {
  int rc;
  Shape shape;
  int32_t *stops; // stb_ds array
  Error e;
  char *notes; // what went to stderr
} Parsed;

static Parsed parse_config(const char *text) {
  Parsed p = {0};
  Capture c = capture_begin();
  p.rc = config_parse("c", text, strlen(text), &p.shape, &p.stops, &p.e);
  p.notes = capture_end(c);
  return p;
}

static void parsed_free(Parsed *p) {
  arrfree(p->stops);
  free(p->notes);
}

static void refused_config(const char *text, const char *says) {
  Parsed p = parse_config(text);
  if (p.rc == 0) fail_msg("accepted, wanted \"%s\": %s", says, text);
  assert_error(&p.e, EXIT_INPUT, says);
  assert_true(strncmp(p.e.text, "c: ", 3) == 0);
  parsed_free(&p);
}

// Accepted; `note` is in what went to stderr, or nothing went there when it is NULL.
static Shape accepted_config(const char *text, const char *note) {
  Parsed p = parse_config(text);
  if (p.rc != 0) fail_msg("refused: %s: %s", p.e.text, text);
  if (note ? !strstr(p.notes, note) : *p.notes)
    fail_msg("wanted the note \"%s\", got \"%s\"", note ? note : "", p.notes);
  Shape s = p.shape;
  parsed_free(&p);
  return s;
}

static void config_sizes(void **state) {
  (void)state;
  Shape s = accepted_config(BASE("llama") THETA "}", NULL);
  assert_string_equal(s.family, "llama");
  assert_int_equal(s.vocab, 257);
  assert_int_equal(s.hidden, 64);
  assert_int_equal(s.inter, 176);
  assert_int_equal(s.layers, 3);
  assert_int_equal(s.heads, 4);
  assert_int_equal(s.kv_heads, 2);
  assert_int_equal(s.head_dim, 16);
  assert_int_equal(s.max_context, 2048);
  assert_true(s.rms_eps == 1e-6f);
  assert_false(s.tied || s.qkv_bias || s.o_bias || s.mlp_bias || s.qk_norm);

  s = accepted_config(BASE("llama") THETA
                      ",\"rms_norm_eps\":1e-05,\"max_position_embeddings\":131072,"
                      "\"tie_word_embeddings\":true,\"head_dim\":32}",
                      NULL);
  assert_true(s.rms_eps == 1e-5f && s.tied);
  assert_int_equal(s.max_context, 131072);
  assert_int_equal(s.head_dim, 32);

  // absent, null, renamed
  s = accepted_config(BASE("llama") THETA ",\"head_dim\":null,\"tie_word_embeddings\":null}", NULL);
  assert_int_equal(s.head_dim, 16);
  s = accepted_config(BASE("llama") THETA ",\"num_key_value_heads\":null}", NULL);
  assert_int_equal(s.kv_heads, 4);
  s = accepted_config("{\"model_type\":\"llama\"," SIZES THETA "}", NULL);
  assert_int_equal(s.kv_heads, 4);
  s = accepted_config("{\"model_type\":\"qwen2\"," SIZES THETA "}", NULL);
  assert_int_equal(s.kv_heads, 0); // the weights will tell
  s = accepted_config(BASE("qwen2") THETA ",\"num_key_value_heads\":null}", NULL);
  assert_int_equal(s.kv_heads, 4);
  s = accepted_config(BASE("qwen2") THETA "}", NULL);
  assert_int_equal(s.head_dim, 16);
  assert_int_equal(s.max_context, 32768);
  s = accepted_config(BASE("qwen3") THETA "}", NULL);
  assert_int_equal(s.head_dim, 128);
  s = accepted_config(BASE("qwen3") THETA ",\"head_dim\":null}", NULL);
  assert_int_equal(s.head_dim, 16);
  const char *const hints[] = {",\"dtype\":\"bfloat16\"}", ",\"torch_dtype\":\"float16\"}",
                               ",\"torch_dtype\":\"no such type\"}", ",\"dtype\":7}"};
  for (size_t i = 0; i < 4; i++) {
    char text[1024];
    snprintf(text, sizeof text, "%s%s", BASE("llama") THETA, hints[i]);
    assert_int_equal(accepted_config(text, NULL).dtype, DT_NONE); // only the weights decide
  }
  // numbers as Python spells them
  s = accepted_config(BASE("llama") THETA ",\"vocab_size\":2.57e2,\"hidden_size\":64.0}", NULL);
  assert_int_equal(s.vocab, 257);
  assert_int_equal(s.hidden, 64);
}

static void config_families(void **state) {
  (void)state;
  Shape s = accepted_config(BASE("qwen2") THETA ",\"attention_bias\":false}", NULL);
  assert_true(s.qkv_bias && !s.o_bias && !s.mlp_bias && !s.qk_norm);
  s = accepted_config(BASE("qwen3") THETA "}", NULL);
  assert_true(!s.qkv_bias && !s.o_bias && !s.mlp_bias && s.qk_norm);
  s = accepted_config(BASE("qwen3") THETA ",\"attention_bias\":true,\"mlp_bias\":true}", NULL);
  assert_true(s.qkv_bias && s.o_bias && !s.mlp_bias);
  s = accepted_config(BASE("llama") THETA ",\"attention_bias\":true}", NULL);
  assert_true(s.qkv_bias && s.o_bias && !s.mlp_bias);
  s = accepted_config(BASE("llama") THETA ",\"mlp_bias\":true}", NULL);
  assert_true(!s.qkv_bias && !s.o_bias && s.mlp_bias);
  // the class stands in for a missing type, and loses to a present one
  s = accepted_config("{\"architectures\":[\"Qwen2ForCausalLM\"]," SIZES
                      ",\"num_key_value_heads\":2" THETA "}",
                      NULL);
  assert_string_equal(s.family, "qwen2");
  s = accepted_config(BASE("llama") THETA ",\"architectures\":[\"MistralForCausalLM\"]}", NULL);
  assert_string_equal(s.family, "llama");

  refused_config(BASE("mistral") THETA "}",
                 "model_type mistral not supported; known are llama, qwen2, qwen3");
  refused_config(BASE("gemma3") THETA "}", "model_type gemma3");
  refused_config(BASE("qwen2_moe") THETA "}", "model_type qwen2_moe");
  refused_config(BASE("Llama") THETA "}", "model_type Llama");
  refused_config(BASE("mistral") THETA ",\"architectures\":[\"LlamaForCausalLM\"]}", "mistral");
  refused_config("{\"architectures\":[\"GPT2LMHeadModel\"]," SIZES "}",
                 "architecture GPT2LMHeadModel");
  refused_config("{" SIZES "}", "architecture (missing)");
  refused_config("{\"architectures\":[]," SIZES "}", "architecture (missing)");

  const char *const off[] = {
      ",\"use_sliding_window\":false,\"sliding_window\":4096,\"max_window_layers\":2}",
      ",\"use_sliding_window\":null}",
      ",\"hidden_act\":\"silu\"}",
      ",\"hidden_act\":\"swish\"}",
      ",\"hidden_act\":null}",
      ",\"partial_rotary_factor\":1.0}",
      ",\"quantization_config\":null}",
      ",\"layer_types\":[\"full_attention\",\"full_attention\"]}",
      ",\"layer_types\":null}"};
  for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
    char text[1024];
    snprintf(text, sizeof text, "%s%s", BASE("qwen2") THETA, off[i]);
    (void)accepted_config(text, NULL);
  }
  const struct {
    const char *keys, *says;
  } on[] = {
      {",\"use_sliding_window\":true}", "use_sliding_window: true"},
      {",\"use_sliding_window\":1}", "use_sliding_window: not true or false"},
      {",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
       "layer_types: sliding_attention"},
      {",\"layer_types\":[7]}", "layer_types: not a string"},
      {",\"hidden_act\":\"gelu\"}", "hidden_act: gelu, only silu"},
      {",\"hidden_act\":[]}", "hidden_act: not a string"},
      {",\"partial_rotary_factor\":0.5}", "partial_rotary_factor: 0.5"},
      {",\"rope_parameters\":{\"partial_rotary_factor\":0.25}}", "partial_rotary_factor: 0.25"},
      {",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}}",
       "quantized checkpoint (gptq) not supported"},
      {",\"quantization_config\":{\"quant_method\":\"awq\"}}", "quantized checkpoint (awq)"},
      {",\"quantization_config\":{\"quant_method\":\"fp8\"}}", "quantized checkpoint (fp8)"},
      {",\"quantization_config\":{}}", "quantized checkpoint (unnamed)"},
      {",\"attention_bias\":1}", NULL}, // qwen2 has no such key
      {",\"tie_word_embeddings\":\"true\"}", "tie_word_embeddings: not true or false"},
  };
  for (size_t i = 0; i < sizeof on / sizeof *on; i++) {
    char text[1024];
    snprintf(text, sizeof text, "%s%s", BASE("qwen2") THETA, on[i].keys);
    if (on[i].says) refused_config(text, on[i].says);
    else (void)accepted_config(text, NULL);
  }
}

static void config_rope(void **state) {
  (void)state;
  // four spellings of one number, in three places
  const char *const number[] = {"500000", "500000.0", "5e5", "5E+5"};
  for (size_t i = 0; i < 4; i++) {
    char text[1024];
    snprintf(text, sizeof text, BASE("llama") ",\"rope_theta\":%s}", number[i]);
    assert_true(accepted_config(text, NULL).rope.theta == 500000);
    snprintf(text, sizeof text,
             BASE("llama") ",\"rope_parameters\":{\"rope_theta\":%s,\"rope_type\":\"default\"}}",
             number[i]);
    assert_true(accepted_config(text, NULL).rope.theta == 500000);
    snprintf(text, sizeof text,
             BASE("llama") ",\"rope_theta\":500000,\"rope_parameters\":{\"rope_theta\":%s}}",
             number[i]);
    assert_true(accepted_config(text, NULL).rope.theta == 500000);
    snprintf(text, sizeof text,
             BASE("llama") ",\"rope_theta\":1e4,\"rope_parameters\":{\"rope_theta\":%s}}",
             number[i]);
    assert_true(
        accepted_config(text, "rope_theta is 500000 inside rope_parameters and 10000 outside")
            .rope.theta == 500000);
  }
  assert_true(accepted_config(BASE("llama") "}", "no rope_theta; 10000 assumed").rope.theta ==
              10000);
  assert_true(accepted_config(BASE("llama") ",\"rope_theta\":null}", "10000 assumed").rope.theta ==
              10000);

#define LLAMA3                                                                                     \
  "\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_"      \
  "embeddings\":8192"
  const char *const llama3[] = {
      BASE("llama") ",\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"llama3\"," LLAMA3 "}}",
      BASE("llama") ",\"rope_theta\":5e5,\"rope_scaling\":{\"type\":\"llama3\"," LLAMA3 "}}",
      BASE("llama") ",\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"llama3\"," LLAMA3
                    "}}",
      BASE("llama") ",\"rope_scaling\":null,\"rope_parameters\":{\"rope_theta\":5e5,"
                    "\"rope_type\":\"llama3\",\"type\":\"llama3\"," LLAMA3 "}}"};
  for (size_t i = 0; i < 4; i++) {
    Rope r = accepted_config(llama3[i], NULL).rope;
    assert_int_equal(r.kind, ROPE_LLAMA3);
    assert_true(r.theta == 500000 && r.factor == 32 && r.low == 1 && r.high == 4 &&
                r.original == 8192);
  }
  const char *const plain[] = {
      ",\"rope_scaling\":null}", ",\"rope_scaling\":{\"rope_type\":\"default\"}}",
      ",\"rope_scaling\":{\"type\":\"default\"}}", ",\"rope_scaling\":{}}"};
  for (size_t i = 0; i < 4; i++) {
    char text[1024];
    snprintf(text, sizeof text, "%s%s", BASE("llama") THETA, plain[i]);
    assert_int_equal(accepted_config(text, NULL).rope.kind, ROPE_PLAIN);
  }
  Rope r = accepted_config(
               BASE("llama") THETA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}", NULL)
               .rope;
  assert_true(r.kind == ROPE_LINEAR && r.factor == 4);

  const struct {
    const char *keys, *says;
  } bad[] = {
      {"{\"type\":\"yarn\",\"factor\":4}",
       "type yarn not supported; known are default, linear, llama3"},
      {"{\"rope_type\":\"dynamic\",\"factor\":4}", "type dynamic"},
      {"{\"rope_type\":\"longrope\"}", "type longrope"},
      {"{\"type\":\"su\",\"short_factor\":[1]}", "type su"},
      {"{\"factor\":4}", "a factor without a rope_type"},
      {"{\"type\":\"linear\"}", "factor: missing"},
      {"{\"type\":\"linear\",\"factor\":\"4\"}", "factor: not a number"},
      {"{\"type\":\"linear\",\"factor\":0}", "RoPE scaling factor: 0"},
      {"{\"type\":\"linear\",\"factor\":-2}", "RoPE scaling factor: -2"},
      {"{\"type\":\"llama3\",\"factor\":8}", "low_freq_factor: missing"},
      {"{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1}", "high_freq_factor: missing"},
      {"{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4}",
       "original_max_position_embeddings: missing"},
      {"{\"type\":\"llama3\"," LLAMA3 ",\"high_freq_factor\":1}", "high_freq_factor: 1"},
      {"{\"type\":\"llama3\"," LLAMA3 ",\"original_max_position_embeddings\":0}",
       "original_max_pos"},
      {"{\"full_attention\":{\"rope_theta\":1e6}}", "RoPE by kind of layer (full_attention)"},
      {"[4]", "rope_scaling: not an object"},
      {"\"linear\"", "rope_scaling: not an object"},
      {"{\"rope_theta\":\"x\"}", "rope_theta: not a number"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char text[1024];
    snprintf(text, sizeof text, BASE("llama") THETA ",\"rope_scaling\":%s}", bad[i].keys);
    refused_config(text, bad[i].says);
  }
  refused_config(BASE("llama") ",\"rope_theta\":0}", "rope_theta: 0");
  refused_config(BASE("llama") ",\"rope_theta\":-1}", "rope_theta: -1");
  refused_config(BASE("llama") ",\"rope_theta\":1e999}", "rope_theta");
  refused_config(BASE("llama") ",\"rope_theta\":\"10000\"}", "rope_theta: not a number");
}

static void config_refused(void **state) {
  (void)state;
  const char *const need[] = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                              "num_attention_heads"};
  const char *const odd[] = {"null",   "0",    "-1",   "1.5",       "1e300",
                             "\"64\"", "[64]", "true", "2147483648"};
  for (size_t i = 0; i < 5; i++)
    for (size_t k = 0; k < sizeof odd / sizeof *odd; k++) {
      char text[1024], says[64];
      snprintf(text, sizeof text, BASE("llama") THETA ",\"%s\":%s}", need[i], odd[k]);
      snprintf(says, sizeof says, "%s: ", need[i]);
      refused_config(text, says);
    }
  const struct {
    const char *text, *says;
  } bad[] = {
      {"", "empty"},
      {"{", "not JSON"},
      {"[]", "not an object"},
      {"null", "not an object"},
      {"7", "not an object"},
      {BASE("llama") THETA "} x", "not JSON"},
      {BASE("llama") THETA "}{}", "not JSON"},
      {BASE("llama") THETA ",\"head_dim\":15}", "head_dim: 15, must be even"},
      {BASE("llama") THETA ",\"head_dim\":0}", "head_dim: 0"},
      {BASE("llama") THETA ",\"num_attention_heads\":5,\"num_key_value_heads\":5}",
       "hidden_size: 64, not a multiple of 5 heads"},
      {BASE("llama") THETA ",\"num_key_value_heads\":3}", "4, not a multiple of 3 K/V heads"},
      {BASE("llama") THETA ",\"num_key_value_heads\":0}", "num_key_value_heads: 0"},
      {BASE("qwen2") THETA ",\"num_key_value_heads\":0}", "num_key_value_heads: 0"},
      {BASE("llama") THETA ",\"rms_norm_eps\":-1}", "rms_norm_eps: -1"},
      {BASE("llama") THETA ",\"rms_norm_eps\":\"1e-6\"}", "rms_norm_eps: not a number"},
      {BASE("llama") THETA ",\"max_position_embeddings\":0}", "max_position_embeddings: 0"},
      {BASE("llama") THETA ",\"attention_bias\":\"no\"}", "attention_bias: not true or false"},
      {BASE("llama") THETA ",\"vocab_size\":100000000}", "vocab_size: 100000000, must be 1 to"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) refused_config(bad[i].text, bad[i].says);

  Error e = {0};
  Shape s;
  int32_t *stops = NULL;
  const char nul[] = "{\"model_type\":\"llama\"}\0 ";
  assert_int_equal(config_parse("c", nul, sizeof nul - 1, &s, &stops, &e), -1);
  assert_error(&e, EXIT_INPUT, "a NUL at byte 22 of 24");
}
//< test_model_config

/*: ## Checkpoints on disk :*/
//> test_model_folders
typedef struct Opened {
  int rc;
  Source source;
  Model model;
  Error e;
  char *notes;
} Opened;

static Opened open_path(const char *path) {
  Opened o = {0};
  Capture c = capture_begin();
  o.rc = source_open(path, &o.source, &o.e);
  if (o.rc == 0 && (o.rc = model_open(&o.source, &o.model, &o.e)) != 0) {
    assert_null(o.model.store); // nothing is left to close
    assert_null(o.model.layer);
  }
  o.notes = capture_end(c);
  return o;
}

static void opened_close(Opened *o) {
  model_close(&o->model);
  source_close(&o->source);
  free(o->notes);
  *o = (Opened){0};
}

// Opened, with `note` on stderr, or nothing there when it is NULL.
static Opened accepted(const char *path, const char *note) {
  Opened o = open_path(path);
  if (o.rc != 0) fail_msg("%s: refused: %s", path, o.e.text);
  if (note ? !strstr(o.notes, note) : *o.notes)
    fail_msg("%s: wanted the note \"%s\", got \"%s\"", path, note ? note : "", o.notes);
  return o;
}

static void refused(const char *path, const char *says) {
  Opened o = open_path(path);
  if (o.rc == 0) fail_msg("%s: accepted, wanted \"%s\"", path, says);
  assert_error(&o.e, EXIT_INPUT, says);
  opened_close(&o);
}

static void synth(const char *shape, const char *folder) {
  Error e = {0};
  assert_ok(synth_write(shape_find(shape), folder, 7, &e), &e);
}

// Puts `keys` (","-separated, without braces) at the end of a JSON object, where they win.
static void config_add(const char *folder, const char *file, const char *keys) {
  char *text = read_file(path_in(folder, file), NULL), *end = strrchr(text, '}');
  assert_non_null(end);
  *end = 0;
  size_t room = strlen(text) + strlen(keys) + 8;
  char *out = malloc(room);
  if (!out) give_up("malloc");
  snprintf(out, room, "%s,%s}", text, keys);
  write_text(path_in(folder, file), out);
  free(out);
  free(text);
}

// Rewrites model.safetensors with one tensor changed (to == NULL: removed) or added (name absent).
static void change_tensor(const char *folder, const char *name, const TestTensor *to,
                          size_t padding) {
  Error e = {0};
  TensorSet set;
  assert_ok(safetensors_open(folder, &set, &e), &e);
  TestTensor *list = NULL;
  bool found = false;
  for (ptrdiff_t i = 0; i < arrlen(set.list); i++) {
    const Tensor *t = &set.list[i];
    TestTensor copy = {t->name, t->type, t->rank, {0}, t->bytes, t->data};
    memcpy(copy.dim, t->dim, sizeof copy.dim);
    if (name && !strcmp(name, t->name)) {
      found = true;
      if (!to) continue;
      copy = *to;
    }
    arrput(list, copy);
  }
  if (name && !found && to) arrput(list, *to);
  assert_true(!name || found || to);
  char path[4096];
  snprintf(path, sizeof path, "%s.new", path_in(folder, "model.safetensors"));
  write_safetensors_padded(path, list, (size_t)arrlen(list), padding);
  arrfree(list);
  tensors_close(&set);
  assert_int_equal(rename(path, path_in(folder, "model.safetensors")), 0);
}

static bool same_vector(const float *a, const float *b, int32_t n) {
  return !a == !b && (!a || memcmp(a, b, (size_t)n * sizeof *a) == 0);
}

static bool same_matrix(const Matrix *a, const Matrix *b) {
  if (a->rows != b->rows || a->columns != b->columns || a->dtype != b->dtype) return false;
  for (int32_t r = 0; r < a->rows; r++)
    if (memcmp(matrix_row(a, r), matrix_row(b, r), matrix_stride(a)) != 0) return false;
  return true;
}

// Every number of the two models, bit for bit.
static void assert_same(const Model *a, const Model *b) {
  const Shape *s = &a->shape, *t = &b->shape;
  assert_string_equal(s->family, t->family);
  assert_true(s->vocab == t->vocab && s->hidden == t->hidden && s->inter == t->inter &&
              s->layers == t->layers && s->heads == t->heads && s->kv_heads == t->kv_heads &&
              s->head_dim == t->head_dim && s->max_context == t->max_context &&
              s->rms_eps == t->rms_eps && s->dtype == t->dtype && s->tied == t->tied &&
              s->qkv_bias == t->qkv_bias && s->o_bias == t->o_bias && s->mlp_bias == t->mlp_bias &&
              s->qk_norm == t->qk_norm);
  assert_true(same_matrix(&a->embedding, &b->embedding));
  assert_true(same_matrix(&a->lm_head, &b->lm_head));
  assert_true(same_vector(a->final_norm, b->final_norm, s->hidden));
  int32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
  for (int32_t i = 0; i < s->layers; i++) {
    const Layer *x = &a->layer[i], *y = &b->layer[i];
    assert_true(same_vector(x->attn_norm, y->attn_norm, s->hidden));
    assert_true(same_vector(x->ffn_norm, y->ffn_norm, s->hidden));
    assert_true(same_matrix(&x->q, &y->q));
    assert_true(same_matrix(&x->k, &y->k));
    assert_true(same_matrix(&x->v, &y->v));
    assert_true(same_matrix(&x->o, &y->o));
    assert_true(same_matrix(&x->gate, &y->gate));
    assert_true(same_matrix(&x->up, &y->up));
    assert_true(same_matrix(&x->down, &y->down));
    assert_true(same_vector(x->q_bias, y->q_bias, q));
    assert_true(same_vector(x->k_bias, y->k_bias, kv));
    assert_true(same_vector(x->v_bias, y->v_bias, kv));
    assert_true(same_vector(x->o_bias, y->o_bias, s->hidden));
    assert_true(same_vector(x->gate_bias, y->gate_bias, s->inter));
    assert_true(same_vector(x->up_bias, y->up_bias, s->inter));
    assert_true(same_vector(x->down_bias, y->down_bias, s->hidden));
    assert_true(same_vector(x->q_norm, y->q_norm, s->head_dim));
    assert_true(same_vector(x->k_norm, y->k_norm, s->head_dim));
  }
}

static void assert_shape(const Shape *s, const Shape *want) {
  assert_string_equal(s->family, want->family);
  assert_true(s->vocab == want->vocab && s->hidden == want->hidden && s->inter == want->inter &&
              s->layers == want->layers && s->heads == want->heads &&
              s->kv_heads == want->kv_heads && s->head_dim == want->head_dim &&
              s->max_context == want->max_context);
  assert_true(s->rms_eps == want->rms_eps && s->tied == want->tied &&
              s->qkv_bias == want->qkv_bias && s->o_bias == want->o_bias &&
              s->mlp_bias == want->mlp_bias && s->qk_norm == want->qk_norm);
  assert_true(s->rope.kind == want->rope.kind && s->rope.theta == want->rope.theta &&
              s->rope.factor == want->rope.factor && s->rope.low == want->rope.low &&
              s->rope.high == want->rope.high && s->rope.original == want->rope.original);
}

// Is `m` the tensor of that name, where it lies in the file?
static void assert_matrix(const TensorSet *set, const Matrix *m, const char *stem, int layer) {
  char name[128];
  if (layer < 0) snprintf(name, sizeof name, "%s", stem);
  else snprintf(name, sizeof name, "model.layers.%d.%s", layer, stem);
  const Tensor *t = tensor_find(set, name);
  assert_non_null(t);
  assert_int_equal(m->rows, t->dim[0]);
  assert_int_equal(m->columns, t->dim[1]);
  assert_int_equal(m->dtype, t->dtype);
  assert_int_equal(m->permuted_head, 0);
  assert_memory_equal(m->data, t->data, t->bytes);
}

static void tiny_checkpoints(void **state) {
  (void)state;
  const char *const suffix[] = {"", ":f16", ":f32"};
  for (size_t i = 0; i < 9; i++) {
    char name[64], *folder = temp_folder();
    snprintf(name, sizeof name, "%s%s", TINY[i / 3], suffix[i % 3]);
    synth(name, folder);
    const Shape *want = shape_find(name);
    Opened o = accepted(folder, NULL);
    const Model *m = &o.model;
    assert_shape(&m->shape, want);
    assert_int_equal(m->shape.dtype, want->dtype);
    assert_string_equal(m->shape.name, strrchr(folder, '/') + 1);
    assert_int_equal(m->stop_count, 0);
    assert_false(m->down_sliced);
    Error e;
    TensorSet set;
    assert_ok(safetensors_open(folder, &set, &e), &e);
    uint64_t bytes = 0;
    for (ptrdiff_t t = 0; t < arrlen(set.list); t++) bytes += set.list[t].bytes;
    assert_int_equal(bytes, shape_stored_bytes(want));
    assert_matrix(&set, &m->embedding, "model.embed_tokens.weight", -1);
    assert_matrix(&set, &m->lm_head, want->tied ? "model.embed_tokens.weight" : "lm_head.weight",
                  -1);
    assert_true((m->lm_head.data == m->embedding.data) == want->tied);
    for (int32_t l = 0; l < want->layers; l++) {
      assert_matrix(&set, &m->layer[l].q, "self_attn.q_proj.weight", l);
      assert_matrix(&set, &m->layer[l].k, "self_attn.k_proj.weight", l);
      assert_matrix(&set, &m->layer[l].v, "self_attn.v_proj.weight", l);
      assert_matrix(&set, &m->layer[l].o, "self_attn.o_proj.weight", l);
      assert_matrix(&set, &m->layer[l].gate, "mlp.gate_proj.weight", l);
      assert_matrix(&set, &m->layer[l].up, "mlp.up_proj.weight", l);
      assert_matrix(&set, &m->layer[l].down, "mlp.down_proj.weight", l);
      assert_true(!m->layer[l].q_bias == !want->qkv_bias && !m->layer[l].v_bias == !want->qkv_bias);
      assert_true(!m->layer[l].q_norm == !want->qk_norm && !m->layer[l].k_norm == !want->qk_norm);
      assert_true(!m->layer[l].o_bias && !m->layer[l].gate_bias && !m->layer[l].down_bias);
    }
    const Tensor *norm = tensor_find(&set, "model.layers.1.post_attention_layernorm.weight");
    for (int32_t c = 0; c < want->hidden; c++) {
      uint16_t h;
      float f;
      memcpy(&h, norm->data + 2 * c, 2);
      f = want->dtype == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
      if (want->dtype == DT_F32) memcpy(&f, norm->data + 4 * c, 4);
      assert_true(m->layer[1].ffn_norm[c] == f);
    }
    tensors_close(&set);
    opened_close(&o);
    remove_tree(folder);
  }
}

// As Transformers 5 saved the same checkpoint.
static void saved_by_transformers(void **state) {
  (void)state;
  for (size_t i = 0; i < 3; i++) {
    char *folder = temp_folder(), golden[128];
    synth(TINY[i], folder);
    snprintf(golden, sizeof golden, "tests/golden/config-%s.json", TINY[i]);
    size_t n;
    char *text = read_file(golden, &n);
    assert_non_null(strstr(text, "\"rope_parameters\""));
    assert_non_null(strstr(text, "\"dtype\""));
    write_file(path_in(folder, "config.json"), text, n);
    free(text);
    Opened o = accepted(folder, NULL);
    assert_shape(&o.model.shape, shape_find(TINY[i]));
    opened_close(&o);
    remove_tree(folder);
  }
}

// Each tensor in turn is missing, has a row too few, a column too many, or one dimension only.
static void wrong_tensors(void **state) {
  (void)state;
  for (size_t i = 0; i < 3; i++) {
    char *folder = temp_folder(), *original = temp_folder(), says[160];
    synth(TINY[i], original);
    synth(TINY[i], folder);
    Error e;
    TensorSet set;
    assert_ok(safetensors_open(original, &set, &e), &e);
    for (ptrdiff_t k = 0; k < arrlen(set.list); k++) {
      const Tensor *t = &set.list[k];
      if (strstr(t->name, ".layers.1.")) continue; // 0 and 2 will do
      TestTensor bad[3];
      for (int v = 0; v < 3; v++) {
        bad[v] = (TestTensor){t->name, t->type, t->rank, {t->dim[0], t->dim[1]}, 0, NULL};
        if (v == 0) bad[v].dim[0]--;
        if (v == 1) bad[v].dim[t->rank - 1]++;
        if (v == 2) {
          bad[v].rank = t->rank == 1 ? 2 : 1;
          bad[v].dim[0] = t->rank == 1 ? 1 : t->dim[0] * t->dim[1];
          bad[v].dim[1] = t->rank == 1 ? t->dim[0] : 0;
        }
        bad[v].bytes = 2 * (size_t)bad[v].dim[0] * (bad[v].rank == 2 ? (size_t)bad[v].dim[1] : 1);
        change_tensor(folder, t->name, &bad[v], 0);
        snprintf(says, sizeof says, "tensor %s: ", t->name);
        refused(folder, says);
        write_file(path_in(folder, "model.safetensors"), set.maps[0].data, set.maps[0].size);
      }
      if (!strcmp(t->name, "lm_head.weight")) continue; // its absence has a test of its own
      change_tensor(folder, t->name, NULL, 0);
      snprintf(says, sizeof says, "tensor %s: missing", t->name);
      refused(folder, says);
      write_file(path_in(folder, "model.safetensors"), set.maps[0].data, set.maps[0].size);
    }
    tensors_close(&set);
    remove_tree(folder);
    remove_tree(original);
  }
}

static void any_address(void **state) {
  (void)state;
  for (size_t i = 0; i < 3; i++) {
    char *folder = temp_folder(), *odd = temp_folder();
    synth(TINY[i], folder);
    synth(TINY[i], odd);
    Opened a = accepted(folder, NULL);
    for (size_t padding = 1; padding < 4; padding++) {
      change_tensor(odd, NULL, NULL, padding);
      Opened b = accepted(odd, NULL);
      assert_same(&a.model, &b.model);
      opened_close(&b);
    }
    opened_close(&a);
    remove_tree(folder);
    remove_tree(odd);
  }
}

static void mixed_types(void **state) {
  (void)state;
  char *folder = temp_folder();
  synth("tiny-llama", folder);
  float norm[64];
  for (int i = 0; i < 64; i++) norm[i] = 1 + (float)i / 3;
  const char *name = "model.layers.1.input_layernorm.weight";
  const TestTensor wide = {name, "F32", 1, {64}, sizeof norm, norm};
  change_tensor(folder, name, &wide, 1);
  Opened o = accepted(folder, NULL);
  assert_memory_equal(o.model.layer[1].attn_norm, norm, sizeof norm);
  assert_int_equal(o.model.shape.dtype, DT_BF16);
  opened_close(&o);

  // Each matrix has its own type; the model's is that of the first Q.
  const TestTensor half = {
      "model.layers.2.mlp.up_proj.weight", "F16", 2, {176, 64}, 176 * 64 * 2, NULL};
  change_tensor(folder, half.name, &half, 0);
  o = accepted(folder, NULL);
  assert_int_equal(o.model.layer[2].up.dtype, DT_F16);
  assert_int_equal(o.model.layer[2].gate.dtype, DT_BF16);
  assert_int_equal(o.model.shape.dtype, DT_BF16);
  opened_close(&o);

  const TestTensor fp8 = {
      "model.layers.0.self_attn.q_proj.weight", "F8_E4M3", 2, {64, 64}, 4096, NULL};
  change_tensor(folder, fp8.name, &fp8, 0);
  refused(folder, "q_proj.weight: quantized checkpoint (F8_E4M3) not supported");
  const TestTensor i32 = {"model.norm.weight", "I32", 1, {64}, 256, NULL};
  synth("tiny-llama", folder);
  change_tensor(folder, i32.name, &i32, 0);
  refused(folder, "tensor model.norm.weight: type I32 not supported");

  // GPTQ: said by the config, or only by the names
  const char *q = "model.layers.0.self_attn.q_proj.weight";
  const TestTensor packed = {
      "model.layers.0.self_attn.q_proj.qweight", "I32", 2, {8, 64}, 2048, NULL};
  synth("tiny-llama", folder);
  change_tensor(folder, q, &packed, 0);
  refused(folder, "qweight: quantized checkpoint (gptq or awq) not supported");
  config_add(folder, "config.json",
             "\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}");
  refused(folder, "quantized checkpoint (gptq) not supported");
  remove_tree(folder);
}

static void heads_tied_or_not(void **state) {
  (void)state;
  char *tied = temp_folder(), *untied = temp_folder();
  synth("tiny-qwen2", tied);   // the flag says yes, no head is stored
  synth("tiny-llama", untied); // the flag says no, a head is stored
  Opened o = accepted(tied, NULL);
  assert_true(o.model.shape.tied && o.model.lm_head.data == o.model.embedding.data);
  opened_close(&o);
  o = accepted(untied, NULL);
  assert_true(!o.model.shape.tied && o.model.lm_head.data != o.model.embedding.data);
  assert_true(memcmp(o.model.lm_head.data, o.model.embedding.data, 64) != 0);
  opened_close(&o);

  // yes, and a different head is stored
  config_add(untied, "config.json", "\"tie_word_embeddings\":true");
  o = accepted(untied, "lm_head.weight: ignored");
  assert_true(o.model.shape.tied && o.model.lm_head.data == o.model.embedding.data);
  opened_close(&o);
  // not said, and a head is stored
  config_add(untied, "config.json", "\"tie_word_embeddings\":null");
  o = accepted(untied, NULL);
  assert_true(!o.model.shape.tied && o.model.lm_head.data != o.model.embedding.data);
  opened_close(&o);
  // no, or not said, and none is stored
  const char *const no[] = {"\"tie_word_embeddings\":false", "\"tie_word_embeddings\":null"};
  for (int i = 0; i < 2; i++) {
    config_add(tied, "config.json", no[i]);
    o = accepted(tied, "no lm_head is stored; the embedding is used");
    assert_true(o.model.shape.tied && o.model.lm_head.data == o.model.embedding.data);
    opened_close(&o);
  }
  remove_tree(tied);
  remove_tree(untied);
}

static void stop_ids(void **state) {
  (void)state;
  const struct {
    const char *config, *generation; // values; NULL: no such file
    int32_t want[5];                 // ends with -1; {-2}: refused
    const char *says;
  } cases[] = {
      {"2", "[1,2,256]", {1, 2, 256, -1}, NULL},
      {"128", "[256,200,128]", {256, 200, 128, -1}, NULL},
      {"[7,8]", "9", {9, 7, 8, -1}, NULL},
      {"7", NULL, {7, -1}, NULL},
      {"[7]", NULL, {7, -1}, NULL},
      {"[]", "[]", {-1}, NULL},
      {"null", "null", {-1}, NULL},
      {"null", "5", {5, -1}, NULL},
      {"0", "0", {0, -1}, NULL},
      {"3.0", "null", {3, -1}, NULL},
      {"257", "null", {-2}, "config.json: eos_token_id: 257, must be an id from 0 to 256"},
      {"1", "[1,128009]", {-2}, "generation_config.json: eos_token_id: 128009, must be an id"},
      {"-1", "null", {-2}, "eos_token_id: -1"},
      {"1.5", "null", {-2}, "eos_token_id: 1.5"},
      {"1e300", "null", {-2}, "eos_token_id: 1"},
      {"\"1\"", "null", {-2}, "eos_token_id: not a number or a list"},
      {"[\"1\"]", "null", {-2}, "eos_token_id: not a list of numbers"},
      {"[[1]]", "null", {-2}, "eos_token_id: not a list of numbers"},
      {"1", "{}", {-2}, "generation_config.json: eos_token_id: not a number"},
  };
  char *folder = temp_folder();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char keys[128];
    synth("tiny-llama", folder);
    snprintf(keys, sizeof keys, "\"eos_token_id\":%s", cases[i].config);
    config_add(folder, "config.json", keys);
    snprintf(keys, sizeof keys, "\"eos_token_id\":%s",
             cases[i].generation ? cases[i].generation : "1");
    config_add(folder, "generation_config.json", keys);
    if (!cases[i].generation)
      assert_int_equal(unlink(path_in(folder, "generation_config.json")), 0);
    if (cases[i].want[0] == -2) {
      refused(folder, cases[i].says);
      continue;
    }
    Opened o = accepted(folder, NULL);
    int n = 0;
    while (cases[i].want[n] != -1) n++;
    assert_int_equal(o.model.stop_count, n);
    for (int k = 0; k < n; k++) assert_int_equal(o.model.stop_ids[k], cases[i].want[k]);
    opened_close(&o);
  }
  // A broken file is an error, not a file without stop ids.
  const struct {
    const char *text, *says;
  } broken[] = {{"", "generation_config.json: empty"},
                {"{", "generation_config.json: not JSON"},
                {"[1]", "generation_config.json: not an object"},
                {"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"}};
  for (size_t i = 0; i < 4; i++) {
    synth("tiny-llama", folder);
    write_text(path_in(folder, "generation_config.json"), broken[i].text);
    refused(folder, broken[i].says);
  }
  // What greedy decoding does not do is said.
  synth("tiny-llama", folder);
  config_add(folder, "generation_config.json",
             "\"repetition_penalty\":1.1,\"temperature\":0.7,\"top_p\":0.8");
  Opened o = accepted(folder, "repetition_penalty ignored: decoding is greedy");
  opened_close(&o);
  config_add(folder, "generation_config.json", "\"do_sample\":true,\"repetition_penalty\":1.0");
  o = accepted(folder, "temperature, top_p ignored: decoding is greedy");
  opened_close(&o);
  remove_tree(folder);
}

static void biases(void **state) {
  (void)state;
  // llama with all seven
  char *folder = temp_folder();
  Shape s = *shape_find("tiny-llama");
  s.qkv_bias = s.o_bias = s.mlp_bias = true;
  Error e = {0};
  assert_ok(synth_write(&s, folder, 7, &e), &e);
  Opened o = accepted(folder, NULL);
  assert_shape(&o.model.shape, &s);
  TensorSet set;
  assert_ok(safetensors_open(folder, &set, &e), &e);
  for (int32_t i = 0; i < s.layers; i++) {
    const Layer *l = &o.model.layer[i];
    const struct {
      const float *v;
      const char *name;
      int32_t n;
    } all[] = {{l->q_bias, "self_attn.q_proj", 64},  {l->k_bias, "self_attn.k_proj", 32},
               {l->v_bias, "self_attn.v_proj", 32},  {l->o_bias, "self_attn.o_proj", 64},
               {l->gate_bias, "mlp.gate_proj", 176}, {l->up_bias, "mlp.up_proj", 176},
               {l->down_bias, "mlp.down_proj", 64}};
    for (size_t k = 0; k < 7; k++) {
      char name[128];
      snprintf(name, sizeof name, "model.layers.%d.%s.bias", i, all[k].name);
      const Tensor *t = tensor_find(&set, name);
      assert_non_null(t);
      assert_int_equal(t->dim[0], all[k].n);
      assert_non_null(all[k].v);
      for (int32_t c = 0; c < all[k].n; c++) {
        uint16_t h;
        memcpy(&h, t->data + 2 * c, 2);
        assert_true(all[k].v[c] == bf16_to_f32(h));
      }
    }
  }
  tensors_close(&set);
  opened_close(&o);
  // stored, and not asked for
  config_add(folder, "config.json", "\"mlp_bias\":false");
  refused(folder, "mlp.gate_proj.bias: a bias that the config does not ask for");
  config_add(folder, "config.json", "\"mlp_bias\":true,\"attention_bias\":null");
  refused(folder, "self_attn.q_proj.bias: a bias that the config does not ask for");
  remove_tree(folder);

  // asked for, and not stored
  folder = temp_folder();
  synth("tiny-llama", folder);
  config_add(folder, "config.json", "\"attention_bias\":true");
  refused(folder, "tensor model.layers.0.self_attn.q_proj.bias: missing");
  config_add(folder, "config.json", "\"attention_bias\":false,\"mlp_bias\":true");
  refused(folder, "tensor model.layers.0.mlp.gate_proj.bias: missing");
  // harmless leftovers, and others
  config_add(folder, "config.json", "\"mlp_bias\":false");
  const TestTensor inv = {"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 1, {8}, 32, NULL};
  change_tensor(folder, inv.name, &inv, 0);
  o = accepted(folder, NULL);
  opened_close(&o);
  const TestTensor other = {"model.layers.3.mlp.up_proj.weight", "BF16", 2, {176, 64}, 22528, NULL};
  change_tensor(folder, other.name, &other, 0);
  o = accepted(folder, "1 tensors not used, the first is model.layers.3.mlp.up_proj.weight");
  opened_close(&o);
  remove_tree(folder);
}

static void padded_vocabulary(void **state) {
  (void)state;
  for (size_t i = 0; i < 2; i++) {
    char *folder = temp_folder();
    synth(TINY[i], folder);
    config_add(folder, "config.json", "\"vocab_size\":250");
    Opened o = accepted(folder, NULL);
    assert_int_equal(o.model.shape.vocab, 250);
    assert_int_equal(o.model.embedding.rows, 250);
    assert_int_equal(o.model.lm_head.rows, 250);
    opened_close(&o);
    config_add(folder, "config.json", "\"vocab_size\":258");
    refused(folder, "tensor model.embed_tokens.weight: [257, 64] of rank 2, wanted [258, 64]");
    remove_tree(folder);
  }
  // only the head is padded
  char *folder = temp_folder();
  synth("tiny-llama", folder);
  const TestTensor head = {"lm_head.weight", "BF16", 2, {320, 64}, 320 * 64 * 2, NULL};
  change_tensor(folder, head.name, &head, 0);
  Opened o = accepted(folder, NULL);
  assert_int_equal(o.model.lm_head.rows, 257);
  opened_close(&o);
  remove_tree(folder);
}

// qwen2 and qwen3 without the key: k_proj tells.
static void kv_heads_from_weights(void **state) {
  (void)state;
  for (size_t i = 1; i < 3; i++) {
    char *folder = temp_folder();
    synth(TINY[i], folder);
    char *text = read_file(path_in(folder, "config.json"), NULL);
    char *key = strstr(text, "\"num_key_value_heads\""), *end = key ? strchr(key, '\n') : NULL;
    if (!key || !end) give_up("num_key_value_heads");
    memmove(key, end, strlen(end) + 1);
    write_text(path_in(folder, "config.json"), text);
    free(text);
    Opened o = accepted(folder, NULL);
    assert_int_equal(o.model.shape.kv_heads, 2);
    opened_close(&o);
    int64_t odd = shape_find(TINY[i])->head_dim + 1;
    const TestTensor bad = {
        "model.layers.0.self_attn.k_proj.weight", "BF16", 2, {odd, 64}, (size_t)odd * 128, NULL};
    change_tensor(folder, bad.name, &bad, 0);
    refused(folder, "num_key_value_heads: missing, and k_proj does not tell");
    remove_tree(folder);
  }
}

static void sharded(void **state) {
  (void)state;
  char *folder = temp_folder(), *split = temp_folder();
  synth("tiny-qwen3", folder);
  char *config = read_file(path_in(folder, "config.json"), NULL);
  write_text(path_in(split, "config.json"), config);
  free(config);
  Error e;
  TensorSet set;
  assert_ok(safetensors_open(folder, &set, &e), &e);
  TestTensor *part[2] = {NULL, NULL};
  char *index = NULL;
  size_t n;
  FILE *f = open_memstream(&index, &n);
  if (!f) give_up("open_memstream");
  fputs("{\"weight_map\":{", f);
  for (ptrdiff_t i = 0; i < arrlen(set.list); i++) {
    const Tensor *t = &set.list[i];
    TestTensor copy = {t->name, t->type, t->rank, {t->dim[0], t->dim[1]}, t->bytes, t->data};
    arrput(part[i % 2], copy);
    fprintf(f, "%s\"%s\":\"s%td.safetensors\"", i ? "," : "", t->name, i % 2);
  }
  fputs("}}", f);
  fclose(f);
  write_text(path_in(split, "model.safetensors.index.json"), index);
  write_safetensors(path_in(split, "s0.safetensors"), part[0], (size_t)arrlen(part[0]));
  write_safetensors_padded(path_in(split, "s1.safetensors"), part[1], (size_t)arrlen(part[1]), 1);
  Opened a = accepted(folder, NULL), b = accepted(split, NULL);
  assert_same(&a.model, &b.model);
  opened_close(&a);
  opened_close(&b);
  free(index);
  arrfree(part[0]);
  arrfree(part[1]);
  tensors_close(&set);
  remove_tree(folder);
  remove_tree(split);
}
//< test_model_folders

/*: ## GGUF

The same weights in GGUF's names and GGUF's row order give the same model. :*/
//> test_model_gguf
static void write_gguf(const Model *m, const char *path, uint32_t quantize, const char *key,
                       uint32_t value) {
  GgufWriter w = gw_begin(3, 0);
  w.quantize = quantize;
  gw_model(&w, m, m->shape.family);
  if (key) gw_u32(&w, key, value);
  gw_save(&w, path);
  gw_end(&w);
}

static void gguf_equals_folder(void **state) {
  (void)state;
  const char *const suffix[] = {"", ":f16", ":f32"};
  for (size_t i = 0; i < 10; i++) {
    char name[64], *folder = temp_folder();
    Error e;
    snprintf(name, sizeof name, "%s%s", TINY[i % 3], suffix[i / 3 % 3]);
    Shape s = *shape_find(name);
    if (i == 9) s.qkv_bias = s.o_bias = s.mlp_bias = true; // biases are permuted as well
    assert_ok(synth_write(&s, folder, 7, &e), &e);
    Opened a = accepted(folder, NULL);
    write_gguf(&a.model, path_in(folder, "m.gguf"), 0, NULL, 0);
    Opened b = accepted(path_in(folder, "m.gguf"), NULL);
    assert_same(&a.model, &b.model);
    assert_int_equal(b.model.layer[0].q.permuted_head, i % 3 ? 0 : s.head_dim);
    assert_int_equal(b.model.layer[0].k.permuted_head, i % 3 ? 0 : s.head_dim);
    assert_int_equal(b.model.layer[0].v.permuted_head, 0);
    float f[64], g[64];
    rope_frequencies(&a.model.shape, f);
    rope_frequencies(&b.model.shape, g);
    for (int32_t k = 0; k < s.head_dim / 2; k++) assert_true(fabsf(f[k] - g[k]) <= 2e-7f * f[k]);
    opened_close(&a);
    opened_close(&b);
    remove_tree(folder);
  }
}

static void gguf_quantized(void **state) {
  (void)state;
  const struct {
    uint32_t type;
    const char *name;
    double most; // error of a number, as a share of the largest of its block
  } kind[] = {{8, "Q8_0", 0.0045}, {2, "Q4_0", 0.08}, {3, "Q4_1", 0.08}};
  for (size_t i = 0; i < 3; i++)
    for (size_t k = 0; k < 3; k++) {
      // inter of the tiny shapes is no multiple of a block
      Shape s = *shape_find(TINY[k]);
      s.inter = 192;
      if (i == k) s.vocab = 20000; // widened in pieces, by several threads
      char *folder = temp_folder(), says[128];
      Error e;
      assert_ok(synth_write(&s, folder, 7, &e), &e);
      Opened a = accepted(folder, NULL);
      write_gguf(&a.model, path_in(folder, "m.gguf"), kind[i].type, NULL, 0);
      int matrices = 7 * s.layers + (s.tied ? 1 : 2);
      Shape two_bytes = s; // all but norms and biases, which stay FP32
      two_bytes.qkv_bias = two_bytes.qk_norm = false;
      uint64_t widened =
          shape_stored_bytes(&two_bytes) - 2 * (uint64_t)(2 * s.layers + 1) * (uint64_t)s.hidden;
      snprintf(says, sizeof says, "m.gguf: %d %s matrices widened to F16, %.1f MB", matrices,
               kind[i].name, (double)widened / 1e6);
      Opened b = accepted(path_in(folder, "m.gguf"), says);
      assert_int_equal(b.model.shape.dtype, DT_F16);
      const char *end = strchr(b.notes, '\n');
      assert_non_null(end);
      assert_int_equal(end ? end[1] : 1, 0); // one line for all
      const Matrix *x[] = {&a.model.embedding,  &a.model.lm_head,    &a.model.layer[2].q,
                           &a.model.layer[1].k, &a.model.layer[0].v, &a.model.layer[2].down};
      const Matrix *y[] = {&b.model.embedding,  &b.model.lm_head,    &b.model.layer[2].q,
                           &b.model.layer[1].k, &b.model.layer[0].v, &b.model.layer[2].down};
      for (size_t m = 0; m < 6; m++) {
        assert_int_equal(y[m]->dtype, DT_F16);
        for (int32_t r = 0; r < x[m]->rows; r++)
          for (int32_t c = 0; c < x[m]->columns; c += 32) {
            float most = 0;
            for (int32_t j = 0; j < 32; j++) most = fmaxf(most, fabsf(gw_element(x[m], r, c + j)));
            for (int32_t j = 0; j < 32; j++) {
              float want = gw_element(x[m], r, c + j), got = gw_element(y[m], r, c + j);
              if (!(fabsf(want - got) <= (float)kind[i].most * most))
                fail_msg("%s: matrix %zu [%d, %d]: %g, wanted %g", kind[i].name, m, r, c + j,
                         (double)got, (double)want);
            }
          }
      }
      assert_true(same_vector(a.model.final_norm, b.model.final_norm, s.hidden));
      opened_close(&a);
      opened_close(&b);
      remove_tree(folder);
    }
}

static void gguf_keys(void **state) {
  (void)state;
  char *folder = temp_folder();
  synth("tiny-llama", folder);
  Opened a = accepted(folder, NULL);
  const char *path = path_in(folder, "m.gguf");
  const char *const key[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                             "tokenizer.ggml.eom_token_id"};
  for (size_t i = 0; i < 3; i++) {
    write_gguf(&a.model, path, 0, key[i], 256);
    Opened b = accepted(path, NULL);
    assert_int_equal(b.model.stop_count, 1);
    assert_int_equal(b.model.stop_ids[0], 256);
    opened_close(&b);
    write_gguf(&a.model, path, 0, key[i], 257);
    refused(path, "eo");
    write_gguf(&a.model, path, 0, key[i], UINT32_MAX);
    refused(path, "_token_id: 4294967295, must be an id from 0 to 256");
  }
  // tied is where no output is stored
  a.model.shape.tied = true;
  write_gguf(&a.model, path, 0, NULL, 0);
  Opened b = accepted(path, NULL);
  assert_true(b.model.shape.tied && b.model.lm_head.data == b.model.embedding.data);
  opened_close(&b);
  // a type that we cannot widen
  GgufWriter w = gw_begin(3, 0);
  a.model.shape.tied = false;
  Matrix head = a.model.lm_head;
  a.model.shape.tied = true;
  gw_model(&w, &a.model, "llama");
  const int64_t dim[2] = {257, 256};
  uint8_t *q6 = calloc(257, 210);
  if (!q6) give_up("calloc");
  gw_tensor(&w, "output.weight", 14, 2, dim, q6, 257 * 210); // Q6_K, of the wrong width besides
  gw_save(&w, path);
  gw_end(&w);
  refused(path, "output.weight");
  free(q6);
  assert_int_equal(head.rows, 257);
  opened_close(&a);
  remove_tree(folder);
}
//< test_model_gguf

/*: ## Sources :*/
//> test_model_sources
static void sources(void **state) {
  (void)state;
  char *folder = temp_folder();
  refused(path_in(folder, "nothing"), "nothing: No such file or directory");
  refused(folder, "config.json: No such file or directory; wanted a checkpoint's folder");
  write_text(path_in(folder, "x"), "hello");
  refused(path_in(folder, "x"), "5 bytes, neither GGUF nor a package");
  write_text(path_in(folder, "x"), "");
  refused(path_in(folder, "x"), "0 bytes, neither GGUF nor a package");
  write_text(path_in(folder, "x"), "GGU");
  refused(path_in(folder, "x"), "3 bytes, neither GGUF nor a package");
  write_text(path_in(folder, "x.gguf"),
             "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
  refused(path_in(folder, "x.gguf"), "run git lfs pull");
  write_text(path_in(folder, "x"), "GGUF");
  refused(path_in(folder, "x"), "x");
  synth("tiny-llama", folder);
  refused(path_in(folder, "model.safetensors"), "a Hugging Face checkpoint is named by its folder");
  refused(path_in(folder, "config.json"), "neither GGUF nor a package");

  Opened o = accepted(folder, NULL);
  Mapping text;
  Error e = {0};
  assert_int_equal(source_text(&o.source, "config.json", &text, &e), 1);
  assert_true(text.size > 10 && text.data[0] == '{');
  source_text_free(&o.source, &text);
  assert_null(text.data);
  assert_int_equal(source_text(&o.source, "tokenizer.json", &text, &e), 0);
  assert_null(text.data);
  assert_int_equal(mkdir(path_in(folder, "tokenizer.json"), 0777), 0);
  assert_int_equal(source_text(&o.source, "tokenizer.json", &text, &e), -1);
  assert_error(&e, EXIT_INPUT, "tokenizer.json: not a regular file");
  opened_close(&o);

  // the name is the folder's, however it is written
  char slashes[4096];
  snprintf(slashes, sizeof slashes, "%s/.//", folder);
  o = accepted(slashes, NULL);
  assert_string_equal(o.model.shape.name, strrchr(folder, '/') + 1);
  opened_close(&o);
  // a long one is cut between characters
  char name[64] = "", path[4096];
  for (int i = 0; i < 30; i++) memcpy(name + 2 * i, "\xc3\xa9", 3);
  snprintf(path, sizeof path, "%s", path_in(folder, name));
  synth("tiny-llama", path);
  o = accepted(path, NULL);
  assert_int_equal(strlen(o.model.shape.name), 46);
  opened_close(&o);
  remove_tree(folder);
}

static uint64_t hash_of(const char *path) {
  Opened o = open_path(path);
  if (o.rc != 0) fail_msg("%s: %s", path, o.e.text);
  uint64_t h = o.model.source_hash;
  opened_close(&o);
  return h;
}

static void source_hashes(void **state) {
  (void)state;
  char *folder = temp_folder();
  synth("tiny-llama", folder);
  const char *file = path_in(folder, "model.safetensors");
  uint64_t seen[8];
  int n = 0;
  seen[n++] = hash_of(folder);
  assert_true(seen[0] == hash_of(folder));
  // same bytes, another time
  const struct timeval later[2] = {{1700000000, 0}, {1700000000, 1}};
  assert_int_equal(utimes(file, later), 0);
  seen[n++] = hash_of(folder);
  // another type, another shape, a switch of the config, RoPE
  synth("tiny-llama:f16", folder);
  assert_int_equal(utimes(file, later), 0);
  seen[n++] = hash_of(folder);
  synth("tiny-llama", folder);
  assert_int_equal(utimes(file, later), 0);
  assert_true(hash_of(folder) == seen[1]);
  config_add(folder, "config.json", "\"vocab_size\":256");
  seen[n++] = hash_of(folder);
  config_add(folder, "config.json", "\"vocab_size\":257,\"rope_theta\":10001");
  seen[n++] = hash_of(folder);
  config_add(folder, "config.json", "\"rope_theta\":10000,\"rms_norm_eps\":1e-6");
  seen[n++] = hash_of(folder);
  config_add(folder, "config.json", "\"rms_norm_eps\":1e-5");
  assert_true(hash_of(folder) == seen[1]);
  // GGUF
  Opened o = accepted(folder, NULL);
  write_gguf(&o.model, path_in(folder, "m.gguf"), 0, NULL, 0);
  opened_close(&o);
  seen[n++] = hash_of(path_in(folder, "m.gguf"));
  assert_int_equal(utimes(path_in(folder, "m.gguf"), later), 0);
  seen[n++] = hash_of(path_in(folder, "m.gguf"));
  for (int i = 0; i < n; i++)
    for (int k = 0; k < i; k++)
      if (seen[i] == seen[k]) fail_msg("changes %d and %d give one hash", k, i);
  remove_tree(folder);
}

static void kept_memory(void **state) {
  (void)state;
  Model m = {0};
  const size_t bytes[] = {0, 1, 63, 64, 65, 100000};
  for (size_t i = 0; i < 6; i++) {
    uint8_t *p = model_keep(&m, bytes[i]);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 64, 0);
    for (size_t k = 0; k < bytes[i]; k++) assert_int_equal(p[k], 0);
    memset(p, 0xff, bytes[i]);
  }
  assert_null(model_keep(&m, SIZE_MAX));
  model_close(&m);
  model_close(&m); // safe twice
}
//< test_model_sources

/*: ## Seeded checkpoints :*/
//> test_model_synth
static char *weights_of(const Shape *s, uint64_t seed, size_t *n) {
  char *folder = temp_folder();
  Error e = {0};
  assert_ok(synth_write(s, folder, seed, &e), &e);
  char *bytes = read_file(path_in(folder, "model.safetensors"), n);
  remove_tree(folder);
  return bytes;
}

static const Tensor *parsed_tensor(TensorSet *set, const char *image, size_t n, const char *name) {
  Error e = {0};
  *set = (TensorSet){0};
  assert_ok(safetensors_parse("s", (const uint8_t *)image, n, set, &e), &e);
  const Tensor *t = tensor_find(set, name);
  assert_non_null(t);
  return t;
}

static void synth_is_determined(void **state) {
  (void)state;
  size_t na, nb, nc, nf;
  const Shape *s = shape_find("tiny-llama");
  char *a = weights_of(s, 1, &na), *b = weights_of(s, 1, &nb), *c = weights_of(s, 2, &nc);
  assert_int_equal(na, nb);
  assert_int_equal(na, nc);
  assert_memory_equal(a, b, na);
  assert_memory_not_equal(a, c, na);
  // A change of these numbers is a change of every golden that was made with them.
  TensorSet sa, sf;
  const char *name = "model.layers.2.mlp.down_proj.weight";
  char *f = weights_of(shape_find("tiny-llama:f32"), 1, &nf);
  const Tensor *ta = parsed_tensor(&sa, a, na, name), *tf = parsed_tensor(&sf, f, nf, name);
  assert_int_equal(ta->dim[0], 64);
  assert_int_equal(ta->dim[1], 176);
  for (int i = 0; i < 64 * 176; i++) { // BF16 is FP32, rounded
    uint16_t h;
    float w;
    memcpy(&h, ta->data + 2 * i, 2);
    memcpy(&w, tf->data + 4 * i, 4);
    assert_int_equal(h, f32_to_bf16(w));
  }
  // Names, not places: another shape has the same numbers under the same name.
  Shape wider = *shape_find("tiny-llama:f32");
  wider.vocab = 300;
  wider.layers = 5;
  size_t nw;
  TensorSet sw;
  char *w = weights_of(&wider, 1, &nw);
  assert_memory_equal(parsed_tensor(&sw, w, nw, name)->data, tf->data, tf->bytes);
  tensors_close(&sw);
  free(w);
  // More numbers than are made at a time: the second piece goes on where the first ended.
  wider.vocab = 20000;
  wider.hidden = 64;
  w = weights_of(&wider, 1, &nw);
  tensors_close(&sf);
  const Tensor *tw = parsed_tensor(&sw, w, nw, "model.embed_tokens.weight");
  tf = parsed_tensor(&sf, f, nf, "model.embed_tokens.weight");
  assert_memory_equal(tw->data, tf->data, tf->bytes);
  int repeated = 0;
  for (size_t i = 0; i < 64; i++) {
    const uint8_t *second = tw->data + ((size_t)1 << 20) * 4;
    repeated += memcmp(tw->data + 4 * i, second + 4 * i, 4) == 0;
  }
  assert_in_range(repeated, 0, 3);
  tensors_close(&sa);
  tensors_close(&sf);
  tensors_close(&sw);
  free(a);
  free(b);
  free(c);
  free(f);
  free(w);
}

// Matrices keep the size of what goes through them; norms and biases are there to be noticed.
static void synth_statistics(void **state) {
  (void)state;
  Shape s = *shape_find("tiny-qwen3:f32");
  s.hidden = 512;
  s.qkv_bias = s.o_bias = true;
  size_t n;
  char *image = weights_of(&s, 3, &n);
  TensorSet set = {0};
  Error e;
  assert_ok(safetensors_parse("s", (const uint8_t *)image, n, &set, &e), &e);
  for (ptrdiff_t i = 0; i < arrlen(set.list); i++) {
    const Tensor *t = &set.list[i];
    double sum = 0, square = 0, most = 0;
    int64_t count = t->dim[0] * (t->rank == 2 ? t->dim[1] : 1);
    for (int64_t k = 0; k < count; k++) {
      float v;
      memcpy(&v, t->data + 4 * k, 4);
      sum += (double)v;
      square += (double)v * (double)v;
      most = fmax(most, fabs((double)v));
    }
    double mean = sum / (double)count, deviation = sqrt(square / (double)count - mean * mean);
    double expected = t->rank == 2 ? 1 / sqrt((double)t->dim[1]) : 0.1;
    if (strstr(t->name, "q_proj.weight") || strstr(t->name, "k_proj.weight")) expected *= 1.5;
    bool bias = strstr(t->name, ".bias"), head = strstr(t->name, "_norm.weight");
    if (bias || head) expected = 0.5;
    double center = t->rank == 2 || bias ? 0 : head ? 2 : 1;
    double slack = 5 / sqrt((double)count);
    if (!(fabs(mean - center) <= slack * expected) || !(fabs(deviation / expected - 1) <= slack) ||
        !(most <= center + 3.5 * expected))
      fail_msg("%s: mean %g, deviation %g, most %g", t->name, mean, deviation, most);
  }
  tensors_close(&set);
  free(image);
}

static void synth_refuses(void **state) {
  (void)state;
  char *folder = temp_folder();
  Error e = {0};
  Shape s = *shape_find("tiny-llama");
  s.rope.kind = ROPE_FACTORS;
  assert_int_equal(synth_write(&s, folder, 1, &e), -1);
  assert_error(&e, EXIT_INPUT, "no config.json of family llama can say this shape");
  s = *shape_find("tiny-qwen2");
  s.qkv_bias = false;
  assert_int_equal(synth_write(&s, folder, 1, &e), -1);
  s = *shape_find("tiny-llama");
  s.heads = 3;
  assert_int_equal(synth_write(&s, folder, 1, &e), -1);
  assert_error(&e, EXIT_INPUT, "K/V heads");
  assert_int_equal(synth_write(shape_find("tiny-llama"), path_in(folder, "a/b"), 1, &e), -1);
  assert_error(&e, EXIT_FAIL, "a/b: No such file or directory");
  write_text(path_in(folder, "file"), "x");
  assert_int_equal(synth_write(shape_find("tiny-llama"), path_in(folder, "file"), 1, &e), -1);
  assert_int_equal(e.code, EXIT_FAIL);
  // linear scaling survives the journey, and an old file is replaced by a whole new one
  s = *shape_find("tiny-qwen2");
  s.rope = (Rope){.kind = ROPE_LINEAR, .theta = 12345.5, .factor = 2.5};
  s.rms_eps = 3.3e-6f;
  write_text(path_in(folder, "model.safetensors"), "old");
  assert_ok(synth_write(&s, folder, 1, &e), &e);
  Opened o = accepted(folder, NULL);
  assert_shape(&o.model.shape, &s);
  opened_close(&o);
  remove_tree(folder);
}
//< test_model_synth

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(known_shapes),
      cmocka_unit_test(impossible_shapes),
      cmocka_unit_test(rope),
      cmocka_unit_test(config_sizes),
      cmocka_unit_test(config_families),
      cmocka_unit_test(config_rope),
      cmocka_unit_test(config_refused),
      cmocka_unit_test(tiny_checkpoints),
      cmocka_unit_test(saved_by_transformers),
      cmocka_unit_test(wrong_tensors),
      cmocka_unit_test(any_address),
      cmocka_unit_test(mixed_types),
      cmocka_unit_test(heads_tied_or_not),
      cmocka_unit_test(stop_ids),
      cmocka_unit_test(biases),
      cmocka_unit_test(padded_vocabulary),
      cmocka_unit_test(kv_heads_from_weights),
      cmocka_unit_test(sharded),
      cmocka_unit_test(gguf_equals_folder),
      cmocka_unit_test(gguf_quantized),
      cmocka_unit_test(gguf_keys),
      cmocka_unit_test(sources),
      cmocka_unit_test(source_hashes),
      cmocka_unit_test(kept_memory),
      cmocka_unit_test(synth_is_determined),
      cmocka_unit_test(synth_statistics),
      cmocka_unit_test(synth_refuses),
  };
  return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
