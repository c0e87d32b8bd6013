/*: # What the tests share

Every test builds its own small inputs in a temporary folder and removes it. The helpers end the
program when the machine fails them (a full disk is no result), and use cmocka's assertions only
where the thing under test is to blame. :*/
#ifndef TESTING_H
#define TESTING_H

// cmocka wants these four before itself.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

// cmocka's `fail()` gives way to ours, which has arguments; tests end with fail_msg.
#undef fail
#undef fail_msg
#define fail_msg(...)                                                                              \
  do {                                                                                             \
    print_error("ERROR: " __VA_ARGS__);                                                            \
    print_error("\n");                                                                             \
    _fail(__FILE__, __LINE__);                                                                     \
  } while (0)

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tiles.h"

// A test program need not use all of them.
#define HELPER static inline __attribute__((unused))

HELPER void give_up(const char *what) {
  fprintf(stderr, "testing: %s: %s\n", what, strerror(errno));
  exit(99);
}

/*: ## Files :*/
//> test_files
// A fresh folder; remove_tree(path) removes and frees it.
HELPER char *temp_folder(void) {
  const char *base = getenv("TMPDIR");
  if (!base || !*base) base = "/tmp";
  size_t n = strlen(base) + sizeof "/tiles-test-XXXXXX";
  char *path = malloc(n);
  if (!path) give_up("malloc");
  snprintf(path, n, "%s/tiles-test-XXXXXX", base);
  if (!mkdtemp(path)) give_up(path);
  return path;
}

HELPER int remove_one(const char *path, const struct stat *st, int kind, struct FTW *walk) {
  (void)st, (void)kind, (void)walk;
  return remove(path);
}

HELPER void remove_tree(char *path) {
  if (!path) return;
  nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
  free(path);
}

// folder/name, in one of sixteen buffers that take turns: for one call's arguments, not to keep.
HELPER const char *path_in(const char *folder, const char *name) {
  static char buffer[16][4096];
  static unsigned turn;
  char *b = buffer[turn++ % 16];
  snprintf(b, sizeof buffer[0], "%s/%s", folder, name);
  return b;
}

HELPER void write_file(const char *path, const void *data, size_t bytes) {
  FILE *f = fopen(path, "wb");
  if (!f || (bytes && fwrite(data, 1, bytes, f) != bytes) || fclose(f) != 0) give_up(path);
}

HELPER void write_text(const char *path, const char *text) { write_file(path, text, strlen(text)); }

// The whole file with a NUL behind it; free() it. `bytes` may be NULL.
HELPER char *read_file(const char *path, size_t *bytes) {
  FILE *f = fopen(path, "rb");
  if (!f) give_up(path);
  size_t n = 0, room = 4096;
  char *text = malloc(room + 1);
  if (!text) give_up("malloc");
  for (size_t got; (got = fread(text + n, 1, room - n, f)) > 0;) {
    n += got;
    if (n < room) continue;
    char *more = realloc(text, (room *= 2) + 1);
    if (!more) give_up("realloc");
    text = more;
  }
  if (ferror(f)) give_up(path);
  fclose(f);
  text[n] = 0;
  if (bytes) *bytes = n;
  return text;
}

HELPER bool file_exists(const char *path) { return access(path, F_OK) == 0; }
//< test_files

/*: ## Safetensors files

Eight bytes of header length, the header, then the tensors' bytes in the order of the list. Where
`data` is NULL the tensor is filled from a generator that depends on nothing but its name. :*/
//> test_safetensors
typedef struct TestTensor {
  const char *name, *dtype; // as the file spells it: "BF16"
  int rank;
  int64_t dim[4];
  size_t bytes;
  const void *data; // [bytes] or NULL
} TestTensor;

