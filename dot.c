/*: # The dot product

A GEMV on a CPU is one loop: take the next weights of a row, widen them to FP32, multiply by the
activations, add. Everything else in this file is the same loop again for another dtype or another
instruction set, chosen once at start by what the CPU says it can do.

How fast must it be? A core that streams [40 GB/s]{.fact} at 3 GHz has a little over four cycles for each cache line
of 64 bytes. Thirty-two BF16 weights are two conversions, two shifts and two multiply-adds: that fits
with room to spare, so the loop's real work is to keep the memory busy. We help by asking for a line
well before it is needed. The hardware prefetcher stops at the end of each [4 KB]{.fact} page; a software prefetch
does not, and rows of a tile lie one behind the other, so the lines past the end of this row are the
beginning of the next. :*/
#include "tiles.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { AHEAD = 4096 }; // bytes between the line in use and the line asked for

/*: ## Plain C

The reference for the other two, and what other machines run. Sixteen running sums instead of one, so that a
compiler may use whatever vectors the machine has: with one sum it would have to add in the order of the text, since FP32 addition is not associative. Weights are
loaded by `memcpy`, because a row may begin at an odd address; compilers make one load of it. :*/
//> dot_c
static float load_f32(const uint8_t *p, int32_t i) {
  float f;
  memcpy(&f, p + (size_t)i * 4, 4);
  return f;
}

static uint16_t load_u16(const uint8_t *p, int32_t i) {
  uint16_t h;
  memcpy(&h, p + (size_t)i * 2, 2);
  return h;
}

static float load_bf16(const uint8_t *p, int32_t i) { return bf16_to_f32(load_u16(p, i)); }
static float load_f16(const uint8_t *p, int32_t i) { return f16_to_f32(load_u16(p, i)); }

#define DEFINE_C(T)                                                                                \
  static float dot_##T##_c(const uint8_t *w, const float *x, int32_t n) {                          \
    float sum[16] = {0}, total = 0;                                                                \
    int32_t i = 0;                                                                                 \
    for (; i + 16 <= n; i += 16)                                                                   \
      for (int32_t k = 0; k < 16; k++) sum[k] += load_##T(w, i + k) * x[i + k];                    \
    for (; i < n; i++) sum[i & 15] += load_##T(w, i) * x[i];                                       \
    for (int32_t k = 0; k < 16; k++) total += sum[k];                                              \
    return total;                                                                                  \
  }                                                                                                \
  static void axpy_##T##_c(float a, const uint8_t *w, float *y, int32_t n) {                       \
    for (int32_t i = 0; i < n; i++) y[i] += a * load_##T(w, i);                                    \
  }
DEFINE_C(f32)
DEFINE_C(bf16)
DEFINE_C(f16)

static float exps_c(float *s, float max, int32_t n) {
  float sum = 0;
  for (int32_t i = 0; i < n; i++) sum += s[i] = expf(s[i] - max);
  return sum;
}

static uint64_t read_c(const uint8_t *p, size_t bytes) {
  uint64_t sum[8] = {0}, w[8], all = 0;
  for (; bytes >= 64; bytes -= 64, p += 64) {
    memcpy(w, p, 64);
    for (int k = 0; k < 8; k++) sum[k] ^= w[k];
  }
  for (int k = 0; k < 8; k++) all ^= sum[k];
  return all;
}

static const Kernels kernels_c = {
    .isa = "c",
    .dot = {[DT_F32] = dot_f32_c, [DT_BF16] = dot_bf16_c, [DT_F16] = dot_f16_c},
    .axpy = {[DT_F32] = axpy_f32_c, [DT_BF16] = axpy_bf16_c, [DT_F16] = axpy_f16_c},
    .exps = exps_c,
    .read = read_c};
//< dot_c

#if defined(__x86_64__)

