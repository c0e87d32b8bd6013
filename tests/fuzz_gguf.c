/*: # Fuzzing GGUF

Whatever the bytes are, parsing them ends with a result or with one line. What was accepted is then used
to the full: the shape, every string, every small quantized tensor, and the header alone, which must be
accepted again and tell the same. :*/
#include "tiles.h"

#include <stb/stb_ds.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// A broken promise, not a broken file.
static void must(bool holds) {
  if (!holds) abort();
}

static uint64_t walk_strings(const Gguf *g, const char *key) {
  GgufStrings it;
  const char *p;
  size_t n;
  uint64_t sum = 0;
  if (!gguf_strings(g, key, &it)) return 0;
  while (gguf_next(&it, &p, &n)) sum += hash64(p, n, sum); // touches every byte
  return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const keys[] = {"tokenizer.ggml.tokens", "tokenizer.ggml.merges", "a.words"};
  Error e = {0};
  Gguf *g, *again;
  if (gguf_parse("fuzz", data, size, false, &g, &e) != 0) {
    must(e.code == EXIT_INPUT && e.text[0] && !strchr(e.text, '\n'));
    return 0;
  }
  Shape s;
  int rc = gguf_shape(g, "fuzz", &s, &e);
  must(rc == 0 || e.code == EXIT_INPUT);
  if (rc == 0) must(s.layers > 0 && s.layers <= arrlen(gguf_tensors(g)->list));

  const TensorSet *set = gguf_tensors(g);
  for (ptrdiff_t i = 0; i < arrlen(set->list); i++) {
    const Tensor *t = &set->list[i];
    must(t->data >= data && t->bytes <= size && t->data + t->bytes <= data + size);
    must(tensor_find(set, t->name) == t);
    if (t->dtype != DT_NONE || t->bytes > 1 << 16) continue;
    uint16_t *out = malloc(t->bytes * 4); // Q4_0: 32 weights from 18 bytes
    if (!out) continue;
    if (gguf_widen(t, out, &e) != 0) must(e.code == EXIT_INPUT);
    free(out);
  }

  size_t header, once_more;
  const uint8_t *p = gguf_header(g, &header);
  must(p == data && header <= size);
  must(gguf_parse("fuzz", data, header, true, &again, &e) == 0);
  gguf_header(again, &once_more);
  must(once_more == header);
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    must(walk_strings(g, keys[i]) == walk_strings(again, keys[i]));
  Shape t;
  must(gguf_shape(again, "fuzz", &t, &e) == 0 || rc != 0);
  gguf_close(again);
  gguf_close(g);
  return 0;
}
