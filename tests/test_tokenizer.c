/*: # Tests of the tokenizer

Three kinds of evidence. Real vocabularies against the reference's ids, on megabytes of text that
`text.h` makes (they are fetched once by tests/fetch_vocabularies.py; without them those tests are
skipped, or fail where TILES_REQUIRE_VOCAB is 1). Small tokenizers, each made for one feature, against
the reference's ids. And small files that are wrong in one place, each refused by one line. :*/
#include "gguf_writer.h"
#include "text.h"

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#define SPACE "\xe2\x96\x81"
#define SPACE_A "\xe2\x96\x81\x61"

static Mapping text_map(const char *s) { return (Mapping){(const uint8_t *)s, s ? strlen(s) : 0}; }

// The three texts of a folder; NULL where there is none.
static int parse(const char *json, const char *config, const char *jinja, const Shape *shape,
                 Tokenizer **t, Error *e) {
  Mapping text[3] = {text_map(json), text_map(config), text_map(jinja)};
  return tokenizer_parse("x", text, shape, t, e);
}

static Tokenizer *opened(const char *json, const char *config, const char *jinja) {
  Error e;
  Tokenizer *t = NULL;
  assert_ok(parse(json, config, jinja, NULL, &t, &e), &e);
  return t;
}

static void expect_ids(const int32_t *ids, const int32_t *wanted, size_t n, const char *what) {
  if (arrlenu(ids) == n && (!n || memcmp(ids, wanted, n * sizeof *ids) == 0)) return;
  for (ptrdiff_t i = 0; i < arrlen(ids); i++) print_error("%d ", ids[i]);
  print_error("instead of ");
  for (size_t i = 0; i < n; i++) print_error("%d ", wanted[i]);
  fail_msg("for %s", what);
}

// The ids of a text are these.
#define assert_ids(t, text, special, ...)                                                          \
  do {                                                                                             \
    const int32_t wanted_[] = {__VA_ARGS__};                                                       \
    int32_t *ids_ = NULL;                                                                          \
    Error e_;                                                                                      \
    assert_ok(tokenizer_encode((t), (text), strlen(text), (special), &ids_, &e_), &e_);            \
    expect_ids(ids_, wanted_, sizeof wanted_ / sizeof *wanted_, (text));                           \
    arrfree(ids_);                                                                                 \
  } while (0)

// All ids, decoded one after the other; an stb_ds array without a NUL.
static char *decoded(const Tokenizer *t, const int32_t *ids, ptrdiff_t n) {
  Detokenizer d = {.tokenizer = t};
  char *out = NULL;
  for (ptrdiff_t i = 0; i < n; i++) detokenize(&d, ids[i], &out);
  detokenize_flush(&d, &out);
  return out;
}

static void expect_text(const Tokenizer *t, const int32_t *ids, ptrdiff_t n, const char *wanted) {
  char *out = decoded(t, ids, n);
  if (arrlenu(out) != strlen(wanted) || memcmp(out ? out : "", wanted, strlen(wanted)) != 0)
    fail_msg("'%.*s' instead of '%s'", (int)arrlen(out), out ? out : "", wanted);
  arrfree(out);
}
#define assert_text(t, wanted, ...)                                                                \
  do {                                                                                             \
    const int32_t ids_[] = {__VA_ARGS__};                                                          \
    expect_text((t), ids_, sizeof ids_ / sizeof *ids_, (wanted));                                  \
  } while (0)

/*: ## Real vocabularies :*/
static const char *const names[] = {"llama3", "qwen2.5", "smollm2", "llama2"};
enum { LLAMA3, QWEN, SMOLLM, LLAMA2, VOCABULARIES };
static Tokenizer *from_json[VOCABULARIES], *from_gguf[VOCABULARIES];

static int open_vocabularies(void **state) {
  (void)state;
  Error e;
  for (int i = 0; i < VOCABULARIES; i++) {
    char folder[64], stamp[96];
    snprintf(folder, sizeof folder, "models/vocab/%s", names[i]);
    snprintf(stamp, sizeof stamp, "%s/version", folder);
    if (!file_exists(stamp)) continue;
    Mapping text[3] = {{0}}, gguf;
    if (map_file(path_in(folder, "tokenizer.json"), &text[0], &e) != 0 ||
        map_file(path_in(folder, "tokenizer_config.json"), &text[1], &e) != 0 ||
        tokenizer_parse(folder, text, NULL, &from_json[i], &e) != 0 ||
        map_file(path_in(folder, "vocab.gguf"), &gguf, &e) != 0) {
      print_error("%s\n", e.text);
      return -1;
    }
    Gguf *g;
    if (gguf_parse(folder, gguf.data, gguf.size, true, &g, &e) != 0 ||
        tokenizer_parse_gguf(folder, g, NULL, &from_gguf[i], &e) != 0) {
      print_error("%s\n", e.text);
      return -1;
    }
    gguf_close(g);
    unmap_file(&gguf);
    unmap_file(&text[0]);
    unmap_file(&text[1]);
  }
  return 0;
}

static int close_vocabularies(void **state) {
  (void)state;
  for (int i = 0; i < VOCABULARIES; i++) {
    tokenizer_close(from_json[i]);
    tokenizer_close(from_gguf[i]);
  }
  return 0;
}

// Ends the test where the vocabulary is not there.
static void need(int i) {
  if (from_json[i]) return;
  const char *required = getenv("TILES_REQUIRE_VOCAB");
  if (required && strcmp(required, "1") == 0)
    fail_msg("models/vocab/%s is missing: python3 tests/fetch_vocabularies.py", names[i]);
  print_message("# models/vocab/%s is missing: python3 tests/fetch_vocabularies.py\n", names[i]);
  skip();
}

