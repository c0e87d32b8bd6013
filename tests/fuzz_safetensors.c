// Any bytes as a safetensors file: either an error, or tensors that lie within the bytes. All of them are
// read, so that a sanitizer sees one that does not.
#include "tiles.h"

#include <stb/stb_ds.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Error e = {0};
  TensorSet set = {0};
  if (safetensors_parse("fuzz", data, size, &set, &e) == 0) {
    uint64_t total = 0, sum = 0;
    for (ptrdiff_t i = 0; i < arrlen(set.list); i++) {
      const Tensor *t = &set.list[i];
      if (tensor_find(&set, t->name) != t) abort();
      total += t->bytes;
      for (uint64_t b = 0; b < t->bytes; b++) sum += t->data[b];
    }
    if (total > size || sum > 255 * total) abort(); // every byte belongs to one tensor
  } else if (e.code != EXIT_INPUT || !e.text[0]) {
    abort();
  }
  tensors_close(&set);
  return 0;
}
