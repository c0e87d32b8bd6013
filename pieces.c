/*: # Cutting and joining

A tokenizer has two halves. The first cuts a text into **pieces**: words with the space before them,
runs of digits, runs of punctuation. The second joins the characters of each piece into **tokens**, two
neighbours at a time. Both halves are exact: the model was trained on one way to cut and one order to
join, and any other way gives ids that it has rarely seen.

    "Hello  world12" ─ pattern ─→ "Hello" " " " world" "12" ─ merges ─→ 9906 220 1917 717

What lies between the halves (special tokens, normal forms, bytes written as letters) is for the next
file. :*/
#include "tiles.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <stb/stb_ds.h>

/*: ## UTF-8, strictly

Everything below walks a text by the lengths that its first bytes announce, so a text is checked once,
where it comes in. Overlong forms, surrogates and numbers above U+10FFFF are wrong. :*/
//> utf8_valid
size_t utf8_valid(const char *text, size_t bytes) {
  const uint8_t *p = (const uint8_t *)text;
  size_t i = 0;
  while (i < bytes) {
    uint8_t c = p[i];
    if (c < 0x80) {
      i++;
      continue;
    }
    size_t n = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c < 0xc2 || c > 0xf4 || bytes - i < n) return i;
    uint8_t low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    uint8_t high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    if (p[i + 1] < low || p[i + 1] > high) return i;
    for (size_t k = 2; k < n; k++)
      if ((p[i + k] & 0xc0) != 0x80) return i;
    i += n;
  }
  return i;
}

// Bytes of the character that begins with `c`.
static inline size_t char_bytes(uint8_t c) {
  return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}
//< utf8_valid

/*: ## Patterns

tokenizer.json writes its patterns for Oniguruma, the engine of the reference; we run them in PCRE2,
which compiles them to machine code. The two read the same signs, with differences that decide ids, so
every pattern is translated first:

- `\s` is spelled out. PCRE2 counts U+180E as a space; Oniguruma, like Unicode, does not.
- `\p{L}`, `\p{N}` and `\p{M}` get the characters that Unicode 15 and 16 added. The reference has
  Unicode 16, PCRE2 10.42 has Unicode 14; in a newer PCRE2 the additions say nothing new. Other
  properties are as old or new as the PCRE2 that we are linked with.
- What the two engines read differently (`^`, `$`, `\h`, `\w`, `\b`, sets within sets, `a{2}+`, flags
  other than `i`) is refused by name. No supported model needs it.

Case-insensitive matching agrees: `(?i:'s)` takes an apostrophe with s, S or U+017F in both. :*/
//> pattern_ranges
#define SPACES                                                                                     \
  "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}" \
  "\\x{3000}"
#define LETTERS                                                                                    \
  "\\p{L}\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}\\x{10D4A}" \
  "-\\x{10D65}\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}\\x{11380}-\\x{"      \
  "11389}"                                                                                         \
  "\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}\\x{113D3}\\x{11BC0}-\\x{11BE0}"   \
  "\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}"  \
  "-\\x{143FA}\\x{16100}-\\x{1611D}\\x{16D40}-\\x{16D6C}\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}"  \
  "-\\x{1DF2A}\\x{1E030}-\\x{1E06D}\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}" \
  "\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"
#define NUMBERS                                                                                    \
  "\\p{N}\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}"     \
  "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}\\x{1E4F0}" \
  "-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}"
#define MARKS                                                                                      \
  "\\p{M}\\x{897}\\x{CF3}\\x{ECE}\\x{10D69}-\\x{10D6D}\\x{10EFC}-\\x{10EFF}\\x{11241}\\x{113B8}"   \
  "-\\x{113C0}\\x{113C2}\\x{113C5}\\x{113C7}-\\x{113CA}\\x{113CC}-\\x{113D0}\\x{113D2}\\x{113E1}"  \
  "-\\x{113E2}\\x{11F00}-\\x{11F01}\\x{11F03}\\x{11F34}-\\x{11F3A}\\x{11F3E}-\\x{11F42}\\x{11F5A}" \
  "\\x{13440}\\x{13447}-\\x{13455}\\x{1611E}-\\x{1612F}\\x{1E08F}\\x{1E4EC}-\\x{1E4EF}\\x{1E5EE}"  \
  "-\\x{1E5EF}"
//< pattern_ranges

void text_append(char **out, const char *text, size_t bytes) {
  if (bytes) memcpy(arraddnptr(*out, bytes), text, bytes);
}
static void append_text(char **out, const char *text) { text_append(out, text, strlen(text)); }