static uint32_t crc32_of(const void *data, size_t n) {
  static uint32_t table[256];
  if (!table[1])
    for (uint32_t i = 0; i < 256; i++) {
      table[i] = i;
      for (int k = 0; k < 8; k++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
    }
  const uint8_t *p = data;
  uint32_t c = 0xffffffffu;
  while (n--) c = table[(c ^ *p++) & 255] ^ c >> 8;
  return ~c;
}

static bool has_byte(const Text *t, const char *bytes) {
  for (; *bytes; bytes++)
    if (memchr(t->p, *bytes, t->n)) return true;
  return false;
}

// The sanitizers are content with every seventh text.
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { STRIDE = 7 };
#else
enum { STRIDE = 1 };
#endif

// Both modes and the way back, for every text; json and gguf alike.
static void like_the_reference(int which) {
  need(which);
  static Text text;
  size_t bytes;
  uint32_t *golden =
      (uint32_t *)read_file(path_in("tests/golden", which == LLAMA3   ? "tokens-llama3.u32"
                                                    : which == QWEN   ? "tokens-qwen2.5.u32"
                                                    : which == SMOLLM ? "tokens-smollm2.u32"
                                                                      : "tokens-llama2.u32"),
                            &bytes);
  assert_int_equal(bytes, 12 * (size_t)text_count());
  size_t total = 0, ids_total = 0;
  Error e;
  Capture quiet = capture_begin(); // notices of a typed BOS
  uint32_t wrong = 0, first_wrong = 0;
  for (uint32_t i = 0; i < text_count(); i += STRIDE) {
    make_text(i, &text);
    total += text.n;
    int32_t *ids = NULL, *plain = NULL, *other = NULL;
    bool good = tokenizer_encode(from_json[which], text.p, text.n, true, &ids, &e) == 0 &&
                tokenizer_encode(from_json[which], text.p, text.n, false, &plain, &e) == 0 &&
                tokenizer_encode(from_gguf[which], text.p, text.n, true, &other, &e) == 0;
    char *back = decoded(from_json[which], plain, arrlen(plain));
    good = good && crc32_of(ids, 4 * arrlenu(ids)) == golden[3 * i] &&
           crc32_of(plain, 4 * arrlenu(plain)) == golden[3 * i + 1] &&
           crc32_of(back, arrlenu(back)) == golden[3 * i + 2] && arrlen(ids) == arrlen(other) &&
           (!ids || memcmp(ids, other, 4 * arrlenu(ids)) == 0);
    // Without a normal form the text comes back byte for byte. (U+2581 is a space to Llama 2, and
    // SmolLM2 has no token for some bytes.)
    if (which == LLAMA3 || (which == LLAMA2 && !memmem(text.p, text.n, SPACE, 3)) ||
        (which == SMOLLM && !has_byte(&text, "\x04\x06\x13\x14\x16\x1d\xf1\xf2")))
      good = good && arrlenu(back) == text.n && (!text.n || memcmp(back, text.p, text.n) == 0);
    if (!good && !wrong++) first_wrong = i;
    ids_total += arrlenu(ids) + arrlenu(plain);
    arrfree(ids);
    arrfree(plain);
    arrfree(other);
    arrfree(back);
  }
  free(capture_end(quiet));
  free(golden);
  print_message("# %s: %u texts, %zu bytes, %zu ids, %u differ\n", names[which],
                text_count() / STRIDE, total, ids_total, wrong);
  if (wrong) {
    make_text(first_wrong, &text);
    fail_msg("%u texts differ, the first is number %u: %.*s", wrong, first_wrong,
             (int)(text.n < 200 ? text.n : 200), text.p);
  }
}

static void llama3_is_like_the_reference(void **state) { (void)state, like_the_reference(LLAMA3); }
static void qwen_is_like_the_reference(void **state) { (void)state, like_the_reference(QWEN); }
static void smollm_is_like_the_reference(void **state) { (void)state, like_the_reference(SMOLLM); }
static void llama2_is_like_the_reference(void **state) { (void)state, like_the_reference(LLAMA2); }

// A whole pre-token is taken from the vocabulary although no merges lead to it.
static void whole_words_ignore_merges(void **state) {
  (void)state;
  need(LLAMA3);
  need(QWEN);
  for (int i = 0; i < 2; i++) {
    const Tokenizer *llama = i ? from_gguf[LLAMA3] : from_json[LLAMA3];
    const Tokenizer *qwen = i ? from_gguf[QWEN] : from_json[QWEN];
    assert_ids(llama, " Việt", false, 101798);
    assert_ids(llama, "Cửa Việt", false, 34, 91163, 101798);
    assert_ids(qwen, " Việt", false, 128324);
    assert_ids(qwen, "Cửa Việt", false, 34, 90063, 128324);
  }
}

static void each_family_has_its_bos(void **state) {
  (void)state;
  for (int i = 0; i < VOCABULARIES; i++) need(i);
  for (int i = 0; i < 2; i++) {
    Tokenizer *const *t = i ? from_gguf : from_json;
    assert_ids(t[LLAMA3], "Hello world", true, 128000, 9906, 1917);
    assert_ids(t[QWEN], "Hello world", true, 9707, 1879);
    assert_ids(t[SMOLLM], "Hello world", true, 19556, 905);
    assert_ids(t[LLAMA2], "Hello world", true, 1, 15043, 3186);
    assert_ids(t[LLAMA3], "Hello world", false, 9906, 1917);
    assert_ids(t[LLAMA3], "", true, 128000);
    assert_ids(t[LLAMA2], "", true, 1);
    int32_t *none = NULL;
    Error e;
    assert_ok(tokenizer_encode(t[QWEN], "", 0, true, &none, &e), &e);
    assert_ok(tokenizer_encode(t[LLAMA3], "", 0, false, &none, &e), &e);
    assert_int_equal(arrlen(none), 0);
    arrfree(none);
    // Typed: one, and a note. As plain text it is plain text.
    Capture c = capture_begin();
    assert_ids(t[LLAMA3], "<|begin_of_text|>Hello world", true, 128000, 9906, 1917);
    assert_ids(t[LLAMA2], "<s>Hello world", true, 1, 15043, 3186);
    char *note = capture_end(c);
    assert_non_null(strstr(note, "begins with <|begin_of_text|> itself"));
    assert_non_null(strstr(note, "begins with <s> itself"));
    free(note);
    assert_ids(t[LLAMA3], "<|begin_of_text|>", false, 27, 91, 7413, 3659, 4424, 91, 29);
  }
}

static void cuts_as_each_model_was_taught(void **state) {
  (void)state;
  need(LLAMA3);
  need(QWEN);
  need(SMOLLM);
  for (int i = 0; i < 2; i++) {
    const Tokenizer *a = i ? from_gguf[LLAMA3] : from_json[LLAMA3];
    const Tokenizer *b = i ? from_gguf[QWEN] : from_json[QWEN];
    const Tokenizer *c = i ? from_gguf[SMOLLM] : from_json[SMOLLM];
    assert_ids(a, "123456", false, 4513, 10961);
    assert_ids(b, "123456", false, 16, 17, 18, 19, 20, 21);
    assert_ids(a, "12½34", false, 717, 27154, 1958);
    assert_ids(b, "12½34", false, 16, 17, 26062, 18, 19);
    assert_ids(a, "  Hello", false, 220, 22691);
    assert_ids(b, "  Hello", false, 220, 21927);
    assert_ids(c, "  Hello", false, 216, 38699);
    assert_ids(c, "333", false, 35, 35, 35);
    assert_ids(a, "  \n  x", false, 2355, 220, 865);
    assert_ids(b, "  \n  x", false, 2303, 220, 856);
    assert_ids(a, "a\r\n\r\nb", false, 64, 881, 65);
    assert_ids(b, "a\r\n\r\nb", false, 64, 871, 65);
    assert_ids(a,
               "\xe3\x80\x80"
               "a",
               false, 23249, 64);
    assert_ids(b,
               "\xe3\x80\x80"
               "a",
               false, 22441, 64);
    assert_ids(a, "it'S", false, 275, 13575);
    assert_ids(b, "it'S", false, 275, 13272);
    assert_ids(a, "e\xcc\x81", false, 68, 54939);
    assert_ids(b, "e\xcc\x81", false, 963);
    assert_ids(b, "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", false, 23573);
    assert_ids(a, "\xe2\x84\xab", false, 15284, 104);
    assert_ids(b, "\xe2\x84\xab", false, 144044);
    int32_t *jamo = NULL;
    Error e;
    assert_ok(tokenizer_encode(a, "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", 9, false, &jamo, &e), &e);
    assert_int_equal(arrlen(jamo), 9);
    arrfree(jamo);
  }
}

static void characters_come_whole(void **state) {
  (void)state;
  need(LLAMA3);
  need(QWEN);
  const Tokenizer *t = from_json[LLAMA3];
  assert_text(t, "🙂", 9468, 19044);
  assert_text(t, "🦙", 9468, 99, 247);
  assert_text(t, "\xef\xbf\xbd", 9468); // the limit inside a character
  assert_text(t,
              "\xef\xbf\xbd"
              "a",
              9468, 64);                       // no continuation
  assert_text(t, "🙂", 9468, 128009, 19044); // a special token between
  Detokenizer d = {.tokenizer = t};
  char *out = NULL;
  detokenize(&d, 9468, &out);
  assert_int_equal(arrlen(out), 0);
  detokenize(&d, 19044, &out);
  assert_int_equal(arrlen(out), 4);
  detokenize_flush(&d, &out);
  assert_int_equal(arrlen(out), 4);
  arrfree(out);
  // Id 0, which an argmax over nothing but NaN would give.
  assert_text(t, "!", 0);
  assert_text(from_json[QWEN], "!", 0);
  // Ids that have no text print nothing.
  assert_text(from_json[QWEN], "ab", 64, 151669, 151935, 1 << 30, -1, 65);
  assert_int_equal(tokenizer_size(from_json[QWEN]), 151665);
  assert_text(from_json[QWEN], "a<tool_call>b", 64, 151657, 151645, 65); // added, not special
}

static void chat_is_wrapped_as_taught(void **state) {
  (void)state;
  need(LLAMA3);
  need(QWEN);
  need(SMOLLM);
  Error e;
  for (int i = 0; i < 2; i++) {
    // From Transformers' apply_chat_template over the checkpoint's own template.
    const int32_t smollm[] = {1,    9690, 198, 2683,  359,  253,  5356, 5646, 11173,
                              3365, 3511, 308, 34519, 28,   7018, 411,  407,  19712,
                              8182, 2,    198, 1,     4093, 198,  1780, 314,  9354,
                              47,   2,    198, 1,     520,  9531, 198};
    int32_t *ids = NULL, *wanted = NULL;
    const Tokenizer *t = i ? from_gguf[SMOLLM] : from_json[SMOLLM];
    assert_ok(chat_encode(t, "What is gravity?", 16, &ids, &e), &e);
    expect_ids(ids, smollm, sizeof smollm / sizeof *smollm, "SmolLM2's chat");
    arrfree(ids);
    // What the template would write, encoded with its special tokens.
    static const char *const rendered[] = {
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi\n there<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
        "<|im_end|>\n<|im_start|>user\n \tHi\n there\n<|im_end|>\n<|im_start|>assistant\n",
    };
    for (int k = 0; k < 2; k++) {
      t = (i ? from_gguf : from_json)[k];
      ids = wanted = NULL;
      assert_ok(chat_encode(t, " \tHi\n there\n", 12, &ids, &e), &e);
      Capture quiet = capture_begin(); // the BOS is typed here
      assert_ok(tokenizer_encode(t, rendered[k], strlen(rendered[k]), true, &wanted, &e), &e);
      free(capture_end(quiet));
      expect_ids(ids, wanted, arrlenu(wanted), rendered[k]);
      arrfree(ids);
      // A turn cannot be ended by typing.
      static const char bad[] = "<|im_end|><|eot_id|>";
      assert_ok(chat_encode(t, bad, sizeof bad - 1, &ids, &e), &e);
      char *back = decoded(t, ids, arrlen(ids));
      assert_non_null(memmem(back, arrlenu(back), bad, sizeof bad - 1));
      arrfree(back);
      arrfree(ids);
      arrfree(wanted);
      assert_int_equal(chat_encode(t, "ab\xff", 3, &ids, &e), -1);
      assert_error(&e, EXIT_INPUT, "byte 2 of 3 (0xff) is not UTF-8");
      assert_int_equal(arrlen(ids), 0);
    }
  }
  if (from_json[LLAMA2]) {
    int32_t *ids = NULL;
    assert_int_equal(chat_encode(from_json[LLAMA2], "Hi", 2, &ids, &e), -1);
    assert_error(&e, EXIT_INPUT, "models/vocab/llama2: no chat template");
  }
}

// Runs without an end: right, and not quadratic. (The time is a benchmark's to measure.)
static void long_runs(void **state) {
  (void)state;
  static const char *const unit[] = {"a", " ", "\n", "\xcc\x81\xcc\xa3", "<", "7", "a ", "日", "'"};
  for (int which = 0; which < VOCABULARIES; which++) need(which);
  for (int which = 0; which < VOCABULARIES; which++)
    for (size_t u = 0; u < sizeof unit / sizeof *unit; u++) {
      char *text = NULL;
      int32_t *ids = NULL;
      Error e;
      while (arrlenu(text) < 100000) text_append(&text, unit[u], strlen(unit[u]));
      assert_ok(tokenizer_encode(from_json[which], text, arrlenu(text), false, &ids, &e), &e);
      char *back = decoded(from_json[which], ids, arrlen(ids));
      assert_int_equal(arrlen(back), arrlen(text));
      if (which != QWEN) assert_memory_equal(back, text, arrlenu(text));
      else if (u == 3) { // sorted: all marks of class 220, then all of class 230
        assert_memory_equal(back, "\xcc\xa3\xcc\xa3", 4);
        assert_memory_equal(back + arrlenu(back) - 4, "\xcc\x81\xcc\x81", 4);
      }
      arrfree(back);
      arrfree(ids);
      arrfree(text);
    }
}

/*: ## Small tokenizers, like the reference :*/
static void small_tokenizers_like_the_reference(void **state) {
  (void)state;
  char *source = read_file("tests/golden/tokens-small.json", NULL);
  cJSON *root = cJSON_Parse(source);
  assert_non_null(root);
  const cJSON *one, *c, *id;
  int count = 0;
  Capture quiet = capture_begin();
  const char *wrong = NULL, *wrong_text = NULL;
  cJSON_ArrayForEach(one, cJSON_GetObjectItem(root, "tokenizers")) {
    char *json = cJSON_PrintUnformatted(cJSON_GetObjectItem(one, "json"));
    const char *name = cJSON_GetObjectItem(one, "name")->valuestring;
    Tokenizer *t = NULL;
    Error e;
    // These have no BOS but a template's.
    if (parse(json, "{\"add_bos_token\":false}", NULL, NULL, &t, &e) != 0) {
      free(capture_end(quiet));
      fail_msg("%s: %s", name, e.text);
    }
    cJSON_ArrayForEach(c, cJSON_GetObjectItem(one, "cases")) {
      const char *text = cJSON_GetArrayItem(c, 0)->valuestring;
      bool good = true;
      for (int mode = 0; mode < 2; mode++) { // with special tokens, and without
        const cJSON *wanted = cJSON_GetArrayItem(c, 1 + mode);
        int32_t *ids = NULL;
        good = good && tokenizer_encode(t, text, strlen(text), mode == 0, &ids, &e) == 0 &&
               arrlen(ids) == cJSON_GetArraySize(wanted);
        ptrdiff_t k = 0;
        cJSON_ArrayForEach(id, wanted) good = good && ids[k++] == id->valueint;
        const char *back = cJSON_GetArrayItem(c, 3)->valuestring;
        if (mode == 1 && good && back) {
          char *out = decoded(t, ids, arrlen(ids));
          good = arrlenu(out) == strlen(back) && memcmp(out ? out : "", back, strlen(back)) == 0;
          arrfree(out);
        }
        arrfree(ids);
      }
      count += good;
      if (!good && !wrong) wrong = name, wrong_text = text;
    }
    tokenizer_close(t);
    free(json);
  }
  free(capture_end(quiet));
  if (wrong) fail_msg("%s differs for '%s'", wrong, wrong_text);
  assert_true(count > 3000);
  cJSON_Delete(root);
  free(source);
}

/*: ## Files that are wrong

A small file that is right, with one thing in it replaced. :*/
static const char good_json[] =
    "{\"added_tokens\":[{\"id\":6,\"content\":\"<s>\",\"special\":true,\"normalized\":false}],"
    "\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":null,"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"abc\":4,\"\\u00e9\":"
    "5},"
    "\"merges\":[\"a b\",[\"ab\",\"c\"]]}}";

// good_json with `old` replaced, which must be in it once; free() it.
static char *changed(const char *old, const char *new) {
  const char *at = strstr(good_json, old);
  assert_non_null(at);
  assert_null(strstr(at + 1, old));
  char *out = malloc(sizeof good_json + strlen(new) + 1);
  if (!out) give_up("malloc");
  sprintf(out, "%.*s%s%s", (int)(at - good_json), good_json, new, at + strlen(old));
  return out;
}

static void wrong_files_are_refused(void **state) {
  (void)state;
  static const char *const bad[][3] = {
      // Unknown types, by their names.
      {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Lowercase\"}",
       "normalizer of type Lowercase"},
      {"\"normalizer\":null", "\"normalizer\":{\"type\":\"NFKC\"}", "normalizer of type NFKC"},
      {"\"normalizer\":null",
       "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":"
       "\"Strip\"}]}",
       "normalizer of type Strip"},
      {"\"normalizer\":null",
       "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"\"}",
       "normalizer of type Replace"},
      {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Replace\",\"content\":\"b\"}",
       "without a pattern"},
      {"\"normalizer\":null", "\"normalizer\":{}", "normalizer of type (none)"},
      {"\"normalizer\":null", "\"normalizer\":7", "normalizer of type (none)"},
      {"\"pre_tokenizer\":null", "\"pre_tokenizer\":{\"type\":\"Whitespace\"}",
       "pre_tokenizer of type Whitespace"},
      {"\"pre_tokenizer\":null", "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}",
       "type BertPreTokenizer"},
      {"\"pre_tokenizer\":null",
       "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":"
       "\"last\"}",
       "prepend_scheme last"},
      {"\"pre_tokenizer\":null",
       "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":"
       "\"Dropped\"}",
       "behavior Dropped"},
      {"\"post_processor\":null", "\"post_processor\":{\"type\":\"BertProcessing\"}",
       "BertProcessing"},
      {"\"post_processor\":null",
       "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
       "\"<x>\"}}]}",
       "neither text nor token"},
      {"\"post_processor\":null",
       "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"
       "\"<x>\"}}],"
       "\"special_tokens\":{\"<x>\":{\"ids\":[77]}}}",
       "BOS <x> is not in the vocabulary"},
      {"\"decoder\":null", "\"decoder\":{\"type\":\"WordPiece\"}", "decoder of type WordPiece"},
      {"\"BPE\"", "\"Unigram\"", "model of type Unigram"},
      {"\"BPE\"", "\"WordPiece\"", "model of type WordPiece"},
      {"\"BPE\"", "\"BPE\",\"dropout\":0.1", "model.dropout"},
      {"\"BPE\"", "\"BPE\",\"continuing_subword_prefix\":\"##\"", "continuing_subword_prefix ##"},
      {"\"BPE\"", "\"BPE\",\"end_of_word_suffix\":\"</w>\"", "end_of_word_suffix </w>"},
      {"\"BPE\"", "\"BPE\",\"unk_token\":\"<u>\"", "unk_token <u> is not in the vocabulary"},
      // Vocabulary and merges.
      {"\"b\":1", "\"b\":0", "token b has id 0, which is taken"},
      {"\"b\":1", "\"a\":1", "token a has ids 0 and 1"},
      {"\"b\":1", "\"b\":2097152", "token b has id 2097152, at most 2097151"},
      {"\"b\":1", "\"b\":99999999999", "entry 1 is not a text and an id"},
      {"\"b\":1", "\"b\":-1", "entry 1 is not a text and an id"},
      {"\"b\":1", "\"b\":1.5", "entry 1 is not a text and an id"},
      {"\"b\":1", "\"b\":\"1\"", "entry 1 is not a text and an id"},
      {"\"b\":1", "\"\\ud800\":1", "entry 1 is not a text and an id"},
      {"\"b\":1", "\"\\udc00\\ud800\":1", "entry 1 is not a text and an id"},
      {"\"b\":1", "\"\\x\":1", "entry 1 is not a text and an id"},
      {"\"b\":1", "\"b\":1 2", "broken behind entry 2"},
      {"{\"a\":0,", "[\"a\",0,", "model.vocab is not an object"},
      {"\"vocab\"", "\"words\"", "model.vocab is missing"},
      {"\"model\"", "\"models\"", "model is not an object"},
      {"[\"a b\"", "{\"a b\"", "model.merges is not a list"},
      {"\"a b\"", "\"ab\"", "merge 0 is not two texts"},
      {"\"a b\"", "\"a b c\"", "merge 0 is not two texts"},
      {"\"a b\"", "\"x b\"", "merge 0: the left of 'x' and 'b' is no token"},
      {"\"a b\"", "\"a x\"", "merge 0: the right of 'a' and 'x' is no token"},
      {"\"a b\"", "\"b a\"", "merge 0: the join of 'b' and 'a' is no token"},
      {"\"a b\"", "1", "entry 0 is neither a text nor a pair"},
      {"\"c\"]]", "\"c\",\"d\"]]", "entry 1 is neither a text nor a pair"},
      {"\"a b\",", "\"a b\" ", "broken behind entry 1"},
      // Added tokens.
      {"\"id\":6", "\"id\":5", "added token <s> has id 5, which is taken"},
      {"\"id\":6", "\"id\":-6", "token <s> has id -6"},
      {"\"id\":6", "\"id\":6.5", "token <s> has id 6.5"},
      {"\"id\":6", "\"id\":1e300", "token <s> has id 1e+300, at most 2097151"},
      {"\"<s>\"", "\"ab\"", "added token ab has id 6, in the vocabulary 3"},
      {"\"content\"", "\"text\"", "token (none) has id 6"},
      {"\"<s>\"", "\"<\\u0000s>\"", "a zero byte outside the vocabulary"},
      // JSON.
      {"}}", "}", "not a JSON object near byte"},
      {"\"normalizer\":null", "\"normalizer\":nul", "not JSON near byte"},
      {"\"normalizer\":null", "\"normalizer\"", "not a JSON object"},
      {"{\"added", "[\"added", "not a JSON object"},
      {"\"<s>\"", "\"<\xff>\"", "is not UTF-8"},
      {"\"a\":0", "\"\xc0\x80\":0", "is not UTF-8"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char *json = changed(bad[i][0], bad[i][1]);
    Tokenizer *t;
    Error e = {0};
    if (parse(json, NULL, NULL, NULL, &t, &e) != -1) fail_msg("taken: %s", bad[i][1]);
    assert_null(t);
    assert_error(&e, EXIT_INPUT, "x: ");
    assert_error(&e, EXIT_INPUT, bad[i][2]);
    free(json);
  }
  // Cut anywhere, it is no file.
  for (size_t n = 0; n < sizeof good_json - 1; n++) {
    Tokenizer *t;
    Error e = {0};
    char *part = malloc(n + 1);
    if (!part) give_up("malloc");
    memcpy(part, good_json, n);
    part[n] = 0;
    Mapping text[3] = {{(const uint8_t *)part, n}, {0}, {0}};
    assert_int_equal(tokenizer_parse("x", text, NULL, &t, &e), -1);
    free(part);
  }
  Tokenizer *t;
  Error e;
  assert_int_equal(parse(good_json, "{\"add_bos_token\":true}", NULL, NULL, &t, &e), -1);
  assert_error(&e, EXIT_INPUT, "has no bos_token");
  assert_int_equal(
      parse(good_json, "{\"add_bos_token\":true,\"bos_token\":\"<x>\"}", NULL, NULL, &t, &e), -1);
  assert_error(&e, EXIT_INPUT, "BOS <x> is not in the vocabulary");
  assert_int_equal(parse(good_json, "{", NULL, NULL, &t, &e), -1);
  assert_error(&e, EXIT_INPUT, "tokenizer_config.json: not JSON");
}

static void files_in_other_orders(void **state) {
  (void)state;
  static const char *const same[] = {
      good_json,
      // Merges first, pairs and lines, a version line, spaces everywhere, keys twice, escapes.
      " { \"model\" : { \"merges\" : [ \"#version: 0.2\" , [ \"a\" , \"b\" ] , \"ab c\" ] "
      ",\n\"x\":{\"vocab\":[]},"
      "\"vocab\" : { \"\\u0061\" : 0 , \"b\":1,\"c\":2,\"ab\":3,\"abc\":4,\"\xc3\xa9\":5 } } ,"
      "\"added_tokens\":[{\"id\":6,\"content\":\"<s>\",\"special\":true}],\"model2\":\"}\\\"]\" } "
      "\n",
  };
  for (int i = 0; i < 2; i++) {
    Tokenizer *t = opened(same[i], NULL, NULL);
    assert_ids(t, "abcab<s>b\xc3\xa9", true, 4, 3, 6, 1, 5);
    assert_ids(t, "<s>", true, 6);
    assert_int_equal(tokenizer_size(t), 7);
    tokenizer_close(t);
  }
  char *json = changed("\"\\u00e9\":5", "\"\\ud83d\\ude42\\n\\\"\\\\\\/\\b\\f\\r\\t\\u0000\":5");
  Tokenizer *t = opened(json, NULL, NULL);
  size_t n;
  assert_memory_equal(vocab_text(&t->vocab, 5, &n), "🙂\n\"\\/\b\f\r\t\0", 13);
  assert_int_equal(n, 13);
  tokenizer_close(t);
  free(json);
  // No merges at all, and no vocabulary at all.
  t = opened("{\"model\":{\"vocab\":{\"a\":0}}}", NULL, NULL);
  assert_ids(t, "aba", true, 0, 0);
  tokenizer_close(t);
  t = opened("{\"model\":{\"vocab\":{},\"merges\":[]}}", NULL, NULL);
  int32_t *ids = NULL;
  Error e;
  assert_ok(tokenizer_encode(t, "abc", 3, true, &ids, &e), &e);
  assert_int_equal(arrlen(ids), 0);
  assert_int_equal(tokenizer_size(t), 0);
  tokenizer_close(t);
}

static void ids_beyond_the_model_are_refused(void **state) {
  (void)state;
  Shape shape = {.vocab = 6};
  Tokenizer *t;
  Error e;
  assert_ok(parse(good_json, NULL, NULL, &shape, &t, &e), &e);
  int32_t *ids = NULL;
  arrput(ids, 42);
  assert_int_equal(tokenizer_encode(t, "ab<s>", 5, true, &ids, &e), -1);
  assert_error(&e, EXIT_INPUT, "x: token <s> has id 6, the model has 6");
  assert_int_equal(arrlen(ids), 1); // as it was
  assert_ok(tokenizer_encode(t, "ab", 2, true, &ids, &e), &e);
  expect_ids(ids, (int32_t[]){42, 3}, 2, "appended");
  arrfree(ids);
  tokenizer_close(t);
  assert_ok(
      parse(good_json, "{\"add_bos_token\":true,\"bos_token\":\"<s>\"}", NULL, &shape, &t, &e), &e);
  assert_int_equal(tokenizer_encode(t, "ab", 2, true, &ids, &e), -1);
  assert_error(&e, EXIT_INPUT, "token <s> has id 6, the model has 6");
  tokenizer_close(t);
}

static void invalid_text_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *text;
    size_t n, at;
  } bad[] = {
      {"\xff", 1, 0},
      {"ab\x80", 3, 2},
      {"\xc3", 1, 0},
      {"a\xc3(", 3, 1},
      {"\xc0\xaf", 2, 0},
      {"\xe0\x80\xaf", 3, 0},
      {"\xed\xa0\x80", 3, 0},
      {"\xf0\x8f\xbf\xbf", 4, 0},
      {"\xf4\x90\x80\x80", 4, 0},
      {"\xf8\x88\x80\x80\x80", 5, 0},
      {"é\xe6\x97", 4, 2},
      {"\xf0\x9f\x99", 3, 0},
      {"日\xf0\x9f\x99"
       "a",
       7, 3},
  };
  Tokenizer *t = opened(good_json, NULL, NULL);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    int32_t *ids = NULL;
    Error e;
    char wanted[64];
    assert_int_equal(tokenizer_encode(t, bad[i].text, bad[i].n, true, &ids, &e), -1);
    snprintf(wanted, sizeof wanted, "byte %zu of %zu (0x%02x) is not UTF-8", bad[i].at, bad[i].n,
             (uint8_t)bad[i].text[bad[i].at]);
    assert_error(&e, EXIT_INPUT, wanted);
    assert_int_equal(arrlen(ids), 0);
  }
  tokenizer_close(t);
}

