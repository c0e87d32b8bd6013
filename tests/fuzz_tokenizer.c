// Any bytes as a tokenizer: tokenizer.json, tokenizer_config.json and chat_template.jinja with a byte 0xFF
// between them, or a GGUF file. Either an error, or a tokenizer whose ids all exist and whose text is UTF-8
// at every step.
#include "tiles.h"

#include <stb/stb_ds.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Notices would bury the fuzzer's own lines, which go to the stream that stderr was before.
int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  FILE *nowhere = fopen("/dev/null", "w");
  if (nowhere) stderr = nowhere;
  return 0;
}

static void check_error(const Error *e) {
  if ((e->code != EXIT_INPUT && e->code != EXIT_FAIL) || !e->text[0]) abort();
}

static void check_ids(const Tokenizer *t, const int32_t *ids) {
  Detokenizer d = {.tokenizer = t};
  char *out = NULL;
  for (ptrdiff_t i = 0; i < arrlen(ids); i++) {
    size_t n;
    if (!vocab_text(&t->vocab, ids[i], &n)) abort();
    detokenize(&d, ids[i], &out);
    if (utf8_valid(out, arrlenu(out)) != arrlenu(out)) abort();
  }
  detokenize_flush(&d, &out);
  arrfree(out);
}

static void use(const Tokenizer *t) {
  static const char *const texts[] = {
      "", " a  ab abc\tb\n\n  <s>a</s> it's 123",
      "e\xcc\xa3\xcc\x81 \xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab\xf0\x9f\x99\x82",
      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
      "<|im_start|> <s><s> \xe2\x96\x81"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    for (int special = 0; special < 3; special++) {
      int32_t *ids = NULL;
      Error e = {0};
      size_t n = strlen(texts[i]);
      int r = special == 2 ? chat_encode(t, texts[i], n, &ids, &e)
                           : tokenizer_encode(t, texts[i], n, special, &ids, &e);
      if (r == 0) check_ids(t, ids);
      else check_error(&e);
      arrfree(ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Error e = {0};
  Tokenizer *t = NULL;
  int r;
  if (size > 4 && memcmp(data, "GGUF", 4) == 0) {
    Gguf *g;
    r = gguf_parse("fuzz", data, size, true, &g, &e);
    if (r == 0) {
      r = tokenizer_parse_gguf("fuzz", g, NULL, &t, &e);
      gguf_close(g);
    }
  } else {
    Mapping text[3] = {{0}};
    const uint8_t *at = data, *end = data + size;
    for (int i = 0; i < 3 && at < end; i++) {
      const uint8_t *stop = i < 2 ? memchr(at, 0xff, (size_t)(end - at)) : NULL;
      if (!stop) stop = end;
      if (stop > at) text[i] = (Mapping){at, (size_t)(stop - at)};
      at = stop < end ? stop + 1 : end;
    }
    static const Shape shape = {.vocab = 300};
    r = tokenizer_parse("fuzz", text, size % 2 ? &shape : NULL, &t, &e);
  }
  if (r == 0) use(t);
  else check_error(&e);
  tokenizer_close(t);
  return 0;
}
