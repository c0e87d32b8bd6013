/*: # What a checkpoint says about text

A checkpoint says in its own files how text and ids belong together: tokenizer.json of a Hugging Face
folder, with a little from tokenizer_config.json, or the keys `tokenizer.ggml.*` of a GGUF file. This file
reads either into the same few steps, which `tokenizer.c` then runs.

Whatever would change the ids and is not known here is refused by its name. A tokenizer that guesses
still produces text, and the text is only a little worse than it should be: nobody would ever find out. :*/
#include "tiles.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>
#include <stb/stb_ds.h>
#include <utf8proc.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

//> tokenizer_close
static char *copy(const char *text, size_t bytes) {
  char *c = malloc(bytes + 1);
  if (!c) return NULL;
  memcpy(c, text, bytes);
  c[bytes] = 0;
  return c;
}

static void steps_free(TextStep *s) {
  for (ptrdiff_t i = 0; i < arrlen(s); i++) {
    pattern_free(s[i].pattern);
    free(s[i].text);
  }
  arrfree(s);
}

static void added_free(AddedTokens *a) {
  for (ptrdiff_t i = 0; i < arrlen(a->list); i++) free(a->list[i].text);
  arrfree(a->list);
}

void tokenizer_close(Tokenizer *t) {
  if (!t) return;
  vocab_free(&t->vocab);
  steps_free(t->normal);
  steps_free(t->cuts);
  added_free(&t->raw);
  added_free(&t->normed);
  arrfree(t->printed);
  arrfree(t->front);
  free(t->chat_system);
  free(t->file);
  free(t);
}

int32_t tokenizer_size(const Tokenizer *t) { return vocab_size(&t->vocab); }
//< tokenizer_close

/*: ## Reading tokenizer.json

The file of a large vocabulary is megabytes of text, nearly all of it two lists: the texts with their ids, and the
merges. A JSON library would make half a million small objects of them, ten times the size of the file.
So the two lists are walked where they lie, and only the rest, a few kilobytes, becomes a tree. :*/
//> json_walk
typedef struct Json {
  const char *p, *end;
} Json;

static char json_peek(Json *j) {
  while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\r' || *j->p == '\t')) j->p++;
  return j->p < j->end ? *j->p : 0;
}

static bool json_take(Json *j, char c) {
  if (json_peek(j) != c) return false;
  j->p++;
  return true;
}

static int hex_digit(char c) {
  return c >= '0' && c <= '9'   ? c - '0'
         : c >= 'A' && c <= 'F' ? c - 'A' + 10
         : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                : -1;
}

static bool json_hex4(Json *j, uint32_t *out) {
  if (j->end - j->p < 4) return false;
  *out = 0;
  for (int i = 0; i < 4; i++) {
    int d = hex_digit(*j->p++);
    if (d < 0) return false;
    *out = *out << 4 | (uint32_t)d;
  }
  return true;
}