/*: ## BOS, from the first place that says something :*/
static void bos_has_an_order(void **state) {
  (void)state;
  static const char json[] =
      "{\"added_tokens\":[{\"id\":1,\"content\":\"%s\",\"special\":true}],\"post_processor\":%s,"
      "\"model\":{\"vocab\":{\"a\":0%s},\"merges\":[]}}";
  static const char bytes[] = ",\"<0x0A>\":2";
  static const char with[] =
      "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"%s\",\"type_id\":0}"
      "},"
      "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"%s\",\"type_id\":0}}"
      "],"
      "\"special_tokens\":{\"%s\":{\"id\":\"%s\",\"ids\":[1],\"tokens\":[]}}}";
  static const char without[] =
      "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]}";
  static const char level[] = "{\"type\":\"ByteLevel\"}";
  static const char yes[] = "{\"add_bos_token\":true,\"bos_token\":{\"content\":\"%s\"}}";
  static const char no[] = "{\"add_bos_token\":false,\"bos_token\":\"%s\"}";
  static const char unsaid[] = "{\"bos_token\":\"%s\"}";
  static const struct {
    const char *bos, *post, *config, *vocab;
    bool added;
  } cases[] = {
      {"<s>", with, no, "", true},      // the template decides
      {"<s>", without, yes, "", false}, // also where it adds none
      {"<s>", level, yes, "", true},    // no template: the config
      {"<s>", level, no, bytes, false}, // which comes before the rule
      {"<|begin_of_text|>", level, no, "", false},
      {"<|begin_of_text|>", level, unsaid, "", true}, // Llama 3's first release
      {"<|begin_of_text|>", "null", NULL, "", true},
      {"<s>", "null", NULL, bytes, true}, // SentencePiece
      {"<s>", "null", unsaid, "", false}, // a bos_token alone adds nothing
      {"<|endoftext|>", level, unsaid, "", false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char post[512], config[128], text[1024];
    const char *b = cases[i].bos;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(post, sizeof post, cases[i].post, b, b, b, b);
    if (cases[i].config) snprintf(config, sizeof config, cases[i].config, b);
#pragma GCC diagnostic pop
    snprintf(text, sizeof text, json, b, post, cases[i].vocab);
    Tokenizer *t = opened(text, cases[i].config ? config : NULL, NULL);
    if (cases[i].added) assert_ids(t, "a", true, 1, 0); // and nothing behind it, ever
    else assert_ids(t, "a", true, 0);
    assert_ids(t, "a", false, 0);
    tokenizer_close(t);
  }
}

/*: ## Decoding :*/
static const char bytes_json[] =
    "{\"added_tokens\":[{\"id\":9,\"content\":\"<s>\",\"special\":true},"
    "{\"id\":10,\"content\":\"<b>\",\"special\":false},{\"id\":12,\"content\":\"a "
    "b\",\"special\":false}],"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
    "\"String\":\"\\u2581\"},"
    "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
    "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
    "\"model\":{\"byte_fallback\":true,\"vocab\":{\"<0xF0>\":0,\"<0x9F>\":1,\"<0x99>\":2,\"<0x82>"
    "\":3,\"<0x20>\":4,"
    "\"\\u2581\":5,\"\\u2581a\":6,\"a\":7,\"<0xE2>\":8,\"<0xed>\":11,\"<0xA0>\":13,\"<0xC0>\":14,"
    "\"<0xGG>\":15},"
    "\"merges\":[]}}";
#define BAD "\xef\xbf\xbd"

static void bytes_become_characters(void **state) {
  (void)state;
  Tokenizer *t = opened(bytes_json, NULL, NULL);
  assert_text(t, "🙂", 0, 1, 2, 3);
  assert_text(t, BAD, 0);
  assert_text(t, BAD, 0, 1, 2); // however much was held
  assert_text(t, BAD "a", 0, 1, 7);
  assert_text(t, BAD "🙂", 0, 1, 0, 1, 2, 3); // a new beginning ends the old
  assert_text(t, BAD BAD, 1, 2);                // continuations of nothing: one each
  assert_text(t, BAD, 14);                      // can begin nothing
  assert_text(t, BAD BAD, 11, 13);              // a surrogate
  assert_text(t, BAD "<b>", 8, 10);
  assert_text(t, "🙂", 0, 1, 9, 2, 3); // a special token does not disturb it
  assert_text(t, "<0xGG>", 15);
  assert_text(t, "a b", 12);
  // The space before the first word goes, and no other.
  assert_text(t, "a a", 6, 6);
  assert_text(t, " a", 5, 6);
  assert_text(t, "a", 9, 6);
  assert_text(t, "", 5);
  assert_text(t, "a", 4, 7);
  assert_text(t, " a", 4, 4, 7);
  assert_text(t, "", -1, 99, 9, 1 << 30);
  // A piece at a time: nothing before it is whole, and never half of anything.
  Detokenizer d = {.tokenizer = t};
  char *out = NULL;
  for (int32_t id = 0; id < 3; id++) detokenize(&d, id, &out);
  assert_int_equal(arrlen(out), 0);
  detokenize(&d, 3, &out);
  assert_int_equal(arrlen(out), 4);
  detokenize(&d, 6, &out); // not the first word any more
  assert_int_equal(arrlen(out), 6);
  detokenize_flush(&d, &out);
  detokenize_flush(&d, &out);
  assert_int_equal(arrlen(out), 6);
  arrfree(out);
  tokenizer_close(t);
}

// Any ids at all: what comes out is UTF-8 at every step, and together the same as at once.
static void any_ids_give_whole_characters(void **state) {
  (void)state;
  Tokenizer *t = opened(bytes_json, NULL, NULL);
  uint64_t seed = 7;
  for (int round = 0; round < 20000; round++) {
    Detokenizer d = {.tokenizer = t};
    char *out = NULL;
    for (uint64_t n = test_random(&seed) % 12; n; n--) {
      detokenize(&d, (int32_t)(test_random(&seed) % 17), &out);
      assert_int_equal(utf8_valid(out, arrlenu(out)), arrlenu(out));
      assert_in_range(d.held_count, 0, 3);
    }
    detokenize_flush(&d, &out);
    assert_int_equal(utf8_valid(out, arrlenu(out)), arrlenu(out));
    arrfree(out);
  }
  tokenizer_close(t);
}

/*: ## Chat :*/
static void chat_kinds(void **state) {
  (void)state;
  static const char ml[] =
      "{\"added_tokens\":[{\"id\":1,\"content\":\"<|im_start|>\",\"special\":true},"
      "{\"id\":2,\"content\":\"<|im_end|>\",\"special\":true},{\"id\":3,\"content\":\"<s>\","
      "\"special\":true}],"
      "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
      "\"model\":{\"vocab\":{\"u\":0,\"\\u010a\":4,\"s\":5,\"e\":6,\"r\":7,\"y\":8,\"t\":9,\"m\":"
      "10,\"a\":11,\"i\":12,"
      "\"n\":13,\"H\":14},\"merges\":[]}}";
  const int32_t user[] = {1, 0, 5, 6, 7, 4, 14, 12, 2, 4, 1, 11, 5, 5, 12, 5, 9, 11, 13, 9, 4};
  const int32_t system[] = {1, 5, 8, 5, 9, 6, 10, 4, 14, 12, 4, 14, 2, 4};
  static const struct {
    const char *config, *jinja;
    bool system, bos, none;
  } cases[] = {
      {NULL, NULL, false, false, false},
      {"{\"chat_template\":\"<|im_start|>system\\\\nHi\\\\nH<|im_end|>\"}", NULL, true, false,
       false},
      {"{\"chat_template\":\"<|im_start|>system\\nHi\\nH<|im_end|>\"}", NULL, true, false, false},
      {"{}", "x<|im_start|>system\\nHi\\nH<|im_end|>y", true, false, false},
      {"{\"chat_template\":\"no\"}", "<|im_start|>", false, false, false}, // the file comes first
      {"{\"chat_template\":[{\"name\":\"tool\",\"template\":\"x\"},"
       "{\"name\":\"default\",\"template\":\"<|im_start|>\"}]}",
       NULL, false, false, false},
      // A system message of the user's is no default; the default may come later.
      {NULL, "'<|im_start|>system\\n' + m + '<|im_end|>'", false, false, false},
      {NULL, "'<|im_start|>system\\n' + m + '<|im_end|>'<|im_start|>system\\nHi\\nH<|im_end|>",
       true, false, false},
      {NULL, "<|im_start|>system\\n<|im_end|>", false, false, false},
      {NULL, "<|im_start|>system\\tHi<|im_end|>", false, false, false},
      {NULL, "<|im_start|>system\\nHi", false, false, false},
      {"{\"add_bos_token\":true,\"bos_token\":\"<s>\"}", "{{bos_token}}<|im_start|>", false, true,
       false},
      {"{\"add_bos_token\":true,\"bos_token\":\"<s>\"}", "<|im_start|>", false, false, false},
      {NULL, "<|user|>\n{{ content }}</s>", false, false, true}, // of another kind
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Tokenizer *t = opened(ml, cases[i].config, cases[i].jinja);
    int32_t *ids = NULL, *wanted = NULL;
    Error e;
    int r = chat_encode(t, "Hi", 2, &ids, &e);
    if (cases[i].none) {
      assert_int_equal(r, -1);
      assert_error(&e, EXIT_INPUT, "x: no chat template of a known kind");
    } else {
      if (r) fail_msg("%s", e.text);
      if (cases[i].bos) arrput(wanted, 3);
      for (size_t k = 0; cases[i].system && k < sizeof system / sizeof *system; k++)
        arrput(wanted, system[k]);
      for (size_t k = 0; k < sizeof user / sizeof *user; k++) arrput(wanted, user[k]);
      expect_ids(ids, wanted, arrlenu(wanted), cases[i].jinja ? cases[i].jinja : "no template");
    }
    arrfree(ids);
    arrfree(wanted);
    tokenizer_close(t);
  }
}

/*: ## Patterns :*/
static void patterns_that_engines_disagree_on_are_refused(void **state) {
  (void)state;
  static const char *const bad[] = {
      "\\w+",  "\\b",   "\\h",     "a\\R",     "\\X",   "\\K",       "^a",    "a$",     "(?m:a)",
      "(?x)a", "(?i)a", "(?<n>a)", "(*UCP)a",  "a{2}+", "a{,2}",     "a{x}",  "[a[b]]", "[a&&b]",
      "[]a]",  "[a",    "[\\S]",   "[\\P{L}]", "\\p",   "\\pL",      "\\x41", "\\u41",  "a\\",
      "a*",    "(?=a)", "a|",      "(a",       "a)",    "\\p{Nope}", "\\1",   "(a)\\1", "+",
      "[\\D]", "\\A",   "\\z",     "\\G",      "\\Z",   "\\Qa",      "[b-a]", "(?#a)b", "(?R)a",
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    Pattern *p;
    Error e = {0};
    if (pattern_compile("x", bad[i], strlen(bad[i]), false, &p, &e) != -1)
      fail_msg("taken: %s", bad[i]);
    assert_null(p);
    assert_error(&e, EXIT_INPUT, "x: pattern ");
    assert_error(&e, EXIT_INPUT, bad[i]);
  }
  Pattern *p;
  Error e;
  assert_int_equal(pattern_compile("x", "", 0, false, &p, &e), -1);
  assert_error(&e, EXIT_INPUT, "x: an empty pattern");
  char *long_one = malloc(16385);
  if (!long_one) give_up("malloc");
  memset(long_one, 'a', 16385);
  assert_int_equal(pattern_compile("x", long_one, 16385, false, &p, &e), -1);
  assert_error(&e, EXIT_INPUT, "16385 bytes, at most 16384");
  free(long_one);
}

static void patterns_match_as_in_the_reference(void **state) {
  (void)state;
  static const struct {
    const char *pattern, *text;
    size_t start, end; // equal: no match
  } cases[] = {
      {"\\s",
       "a\xe1\xa0\x8e"
       "b",
       0, 0},                     // U+180E
      {"\\s", "a\xc2\x85", 1, 3}, // U+0085
      {"\\S", " \xe1\xa0\x8e", 1, 4},
      {"[^\\s]", "\xe3\x80\x80\xe1\xa0\x8e", 3, 6},
      {"\\p{L}", "1\xf0\xb1\x8d\x90", 1, 5},   // U+31350, of Unicode 15
      {"[\\p{L}]", "1\xf0\x9e\x97\xb0", 1, 5}, // U+1E5F0, of Unicode 16
      {"\\P{L}",
       "\xf0\xb1\x8d\x90"
       "1",
       4, 5},
      {"\\p{N}", "a\xf0\x91\xaf\xb0", 1, 5}, // U+11BF0, of Unicode 16
      {"\\p{M}", "a\xe0\xa2\x97", 1, 4},     // U+0897, of Unicode 16
      {"\\d+", "a\xd9\xa1\xd9\xa2", 1, 5},
      {"(?i:'s)", "it'\xc5\xbf", 2, 5}, // U+017F
      {"(?i:k)", "\xe2\x84\xaa", 0, 3}, // U+212A
      {"\\s+(?!\\S)", "a   b", 1, 3},
      {"a{2,3}", "baaaa", 1, 4},
      {"\\x{e9}\\u00e9", "xéé", 1, 5},
      {".", "\n\r", 1, 2},
      {"\\v|\\-", "a\x0b", 1, 2},
  };
  PatternScan *scan = pattern_scan();
  assert_non_null(scan);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Pattern *p;
    Error e;
    size_t start, end, n = strlen(cases[i].text);
    assert_ok(pattern_compile("x", cases[i].pattern, strlen(cases[i].pattern), false, &p, &e), &e);
    int r = pattern_next(p, scan, cases[i].text, n, 0, &start, &end, &e);
    if (r != (cases[i].start < cases[i].end) ||
        (r && (start != cases[i].start || end != cases[i].end)))
      fail_msg("%s in %s: %d", cases[i].pattern, cases[i].text, r);
    pattern_free(p);
  }
  pattern_scan_free(scan);
}