// splitmix64: the next number of a seeded sequence.
HELPER uint64_t test_random(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

// A file image of `header` (a JSON text) followed by `bytes` of data; free() it.
HELPER uint8_t *safetensors_image(const char *header, const void *data, size_t bytes,
                                  size_t *size) {
  uint64_t n = strlen(header);
  uint8_t *image = malloc(8 + n + bytes);
  if (!image) give_up("malloc");
  for (int i = 0; i < 8; i++) image[i] = (uint8_t)(n >> 8 * i);
  memcpy(image + 8, header, n);
  if (bytes) memcpy(image + 8 + n, data, bytes);
  *size = 8 + n + bytes;
  return image;
}

// `padding` spaces behind the header, so that a test can choose how the data is aligned.
HELPER void write_safetensors_padded(const char *path, const TestTensor *list, size_t count,
                                     size_t padding) {
  char *header = NULL;
  size_t header_bytes = 0, total = 0;
  for (size_t i = 0; i < count; i++) total += list[i].bytes;
  uint8_t *data = malloc(total + 1);
  FILE *h = open_memstream(&header, &header_bytes);
  if (!data || !h) give_up("malloc");
  fputs("{\"__metadata__\":{\"format\":\"pt\"}", h);
  size_t at = 0;
  for (size_t i = 0; i < count; i++) {
    const TestTensor *t = &list[i];
    fprintf(h, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, t->dtype);
    for (int d = 0; d < t->rank; d++) fprintf(h, "%s%" PRId64, d ? "," : "", t->dim[d]);
    fprintf(h, "],\"data_offsets\":[%zu,%zu]}", at, at + t->bytes);
    uint64_t state = hash64(t->name, strlen(t->name), 1);
    if (t->data) memcpy(data + at, t->data, t->bytes);
    else // exponents are kept small in every type: no infinities, no NaN
      for (size_t b = 0; b < t->bytes; b++)
        data[at + b] = (uint8_t)(test_random(&state) & (b % 2 ? 0xbb : 0xff));
    at += t->bytes;
  }
  fprintf(h, "}%*s", (int)padding, "");
  if (fclose(h) != 0) give_up("open_memstream");
  size_t size;
  uint8_t *image = safetensors_image(header, data, total, &size);
  write_file(path, image, size);
  free(image);
  free(data);
  free(header);
}

HELPER void write_safetensors(const char *path, const TestTensor *list, size_t count) {
  write_safetensors_padded(path, list, count, 0);
}
//< test_safetensors

/*: ## Errors and notices :*/
//> test_errors
// The error has this code, is one line, and says `needle`.
#define assert_error(error, wanted, needle)                                                        \
  do {                                                                                             \
    const Error *error_ = (error);                                                                 \
    if (error_->code != (wanted) || !strstr(error_->text, (needle)))                               \
      fail_msg("wanted code %d and \"%s\"; got code %d and \"%s\"", (wanted), (needle),            \
               error_->code, error_->text);                                                        \
    assert_null(strchr(error_->text, '\n'));                                                       \
  } while (0)

// The call succeeded; otherwise the test fails with the error's own line.
#define assert_ok(call, error)                                                                     \
  do {                                                                                             \
    if ((call) != 0) fail_msg("%s: code %d: %s", #call, (error)->code, (error)->text);             \
  } while (0)

// Everything written to stderr between begin and end, in memory. Not nested.
typedef struct Capture {
  int saved;
  FILE *file;
} Capture;

HELPER Capture capture_begin(void) {
  Capture c = {.file = tmpfile()};
  fflush(stderr);
  c.saved = dup(STDERR_FILENO);
  if (!c.file || c.saved < 0 || dup2(fileno(c.file), STDERR_FILENO) < 0) give_up("capture");
  return c;
}

// free() the text.
HELPER char *capture_end(Capture c) {
  fflush(stderr);
  if (dup2(c.saved, STDERR_FILENO) < 0) give_up("capture");
  close(c.saved);
  long n = fseek(c.file, 0, SEEK_END) == 0 ? ftell(c.file) : -1;
  char *text = n < 0 ? NULL : calloc(1, (size_t)n + 1);
  rewind(c.file);
  if (!text || fread(text, 1, (size_t)n, c.file) != (size_t)n) give_up("capture");
  fclose(c.file);
  return text;
}
//< test_errors

#endif