//> pattern_translate
// A set as a class of its own, or as a part of the class that we are in.
static const char *translate_set(char **out, const char *set, bool negated, bool in_class) {
  if (in_class && negated) return "a negated set within a class";
  if (!in_class) append_text(out, negated ? "[^" : "[");
  append_text(out, set);
  if (!in_class) append_text(out, "]");
  return NULL;
}

// The escape at p[*i] = '\\'. Returns what is wrong, or NULL with *i behind the escape.
static const char *translate_escape(char **out, const char *p, size_t n, size_t *i, bool in_class) {
  if (n - *i < 2) return "a trailing backslash";
  char c = p[*i + 1];
  *i += 2;
  switch (c) {
  case 's':
  case 'S': return translate_set(out, SPACES, c == 'S', in_class);
  case 'd':
  case 'D': return translate_set(out, "\\p{Nd}", c == 'D', in_class);
  case 'r':
  case 'n':
  case 't':
  case 'f': text_append(out, p + *i - 2, 2); return NULL;
  case 'v': append_text(out, "\\x0b"); return NULL;
  case 'x':
  case 'p':
  case 'P': {
    const char *close = *i < n && p[*i] == '{' ? memchr(p + *i, '}', n - *i) : NULL;
    if (!close) return c == 'x' ? "\\x without braces" : "\\p without braces";
    size_t name = (size_t)(close - (p + *i)) - 1;
    const char *text = p + *i + 1, *set = NULL;
    if (c != 'x' && name == 1)
      set = *text == 'L' ? LETTERS : *text == 'N' ? NUMBERS : *text == 'M' ? MARKS : NULL;
    *i += name + 2;
    if (set) return translate_set(out, set, c == 'P', in_class);
    text_append(out, text - 3, name + 4);
    return NULL;
  }
  case 'u': {
    if (n - *i < 4) return "\\u without four digits";
    append_text(out, "\\x{");
    text_append(out, p + *i, 4);
    append_text(out, "}");
    *i += 4;
    return NULL;
  }
  default: break;
  }
  // A sign that stands for itself. Letters and digits mean different things in the two engines.
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c & 0x80))
    return "an escape that engines disagree on";
  text_append(out, p + *i - 2, 2);
  return NULL;
}

// `(?` must go on as one of these; the rest differs between the engines or captures.
static size_t group_start(const char *p, size_t n) {
  static const char *const known[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
  for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
    size_t m = strlen(known[k]);
    if (n >= m && memcmp(p, known[k], m) == 0) return m;
  }
  return 0;
}

static const char *translate(char **out, const char *p, size_t n) {
  for (size_t i = 0; i < n;) {
    if (p[i] == '\\') {
      const char *wrong = translate_escape(out, p, n, &i, false);
      if (wrong) return wrong;
    } else if (p[i] == '[') {
      text_append(out, "[", 1);
      i++;
      if (i < n && p[i] == '^') text_append(out, p + i++, 1);
      if (i < n && p[i] == ']') return "an empty class";
      while (i < n && p[i] != ']') {
        if (p[i] == '[' || (p[i] == '&' && i + 1 < n && p[i + 1] == '&'))
          return "a set within a set";
        if (p[i] == '\\') {
          const char *wrong = translate_escape(out, p, n, &i, true);
          if (wrong) return wrong;
        } else text_append(out, p + i++, 1);
      }
      if (i == n) return "a class without an end";
      text_append(out, p + i++, 1);
    } else if (p[i] == '(' && i + 1 < n && (p[i + 1] == '?' || p[i + 1] == '*')) {
      size_t m = group_start(p + i, n - i);
      if (!m) return "a group of a kind that engines disagree on";
      text_append(out, p + i, m);
      i += m;
    } else if (p[i] == '{') {
      size_t k = i + 1;
      while (k < n && ((p[k] >= '0' && p[k] <= '9') || (p[k] == ',' && k > i + 1))) k++;
      if (k == n || k == i + 1 || p[k] != '}') return "a brace that is no count";
      if (k + 1 < n && p[k + 1] == '+') return "a count followed by +";
      text_append(out, p + i, k + 1 - i);
      i = k + 1;
    } else if (p[i] == '^' || p[i] == '$') {
      return "an anchor";
    } else text_append(out, p + i++, 1);
  }
  return NULL;
}
//< pattern_translate