// A string; its text is appended to *out. No lone surrogates: they are no text.
static bool json_string(Json *j, char **out) {
  if (!json_take(j, '"')) return false;
  while (j->p < j->end && *j->p != '"') {
    const char *plain = j->p;
    while (j->p < j->end && *j->p != '"' && *j->p != '\\' && (uint8_t)*j->p >= 0x20) j->p++;
    text_append(out, plain, (size_t)(j->p - plain));
    if (j->p == j->end || (uint8_t)*j->p < 0x20) return false;
    if (*j->p == '"') break;
    if (j->end - ++j->p < 1) return false;
    static const char signs[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    char c = *j->p++;
    const char *known = c ? strchr(signs, c) : NULL;
    if (known) {
      arrput(*out, meant[known - signs]);
      continue;
    }
    uint32_t u, low;
    if (c != 'u' || !json_hex4(j, &u)) return false;
    if (u >= 0xdc00 && u < 0xe000) return false;
    if (u >= 0xd800 && u < 0xdc00) {
      if (j->end - j->p < 2 || *j->p++ != '\\' || *j->p++ != 'u' || !json_hex4(j, &low))
        return false;
      if (low < 0xdc00 || low >= 0xe000) return false;
      u = 0x10000 + ((u - 0xd800) << 10) + (low - 0xdc00);
    }
    utf8proc_uint8_t b[4];
    text_append(out, (const char *)b, (size_t)utf8proc_encode_char((utf8proc_int32_t)u, b));
  }
  return json_take(j, '"');
}

// A number without sign, fraction or exponent, below 2^31.
static bool json_id(Json *j, int32_t *out) {
  int64_t n = 0;
  char c = json_peek(j);
  if (c < '0' || c > '9') return false;
  for (; j->p < j->end && *j->p >= '0' && *j->p <= '9'; j->p++)
    if ((n = n * 10 + (*j->p - '0')) > INT32_MAX) return false;
  *out = (int32_t)n;
  return j->p == j->end || !strchr(".eE", *j->p);
}

// To the next quote that has an even number of backslashes before it.
static bool json_skip_string(Json *j) {
  const char *start = ++j->p, *quote;
  while ((quote = memchr(j->p, '"', (size_t)(j->end - j->p)))) {
    j->p = quote + 1;
    const char *slash = quote;
    while (slash > start && slash[-1] == '\\') slash--;
    if ((quote - slash) % 2 == 0) return true;
  }
  return false;
}

// Any value, by its brackets; the tree will be stricter with what is left.
static bool json_skip(Json *j) {
  int depth = 0;
  do {
    char c = json_peek(j);
    if (!c) return false;
    if (c == '"') {
      if (!json_skip_string(j)) return false;
    } else if (c == '{' || c == '[') {
      depth++;
      j->p++;
    } else if (c == '}' || c == ']') {
      if (!depth--) return false;
      j->p++;
    } else if (c == ',' || c == ':') {
      if (!depth) return false;
      j->p++;
    } else
      while (j->p < j->end && !strchr(",:{}[]\" \n\r\t", *j->p)) j->p++;
  } while (depth);
  return true;
}

// Finds the members `names` of the object at *j: where each value lies, data NULL where there is none.
static bool json_members(Json *j, const char *const *names, int count, Json *out) {
  char *key = NULL;
  bool good = json_take(j, '{');
  for (int i = 0; i < count; i++) out[i] = (Json){0};
  if (good && json_take(j, '}')) return true;
  while (good) {
    arrsetlen(key, 0);
    good = json_string(j, &key) && json_take(j, ':') && json_peek(j);
    const char *start = j->p;
    if (!(good = good && json_skip(j))) break;
    for (int i = 0; i < count; i++)
      if (arrlenu(key) == strlen(names[i]) && memcmp(key, names[i], arrlenu(key)) == 0)
        out[i] = (Json){start, j->p};
    if (json_take(j, '}')) break;
    good = json_take(j, ',');
  }
  arrfree(key);
  return good;
}
//< json_walk

//> read_vocabulary
// One entry of model.vocab.
static int put_token(Tokenizer *t, int32_t id, const char *text, size_t n, Error *e) {
  int shown = (int)(n < 64 ? n : 64);
  size_t old;
  if (id >= VOCAB_IDS)
    return fail(e, EXIT_INPUT, "%s: model.vocab: token %.*s has id %d, at most %d", t->file, shown,
                text, id, VOCAB_IDS - 1);
  if (vocab_text(&t->vocab, id, &old))
    return fail(e, EXIT_INPUT, "%s: model.vocab: token %.*s has id %d, which is taken", t->file,
                shown, text, id);
  int32_t known = vocab_find(&t->vocab, text, n);
  if (known >= 0)
    return fail(e, EXIT_INPUT, "%s: model.vocab: token %.*s has ids %d and %d", t->file, shown,
                text, known, id);
  if (vocab_put(&t->vocab, id, text, n) < 0)
    return fail(e, EXIT_FAIL, "%s: out of memory for the vocabulary", t->file);
  return 0;
}

static int read_vocabulary(Tokenizer *t, Json j, Error *e) {
  if (!json_take(&j, '{')) return fail(e, EXIT_INPUT, "%s: model.vocab is not an object", t->file);
  if (json_take(&j, '}')) return 0;
  char *text = NULL;
  int32_t id;
  int r = 0;
  do {
    arrsetlen(text, 0);
    if (!json_string(&j, &text) || !json_take(&j, ':') || !json_id(&j, &id))
      r = fail(e, EXIT_INPUT, "%s: model.vocab: entry %u is not a text and an id", t->file,
               t->vocab.slots_used);
    else r = put_token(t, id, text ? text : "", arrlenu(text), e);
  } while (r == 0 && json_take(&j, ','));
  if (r == 0 && !json_take(&j, '}'))
    r = fail(e, EXIT_INPUT, "%s: model.vocab: broken behind entry %u", t->file,
             t->vocab.slots_used);
  arrfree(text);
  return r;
}

static int put_merge(Tokenizer *t, uint32_t rank, const char *left, size_t n, const char *right,
                     size_t m, Error *e) {
  char word[256], *both = NULL; // longer ones are rare
  if (n + m <= sizeof word) {
    memcpy(word, left, n);
    memcpy(word + n, right, m);
  } else {
    text_append(&both, left, n);
    text_append(&both, right, m);
  }
  int32_t a = vocab_find(&t->vocab, left, n), b = vocab_find(&t->vocab, right, m);
  int32_t ab = vocab_find(&t->vocab, both ? both : word, n + m);
  arrfree(both);
  if (a < 0 || b < 0 || ab < 0)
    return fail(e, EXIT_INPUT, "%s: merge %u: %s of '%.*s' and '%.*s' is no token", t->file, rank,
                a < 0   ? "the left"
                : b < 0 ? "the right"
                        : "the join",
                (int)(n < 64 ? n : 64), left, (int)(m < 64 ? m : 64), right);
  if (vocab_put_merge(&t->vocab, a, b, rank, ab) < 0)
    return fail(e, EXIT_FAIL, "%s: out of memory for the merges", t->file);
  return 0;
}

// "left right", as older files and GGUF have it.
static int put_merge_line(Tokenizer *t, uint32_t rank, const char *line, size_t n, Error *e) {
  const char *space = n ? memchr(line, ' ', n) : NULL;
  size_t left = space ? (size_t)(space - line) : 0, right = space ? n - left - 1 : 0;
  if (!left || !right || memchr(space + 1, ' ', right))
    return fail(e, EXIT_INPUT, "%s: merge %u is not two texts with a space between", t->file, rank);
  return put_merge(t, rank, line, left, space + 1, right, e);
}

static int read_merges(Tokenizer *t, Json j, Error *e) {
  char *a = NULL, *b = NULL;
  int r = 0;
  uint32_t rank = 0;
  if (!json_take(&j, '[')) return fail(e, EXIT_INPUT, "%s: model.merges is not a list", t->file);
  if (!json_take(&j, ']')) {
    do {
      arrsetlen(a, 0);
      arrsetlen(b, 0);
      if (json_peek(&j) == '"' && json_string(&j, &a)) {
        static const char version[] = "#version";
        if (arrlenu(a) >= sizeof version - 1 && memcmp(a, version, sizeof version - 1) == 0)
          continue;
        r = put_merge_line(t, rank++, a, arrlenu(a), e);
      } else if (json_take(&j, '[') && json_string(&j, &a) && json_take(&j, ',') &&
                 json_string(&j, &b) && json_take(&j, ']')) {
        r = put_merge(t, rank++, a ? a : "", arrlenu(a), b ? b : "", arrlenu(b), e);
      } else
        r = fail(e, EXIT_INPUT, "%s: model.merges: entry %u is neither a text nor a pair", t->file,
                 rank);
    } while (r == 0 && json_take(&j, ','));
    if (r == 0 && !json_take(&j, ']'))
      r = fail(e, EXIT_INPUT, "%s: model.merges: broken behind entry %u", t->file, rank);
  }
  arrfree(a);
  arrfree(b);
  return r;
}
//< read_vocabulary

/*: ### Normalizer, pre-tokenizer, post-processor, decoder

Each is an object with a `type`, or null, or a `Sequence` of such objects. The types that our model
families use become steps; any other is an error that names it. :*/
//> read_steps
enum { MAX_STEPS = 64 };

static const cJSON *member(const cJSON *o, const char *key) {
  const cJSON *m = cJSON_GetObjectItemCaseSensitive(o, key);
  return m && !cJSON_IsNull(m) ? m : NULL;
}
static const char *text_of(const cJSON *o, const char *key) {
  const cJSON *m = member(o, key);
  return cJSON_IsString(m) ? m->valuestring : NULL;
}
static bool flag_of(const cJSON *o, const char *key, bool otherwise) {
  const cJSON *m = member(o, key);
  return cJSON_IsBool(m) ? cJSON_IsTrue(m) : otherwise;
}

static int no_such(const Tokenizer *t, const char *what, const cJSON *o, Error *e) {
  const char *type = text_of(o, "type");
  return fail(e, EXIT_INPUT, "%s: %s of type %s is not supported", t->file, what,
              type ? type : "(none)");
}

static int add_step(const Tokenizer *t, TextStep **steps, TextStep s, const char *pattern,
                    size_t bytes, bool literal, const char *text, Error *e) {
  if (arrlen(*steps) >= MAX_STEPS)
    return fail(e, EXIT_INPUT, "%s: more than %d steps", t->file, MAX_STEPS);
  if (pattern && pattern_compile(t->file, pattern, bytes, literal, &s.pattern, e) < 0) return -1;
  if (text) {
    s.bytes = strlen(text);
    s.text = copy(text, s.bytes);
    if (!s.text) {
      pattern_free(s.pattern);
      return fail(e, EXIT_FAIL, "%s: out of memory", t->file);
    }
  }
  arrput(*steps, s);
  return 0;
}

// A step with the pattern {"Regex": text} or {"String": text}.
static int add_pattern_step(const Tokenizer *t, TextStep **steps, TextStep s, const cJSON *o,
                            const char *text, Error *e) {
  const cJSON *pattern = member(o, "pattern");
  const char *regex = text_of(pattern, "Regex"), *string = text_of(pattern, "String");
  if (!regex && !string)
    return fail(e, EXIT_INPUT, "%s: %s without a pattern", t->file, text_of(o, "type"));
  const char *source = regex ? regex : string;
  return add_step(t, steps, s, source, strlen(source), !regex, text, e);
}

static int read_normalizer(Tokenizer *t, const cJSON *o, Error *e) {
  if (!o) return 0;
  const char *type = text_of(o, "type"), *text;
  if (!type) return no_such(t, "normalizer", o, e);
  if (strcmp(type, "Sequence") == 0) {
    const cJSON *part;
    cJSON_ArrayForEach(part,
                       member(o, "normalizers")) if (read_normalizer(t, part, e) < 0) return -1;
    return 0;
  }
  if (strcmp(type, "NFC") == 0)
    return add_step(t, &t->normal, (TextStep){.kind = STEP_NFC}, NULL, 0, false, NULL, e);
  if (strcmp(type, "Prepend") == 0 && (text = text_of(o, "prepend")))
    return add_step(t, &t->normal, (TextStep){.kind = STEP_PREPEND}, NULL, 0, false, text, e);
  // A replacement by nothing would move what is at the front of a text.
  if (strcmp(type, "Replace") == 0 && (text = text_of(o, "content")) && *text)
    return add_pattern_step(t, &t->normal, (TextStep){.kind = STEP_REPLACE}, o, text, e);
  return no_such(t, "normalizer", o, e);
}

static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static int add_split(Tokenizer *t, const char *regex, TextCut cut, Error *e) {
  return add_step(t, &t->cuts, (TextStep){.kind = STEP_SPLIT, .cut = cut}, regex, strlen(regex),
                  false, NULL, e);
}

/*: `Digits` asks the reference's own language what a digit is, and that knows Unicode 17: two scripts
more than its patterns do. :*/
static int add_digits(Tokenizer *t, TextCut cut, Error *e) {
  return add_split(t, "[\\p{N}\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}]", cut, e);
}

static int add_byte_level(Tokenizer *t, bool prefix, bool regex, Error *e) {
  if (prefix && add_step(t, &t->cuts, (TextStep){.kind = STEP_PREPEND, .unless = true}, NULL, 0,
                         false, " ", e) < 0)
    return -1;
  if (regex && add_split(t, gpt2_pattern, CUT_ISOLATED, e) < 0) return -1;
  return add_step(t, &t->cuts, (TextStep){.kind = STEP_BYTES}, NULL, 0, false, NULL, e);
}

// Spaces become the replacement, one is put in front, and pieces begin at each.
static int read_metaspace(Tokenizer *t, const cJSON *o, Error *e) {
  const char *sign = text_of(o, "replacement"), *scheme = text_of(o, "prepend_scheme");
  if (!sign || !*sign) return no_such(t, "pre_tokenizer", o, e);
  if (!scheme) scheme = flag_of(o, "add_prefix_space", true) ? "always" : "never";
  bool first = strcmp(scheme, "first") == 0;
  if (!first && strcmp(scheme, "always") != 0 && strcmp(scheme, "never") != 0)
    return fail(e, EXIT_INPUT, "%s: Metaspace: prepend_scheme %s is not supported", t->file,
                scheme);
  if (add_step(t, &t->cuts, (TextStep){.kind = STEP_REPLACE}, " ", 1, true, sign, e) < 0) return -1;
  TextStep prepend = {.kind = STEP_PREPEND, .unless = true, .only_first = first};
  if (strcmp(scheme, "never") != 0 && add_step(t, &t->cuts, prepend, NULL, 0, false, sign, e) < 0)
    return -1;
  if (!flag_of(o, "split", true)) return 0;
  TextStep split = {.kind = STEP_SPLIT, .cut = CUT_TO_NEXT};
  return add_step(t, &t->cuts, split, sign, strlen(sign), true, NULL, e);
}

static int read_cuts(Tokenizer *t, const cJSON *o, Error *e) {
  if (!o) return 0;
  const char *type = text_of(o, "type");
  if (!type) return no_such(t, "pre_tokenizer", o, e);
  if (strcmp(type, "Sequence") == 0) {
    const cJSON *part;
    cJSON_ArrayForEach(part, member(o, "pretokenizers")) if (read_cuts(t, part, e) < 0) return -1;
    return 0;
  }
  if (strcmp(type, "ByteLevel") == 0)
    return add_byte_level(t, flag_of(o, "add_prefix_space", true), flag_of(o, "use_regex", true),
                          e);
  if (strcmp(type, "Digits") == 0)
    return add_digits(t, flag_of(o, "individual_digits", false) ? CUT_ISOLATED : CUT_CONTIGUOUS, e);
  if (strcmp(type, "Metaspace") == 0) return read_metaspace(t, o, e);
  if (strcmp(type, "Split") == 0) {
    static const char *const name[] = {"Isolated", "Removed", "MergedWithPrevious",
                                       "MergedWithNext", "Contiguous"};
    const char *behavior = text_of(o, "behavior");
    int cut = 0;
    while (cut < 5 && (!behavior || strcmp(behavior, name[cut]) != 0)) cut++;
    if (cut == 5)
      return fail(e, EXIT_INPUT, "%s: Split: behavior %s is not supported", t->file,
                  behavior ? behavior : "(none)");
    TextStep s = {.kind = STEP_SPLIT, .cut = (TextCut)cut, .invert = flag_of(o, "invert", false)};
    return add_pattern_step(t, &t->cuts, s, o, NULL, e);
  }
  return no_such(t, "pre_tokenizer", o, e);
}
//< read_steps

/*: The decoder decides only how ids become text, so it need not be followed step by step: byte-level
tokens are letters of the byte alphabet, and all others write the space as U+2581. :*/
//> read_decoder
static bool has_bytes(const Tokenizer *t) {
  for (ptrdiff_t i = 0; i < arrlen(t->cuts); i++)
    if (t->cuts[i].kind == STEP_BYTES) return true;
  return false;
}

static int read_decoder(Tokenizer *t, const cJSON *o, Error *e) {
  if (!o) {
    t->decoding = has_bytes(t) ? DECODE_BYTES : DECODE_SPACES;
    return 0;
  }
  const char *type = text_of(o, "type"), *text;
  if (!type) return no_such(t, "decoder", o, e);
  if (strcmp(type, "Sequence") == 0) {
    const cJSON *part;
    cJSON_ArrayForEach(part, member(o, "decoders")) if (read_decoder(t, part, e) < 0) return -1;
    return 0;
  }
  if (strcmp(type, "ByteLevel") == 0) {
    t->decoding = DECODE_BYTES;
    return 0;
  }
  if (strcmp(type, "ByteFallback") == 0 || strcmp(type, "Fuse") == 0) return 0;
  t->decoding = DECODE_SPACES;
  if (strcmp(type, "Metaspace") == 0) {
    const char *scheme = text_of(o, "prepend_scheme");
    t->drop_first_space =
        scheme ? strcmp(scheme, "never") != 0 : flag_of(o, "add_prefix_space", true);
    return 0;
  }
  const cJSON *pattern = member(o, "pattern"), *start = member(o, "start"),
              *stop = member(o, "stop");
  if (strcmp(type, "Replace") == 0 && (text = text_of(pattern, "String")) &&
      strcmp(text, "\xe2\x96\x81") == 0 && (text = text_of(o, "content")) && strcmp(text, " ") == 0)
    return 0;
  if (strcmp(type, "Strip") == 0 && (text = text_of(o, "content")) && strcmp(text, " ") == 0 &&
      cJSON_IsNumber(start) && start->valueint <= 1 && (!stop || stop->valueint == 0)) {
    t->drop_first_space = start->valueint == 1;
    return 0;
  }
  return no_such(t, "decoder", o, e);
}
//< read_decoder

/*: ### Which BOS

Three places may say what goes before a text, and the first that speaks decides: a template in the
post-processor; `add_bos_token` in tokenizer_config.json; and, where neither says anything, a rule.
The rule: Llama 3's vocabularies, known by `<|begin_of_text|>`, get that one (the first release came
without a template); SentencePiece vocabularies, known by their byte tokens, get `<s>`, as their
original tokenizer does; all others get nothing. A `bos_token_id` in a config adds nothing by itself:
Qwen has one and must not be given it. :*/
//> read_bos
static int put_front(Tokenizer *t, int32_t id, const char *text, Error *e) {
  size_t n;
  if (!vocab_text(&t->vocab, id, &n))
    return fail(e, EXIT_INPUT, "%s: BOS %s is not in the vocabulary", t->file, text);
  arrput(t->front, id);
  return 0;
}

// *said becomes true where there is a template.
static int read_post(Tokenizer *t, const cJSON *o, bool *said, Error *e) {
  if (!o) return 0;
  const char *type = text_of(o, "type");
  if (!type) return no_such(t, "post_processor", o, e);
  const cJSON *part;
  if (strcmp(type, "Sequence") == 0) {
    cJSON_ArrayForEach(part,
                       member(o, "processors")) if (read_post(t, part, said, e) < 0) return -1;
    return 0;
  }
  if (strcmp(type, "ByteLevel") == 0) return 0; // moves offsets only
  if (strcmp(type, "TemplateProcessing") != 0) return no_such(t, "post_processor", o, e);
  *said = true;
  cJSON_ArrayForEach(part, member(o, "single")) {
    if (member(part, "Sequence")) break; // what follows the text would be EOS
    const char *name = text_of(member(part, "SpecialToken"), "id");
    const cJSON *id, *ids = member(member(member(o, "special_tokens"), name ? name : ""), "ids");
    if (!name || !ids)
      return fail(e, EXIT_INPUT, "%s: TemplateProcessing: a part that is neither text nor token",
                  t->file);
    cJSON_ArrayForEach(id, ids) {
      double n = cJSON_IsNumber(id) ? id->valuedouble : -1;
      if (put_front(t, n >= 0 && n < VOCAB_IDS ? (int32_t)n : -1, name, e) < 0) return -1;
    }
  }
  return 0;
}

// A token of tokenizer_config.json: a text, or an object with `content`.
static const char *config_token(const cJSON *config, const char *key) {
  const char *text = text_of(config, key);
  return text ? text : text_of(member(config, key), "content");
}

static int read_bos(Tokenizer *t, const cJSON *post, const cJSON *config, Error *e) {
  bool said = false;
  if (read_post(t, post, &said, e) < 0) return -1;
  if (said) return 0;
  const char *text = config_token(config, "bos_token");
  const cJSON *add = member(config, "add_bos_token");
  if (cJSON_IsBool(add)) {
    if (!cJSON_IsTrue(add)) return 0;
    if (!text)
      return fail(e, EXIT_INPUT,
                  "%s: add_bos_token is true, and tokenizer_config.json has no bos_token", t->file);
    return put_front(t, vocab_find(&t->vocab, text, strlen(text)), text, e);
  }
  int32_t id = vocab_find(&t->vocab, "<|begin_of_text|>", 17);
  if (id < 0 && t->vocab.byte_id['\n'] >= 0) id = vocab_find(&t->vocab, "<s>", 3);
  if (id >= 0) arrput(t->front, id);
  return 0;
}
//< read_bos

//> read_added
static int by_first_byte(const void *a, const void *b) {
  const AddedToken *x = a, *y = b;
  int first = (int)(uint8_t)x->text[0] - (int)(uint8_t)y->text[0];
  if (first) return first;
  if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
  return x->order < y->order ? -1 : x->order > y->order;
}

static void added_sort(AddedTokens *set) {
  if (arrlen(set->list)) qsort(set->list, arrlenu(set->list), sizeof *set->list, by_first_byte);
  memset(set->first, 0, sizeof set->first);
  for (ptrdiff_t i = 0; i < arrlen(set->list); i++) set->first[(uint8_t)set->list[i].text[0] + 1]++;
  for (int b = 0; b < 256; b++) set->first[b + 1] += set->first[b];
}

// A token is looked for as it is, or as its normal form where it is `normalized`.
static int put_added(Tokenizer *t, AddedToken a, const char *text, size_t n, bool normalized,
                     Error *e) {
  char *wanted = NULL;
  text_append(&wanted, text, n);
  int r = 0;
  if (normalized) r = tokenizer_normalize(t, &wanted, e);
  a.bytes = arrlenu(wanted);
  if (r == 0 && a.bytes) {
    a.text = copy(wanted, a.bytes);
    // Special ones come first among equals.
    AddedTokens *set = normalized ? &t->normed : &t->raw;
    a.order = (uint32_t)arrlen(set->list) + (a.special ? 0 : 1u << 31);
    if (!a.text) r = fail(e, EXIT_FAIL, "%s: out of memory", t->file);
    else arrput(set->list, a);
  }
  arrfree(wanted);
  while (arrlen(t->printed) < vocab_size(&t->vocab)) arrput(t->printed, PRINT_TOKEN);
  if (r == 0) t->printed[a.id] = a.special ? PRINT_NOTHING : PRINT_AS_IT_IS;
  return r;
}

static int read_added(Tokenizer *t, const cJSON *list, Error *e) {
  const cJSON *o;
  cJSON_ArrayForEach(o, list) {
    const char *text = text_of(o, "content");
    const cJSON *number = member(o, "id");
    double n = cJSON_IsNumber(number) ? number->valuedouble : -1;
    if (!text || !(n >= 0 && n < VOCAB_IDS) || n != (double)(int32_t)n)
      return fail(e, EXIT_INPUT, "%s: added_tokens: token %s has id %g, at most %d", t->file,
                  text ? text : "(none)", n, VOCAB_IDS - 1);
    size_t bytes = strlen(text), old_bytes;
    if (!bytes) continue;
    int32_t id = (int32_t)n, known = vocab_find(&t->vocab, text, bytes);
    if (known >= 0 && known != id)
      return fail(e, EXIT_INPUT, "%s: added token %s has id %d, in the vocabulary %d", t->file,
                  text, id, known);
    if (known < 0 && vocab_text(&t->vocab, id, &old_bytes))
      return fail(e, EXIT_INPUT, "%s: added token %s has id %d, which is taken", t->file, text, id);
    if (known < 0 && vocab_put(&t->vocab, id, text, bytes) < 0)
      return fail(e, EXIT_FAIL, "%s: out of memory for the vocabulary", t->file);
    bool special = flag_of(o, "special", false);
    AddedToken a = {.id = id,
                    .special = special,
                    .single_word = flag_of(o, "single_word", false),
                    .lstrip = flag_of(o, "lstrip", false),
                    .rstrip = flag_of(o, "rstrip", false)};
    if (put_added(t, a, text, bytes, flag_of(o, "normalized", !special), e) < 0) return -1;
  }
  return 0;
}
//< read_added

/*: ### Which chat

Checkpoints carry the wrapping of a prompt as a program, a Jinja template, which we do not run: we
recognise two families by their tokens, which the template must speak of, and `tokenizer.c` writes them
out by hand. Of a ChatML template we take the system message that it quotes for the case that the user
gives none. :*/
//> read_chat
static bool has_token(const Tokenizer *t, const char *text) {
  return vocab_find(&t->vocab, text, strlen(text)) >= 0;
}

// The text between `<|im_start|>system\n` and `<|im_end|>` where the template quotes a whole one.
static char *quoted_system(const char *template, size_t n) {
  static const char start[] = "<|im_start|>system", end[] = "<|im_end|>";
  const char *at = template, *stop = template + n, *found;
  while ((found = memmem(at, (size_t)(stop - at), start, sizeof start - 1))) {
    at = found + sizeof start - 1;
    const char *close = memmem(at, (size_t)(stop - at), end, sizeof end - 1);
    if (!close) break;
    size_t newline = *at == '\n' ? 1 : close - at >= 2 && memcmp(at, "\\n", 2) == 0 ? 2 : 0;
    char *text = newline ? malloc((size_t)(close - at)) : NULL;
    size_t m = 0;
    bool plain = text != NULL;
    for (const char *p = at + newline; plain && p < close; p++) {
      if (*p == '\\') {
        plain = ++p < close && *p == 'n';
        text[m++] = '\n';
      } else {
        plain = *p && !strchr("'\"{}", *p);
        text[m++] = *p;
      }
    }
    if (plain && m) {
      text[m] = 0;
      return text;
    }
    free(text);
  }
  return NULL;
}

static void read_chat(Tokenizer *t, const char *template, size_t n) {
  bool ml = has_token(t, "<|im_start|>") && has_token(t, "<|im_end|>");
  bool llama3 = has_token(t, "<|start_header_id|>") && has_token(t, "<|end_header_id|>") &&
                has_token(t, "<|eot_id|>");
  if (template) { // it must speak of the tokens, too
    ml = ml && memmem(template, n, "<|im_start|>", 12);
    llama3 = llama3 && memmem(template, n, "<|start_header_id|>", 19);
  }
  t->chat = ml ? CHAT_ML : llama3 ? CHAT_LLAMA3 : CHAT_NONE;
  if (t->chat != CHAT_ML || !template) return;
  t->chat_system = quoted_system(template, n);
  t->chat_front = memmem(template, n, "bos_token", 9) != NULL;
}
//< read_chat

/*: ## Opening :*/
//> tokenizer_parse
static Tokenizer *tokenizer_new(const char *file, const Shape *shape) {
  Tokenizer *t = calloc(1, sizeof *t);
  if (!t) return NULL;
  t->vocab.unknown = -1;
  t->limit = shape ? shape->vocab : 0;
  t->file = copy(file, strlen(file));
  if (!t->file) {
    free(t);
    return NULL;
  }
  return t;
}

static int finish(Tokenizer *t) {
  while (arrlen(t->printed) < vocab_size(&t->vocab)) arrput(t->printed, PRINT_TOKEN);
  added_sort(&t->raw);
  added_sort(&t->normed);
  return 0;
}

static cJSON *tree(const char *file, const char *name, const char *text, size_t n, Error *e) {
  // cJSON's texts end at a zero byte, and would be cut short by an escaped one.
  const char *end = NULL;
  cJSON *root = NULL;
  if (memmem(text, n, "\\u0000", 6))
    fail(e, EXIT_INPUT, "%s: %s: a zero byte outside the vocabulary", file, name);
  else if (!(root = cJSON_ParseWithLengthOpts(text, n, &end, false)) || !cJSON_IsObject(root)) {
    fail(e, EXIT_INPUT, "%s: %s: not JSON near byte %zu of %zu", file, name,
         end && end >= text ? (size_t)(end - text) : 0, n);
    cJSON_Delete(root);
    root = NULL;
  }
  return root;
}

// The model's switches; the two lists are read already.
static int read_model(Tokenizer *t, const cJSON *model, Error *e) {
  const char *type = text_of(model, "type"), *text;
  if (type && strcmp(type, "BPE") != 0) return no_such(t, "model", model, e);
  const cJSON *dropout = member(model, "dropout");
  if (dropout && !(cJSON_IsNumber(dropout) && dropout->valuedouble == 0))
    return fail(e, EXIT_INPUT, "%s: model.dropout is not supported", t->file);
  static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
  for (int i = 0; i < 2; i++)
    if ((text = text_of(model, affixes[i])) && *text)
      return fail(e, EXIT_INPUT, "%s: model.%s %s is not supported", t->file, affixes[i], text);
  t->vocab.byte_fallback = flag_of(model, "byte_fallback", false);
  t->vocab.fuse_unknown = flag_of(model, "fuse_unk", false);
  t->vocab.ignore_merges = flag_of(model, "ignore_merges", false);
  vocab_finish(&t->vocab);
  if ((text = text_of(model, "unk_token"))) {
    t->vocab.unknown = vocab_find(&t->vocab, text, strlen(text));
    if (t->vocab.unknown < 0)
      return fail(e, EXIT_INPUT, "%s: model.unk_token %s is not in the vocabulary", t->file, text);
  }
  return 0;
}

static int read_template(Tokenizer *t, const cJSON *config, const Mapping *jinja) {
  const char *text = text_of(config, "chat_template");
  const cJSON *one, *list = member(config, "chat_template");
  if (cJSON_IsArray(list)) // several by name: the one named default
    cJSON_ArrayForEach(one, list) {
      const char *name = text_of(one, "name");
      if (name && strcmp(name, "default") == 0) text = text_of(one, "template");
    }
  if (jinja->data) read_chat(t, (const char *)jinja->data, jinja->size);
  else read_chat(t, text, text ? strlen(text) : 0);
  return 0;
}

static int parse(Tokenizer *t, const Mapping *text, Error *e) {
  const char *json = text[0].data ? (const char *)text[0].data : "";
  size_t n = text[0].size;
  if (n > (size_t)1 << 28)
    return fail(e, EXIT_INPUT, "%s: %zu bytes, at most %d", t->file, n, 1 << 28);
  for (int i = 0; i < 3; i++) {
    size_t valid = utf8_valid((const char *)text[i].data, text[i].size);
    if (valid < text[i].size)
      return fail(e, EXIT_INPUT, "%s: byte %zu of %zu is not UTF-8", t->file, valid, text[i].size);
  }
  // Cut the two lists out and make a tree of the rest.
  static const char *const top[] = {"model"}, *const lists[] = {"vocab", "merges"};
  Json whole = {json, json + n}, model, list[2];
  if (!json_members(&whole, top, 1, &model) || json_peek(&whole))
    return fail(e, EXIT_INPUT, "%s: not a JSON object near byte %zu of %zu", t->file,
                (size_t)(whole.p - json), n);
  if (!model.p || *model.p != '{' || !json_members(&(Json){model.p, model.end}, lists, 2, list))
    return fail(e, EXIT_INPUT, "%s: model is not an object", t->file);
  if (!list[0].p) return fail(e, EXIT_INPUT, "%s: model.vocab is missing", t->file);
  bool swapped = list[1].p && list[1].p < list[0].p;
  Json first = list[swapped], second = list[!swapped];
  char *rest = NULL;
  text_append(&rest, json, (size_t)(first.p - json));
  text_append(&rest, "0", 1);
  if (second.p) {
    text_append(&rest, first.end, (size_t)(second.p - first.end));
    text_append(&rest, "0", 1);
  }
  const char *tail = second.p ? second.end : first.end;
  text_append(&rest, tail, (size_t)(json + n - tail));
  cJSON *root = tree(t->file, "tokenizer.json", rest, arrlenu(rest), e);
  arrfree(rest);
  cJSON *config = NULL;
  int r = root ? 0 : -1;
  if (r == 0 && text[1].data && text[1].size &&
      !(config =
            tree(t->file, "tokenizer_config.json", (const char *)text[1].data, text[1].size, e)))
    r = -1;

  // Another type of model has another kind of vocabulary: its name is the better error.
  const cJSON *m = member(root, "model");
  const char *type = text_of(m, "type");
  if (r == 0 && type && strcmp(type, "BPE") != 0) r = no_such(t, "model", m, e);
  if (r == 0) r = read_vocabulary(t, list[0], e);
  if (r == 0 && list[1].p) r = read_merges(t, list[1], e);
  if (r == 0) r = read_model(t, m, e);
  if (r == 0) r = read_normalizer(t, member(root, "normalizer"), e);
  if (r == 0) r = read_cuts(t, member(root, "pre_tokenizer"), e);
  if (r == 0) r = read_decoder(t, member(root, "decoder"), e);
  if (r == 0) r = read_added(t, member(root, "added_tokens"), e);
  if (r == 0) r = read_bos(t, member(root, "post_processor"), config, e);
  if (r == 0) r = read_template(t, config, &text[2]);
  cJSON_Delete(root);
  cJSON_Delete(config);
  return r == 0 ? finish(t) : -1;
}

// Takes t over.
static int opened(Tokenizer *t, int r, Tokenizer **out) {
#ifdef __GLIBC__
  malloc_trim(0); // the trees are gone; give their pages back
#endif
  if (r < 0) tokenizer_close(t);
  *out = r < 0 ? NULL : t;
  return r;
}

int tokenizer_parse(const char *file, const Mapping text[3], const Shape *shape, Tokenizer **out,
                    Error *e) {
  *out = NULL;
  Tokenizer *t = tokenizer_new(file, shape);
  if (!t) return fail(e, EXIT_FAIL, "%s: out of memory", file);
  return opened(t, parse(t, text, e), out);
}
//< tokenizer_parse

/*: ### GGUF's vocabulary

GGUF keeps the tokens, a type for each, and merges (`gpt2`: byte-level) or scores (`llama`:
SentencePiece). How to cut is only a name, `tokenizer.ggml.pre`, for which the reader must know the
pattern. We know those of our families and the plain ones; Qwen's also means NFC, as its own tokenizer
does it. A file without the key is cut as llama.cpp cuts it, with a note. :*/
//> gguf_patterns
static const char llama3_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char qwen2_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

// Is `name` one of the words of `list`?
static bool listed(const char *list, const char *name, size_t n) {
  if (!n || strchr(name, ' ')) return false;
  for (const char *p = list; (p = strstr(p, name)); p += n)
    if ((p == list || p[-1] == ' ') && (p[n] == ' ' || !p[n])) return true;
  return false;
}

static int gguf_cuts(Tokenizer *t, const char *pre, bool *llama3, Error *e) {
  size_t n = strlen(pre);
  *llama3 = listed("llama3 llama-v3 llama-bpe", pre, n);
  if (*llama3) {
    t->vocab.ignore_merges = true;
    if (add_split(t, llama3_pattern, CUT_ISOLATED, e) < 0) return -1;
  } else if (listed("qwen2 deepseek-r1-qwen", pre, n)) {
    if (add_step(t, &t->normal, (TextStep){.kind = STEP_NFC}, NULL, 0, false, NULL, e) < 0 ||
        add_split(t, qwen2_pattern, CUT_ISOLATED, e) < 0)
      return -1;
  } else if (listed("smollm starcoder refact", pre, n)) {
    if (add_digits(t, CUT_ISOLATED, e) < 0 || add_split(t, gpt2_pattern, CUT_ISOLATED, e) < 0)
      return -1;
  } else if (listed("gpt-2 gpt2", pre, n)) {
    if (add_split(t, gpt2_pattern, CUT_ISOLATED, e) < 0) return -1;
  } else if (strcmp(pre, "default") == 0) {
    static const char *const cuts[] = {"[\\p{P}\\$\\+<=>\\^~\\|]+", gpt2_pattern, "\\p{N}+",
                                       "[0-9][0-9][0-9]"};
    for (int i = 0; i < 4; i++)
      if (add_split(t, cuts[i], CUT_ISOLATED, e) < 0) return -1;
  } else return fail(e, EXIT_INPUT, "%s: tokenizer.ggml.pre '%s' is not supported", t->file, pre);
  return add_step(t, &t->cuts, (TextStep){.kind = STEP_BYTES}, NULL, 0, false, NULL, e);
}
//< gguf_patterns

//> gguf_vocabulary
enum { TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4, TYPE_BYTE = 6 };

// An array of four-byte numbers with one for each token, or NULL.
static const uint8_t *gguf_column(const Gguf *g, const char *key, GgufType type, uint64_t count) {
  const GgufValue *v = gguf_get(g, key);
  return v && v->type == GGUF_ARRAY && v->element == type && v->count == count ? v->p : NULL;
}

static int32_t type_of(const uint8_t *types, int32_t id) {
  int32_t type = 1;
  if (types) memcpy(&type, types + 4 * (size_t)id, 4);
  return type;
}

static int gguf_tokens(Tokenizer *t, const Gguf *g, bool scored, Error *e) {
  GgufStrings it;
  const char *p;
  size_t n;
  if (!gguf_strings(g, "tokenizer.ggml.tokens", &it) || !it.left || it.left > VOCAB_IDS)
    return fail(e, EXIT_INPUT, "%s: tokenizer.ggml.tokens is not a list of 1 to %d texts", t->file,
                VOCAB_IDS);
  uint64_t count = it.left;
  for (int32_t id = 0; gguf_next(&it, &p, &n); id++) {
    if (utf8_valid(p, n) < n)
      return fail(e, EXIT_INPUT, "%s: tokenizer.ggml.tokens: token %d is not UTF-8", t->file, id);
    if (vocab_put(&t->vocab, id, p, n) < 0)
      return fail(e, EXIT_FAIL, "%s: out of memory for the vocabulary", t->file);
  }
  vocab_finish(&t->vocab);
  const uint8_t *types = gguf_column(g, "tokenizer.ggml.token_type", GGUF_I32, count);
  if (!types && gguf_get(g, "tokenizer.ggml.token_type"))
    return fail(e, EXIT_INPUT, "%s: tokenizer.ggml.token_type is not a list of %llu numbers",
                t->file, (unsigned long long)count);
  const uint8_t *scores = gguf_column(g, "tokenizer.ggml.scores", GGUF_F32, count);
  if (scored && !scores)
    return fail(e, EXIT_INPUT, "%s: tokenizer.ggml.scores is not a list of %llu numbers", t->file,
                (unsigned long long)count);
  float *score = NULL;
  for (int32_t id = 0; id < vocab_size(&t->vocab); id++) {
    int32_t type = type_of(types, id);
    // The oldest files have no types; these four kinds of text have been what they are since.
    const char *text = vocab_text(&t->vocab, id, &n);
    if (!types && scored) {
      bool byte = n == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>';
      bool control =
          (n == 3 && memcmp(text, "<s>", 3) == 0) || (n == 4 && memcmp(text, "</s>", 4) == 0);
      bool unknown = n == 5 && memcmp(text, "<unk>", 5) == 0;
      type = byte ? TYPE_BYTE : control ? TYPE_CONTROL : unknown ? TYPE_UNKNOWN : 1;
    }
    if (scored) {
      float s;
      memcpy(&s, scores + 4 * (size_t)id, 4);
      bool reserved = type == TYPE_UNKNOWN || type == TYPE_CONTROL || type == TYPE_BYTE;
      arrput(score, reserved ? (float)(0.0 / 0.0) : s); // typed text never becomes one of these
    }
    if (type != TYPE_UNKNOWN && type != TYPE_CONTROL && type != TYPE_USER) continue;
    AddedToken a = {.id = id, .special = type != TYPE_USER};
    if (n && put_added(t, a, text, n, false, e) < 0) {
      arrfree(score);
      return -1;
    }
  }
  if (scored) vocab_put_scores(&t->vocab, score);
  arrfree(score);
  int64_t unknown;
  if (gguf_int(g, "tokenizer.ggml.unknown_token_id", &unknown) && unknown >= 0 &&
      unknown < vocab_size(&t->vocab) && scored)
    t->vocab.unknown = (int32_t)unknown;
  return 0;
}

static int gguf_merges(Tokenizer *t, const Gguf *g, Error *e) {
  GgufStrings it;
  const char *p;
  size_t n;
  if (!gguf_strings(g, "tokenizer.ggml.merges", &it))
    return fail(e, EXIT_INPUT, "%s: tokenizer.ggml.merges is missing", t->file);
  for (uint32_t rank = 0; gguf_next(&it, &p, &n); rank++)
    if (put_merge_line(t, rank, p, n, e) < 0) return -1;
  return 0;
}
//< gguf_vocabulary

/*: The BOS of a GGUF file: the key `add_bos_token` decides; without it, SentencePiece and Llama 3 have
one and the others have none. Which one is `bos_token_id`, or else the usual text of its kind. :*/
//> tokenizer_parse_gguf
static int gguf_bos(Tokenizer *t, const Gguf *g, bool otherwise, Error *e) {
  int64_t add = otherwise, id = -1;
  (void)gguf_int(g, "tokenizer.ggml.add_bos_token", &add);
  if (!add) return 0;
  if (!gguf_int(g, "tokenizer.ggml.bos_token_id", &id)) {
    id = vocab_find(&t->vocab, "<|begin_of_text|>", 17);
    if (id < 0) id = vocab_find(&t->vocab, "<s>", 3);
    if (id < 0) return fail(e, EXIT_INPUT, "%s: a BOS is wanted, and none is named", t->file);
  }
  if (id < 0 || id >= vocab_size(&t->vocab))
    return fail(e, EXIT_INPUT, "%s: tokenizer.ggml.bos_token_id is %lld, the vocabulary has %d",
                t->file, (long long)id, vocab_size(&t->vocab));
  arrput(t->front, (int32_t)id);
  return 0;
}

static int parse_gguf(Tokenizer *t, const Gguf *g, Error *e) {
  const char *model, *pre, *template;
  size_t n, m;
  bool llama3 = false;
  if (!gguf_string(g, "tokenizer.ggml.model", &model, &n))
    return fail(e, EXIT_INPUT, "%s: tokenizer.ggml.model is missing", t->file);
  bool scored = n == 5 && memcmp(model, "llama", 5) == 0;
  if (!scored && !(n == 4 && memcmp(model, "gpt2", 4) == 0))
    return fail(e, EXIT_INPUT, "%s: tokenizer.ggml.model %.*s is not supported", t->file,
                (int)(n < 64 ? n : 64), model);
  if (gguf_tokens(t, g, scored, e) < 0) return -1;
  if (scored) {
    t->decoding = DECODE_SPACES;
    int64_t prefix = 1;
    (void)gguf_int(g, "tokenizer.ggml.add_space_prefix", &prefix);
    t->drop_first_space = prefix != 0;
    TextStep space = {.kind = STEP_PREPEND}, sign = {.kind = STEP_REPLACE};
    if ((prefix && add_step(t, &t->normal, space, NULL, 0, false, " ", e) < 0) ||
        add_step(t, &t->normal, sign, " ", 1, true, "\xe2\x96\x81", e) < 0)
      return -1;
  } else {
    char name[64] = "default";
    if (!gguf_string(g, "tokenizer.ggml.pre", &pre, &m))
      notice("%s: no tokenizer.ggml.pre: cut as llama.cpp does without it", t->file);
    else snprintf(name, sizeof name, "%.*s", (int)(m < 60 ? m : 60), pre);
    t->decoding = DECODE_BYTES;
    if (gguf_merges(t, g, e) < 0 || gguf_cuts(t, name, &llama3, e) < 0) return -1;
  }
  if (gguf_bos(t, g, scored || llama3, e) < 0) return -1;
  if (gguf_string(g, "tokenizer.chat_template", &template, &n)) read_chat(t, template, n);
  else read_chat(t, NULL, 0);
  return finish(t);
}

int tokenizer_parse_gguf(const char *file, const Gguf *g, const Shape *shape, Tokenizer **out,
                         Error *e) {
  *out = NULL;
  Tokenizer *t = tokenizer_new(file, shape);
  if (!t) return fail(e, EXIT_FAIL, "%s: out of memory", file);
  return opened(t, parse_gguf(t, g, e), out);
}
//< tokenizer_parse_gguf

//> tokenizer_open
int tokenizer_open(const Source *s, const Shape *shape, Tokenizer **out, Error *e) {
  static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                      "chat_template.jinja"};
  Mapping text[3] = {{0}};
  int r = 0;
  *out = NULL;
  for (int i = 0; i < 3 && s->kind != SOURCE_GGUF && r >= 0; i++)
    if (i == 0 || text[0].data) r = source_text(s, names[i], &text[i], e);
  if (r >= 0 && text[0].data) r = tokenizer_parse(s->path, text, shape, out, e);
  else if (r >= 0 && s->gguf) r = tokenizer_parse_gguf(s->path, s->gguf, shape, out, e);
  else if (r >= 0) r = fail(e, EXIT_INPUT, "%s: tokenizer.json is missing", s->path);
  for (int i = 0; i < 3; i++)
    if (text[i].data) source_text_free(s, &text[i]);
  return r < 0 ? -1 : 0;
}
//< tokenizer_open
