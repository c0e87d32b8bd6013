/*: # A GGUF file, for tests

Keys and tensors are appended in any order and come out as a file image. The writer believes whatever it
is told, so that a test can write files that are wrong in one place. `gw_model` writes the model that another
file holds: the same weights in GGUF's names and GGUF's order. :*/
#ifndef GGUF_WRITER_H
#define GGUF_WRITER_H

#include "testing.h"

#include <math.h>

//> gguf_writer
typedef struct GgufBytes {
  uint8_t *p;
  size_t n, room;
} GgufBytes;

typedef struct GgufWriter {
  GgufBytes keys, infos, data;
  uint64_t key_count, tensor_count;
  uint64_t alignment;
  uint32_t version;
  uint32_t quantize; // GGUF's number of Q8_0, Q4_0 or Q4_1: gw_model's matrices become that
} GgufWriter;

HELPER void gw_put(GgufBytes *b, const void *p, size_t n) {
  if (b->n + n > b->room) {
    b->room = 2 * (b->n + n) + 256;
    if (!(b->p = realloc(b->p, b->room))) give_up("realloc");
  }
  if (n) memcpy(b->p + b->n, p, n);
  b->n += n;
}

HELPER void gw_put_u32(GgufBytes *b, uint32_t v) { gw_put(b, &v, 4); }
HELPER void gw_put_u64(GgufBytes *b, uint64_t v) { gw_put(b, &v, 8); }

HELPER void gw_put_string(GgufBytes *b, const char *s, size_t n) {
  gw_put_u64(b, n);
  gw_put(b, s, n);
}

HELPER void gw_pad(GgufBytes *b, uint64_t alignment) {
  while (alignment > 1 && b->n % alignment) gw_put(b, "", 1);
}

// A key and its type; the value's bytes are the caller's to put.
HELPER GgufBytes *gw_key(GgufWriter *w, const char *key, uint32_t type) {
  gw_put_string(&w->keys, key, strlen(key));
  gw_put_u32(&w->keys, type);
  w->key_count++;
  return &w->keys;
}

HELPER void gw_u32(GgufWriter *w, const char *key, uint32_t v) {
  gw_put_u32(gw_key(w, key, GGUF_U32), v);
}

HELPER void gw_u64(GgufWriter *w, const char *key, uint64_t v) {
  gw_put_u64(gw_key(w, key, GGUF_U64), v);
}

HELPER void gw_i32(GgufWriter *w, const char *key, int32_t v) {
  gw_put(gw_key(w, key, GGUF_I32), &v, 4);
}

HELPER void gw_f32(GgufWriter *w, const char *key, float v) {
  gw_put(gw_key(w, key, GGUF_F32), &v, 4);
}

HELPER void gw_bool(GgufWriter *w, const char *key, bool v) {
  gw_put(gw_key(w, key, GGUF_BOOL), v ? "\1" : "\0", 1);
}

HELPER void gw_string(GgufWriter *w, const char *key, const char *v) {
  gw_put_string(gw_key(w, key, GGUF_STRING), v, strlen(v));
}

// An array of numbers, `bytes` in all.
HELPER void gw_array(GgufWriter *w, const char *key, GgufType element, uint64_t count,
                     const void *data, size_t bytes) {
  GgufBytes *b = gw_key(w, key, GGUF_ARRAY);
  gw_put_u32(b, element);
  gw_put_u64(b, count);
  gw_put(b, data, bytes);
}

HELPER void gw_strings(GgufWriter *w, const char *key, const char *const *v, uint64_t count) {
  gw_array(w, key, GGUF_STRING, count, NULL, 0);
  for (uint64_t i = 0; i < count; i++) gw_put_string(&w->keys, v[i], strlen(v[i]));
}

// Alignment 0: the default, unsaid.
HELPER GgufWriter gw_begin(uint32_t version, uint32_t alignment) {
  GgufWriter w = {.version = version, .alignment = alignment ? alignment : 32};
  if (alignment) gw_u32(&w, "general.alignment", alignment);
  return w;
}