/*: Patterns come with the checkpoint, so they are not trusted either. A match may take a number of
steps in proportion to the text and no more; a pattern that backtracks without end becomes an error.
The compiled code has a stack of its own, and where that is too small the interpreter, which keeps its
state on the heap, takes over. :*/
//> pattern_compile
struct Pattern {
  pcre2_code *code;
};

int pattern_compile(const char *file, const char *text, size_t bytes, bool literal, Pattern **out,
                    Error *e) {
  *out = NULL;
  if (!bytes) return fail(e, EXIT_INPUT, "%s: an empty pattern", file);
  if (bytes > 16384)
    return fail(e, EXIT_INPUT, "%s: a pattern of %zu bytes, at most 16384", file, bytes);
  char *translated = NULL;
  const char *wrong = NULL;
  if (literal) text_append(&translated, text, bytes);
  else wrong = translate(&translated, text, bytes);

  pcre2_compile_context *context = pcre2_compile_context_create(NULL);
  pcre2_code *code = NULL;
  PCRE2_UCHAR message[128] = "out of memory";
  PCRE2_SIZE at = 0;
  if (context && !wrong) {
    pcre2_set_newline(context, PCRE2_NEWLINE_LF); // what `.` does not match
    int why;
    uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP);
    code = pcre2_compile((PCRE2_SPTR)translated, arrlenu(translated), options, &why, &at, context);
    if (!code) pcre2_get_error_message(why, message, sizeof message);
  }
  pcre2_compile_context_free(context);
  arrfree(translated);
  uint32_t can_be_empty = 0;
  if (code && pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &can_be_empty) == 0 && can_be_empty)
    wrong = "it can match nothing at all";
  Pattern *p = code && !wrong ? malloc(sizeof *p) : NULL;
  if (!p) {
    pcre2_code_free(code);
    return fail(e, EXIT_INPUT, "%s: pattern %.*s: %s", file, (int)(bytes < 200 ? bytes : 200), text,
                wrong ? wrong : (const char *)message);
  }
  (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); // without it the interpreter gives the same
  p->code = code;
  *out = p;
  return 0;
}

void pattern_free(Pattern *p) {
  if (p) pcre2_code_free(p->code);
  free(p);
}
//< pattern_compile

//> pattern_next
struct PatternScan {
  pcre2_match_data *data;
  pcre2_match_context *context;
  pcre2_jit_stack *stack;
};

PatternScan *pattern_scan(void) {
  PatternScan *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->data = pcre2_match_data_create(1, NULL); // the whole match; groups do not interest us
  s->context = pcre2_match_context_create(NULL);
  s->stack = pcre2_jit_stack_create(32 << 10, 1 << 20, NULL);
  if (!s->data || !s->context) {
    pattern_scan_free(s);
    return NULL;
  }
  if (s->stack) pcre2_jit_stack_assign(s->context, NULL, s->stack);
  pcre2_set_heap_limit(s->context, 64 << 10); // KiB
  return s;
}

void pattern_scan_free(PatternScan *s) {
  if (!s) return;
  pcre2_match_data_free(s->data);
  pcre2_match_context_free(s->context);
  pcre2_jit_stack_free(s->stack);
  free(s);
}