static void a_runaway_pattern_ends(void **state) {
  (void)state;
  static const char *const patterns[] = {"(?:a|aa)+b", "(?:a+)+b", "(?:a*a*)*b", "(?:(?:a|b)*c)*d"};
  PatternScan *scan = pattern_scan();
  char text[200];
  memset(text, 'a', sizeof text);
  for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
    Pattern *p;
    Error e = {0};
    size_t start, end;
    assert_ok(pattern_compile("x", patterns[i], strlen(patterns[i]), false, &p, &e), &e);
    int r = pattern_next(p, scan, text, sizeof text, 0, &start, &end, &e);
    assert_int_not_equal(r, 1);
    if (r < 0) assert_error(&e, EXIT_INPUT, "the pattern gave up at byte 0 of 200");
    pattern_free(p);
  }
  pattern_scan_free(scan);
  // A normalizer that makes much of little.
  Tokenizer *t = opened("{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":["
                        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":"
                        "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"},"
                        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":"
                        "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"},"
                        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":"
                        "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"},"
                        "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":"
                        "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}]},"
                        "\"model\":{\"vocab\":{},\"merges\":[]}}",
                        NULL, NULL);
  int32_t *ids = NULL;
  Error e;
  assert_int_equal(tokenizer_encode(t, "aaaaaaaaaaaaaaaaaaaa", 20, true, &ids, &e), -1);
  assert_error(&e, EXIT_INPUT, "the steps make more than 66816 bytes");
  tokenizer_close(t);
}