// dim: outermost first, as in Tensor; GGUF writes them innermost first. type: GGUF's number. The
// tensor's bytes begin `offset` bytes into the data; they are not put.
HELPER void gw_info(GgufWriter *w, const char *name, uint32_t type, int rank, const int64_t *dim,
                    uint64_t offset) {
  gw_put_string(&w->infos, name, strlen(name));
  gw_put_u32(&w->infos, (uint32_t)rank);
  for (int i = rank; i-- > 0;) gw_put_u64(&w->infos, (uint64_t)dim[i]);
  gw_put_u32(&w->infos, type);
  gw_put_u64(&w->infos, offset);
  w->tensor_count++;
}

HELPER void gw_tensor(GgufWriter *w, const char *name, uint32_t type, int rank, const int64_t *dim,
                      const void *data, size_t bytes) {
  gw_pad(&w->data, w->alignment);
  gw_info(w, name, type, rank, dim, w->data.n);
  gw_put(&w->data, data, bytes);
}

// The file as it would lie on disk; free() it.
HELPER uint8_t *gw_image(const GgufWriter *w, size_t *size) {
  GgufBytes b = {0};
  gw_put(&b, "GGUF", 4);
  gw_put_u32(&b, w->version);
  gw_put_u64(&b, w->tensor_count);
  gw_put_u64(&b, w->key_count);
  gw_put(&b, w->keys.p, w->keys.n);
  gw_put(&b, w->infos.p, w->infos.n);
  gw_pad(&b, w->alignment);
  gw_put(&b, w->data.p, w->data.n);
  *size = b.n;
  return b.p;
}

HELPER void gw_save(const GgufWriter *w, const char *path) {
  size_t size;
  uint8_t *image = gw_image(w, &size);
  write_file(path, image, size);
  free(image);
}

HELPER void gw_end(GgufWriter *w) {
  free(w->keys.p);
  free(w->infos.p);
  free(w->data.p);
  *w = (GgufWriter){0};
}
//< gguf_writer

/*: ## A model that is open already

The row order of architecture llama is written down here a second time, in the way of the program that
makes such files: a head's rows, seen as [2, half], are transposed to [half, 2]. :*/
//> gguf_writer_model
// GGUF's numbers of the types that we compute with.
HELPER uint32_t gw_type(DType t) { return t == DT_F32 ? 0 : t == DT_F16 ? 1 : 30; }

// rows: [heads * head_dim, bytes]; out gets the same bytes in GGUF's order.
HELPER void gw_permute(const uint8_t *rows, int heads, int head_dim, size_t bytes, uint8_t *out) {
  int half = head_dim / 2;
  for (int h = 0; h < heads; h++)
    for (int i = 0; i < half; i++)
      for (int a = 0; a < 2; a++) {
        size_t to = ((size_t)h * (size_t)half + (size_t)i) * 2 + (size_t)a;
        size_t from = ((size_t)h * 2 + (size_t)a) * (size_t)half + (size_t)i;
        memcpy(out + to * bytes, rows + from * bytes, bytes);
      }
}

// layer < 0: the name as it is. heads: of q and k, 0 where rows keep their order.
HELPER void gw_rows(GgufWriter *w, int layer, const char *name, uint32_t type, int rank,
                    const int64_t *dim, const void *data, size_t row_bytes, int heads) {
  char full[96];
  if (layer < 0) snprintf(full, sizeof full, "%s", name);
  else snprintf(full, sizeof full, "blk.%d.%s", layer, name);
  size_t n = (size_t)dim[0] * row_bytes;
  uint8_t *out = malloc(n + 1);
  if (!out) give_up("malloc");
  if (heads) gw_permute(data, heads, (int)dim[0] / heads, row_bytes, out);
  else memcpy(out, data, n);
  gw_tensor(w, full, type, rank, dim, out, n);
  free(out);
}