int pattern_next(const Pattern *p, PatternScan *s, const char *text, size_t bytes, size_t from,
                 size_t *start, size_t *end, Error *e) {
  size_t limit = 100000 + 8 * (bytes - from);
  pcre2_set_match_limit(s->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
  int r =
      pcre2_match(p->code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK, s->data, s->context);
  if (r == PCRE2_ERROR_JIT_STACKLIMIT)
    r = pcre2_match(p->code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                    s->data, s->context);
  if (r == PCRE2_ERROR_NOMATCH) return 0;
  if (r < 0) {
    PCRE2_UCHAR message[128] = "";
    pcre2_get_error_message(r, message, sizeof message);
    return fail(e, EXIT_INPUT, "text: the pattern gave up at byte %zu of %zu: %s", from, bytes,
                (const char *)message);
  }
  const PCRE2_SIZE *place = pcre2_get_ovector_pointer(s->data);
  *start = place[0];
  *end = place[1];
  return 1;
}
//< pattern_next

/*: ## A vocabulary

Two questions are asked all the time: which id has this text, and do these two neighbours join. Both
are open hash tables. The first holds ids only and compares with the text that the id already has; the
second holds the pair, its rank and what it becomes. :*/
//> vocab_tables
static uint32_t text_hash(const char *text, size_t bytes) {
  return (uint32_t)hash64(text, bytes, 0);
}

static uint32_t pair_hash(int32_t left, int32_t right) {
  uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
  return (uint32_t)(h >> 32);
}

int32_t vocab_size(const Vocab *v) { return (int32_t)arrlen(v->by_id); }

const char *vocab_text(const Vocab *v, int32_t id, size_t *bytes) {
  if (id < 0 || id >= arrlen(v->by_id) || v->by_id[id].at == UINT32_MAX) return NULL;
  *bytes = v->by_id[id].bytes;
  return v->texts + v->by_id[id].at;
}

// The slot of this text, or the free one where it belongs. The table is never full.
static uint32_t *find_slot(const Vocab *v, const char *text, size_t bytes) {
  uint32_t mask = v->slot_count - 1;
  for (uint32_t i = text_hash(text, bytes) & mask;; i = (i + 1) & mask) {
    uint32_t id = v->slots[i];
    if (!id) return &v->slots[i];
    const struct VocabText *t = &v->by_id[id - 1];
    if (t->bytes == bytes && memcmp(v->texts + t->at, text, bytes) == 0) return &v->slots[i];
  }
}

int32_t vocab_find(const Vocab *v, const char *text, size_t bytes) {
  return v->slots ? (int32_t)*find_slot(v, text, bytes) - 1 : -1;
}

int vocab_put(Vocab *v, int32_t id, const char *text, size_t bytes) {
  if (!v->slots || v->slots_used >= v->slot_count / 2) {
    uint32_t *old = v->slots, n = v->slot_count;
    uint32_t *grown = calloc(n ? 2 * (size_t)n : 1024, sizeof *grown);
    if (!grown) return -1;
    v->slots = grown;
    v->slot_count = n ? 2 * n : 1024;
    for (uint32_t i = 0; old && i < n; i++)
      if (old[i]) {
        const struct VocabText *t = &v->by_id[old[i] - 1];
        *find_slot(v, v->texts + t->at, t->bytes) = old[i];
      }
    free(old);
  }
  if (arrlenu(v->texts) + bytes >= UINT32_MAX) return -1;
  while (arrlen(v->by_id) <= id)
    arrput(v->by_id, ((struct VocabText){.at = UINT32_MAX, .bytes = 0}));
  struct VocabText t = {(uint32_t)arrlenu(v->texts), (uint32_t)bytes};
  text_append(&v->texts, text, bytes);
  if (!v->texts) arrsetcap(v->texts, 1); // a first text that is empty still has a place
  v->by_id[id] = t;
  uint32_t *slot = find_slot(v, text, bytes);
  v->slots_used += !*slot;
  *slot = (uint32_t)id + 1;
  return 0;
}

static struct VocabMerge *find_merge(const Vocab *v, int32_t left, int32_t right) {
  uint32_t mask = v->merge_count - 1;
  for (uint32_t i = pair_hash(left, right) & mask;; i = (i + 1) & mask) {
    struct VocabMerge *m = &v->merges[i];
    if ((m->left == left && m->right == right) || m->rank == UINT32_MAX) return m;
  }
}

int vocab_put_merge(Vocab *v, int32_t left, int32_t right, uint32_t rank, int32_t id) {
  if (!v->merges || v->merges_used >= v->merge_count / 3 * 2) {
    struct VocabMerge *old = v->merges;
    uint32_t n = v->merge_count, wider = n ? 2 * n : 1024;
    struct VocabMerge *grown = malloc(wider * sizeof *grown);
    if (!grown) return -1;
    for (uint32_t i = 0; i < wider; i++) grown[i] = (struct VocabMerge){.rank = UINT32_MAX};
    v->merges = grown;
    v->merge_count = wider;
    for (uint32_t i = 0; old && i < n; i++)
      if (old[i].rank != UINT32_MAX) *find_merge(v, old[i].left, old[i].right) = old[i];
    free(old);
  }
  struct VocabMerge *m = find_merge(v, left, right);
  v->merges_used += m->rank == UINT32_MAX;
  *m = (struct VocabMerge){.left = left, .right = right, .id = id, .rank = rank};
  return 0;
}

void vocab_free(Vocab *v) {
  arrfree(v->texts);
  arrfree(v->by_id);
  arrfree(v->score_rank);
  free(v->slots);
  free(v->merges);
  *v = (Vocab){0};
}

void vocab_finish(Vocab *v) {
  for (int b = 0; b < 256; b++) {
    char text[8];
    snprintf(text, sizeof text, "<0x%02X>", b);
    v->byte_id[b] = vocab_find(v, text, 6);
  }
}
//< vocab_tables

/*: SentencePiece files have a score for every token instead of a list of merges: any two neighbours
whose joined text is a token may join, the highest score first. We turn scores into ranks, equal ones
into equal ranks, so that one loop serves both. :*/
//> vocab_scores
typedef struct Scored {
  float score;
  int32_t id;
} Scored;

static int by_score(const void *a, const void *b) {
  float x = ((const Scored *)a)->score, y = ((const Scored *)b)->score;
  return (x < y) - (x > y);
}

void vocab_put_scores(Vocab *v, const float *score) {
  Scored *order = NULL;
  int32_t n = vocab_size(v);
  arrsetlen(v->score_rank, (size_t)n);
  for (int32_t id = 0; id < n; id++) {
    v->score_rank[id] = UINT32_MAX;
    if (score[id] == score[id]) arrput(order, ((Scored){score[id], id}));
  }
  if (arrlen(order)) qsort(order, arrlenu(order), sizeof *order, by_score);
  uint32_t rank = 0;
  for (ptrdiff_t i = 0; i < arrlen(order); i++) {
    rank += i > 0 && order[i].score < order[i - 1].score;
    v->score_rank[order[i].id] = rank;
  }
  arrfree(order);
}
//< vocab_scores

/*: ## Joining

A piece begins as a chain of characters. Every pair of neighbours that may join waits in a heap, lowest
rank first and the leftmost among equals; we take one, join it, and look at the two new pairs that it
makes. Each join removes a link, so a piece of n characters needs at most 2n visits to the heap:
100,000 times the letter "a" is no harder than a hundred thousand letters of prose.

A pair may have gone stale while it waited, because one of its two links joined elsewhere. We notice it
when it is taken: what stands there now no longer joins to the same token. :*/
//> join_heap
typedef struct Link { // one character, or the tokens joined so far
  int32_t id;         // -1: a character that is no token, of a vocabulary with scores
  uint32_t at, bytes; // its place in the piece; bytes 0: joined into the link before it
  int32_t prev, next; // -1: none
} Link;

typedef struct Join {
  uint32_t rank;
  int32_t left; // index of the link
  int32_t id;   // what the two become
} Join;

static inline bool sooner(Join a, Join b) {
  return a.rank < b.rank || (a.rank == b.rank && a.left < b.left);
}

static void heap_push(Join *heap, size_t *n, Join j) {
  size_t i = (*n)++;
  for (; i && sooner(j, heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
  heap[i] = j;
}

static Join heap_pop(Join *heap, size_t *n) {
  Join top = heap[0], j = heap[--*n];
  size_t i = 0;
  for (size_t k; (k = 2 * i + 1) < *n; i = k) {
    k += k + 1 < *n && sooner(heap[k + 1], heap[k]);
    if (!sooner(heap[k], j)) break;
    heap[i] = heap[k];
  }
  heap[i] = j;
  return top;
}
//< join_heap

//> join
// Do links a and b join? Fills j's rank and id.
static bool joins(const Vocab *v, const char *piece, const Link *a, const Link *b, Join *j) {
  if (v->score_rank) {
    j->id = vocab_find(v, piece + a->at, a->bytes + b->bytes);
    if (j->id < 0) return false;
    j->rank = v->score_rank[j->id];
    return j->rank != UINT32_MAX;
  }
  if (!v->merges) return false;
  const struct VocabMerge *m = find_merge(v, a->id, b->id);
  j->id = m->id;
  j->rank = m->rank;
  return m->rank != UINT32_MAX;
}

static void join_all(const Vocab *v, const char *piece, Link *link, size_t n, Join *heap) {
  size_t waiting = 0;
  Join j;
  for (size_t i = 0; i + 1 < n; i++)
    if (joins(v, piece, &link[i], &link[i + 1], &j)) {
      j.left = (int32_t)i;
      heap_push(heap, &waiting, j);
    }
  while (waiting) {
    Join top = heap_pop(heap, &waiting);
    Link *a = &link[top.left];
    if (!a->bytes || a->next < 0) continue;
    Link *b = &link[a->next];
    if (!joins(v, piece, a, b, &j) || j.id != top.id) continue; // stale

    a->id = top.id;
    a->bytes += b->bytes;
    a->next = b->next;
    b->bytes = 0;
    if (a->next >= 0) link[a->next].prev = top.left;

    if (a->prev >= 0 && joins(v, piece, &link[a->prev], a, &j)) {
      j.left = a->prev;
      heap_push(heap, &waiting, j);
    }
    if (a->next >= 0 && joins(v, piece, a, &link[a->next], &j)) {
      j.left = top.left;
      heap_push(heap, &waiting, j);
    }
  }
}
//< join

/*: A character that is no token of its own becomes its bytes, where the vocabulary has the tokens
`<0x00>` to `<0xFF>`, or else the unknown token, several in a row fused to one where the vocabulary says
so. Without either it is dropped, as the reference drops it. That happens: SmolLM2's vocabulary has no
token for 21 of the 256 bytes, some control characters and the first bytes of planes that nobody uses. :*/
//> vocab_encode
static void add_link(Link *link, size_t *n, int32_t id, size_t at, size_t bytes) {
  link[*n] = (Link){.id = id, .at = (uint32_t)at, .bytes = (uint32_t)bytes, .next = -1};
  link[*n].prev = (int32_t)*n - 1;
  if (*n) link[*n - 1].next = (int32_t)*n;
  ++*n;
}

// The chain of single characters. link: room for one a byte.
static size_t first_links(const Vocab *v, const char *piece, size_t bytes, Link *link) {
  size_t n = 0, unknown_at = 0, unknown_bytes = 0; // an unknown token that may still grow
  for (size_t at = 0, size; at < bytes; at += size) {
    size = char_bytes((uint8_t)piece[at]);
    int32_t id = vocab_find(v, piece + at, size);
    if (v->score_rank && id >= 0 && v->score_rank[id] == UINT32_MAX) id = -1;
    if (id >= 0 || v->score_rank) {
      if (unknown_bytes) add_link(link, &n, v->unknown, unknown_at, unknown_bytes);
      unknown_bytes = 0;
      add_link(link, &n, id, at, size);
      continue;
    }
    bool all = v->byte_fallback;
    for (size_t k = 0; k < size; k++) all = all && v->byte_id[(uint8_t)piece[at + k]] >= 0;
    if (all) {
      for (size_t k = 0; k < size; k++)
        add_link(link, &n, v->byte_id[(uint8_t)piece[at + k]], at + k, 1);
    } else if (v->unknown >= 0) {
      if (unknown_bytes && !v->fuse_unknown) {
        add_link(link, &n, v->unknown, unknown_at, unknown_bytes);
        unknown_bytes = 0;
      }
      if (!unknown_bytes) unknown_at = at;
      unknown_bytes += size;
    }
  }
  if (unknown_bytes) add_link(link, &n, v->unknown, unknown_at, unknown_bytes);
  return n;
}

int vocab_encode(const Vocab *v, const char *piece, size_t bytes, int32_t **ids, Error *e) {
  enum { SMALL = 48 }; // most pieces are words: they need no memory from the heap
  Link small_links[SMALL], *link = small_links;
  Join small_joins[2 * SMALL], *heap = small_joins;
  if (!bytes) return 0;
  if (v->ignore_merges) {
    int32_t whole = vocab_find(v, piece, bytes);
    if (whole >= 0) {
      arrput(*ids, whole);
      return 0;
    }
  }
  if (bytes > INT_MAX / 4)
    return fail(e, EXIT_INPUT, "text: a piece of %zu bytes, at most %d", bytes, INT_MAX / 4);
  if (bytes > SMALL) {
    link = malloc(bytes * sizeof *link);
    heap = malloc(2 * bytes * sizeof *heap);
  }
  int result = 0;
  if (!link || !heap)
    result = fail(e, EXIT_FAIL, "text: out of memory for a piece of %zu bytes", bytes);
  else {
    size_t n = first_links(v, piece, bytes, link);
    join_all(v, piece, link, n, heap);
    for (int32_t i = n ? 0 : -1; i >= 0 && result == 0; i = link[i].next) {
      if (link[i].id >= 0) {
        arrput(*ids, link[i].id);
        continue;
      }
      for (size_t k = 0; k < link[i].bytes && result == 0; k++) {
        uint8_t b = (uint8_t)piece[link[i].at + k];
        int32_t id = v->byte_id[b] >= 0 ? v->byte_id[b] : v->unknown;
        if (id < 0)
          result = fail(e, EXIT_INPUT, "text: the vocabulary has no token for byte 0x%02x", b);
        else arrput(*ids, id);
      }
    }
  }
  if (link != small_links) free(link);
  if (heap != small_joins) free(heap);
  return result;
}
//< vocab_encode