/*: ## GGUF's vocabulary :*/
static Tokenizer *gguf_opened(const GgufWriter *w, Error *e) {
  size_t size;
  uint8_t *image = gw_image(w, &size);
  Gguf *g = NULL;
  Tokenizer *t = NULL;
  assert_ok(gguf_parse("x.gguf", image, size, true, &g, e), e);
  if (tokenizer_parse_gguf("x.gguf", g, NULL, &t, e) != 0) assert_null(t);
  gguf_close(g);
  free(image);
  return t;
}

static GgufWriter spm(const char *const *tokens, const float *scores, const int32_t *types,
                      uint64_t n) {
  GgufWriter w = gw_begin(3, 0);
  gw_string(&w, "tokenizer.ggml.model", "llama");
  gw_strings(&w, "tokenizer.ggml.tokens", tokens, n);
  if (scores) gw_array(&w, "tokenizer.ggml.scores", GGUF_F32, n, scores, 4 * n);
  if (types) gw_array(&w, "tokenizer.ggml.token_type", GGUF_I32, n, types, 4 * n);
  return w;
}

static void gguf_scores(void **state) {
  (void)state;
  static const char *const tokens[] = {"<unk>", "<s>", "</s>",  "<0xC3>", "<0xA9>", SPACE,  "a",
                                       "b",     "ab",  SPACE_A, "</",     "s>",     "abab", "ba",
                                       "<u>",   "s",   "<",     "/",      ">"};
  static const float scores[] = {0,  0,  0,  0,  0, -9, -9, -9, -2, -1,
                                 -3, -3, -5, -2, 0, -9, -9, -9, -9};
  static const int32_t types[] = {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 1, 1, 1, 1};
  enum { N = sizeof tokens / sizeof *tokens };
  Error e;
  GgufWriter w = spm(tokens, scores, types, N);
  Tokenizer *t = gguf_opened(&w, &e);
  assert_non_null(t);
  assert_ids(t, "a", true, 1, 9);
  assert_ids(t, "ab", true, 1, 9, 7);        // the better score first
  assert_ids(t, "bab", false, 5, 13, 7);     // equal scores: the leftmost
  assert_ids(t, "\xc3\xa9", false, 5, 3, 4); // bytes
  assert_ids(t, "<s>a</s>", true, 1, 9, 2);  // typed BOS and EOS
  assert_ids(t, "</s>", false, 5, 10, 11);   // as text it never becomes the token
  assert_ids(t, "a<u>a", false, 9, 14, 9);   // the user's own tokens always match
  assert_text(t, "a ab", 1, 9, 9, 7);
  tokenizer_close(t);
  // Switches.
  gw_bool(&w, "tokenizer.ggml.add_bos_token", false);
  gw_bool(&w, "tokenizer.ggml.add_space_prefix", false);
  t = gguf_opened(&w, &e);
  assert_non_null(t);
  assert_ids(t, "a a", true, 6, 9);
  assert_text(t, " a", 9);
  tokenizer_close(t);
  gw_end(&w);
  // Without types, the texts say it.
  w = spm(tokens, scores, NULL, N);
  t = gguf_opened(&w, &e);
  assert_non_null(t);
  assert_ids(t, "</s>", false, 5, 10, 11);
  assert_text(t, "a", 1, 9, 2);
  tokenizer_close(t);
  gw_end(&w);
  // No token for a byte, and none that is unknown.
  w = spm(tokens + 5, scores + 5, types + 5, 8);
  gw_bool(&w, "tokenizer.ggml.add_bos_token", false);
  t = gguf_opened(&w, &e);
  assert_non_null(t);
  int32_t *ids = NULL;
  assert_int_equal(tokenizer_encode(t, "ax", 2, false, &ids, &e), -1);
  assert_error(&e, EXIT_INPUT, "no token for byte 0x78");
  assert_int_equal(arrlen(ids), 0);
  arrfree(ids);
  tokenizer_close(t);
  gw_u32(&w, "tokenizer.ggml.unknown_token_id", 2);
  t = gguf_opened(&w, &e);
  assert_non_null(t);
  assert_ids(t, "ax", false, 4, 2);
  tokenizer_close(t);
  gw_end(&w);
}