/*: ## AVX2 and AVX-512

One body serves both: `V` is the vector of floats, `W` its width, and `load` widens the next `W` weights. Four
accumulators hide the latency of the multiply-add. The order of the additions depends on `n` alone:
a row's dot product is the same bits in whatever tile it lies. :*/
//> dot_simd
#define DEFINE_SIMD(ISA, T, SIZE, TARGET, V, W, ZERO, FMA, SET1, LOADX, STOREX, SUM)               \
  TARGET static float dot_##T##_##ISA(const uint8_t *w, const float *x, int32_t n) {               \
    V s0 = ZERO(), s1 = ZERO(), s2 = ZERO(), s3 = ZERO();                                          \
    int32_t i = 0;                                                                                 \
    for (; i + 4 * W <= n; i += 4 * W) {                                                           \
      const uint8_t *p = w + (size_t)i * SIZE;                                                     \
      for (int32_t line = 0; line < 4 * W * SIZE; line += 64)                                      \
        _mm_prefetch((const char *)p + AHEAD + line, _MM_HINT_T0);                                 \
      s0 = FMA(load_##T##_##ISA(p), LOADX(x + i), s0);                                             \
      s1 = FMA(load_##T##_##ISA(p + W * SIZE), LOADX(x + i + W), s1);                              \
      s2 = FMA(load_##T##_##ISA(p + 2 * W * SIZE), LOADX(x + i + 2 * W), s2);                      \
      s3 = FMA(load_##T##_##ISA(p + 3 * W * SIZE), LOADX(x + i + 3 * W), s3);                      \
    }                                                                                              \
    for (; i + W <= n; i += W) s0 = FMA(load_##T##_##ISA(w + (size_t)i * SIZE), LOADX(x + i), s0); \
    float total = SUM(s0, s1, s2, s3);                                                             \
    for (; i < n; i++) total += load_##T(w, i) * x[i];                                             \
    return total;                                                                                  \
  }                                                                                                \
  TARGET static void axpy_##T##_##ISA(float a, const uint8_t *w, float *y, int32_t n) {            \
    V av = SET1(a);                                                                                \
    int32_t i = 0;                                                                                 \
    for (; i + W <= n; i += W)                                                                     \
      STOREX(y + i, FMA(load_##T##_##ISA(w + (size_t)i * SIZE), av, LOADX(y + i)));                \
    for (; i < n; i++) y[i] += a * load_##T(w, i);                                                 \
  }

#define AVX2 __attribute__((target("avx2,fma,f16c")))
AVX2 static inline __m256 load_f32_avx2(const uint8_t *p) {
  return _mm256_loadu_ps((const float *)(const void *)p);
}
AVX2 static inline __m256 load_bf16_avx2(const uint8_t *p) {
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
AVX2 static inline __m256 load_f16_avx2(const uint8_t *p) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
AVX2 static inline float sum_avx2(__m256 a, __m256 b, __m256 c, __m256 d) {
  __m256 s = _mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d));
  __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  t = _mm_add_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}
#define DEFINE_AVX2(T, SIZE)                                                                       \
  DEFINE_SIMD(avx2, T, SIZE, AVX2, __m256, 8, _mm256_setzero_ps, _mm256_fmadd_ps, _mm256_set1_ps,  \
              _mm256_loadu_ps, _mm256_storeu_ps, sum_avx2)
DEFINE_AVX2(f32, 4)
DEFINE_AVX2(bf16, 2)
DEFINE_AVX2(f16, 2)

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
AVX512 static inline __m512 load_f32_avx512(const uint8_t *p) { return _mm512_loadu_ps(p); }
AVX512 static inline __m512 load_bf16_avx512(const uint8_t *p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
AVX512 static inline __m512 load_f16_avx512(const uint8_t *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
AVX512 static inline float sum_avx512(__m512 a, __m512 b, __m512 c, __m512 d) {
  return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)));
}
#define DEFINE_AVX512(T, SIZE)                                                                     \
  DEFINE_SIMD(avx512, T, SIZE, AVX512, __m512, 16, _mm512_setzero_ps, _mm512_fmadd_ps,             \
              _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, sum_avx512)
DEFINE_AVX512(f32, 4)
DEFINE_AVX512(bf16, 2)
DEFINE_AVX512(f16, 2)
//< dot_simd

/*: ## The exponential

Softmax asks for one exponential a score, and at a context of thousands the library's scalar `expf` would take
longer than the cache's bytes. So we write the textbook version over vectors: x = k ln 2 + r with |r| at
most half of ln 2, a polynomial for e^r, and k added to the exponent. Arguments are never positive, since the maximum
was taken off; below -87 the result is zero to FP32. The error is below two units in the last place. :*/
//> exps
// clang-format off
#define EXP_CONSTANTS(X) \
  X(log2e, 1.44269504f) X(ln2_high, 0.693359375f) X(ln2_low, -2.12194440e-4f) \
  X(c5, 1.9875691500e-4f) X(c4, 1.3981999507e-3f) X(c3, 8.3334519073e-3f) \
  X(c2, 4.1665795894e-2f) X(c1, 1.6666665459e-1f) X(c0, 5.0000001201e-1f) \
  X(one, 1.0f) X(least, -87.0f)
// clang-format on

AVX2 static inline __m256 exp_avx2(__m256 x) {
#define X(name, value) const __m256 name = _mm256_set1_ps(value);
  EXP_CONSTANTS(X)
#undef X
  __m256 alive = _mm256_cmp_ps(x, least, _CMP_NLT_UQ); // true for NaN, which must stay NaN
  __m256 k =
      _mm256_round_ps(_mm256_mul_ps(x, log2e), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(k, ln2_low, _mm256_fnmadd_ps(k, ln2_high, x));
  __m256 p = _mm256_fmadd_ps(c5, r, c4);
  p = _mm256_fmadd_ps(p, r, c3);
  p = _mm256_fmadd_ps(p, r, c2);
  p = _mm256_fmadd_ps(p, r, c1);
  p = _mm256_fmadd_ps(p, r, c0);
  p = _mm256_add_ps(_mm256_fmadd_ps(_mm256_mul_ps(r, r), p, r), one);
  __m256i scale =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(k), _mm256_set1_epi32(127)), 23);
  return _mm256_and_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(scale)), alive);
}