// One block of 32 weights, by the plainest rule: the largest magnitude, or the range, sets the scale.
HELPER size_t gw_block(uint32_t type, const float *v, uint8_t *out) {
  float least = v[0], most = v[0], large;
  for (int i = 1; i < 32; i++) least = fminf(least, v[i]), most = fmaxf(most, v[i]);
  large = fmaxf(fabsf(least), fabsf(most));
  float d = type == 8 ? large / 127 : type == 2 ? large / 7 : (most - least) / 15;
  uint16_t scale[2] = {f32_to_f16(d), f32_to_f16(least)};
  float inverse = scale[0] ? 1 / f16_to_f32(scale[0]) : 0;
  size_t head = type == 3 ? 4 : 2;
  memcpy(out, scale, head);
  int q[32];
  for (int i = 0; i < 32; i++) {
    float x = roundf((type == 3 ? v[i] - f16_to_f32(scale[1]) : v[i]) * inverse);
    q[i] = type == 8 ? (int)fminf(fmaxf(x, -127), 127)
                     : (int)fminf(fmaxf(type == 2 ? x + 8 : x, 0), 15);
  }
  for (int i = 0; i < (type == 8 ? 32 : 16); i++)
    out[head + (size_t)i] = (uint8_t)(type == 8 ? q[i] : q[i] | q[i + 16] << 4);
  return head + (type == 8 ? 32 : 16);
}

HELPER float gw_element(const Matrix *m, int32_t row, int32_t column) {
  const uint8_t *p = matrix_row(m, row) + (size_t)column * dtype_size(m->dtype);
  uint16_t h;
  float f;
  memcpy(&h, p, 2);
  if (m->dtype != DT_F32) return m->dtype == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
  memcpy(&f, p, 4);
  return f;
}

HELPER void gw_quantized(GgufWriter *w, int layer, const char *name, const Matrix *m, int heads) {
  int64_t dim[2] = {m->rows, m->columns};
  size_t step = w->quantize == 8 ? 34 : w->quantize == 2 ? 18 : 20;
  size_t bytes = (size_t)m->columns / 32 * step;
  uint8_t *rows = malloc((size_t)m->rows * bytes + 1), *at = rows;
  if (!rows) give_up("malloc");
  for (int32_t r = 0; r < m->rows; r++)
    for (int32_t c = 0; c < m->columns; c += 32) {
      float v[32];
      for (int32_t i = 0; i < 32; i++) v[i] = gw_element(m, r, c + i);
      at += gw_block(w->quantize, v, at);
    }
  gw_rows(w, layer, name, w->quantize, 2, dim, rows, bytes, heads);
  free(rows);
}

HELPER void gw_matrix(GgufWriter *w, int layer, const char *name, const Matrix *m, int heads) {
  if (w->quantize) {
    gw_quantized(w, layer, name, m, heads);
    return;
  }
  int64_t dim[2] = {m->rows, m->columns};
  size_t bytes = matrix_stride(m);
  uint8_t *rows = malloc((size_t)m->rows * bytes + 1);
  if (!rows) give_up("malloc");
  for (int32_t r = 0; r < m->rows; r++) memcpy(rows + (size_t)r * bytes, matrix_row(m, r), bytes);
  gw_rows(w, layer, name, gw_type(m->dtype), 2, dim, rows, bytes, heads);
  free(rows);
}

HELPER void gw_vector(GgufWriter *w, int layer, const char *name, const float *v, int32_t n,
                      int heads) {
  int64_t dim = n;
  if (v) gw_rows(w, layer, name, 0, 1, &dim, v, sizeof *v, heads);
}