static void gguf_bos_rules(void **state) {
  (void)state;
  static const char *const tokens[] = {"a", "b", "ab", "<s>", "<|begin_of_text|>"},
                           *const merges[] = {"a b"};
  static const struct {
    const char *pre;
    int add, id; // -1: absent
    int bos;     // -1: none
  } cases[] = {
      {"llama-bpe", -1, 3, 3}, {"llama-bpe", 0, 3, -1}, {"llama-bpe", -1, -1, 4},
      {"qwen2", -1, 3, -1},    {"qwen2", 1, 3, 3},      {"smollm", 0, 3, -1},
      {"smollm", -1, 3, -1},   {"gpt-2", 1, -1, 4},     {"default", -1, 1, -1},
  };
  Error e;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    GgufWriter w = gw_begin(3, 0);
    gw_string(&w, "tokenizer.ggml.model", "gpt2");
    gw_string(&w, "tokenizer.ggml.pre", cases[i].pre);
    gw_strings(&w, "tokenizer.ggml.tokens", tokens, 5);
    gw_strings(&w, "tokenizer.ggml.merges", merges, 1);
    if (cases[i].add >= 0) gw_bool(&w, "tokenizer.ggml.add_bos_token", cases[i].add);
    if (cases[i].id >= 0) gw_u32(&w, "tokenizer.ggml.bos_token_id", (uint32_t)cases[i].id);
    Tokenizer *t = gguf_opened(&w, &e);
    if (!t) fail_msg("%s", e.text);
    if (cases[i].bos >= 0) assert_ids(t, "ab", true, cases[i].bos, 2);
    else assert_ids(t, "ab", true, 2);
    tokenizer_close(t);
    gw_end(&w);
  }
}

