// Writes the strings that the tokenizer is compared on, for tests/reference_tokens.py: each is a
// little-endian length of four bytes, then the bytes.
// usage: build/make_text FILE
#include "text.h"

int main(int count, char **arguments) {
  static Text t;
  FILE *f = count == 2 ? fopen(arguments[1], "wb") : NULL;
  if (!f) {
    fprintf(stderr, "usage: make_text FILE\n");
    return 2;
  }
  for (uint32_t i = 0; i < text_count(); i++) {
    make_text(i, &t);
    uint8_t n[4] = {(uint8_t)t.n, (uint8_t)(t.n >> 8), (uint8_t)(t.n >> 16), 0};
    fwrite(n, 1, sizeof n, f);
    fwrite(t.p, 1, t.n, f);
  }
  return fclose(f) ? 1 : 0;
}