// The keys of the shape; `arch` is "llama", "qwen2" or "qwen3". No tokenizer.
HELPER void gw_shape(GgufWriter *w, const Shape *s, const char *arch) {
  char key[80];
#define ARCH(suffix) (snprintf(key, sizeof key, "%s.%s", arch, suffix), key)
  gw_string(w, "general.architecture", arch);
  gw_string(w, "general.name", s->name);
  gw_u32(w, ARCH("block_count"), (uint32_t)s->layers);
  gw_u32(w, ARCH("context_length"), (uint32_t)s->max_context);
  gw_u32(w, ARCH("embedding_length"), (uint32_t)s->hidden);
  gw_u32(w, ARCH("feed_forward_length"), (uint32_t)s->inter);
  gw_u32(w, ARCH("attention.head_count"), (uint32_t)s->heads);
  gw_u32(w, ARCH("attention.head_count_kv"), (uint32_t)s->kv_heads);
  gw_u32(w, ARCH("attention.key_length"), (uint32_t)s->head_dim);
  gw_u32(w, ARCH("attention.value_length"), (uint32_t)s->head_dim);
  gw_u32(w, ARCH("rope.dimension_count"), (uint32_t)s->head_dim);
  gw_u32(w, ARCH("vocab_size"), (uint32_t)s->vocab);
  gw_f32(w, ARCH("attention.layer_norm_rms_epsilon"), s->rms_eps);
  gw_f32(w, ARCH("rope.freq_base"), (float)s->rope.theta);
  if (s->rope.kind == ROPE_LINEAR) {
    gw_string(w, ARCH("rope.scaling.type"), "linear");
    gw_f32(w, ARCH("rope.scaling.factor"), (float)s->rope.factor);
  }
#undef ARCH
}

// Keys and tensors of a model whose rows are in the order of Hugging Face.
HELPER void gw_model(GgufWriter *w, const Model *m, const char *arch) {
  const Shape *s = &m->shape;
  bool permuted = strcmp(arch, "llama") == 0;
  int q = permuted ? s->heads : 0, k = permuted ? s->kv_heads : 0;
  gw_shape(w, s, arch);
  if (s->rope.kind == ROPE_LLAMA3) { // the divisors, from the definition of the scaling
    float factor[2048];
    for (int32_t i = 0; i < s->head_dim / 2; i++) {
      double length = 2 * acos(-1.0) * pow(s->rope.theta, 2.0 * i / s->head_dim);
      double smooth = (s->rope.original / length - s->rope.low) / (s->rope.high - s->rope.low);
      if (smooth > 1) smooth = 1;
      if (smooth < 0) smooth = 0;
      factor[i] = (float)(1 / ((1 - smooth) / s->rope.factor + smooth));
    }
    gw_vector(w, -1, "rope_freqs.weight", factor, s->head_dim / 2, 0);
  }
  gw_matrix(w, -1, "token_embd.weight", &m->embedding, 0);
  gw_vector(w, -1, "output_norm.weight", m->final_norm, s->hidden, 0);
  if (!s->tied) gw_matrix(w, -1, "output.weight", &m->lm_head, 0);
  int32_t q_rows = s->heads * s->head_dim, k_rows = s->kv_heads * s->head_dim;
  for (int32_t i = 0; i < s->layers; i++) {
    const Layer *l = &m->layer[i];
    gw_vector(w, i, "attn_norm.weight", l->attn_norm, s->hidden, 0);
    gw_vector(w, i, "ffn_norm.weight", l->ffn_norm, s->hidden, 0);
    gw_matrix(w, i, "attn_q.weight", &l->q, q);
    gw_matrix(w, i, "attn_k.weight", &l->k, k);
    gw_matrix(w, i, "attn_v.weight", &l->v, 0);
    gw_vector(w, i, "attn_q.bias", l->q_bias, q_rows, q);
    gw_vector(w, i, "attn_k.bias", l->k_bias, k_rows, k);
    gw_vector(w, i, "attn_v.bias", l->v_bias, k_rows, 0);
    gw_vector(w, i, "attn_q_norm.weight", l->q_norm, s->head_dim, 0);
    gw_vector(w, i, "attn_k_norm.weight", l->k_norm, s->head_dim, 0);
    gw_matrix(w, i, "attn_output.weight", &l->o, 0);
    gw_vector(w, i, "attn_output.bias", l->o_bias, s->hidden, 0);
    gw_matrix(w, i, "ffn_gate.weight", &l->gate, 0);
    gw_matrix(w, i, "ffn_up.weight", &l->up, 0);
    gw_matrix(w, i, "ffn_down.weight", &l->down, 0);
    gw_vector(w, i, "ffn_gate.bias", l->gate_bias, s->inter, 0);
    gw_vector(w, i, "ffn_up.bias", l->up_bias, s->inter, 0);
    gw_vector(w, i, "ffn_down.bias", l->down_bias, s->hidden, 0);
  }
}
//< gguf_writer_model

#endif