static void gguf_wrong_vocabularies(void **state) {
  (void)state;
  static const char *const tokens[] = {"a", "b", "ab", "\xff"}, *const merges[] = {"a b", "b c"};
  const float scores[3] = {0};
  // What is left out or wrong, and what the error says.
  static const char *const wanted[] = {
      "tokenizer.ggml.model is missing",
      "tokenizer.ggml.model t5 is not supported",
      "tokenizer.ggml.tokens is not a list of 1 to 2097152 texts",
      "tokenizer.ggml.merges is missing",
      "tokenizer.ggml.pre 'viking' is not supported",
      "token 3 is not UTF-8",
      "merge 1: the right of 'b' and 'c' is no token",
      "tokenizer.ggml.scores is not a list of 3 numbers",
      "tokenizer.ggml.scores is not a list of 4 numbers",
      "tokenizer.ggml.token_type is not a list of 3 numbers",
      "tokenizer.ggml.bos_token_id is 3, the vocabulary has 3",
      "a BOS is wanted, and none is named",
      "tokenizer.ggml.tokens is not a list of 1 to 2097152 texts",
      "tokenizer.ggml.pre '' is not supported",
      "tokenizer.ggml.pre 'llama3 llama-v3' is not supported",
  };
  for (int i = 0; i < (int)(sizeof wanted / sizeof *wanted); i++) {
    GgufWriter w = gw_begin(3, 0);
    bool scored = i == 7 || i == 8;
    if (i != 0) gw_string(&w, "tokenizer.ggml.model", i == 1 ? "t5" : scored ? "llama" : "gpt2");
    if (i != 2) gw_strings(&w, "tokenizer.ggml.tokens", tokens, i == 12 ? 0 : i == 5 ? 4 : 3);
    if (i != 3 && !scored) gw_strings(&w, "tokenizer.ggml.merges", merges, i == 6 ? 2 : 1);
    gw_string(&w, "tokenizer.ggml.pre",
              i == 4    ? "viking"
              : i == 13 ? ""
              : i == 14 ? "llama3 llama-v3"
                        : "gpt-2");
    if (i == 8) {
      w.keys.n = w.key_count = 0;
      gw_string(&w, "tokenizer.ggml.model", "llama");
      static const char *const four[] = {"a", "b", "c", "d"};
      gw_strings(&w, "tokenizer.ggml.tokens", four, 4);
      gw_array(&w, "tokenizer.ggml.scores", GGUF_F32, 3, scores, sizeof scores);
    }
    if (i == 9) gw_array(&w, "tokenizer.ggml.token_type", GGUF_F32, 3, scores, sizeof scores);
    if (i == 10 || i == 11) gw_bool(&w, "tokenizer.ggml.add_bos_token", true);
    if (i == 10) gw_u32(&w, "tokenizer.ggml.bos_token_id", 3);
    Error e = {0};
    if (gguf_opened(&w, &e)) fail_msg("taken: %s", wanted[i]);
    assert_error(&e, EXIT_INPUT, "x.gguf: ");
    assert_error(&e, EXIT_INPUT, wanted[i]);
    gw_end(&w);
  }
  // No key at all is llama.cpp's default, with a note: digits in threes.
  static const char *const digits[] = {"1", "11", "111"}, *const pairs[] = {"1 1", "11 1"};
  GgufWriter w = gw_begin(3, 0);
  gw_string(&w, "tokenizer.ggml.model", "gpt2");
  gw_strings(&w, "tokenizer.ggml.tokens", digits, 3);
  gw_strings(&w, "tokenizer.ggml.merges", pairs, 2);
  Error e;
  Capture c = capture_begin();
  Tokenizer *t = gguf_opened(&w, &e);
  char *note = capture_end(c);
  assert_non_null(t);
  assert_non_null(strstr(note, "x.gguf: no tokenizer.ggml.pre"));
  free(note);
  assert_ids(t, "11111", false, 2, 1);
  tokenizer_close(t);
  gw_end(&w);
}

