/*: # Errors, files, numbers

How an error travels, how a file is mapped, how a file is written so that nobody sees half of it, and
how two-byte floats become FP32 and back. :*/
#include "tiles.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/*: ## Errors

Names of keys and tensors come from files that we do not trust, so control characters are replaced
before the line is stored: an error is one line on any terminal. :*/
//> fail
static void one_line(char *s) {
  for (; *s; s++)
    if ((unsigned char)*s < 0x20 || *s == 0x7f) *s = '?';
}

int fail(Error *e, int code, const char *format, ...) {
  va_list ap;
  va_start(ap, format);
  e->code = code;
  vsnprintf(e->text, sizeof e->text, format, ap);
  va_end(ap);
  one_line(e->text);
  return -1;
}

void notice(const char *format, ...) {
  char text[640];
  va_list ap;
  va_start(ap, format);
  vsnprintf(text, sizeof text, format, ap);
  va_end(ap);
  one_line(text);
  fprintf(stderr, "tiles: note: %s\n", text);
}
//< fail

/*: ## Mapped files

A clone made without Git LFS has a 130-byte text where the weights should be. Read as a safetensors
header its first eight bytes are an absurd length, so we look for the text itself and say what helps. :*/
//> map_file
int map_file(const char *path, Mapping *out, Error *e) {
  *out = (Mapping){0};
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fail(e, EXIT_INPUT, "%s: %s", path, strerror(errno));
  struct stat st;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    close(fd);
    return fail(e, EXIT_INPUT, "%s: not a regular file", path);
  }
  if (st.st_size > 0) {
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
      int why = errno;
      close(fd);
      return fail(e, EXIT_FAIL, "%s: cannot map %lld bytes: %s", path, (long long)st.st_size,
                  strerror(why));
    }
    out->data = p;
    out->size = (size_t)st.st_size;
  }
  close(fd);
  static const char lfs[] = "version https://git-lfs";
  if (out->size >= sizeof lfs - 1 && memcmp(out->data, lfs, sizeof lfs - 1) == 0) {
    unmap_file(out);
    return fail(e, EXIT_INPUT, "%s: a Git LFS pointer, not the file; run git lfs pull", path);
  }
  return 0;
}

void unmap_file(Mapping *m) {
  if (m->data) munmap((void *)(uintptr_t)m->data, m->size);
  *m = (Mapping){0};
}
//< map_file

/*: ## Files that are whole or absent

A conversion that is killed just before its end must not leave a file that the next run takes for good. So
bytes go to a temporary name in the same folder, reach the disk, and only then get the real name. :*/
//> atomic
int atomic_open(AtomicFile *a, const char *path, Error *e) {
  *a = (AtomicFile){0};
  size_t n = strlen(path) + 16;
  a->path = strdup(path);
  a->temporary = malloc(n);
  if (!a->path || !a->temporary) {
    atomic_abort(a);
    return fail(e, EXIT_FAIL, "%s: out of memory", path);
  }
  snprintf(a->temporary, n, "%s.XXXXXX", path);
  int fd = mkstemp(a->temporary);
  int why = errno;
  if (fd < 0) {
    free(a->temporary);
    a->temporary = NULL;
    atomic_abort(a);
    return fail(e, EXIT_FAIL, "%s: cannot create a file beside it: %s", path, strerror(why));
  }
  mode_t mask = umask(0);
  umask(mask);
  if (fchmod(fd, 0666 & ~mask) != 0 || !(a->f = fdopen(fd, "wb"))) {
    why = errno;
    close(fd);
    atomic_abort(a);
    return fail(e, EXIT_FAIL, "%s: %s", path, strerror(why));
  }
  return 0;
}

int atomic_write(AtomicFile *a, const void *data, size_t bytes, Error *e) {
  if (bytes && fwrite(data, 1, bytes, a->f) != bytes)
    return fail(e, EXIT_FAIL, "%s: writing %zu bytes: %s", a->path, bytes, strerror(errno));
  return 0;
}

int atomic_commit(AtomicFile *a, Error *e) {
  bool bad = fflush(a->f) != 0 || fsync(fileno(a->f)) != 0;
  int why = errno;
  if (fclose(a->f) != 0 && !bad) {
    bad = true;
    why = errno;
  }
  a->f = NULL;
  if (!bad && rename(a->temporary, a->path) != 0) {
    bad = true;
    why = errno;
  }
  if (bad) {
    fail(e, EXIT_FAIL, "%s: %s", a->path, strerror(why));
    atomic_abort(a);
    return -1;
  }
  free(a->temporary);
  a->temporary = NULL;
  // The rename itself must survive a power cut; a folder that cannot be synced is no reason to fail.
  int fd = open(dirname(a->path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) {
    (void)fsync(fd);
    close(fd);
  }
  atomic_abort(a);
  return 0;
}

void atomic_abort(AtomicFile *a) {
  if (a->f) fclose(a->f);
  if (a->temporary) unlink(a->temporary);
  free(a->temporary);
  free(a->path);
  *a = (AtomicFile){0};
}
//< atomic

/*: ## Two-byte floats

Widening BF16 is a shift. FP16 has its own exponent, and its subnormal numbers need a case of their own.
Narrowing rounds to nearest, ties to even, for both, as the checkpoints were made. :*/
//> floats
const char *dtype_name(DType t) {
  return t == DT_F32 ? "F32" : t == DT_BF16 ? "BF16" : t == DT_F16 ? "F16" : "none";
}

static uint32_t bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

static float from_bits(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}

float bf16_to_f32(uint16_t h) { return from_bits((uint32_t)h << 16); }

uint16_t f32_to_bf16(float f) {
  uint32_t u = bits(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40); // NaN, kept quiet
  return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}

float f16_to_f32(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
  if (exponent == 31) return from_bits(sign | 0x7f800000u | fraction << 13);
  if (exponent) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
  float f = (float)fraction * 0x1p-24f; // subnormal or zero: exact
  return sign ? -f : f;
}

uint16_t f32_to_f16(float f) {
  uint32_t u = bits(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
  if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); // 65,520 and above round to infinity
  if (a < 0x38800000u) { // below the smallest normal: adding 0.5 aligns the fraction and rounds it
    return (uint16_t)(sign | (bits(from_bits(a) + 0.5f) - bits(0.5f)));
  }
  return (uint16_t)(sign | ((a + 0xfffu + (a >> 13 & 1)) - 0x38000000u) >> 13);
}
//< floats

/*: ## A hash

It tells whether bytes are those that were written, and it spreads names over tables. It keeps nobody out:
who can write a file can write its hash as well. It takes eight bytes at a time, for packages are large. :*/
//> hash
uint64_t hash64(const void *data, size_t bytes, uint64_t seed) {
  const uint8_t *p = data;
  uint64_t h = (seed ^ 0xcbf29ce484222325u) + bytes;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    uint64_t w;
    memcpy(&w, p, 8);
    h = (h ^ w) * 0x100000001b3u;
    h ^= h >> 29;
  }
  for (; bytes; bytes--, p++) h = (h ^ *p) * 0x100000001b3u;
  h ^= h >> 32;
  h *= 0xd6e8feb86659fd93u;
  return h ^ h >> 32;
}
//< hash

/*: One clock for everything that is timed on the host; it never goes back. :*/
//> seconds
double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
//< seconds