AVX2 static float exps_avx2(float *s, float max, int32_t n) {
  __m256 sum = _mm256_setzero_ps(), m = _mm256_set1_ps(max);
  int32_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 e = exp_avx2(_mm256_sub_ps(_mm256_loadu_ps(s + i), m));
    _mm256_storeu_ps(s + i, e);
    sum = _mm256_add_ps(sum, e);
  }
  float total = sum_avx2(sum, _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps());
  for (; i < n; i++) total += s[i] = expf(s[i] - max);
  return total;
}

AVX512 static inline __m512 exp_avx512(__m512 x) {
#define X(name, value) const __m512 name = _mm512_set1_ps(value);
  EXP_CONSTANTS(X)
#undef X
  __mmask16 alive = _mm512_cmp_ps_mask(x, least, _CMP_NLT_UQ);
  __m512 k =
      _mm512_roundscale_ps(_mm512_mul_ps(x, log2e), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(k, ln2_low, _mm512_fnmadd_ps(k, ln2_high, x));
  __m512 p = _mm512_fmadd_ps(c5, r, c4);
  p = _mm512_fmadd_ps(p, r, c3);
  p = _mm512_fmadd_ps(p, r, c2);
  p = _mm512_fmadd_ps(p, r, c1);
  p = _mm512_fmadd_ps(p, r, c0);
  p = _mm512_add_ps(_mm512_fmadd_ps(_mm512_mul_ps(r, r), p, r), one);
  return _mm512_maskz_scalef_ps(alive, p, k);
}

AVX512 static float exps_avx512(float *s, float max, int32_t n) {
  __m512 sum = _mm512_setzero_ps(), m = _mm512_set1_ps(max);
  int32_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m512 e = exp_avx512(_mm512_sub_ps(_mm512_loadu_ps(s + i), m));
    _mm512_storeu_ps(s + i, e);
    sum = _mm512_add_ps(sum, e);
  }
  float total = _mm512_reduce_add_ps(sum);
  for (; i < n; i++) total += s[i] = expf(s[i] - max);
  return total;
}
//< exps

/*: ## Reading alone

What the floor is measured with: the same walk over memory with nothing to compute. If this loop were slower
than the dot product, the floor would flatter us. :*/
//> read_simd
AVX2 static uint64_t fold(__m256i a) {
  return (uint64_t)(_mm256_extract_epi64(a, 0) ^ _mm256_extract_epi64(a, 1) ^
                    _mm256_extract_epi64(a, 2) ^ _mm256_extract_epi64(a, 3));
}

AVX2 static uint64_t read_avx2(const uint8_t *p, size_t bytes) {
  __m256i a = _mm256_setzero_si256(), b = a;
  for (; bytes >= 64; bytes -= 64, p += 64) {
    _mm_prefetch((const char *)p + AHEAD, _MM_HINT_T0);
    a = _mm256_xor_si256(a, _mm256_loadu_si256((const __m256i *)(const void *)p));
    b = _mm256_xor_si256(b, _mm256_loadu_si256((const __m256i *)(const void *)(p + 32)));
  }
  return fold(_mm256_xor_si256(a, b));
}

AVX512 static uint64_t read_avx512(const uint8_t *p, size_t bytes) {
  __m512i a = _mm512_setzero_si512();
  for (; bytes >= 64; bytes -= 64, p += 64) {
    _mm_prefetch((const char *)p + AHEAD, _MM_HINT_T0);
    a = _mm512_xor_si512(a, _mm512_loadu_si512(p));
  }
  return fold(_mm256_xor_si256(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1)));
}
//< read_simd

static const Kernels kernels_avx2 = {
    .isa = "avx2",
    .dot = {[DT_F32] = dot_f32_avx2, [DT_BF16] = dot_bf16_avx2, [DT_F16] = dot_f16_avx2},
    .axpy = {[DT_F32] = axpy_f32_avx2, [DT_BF16] = axpy_bf16_avx2, [DT_F16] = axpy_f16_avx2},
    .exps = exps_avx2,
    .read = read_avx2};

static const Kernels kernels_avx512 = {
    .isa = "avx512",
    .dot = {[DT_F32] = dot_f32_avx512, [DT_BF16] = dot_bf16_avx512, [DT_F16] = dot_f16_avx512},
    .axpy = {[DT_F32] = axpy_f32_avx512, [DT_BF16] = axpy_bf16_avx512, [DT_F16] = axpy_f16_avx512},
    .exps = exps_avx512,
    .read = read_avx512};
#endif

/*: ## The choice

The compiler's own question to the CPU also asks whether the operating system saves the wide registers. :*/
//> kernels_find
const Kernels *kernels_find(const char *isa) {
  const Kernels *able[3] = {&kernels_c};
  int count = 1;
#if defined(__x86_64__)
  __builtin_cpu_init();
  // Every CPU with AVX2 converts FP16 too.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    able[count++] = &kernels_avx2;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    able[count++] = &kernels_avx512;
#endif
  if (!isa) return able[count - 1];
  for (int i = 0; i < count; i++)
    if (strcmp(able[i]->isa, isa) == 0) return able[i];
  return NULL;
}
//< kernels_find