/*: ## A folder :*/
static void a_folder_is_asked_for_its_texts(void **state) {
  (void)state;
  char *folder = temp_folder();
  write_text(path_in(folder, "config.json"), "{}");
  Source s;
  Tokenizer *t;
  Error e;
  assert_ok(source_open(folder, &s, &e), &e);
  assert_int_equal(tokenizer_open(&s, NULL, &t, &e), -1);
  assert_error(&e, EXIT_INPUT, folder);
  assert_error(&e, EXIT_INPUT, "tokenizer.json is missing");
  write_text(path_in(folder, "tokenizer.json"), "");
  assert_int_equal(tokenizer_open(&s, NULL, &t, &e), -1);
  assert_error(&e, EXIT_INPUT, "tokenizer.json");
  write_text(path_in(folder, "tokenizer.json"), good_json);
  write_text(path_in(folder, "tokenizer_config.json"),
             "{\"add_bos_token\":true,\"bos_token\":\"<s>\"}");
  assert_ok(tokenizer_open(&s, NULL, &t, &e), &e);
  assert_ids(t, "abc", true, 6, 4);
  tokenizer_close(t);
  source_close(&s);
  remove_tree(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(llama3_is_like_the_reference),
      cmocka_unit_test(qwen_is_like_the_reference),
      cmocka_unit_test(smollm_is_like_the_reference),
      cmocka_unit_test(llama2_is_like_the_reference),
      cmocka_unit_test(whole_words_ignore_merges),
      cmocka_unit_test(each_family_has_its_bos),
      cmocka_unit_test(cuts_as_each_model_was_taught),
      cmocka_unit_test(characters_come_whole),
      cmocka_unit_test(chat_is_wrapped_as_taught),
      cmocka_unit_test(long_runs),
      cmocka_unit_test(small_tokenizers_like_the_reference),
      cmocka_unit_test(wrong_files_are_refused),
      cmocka_unit_test(files_in_other_orders),
      cmocka_unit_test(ids_beyond_the_model_are_refused),
      cmocka_unit_test(invalid_text_is_refused),
      cmocka_unit_test(bos_has_an_order),
      cmocka_unit_test(bytes_become_characters),
      cmocka_unit_test(any_ids_give_whole_characters),
      cmocka_unit_test(chat_kinds),
      cmocka_unit_test(patterns_that_engines_disagree_on_are_refused),
      cmocka_unit_test(patterns_match_as_in_the_reference),
      cmocka_unit_test(a_runaway_pattern_ends),
      cmocka_unit_test(gguf_scores),
      cmocka_unit_test(gguf_bos_rules),
      cmocka_unit_test(gguf_wrong_vocabularies),
      cmocka_unit_test(a_folder_is_asked_for_its_texts),
  };
  return cmocka_run_group_tests(tests, open_vocabularies, close_vocabularies);
}
