// Any bytes as a config.json: either an error, or a shape that may be planned for: its sizes can be
// multiplied and its frequencies are finite.
#include "tiles.h"

#include <math.h>
#include <stb/stb_ds.h>
#include <stdlib.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Notices would bury the fuzzer's own lines, which go to the stream that stderr was before.
int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  FILE *nowhere = fopen("/dev/null", "w");
  if (nowhere) stderr = nowhere;
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Error e = {0};
  Shape s;
  int32_t *stops = NULL;
  if (config_parse("fuzz", data, size, &s, &stops, &e) == 0) {
    if (!s.kv_heads) s.kv_heads = s.heads;
    if (s.dtype != DT_NONE) abort();
    s.dtype = DT_F32;
    if (shape_check(&s, "fuzz", &e) != 0) abort();
    static float f[2048];
    rope_frequencies(&s, f);
    for (int32_t i = 0; i < s.head_dim / 2; i++)
      if (!isfinite(f[i])) abort();
    if (shape_weight_bytes(&s) > shape_stored_bytes(&s) || !shape_kv_bytes(&s)) abort();
    for (ptrdiff_t i = 0; i < arrlen(stops); i++)
      if (stops[i] < 0 || stops[i] >= s.vocab) abort();
  } else if (e.code != EXIT_INPUT || !e.text[0]) {
    abort();
  }
  arrfree(stops);
  return 0;
}
